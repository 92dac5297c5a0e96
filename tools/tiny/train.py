#!/usr/bin/env python3
"""Trains models/tiny: minutes on one GPU, resumable.

    train.py TOKENIZER.json OUT [--resume DIR] [--minutes M] [--rate R]

OUT gets log.txt, and the weights in parts of at most 15 MiB (the folder is what --resume and export.py take). A run is a whole schedule: warm-up, constant rate, linear decay to zero over the last part.
"""

import argparse
import json
import math
import pathlib
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import batches
import corpus
import model as tiny
from model import Sizes, Tiny

PART = 15 << 20
BALANCE, Z = 0.01, 1e-4


# ---- saving ----


def save(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    names, arrays = [], []
    for name, p in model.named_parameters():
        names.append([name, list(p.shape)])
        arrays.append(p.detach().float().cpu().numpy().ravel())
    data = np.concatenate(arrays).tobytes()
    for old in folder.glob("weights.*"):
        old.unlink()
    for i in range(0, len(data), PART):
        (folder / f"weights.{i // PART}").write_bytes(data[i : i + PART])
    (folder / "weights.json").write_text(json.dumps({"sizes": vars(model.s), "tensors": names}))


def load(folder):
    folder = pathlib.Path(folder)
    about = json.loads((folder / "weights.json").read_text())
    parts = sorted(folder.glob("weights.[0-9]*"), key=lambda p: int(p.suffix[1:]))
    data = np.frombuffer(b"".join(p.read_bytes() for p in parts), np.float32)
    model, at = Tiny(Sizes(**about["sizes"])), 0
    own = dict(model.named_parameters())
    for name, shape in about["tensors"]:
        count = math.prod(shape)
        own[name].data.copy_(torch.from_numpy(data[at : at + count].reshape(shape).copy()))
        at += count
    return model


# ---- optimiser ----


def orthogonal(m):
    """Newton-Schulz iteration towards the nearest orthogonal matrix (Muon, Jordan et al. 2024), batched."""
    x = m.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


class Muon(torch.optim.Optimizer):
    """Momentum and orthogonal updates for stacks of matrices, scaled to AdamW's size of step (0.2 RMS)."""

    def __init__(self, params, lr, momentum=0.95, decay=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                m = state["m"].lerp_(p.grad, 1 - group["momentum"])
                u = orthogonal(p.grad.lerp(m, group["momentum"]).flatten(0, -3)).view_as(p)
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(u, alpha=-group["lr"] * 0.2 * math.sqrt(max(p.shape[-2:])))


MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def optimisers(model, rate):
    named = dict(model.named_parameters())
    matrices = [named[n] for n in MATRICES]
    rest = [p for n, p in named.items() if n not in MATRICES and n not in ("embed", "head")]
    adam = torch.optim.AdamW(
        [
            {"params": [named["embed"]], "lr": rate * 0.7},
            {"params": [named["head"]], "lr": rate * 0.5},
            {"params": rest, "lr": rate * 0.5},
        ],
        betas=(0.9, 0.98),
        eps=1e-10,
        weight_decay=0.0,
        fused=matrices[0].is_cuda,
    )
    both = [Muon(matrices, rate), adam]
    for o in both:
        for g in o.param_groups:
            g["peak"] = g["lr"]
    return both


def schedule(progress, step, decay_share):
    return min(1, (step + 1) / 150) * min(1, max(0.0, (1 - progress) / decay_share))


# ---- the step ----


class Trainer:
    def __init__(self, model, device, rows, how):
        self.model, self.device, self.rows, self.how = model, device, rows, how
        self.rotary = tiny.rope(model.s, batches.ROW, device)
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.docs = torch.zeros(rows, batches.ROW, dtype=torch.int32, device=device)
        self.layer, self.loss_of, self.attend = tiny.layer, self.cross_entropy, tiny.plain_attention
        if how == "flex":
            from torch.nn.attention.flex_attention import create_block_mask

            self.attend = tiny.flex_with_sink
            self.make = torch.compile(create_block_mask)
            self.visible = self.visibility()
        if how != "eager":
            self.layer = torch.compile(tiny.layer)
            self.loss_of = torch.compile(self.cross_entropy)

    def visibility(self):
        docs, window = self.docs, self.model.s.window

        def full(b, h, i, j):
            return (docs[b, i] == docs[b, j]) & (i >= j)

        def near(b, h, i, j):
            return (docs[b, i] == docs[b, j]) & (i >= j) & (i - j < window)

        return near, full

    def masks(self):
        if self.how != "flex":
            return tiny.plain_masks(self.docs, self.model.s.window)
        T = batches.ROW
        return tuple(self.make(f, self.rows, None, T, T, device=self.device) for f in self.visible)

    @staticmethod
    def cross_entropy(x, head, targets, weights):
        """(weighted mean, which targets are the likeliest)"""
        logits = (x @ head.T).float()
        each = F.cross_entropy(logits, targets, reduction="none")
        return (each * weights).sum() / weights.sum().clamp(min=1), logits.argmax(-1) == targets, each

    def forward(self, batch):
        ids, weights, docs = (torch.from_numpy(a.astype(np.int32)).to(self.device, non_blocking=True) for a in batch)
        self.docs.copy_(docs)
        x, head, balance, z = tiny.forward(
            self.model, ids, self.masks(), self.rotary, self.attend, self.dtype, True, self.layer
        )
        targets = torch.cat((ids[:, 1:], ids[:, :1]), 1).long().flatten()
        counts = torch.cat((weights[:, 1:], torch.zeros_like(weights[:, :1])), 1).float().flatten() / 100
        loss, right, each = self.loss_of(x.flatten(0, 1), head, targets, counts)
        return loss, balance, z, right, each

    def step(self, batch, optimisers):
        loss, balance, z, _, _ = self.forward(batch)
        (loss + BALANCE * balance + Z * z).backward()
        torch.nn.utils.clip_grad_norm_([p for n, p in self.model.named_parameters() if n not in MATRICES], 1.0)
        for o in optimisers:
            o.step()
        self.model.zero_grad(set_to_none=True)
        return loss.detach(), balance.detach()


# ---- held-out ----


class HeldOut:
    """Held-out samples, one reply a sample: its loss, and whether every token of it is the likeliest one."""

    def __init__(self, tokenizer_path, rows, count):
        from tokenizers import Tokenizer

        rng, packer, self.labels = random.Random(4242), batches.Packer(), []
        done = []
        drawn = []
        for _ in range(count):
            task, effort, segments = corpus.conversation(rng, held_out=True)
            drawn.append((f"{task.family}/{effort}", [(t, float(w == 1.0)) for t, w in segments]))
        for label, ids, weights in batches.encode(Tokenizer.from_file(tokenizer_path), drawn):
            if len(ids) > batches.ROW:
                continue
            row = packer.add(ids, weights)
            if row:
                done.append(row)
            open_row = next(r for r in packer.rows if r[0][-len(ids) :] == ids and len(r[0]) >= len(ids))
            open_row[3].append(label)
        done += packer.rows
        done = done[: len(done) // rows * rows]
        self.labels = [r[3][1:] for r in done]
        self.batches = [batches.as_arrays(done[i : i + rows]) for i in range(0, len(done), rows)]

    @torch.no_grad()
    def measure(self, trainer):
        table, at = {}, 0
        for batch in self.batches:
            _, _, _, right, each = trainer.forward(batch)
            T = batches.ROW
            right, each = right.view(-1, T).cpu().numpy(), each.view(-1, T).float().cpu().numpy()
            for i in range(len(batch[0])):
                for d, label in enumerate(self.labels[at + i]):
                    where = np.nonzero((batch[2][i] == d + 1) & (batch[1][i] > 0))[0] - 1
                    entry = table.setdefault(label, [0, 0, 0.0, 0])
                    entry[0] += 1
                    entry[1] += bool(right[i, where].all())
                    entry[2] += float(each[i, where].sum())
                    entry[3] += len(where)
            at += len(batch[0])
        return table


def show(table):
    families = sorted({k.split("/")[0] for k in table})
    lines = ["held-out: share of replies of which every token is the likeliest (low medium high), loss a token"]
    for f in families:
        cells = [table.get(f"{f}/{e}", [0, 0, 0, 0]) for e in ("low", "medium", "high")]
        shares = " ".join(f"{c[1] / c[0]:5.0%}" if c[0] else "    -" for c in cells)
        n, loss = sum(c[3] for c in cells), sum(c[2] for c in cells)
        lines.append(f"  {f:18} {shares}  {loss / max(1, n):.4f}  ({sum(c[0] for c in cells)})")
    return "\n".join(lines)


def choose(model_of, device, rows, source, say):
    """The fastest way of computing that works on this machine: compiled flex attention, compiled plain, eager."""
    ways, best = (["flex", "plain", "eager"] if device == "cuda" else ["eager"]), None
    for how in ways:
        if how == "eager" and best:
            break
        try:
            start = time.time()
            trainer = Trainer(model_of(), device, rows, how)
            opts = optimisers(trainer.model, 1e-3)
            batch = source.batch(rows)
            first = [trainer.step(batch, opts)[0].item() for _ in range(2)]
            warm, t = time.time() - start, time.time()
            for _ in range(6 if device == "cuda" else 1):
                trainer.step(batch, opts)[0]
            if device == "cuda":
                torch.cuda.synchronize()
            speed = rows * batches.ROW * (6 if device == "cuda" else 1) / (time.time() - t)
            say(f"{how}: losses {first}, warm-up {warm:.0f} s, {speed:,.0f} tokens/s")
            if not best or speed > best[0]:
                best = (speed, how)
            if how == "flex" and speed > 900_000:
                break
        except Exception as e:  # a way that fails here must not end the run
            say(f"{how}: {type(e).__name__}: {str(e)[:600]}")
    return best[1]


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("tokenizer")
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--resume")
    p.add_argument("--minutes", type=float, default=8.5)
    p.add_argument("--rate", type=float, default=4e-3)
    p.add_argument("--rows", type=int, default=128)
    p.add_argument("--workers", type=int, default=15)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument(
        "--decay", type=float, default=0.5, help="the last share of the run, in which the rate falls to zero"
    )
    p.add_argument("--held-out", type=int, default=6000)
    p.add_argument("--how", default="")
    a = p.parse_args()
    began = time.time()
    a.out.mkdir(parents=True, exist_ok=True)
    log = open(a.out / "log.txt", "a")

    def say(text):
        print(text, flush=True)
        log.write(text + "\n")
        log.flush()

    source = batches.Source(a.tokenizer, a.workers, a.seed)  # forks before CUDA starts
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")

    def model_of():
        return (load(a.resume) if a.resume else Tiny(Sizes())).to(device)

    held_out = HeldOut(a.tokenizer, a.rows, a.held_out)
    say(
        f"{device}, file of {sum(tiny.file_bytes(Sizes())):,} bytes, held-out rows {len(held_out.labels)}, {time.time() - began:.0f} s"
    )
    how = a.how or choose(model_of, device, a.rows, source, say)
    trainer = Trainer(model_of(), device, a.rows, how)
    opts = optimisers(trainer.model, a.rate)
    say(f"{how}, {time.time() - began:.0f} s after the start")
    end, start, step, shown, tokens, measured = began + a.minutes * 60, time.time(), 0, time.time(), 0, time.time()
    losses = []
    while time.time() < end:
        progress = (time.time() - start) / (end - start)
        for o in opts:
            for g in o.param_groups:
                g["lr"] = g["peak"] * schedule(progress, step, a.decay)
        loss, balance = trainer.step(source.batch(a.rows), opts)
        losses.append(loss)
        step, tokens = step + 1, tokens + a.rows * batches.ROW
        if step % 20 == 0:
            torch.stack(losses[-1:]).cpu()  # keep the host at most 20 steps ahead
        if time.time() - shown > 15:
            say(
                f"{progress:4.0%} step {step} loss {torch.stack(losses).mean().item():.4f} balance {balance.item():.3f} "
                f"{tokens / (time.time() - start):,.0f} tokens/s, chunks {source.fresh} fresh {source.repeated} again"
            )
            losses, shown = [], time.time()
            if not math.isfinite(loss.item()):
                sys.exit("the loss is not finite")
        if time.time() - measured > 150:
            say(show(held_out.measure(trainer)))
            save(trainer.model, a.out)
            measured = time.time()
    save(trainer.model, a.out)
    say(f"saved after {step} steps, {tokens:,} tokens, {time.time() - began:.0f} s")
    say(show(held_out.measure(trainer)))


if __name__ == "__main__":
    main()
