"""A crash of moesaic under vLLM leaves a note behind, with which vLLM's next start goes without moesaic.

A fatal signal in moesaic's code writes it (_engine.note_crashes), and so does an error of a step. It counts for the version that
wrote it, until it is removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
from collections.abc import Iterator

from . import _engine

_logger = logging.getLogger("vllm.moesaic")
_MOST = 1000  # bytes that are read


def _note() -> pathlib.Path | None:
    folder = _engine.cache_folder()
    return pathlib.Path(folder, "vllm-crash.txt") if folder else None


def _head() -> str:
    return f"moesaic {_engine.version}\n"


def earlier() -> str | None:
    """How an earlier run of this version ended, and how to try again; None: well."""
    note = _note()
    try:
        if note is None or not note.is_file():
            return None
        with open(note, encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST)
    except OSError:
        return None
    head, _, reason = text.partition("\n")
    if head + "\n" != _head():
        return None
    shown = "".join(c for c in " ".join(reason.split()) if c.isprintable())
    return f"it ended an earlier run ({shown or 'unknown'}); to try again, remove {note}"


def _next_start(note: pathlib.Path) -> str:
    return f"vLLM's own layers run at its next start (to try moesaic again, remove {note})"


def watch() -> None:
    """From now on a fatal signal in moesaic's code leaves the note."""
    note = _note()
    if note is None:
        return
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        _engine.note_crashes(str(note), _head(), f"moesaic: crashed; {_next_start(note)}\n")


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Around a call of moesaic's code whose error ends vLLM."""
    try:
        yield
    except Exception as error:
        note = _note()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        if note is not None:
            with contextlib.suppress(OSError):
                note.write_text(f"{_head()}{reason[:_MOST]}\n", encoding="utf-8", errors="replace")
                _logger.error("moesaic: %s; %s", reason, _next_start(note))
        raise
