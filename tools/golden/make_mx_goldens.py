#!/usr/bin/env python3
"""Makes tests/golden/mx.bin: what ml_dtypes says of E2M1, E4M3 and E8M0.

    pip install numpy ml_dtypes
    python tools/golden/make_mx_goldens.py

Layout, little-endian: float32[16] values of the E2M1 codes; float32[256] of E4M3; float32[256] of E8M0 (NaN
where the code is NaN); uint32 n; float32[n] inputs; uint8[n] their E2M1 codes; uint8[n] their E4M3 codes;
uint8[n] the E8M0 code of 2^floor(log2 |x|). Inputs saturate: they are clipped to the largest finite value
before the cast, as MX v1.0 asks.
"""
import pathlib

import ml_dtypes
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "mx.bin"
FP4, FP8, SCALE = ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu


def codes(dtype, count):
    return np.arange(count, dtype=np.uint8).view(dtype).astype("<f4")


def inputs():
    """Random magnitudes over both formats' ranges, every tie between neighbours, and the edges."""
    rng = np.random.default_rng(1)
    x = [rng.standard_normal(1500) * 10.0 ** rng.uniform(-4, 3.5, 1500), rng.uniform(-7, 7, 1000)]
    for dtype, count in ((FP4, 8), (FP8, 127)):
        values = codes(dtype, count).astype(np.float64)
        ties = (values[1:] + values[:-1]) / 2
        for tie in (ties, np.nextafter(ties.astype("f4"), np.float32(1e9)), np.nextafter(ties.astype("f4"), 0)):
            x += [tie, -tie]
        x += [values, -values]
    x.append([0.0, -0.0, 1e-45, -1e-45, 1e-38, 3.4e38, -3.4e38, 448, 464, 465, 480, 6, 6.5, 7, 8])
    return np.concatenate([np.asarray(v, dtype="f4") for v in x]).astype("<f4")


def cast(x, dtype, largest):
    return np.clip(x, -largest, largest).astype(dtype).view(np.uint8)


def main():
    x = inputs()
    exponent = np.clip(np.frexp(np.abs(x).astype(np.float64))[1] - 1, -127, 127)
    power = np.where(x == 0, 2.0**-127, 2.0**exponent.astype(np.float64)).astype("f4")
    parts = [codes(FP4, 16), codes(FP8, 256), codes(SCALE, 256), np.array([len(x)], "<u4"), x,
             cast(x, FP4, 6) & 15, cast(x, FP8, 448), power.astype(SCALE).view(np.uint8)]
    OUT.write_bytes(b"".join(p.tobytes() for p in parts))
    print(f"{OUT}: {len(x)} inputs, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
