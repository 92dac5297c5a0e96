#!/usr/bin/env python3
"""Random blocks of the GGUF types that moesaic converts, with their values by gguf-py: tests/golden/gguf/blocks.bin.

    make_gguf_goldens.py FILE [--check]

--check compares the file with what would be written; without gguf-py it ends with 77. Needs `pip install gguf numpy`. Q1_0 and Q2_0, which gguf-py 0.19 does not read, are computed here. For each type: its name in
8 bytes, the number of blocks and the bytes of one (u32), the blocks, then 2,048 values in F32.
"""
import struct
import sys

try:
    import gguf
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
          "Q2_K": [80, 82], "Q3_K": [108], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ3_XXS": [0], "IQ1_S": [0], "IQ3_S": [0], "IQ2_S": [0],
          "IQ4_XS": [0], "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64], "Q1_0": [0], "Q2_0": [0]}  # where a block has F16 numbers
VALUES = 2048
SIMPLE = {"Q1_0": (128, 1), "Q2_0": (64, 2)}  # elements, bits of one


def random_halves(rng, count):
    return (rng.standard_normal(count) * 0.05).astype("<f2").view(np.uint16)


def simple_values(name, blocks):
    elements, bits = SIMPLE[name]
    codes = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(len(blocks), elements, bits)
    codes = codes.astype(np.int32) @ (1 << np.arange(bits))
    levels = 2 * codes - 1 if bits == 1 else codes - 1
    return blocks[:, :2].copy().view("<f2").astype("<f4") * levels.astype("<f4")


def golden(rng, name, halves):
    kind = None if name in SIMPLE else gguf.GGMLQuantizationType[name]
    elements, size = (SIMPLE[name][0], 18) if kind is None else gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (VALUES // elements, size), dtype=np.uint8)
    for at in halves:
        blocks[:, at:at + 2] = random_halves(rng, len(blocks)).view(np.uint8).reshape(-1, 2)
    if name == "IQ1_M":  # a scale in four nibbles
        scale, words = random_halves(rng, len(blocks)), blocks[:, 48:].copy().view("<u2")
        for i in range(4):
            words[:, i] = words[:, i] & 0x0FFF | (scale >> (4 * i) & 15) << 12
        blocks[:, 48:] = words.view(np.uint8)
    values = simple_values(name, blocks) if kind is None else gguf.quants.dequantize(blocks, kind)
    head = name.encode().ljust(8, b"\0") + struct.pack("<II", len(blocks), size)
    return head + blocks.tobytes() + values.astype("<f4").reshape(-1).tobytes()


def main():
    rng = np.random.default_rng(5)
    data = b"".join(golden(rng, name, halves) for name, halves in HALVES.items())
    if "--check" not in sys.argv:
        with open(sys.argv[1], "wb") as out:
            out.write(data)
    elif open(sys.argv[1], "rb").read() != data:
        sys.exit(f"{sys.argv[1]} is not what gguf-py reads")


if __name__ == "__main__":
    main()
