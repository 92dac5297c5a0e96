#!/usr/bin/env python3
"""Prints the tables of src/checkpoint/ggml_grids.h from gguf-py, which packs them in the same way. Needs `pip install gguf`."""
import struct

from gguf import quants

NAMES = {"IQ2_XXS": "kIq2XxsGrid", "IQ2_XS": "kIq2XsGrid", "IQ2_S": "kIq2SGrid", "IQ3_XXS": "kIq3XxsGrid", "IQ3_S": "kIq3SGrid",
         "IQ1_S": "kIq1Grid"}


def main():
    for kind, name in NAMES.items():
        packed = bytes.fromhex(getattr(quants, kind).grid_hex.decode())
        words = struct.unpack(f"<{len(packed) // 2}H", packed)
        print(f"inline constexpr std::array<uint16_t, {len(words)}> {name} = {{")
        print("    " + ", ".join(f"0x{word:04x}" for word in words) + "};\n")


if __name__ == "__main__":
    main()
