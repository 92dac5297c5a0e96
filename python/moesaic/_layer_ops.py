"""The operators of a layer beside its experts: moesaic.ops has the beginning of their documentation."""

from __future__ import annotations

from typing import Any

from ._layer_runs import Dense, needs_out, run_dense, run_norm_qkv_rope, run_paged_attention
from ._views import expect, is_torch, view_of


def project(x: Any, prepared: Dense, residual: Any = None, out: Any = None, *, stream: int | None = None) -> Any:
    """out = x W^T + bias + residual; returns out.

    x: [tokens, columns] bfloat16, any number of tokens. residual: [tokens, rows] bfloat16 or float32, or None; may be out
    itself. out: of the residual's type, not x; None: a new tensor (torch), bfloat16 without a residual. All contiguous.
    stream: as mxfp4_moe().
    """
    if is_torch(x) and stream is None:
        from . import _torch_layer_ops

        return _torch_layer_ops.project(x, prepared, residual, out)
    needs_out(x, out)
    run_dense(prepared, x, out, residual, stream=stream)
    return out


def lm_head(x: Any, prepared: Dense, out: Any = None, *, stream: int | None = None) -> Any:
    """Logits, x W^T + bias: [tokens, rows] float32. x: [tokens, columns] bfloat16, the rows after the final norm."""
    if is_torch(x) and stream is None:
        from . import _torch_layer_ops

        return _torch_layer_ops.lm_head(x, prepared, out)
    needs_out(x, out)
    given = view_of(out, "out", stream, host=True)
    expect(given, "out", given.shape, ("float32",), None)
    run_dense(prepared, x, out, stream=stream)
    return out


def norm_qkv_rope(x: Any, norm: Any, prepared: Dense, positions: Any, cos_sin: Any, slots: Any, k_cache: Any, v_cache: Any, *,
                  heads: int, eps: float = 1e-5, layout: str = "NHD", out: Any = None, stream: int | None = None) -> Any:
    """q, k, v = rms_norm(x) W^T + bias, RoPE on q and k; k and v are written to the cache. Returns q, [tokens, heads, head_dim].

    x: [tokens, hidden] bfloat16. norm: [hidden] bfloat16, float16 or float32. prepared: of a matrix whose rows are Q's heads,
    then K's, then V's. positions: [tokens] int64. cos_sin: [positions, head_dim], the cosines of head_dim / 2 angles, then
    their sines: vLLM's cos_sin_cache; float32, bfloat16 or float16. slots: [tokens] int64, page * page_tokens + place in the
    page, none twice; below 0: k and v are written nowhere. k_cache, v_cache: as paged_attention(). out: bfloat16; None: a new tensor (torch).

    A token's q is NaN where its position is not in cos_sin or its slot beyond the cache; the cache stays as it is then.
    """
    if is_torch(x) and stream is None:
        from . import _torch_layer_ops

        return _torch_layer_ops.norm_qkv_rope(x, norm, prepared, positions, cos_sin, slots, k_cache, v_cache, heads, eps, layout, out)
    needs_out(x, out)
    run_norm_qkv_rope(prepared, x, norm, positions, cos_sin, slots, k_cache, v_cache, out, heads, eps, layout, stream=stream)
    return out


def paged_attention(q: Any, k_cache: Any, v_cache: Any, page_table: Any, lengths: Any, starts: Any, *, sinks: Any = None,
                    window: int = 0, layout: str = "NHD", out: Any = None, stream: int | None = None) -> Any:
    """Causal attention over a paged KV cache, with a sink for each head and a sliding window; returns out, like q.

    q: [rows, heads, head_dim] bfloat16; a sequence's rows are the last of its tokens. starts: [sequences + 1] int32, the
    first row of each, and the end. lengths: [sequences] int32, tokens in the cache, the rows' own included. page_table:
    [sequences, pages] int32; its rows may have a stride. k_cache, v_cache: NHD [pages, page_tokens, kv_heads, head_dim] or HND
    [pages, kv_heads, page_tokens, head_dim], bfloat16 or float8_e4m3fn (or uint8, its bytes) without scales, of the same
    strides, the last of which is 1. page_tokens: 16, 32 or 64; head_dim: 32, 64 or 128; up to 16 heads share a KV head. sinks:
    [heads] float32 logits, or None. window: tokens that a row attends to, itself included; 0: all.

    The scale is 1 / sqrt(head_dim). A row is NaN where a page that it attends to is not one of the cache's, or its sequence
    has fewer tokens than rows, more than its page table has room for, or rows that q has not; then, and where K or V is not
    finite, a GPU may also make other rows of that sequence NaN. Rows of no sequence stay as they are, which is undefined in a new
    tensor.
    """
    if is_torch(q) and stream is None:
        from . import _torch_layer_ops

        return _torch_layer_ops.paged_attention(q, k_cache, v_cache, page_table, lengths, starts, sinks, window, layout, out)
    needs_out(q, out)
    run_paged_attention(q, k_cache, v_cache, page_table, lengths, starts, out, sinks, window, layout, stream=stream)
    return out
