#!/usr/bin/env python3
"""The weights that train.py saved to the published form: config.json, model.safetensors (Hugging Face names; experts MXFP4,
dense BF16), generation_config.json, tokenizer.json.

    export.py FOLDER TOKENIZER.json OUT
"""

import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file

from model import Sizes, e2m1

LAYER = {
    "norm1": "input_layernorm.weight",
    "norm2": "post_attention_layernorm.weight",
    "sinks": "self_attn.sinks",
    "router": "mlp.router.weight",
    "router_bias": "mlp.router.bias",
    "down_bias": "mlp.experts.down_proj_bias",
    **{n: f"self_attn.{n}_proj.weight" for n in "qkvo"},
    **{f"{n}_bias": f"self_attn.{n}_proj.bias" for n in "qkvo"},
}
WHOLE = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight", "norm": "model.norm.weight"}


def interleave(gate, up):
    """Rows of the fused projection: even gate, odd up."""
    return torch.stack((gate, up), -2 if gate.dim() == 3 else -1).flatten(1, 2)


def pack(w):
    """w [..., K] to (blocks [..., K/32, 16], scales [..., K/32]), uint8."""
    blocks = w.float().unflatten(-1, (-1, 32))
    amax = blocks.abs().amax(-1, keepdim=True)
    _, exponent = torch.frexp(amax)
    exponent = torch.where(amax > 0, exponent - 1 - 2, -127)
    x = blocks / torch.exp2(torch.where(amax > 0, exponent, 0).float())
    codes = torch.bucketize(e2m1(x).abs(), torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])).to(torch.uint8)
    codes |= torch.signbit(x).to(torch.uint8) << 3
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous(), (exponent.squeeze(-1) + 127).to(torch.uint8)


def tensors(model, quantised):
    p = {n: w.detach().cpu() for n, w in model.named_parameters()}
    out = {name: p[n].bfloat16() for n, name in WHOLE.items()}
    for i in range(model.s.layers):
        head = f"model.layers.{i}."
        out.update({head + name: p[n][i].bfloat16().contiguous() for n, name in LAYER.items()})
        fused = interleave(p["gate"][i], p["up"][i])
        experts = head + "mlp.experts."
        out[experts + "gate_up_proj_bias"] = interleave(p["gate_bias"][i], p["up_bias"][i]).bfloat16()
        for name, w in (("gate_up_proj", fused), ("down_proj", p["down"][i])):
            if quantised:
                out[f"{experts}{name}_blocks"], out[f"{experts}{name}_scales"] = pack(w)
            else:
                out[experts + name] = w.transpose(1, 2).bfloat16().contiguous()
    return out


def config(s: Sizes, quantised, eos):
    c = {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "dtype": "bfloat16",
        "hidden_size": s.hidden,
        "intermediate_size": s.intermediate,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "num_local_experts": s.experts,
        "num_experts_per_tok": s.active,
        "experts_per_token": s.active,
        "vocab_size": s.vocab,
        "sliding_window": s.window,
        "layer_types": ["sliding_attention" if s.windowed(i) else "full_attention" for i in range(s.layers)],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-5,
        "initial_context_length": s.original_context,
        "max_position_embeddings": s.original_context * int(s.factor),
        "rope_theta": s.theta,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": s.factor,
            "beta_fast": s.beta_fast,
            "beta_slow": s.beta_slow,
            "truncate": False,
            "original_max_position_embeddings": s.original_context,
        },
        "router_aux_loss_coef": 0.01,
        "output_router_logits": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "initializer_range": 0.02,
        **eos,
    }
    if quantised:
        c["quantization_config"] = {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [
                "model.layers.*.self_attn",
                "model.layers.*.mlp.router",
                "model.embed_tokens",
                "lm_head",
            ],
        }
    return c


def write(model, folder, quantised=True, eos=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(model, quantised), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(model.s, quantised, eos or {}), indent=2) + "\n")


def main():
    from train import load

    folder, tokenizer, out = sys.argv[1:]
    ids = {t["content"]: t["id"] for t in json.loads(pathlib.Path(tokenizer).read_text())["added_tokens"]}
    write(load(folder), out, eos={"eos_token_id": ids["<|return|>"], "pad_token_id": ids["<|endoftext|>"]})
    out = pathlib.Path(out)
    generation = {
        "bos_token_id": ids["<|startoftext|>"],
        "do_sample": False,
        "pad_token_id": ids["<|endoftext|>"],
        "eos_token_id": [ids["<|return|>"], ids["<|endoftext|>"], ids["<|call|>"]],
    }
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    shutil.copyfile(tokenizer, out / "tokenizer.json")
    total = sum(f.stat().st_size for f in out.iterdir())
    print(f"{out}: {total:,} bytes in {', '.join(f'{f.name} {f.stat().st_size:,}' for f in sorted(out.iterdir()))}")
    if total > 12_000_000:
        sys.exit("more than 12 MB")


if __name__ == "__main__":
    main()
