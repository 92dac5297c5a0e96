#!/usr/bin/env python3
"""Makes tests/golden/lora: what peft and Hugging Face transformers answer for small random gpt-oss models with
LoRA adapters.

    pip install torch transformers peft safetensors numpy ml_dtypes
    python tools/golden/make_lora_goldens.py [NAME ...]

The base models are those of make_model_goldens.py, with its generator. Adapters are small, so that they are
stored as peft writes them: NAME/adapter_config.json and NAME/adapter_model.safetensors, the values scaled so
that the logits change by a tenth or more. NAME.json names the base model, its seed, the adapters and the
prompt; NAME.logits has float32 rows [tokens, vocab], computed in float64.
"""
import json
import pathlib
import shutil
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

import make_model_goldens as base

OUT = base.ROOT / "tests" / "golden" / "lora"
TOKENS = 40
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

# name: base model, dtype of the adapter's tensors, and LoraConfig's arguments for each adapter
CASES = {
    "attention": ("tiny", torch.float32, [dict(r=4, lora_alpha=8, target_modules=ATTENTION)]),
    "query-value": ("tiny", torch.bfloat16, [dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"],
                                                  layers_to_transform=[1])]),
    "patterns": ("tiny", torch.float16,
                 [dict(r=4, lora_alpha=6, target_modules=ATTENTION, use_rslora=True,
                       rank_pattern={"layers.1.self_attn.q_proj": 2, "v_proj": 5},
                       alpha_pattern={"o_proj": 3, "^model.layers.0.self_attn.k_proj": 9})]),
    "router": ("tiny", torch.float32, [dict(r=2, lora_alpha=4, target_modules=["o_proj"],
                                            target_parameters=["mlp.router.weight"])]),
    "experts": ("tiny", torch.float32, [dict(r=2, lora_alpha=4, target_modules=ATTENTION,
                                             target_parameters=EXPERTS)]),
    "one-layer-of-experts": ("h96-e5", torch.bfloat16, [dict(r=3, lora_alpha=6, target_modules=["q_proj"],
                                                             target_parameters=[f"1.{e}" for e in EXPERTS])]),
    "two-adapters": ("tiny", torch.float32, [dict(r=2, lora_alpha=4, target_modules=ATTENTION),
                                             dict(r=3, lora_alpha=3, target_modules=["k_proj", "o_proj"])]),
}


def randomise(model, seed, dtype):
    """peft begins with B = 0. The spread keeps B A x at some tenths of W x."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if "lora_A" in name:
            p.data = torch.randn(p.shape, generator=generator) / p.shape[1] ** 0.5
        elif "lora_B" in name:
            p.data = torch.randn(p.shape, generator=generator) * 0.15
        else:
            continue
        p.data = p.data.to(dtype).to(torch.float32)


def save_adapter(model, folder, dtype):
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_model.safetensors"
    save_file({k: v.to(dtype).contiguous() for k, v in load_file(path).items()}, path, metadata={"format": "pt"})
    path.chmod(0o644)
    config = folder / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) |
                                 dict(base_model_name_or_path="openai/gpt-oss-20b"), indent=2) + "\n")


def double(model):
    """float64 throughout: RoPE's frequencies are float32 otherwise, as transformers makes them."""
    return model.double()


def make_case(name):
    model_name, dtype, adapters = CASES[name]
    config = base.make_config(base.CASES[model_name])
    seed = json.loads((base.OUT / f"{model_name}.json").read_text())["seed"]
    tokens = np.random.default_rng(seed).integers(0, config.vocab_size, max(base.LENGTHS)).tolist()[:TOKENS]
    model = base.make_model(config, base.weights(config, seed))
    plain = base.logits_of(model, tokens)
    folders = []
    for i, arguments in enumerate(adapters):
        folder = OUT / (name if len(adapters) == 1 else f"{name}-{i + 1}")
        shutil.rmtree(folder, ignore_errors=True)
        wrapped = get_peft_model(model, LoraConfig(**arguments))
        randomise(wrapped, 100 * seed + i, dtype)
        save_adapter(wrapped, folder, dtype)
        folders.append(folder.name)
        if len(adapters) > 1:  # the next one is wrapped around the merged model
            model = wrapped.merge_and_unload()
        else:
            model = wrapped
    rows = double(model)(torch.tensor([tokens]), use_cache=False).logits[0].detach().numpy()
    rows.astype("<f4").tofile(OUT / f"{name}.logits")
    change = np.abs(rows - plain).max() / np.abs(plain).max()
    print(f"{name}: logits to {np.abs(rows).max():.1f}, changed by {change:.2f} of the largest")
    for folder in folders:
        for key, value in sorted(load_file(OUT / folder / "adapter_model.safetensors").items())[:8]:
            print("   ", key, list(value.shape), value.dtype)
    (OUT / f"{name}.json").write_text(json.dumps(dict(model=model_name, seed=seed, adapters=folders,
                                                      tokens=tokens)) + "\n")


def main():
    torch.set_num_threads(2)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or CASES:
        make_case(name)


if __name__ == "__main__":
    np.seterr(over="ignore")
    main()
