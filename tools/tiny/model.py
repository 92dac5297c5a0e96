"""The gpt-oss architecture for training: every expert computes every token and the router's weights, zero for all but
the chosen, mix them; at this size that is faster than gathering. test_model.py shows equality with transformers.

Weights of one kind are stacked over the layers. Experts are quantised to MXFP4 in the forward pass and the gradient
passes straight through (src/mx/block.h has the rule).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Sizes:
    vocab: int = 4096
    hidden: int = 224
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 192
    experts: int = 9
    active: int = 4
    window: int = 128
    theta: float = 150000.0
    factor: float = 32.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_context: int = 4096

    def windowed(self, layer):
        return layer % 2 == 0


def rope(sizes, length, device):
    """YaRN's cos and sin, [length, head_dim / 2], the attention factor included (as transformers computes them)."""
    dim = sizes.head_dim
    base = sizes.theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)

    def bound(turns):
        return dim * math.log(sizes.original_context / (turns * 2 * math.pi)) / (2 * math.log(sizes.theta))

    low, high = max(bound(sizes.beta_fast), 0), min(bound(sizes.beta_slow), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    inverse = (1 / (sizes.factor * base)) * ramp + (1 / base) * (1 - ramp)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * inverse[None]
    scale = 0.1 * math.log(sizes.factor) + 1
    return (angle.cos() * scale).to(device), (angle.sin() * scale).to(device)


def e2m1(x):
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 with x's sign, ties to even, saturating."""
    a = x.abs().clamp(max=6)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign(torch.round(a / step) * step, x)


def mxfp4(w):
    """w as MXFP4 holds it: blocks of 32 along the last dimension."""
    blocks = w.detach().float().unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True)
    _, exponent = torch.frexp(amax)  # amax = m * 2^exponent, m in [.5, 1)
    scale = torch.where(amax > 0, torch.exp2((exponent - 1 - 2).float()), 1.0)
    return (e2m1(blocks / scale) * scale).flatten(-2)


def straight_through(w, quantised):
    return w + (quantised - w).detach()


class Tiny(nn.Module):
    def __init__(self, s: Sizes):
        super().__init__()
        self.s = s
        L, H, E, I = s.layers, s.hidden, s.experts, s.intermediate
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim

        def weight(*shape, gain=1.0):
            return nn.Parameter(torch.randn(*shape) * gain / math.sqrt(shape[-1]))

        def zeros(*shape):
            return nn.Parameter(torch.zeros(*shape))

        out = 1 / math.sqrt(2 * L)
        self.embed = nn.Parameter(torch.randn(s.vocab, H) * 0.1)
        self.head = nn.Parameter(torch.randn(s.vocab, H) * 0.02)
        self.norm = nn.Parameter(torch.ones(H))
        self.norm1, self.norm2 = nn.Parameter(torch.ones(L, H)), nn.Parameter(torch.ones(L, H))
        self.q, self.k, self.v = weight(L, q, H), weight(L, kv, H), weight(L, kv, H)
        self.o = weight(L, H, q, gain=out)
        self.q_bias, self.k_bias, self.v_bias, self.o_bias = zeros(L, q), zeros(L, kv), zeros(L, kv), zeros(L, H)
        self.sinks = zeros(L, s.heads)
        self.router, self.router_bias = weight(L, E, H, gain=0.5), zeros(L, E)
        self.gate, self.up = weight(L, E, I, H), weight(L, E, I, H)
        self.down = weight(L, E, H, I, gain=out)
        self.gate_bias, self.up_bias, self.down_bias = zeros(L, E, I), zeros(L, E, I), zeros(L, E, H)

    EXPERTS = ("gate", "up", "down")

    def weights(self, dtype, quantise):
        """Every weight as the exported file will hold it, cut by layer."""
        result = {}
        for name, p in self.named_parameters():
            w = p
            if quantise and name in self.EXPERTS:
                w = straight_through(p, mxfp4(p))
            result[name] = w.to(dtype)
        layers = {n: w.unbind(0) for n, w in result.items() if n not in ("embed", "head", "norm")}
        return result, [{n: w[i] for n, w in layers.items()} for i in range(self.s.layers)]


def rms_norm(x, weight):
    x = x.float()
    return (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * weight.float()).to(weight.dtype)


def rotate(x, cos, sin):
    """x [B, T, heads, D]"""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


def plain_attention(q, k, v, sinks, mask):
    """q [B, heads, T, D], k and v [B, kv, T, D], mask [B, 1, T, T]"""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~mask, float("-inf"))
    sink = sinks.float()[None, :, None, None]
    most = torch.maximum(scores.amax(-1, keepdim=True), sink).detach()
    e = torch.exp(scores - most)
    return (e / (e.sum(-1, keepdim=True) + torch.exp(sink - most))).to(v.dtype) @ v


def flex_with_sink(q, k, v, sinks, mask):
    """The sink only adds to the denominator: a factor sigmoid(log-sum-exp - sink) on the output."""
    from torch.nn.attention.flex_attention import flex_attention

    out, lse = flex_attention(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
    return (out * torch.sigmoid(lse.float() - sinks.float()[None, :, None])[..., None]).to(v.dtype)


def attention(x, w, s, cos, sin, mask, attend):
    B, T, _ = x.shape
    t = rms_norm(x, w["norm1"])
    q = rotate(F.linear(t, w["q"], w["q_bias"]).view(B, T, s.heads, -1), cos, sin).transpose(1, 2)
    k = rotate(F.linear(t, w["k"], w["k_bias"]).view(B, T, s.kv_heads, -1), cos, sin).transpose(1, 2)
    v = F.linear(t, w["v"], w["v_bias"]).view(B, T, s.kv_heads, -1).transpose(1, 2)
    y = attend(q, k, v, w["sinks"], mask).transpose(1, 2).reshape(B, T, -1)
    return F.linear(y, w["o"], w["o_bias"])


def experts(x, w, s):
    """(output, load-balance loss, z loss)"""
    t = rms_norm(x, w["norm2"]).flatten(0, 1)
    logits = F.linear(t, w["router"], w["router_bias"]).float()
    kept = logits.topk(s.active, -1).values[:, -1:]
    chosen = logits >= kept
    p = torch.softmax(logits.masked_fill(~chosen, float("-inf")), -1)
    share = chosen.float().mean(0) / s.active
    balance = s.experts * (share * torch.softmax(logits, -1).mean(0)).sum()
    z = torch.logsumexp(logits, -1).pow(2).mean()
    g = F.linear(t, w["gate"].flatten(0, 1), w["gate_bias"].flatten())
    u = F.linear(t, w["up"].flatten(0, 1), w["up_bias"].flatten())
    g, u = g.float().clamp(max=7), u.float().clamp(-7, 7)
    a = (g * torch.sigmoid(1.702 * g) * (u + 1)).view(-1, s.experts, s.intermediate) * p[..., None]
    mixed = a.to(t.dtype).flatten(1) @ w["down"].transpose(1, 2).flatten(0, 1)
    y = mixed + p.to(t.dtype) @ w["down_bias"]
    return y.view_as(x), balance, z


def layer(x, w, s, cos, sin, mask, attend):
    x = x + attention(x, w, s, cos, sin, mask, attend)
    y, balance, z = experts(x, w, s)
    return x + y, balance, z


def forward(model, ids, masks, rotary, attend=plain_attention, dtype=torch.bfloat16, quantise=True, run=layer):
    """masks: (windowed, full). Returns the normed hidden states, the head and the router losses."""
    whole, layers = model.weights(dtype, quantise)
    x = F.embedding(ids, whole["embed"]).float()
    balance = z = 0.0
    for i, w in enumerate(layers):
        x, b, zz = run(x, w, model.s, *rotary, masks[0 if model.s.windowed(i) else 1], attend)
        balance, z = balance + b / model.s.layers, z + zz / model.s.layers
    return rms_norm(x, whole["norm"]), whole["head"], balance, z


def plain_masks(docs, window):
    """docs [B, T]: a token sees those of its own document up to itself, at most window of them."""
    T = docs.shape[1]
    i = torch.arange(T, device=docs.device)
    full = (docs[:, :, None] == docs[:, None, :]) & (i[:, None] >= i[None, :])
    near = full & (i[:, None] - i[None, :] < window)
    return near[:, None], full[:, None]


def file_bytes(s: Sizes):
    """(experts in MXFP4, all the rest in BF16)"""
    blocks = s.layers * s.experts * 3 * s.hidden * s.intermediate
    dense = (
        2 * s.vocab * s.hidden
        + s.hidden
        + s.layers
        * (
            2 * s.hidden
            + s.head_dim * s.hidden * (2 * s.heads + 2 * s.kv_heads)
            + s.head_dim * (s.heads + 2 * s.kv_heads)
            + s.hidden
            + s.heads
            + s.experts * (s.hidden + 1)
            + s.experts * (2 * s.intermediate + s.hidden)
        )
    )
    return blocks * 17 // 32, dense * 2
