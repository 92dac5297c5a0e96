"""Exceptions. Each message is one line: what is wrong, where, and what to do."""


class MoesaicError(Exception):
    """Whatever the engine reports."""


class InvalidRequest(MoesaicError, ValueError):
    """A request or an option that asks for what cannot be."""


class NotFound(MoesaicError, FileNotFoundError):
    """A model, a file or a device that is not there."""


class OutOfMemory(MoesaicError, MemoryError):
    """Too little memory for the weights, the KV cache or a step."""


class Unsupported(MoesaicError):
    """A format or an operation that this device or this build lacks."""


class Cancelled(MoesaicError):
    """The work was ended before it was done."""


def _line(error: BaseException) -> str:
    """The beginning of an exception's message, in one line."""
    return " ".join(str(error).split())[:200]


def _shown(value: object) -> str:
    """A value in a message: the beginning of its repr, in one line."""
    return " ".join(repr(value).split())[:60]
