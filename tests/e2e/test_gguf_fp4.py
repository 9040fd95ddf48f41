"""GGUF types MXFP4 and NVFP4, and Q1_0 and Q2_0, which the gguf package lacks. A model with
arbitrary codes and scales is compared with the same model whose values are decoded by their
definition."""

import os
import struct
import subprocess

import gguf
import numpy as np
import pytest

from golden_run import LLMC, ROOT
from waiting import HANG

SOURCE = os.path.join(ROOT, "tests", "golden", "gguf", "llama-q4_k.gguf")  # rows of 256 elements
LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
F32, Q8_K, MXFP4, NVFP4, Q1_0, Q2_0 = 0, 15, 39, 40, 41, 42


def write(path, source, tensors):
    """Write a file's keys with other tensors: (name, dims with the contiguous one first, type,
    bytes)."""
    reader = gguf.GGUFReader(source)
    keys = bytes(reader.data[24 : reader.tensors[0].field.offset])
    (n_keys,) = struct.unpack("<Q", bytes(reader.data[16:24]))
    head, data = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), n_keys) + keys, b""
    for name, dims, kind, raw in tensors:
        head += (
            struct.pack("<Q", len(name))
            + name.encode()
            + struct.pack("<I", len(dims))
            + struct.pack(f"<{len(dims)}Q", *dims)
            + struct.pack("<IQ", kind, len(data))
        )
        data += raw + b"\0" * (-len(raw) % 32)
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


def mxfp4(rng, rows, cols):
    q, e = (
        rng.integers(0, 16, (rows, cols // 32, 32)),
        rng.integers(117, 122, (rows, cols // 32, 1)),
    )
    raw = np.concatenate(
        [e.astype(np.uint8), (q[..., :16] | q[..., 16:] << 4).astype(np.uint8)], -1
    )
    return raw.tobytes(), (LEVELS[q] * np.exp2(e - 127.0)).reshape(rows, cols).astype(np.float32)


def nvfp4(rng, rows, cols):
    q, s = (
        rng.integers(0, 16, (rows, cols // 64, 4, 16)),
        rng.integers(0x20, 0x30, (rows, cols // 64, 4)),
    )
    s[0, 0, 0], s[1, 0, 1] = 0, 0x7F  # both scales are 0
    d = np.where((s == 0) | (s == 0x7F), 0, np.exp2((s >> 3) - 7.0) * (1 + (s & 7) / 8))
    raw = np.concatenate(
        [s.astype(np.uint8), (q[..., :8] | q[..., 8:] << 4).astype(np.uint8).reshape(rows, -1, 32)],
        -1,
    )
    return raw.tobytes(), (LEVELS[q] * d[..., None]).reshape(rows, cols).astype(np.float32)


def few_bits(bits, group):
    """Encode an f16 scale, then codes from the lowest bit up: sign for one bit, number + 1 for
    two."""

    def make(rng, rows, cols):
        q, d = (
            rng.integers(0, 1 << bits, (rows, cols // group, group)).astype(np.uint8),
            rng.uniform(0.01, 0.05, (rows, cols // group, 1)).astype(np.float16),
        )
        fields = q.reshape(rows, cols // group, -1, 8 // bits) << np.arange(
            0, 8, bits, dtype=np.uint8
        )
        raw = np.concatenate([d.view(np.uint8), np.bitwise_or.reduce(fields, -1)], -1)
        return raw.tobytes(), (
            (2.0 * q - 1 if bits == 1 else q - 1.0) * d.astype(np.float64)
        ).reshape(rows, cols).astype(np.float32)

    return make


def few_bits_model(kind=None):
    rng, few, plain = np.random.default_rng(4), [], []
    for t in gguf.GGUFReader(SOURCE).tensors:
        dims, values = (
            [int(n) for n in t.shape],
            gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32),
        )
        made = (Q1_0, few_bits(1, 128)) if "ffn" in t.name else (Q2_0, few_bits(2, 64))
        raw = values.tobytes()
        if len(dims) == 2:
            raw, values = made[1](rng, dims[1], dims[0])
        few.append((t.name, dims, (kind or made[0]) if len(dims) == 2 else F32, raw))
        plain.append((t.name, dims, F32, np.ascontiguousarray(values, np.float32).tobytes()))
    return few, plain


def test_one_and_two_bits(tmp_path):
    """Embedding and LM head have these types too."""
    few, plain = few_bits_model()
    write(tmp_path / "few.gguf", SOURCE, few)
    write(tmp_path / "plain.gguf", SOURCE, plain)
    want, err = run(tmp_path / "plain.gguf", tmp_path, "--device", "ref")
    assert want is not None, err
    for args, within in ((["--device", "ref"], 1e-5), ([], 1e-3)):
        got, err = run(tmp_path / "few.gguf", tmp_path, *args)
        assert got is not None and "warning" not in err, err
        assert np.abs(got - want).max() <= within * np.ptp(want)


def test_what_ggml_has_for_activations_is_no_weight(tmp_path):
    few, _ = few_bits_model(Q8_K)
    write(tmp_path / "few.gguf", SOURCE, [(n, d, k, raw + b"\0" * 40000) for n, d, k, raw in few])
    got, err = run(tmp_path / "few.gguf", tmp_path, "--device", "ref")
    assert got is None and "is stored as Q8_K, which ggml uses for activations" in err, err


def model(change=lambda name, raw: raw, factor=lambda name, f: f):
    """Return (tensors in 4 bits, the same tensors as F32)."""
    rng, few, plain = np.random.default_rng(3), [], []
    for t in gguf.GGUFReader(SOURCE).tensors:
        dims = [int(n) for n in t.shape]
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        if len(dims) == 2 and "blk." in t.name:
            ffn = "ffn" in t.name
            raw, values = (nvfp4 if ffn else mxfp4)(rng, dims[1], dims[0])
            few.append((t.name, dims, NVFP4 if ffn else MXFP4, change(t.name, raw)))
            if ffn and "up" not in t.name:  # without a factor it is 1
                f = np.float32(0.37)
                values = values * f
                few.append(
                    (t.name.replace("weight", "scale"), [1], F32, factor(t.name, f.tobytes()))
                )
                few.append(
                    (t.name.replace("weight", "input_scale"), [1], F32, np.float32(2).tobytes())
                )
        else:
            few.append((t.name, dims, F32, values.tobytes()))
        plain.append((t.name, dims, F32, np.ascontiguousarray(values, np.float32).tobytes()))
    return few, plain


def run(path, tmp, *args):
    out = str(tmp / "out.npy")
    p = subprocess.run(
        [
            LLMC,
            "run",
            str(path),
            "--tokens",
            "5,9,31,7,200,3",
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            "2",
            "--threads",
            "2",
            "--set",
            "kv.dtype=f32",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    return (np.load(out) if p.returncode == 0 else None), p.stderr


def test_values_are_those_of_the_definition(tmp_path):
    few, plain = model()
    write(tmp_path / "few.gguf", SOURCE, few)
    write(tmp_path / "plain.gguf", SOURCE, plain)
    want, err = run(tmp_path / "plain.gguf", tmp_path, "--device", "ref")
    assert want is not None, err
    for args, within in ((["--device", "ref"], 1e-5), ([], 1e-3)):
        got, err = run(tmp_path / "few.gguf", tmp_path, *args)
        assert got is not None and "warning" not in err, err
        assert np.abs(got - want).max() <= within * np.ptp(want)
    swapped, _ = model(change=lambda name, raw: raw[::-1] if "ffn_down" in name else raw)
    write(tmp_path / "few.gguf", SOURCE, swapped)
    got, err = run(tmp_path / "few.gguf", tmp_path, "--device", "ref")
    assert got is None or np.abs(got - want).max() > 1e-3 * np.ptp(want)


@pytest.mark.parametrize(
    "factor,says",
    [(np.float32("nan").tobytes(), "NaN or infinite"), (np.float32([1, 2]).tobytes(), None)],
)
def test_factors_that_are_none(tmp_path, factor, says):
    few, _ = model(factor=lambda name, f: factor if "down" in name else f)
    if says is None:
        few = [(n, [2] if n.endswith("down.scale") else d, k, raw) for n, d, k, raw in few]
    write(tmp_path / "few.gguf", SOURCE, few)
    got, err = run(tmp_path / "few.gguf", tmp_path, "--device", "ref")
    assert got is None and (says or "expected one F32 factor") in err, err
