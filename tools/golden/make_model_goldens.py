#!/usr/bin/env python3
"""Makes tests/golden/model: what Hugging Face transformers answers for small random gpt-oss models.

    pip install torch transformers safetensors numpy ml_dtypes
    python tools/golden/make_model_goldens.py [NAME ...]

The weights are not stored: src/model/random_model.h describes the generator, and weights() below is the same
in numpy. Only `tiny` is written out as checkpoints, in the three published layouts of the same numbers.

For each case: NAME.json has config.json as transformers writes it, the seed, one token list of which every
prompt is a prefix, the prompts' lengths, and 64 greedy tokens after some of them; NAME.logits has float32
rows [rows, vocab]: all positions of the 5-token prompt, then the last position of each length.
"""
import json
import pathlib
import sys

import ml_dtypes
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import GptOssConfig, GptOssForCausalLM

ROOT = pathlib.Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "golden" / "model"
LENGTHS = [1, 127, 128, 129, 700]
ALL_POSITIONS = 5  # the prompt whose every position is recorded
GREEDY_AFTER, GREEDY_TOKENS = [1, 129], 64
MASK = (1 << 64) - 1


def yarn(original_context=4096):
    return dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0, beta_slow=1.0,
                truncate=False, original_max_position_embeddings=original_context)


# name: layers, hidden, intermediate, heads, kv_heads, head_dim, experts, top_k, vocab, rope
CASES = {
    "tiny": (2, 64, 32, 2, 1, 32, 5, 4, 64, yarn()),
    "h96-e5": (2, 96, 96, 4, 1, 32, 5, 4, 211, yarn()),
    "h96-e24": (4, 96, 160, 8, 8, 32, 24, 4, 300, yarn()),
    "h288-e8-top2": (2, 288, 96, 8, 2, 64, 8, 2, 480, yarn()),
    "h288-e13-context64": (3, 288, 160, 8, 4, 64, 13, 4, 333, yarn(64)),
    "h96-plain-rope": (2, 96, 96, 6, 3, 32, 6, 3, 200, dict(rope_type="default", rope_theta=10000.0)),
}


def make_config(case):
    layers, hidden, intermediate, heads, kv_heads, head_dim, experts, top_k, vocab, rope = case
    return GptOssConfig(
        num_hidden_layers=layers, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads,
        num_key_value_heads=kv_heads, head_dim=head_dim, num_local_experts=experts, num_experts_per_tok=top_k,
        vocab_size=vocab, sliding_window=128, rope_parameters=dict(rope), max_position_embeddings=4096,
        eos_token_id=vocab - 1, pad_token_id=vocab - 2)


# ---- the generator of src/model/random_model.cpp ----

def mix(x):
    x = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def values(seed, name, shape, deviation, mean=0.0):
    start = mix(np.uint64(seed ^ fnv1a(name)))
    h = mix(start + np.arange(np.prod(shape), dtype=np.uint64))
    total = sum((h >> np.uint64(8 * i)) & np.uint64(255) for i in range(4)).astype(np.int64) - 510
    x = total.astype(np.float32) * np.float32(deviation / 147.8) + np.float32(mean)
    return x.astype(ml_dtypes.bfloat16).astype(np.float32).reshape(shape)


def quantize_mxfp4(x):
    """[..., n] -> codes [..., n / 32, 16] (element 2j in the low nibble), scales [..., n / 32], values."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    exponent = np.frexp(np.abs(blocks).max(-1))[1] - 1 - 2  # floor(log2(amax)) - 2
    scale = np.ldexp(np.float32(1), exponent).astype(np.float32)[..., None]
    elements = np.clip(blocks / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    codes = elements.view(np.uint8) & 15
    packed = codes[..., 0::2] | (codes[..., 1::2] << 4)
    return packed, (exponent + 127).astype(np.uint8), (elements.astype(np.float32) * scale).reshape(x.shape)


def weights(config, seed):
    """Name -> float32 array, experts as (packed, scales, values) of [E, rows, cols]."""
    c, w = config, {}

    def add(name, shape, deviation, mean=0.0):
        w[name] = values(seed, name, shape, deviation, mean)

    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    hidden, inter, experts = c.hidden_size, c.intermediate_size, c.num_local_experts
    root = 1 / np.sqrt(float(hidden))
    add("model.embed_tokens.weight", (c.vocab_size, hidden), 1.5)
    add("model.norm.weight", (hidden,), 0.25, 1.0)
    add("lm_head.weight", (c.vocab_size, hidden), 3.0 * root)
    for layer in range(c.num_hidden_layers):
        p = f"model.layers.{layer}."
        add(p + "input_layernorm.weight", (hidden,), 0.25, 1.0)
        add(p + "post_attention_layernorm.weight", (hidden,), 0.25, 1.0)
        a = p + "self_attn."
        add(a + "q_proj.weight", (q, hidden), 0.8 * root)
        add(a + "k_proj.weight", (kv, hidden), 0.8 * root)
        add(a + "v_proj.weight", (kv, hidden), root)
        add(a + "o_proj.weight", (hidden, q), 1 / np.sqrt(float(q)))
        for name, size, deviation in [("q", q, 0.25), ("k", kv, 0.25), ("v", kv, 0.25), ("o", hidden, 0.1)]:
            add(f"{a}{name}_proj.bias", (size,), deviation)
        add(a + "sinks", (c.num_attention_heads,), 1.0)
        m = p + "mlp."
        add(m + "router.weight", (experts, hidden), 2.0 * root)
        add(m + "router.bias", (experts,), 0.25)
        e = m + "experts."
        for name, shape, deviation in [("gate_up_proj", (experts, 2 * inter, hidden), 2.5 * root),
                                       ("down_proj", (experts, hidden, inter), 0.12 / np.sqrt(float(inter)))]:
            w[e + name] = quantize_mxfp4(values(seed, e + name, shape, deviation))
        add(e + "gate_up_proj_bias", (experts, 2 * inter), 0.25)
        add(e + "down_proj_bias", (experts, hidden), 0.1)
    return w


# ---- goldens ----

def make_model(config, w):
    model = GptOssForCausalLM._from_config(config, attn_implementation="eager", experts_implementation="eager",
                                           dtype=torch.float32).eval()
    # transformers keeps experts transposed: [E, in, out].
    state = {name: torch.from_numpy(v[2].transpose(0, 2, 1).copy() if isinstance(v, tuple) else v)
             for name, v in w.items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return model


@torch.no_grad()
def logits_of(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


def greedy(model, prompt):
    """64 tokens, the whole sequence computed again for each, and the narrowest lead of a first choice."""
    tokens, lead = list(prompt), np.inf
    for _ in range(GREEDY_TOKENS):
        row = logits_of(model, tokens)[-1]
        second, first = np.sort(row)[-2:]
        lead = min(lead, first - second)
        tokens.append(int(row.argmax()))
    return tokens[len(prompt):], lead


def make_case(name):
    config = make_config(CASES[name])
    # A first choice that leads by less than float32's noise would make the greedy tokens a matter of luck.
    for seed in range(1, 50):
        model = make_model(config, weights(config, seed))
        prompt = np.random.default_rng(seed).integers(0, config.vocab_size, max(LENGTHS)).tolist()
        runs = [greedy(model, prompt[:n]) for n in GREEDY_AFTER]
        if min(lead for _, lead in runs) > 2e-3:
            break
    rows = [logits_of(model, prompt[:ALL_POSITIONS])] + [logits_of(model, prompt[:n])[-1:] for n in LENGTHS]
    rows = np.concatenate(rows).astype("<f4")
    rows.tofile(OUT / f"{name}.logits")
    top = np.exp(rows - rows.max(-1, keepdims=True))
    print(f"{name}: seed {seed}, logits to {np.abs(rows).max():.1f}, top probability "
          f"{np.median(1 / top.sum(-1)):.2f}, distinct greedy tokens {[len(set(t)) for t, _ in runs]}")
    golden = dict(config=hf_config(config), seed=seed, tokens=prompt, all_positions=ALL_POSITIONS,
                  lengths=LENGTHS, greedy=[dict(after=n, tokens=t) for n, (t, _) in zip(GREEDY_AFTER, runs)])
    (OUT / f"{name}.json").write_text(json.dumps(golden) + "\n")
    return config, seed


def hf_config(config):
    return json.loads(config.to_json_string(use_diff=False)) | {"architectures": ["GptOssForCausalLM"]}


# ---- checkpoints of `tiny` ----

def bf16(x):
    return x.astype(ml_dtypes.bfloat16)


def published_style(config):
    """config.json as openai/gpt-oss-20b carries it: rope_theta and rope_scaling, quantization_config."""
    c = hf_config(config)
    rope = c.pop("rope_parameters")
    theta = rope.pop("rope_theta")
    return c | dict(rope_theta=theta, rope_scaling=rope, torch_dtype="bfloat16", quantization_config=dict(
        quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                      "model.embed_tokens", "lm_head"]))


def original_style(config):
    c = config
    return dict(num_hidden_layers=c.num_hidden_layers, num_experts=c.num_local_experts,
                experts_per_token=c.num_experts_per_tok, vocab_size=c.vocab_size, hidden_size=c.hidden_size,
                intermediate_size=c.intermediate_size, swiglu_limit=7.0, head_dim=c.head_dim,
                num_attention_heads=c.num_attention_heads, num_key_value_heads=c.num_key_value_heads,
                sliding_window=c.sliding_window, initial_context_length=4096, rope_theta=150000,
                rope_scaling_factor=32.0, rope_ntk_alpha=1, rope_ntk_beta=32)


def save(folder, config, tensors):
    path = OUT / folder
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path / "model.safetensors",
              metadata={"format": "pt"})
    (path / "model.safetensors").chmod(0o644)


def expert_tensors(name, w, quantised):
    packed, scales, plain = w
    if quantised:
        return {name + "_blocks": packed, name + "_scales": scales}
    return {name: bf16(plain.transpose(0, 2, 1))}


def hf_tensors(w, quantised):
    tensors = {}
    for name, v in w.items():
        tensors |= expert_tensors(name, v, quantised) if isinstance(v, tuple) else {name: bf16(v)}
    return tensors


def original_tensors(w, layers):
    t = {"embedding.weight": bf16(w["model.embed_tokens.weight"]), "norm.scale": bf16(w["model.norm.weight"]),
         "unembedding.weight": bf16(w["lm_head.weight"])}
    for layer in range(layers):
        p, b = f"model.layers.{layer}.", f"block.{layer}."
        names = {"attn.norm.scale": "input_layernorm.weight", "attn.sinks": "self_attn.sinks",
                 "attn.out.weight": "self_attn.o_proj.weight", "attn.out.bias": "self_attn.o_proj.bias",
                 "mlp.norm.scale": "post_attention_layernorm.weight", "mlp.gate.weight": "mlp.router.weight",
                 "mlp.gate.bias": "mlp.router.bias", "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
                 "mlp.mlp2_bias": "mlp.experts.down_proj_bias"}
        t |= {b + ours: bf16(w[p + theirs]) for ours, theirs in names.items()}
        for part in ("weight", "bias"):
            t[f"{b}attn.qkv.{part}"] = bf16(
                np.concatenate([w[f"{p}self_attn.{x}_proj.{part}"] for x in "qkv"]))
        for ours, theirs in (("mlp1", "gate_up_proj"), ("mlp2", "down_proj")):
            packed, scales, _ = w[f"{p}mlp.experts.{theirs}"]
            t |= {f"{b}mlp.{ours}_weight.blocks": packed, f"{b}mlp.{ours}_weight.scales": scales}
    return t


def save_checkpoints(config, seed):
    w = weights(config, seed)
    save("tiny-mxfp4", published_style(config), hf_tensors(w, quantised=True))
    save("tiny-bf16", hf_config(config), hf_tensors(w, quantised=False))
    save("tiny-original", original_style(config), original_tensors(w, config.num_hidden_layers))


def main():
    torch.set_num_threads(2)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        config, seed = make_case(name)
        if name == "tiny":
            save_checkpoints(config, seed)


if __name__ == "__main__":
    np.seterr(over="ignore")
    main()
