#!/usr/bin/env python3
"""Prints kGridMarks of src/checkpoint/ggml_grids.h from gguf-py. Needs `pip install gguf`."""
import struct

from gguf import quants

TYPES = {"IQ2_XXS": 3, "IQ2_XS": 3, "IQ2_S": 3, "IQ1_S": 3, "IQ3_XXS": 8, "IQ3_S": 8}  # by mark: levels of an element


def main():
    marks = [0] * 3**8
    for mark, (kind, levels) in enumerate(TYPES.items()):
        packed = bytes.fromhex(getattr(quants, kind).grid_hex.decode())
        for vector in struct.unpack(f"<{len(packed) // 2}H", packed):
            bits = 2 if levels == 3 else 4
            marks[sum((vector >> bits * i & 2**bits - 1) * levels**i for i in range(16 // bits))] |= 1 << mark
    text = "".join(chr(ord("0") + mark) for mark in marks)
    for at in range(0, len(text), 100):
        print(f'    R"({text[at:at + 100]})"')


if __name__ == "__main__":
    main()
