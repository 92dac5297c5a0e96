"""What the operators of moesaic.ops compute, in plain torch and double precision: to read, and to compare with.

The names and shapes are those of moesaic.ops, but a matrix is its weight and bias.
"""

from __future__ import annotations

import torch


def rounded(weight: torch.Tensor, format: str) -> torch.Tensor:
    """The weight as prepare_dense(format=..) keeps it: "keep", "bf16", "mxfp8" or "mxfp4"."""
    if format == "keep":
        return weight.double()
    if format == "bf16":
        return weight.bfloat16().double()
    blocks = weight.double().unflatten(1, (-1, 32))  # that share a power of two
    largest = blocks.abs().amax(2, keepdim=True)
    top_exponent, largest_value = (8, 448.0) if format == "mxfp8" else (2, 6.0)
    scale = torch.where(largest > 0, torch.exp2(torch.floor(torch.log2(largest)) - top_exponent), 1.0)
    x = (blocks / scale).clamp(-largest_value, largest_value)
    if format == "mxfp8":
        kept = x.float().to(torch.float8_e4m3fn).double()
    else:
        step = torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=1))) - 1)  # of E2M1: a bit of mantissa, 0.5 below 1
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
    """A view of a cache as [pages, page_tokens, kv_heads, head_dim]."""
    return cache if layout == "NHD" else cache.transpose(1, 2)


def norm_qkv_rope(x: torch.Tensor, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, positions: torch.Tensor,
                  cos_sin: torch.Tensor, slots: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *, heads: int,
                  eps: float = 1e-5, layout: str = "NHD") -> torch.Tensor:
    """q, [tokens, heads, head_dim]; k and v are written to the cache."""
    k_places, v_places = by_token(k_cache, layout), by_token(v_cache, layout)
    page_tokens, kv_heads, head_dim = k_places.shape[1:]
    qkv = project(rms_norm(x, norm, eps), weight, bias).unflatten(1, (-1, head_dim))
    q, k, v = qkv.split([heads, kv_heads, kv_heads], 1)
    turns = cos_sin[positions]
    q, k = rotated(q, turns), rotated(k, turns)
    for places, values in ((k_places, k), (v_places, v)):
        limit = 448.0 if places.dtype == torch.float8_e4m3fn else float("inf")
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                places[slot // page_tokens, slot % page_tokens] = values[token].clamp(-limit, limit).float().to(places.dtype)
    return q


def paged_attention(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, page_table: torch.Tensor, lengths: torch.Tensor,
                    starts: torch.Tensor, *, sinks: torch.Tensor | None = None, window: int = 0, layout: str = "NHD") -> torch.Tensor:
    """[rows, heads, head_dim]: a row attends to the keys up to its own place in its sequence."""
    out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
    bounds, heads, head_dim = starts.tolist(), q.shape[1], q.shape[2]
    for sequence, length in enumerate(lengths.tolist()):
        first, end = bounds[sequence], bounds[sequence + 1]
        keys, values = (_of_sequence(by_token(cache, layout), page_table[sequence], length, heads) for cache in (k_cache, v_cache))
        scores = torch.einsum("rhd,khd->hrk", q[first:end].double(), keys) / head_dim ** 0.5
        place = torch.arange(length - (end - first), length, device=q.device).unsqueeze(1)
        key = torch.arange(length, device=q.device)
        hidden = (key > place) | ((key <= place - window) if window > 0 else False)
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:  # a key more, without a value
            sink = sinks.double().view(-1, 1, 1).expand(-1, end - first, 1)
            weights = torch.cat([scores, sink], 2).softmax(2)[:, :, :-1]
        else:
            weights = scores.softmax(2)
        out[first:end] = torch.einsum("hrk,khd->rhd", weights, values)
    return out


def _of_sequence(places: torch.Tensor, pages: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """[length, heads, head_dim]: its keys or values, each KV head's as often as heads share it."""
    page_tokens = places.shape[1]
    used = pages[: (length + page_tokens - 1) // page_tokens].long()
    return places[used].flatten(0, 1)[:length].double().repeat_interleave(heads // places.shape[2], 1)
