"""Python's, numpy's and torch's values, as requests take them."""

from __future__ import annotations

import json
import operator
from typing import Any, Iterable, Mapping

from .errors import InvalidRequest


def _is_series(value: Any) -> bool:
    """A list or the like; text, bytes and mappings are none, nor an array of no dimension, which cannot be iterated over."""
    is_bytes = isinstance(value, (bytes, bytearray)) or (isinstance(value, memoryview) and value.itemsize == 1)
    return (isinstance(value, Iterable) and not is_bytes and not isinstance(value, (str, Mapping))
            and getattr(value, "shape", None) != ())


def _is_id(value: Any) -> bool:
    """A whole number, numpy's and torch's too; an array of one is none."""
    return hasattr(value, "__index__") and not getattr(value, "shape", ())


def _ids(value: Any, what: str) -> list[int]:
    if not _is_series(value):
        raise InvalidRequest(f"{what}: {type(value).__name__} is no list of token ids")
    ids = list(value)
    try:
        if all(_is_id(one) and not isinstance(one, bool) for one in ids):
            return [operator.index(one) for one in ids]
    except TypeError:  # numpy's floats, for one, have the method
        pass
    raise InvalidRequest(f"{what}: holds something that is no token id")


def _token_ids(value: Any, what: str) -> list[int]:
    """Those that the engine's type holds; whether the vocabulary has them is for the engine to say."""
    ids = _ids(value, what)
    if any(abs(token) >= 1 << 31 for token in ids):
        raise InvalidRequest(f"{what}: one is no token id")
    return ids


def _message_list(value: Any) -> list[Any]:
    if not _is_series(value):
        raise InvalidRequest("messages: must be a list of messages")
    return list(value)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what}: {type(value).__name__} is not text")
    return value


def _plain(value: Any) -> Any:
    """Python's own values for numpy's and torch's numbers and arrays, which JSON lacks."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__}")


def _as_json(fields: Mapping[str, Any]) -> str:
    parts = []
    for name, value in fields.items():
        try:
            parts.append(f"{json.dumps(name)}: {json.dumps(value, allow_nan=False, default=_plain)}")
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"{' '.join(name.split())}: holds something that is not JSON: {error}") from None
    return f"{{{', '.join(parts)}}}"
