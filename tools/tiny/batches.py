"""Packed rows for training, made by worker processes while the model trains."""

import multiprocessing
import queue
import random
import time

import numpy as np

import corpus

ROW = 1024
CHUNK = 32  # rows a message


def encode(tokenizer, segments_of):
    """[(family, segments)] to [(family, ids, weights)]; weights in hundredths."""
    texts = [text for _, segments in segments_of for text, _ in segments]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    out = []
    for family, segments in segments_of:
        ids, weights = [], []
        for _, weight in segments:
            piece = next(encoded).ids
            ids += piece
            weights += [int(weight * 100)] * len(piece)
        out.append((family, ids, weights))
    return out


class Packer:
    """Puts whole samples into rows: the fullest open row that still has room."""

    OPEN = 48

    def __init__(self):
        self.rows = []

    def add(self, ids, weights):
        """Returns a finished row (ids, weights, documents) now and then."""
        if len(ids) > ROW:
            ids, weights = ids[:ROW], weights[:ROW]
        fit = [r for r in self.rows if len(r[0]) + len(ids) <= ROW]
        row = max(fit, key=lambda r: len(r[0]), default=None)
        done = None
        if row is None:
            if len(self.rows) >= self.OPEN:
                done = max(self.rows, key=lambda r: len(r[0]))
                self.rows.remove(done)
            row = ([], [], [], [0])
            self.rows.append(row)
        row[3][0] += 1
        row[0].extend(ids)
        row[1].extend([0] + weights[1:])  # nothing predicts a document's first token
        row[2].extend([row[3][0]] * len(ids))
        return done


def as_arrays(rows):
    ids, weights, docs = (np.zeros((len(rows), ROW), t) for t in (np.uint16, np.uint8, np.uint8))
    for i, (a, b, c, _) in enumerate(rows):
        ids[i, : len(a)], weights[i, : len(a)], docs[i, : len(a)] = a, b, c
    return ids, weights, docs


def worker(tokenizer_path, seed, out):
    import os

    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    parent = os.getppid()
    tokenizer, rng, packer, rows = Tokenizer.from_file(tokenizer_path), random.Random(seed), Packer(), []
    while True:
        for _, ids, weights in encode(tokenizer, [corpus.sample(rng) for _ in range(64)]):
            row = packer.add(ids, weights)
            if row:
                rows.append(row)
        while len(rows) >= CHUNK:
            try:
                out.put(as_arrays(rows[:CHUNK]), timeout=5)
                rows = rows[CHUNK:]
            except queue.Full:
                if os.getppid() != parent:
                    return


class Source:
    """Batches of rows. Where the workers are slower than the training, earlier chunks are shown again."""

    KEEP = 4000

    def __init__(self, tokenizer_path, workers, seed):
        context = multiprocessing.get_context("fork")
        self.queue = context.Queue(maxsize=256)
        self.seen, self.fresh, self.repeated, self.rng = [], 0, 0, random.Random(seed)
        for i in range(workers):
            context.Process(target=worker, args=(tokenizer_path, seed * 1000 + i, self.queue), daemon=True).start()

    def chunk(self):
        start = time.time()
        while True:
            try:
                chunk = self.queue.get_nowait()
                break
            except queue.Empty:
                if len(self.seen) > 400:
                    self.repeated += 1
                    return self.rng.choice(self.seen)
                if time.time() - start > 120:
                    raise RuntimeError("the workers make no text") from None
                time.sleep(0.01)
        self.fresh += 1
        self.seen.append(chunk)
        if len(self.seen) > self.KEEP:
            self.seen[self.rng.randrange(len(self.seen))] = self.seen.pop()
        return chunk

    def batch(self, rows):
        chunks = [self.chunk() for _ in range(max(1, rows // CHUNK))]
        return tuple(np.concatenate(parts)[:rows] for parts in zip(*chunks))
