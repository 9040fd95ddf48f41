"""Llama checkpoints as Meta publishes them: params.json and consolidated.*.pth, whole and in
model-parallel parts, against transformers on the same weights (tests/golden/models)."""

import json
import os
import sys

import numpy as np
import pytest

import golden_run
import weights

sys.path.insert(0, os.path.join(golden_run.ROOT, "tests", "golden"))
import torch_file  # noqa: E402

NAMES = {
    "model.embed_tokens.": "tok_embeddings.",
    "model.norm.": "norm.",
    "lm_head.": "output.",
    ".input_layernorm.": ".attention_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".self_attn.q_proj.": ".attention.wq.",
    ".self_attn.k_proj.": ".attention.wk.",
    ".self_attn.v_proj.": ".attention.wv.",
    ".self_attn.o_proj.": ".attention.wo.",
    ".mlp.gate_proj.": ".feed_forward.w1.",
    ".mlp.up_proj.": ".feed_forward.w3.",
    ".mlp.down_proj.": ".feed_forward.w2.",
    "model.layers.": "layers.",
}
BY_COLUMNS = ("attention.wo.", "feed_forward.w2.")


def original(g):
    """Return name -> array, with rows of query and key heads as interleaved pairs, which
    transformers' converter splits into halves."""
    out, heads = {}, {"wq": g.config["num_attention_heads"], "wk": g.config["num_key_value_heads"]}
    for name, shape in g.tensors.items():
        x = weights.tensor(g.seed, name, shape)
        for a, b in NAMES.items():
            name = name.replace(a, b)
        for w, n in heads.items():
            if f".{w}." in name:
                x = x.reshape(n, 2, -1, shape[1]).swapaxes(1, 2).reshape(shape)
        out[name] = np.ascontiguousarray(x)
    if "output.weight" not in out:
        out["output.weight"] = out["tok_embeddings.weight"]
    dim = g.config["hidden_size"] // g.config["num_attention_heads"]
    out["rope.freqs"] = (1 / 10000 ** (np.arange(0, dim, 2) / dim)).astype(np.float32)
    return out


def build(folder, g, n=1, embed_rows=False, **more):
    os.makedirs(folder, exist_ok=True)
    c = g.config
    rope = c.get("rope_parameters") or {}
    params = dict(
        dim=c["hidden_size"],
        n_layers=c["num_hidden_layers"],
        n_heads=c["num_attention_heads"],
        n_kv_heads=c["num_key_value_heads"],
        vocab_size=-1,
        multiple_of=4,
        norm_eps=c["rms_norm_eps"],
        rope_theta=rope.get("rope_theta") or c.get("rope_theta", 10000.0),
        **more,
    )
    json.dump(params, open(f"{folder}/params.json", "w"))
    for i in range(n):
        part = {}
        for name, x in original(g).items():
            cut = (
                1
                if any(k in name for k in BY_COLUMNS) or (name.startswith("tok") and not embed_rows)
                else 0
            )
            part[name] = x if x.ndim == 1 else np.ascontiguousarray(np.split(x, n, cut)[i])
        torch_file.write(f"{folder}/consolidated.{i:02d}.pth", part)
    return folder


def smaller():
    """Reduce the vocabulary to 128; four parts then cut every matrix inside heads."""
    g = weights.Golden("llama-smol")
    for name in g.tensors:
        if "embed" in name or "lm_head" in name:
            g.tensors[name] = [128, g.tensors[name][1]]
    g.prompt = [t % 128 for t in g.prompt]
    return g


def test_one_file(tmp_path):
    g = weights.Golden("llama-smol")
    got, tokens = golden_run.run(build(str(tmp_path / "model"), g), g, "--device", "ref")
    golden_run.check(g, got, tokens)


@pytest.mark.parametrize(
    "embed_rows", [False, True]
)  # Llama 1 and 2 split the embedding by columns, Llama 3 by rows
def test_parts_are_joined(tmp_path, embed_rows):
    g = smaller()
    whole, _ = golden_run.run(build(str(tmp_path / "one"), g), g, "--device", "ref")
    parts, _ = golden_run.run(build(str(tmp_path / "four"), g, 4, embed_rows), g, "--device", "ref")
    assert (whole == parts).all()


def test_generations(llmc, tmp_path):
    """Values that params.json lacks: positions and RoPE scaling per generation, as in transformers'
    converter."""
    g = weights.Golden("llama-smol")
    want = {
        "1": (dict(norm_eps=1e-6), 2048, None),
        "2": (dict(norm_eps=1e-5), 4096, None),
        "3": (dict(norm_eps=1e-5, rope_theta=500000.0), 8192, None),
        "3.2": (dict(norm_eps=1e-5, rope_theta=500000.0, use_scaled_rope=True), 131072, 32),
        "3.1": (
            dict(norm_eps=1e-5, rope_theta=500000.0, use_scaled_rope=True, rope_scaling_factor=8),
            131072,
            8,
        ),
    }
    folder = build(str(tmp_path / "model"), g)
    params = json.load(open(f"{folder}/params.json"))
    for generation, (more, positions, factor) in want.items():
        json.dump(dict(params, **more), open(f"{folder}/params.json", "w"))
        llmc("import", folder)
        assert f"max_positions: {positions}" in llmc.out, generation
        assert ("kind: llama3" in llmc.out) == (factor is not None) and (
            factor is None or f"factor: {factor}" in llmc.out
        ), llmc.out


def bad(folder, llmc):
    llmc("run", folder, "--device", "ref", "--tokens", "1,2", "-n", "1", code=1)
    return llmc.err


def test_mistakes_are_sentences(llmc, tmp_path):
    g = smaller()
    folder = build(str(tmp_path / "a"), g, 4)
    torch_file.write(
        f"{folder}/consolidated.03.pth", {n: v for n, v in original(g).items() if "norm" in n}
    )
    assert "is in 3 of 4 shards" in bad(folder, llmc), llmc.err
    torch_file.write(f"{folder}/consolidated.03.pth", original(g))
    assert "differ in size or type" in bad(folder, llmc), llmc.err
    build(folder, g, 4)
    params = json.load(open(f"{folder}/params.json"))
    json.dump(dict(params, dim="wide"), open(f"{folder}/params.json", "w"))
    assert "dim is not a positive integer" in bad(folder, llmc), llmc.err
    json.dump(dict(params, moe_args={"num_experts": 16}), open(f"{folder}/params.json", "w"))
    assert "moe_args" in bad(folder, llmc), llmc.err
