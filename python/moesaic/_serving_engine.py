"""The plugins for vLLM and SGLang share this: whether the engine's interface and the device fit, and lines of a log."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Iterable
from typing import Any


def misfit(package: str, interface: Iterable[tuple[str, str, str, list[str]]]) -> str | None:
    """Why the engine's interface is not the one a plugin was written for; None: it is. interface: module, class, method, its
    parameters."""
    for module, owner, method, parameters in interface:
        try:
            cls = getattr(importlib.import_module(f"{package}.{module}"), owner)
            found = list(inspect.signature(getattr(cls, method)).parameters)
        except (ImportError, AttributeError) as error:
            return f"{owner}.{method} is not there ({error})"
        if found != parameters:
            return f"{owner}.{method} takes {', '.join(found)}, not {', '.join(parameters)}"
    return None


@functools.cache
def unfit_device() -> str | None:
    """Why the kernels cannot run here; None: they can."""
    import torch

    if not torch.cuda.is_available():
        return "there is no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if major not in (9, 12):
        return f"compute capability {major}.{minor}: 9.0, 12.0 and 12.1 have kernels"
    from . import _engine

    reason = _engine.unfit_gpu(torch.cuda.current_device())  # not list_devices(), which makes a context on each GPU
    return reason.removeprefix("moe: ") or None


@functools.cache
def say(logger: logging.Logger, line: str, level: int) -> None:
    """Once in a process."""
    logger.log(level, line)


def free(parameters: Iterable[Any]) -> None:
    """Frees torch's weights that were repacked, so that the next layer finds the memory: what is prepared is not torch's."""
    import torch

    for parameter in parameters:
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
    torch.cuda.empty_cache()
