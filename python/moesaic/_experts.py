"""The experts of a layer: prepared for the kernels, and run on arrays by their addresses. ops.py has the operators that users call,
_torch_ops.py those that torch knows.
"""

from __future__ import annotations

from typing import Any

from ._engine import MoeOperator
from ._engine import prepare_moe as _prepare_moe
from ._handles import Prepares, of_kind
from ._handles import of_handle as _any_of_handle
from ._views import check_contiguous, check_rows, current_stream, expect, is_contiguous, real, view_of, whole
from .errors import InvalidRequest

_BLOCK = 32  # columns that share a scale


class Prepared(Prepares):
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
        """Bytes of the weights, on the GPU."""
        return self._moe.bytes

    def plan(self, tokens: int) -> str:
        """The kernels for so many tokens: "slabs, split-k 16"."""
        return self._moe.plan(whole(tokens, "tokens", 0, 2**62))

    def __repr__(self) -> str:
        return (f"Prepared({self.experts} experts from {self.first_expert} of {self.num_experts}, top {self.top_k}, "
                f"{self.intermediate} x {self.hidden}, cuda:{self.device})")


def of_handle(handle: int) -> Prepared:
    return _any_of_handle(handle, Prepared, "prepare_mxfp4_moe")


def _matrix(name: str, blocks: Any, scales: Any, bias: Any, stream: int | None, device: int | None) -> tuple[Any, ...]:
    """The matrix as the extension takes it, its shape [experts, rows, columns], its device, and what keeps it."""
    b, s = view_of(blocks, f"{name}_blocks", stream), view_of(scales, f"{name}_scales", stream)
    if len(b.shape) not in (3, 4) or (len(b.shape) == 4 and b.shape[3] != 16):
        raise InvalidRequest(f"{name}_blocks is {list(b.shape)}; give [experts, rows, columns / 32, 16] or [experts, rows, columns / 2]")
    experts, rows = b.shape[0], b.shape[1]
    columns = b.shape[2] * (_BLOCK if len(b.shape) == 4 else 2)
    if columns % _BLOCK != 0:
        raise InvalidRequest(f"{name}_blocks has {columns} columns, not a multiple of {_BLOCK}")
    device = b.device if device is None else device
    expect(b, f"{name}_blocks", b.shape, ("uint8",), device)
    expect(s, f"{name}_scales", (experts, rows, columns // _BLOCK), ("uint8", "float8_e8m0fnu"), device)
    for view, what in ((b, "blocks"), (s, "scales")):
        if not is_contiguous(view, 2):
            raise InvalidRequest(f"{name}_{what}: a row is not contiguous; call .contiguous()")
    address, dtype, bias_stride, owner = 0, "bfloat16", 0, None
    if bias is not None:
        v = view_of(bias, f"{name}_bias", stream)
        expect(v, f"{name}_bias", (experts, rows), ("bfloat16", "float16", "float32"), device)
        if not is_contiguous(v, 1):
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
    number = current_stream(w13_blocks, stream)
    w13, (experts, rows13, hidden), device, kept13 = _matrix("w13", w13_blocks, w13_scales, w13_bias, stream, None)
    w2, shape2, _, kept2 = _matrix("w2", w2_blocks, w2_scales, w2_bias, stream, device)
    if rows13 % 2 != 0 or shape2 != (experts, hidden, rows13 // 2):
        raise InvalidRequest(f"w13 of {[experts, rows13, hidden]} and w2 of {list(shape2)} do not belong together: "
                             "[experts, 2 intermediate, hidden] and [experts, hidden, intermediate]")
    alpha, up_offset, top_k = real(alpha, "alpha"), real(up_offset, "up_offset"), whole(top_k, "top_k")
    if limit is not None and not real(limit, "limit") > 0:
        raise InvalidRequest(f"limit {limit}: give a number above 0, or None")
    first_expert = whole(first_expert, "first_expert", 0, 2**31 - 1 - experts)
    routed = first_expert + experts if num_experts is None else whole(num_experts, "num_experts")
    if not isinstance(interleaved, int):
        raise InvalidRequest(f"interleaved is {interleaved!r}; give True or False")
    moe = _prepare_moe(w13, w2, device=device, experts=experts, first_expert=first_expert, routed_experts=routed, top_k=top_k,
                       hidden=hidden, intermediate=rows13 // 2, alpha=alpha, limit=float(limit or 0.0), offset=up_offset,
                       interleaved=bool(interleaved), stream=number)
    del kept13, kept2  # until here
    return Prepared(moe, experts=experts, first_expert=first_expert, num_experts=routed, top_k=top_k, hidden=hidden,
                    intermediate=rows13 // 2, device=device)


def run(prepared: Prepared, x: Any, out: Any, ids: Any = None, weights: Any = None, logits: Any = None,
        workspace: tuple[int, int] = (0, 0), stream: int | None = None) -> None:
    """Runs the operator on arrays of any library. workspace: its address and bytes; none: the library's own."""
    of_kind(prepared, Prepared, "prepare_mxfp4_moe")
    number = current_stream(x, stream)
    vx, vout = view_of(x, "x", stream), view_of(out, "out", stream)
    check_rows(vx, prepared.hidden)
    tokens = vx.shape[0]
    expect(vx, "x", vx.shape, ("bfloat16", "float16"), prepared.device)
    expect(vout, "out", vx.shape, (vx.dtype,), prepared.device)
    views = {"x": vx, "out": vout}
    ids64, logits_dtype = False, "float32"
    if logits is None:
        views["topk_ids"], views["topk_weights"] = view_of(ids, "topk_ids", stream), view_of(weights, "topk_weights", stream)
        expect(views["topk_ids"], "topk_ids", (tokens, prepared.top_k), ("int32", "int64"), prepared.device)
        expect(views["topk_weights"], "topk_weights", (tokens, prepared.top_k), ("float32",), prepared.device)
        ids64 = views["topk_ids"].dtype == "int64"
    else:
        views["router_logits"] = view_of(logits, "router_logits", stream)
        expect(views["router_logits"], "router_logits", (tokens, prepared.num_experts), ("float32", "bfloat16", "float16"),
                prepared.device)
        logits_dtype = views["router_logits"].dtype
    check_contiguous(views)

    def address(name: str) -> int:
        return views[name].address if name in views else 0

    prepared._moe.run(tokens, vx.dtype, vx.address, vout.address, address("topk_ids"), ids64, address("topk_weights"),
                      address("router_logits"), logits_dtype, *workspace, number)
