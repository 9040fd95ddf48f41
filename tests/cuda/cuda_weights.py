"""Matrices for kernel tests: random values in every storage type, in the layouts that kernels read"""

import ctypes as C
import functools

import numpy as np

import cuda_harness as H
from code_blocks import CODES, blocks
from host_sources import PACKING


@functools.lru_cache
def lib():
    """Packing and dequantisation; unit tests compare them with other oracles."""
    so = H.host_library("planes", PACKING)
    so.dtype_text.restype = C.c_char_p
    for n in ("dtype_row_bytes", "planes_bytes"):
        getattr(so, n).restype = C.c_int64
        getattr(so, n).argtypes = [C.c_int, C.c_int64]
    for n in ("dequant_row", "quant_row"):
        getattr(so, n).argtypes = [C.c_int, C.c_void_p, C.c_void_p, C.c_int64]
    so.planes_pack.argtypes = [C.c_int, C.c_int64, C.c_void_p, C.c_void_p]
    assert [so.dtype_text(i).decode() for i in range(len(H.DTYPES))] == H.DTYPES
    return so


class Weights:
    """`packed`: uint8 [rows, bytes] in a GPU layout; `value`: the same weights as fp32. raw:
    arbitrary bytes in the fields (exponents of block scales stay small) instead of quantised
    random numbers. values: quantises these [rows, cols]."""

    def __init__(self, dtype, rows, cols, seed=1, scale=1.0, raw=False, values=None):
        so, d, rng = lib(), H.DTYPES.index(dtype), np.random.default_rng(seed)
        self.dtype, self.rows, self.cols = dtype, rows, cols
        n = so.dtype_row_bytes(d, cols)
        assert n > 0, f"{cols} columns do not fit {dtype}"
        file = np.zeros((rows, n), np.uint8)
        x = (
            (rng.standard_normal((rows, cols)) * scale).astype(np.float32)
            if values is None
            else np.ascontiguousarray(values, np.float32)
        )
        if dtype in CODES:
            file = blocks(rng, dtype, (rows, cols // CODES[dtype][0]), scale * 1e-2).reshape(
                rows, n
            )
        else:
            for r in range(rows):
                so.quant_row(d, x[r].ctypes.data, file[r].ctypes.data, cols)
        if raw and dtype in H.BLOCK:
            block = n // (cols // (256 if dtype.endswith("k") else 32))
            b = file.reshape(rows, -1, block)
            skip = {"q4_0": 2, "q5_0": 2, "q8_0": 2, "q6_k": 0}.get(dtype, 4)
            end = 208 if dtype == "q6_k" else block
            b[:, :, skip:end] = rng.integers(0, 256, b[:, :, skip:end].shape)
        if raw and dtype in H.FP4:
            block, head = (17, 1) if dtype == "mxfp4" else (40, 8)
            b = file.reshape(rows, -1, block)
            b[:, :, head:] = rng.integers(0, 256, b[:, :, head:].shape)
        if raw and dtype in H.GROUP:
            scale = (
                2 if dtype[0] == "u" and not dtype.endswith("f32") else 8 if dtype[0] == "m" else 4
            )
            b = file.reshape(rows, cols // int(dtype.split("_")[1]), -1)
            b[:, :, scale:] = rng.integers(0, 256, b[:, :, scale:].shape)
            if dtype[0] == "u" and dtype[1] != "8":
                b[:, :, scale] &= (1 << int(dtype[1])) - 1
            if dtype[:2] == "f8":
                b[:, :, scale:][b[:, :, scale:] & 0x7F == 0x7F] = 0x35  # NaN
        self.value = np.zeros((rows, cols), np.float32)
        for r in range(rows):
            so.dequant_row(d, file[r].ctypes.data, self.value[r].ctypes.data, cols)
        if dtype in H.PACKED:
            self.packed = np.zeros((rows, so.planes_bytes(d, cols)), np.uint8)
            for r in range(rows):
                so.planes_pack(d, cols, file[r].ctypes.data, self.packed[r].ctypes.data)
        else:
            self.packed = file
