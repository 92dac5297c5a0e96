#!/usr/bin/env python3
"""Random blocks of the GGUF types that moesaic converts, with their values by gguf-py: tests/golden/gguf/blocks.bin.

Needs `pip install gguf numpy`. For each type: its name in 8 bytes, the number of blocks and the bytes of one (u32), the
blocks, then 2,048 values in F32.
"""
import struct
import sys

import gguf
import numpy as np

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
          "IQ4_NL": [0]}  # where a block has F16 numbers
VALUES = 2048


def main():
    rng = np.random.default_rng(5)
    with open(sys.argv[1], "wb") as out:
        for name, halves in HALVES.items():
            kind = gguf.GGMLQuantizationType[name]
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = rng.integers(0, 256, (VALUES // elements, size), dtype=np.uint8)
            for at in halves:
                numbers = (rng.standard_normal(len(blocks)) * 0.05).astype("<f2")
                blocks[:, at:at + 2] = numbers.view(np.uint8).reshape(-1, 2)
            values = gguf.quants.dequantize(blocks, kind).astype("<f4").reshape(-1)
            out.write(name.encode().ljust(8, b"\0") + struct.pack("<II", len(blocks), size) + blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
