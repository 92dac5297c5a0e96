"""Progress on standard error."""

from __future__ import annotations

import sys
import time
from typing import Any

_SECONDS_AT_A_TERMINAL, _SECONDS_ELSEWHERE = 0.2, 2.0
_GONE = (OSError, ValueError, AttributeError)  # standard error is closed, or None, or lacks what files have


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except _GONE:
        return False


class Progress:
    """At a terminal one line that is drawn again and goes away with close(); elsewhere a line every tenth, at most one in
    two seconds, so that what is quick says nothing. Has what vLLM uses of tqdm's interface."""

    def __init__(self, total: int, desc: str, scale: float = 1, unit: str = "", **_: Any) -> None:
        self.total, self.desc, self.scale, self.unit = total, desc, scale, unit
        self.done = 0
        self.terminal = _is_terminal()
        self.drawn = False
        self.last, self.tenth = time.monotonic(), 0

    def update(self, n: int = 1) -> None:
        self.set(self.done + n)

    def set(self, done: int) -> None:
        self.done = done
        now, tenth = time.monotonic(), 10 * done // max(self.total, 1)
        wait = _SECONDS_AT_A_TERMINAL if self.terminal else _SECONDS_ELSEWHERE
        if now - self.last < wait or not self.terminal and tenth == self.tenth:
            return
        self.last, self.tenth, self.drawn = now, tenth, True
        self._write(f"\r\033[K{self}" if self.terminal else f"{self}\n")

    def close(self) -> None:
        if self.terminal and self.drawn:
            self._write("\r\033[K")

    def __str__(self) -> str:
        share = 100 * self.done // max(self.total, 1)
        number = ".1f" if self.scale != 1 else ".0f"
        counts = f"{self.done / self.scale:{number}}/{self.total / self.scale:{number}}{self.unit}"
        return f"{self.desc}: {share}% ({counts})"

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except _GONE:
            pass  # the work goes on


class Loading(Progress):
    """Shows how many bytes of a model's weights are loaded; LLM calls it as its progress function."""

    def __init__(self, model: str) -> None:
        super().__init__(0, f"loading {model}", 1e9, " GB")

    def __call__(self, done: int, total: int) -> None:
        self.total = total
        self.set(done)
