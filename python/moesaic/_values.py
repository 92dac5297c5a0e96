"""Python's, numpy's and torch's values, as requests take them."""

from __future__ import annotations

import json
from typing import Any, Iterable, Mapping

from .errors import InvalidRequest


def _is_series(value: Any) -> bool:
    """A list or the like; an array of no dimension, which cannot be iterated over, is none."""
    return isinstance(value, Iterable) and getattr(value, "shape", None) != ()


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
