"""Prepared weights as torch's operators take them: an int, another one for each, whatever its kind."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NoReturn, TypeVar

from .errors import InvalidRequest

_numbers = itertools.count(1)
_alive: weakref.WeakValueDictionary[int, Prepares] = weakref.WeakValueDictionary()


class Prepares:
    """Weights in the order that kernels read. Nothing changes them, so a copy is the thing itself."""

    def __init__(self) -> None:
        self.handle = next(_numbers)
        _alive[self.handle] = self

    def __copy__(self) -> Prepares:
        return self

    def __deepcopy__(self, memo: Any) -> Prepares:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: its weights are in a device's memory; prepare them again")


Kind = TypeVar("Kind", bound=Prepares)


def of_handle(handle: int, kind: type[Kind], made_by: str) -> Kind:
    found = _alive.get(handle)
    if found is None:
        raise InvalidRequest(f"handle {handle} is gone: keep what {made_by}() returned")
    return of_kind(found, kind, made_by)


def of_kind(given: Any, kind: type[Kind], made_by: str) -> Kind:
    if not isinstance(given, kind):
        raise InvalidRequest(f"prepared is a {type(given).__name__}; give what {made_by}() returned")
    return given
