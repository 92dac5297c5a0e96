"""The operators of moesaic.ops in plain torch and double precision: to read, and to compare with.

The names and shapes are those of moesaic.ops, but a matrix is its weight and bias.
"""

from __future__ import annotations

import torch


def rounded(weight: torch.Tensor, format: str) -> torch.Tensor:
    """The weight as prepare_dense(format=..) keeps it: "keep", "bf16", "mxfp8" or "mxfp4"."""
    if format == "keep" and weight.dtype != torch.float32:
        return weight.double()
    if format in ("keep", "bf16"):
        return weight.bfloat16().double()
    blocks = weight.double().unflatten(1, (-1, 32))  # each block shares a power of two
    largest = blocks.abs().amax(2, keepdim=True)
    top_exponent, largest_value = (8, 448.0) if format == "mxfp8" else (2, 6.0)
    scale = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(largest)) - top_exponent), 1.0)
    if format == "mxfp8":  # one exponent more where the largest value would be cut
        scale = torch.where(largest / scale > largest_value, 2 * scale, scale)
    x = (blocks / scale).clamp(-largest_value, largest_value)
    if format == "mxfp8":
        kept = x.float().to(torch.float8_e4m3fn).double()
    else:
        step = torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=1))) - 1)  # a bit of mantissa, 0.5 below 1
        kept = torch.round(x / step) * step
    return (kept * scale).flatten(1)


def project(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None) -> torch.Tensor:
    """[tokens, rows]: x W^T + bias + residual."""
    out = x.double() @ weight.double().T
    for more in (bias, residual):
        if more is not None:
            out = out + more.double()
    return out


def lm_head(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return project(x, weight, bias)


def rms_norm(x: torch.Tensor, norm: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / torch.sqrt((x * x).mean(1, keepdim=True) + eps) * norm.double()


def rotated(x: torch.Tensor, cos_sin: torch.Tensor) -> torch.Tensor:
    """x: [tokens, heads, head_dim], cos_sin: [tokens, head_dim]. The two halves of a head are turned together."""
    cosine, sine = cos_sin.double().unsqueeze(1).chunk(2, 2)
    low, high = x.chunk(2, 2)
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], 2)


def by_token(cache: torch.Tensor, layout: str) -> torch.Tensor:
    """A view of a cache as [pages, page_tokens, kv_heads, head_dim]; uint8 are E4M3's bytes."""
    values = cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache
    return values if layout == "NHD" else values.transpose(1, 2)


def norm_qkv_rope(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, positions: torch.Tensor,
                  cos_sin: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *, heads: int,
                  eps: float = 1e-5, layout: str = "NHD") -> torch.Tensor:
    """q, [tokens, heads, head_dim]; k and v are written to the cache, but for slots below 0. NaN: tokens whose position is not in
    cos_sin or whose slot is beyond the cache, of which nothing is written."""
    k_places, v_places = by_token(k_cache, layout), by_token(v_cache, layout)
    page_tokens, kv_heads, head_dim = k_places.shape[1:]
    qkv = project(rms_norm(x, norm, eps), weight, bias).unflatten(1, (-1, head_dim))
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    absent = (positions < 0) | (positions >= cos_sin.shape[0]) | (slots >= k_places.shape[0] * page_tokens)
    turns = cos_sin[positions.masked_fill(absent, 0)]
    q, k = rotated(q, turns), rotated(k, turns)
    for places, values in ((k_places, k), (v_places, v)):
        limit = 448.0 if places.dtype == torch.float8_e4m3fn else float("inf")
        for token, slot in enumerate(slots.masked_fill(absent, -1).tolist()):
            if slot >= 0:
                places[slot // page_tokens, slot % page_tokens] = values[token].clamp(-limit, limit).float().to(places.dtype)
    return q.masked_fill(absent.view(-1, 1, 1), float("nan"))


def paged_attention(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
                    starts: torch.Tensor, *, sinks: torch.Tensor | None = None, window: int = 0, layout: str = "NHD") -> torch.Tensor:
    """[rows, heads, head_dim]: a row attends to the keys up to its own place in its sequence. Rows of no sequence are zeros, those
    that paged_attention() cannot compute NaN."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    keys, values = by_token(k_cache, layout), by_token(v_cache, layout)
    bounds, room = starts.tolist(), page_table.shape[1] * keys.shape[1]
    for sequence, length in enumerate(lengths.tolist()):
        first, end = bounds[sequence], bounds[sequence + 1]
        sound = 0 <= first and end <= q.shape[0] and end - first <= length <= room
        for row in range(max(first, 0), min(end, q.shape[0])):
            place = length - (end - row)
            oldest = max(0, place - window + 1) if window > 0 else 0
            places = torch.arange(*((oldest, place + 1) if sound else (0, 0)), device=q.device)
            pages = page_table[sequence, places // keys.shape[1]].long()
            if not sound or ((pages < 0) | (pages >= keys.shape[0])).any():
                out[row] = float("nan")
            else:
                out[row] = _of_row(q[row].double(), *(cache[pages, places % keys.shape[1]].double() for cache in (keys, values)), sinks)
    return out


def _of_row(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """q: [heads, head_dim]; keys, values: [keys, kv_heads, head_dim]."""
    keys, values = (each.repeat_interleave(q.shape[0] // each.shape[1], 1) for each in (keys, values))
    scores = torch.einsum("hd,khd->hk", q, keys) / q.shape[1] ** 0.5
    if sinks is not None:  # a key more, without a value
        scores = torch.cat([scores, sinks.double().unsqueeze(1)], 1)
    return torch.einsum("hk,khd->hd", scores.softmax(1)[:, :keys.shape[0]], values)
