"""gpt-oss's layers on your own CUDA tensors: the kernels that moesaic's engine uses, as operators.

    prepared = moesaic.ops.prepare_mxfp4_moe(w13_blocks, w13_scales, w13_bias, w2_blocks, w2_scales, w2_bias)
    y = moesaic.ops.mxfp4_moe(x, topk_ids, topk_weights, prepared)
    y = moesaic.ops.mxfp4_moe_from_logits(x, router_logits, prepared)

    qkv, o, head = (moesaic.ops.prepare_dense(weight, bias, format="mxfp8") for weight, bias in ..)
    q = moesaic.ops.norm_qkv_rope(x, norm, qkv, positions, cos_sin, slots, k_cache, v_cache, heads=64)
    a = moesaic.ops.paged_attention(q, k_cache, v_cache, page_table, lengths, starts, sinks=sinks, window=128)
    x = moesaic.ops.project(a.flatten(1), o, residual=x)
    logits = moesaic.ops.lm_head(x, head)

Tensors are torch's, or any library's that has DLPack; importing this imports neither torch nor another one. With torch
the work goes to the current stream, and the operators are torch.ops.moesaic.mxfp4_moe and its kin: torch.compile and CUDA
graphs know them. Errors are moesaic's exceptions with one line.
"""

from __future__ import annotations

from typing import Any

from ._engine import MoeOperator
from ._engine import prepare_moe as _prepare_moe
from ._handles import Prepares as _Prepares
from ._handles import of_handle as _any_of_handle
from ._handles import of_kind as _of_kind
from ._layer_ops import Dense, lm_head, norm_qkv_rope, paged_attention, prepare_dense, project
from ._views import View as _View
from ._views import current_stream as _current_stream
from ._views import expect as _expect
from ._views import is_contiguous as _is_contiguous
from ._views import is_torch as _is_torch
from ._views import view_of as _view
from .errors import InvalidRequest

__all__ = ["Dense", "Prepared", "lm_head", "mxfp4_moe", "mxfp4_moe_from_logits", "norm_qkv_rope", "paged_attention", "prepare_dense",
           "prepare_mxfp4_moe", "project"]

_BLOCK = 32  # columns that share a scale


# --- Preparing ---


class Prepared(_Prepares):
    """Experts of one layer on a GPU, in the order that the kernels read: prepare_mxfp4_moe() makes it. The memory is free
    again when nobody has it any more; CUDA graphs that use it do not count, so keep it as long as they are replayed."""

    def __init__(self, moe: MoeOperator, *, experts: int, first_expert: int, num_experts: int, top_k: int, hidden: int,
                 intermediate: int, device: int) -> None:
        super().__init__()  # handle: an int that torch's operators take
        self._moe = moe
        self.experts, self.first_expert, self.num_experts = experts, first_expert, num_experts
        self.top_k, self.hidden, self.intermediate, self.device = top_k, hidden, intermediate, device

    @property
    def nbytes(self) -> int:
        """Of the weights, on the GPU."""
        return self._moe.bytes

    def plan(self, tokens: int) -> str:
        """The kernels for so many tokens: "slabs, split-k 16"."""
        return self._moe.plan(tokens)

    def __repr__(self) -> str:
        return (f"Prepared({self.experts} experts from {self.first_expert} of {self.num_experts}, top {self.top_k}, "
                f"{self.intermediate} x {self.hidden}, cuda:{self.device})")


def _of_handle(handle: int) -> Prepared:
    return _any_of_handle(handle, Prepared, "prepare_mxfp4_moe")


def _matrix(name: str, blocks: Any, scales: Any, bias: Any, stream: int | None, device: int | None) -> tuple[Any, ...]:
    """The matrix as the extension takes it, its shape [experts, rows, columns], its device, and what keeps it."""
    b, s = _view(blocks, f"{name}_blocks", stream), _view(scales, f"{name}_scales", stream)
    if len(b.shape) not in (3, 4) or (len(b.shape) == 4 and b.shape[3] != 16):
        raise InvalidRequest(f"{name}_blocks is {list(b.shape)}; give [experts, rows, columns / 32, 16] or [experts, rows, columns / 2]")
    experts, rows = b.shape[0], b.shape[1]
    columns = b.shape[2] * (_BLOCK if len(b.shape) == 4 else 2)
    if columns % _BLOCK != 0:
        raise InvalidRequest(f"{name}_blocks has {columns} columns, not a multiple of {_BLOCK}")
    device = b.device if device is None else device
    _expect(b, f"{name}_blocks", b.shape, ("uint8",), device)
    _expect(s, f"{name}_scales", (experts, rows, columns // _BLOCK), ("uint8", "float8_e8m0fnu"), device)
    for view, what in ((b, "blocks"), (s, "scales")):
        if not _is_contiguous(view, 2):
            raise InvalidRequest(f"{name}_{what}: a row is not contiguous; call .contiguous()")
    address, dtype, bias_stride, owner = 0, "bfloat16", 0, None
    if bias is not None:
        v = _view(bias, f"{name}_bias", stream)
        _expect(v, f"{name}_bias", (experts, rows), ("bfloat16", "float16", "float32"), device)
        if not _is_contiguous(v, 1):
            raise InvalidRequest(f"{name}_bias: a row is not contiguous; call .contiguous()")
        address, dtype, bias_stride, owner = v.address, v.dtype, v.strides[0], v.owner
    arguments = (b.address, s.address, address, dtype, [b.strides[0], b.strides[1], s.strides[0], s.strides[1], bias_stride])
    return arguments, (experts, rows, columns), device, (b.owner, s.owner, owner)


def prepare_mxfp4_moe(w13_blocks: Any, w13_scales: Any, w13_bias: Any, w2_blocks: Any, w2_scales: Any, w2_bias: Any, *,
                      top_k: int = 4, alpha: float = 1.702, limit: float | None = 7.0, up_offset: float = 1.0,
                      interleaved: bool = True, first_expert: int = 0, num_experts: int | None = None,
                      stream: int | None = None) -> Prepared:
    """Repacks a layer's experts for the kernels, as Hugging Face and vLLM have them. The given tensors may be freed then.

    w13_blocks: [experts, 2 intermediate, hidden / 32, 16] or [experts, 2 intermediate, hidden / 2] uint8, two E2M1 codes a
    byte, the first in the low half. w13_scales: [experts, 2 intermediate, hidden / 32] uint8, E8M0. w13_bias: [experts, 2
    intermediate] bfloat16, float16 or float32, or None. w2_..: the same of [experts, hidden, intermediate]. Rows may have
    strides (padding); each row is contiguous. hidden and intermediate are multiples of 32.

    h = gate sigmoid(alpha gate) (up + up_offset), gate clamped to at most limit, up to +-limit; limit=None: no clamps. Plain
    SwiGLU: alpha=1, limit=None, up_offset=0. interleaved: w13's rows are gate, up, gate, up, .. as gpt-oss stores them;
    False: all gates, then all ups.

    first_expert, num_experts: for expert parallelism, the id of the first expert given and how many the router has; ids of
    others are skipped. Waits for the stream, so it cannot be captured in a CUDA graph.

    Raises InvalidRequest (shapes, dtypes, devices, a NaN scale), Unsupported (sizes, the device, a build without CUDA) and
    OutOfMemory.
    """
    number = _current_stream(w13_blocks, stream)
    w13, (experts, rows13, hidden), device, kept13 = _matrix("w13", w13_blocks, w13_scales, w13_bias, stream, None)
    w2, shape2, _, kept2 = _matrix("w2", w2_blocks, w2_scales, w2_bias, stream, device)
    if rows13 % 2 != 0 or shape2 != (experts, hidden, rows13 // 2):
        raise InvalidRequest(f"w13 of {[experts, rows13, hidden]} and w2 of {list(shape2)} do not belong together: "
                             "[experts, 2 intermediate, hidden] and [experts, hidden, intermediate]")
    if limit is not None and not limit > 0:
        raise InvalidRequest(f"limit {limit}: give a number above 0, or None")
    routed = first_expert + experts if num_experts is None else num_experts
    moe = _prepare_moe(w13, w2, device=device, experts=experts, first_expert=first_expert, routed_experts=routed, top_k=top_k,
                       hidden=hidden, intermediate=rows13 // 2, alpha=alpha, limit=limit or 0.0, offset=up_offset,
                       interleaved=interleaved, stream=number)
    del kept13, kept2  # until here
    return Prepared(moe, experts=experts, first_expert=first_expert, num_experts=routed, top_k=top_k, hidden=hidden,
                    intermediate=rows13 // 2, device=device)


# --- Running ---


def run(prepared: Prepared, x: Any, out: Any, ids: Any = None, weights: Any = None, logits: Any = None,
        workspace: tuple[int, int] = (0, 0), stream: int | None = None) -> None:
    """What the functions below and torch's operators share. workspace: address and bytes; none: the library's own."""
    _of_kind(prepared, Prepared, "prepare_mxfp4_moe")
    number = _current_stream(x, stream)
    vx, vout = _view(x, "x", stream), _view(out, "out", stream)
    if len(vx.shape) != 2 or vx.shape[1] != prepared.hidden:
        raise InvalidRequest(f"x is {list(vx.shape)}, not [tokens, {prepared.hidden}]")
    tokens = vx.shape[0]
    _expect(vx, "x", vx.shape, ("bfloat16", "float16"), prepared.device)
    _expect(vout, "out", vx.shape, (vx.dtype,), prepared.device)
    views = {"x": vx, "out": vout}
    ids64, logits_dtype = False, "float32"
    if logits is None:
        views["topk_ids"], views["topk_weights"] = _view(ids, "topk_ids", stream), _view(weights, "topk_weights", stream)
        _expect(views["topk_ids"], "topk_ids", (tokens, prepared.top_k), ("int32", "int64"), prepared.device)
        _expect(views["topk_weights"], "topk_weights", (tokens, prepared.top_k), ("float32",), prepared.device)
        ids64 = views["topk_ids"].dtype == "int64"
    else:
        views["router_logits"] = _view(logits, "router_logits", stream)
        _expect(views["router_logits"], "router_logits", (tokens, prepared.num_experts), ("float32", "bfloat16", "float16"),
                prepared.device)
        logits_dtype = views["router_logits"].dtype
    for name, view in views.items():
        if not _is_contiguous(view):
            raise InvalidRequest(f"{name} is not contiguous; call .contiguous()")

    def address(name: str) -> int:
        return views[name].address if name in views else 0

    prepared._moe.run(tokens, vx.dtype, vx.address, vout.address, address("topk_ids"), ids64, address("topk_weights"),
                      address("router_logits"), logits_dtype, *workspace, number)


def _needs_out(x: Any, out: Any) -> None:
    if out is None:
        raise InvalidRequest(f"out is None, and x is a {type(x).__name__}; give a tensor to write to")


def mxfp4_moe(x: Any, topk_ids: Any, topk_weights: Any, prepared: Prepared, out: Any = None, *, stream: int | None = None) -> Any:
    """out[t] = sum over k of topk_weights[t, k] * expert topk_ids[t, k] of x[t]; returns out.

    x: [tokens, hidden] bfloat16 or float16, any number of tokens. topk_ids: [tokens, top_k] int32 or int64; ids of no expert
    here are skipped. topk_weights: [tokens, top_k] float32, not negative, used as they are. out: like x, not x itself; None:
    a new tensor (torch). All contiguous. A row of out is NaN where x or a weight is not finite, x beyond 65,504, or a weight
    negative.

    stream: a cudaStream_t as an int; None: torch's current stream, or CUDA's default one. Nothing is waited for. With torch
    scratch memory comes from torch's allocator; else it is kept for each stream and for each captured graph, and the first
    call of a size allocates.
    """
    if _is_torch(x) and stream is None:
        from . import _torch_ops

        return _torch_ops.moe(x, topk_ids, topk_weights, prepared, out)
    _needs_out(x, out)
    run(prepared, x, out, topk_ids, topk_weights, stream=stream)
    return out


def mxfp4_moe_from_logits(x: Any, router_logits: Any, prepared: Prepared, out: Any = None, *, stream: int | None = None) -> Any:
    """The same from the router's logits, [tokens, num_experts] float32, bfloat16 or float16: the top_k largest are chosen
    (the lowest index among equals) and weighted by their softmax. A logit of NaN or +infinity gives a row of NaN."""
    if _is_torch(x) and stream is None:
        from . import _torch_ops

        return _torch_ops.moe_from_logits(x, router_logits, prepared, out)
    _needs_out(x, out)
    run(prepared, x, out, logits=router_logits, stream=stream)
    return out
