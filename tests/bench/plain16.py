#!/usr/bin/env python3
"""Make a 16-bit model for quantisation tests from a quantised GGUF of a Llama: plain16.py IN.gguf
OUT.gguf [--pad]

Dequantised values lie on the grid of their blocks, and a quantiser with blocks of the same columns
would find that grid again. So the channels of the residual stream, of the value heads and of the
feed-forward layers are permuted (seeded). The model computes the same, but its blocks differ.

--pad: pad columns to a multiple of 256 with zero channels and heads, as K-quants need. Norms then
divide by a mean over more channels, so their weights and epsilon are scaled to compensate."""

import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize


def padded(w, rows, cols=None):
    return np.pad(w, [(0, rows - w.shape[0])] + ([(0, cols - w.shape[1])] if cols else []))


def main(source, target, pad=None):
    r = GGUFReader(source)
    rng = np.random.default_rng(3)
    field = lambda name: r.get_field(f"llama.{name}").contents()
    hidden, ffn, heads, kv = (
        field(k)
        for k in (
            "embedding_length",
            "feed_forward_length",
            "attention.head_count",
            "attention.head_count_kv",
        )
    )
    dim, share = hidden // heads, heads // kv
    p = rng.permutation(hidden)
    wide = (
        -(-hidden // 256) * 256 if pad else hidden
    )  # the number is also a multiple of the heads that share keys
    assert ffn % 256 == 0 and wide % (dim * share) == 0 or not pad, "widths that this does not know"
    wide_kv = wide // share
    changed = {
        "embedding_length": wide,
        "attention.head_count": wide // dim,
        "attention.head_count_kv": wide_kv // dim,
        "attention.layer_norm_rms_epsilon": field("attention.layer_norm_rms_epsilon")
        * hidden
        / wide,
    }
    perm = {}  # per layer: order of feed-forward channels, value rows, output columns
    for layer in range(field("block_count")):
        within = [rng.permutation(dim) for _ in range(kv)]
        values = np.concatenate([dim * i + w for i, w in enumerate(within)])
        perm[layer] = (
            rng.permutation(ffn),
            values,
            np.concatenate([dim * h + within[h // share] for h in range(heads)]),
        )

    def permuted(name, w):
        if w.ndim == 1:
            return padded(w[p] * np.float32((hidden / wide) ** 0.5), wide)  # norms
        if name in ("token_embd.weight", "output.weight"):
            return padded(w[:, p], w.shape[0], wide)
        layer, part = int(name.split(".")[1]), name.split(".")[2]
        f, v, o = perm[layer]
        rows = {"attn_v": v, "attn_output": p, "ffn_gate": f, "ffn_up": f, "ffn_down": p}.get(
            part, slice(None)
        )
        w = w[rows][:, {"attn_output": o, "ffn_down": f}.get(part, p)]
        return padded(
            w,
            {"attn_k": wide_kv, "attn_v": wide_kv, "ffn_gate": ffn, "ffn_up": ffn}.get(part, wide),
            ffn if part == "ffn_down" else wide,
        )

    w = GGUFWriter(target, "llama")
    for f in r.fields.values():
        if f.name.startswith("GGUF.") or f.name in (
            "general.architecture",
            "general.file_type",
            "general.quantization_version",
        ):
            continue
        sub = f.types[-1] if f.types[0] == GGUFValueType.ARRAY else None
        w.add_key_value(
            f.name,
            changed.get(f.name.removeprefix("llama."), f.contents()),
            f.types[0],
            sub_type=sub,
        )
    w.add_file_type(1)
    for t in r.tensors:
        x = permuted(t.name, dequantize(t.data, GGMLQuantizationType(t.tensor_type)))
        w.add_tensor(t.name, np.ascontiguousarray(x, np.float32 if x.ndim == 1 else np.float16))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main(*sys.argv[1:])
