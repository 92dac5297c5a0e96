#!/usr/bin/env python3
"""model.py against transformers' GptOssForCausalLM on the CPU, and its MXFP4 rule against the codes' definition."""

import sys
import tempfile

import torch
from transformers import GptOssForCausalLM

import export
from model import Sizes, Tiny, file_bytes, forward, mxfp4, plain_masks, rope


def test_equals_transformers():
    torch.manual_seed(1)
    sizes = Sizes(vocab=500, layers=4)
    model = Tiny(sizes)
    for name, p in model.named_parameters():
        if p.dim() <= 2 or "bias" in name:
            p.data += torch.randn_like(p) * 0.3
        p.data = (mxfp4(p) if name in model.EXPERTS else p).bfloat16().float()
    ids = torch.randint(0, 500, (2, 300))
    masks = plain_masks(torch.zeros_like(ids), sizes.window)
    with torch.no_grad():
        x, head, _, _ = forward(model, ids, masks, rope(sizes, 300, "cpu"), dtype=torch.float32, quantise=False)
        ours = x @ head.T
        with tempfile.TemporaryDirectory() as folder:
            export.write(model, folder, quantised=False)
            theirs = GptOssForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")(
                ids
            ).logits
    error = (ours - theirs).abs().max().item()
    print(f"largest difference {error:.2e} of logits up to {theirs.abs().max().item():.1f}")
    assert error < 1e-4 * max(1, theirs.abs().max().item())


def test_mxfp4():
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    w = torch.randn(64, 64) * torch.exp2(torch.randint(-8, 8, (64, 1)).float())
    q = mxfp4(w).unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.floor(torch.log2(w.unflatten(-1, (-1, 32)).abs().amax(-1, keepdim=True))) - 2)
    a = q.abs() / scale
    assert (a[..., None] == codes).any(-1).all()
    x = (w.unflatten(-1, (-1, 32)).abs() / scale).clamp(max=6)
    assert ((a - x).abs() <= (x[..., None] - codes).abs().amin(-1) + 1e-6).all()
    assert mxfp4(torch.zeros(1, 32)).eq(0).all()
    print("mxfp4 rounds to the nearest code")


if __name__ == "__main__":
    print("bytes (experts, dense):", file_bytes(Sizes()), sum(file_bytes(Sizes())))
    test_mxfp4()
    test_equals_transformers()
    sys.exit(0)
