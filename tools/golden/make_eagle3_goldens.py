#!/usr/bin/env python3
"""Makes tests/golden/eagle3: what small random EAGLE3 heads draft after a small random gpt-oss model.

    pip install torch transformers safetensors numpy ml_dtypes
    python tools/golden/make_eagle3_goldens.py

The target is the case `tiny` of make_model_goldens.py, computed by transformers. The head below is written from the
formula (docs/design/speculation.md), in float64 and without a cache: each draft computes its whole sequence again.
NAME/ has the head as it would be published; NAME.json the drafts after each position, NAME.logits their float32
logits [positions, drafts, draft vocabulary].
"""

import json
import pathlib
import shutil

import numpy as np
import torch
from safetensors.torch import save_file

import make_model_goldens as base

OUT = base.ROOT / "tests" / "golden" / "eagle3"
POSITIONS, DRAFTS = 16, 3
H, I, HEADS, KV, DIM, VOCAB = 64, 32, 2, 1, 16, 64

# name: form, prefix, layer's name, dtype, taps (boundaries), draft vocabulary, what is switched on
CASES = {
    "flat": ("flat", "", "midlayer.", torch.bfloat16, [0, 1, 2], 40, ["norm_before_fc", "d2t", "head"]),
    "plain": ("flat", "model.", "layers.0.", torch.bfloat16, [2], 40, ["d2t", "head"]),
    "speculators": ("speculators", "", "layers.0.", torch.float16, [1, 2], 64,
                    ["norm_before_residual", "fc_norm", "norm_output", "embed"]),
    "window": ("speculators", "model.", "midlayer.", torch.bfloat16, [2, 0], 64,
               ["norm_before_residual", "norm_before_fc", "head", "window", "yarn"]),
}  # fmt: skip
YARN = dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
            original_max_position_embeddings=64)
WINDOW = 5


def random_head(rng, dtype, taps, draft_vocab, on):
    t = {}

    def add(name, *shape, gain=1.0, mean=0.0):
        deviation = gain / np.sqrt(shape[-1]) if len(shape) == 2 else 0.25
        t[name] = torch.tensor(rng.normal(mean, deviation, shape)).to(dtype)

    add("fc.weight", H, len(taps) * H)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        add(f"LAYER{name}.weight", H, mean=1.0)
    for name, rows in (("q", HEADS * DIM), ("k", KV * DIM), ("v", KV * DIM)):
        add(f"LAYERself_attn.{name}_proj.weight", rows, 2 * H, gain=2.0)
    add("LAYERself_attn.o_proj.weight", H, HEADS * DIM)
    add("LAYERmlp.gate_proj.weight", I, H, gain=2.0)
    add("LAYERmlp.up_proj.weight", I, H)
    add("LAYERmlp.down_proj.weight", H, I)
    add("norm.weight", H, mean=1.0)
    if "head" in on:
        add("lm_head.weight", draft_vocab, H, gain=3.0)
    if "embed" in on:
        add("embed_tokens.weight", VOCAB, H, gain=8.0)
    if "norm_before_fc" in on:
        add("input_norm.weight", len(taps) * H, mean=1.0)
    for i in range(len(taps) if "fc_norm" in on else 0):
        add(f"fc_norm.{i}.weight", H, mean=1.0)
    if "d2t" in on:
        kept = np.sort(rng.choice(VOCAB, draft_vocab, replace=False))
        t["d2t"] = torch.tensor(kept - np.arange(draft_vocab))
        t["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill_(0, torch.tensor(kept), True)
    return t


def frequencies(on):
    theta = 10000.0 ** (torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)
    if "yarn" not in on:
        return 1 / theta, 1.0

    def bound(turns):
        turns_of = YARN["original_max_position_embeddings"] / (turns * 2 * np.pi)
        return DIM * np.log(turns_of) / (2 * np.log(10000.0))

    low, high = max(bound(YARN["beta_fast"]), 0), min(bound(YARN["beta_slow"]), DIM - 1)
    ramp = ((torch.arange(DIM // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return ramp / (YARN["factor"] * theta) + (1 - ramp) / theta, 0.1 * np.log(YARN["factor"]) + 1


def norm(x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


class Head:
    def __init__(self, tensors, embed, head, on):
        self.t = {n: w.double() for n, w in tensors.items() if n not in ("d2t", "t2d")}
        self.embed, self.head, self.on = self.t.get("embed_tokens.weight", embed), self.t.get("lm_head.weight", head), on

    def features(self, taps):
        if "norm_before_fc" in self.on:
            taps = norm(taps, self.t["input_norm.weight"])
        if "fc_norm" in self.on:
            parts = taps.split(H, -1)
            taps = torch.cat([norm(p, self.t[f"fc_norm.{i}.weight"]) for i, p in enumerate(parts)], -1)
        return taps @ self.t["fc.weight"].T

    def layer(self, tokens, g):
        """tokens [n]: the one after each position; g [n, H]."""
        w, n = {k[5:]: v for k, v in self.t.items() if k.startswith("LAYER")}, len(tokens)
        normed = norm(g, w["hidden_norm.weight"])
        u = torch.cat((norm(self.embed[tokens], w["input_layernorm.weight"]), normed), -1)
        r = normed if "norm_before_residual" in self.on else g
        inverse, scale = frequencies(self.on)
        angle = torch.arange(n, dtype=torch.float64)[:, None] * inverse
        turn = torch.polar(torch.full_like(angle, scale), angle)[:, None]

        def rotated(x):
            z = torch.complex(x[..., : DIM // 2].contiguous(), x[..., DIM // 2 :].contiguous()) * turn
            return torch.cat((z.real, z.imag), -1)

        q = rotated((u @ w["self_attn.q_proj.weight"].T).view(n, HEADS, DIM))
        k = rotated((u @ w["self_attn.k_proj.weight"].T).view(n, KV, DIM)).repeat_interleave(HEADS // KV, 1)
        v = (u @ w["self_attn.v_proj.weight"].T).view(n, KV, DIM).repeat_interleave(HEADS // KV, 1)
        distance = torch.arange(n)[:, None] - torch.arange(n)
        seen = (distance >= 0) & (distance < (WINDOW if "window" in self.on else n))
        scores = torch.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)
        p = torch.softmax(scores.masked_fill(~seen, -torch.inf), -1)
        r = r + torch.einsum("hij,jhd->ihd", p, v).reshape(n, -1) @ w["self_attn.o_proj.weight"].T
        t = norm(r, w["post_attention_layernorm.weight"])
        gate, up = t @ w["mlp.gate_proj.weight"].T, t @ w["mlp.up_proj.weight"].T
        return r + (gate * torch.sigmoid(gate) * up) @ w["mlp.down_proj.weight"].T

    def drafts(self, tokens, taps, ids):
        """After tokens [n + 1], of which the first n have taps: (drafts, logits)."""
        tokens, g, drafts, rows = list(tokens), self.features(taps), [], []
        for _ in range(DRAFTS):
            y = self.layer(torch.tensor(tokens[1:]), g)
            last = norm(y[-1:], self.t["norm.weight"])
            rows.append((last @ self.head.T)[0])
            drafts.append(int(ids[int(rows[-1].argmax())]))
            tokens.append(drafts[-1])
            g = torch.cat((g, last if "norm_output" in self.on else y[-1:]))
        return drafts, torch.stack(rows)


def config_of(form, taps, draft_vocab, on):
    layer = dict(model_type="llama", hidden_size=H, intermediate_size=I, num_hidden_layers=1, num_attention_heads=HEADS,
                 num_key_value_heads=KV, head_dim=DIM, hidden_act="silu", attention_bias=False, mlp_bias=False,
                 vocab_size=VOCAB, rms_norm_eps=1e-5, rope_theta=10000.0,
                 rope_scaling=YARN if "yarn" in on else None, max_position_embeddings=4096)  # fmt: skip
    if "window" in on:
        layer |= dict(layer_types=["sliding_attention"], sliding_window=WINDOW)
    if form == "flat":
        return dict(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=draft_vocab, **layer,
                    eagle_config=dict(eagle_aux_hidden_state_layer_ids=taps, use_aux_hidden_state=True,
                                      norm_before_fc="norm_before_fc" in on))  # fmt: skip
    flags = {f: f in on for f in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")}
    return dict(architectures=["Eagle3Speculator"], speculators_model_type="eagle3", transformer_layer_config=layer,
                draft_vocab_size=draft_vocab, eagle_aux_hidden_state_layer_ids=taps, **flags)  # fmt: skip


def target(tokens):
    """(boundaries' hidden states [3][n, H], embedding, head), by transformers in float64."""
    config = base.make_config(base.CASES["tiny"])
    seed = json.loads((base.OUT / "tiny.json").read_text())["seed"]
    model, seen = base.make_model(config, base.weights(config, seed)).double(), []
    seen.append(model.model.embed_tokens(torch.tensor([tokens]))[0])
    for layer in model.model.layers:
        layer.register_forward_hook(lambda m, i, out: seen.append((out[0] if isinstance(out, tuple) else out)[0]))
    model(torch.tensor([tokens]), use_cache=False)
    return [s.reshape(len(tokens), H) for s in seen], model.model.embed_tokens.weight, model.lm_head.weight


@torch.no_grad()
def main():
    shutil.rmtree(OUT, ignore_errors=True)
    tokens = np.random.default_rng(7).integers(0, VOCAB, POSITIONS + 1).tolist()
    states, embed, lm_head = target(tokens[:-1])
    for name, (form, prefix, layer, dtype, taps, draft_vocab, on) in CASES.items():
        rng, lead = np.random.default_rng(base.fnv1a(name)), 0
        while lead < 1e-3:  # a choice by less would be a matter of luck
            tensors = random_head(rng, dtype, taps, draft_vocab, on)
            head = Head(tensors, embed, lm_head, on)
            ids = torch.arange(draft_vocab) + tensors.get("d2t", torch.zeros(draft_vocab, dtype=torch.long))
            features = torch.cat([states[b] for b in taps], -1)
            runs = [head.drafts(tokens[: p + 2], features[: p + 1], ids) for p in range(POSITIONS)]
            rows = torch.stack([r for _, r in runs])
            first, second = rows.topk(2, -1).values.unbind(-1)
            lead = (first - second).min()
        folder = OUT / name
        folder.mkdir(parents=True)
        bare = {"d2t", "t2d"}
        save_file({n if n in bare else prefix + n.replace("LAYER", layer): w.contiguous() for n, w in tensors.items()},
                  folder / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config_of(form, taps, draft_vocab, on), indent=2) + "\n")
        rows.numpy().astype("<f4").tofile(OUT / f"{name}.logits")
        golden = dict(tokens=tokens, drafts=[d for d, _ in runs])
        (OUT / f"{name}.json").write_text(json.dumps(golden) + "\n")
        print(f"{name}: logits to {rows.abs().max():.1f}, narrowest lead {lead:.4f}, {len({*sum(golden['drafts'], [])})} tokens")


if __name__ == "__main__":
    main()
