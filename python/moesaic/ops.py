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

from ._experts import Prepared, prepare_mxfp4_moe
from ._experts import run as _run
from ._layer_ops import lm_head, norm_qkv_rope, paged_attention, project
from ._layer_runs import Dense, prepare_dense
from ._layer_runs import needs_out as _needs_out
from ._views import is_torch as _is_torch

__all__ = ["Dense", "Prepared", "lm_head", "mxfp4_moe", "mxfp4_moe_from_logits", "norm_qkv_rope", "paged_attention", "prepare_dense",
           "prepare_mxfp4_moe", "project"]


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
    _run(prepared, x, out, topk_ids, topk_weights, stream=stream)
    return out


def mxfp4_moe_from_logits(x: Any, router_logits: Any, prepared: Prepared, out: Any = None, *, stream: int | None = None) -> Any:
    """The same from the router's logits, [tokens, num_experts] float32, bfloat16 or float16: the top_k largest are chosen
    (the lowest index among equals) and weighted by their softmax. A logit of NaN or +infinity gives a row of NaN."""
    if _is_torch(x) and stream is None:
        from . import _torch_ops

        return _torch_ops.moe_from_logits(x, router_logits, prepared, out)
    _needs_out(x, out)
    _run(prepared, x, out, logits=router_logits, stream=stream)
    return out
