#!/usr/bin/env python3
"""Writes the seeds of the weight file fuzzers: small sound files, from which mutations start.

    V/bin/pip install gguf==0.19.0 safetensors numpy && V/bin/python tests/fuzz/make_corpus.py

Inputs that once found a fault are kept beside the seeds under a name that says what they found."""
import pathlib
import tempfile

import gguf
import numpy as np
import safetensors.numpy

HERE = pathlib.Path(__file__).parent / "corpus"


def gguf_seed(name, fill, **options):
    with tempfile.TemporaryDirectory() as tmp:
        path = pathlib.Path(tmp) / "seed"
        w = gguf.GGUFWriter(path, "llama", **options)
        fill(w)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        (HERE / "gguf" / name).write_bytes(path.read_bytes())


def keys(w):
    w.add_uint8("u8", 1)
    w.add_int16("i16", -2)
    w.add_uint64("u64", 3)
    w.add_float32("f32", 0.5)
    w.add_float64("f64", 0.25)
    w.add_bool("yes", True)
    w.add_array("words", ["a", "", "\u00e9"])
    w.add_array("ints", [1, 2, 3])
    w.add_array("floats", [0.5, 1.5])


def tensors(w):
    w.add_custom_alignment(8)
    w.add_tensor("a.weight", np.zeros((2, 3), np.float32))
    w.add_tensor("b.weight", np.ones(5, np.float16))
    w.add_tensor("q.weight", np.zeros((1, 34), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("k.weight", np.zeros((1, 144), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    w.add_tensor("odd", np.zeros((1, 84), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q2_K)


def main():
    for kind in ("gguf", "safetensors"):
        (HERE / kind).mkdir(parents=True, exist_ok=True)
    gguf_seed("empty", lambda w: None)
    gguf_seed("keys", keys)
    gguf_seed("tensors", tensors)
    v3 = (HERE / "gguf" / "tensors").read_bytes()
    (HERE / "gguf" / "version2").write_bytes(v3[:4] + b"\2" + v3[5:])
    for name, tensor in (("empty", {}), ("one", {"w": np.zeros(2, np.float32)}), ("several", {
            "a": np.zeros((2, 3), np.float16), "b": np.zeros((), np.float32), "c": np.zeros((0, 4), np.int64),
            "d": np.ones(3, np.int32), "m": np.ones(5, bool)})):
        data = safetensors.numpy.save(tensor, {"format": "np"} if tensor else None)
        (HERE / "safetensors" / name).write_bytes(data)


main()
