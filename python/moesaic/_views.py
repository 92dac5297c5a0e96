"""Tensors of any library as their address, shape and strides, by torch's own attributes or DLPack."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

from ._engine import DlpackTensor
from .errors import InvalidRequest, _shown

_LEGACY_STREAM = 1  # CUDA's default stream, as DLPack names it
_HOST = -1  # the device of tensors of the CPU
_ON_CPU, _ON_CUDA = 1, 2  # DLPack's numbers


class View(NamedTuple):
    """A tensor as the kernels need to know it; strides in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: int
    owner: Any  # keeps the memory


def is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def view_of(tensor: Any, name: str, stream: int | None, host: bool = False) -> View:
    """host: tensors of the CPU are taken, too."""
    if is_torch(tensor):
        if tensor.device.type != "cuda" and not (host and tensor.device.type == "cpu"):
            raise InvalidRequest(f"{name} is on {tensor.device}; it must be on a CUDA device")
        if tensor.layout != sys.modules["torch"].strided:
            raise InvalidRequest(f"{name} is a tensor of layout {tensor.layout}; give a dense one")
        return View(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), str(tensor.dtype).removeprefix("torch."),
                    tensor.device.index if tensor.device.type == "cuda" else _HOST, tensor)
    if not hasattr(tensor, "__dlpack__"):
        raise InvalidRequest(f"{name} is a {type(tensor).__name__}; give a tensor with DLPack, such as torch's")
    kind = int(tensor.__dlpack_device__()[0])
    if host and kind == _ON_CPU:
        taken = _taken(tensor, name)
        return View(taken.address, taken.shape, taken.strides, taken.dtype, _HOST, taken)
    if kind != _ON_CUDA:
        raise InvalidRequest(f"{name} is not on a CUDA device")
    taken = _taken(tensor, name, stream=stream or _LEGACY_STREAM)  # DLPack has no stream 0
    return View(taken.address, taken.shape, taken.strides, taken.dtype, taken.device, taken)


def _taken(tensor: Any, name: str, **options: int) -> DlpackTensor:
    try:
        return DlpackTensor(tensor.__dlpack__(**options))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # its library does not give it, or nobody can take it
        raise InvalidRequest(f"{name}: {' '.join(str(error).split())}") from error


def is_contiguous(view: View, first: int = 0) -> bool:
    """True if the dimensions from `first` on are."""
    if 0 in view.shape:
        return True
    expected = 1
    for size, stride in zip(reversed(view.shape[first:]), reversed(view.strides[first:])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def check_contiguous(views: dict[str, View]) -> None:
    for name, view in views.items():
        if not is_contiguous(view):
            raise InvalidRequest(f"{name} is not contiguous; call .contiguous()")


def check_rows(x: View, columns: int) -> None:
    if len(x.shape) != 2 or x.shape[1] != columns:
        raise InvalidRequest(f"x is {list(x.shape)}, not [tokens, {columns}]")


def _place(device: int) -> str:
    return "the CPU" if device == _HOST else f"cuda:{device}"


def expect(view: View, name: str, shape: tuple[int, ...], dtypes: tuple[str, ...], device: int | None) -> None:
    if view.shape != shape:
        raise InvalidRequest(f"{name} is {list(view.shape)}, not {list(shape)}")
    if view.dtype not in dtypes:
        raise InvalidRequest(f"{name} is {view.dtype}, not {' or '.join(dtypes)}")
    if device is not None and view.device != device:
        raise InvalidRequest(f"{name} is on {_place(view.device)}, not on {_place(device)}")


def whole(number: Any, name: str, least: int = 0, most: int = 2**31 - 1) -> int:
    if not isinstance(number, int) and (isinstance(number, float) or not hasattr(number, "__index__")):
        raise InvalidRequest(f"{name} is {number!r}; give a whole number")
    if number < least or number > most:
        raise InvalidRequest(f"{name} is {number}; {least} to {most} are possible")
    return int(number)


def real(number: Any, name: str) -> float:
    try:
        if not isinstance(number, (str, bytes)):
            return float(number)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InvalidRequest(f"{name} is {_shown(number)}; give a number")


def current_stream(tensor: Any, stream: int | None) -> int:
    """A cudaStream_t. Of torch's tensors the current one; else CUDA's default stream."""
    if stream is not None:
        return whole(stream, "stream", 0, 2**64 - 1)
    on_gpu = is_torch(tensor) and tensor.device.type == "cuda"
    return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream if on_gpu else 0
