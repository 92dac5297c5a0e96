"""The layer's operators beside its experts, run on arrays by their addresses: what _layer_ops.py and _torch_layer_ops.py both call.

Tensors of the CPU are taken, too: there all is computed in double precision, to compare with.
"""

from __future__ import annotations

from typing import Any

from ._engine import DenseOperator, paged_attention_workspace
from ._engine import paged_attention as _paged_attention
from ._engine import prepare_dense as _prepare_dense
from ._handles import Prepares, of_kind
from ._handles import of_handle as _any_of_handle
from ._views import check_contiguous, check_rows, current_stream, expect, view_of, whole
from .errors import InvalidRequest

_FP8 = ("float8_e4m3fn", "uint8")  # uint8: E4M3's bytes
_LAYOUTS = {"NHD": (1, 2), "HND": (2, 1)}  # where a cache's tokens of a page and its KV heads stand
_EVERY_TOKEN = 2**31 - 1  # a window that has all
_FORMATS = ("keep", "bf16", "mxfp8", "mxfp4")


def needs_out(x: Any, out: Any) -> None:
    if out is None:
        raise InvalidRequest(f"out is None, and x is a {type(x).__name__}; give a tensor to write to")


# --- Dense ---


class Dense(Prepares):
    """A matrix in the order that the kernels read, and its bias: prepare_dense() makes it. The memory is free again when
    nobody has it any more; CUDA graphs that use it do not count, so keep it as long as they are replayed."""

    def __init__(self, dense: DenseOperator, device: int, format: str) -> None:
        super().__init__()  # handle: an int that torch's operators take
        self._dense, self.device, self.format = dense, device, format
        self.rows, self.columns = dense.rows, dense.columns

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self._dense.bytes

    def plan(self, tokens: int) -> str:
        """The kernel for so many tokens: "MXFP8, dense_decode 8"."""
        return self._dense.plan(whole(tokens, "tokens", 0, 2**62))

    def __repr__(self) -> str:
        where = "cpu" if self.device < 0 else f"cuda:{self.device}"
        return f"Dense({self.rows} x {self.columns}, {self.format}, {where})"


def of_handle(handle: int) -> Dense:
    return _any_of_handle(handle, Dense, "prepare_dense")


def dense_of(prepared: Any) -> Dense:
    return of_kind(prepared, Dense, "prepare_dense")


def prepare_dense(weight: Any, bias: Any = None, *, format: str = "keep", stream: int | None = None) -> Dense:
    """Repacks a matrix for the kernels. The given tensors may be freed then.

    weight: [rows, columns] bfloat16, float16 or float32 (which becomes bfloat16); rows may have a stride. columns is a
    multiple of 32. bias: [rows] of such a type, or None. format: "keep", "bf16", "mxfp8" or "mxfp4", to which the weight is
    rounded. Waits for the stream, so it cannot be captured in a CUDA graph.

    Raises InvalidRequest (shapes, dtypes, devices, a value that is not finite), Unsupported and OutOfMemory.
    """
    if format not in _FORMATS:
        raise InvalidRequest(f"format {format!r}: use {', '.join(_FORMATS)}")
    types = ("bfloat16", "float16", "float32")
    w = view_of(weight, "weight", stream, host=True)
    if len(w.shape) != 2 or (w.shape[1] > 1 and w.strides[1] != 1):
        raise InvalidRequest(f"weight is {list(w.shape)} with strides {list(w.strides)}; give [rows, columns], each row contiguous")
    expect(w, "weight", w.shape, types, None)
    address, dtype, owner = 0, "bfloat16", None
    if bias is not None:
        b = view_of(bias, "bias", stream, host=True)
        expect(b, "bias", (w.shape[0],), types, w.device)
        check_contiguous({"bias": b})
        address, dtype, owner = b.address, b.dtype, b.owner
    stride = w.strides[0] if w.shape[0] > 1 else w.shape[1]
    made = _prepare_dense(w.address, w.dtype, w.shape[0], w.shape[1], stride, address, dtype, format=format, device=w.device,
                          stream=current_stream(weight, stream))
    del owner  # until here
    return Dense(made, w.device, format)


def run_dense(prepared: Dense, x: Any, out: Any, residual: Any = None, workspace: tuple[int, int] = (0, 0),
              stream: int | None = None) -> None:
    """out = x W^T + bias + residual. workspace: its address and bytes; none: the library's own."""
    dense_of(prepared)
    views = {"x": view_of(x, "x", stream, host=True), "out": view_of(out, "out", stream, host=True)}
    vx, vout = views["x"], views["out"]
    check_rows(vx, prepared.columns)
    tokens = vx.shape[0]
    expect(vx, "x", vx.shape, ("bfloat16",), prepared.device)
    expect(vout, "out", (tokens, prepared.rows), ("bfloat16", "float32"), prepared.device)
    if residual is not None:
        views["residual"] = view_of(residual, "residual", stream, host=True)
        expect(views["residual"], "residual", vout.shape, (vout.dtype,), prepared.device)
    check_contiguous(views)
    prepared._dense.run(tokens, vx.address, vout.address, vout.dtype, views["residual"].address if residual is not None else 0,
                        *workspace, current_stream(x, stream))


# --- The paged cache ---


def check_layout(layout: Any) -> None:
    if not isinstance(layout, str) or layout not in _LAYOUTS:
        raise InvalidRequest(f"layout {layout!r}: use NHD or HND")


def check_window(window: Any) -> None:
    whole(window, "window", -(2**63), 2**63 - 1)


def check_eps(eps: Any) -> None:
    if not isinstance(eps, (int, float)):
        raise InvalidRequest(f"eps is {eps!r}; give a number")


def _cache(k_cache: Any, v_cache: Any, layout: str, device: int, stream: int | None) -> tuple[Any, ...]:
    """The cache as the extension takes it, and what keeps it."""
    check_layout(layout)
    k, v = view_of(k_cache, "k_cache", stream, host=True), view_of(v_cache, "v_cache", stream, host=True)
    if len(k.shape) != 4:
        order = "page_tokens, kv_heads" if layout == "NHD" else "kv_heads, page_tokens"
        raise InvalidRequest(f"k_cache is {list(k.shape)}, not [pages, {order}, head_dim]")
    expect(k, "k_cache", k.shape, ("bfloat16", *_FP8), device)
    expect(v, "v_cache", k.shape, (k.dtype,), device)
    differ = any(k.shape[i] > 1 and k.strides[i] != v.strides[i] for i in range(4))
    if differ or (k.shape[3] > 1 and k.strides[3] != 1):
        raise InvalidRequest(f"k_cache and v_cache have strides {list(k.strides)} and {list(v.strides)}; give the same, the last one 1")
    token, head = _LAYOUTS[layout]
    return (k.address, v.address, k.dtype in _FP8, k.shape[0], k.shape[token], k.shape[head], k.shape[3], k.strides[0],
            k.strides[token], k.strides[head]), (k.owner, v.owner)


def run_norm_qkv_rope(prepared: Dense, x: Any, norm: Any, positions: Any, cos_sin: Any, slots: Any, k_cache: Any, v_cache: Any,
                      out: Any, heads: int, eps: float, layout: str, workspace: tuple[int, int] = (0, 0),
                      stream: int | None = None) -> None:
    dense_of(prepared)
    given = {"x": x, "norm": norm, "positions": positions, "cos_sin": cos_sin, "slots": slots, "out": out}
    views = {name: view_of(tensor, name, stream, host=True) for name, tensor in given.items()}
    vx, device = views["x"], prepared.device
    check_rows(vx, prepared.columns)
    tokens = vx.shape[0]
    cache, owners = _cache(k_cache, v_cache, layout, device, stream)
    head_dim, out_shape = cache[6], views["out"].shape
    if len(out_shape) != 3 or out_shape[0] != tokens or out_shape[2] != head_dim:
        raise InvalidRequest(f"out is {list(out_shape)}, not [{tokens}, {heads}, {head_dim}]")
    if out_shape[1] != heads:
        raise InvalidRequest(f"out has {out_shape[1]} heads, not {heads}")
    expect(vx, "x", vx.shape, ("bfloat16",), device)
    expect(views["norm"], "norm", (prepared.columns,), ("bfloat16", "float16", "float32"), device)
    expect(views["positions"], "positions", (tokens,), ("int64",), device)
    expect(views["slots"], "slots", (tokens,), ("int64",), device)
    shape = views["cos_sin"].shape
    expect(views["cos_sin"], "cos_sin", (shape[0] if shape else 0, head_dim), ("float32", "bfloat16", "float16"), device)
    expect(views["out"], "out", out_shape, ("bfloat16",), device)
    check_contiguous(views)
    check_eps(eps)
    prepared._dense.norm_qkv_rope(tokens, vx.address, views["norm"].address, views["norm"].dtype, eps, out_shape[1], cache,
                                  views["positions"].address, views["cos_sin"].address, views["cos_sin"].dtype, shape[0],
                                  views["slots"].address, views["out"].address, *workspace, current_stream(x, stream))
    del owners  # until here


# --- Attention ---


def run_paged_attention(q: Any, k_cache: Any, v_cache: Any, page_table: Any, lengths: Any, starts: Any, out: Any, sinks: Any,
                        window: int, layout: str, allocate: Any = None, stream: int | None = None) -> None:
    """allocate(bytes): a workspace's address and what keeps it; None: the library's own."""
    check_window(window)
    given = {"q": q, "lengths": lengths, "starts": starts, "out": out}
    views = {name: view_of(tensor, name, stream, host=True) for name, tensor in given.items()}
    vq = views["q"]
    if len(vq.shape) != 3:
        raise InvalidRequest(f"q is {list(vq.shape)}, not [rows, heads, head_dim]")
    (rows, heads, head_dim), device = vq.shape, vq.device
    cache, owners = _cache(k_cache, v_cache, layout, device, stream)
    if cache[6] != head_dim:
        raise InvalidRequest(f"q has a head_dim of {head_dim}, k_cache of {cache[6]}")
    expect(vq, "q", vq.shape, ("bfloat16",), device)
    expect(views["out"], "out", vq.shape, ("bfloat16",), device)
    sequences = views["lengths"].shape[0] if views["lengths"].shape else 0
    expect(views["lengths"], "lengths", (sequences,), ("int32",), device)
    expect(views["starts"], "starts", (sequences + 1,), ("int32",), device)
    if sinks is not None:
        views["sinks"] = view_of(sinks, "sinks", stream, host=True)
        expect(views["sinks"], "sinks", (heads,), ("float32",), device)
    check_contiguous(views)
    table = view_of(page_table, "page_table", stream, host=True)
    if len(table.shape) != 2 or table.shape[0] != sequences or (table.shape[1] > 1 and table.strides[1] != 1):
        raise InvalidRequest(f"page_table is {list(table.shape)} with strides {list(table.strides)}; give [{sequences}, pages], "
                             "each row contiguous")
    expect(table, "page_table", table.shape, ("int32",), device)
    pages = table.shape[1]
    stride = table.strides[0] if sequences > 1 else pages
    shape = (device, rows, sequences, heads, cache, max(-1, min(window, _EVERY_TOKEN)), stride, pages)
    memory, size, owner = 0, 0, None
    if allocate is not None:
        size = paged_attention_workspace(*shape)
        memory, owner = allocate(size)
    _paged_attention(*shape, vq.address, views["out"].address, views["sinks"].address if sinks is not None else 0,
                     views["starts"].address, views["lengths"].address, table.address, memory, size, current_stream(q, stream))
    del owner, owners  # until here
