#!/usr/bin/env python3
"""Write tests/golden/dequant.bin: random blocks of every block format and their values according to the `gguf` package.

    python3 -m venv V && V/bin/pip install gguf==0.19.0 numpy && V/bin/python tests/golden/make_dequant.py

Records until the end of the file, little endian:
    char kind ('D': blocks to floats, 'Q': floats to blocks), char[7] dtype, u32 elements, u32 bytes, then
    the floats, then the blocks. Read by tests/unit/test_formats_dequant.c.
"""

import pathlib
import struct

import gguf
import numpy as np

TYPES = [
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q2_K",
    "Q3_K",
    "IQ4_NL",
    "IQ4_XS",
    "IQ3_S",
    "IQ3_XXS",
    "IQ2_S",
    "IQ2_XS",
    "IQ2_XXS",
    "IQ1_S",
    "IQ1_M",
    "TQ1_0",
    "TQ2_0",
]
# offset of the fp16 scales in a block, if not 0
SCALES = {
    "Q4_1": [0, 2],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "TQ1_0": [52],
    "TQ2_0": [64],
    "IQ1_M": [],
}


def record(kind, name, floats, blocks):
    floats, blocks = floats.astype("<f4").tobytes(), blocks.tobytes()
    head = kind + name.lower().encode().ljust(7, b"\0")
    return head + struct.pack("<II", len(floats) // 4, len(blocks)) + floats + blocks


def main():
    rng = np.random.default_rng(20240607)
    out = b""
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        elems, size = gguf.GGML_QUANT_SIZES[kind]
        n = max(6, 512 // elems)
        blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
        for at in SCALES.get(name, [0]):
            # random finite fp16 values of all exponents, one subnormal and one zero
            bits = rng.integers(0, 0x7C00, n, dtype=np.uint16) | (
                rng.integers(0, 2, n, dtype=np.uint16) << 15
            )
            bits[0], bits[1] = 0x0001, 0x8000
            blocks[:, at : at + 2] = bits.astype("<u2").view(np.uint8).reshape(n, 2)
        if (
            name == "IQ1_M"
        ):  # the top nibbles of four words form the scale, whose exponent must not be all ones
            blocks[:, 55] &= 0xBF
        floats = gguf.quants.dequantize(blocks, kind)
        assert floats.size == n * elems and np.isfinite(floats).all()
        out += record(b"D", name, floats, blocks)
    for name in TYPES[:5]:
        kind = gguf.GGMLQuantizationType[name]
        floats = rng.standard_normal((5, 32)).astype(np.float32)
        floats[1] *= 1e-6
        floats[2] = 0
        floats[3] = np.linspace(-3, 4, 32, dtype=np.float32)
        floats[4] = rng.integers(-4, 5, 32)
        out += record(b"Q", name, floats, gguf.quants.quantize(floats, kind))
    pathlib.Path(__file__).with_name("dequant.bin").write_bytes(out)


main()
