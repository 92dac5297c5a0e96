#!/usr/bin/env python3
"""Trains models/tiny-eagle3, an EAGLE3 draft head for models/tiny, on one CPU thread.

    train_head.py models/tiny OUT [--minutes M] [--seed N]
    train_head.py models/tiny FILE --prompts N          held-out prompts for tiny_acceptance: token ids, a list a line

The head learns to predict what models/tiny itself would say: its targets are the model's own probabilities on the
corpus of corpus.py, its input the model's hidden states at three boundaries. As in the EAGLE3 paper (arXiv
2503.01840) it is trained on its own output: step j of a chain takes the hidden state that step j - 1 made, and attends
to the keys of the model's positions before the chain and of the chain's own steps. OUT gets config.json and
model.safetensors in the published flat form (LlamaForCausalLMEagle3).
"""

import argparse
import json
import math
import pathlib
import random
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import batches
import corpus
import model as tiny
from train import Muon, schedule

TAPS = (2, 5, 8)  # boundaries: the residual stream after so many blocks
STEPS = 3  # steps of a chain
STEP_WEIGHT = 0.8  # a step's loss counts so much of the one before
DRAFT_VOCAB, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 1024, 448, 4, 2, 64
THETA, EPS = 10000.0, 1e-5
ROW = 512


# ---- the target ----


def dequantise(blocks, scales):
    """MXFP4 as published, [..., K/32, 16] and [..., K/32], to floats [..., K]."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    return (values[codes.int()] * torch.exp2(scales.float() - 127)[..., None]).flatten(-2)


class Target:
    """models/tiny as published, in F32. Only the chosen experts are computed."""

    def __init__(self, folder):
        with safe_open(folder / "model.safetensors", "pt") as f:
            self.t = {n: f.get_tensor(n) for n in f.keys()}
        self.s = tiny.Sizes()
        self.rotary = tiny.rope(self.s, ROW, "cpu")
        self.embed, self.head = self.t["model.embed_tokens.weight"].float(), self.t["lm_head.weight"].float()
        self.norm = self.t["model.norm.weight"].float()
        self.layers = [self.layer(i) for i in range(self.s.layers)]

    def layer(self, i):
        part = {n.split(".", 3)[3]: t for n, t in self.t.items() if n.startswith(f"model.layers.{i}.")}
        w = {f"{n}": part[f"self_attn.{n}_proj.weight"].float() for n in "qkvo"}
        w |= {f"{n}_bias": part[f"self_attn.{n}_proj.bias"].float() for n in "qkvo"}
        w |= {"norm1": part["input_layernorm.weight"].float(), "norm2": part["post_attention_layernorm.weight"].float()}
        w |= {"sinks": part["self_attn.sinks"].float(), "router": part["mlp.router.weight"].float()}
        w["router_bias"] = part["mlp.router.bias"].float()
        for n in ("gate_up", "down"):
            name = f"mlp.experts.{n}_proj"
            w[n] = dequantise(part[name + "_blocks"], part[name + "_scales"])
            w[n + "_bias"] = part[name + "_bias"].float()
        return w

    def experts(self, x, w):
        logits = F.linear(x, w["router"], w["router_bias"])
        top, chosen = logits.topk(self.s.active, -1)
        share, y = torch.softmax(top, -1), torch.zeros_like(x)
        for e in range(self.s.experts):
            row, place = torch.nonzero(chosen == e, as_tuple=True)
            h = F.linear(x[row], w["gate_up"][e], w["gate_up_bias"][e])
            g, u = h[:, 0::2].clamp(max=7), h[:, 1::2].clamp(-7, 7)
            out = F.linear(g * torch.sigmoid(1.702 * g) * (u + 1), w["down"][e], w["down_bias"][e])
            y.index_add_(0, row, out * share[row, place, None])
        return y

    @torch.no_grad()
    def states(self, ids, docs):
        """(hidden states at the boundaries [B, T, 3H], normed hidden states before the head [B, T, H])"""
        masks = tiny.plain_masks(docs, self.s.window)
        x, taps = self.embed[ids], []
        for i, w in enumerate(self.layers):
            if i in TAPS:
                taps.append(x)
            x = x + tiny.attention(x, w, self.s, *self.rotary, masks[0 if self.s.windowed(i) else 1], tiny.plain_attention)
            x = x + self.experts(tiny.rms_norm(x, w["norm2"]).flatten(0, 1), w).view_as(x)
        taps += [x] * (self.s.layers in TAPS)
        return torch.cat(taps, -1), tiny.rms_norm(x, self.norm)


# ---- the head ----


class Head(nn.Module):
    def __init__(self, target, kept):
        super().__init__()
        H, Q, KV = target.s.hidden, HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

        def matrix(rows, cols, gain=1.0):  # a stack of one, as Muon takes it
            return nn.Parameter(torch.randn(1, rows, cols) * gain / math.sqrt(cols))

        self.fc = matrix(H, len(TAPS) * H, 0.3)
        self.fc.data[0, :, -H:] += torch.eye(H)
        self.q, self.k, self.v, self.o = matrix(Q, 2 * H), matrix(KV, 2 * H), matrix(KV, 2 * H), matrix(H, Q, 0.5)
        self.gate, self.up, self.down = matrix(INTERMEDIATE, H), matrix(INTERMEDIATE, H), matrix(H, INTERMEDIATE, 0.5)
        self.input_norm = nn.Parameter(torch.ones(len(TAPS) * H))
        for name in ("embed_norm", "hidden_norm", "mlp_norm"):
            setattr(self, name, nn.Parameter(torch.ones(H)))
        self.norm, self.head = nn.Parameter(target.norm * 0.25), nn.Parameter(target.head[kept].clone())

    MATRICES = ("fc", "q", "k", "v", "o", "gate", "up", "down")

    def fused(self, taps):
        return F.linear(tiny.rms_norm(taps, self.input_norm), self.fc[0])

    def attention(self, u, rotary, mask, keys, values):
        """One step of every chain. keys, values: of the steps before; this one's are added."""
        B, T, _ = u.shape

        def heads(w, count):
            return F.linear(u, w[0]).view(B, T, count, HEAD_DIM)

        q = tiny.rotate(heads(self.q, HEADS), *rotary).transpose(1, 2)
        keys.append(tiny.rotate(heads(self.k, KV_HEADS), *rotary).transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1))
        values.append(heads(self.v, KV_HEADS).transpose(1, 2).repeat_interleave(HEADS // KV_HEADS, 1))
        scores = (q @ keys[0].transpose(-1, -2)).masked_fill(~mask, float("-inf"))
        own = [(q * k).sum(-1, keepdim=True) for k in keys[1:]]
        p = torch.softmax(torch.cat([scores] + own, -1) / math.sqrt(HEAD_DIM), -1)
        y = p[..., :T] @ values[0]
        for i, v in enumerate(values[1:]):
            y = y + p[..., T + i, None] * v
        return F.linear(y.transpose(1, 2).reshape(B, T, -1), self.o[0])

    def step(self, embedded, g, *rest):
        """(prediction's hidden states, the next step's g)"""
        u = torch.cat((tiny.rms_norm(embedded, self.embed_norm), tiny.rms_norm(g, self.hidden_norm)), -1)
        r = g + self.attention(u, *rest)
        t = tiny.rms_norm(r, self.mlp_norm)
        y = r + F.linear(F.silu(F.linear(t, self.gate[0])) * F.linear(t, self.up[0]), self.down[0])
        return tiny.rms_norm(y, self.norm), y


def ahead(x, n):
    """x[:, i + n] at i; what would lie beyond the row is 0."""
    return torch.cat((x[:, n:], torch.zeros_like(x[:, :n])), 1)


class Trainer:
    def __init__(self, target, head, kept):
        self.target, self.head, self.kept = target, head, torch.as_tensor(kept)
        angle = torch.arange(ROW + STEPS)[:, None] / THETA ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        self.cos, self.sin = angle.cos(), angle.sin()

    def chain(self, ids, weights, docs, taps, last):
        """Of each step: (loss, whether the prediction is the target's likeliest token, places, their weights)"""
        ids, docs, taps, last = ids.long(), docs.long(), taps.float(), last.float()
        mask = tiny.plain_masks(docs, ROW)[1]
        g, keys, values = self.head.fused(taps), [], []
        for j in range(STEPS):
            embedded = self.target.embed[ahead(ids, j + 1)]
            y, g = self.head.step(embedded, g, (self.cos[j : ROW + j], self.sin[j : ROW + j]), mask, keys, values)
            # The places whose predicted token, j + 2 further on, counts and belongs to the same document.
            where = (ahead(weights, j + 2) > 0) & (ahead(docs, j + 2) == docs)
            count = ahead(weights, j + 2)[where].float() / 100
            with torch.no_grad():
                wanted = ahead(last, j + 1)[where] @ self.target.head.T
                best, p = wanted.argmax(-1), torch.softmax(wanted[:, self.kept], -1)
            logits = y[where] @ self.head.head.T
            loss = (F.cross_entropy(logits, p, reduction="none") * count).sum() / count.sum().clamp(min=1)
            yield loss, self.kept[logits.argmax(-1)] == best, where, count


def held_out_lengths(trainer, rows):
    """Mean accepted length of a chain along the corpus's text, by its steps: an estimate without running."""
    right, total = torch.zeros(STEPS), 0
    for batch in rows:
        ok = None
        with torch.no_grad():
            for j, (_, hit, where, count) in enumerate(trainer.chain(*batch)):
                full = torch.zeros(where.shape, dtype=torch.bool)
                full[where] = hit & (count >= 1)
                ok = full if ok is None else ok & full
                right[j] += ok.sum()
                if j == 0:
                    total += int((count >= 1).sum())
    return 1 + right.sum().item() / total, (right / total).tolist()


def rows_of(tokenizer, seed, held_out, rows):
    """Endless batches of packed rows."""
    batches.ROW = ROW
    rng, packer, done = random.Random(seed), batches.Packer(), []
    packer.OPEN = 16
    while True:
        drawn = [corpus.sample(rng, held_out) for _ in range(32)]
        for _, ids, weights in batches.encode(tokenizer, drawn):
            row = packer.add(ids, weights)
            done += [row] if row else []
            if len(done) == rows:
                yield tuple(torch.from_numpy(a.astype(np.int32)) for a in batches.as_arrays(done))
                done = []


class Source:
    """Batches with the target's hidden states, which cost more than a step of training: each is shown REUSE times."""

    REUSE, KEEP = 4, 240

    def __init__(self, target, rows, seed):
        self.target, self.rows, self.rng, self.pool = target, rows, random.Random(seed), []

    def fresh(self):
        ids, weights, docs = next(self.rows)
        taps, last = self.target.states(ids.long(), docs.long())
        return ids, weights, docs, taps.bfloat16(), last.bfloat16()

    def batch(self):
        if len(self.pool) >= 20 and self.rng.randrange(self.REUSE):
            return self.rng.choice(self.pool)
        self.pool.append(self.fresh())
        if len(self.pool) > self.KEEP:
            self.pool.pop(0)
        return self.pool[-1]


def frequent(source, count):
    """The `count` tokens that occur most where the loss counts, ascending."""
    seen = np.zeros(4096, np.int64)
    for _ in range(150):
        ids, weights, _ = next(source)
        seen += np.bincount(ids[weights == 100].numpy(), minlength=4096)
    kept = np.sort(np.argsort(-seen, kind="stable")[:count])
    return kept, seen[kept].sum() / seen.sum()


# ---- the file ----


def write(head, kept, target, folder):
    folder.mkdir(parents=True, exist_ok=True)
    p = {n: w.detach() for n, w in head.named_parameters()}
    names = {
        "fc": "fc.weight", "input_norm": "input_norm.weight", "norm": "norm.weight", "head": "lm_head.weight",
        "embed_norm": "midlayer.input_layernorm.weight", "hidden_norm": "midlayer.hidden_norm.weight",
        "mlp_norm": "midlayer.post_attention_layernorm.weight",
        **{n: f"midlayer.self_attn.{n}_proj.weight" for n in "qkvo"},
        **{n: f"midlayer.mlp.{n}_proj.weight" for n in ("gate", "up", "down")},
    }  # fmt: skip
    tensors = {name: (p[n][0] if n in Head.MATRICES else p[n]).bfloat16().contiguous() for n, name in names.items()}
    kept = torch.as_tensor(kept)
    tensors["d2t"] = kept - torch.arange(len(kept))
    tensors["t2d"] = torch.zeros(target.s.vocab, dtype=torch.bool).index_fill_(0, kept, True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": target.s.hidden,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": target.s.vocab,
        "draft_vocab_size": len(kept),
        "max_position_embeddings": 131072,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(TAPS),
            "use_aux_hidden_state": True,
            "norm_before_fc": True,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_prompts(tokenizer, count, path):
    rng, lines = random.Random(99), []
    while len(lines) < count:
        _, _, segments = corpus.conversation(rng, held_out=True)
        ids = tokenizer.encode("".join(text for text, _ in segments[:2]), add_special_tokens=False).ids
        if len(ids) <= 320:
            lines.append(json.dumps(ids, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("target", type=pathlib.Path)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--minutes", type=float, default=40)
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--rows", type=int, default=6)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--prompts", type=int, default=0)
    a = p.parse_args()
    from tokenizers import Tokenizer

    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    tokenizer = Tokenizer.from_file(str(a.target / "tokenizer.json"))
    if a.prompts:
        return write_prompts(tokenizer, a.prompts, a.out)
    target = Target(a.target)
    kept, share = frequent(rows_of(tokenizer, 77, False, a.rows), DRAFT_VOCAB)
    head = Head(target, kept)
    print(f"{len(kept)} tokens are {share:.2%} of the replies, {sum(w.numel() for w in head.parameters()):,} parameters")
    trainer, source = Trainer(target, head, kept), Source(target, rows_of(tokenizer, a.seed, False, a.rows), a.seed)
    unseen = Source(target, rows_of(tokenizer, 4242, True, a.rows), 0)
    held_out = [unseen.fresh() for _ in range(6)]
    named = dict(head.named_parameters())
    optimisers = [
        Muon([named[n] for n in Head.MATRICES], a.rate),
        torch.optim.AdamW(
            [w for n, w in named.items() if n not in Head.MATRICES], lr=a.rate * 0.25, betas=(0.9, 0.98), weight_decay=0.0
        ),
    ]
    for group in (g for o in optimisers for g in o.param_groups):
        group["peak"] = group["lr"]
    start, step, shown, losses = time.time(), 0, time.time(), []
    while (progress := (time.time() - start) / (60 * a.minutes)) < 1:
        for group in (g for o in optimisers for g in o.param_groups):
            group["lr"] = group["peak"] * schedule(progress, step * 5, 0.6)
        loss = sum(STEP_WEIGHT**j * each for j, (each, *_) in enumerate(trainer.chain(*source.batch())))
        loss.backward()
        for o in optimisers:
            o.step()
            o.zero_grad(set_to_none=True)
        losses.append(loss.item())
        step += 1
        if not math.isfinite(losses[-1]):
            raise SystemExit("the loss is not finite")
        if time.time() - shown > 120:
            length, rates = held_out_lengths(trainer, held_out)
            print(
                f"{progress:4.0%} step {step} loss {np.mean(losses):.3f}, held-out length {length:.3f} of {STEPS + 1}"
                f" {[f'{r:.2f}' for r in rates]}, {time.process_time():.0f} s of CPU",
                flush=True,
            )
            shown, losses = time.time(), []
            write(head, kept, target, a.out)
    write(head, kept, target, a.out)
    length, rates = held_out_lengths(trainer, held_out)
    print(f"{step} steps of {a.rows * ROW} tokens, held-out length {length:.3f}, {[f'{r:.3f}' for r in rates]}")
    print(f"{a.out}: {(a.out / 'model.safetensors').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
