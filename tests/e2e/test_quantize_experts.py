"""llmc quantize of MoE models: errors of an expert are compensated by the rows that the router
sends to it, in a folder and in a GGUF. Experts with too few rows are rounded by importance."""

import json
import os
import sys

import numpy as np
import pytest
from gguf import GGUFReader

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
import tiny_model  # noqa: E402
import weights  # noqa: E402

# rows and columns are multiples of a group; 96 is not a multiple of 128
WIDER = {44: 128, 36: 96, 56: 64, 28: 32}
MANY = ["--window", "64", "--windows", "16", "-t", "2", "-q"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Four experts, two per token, in three layers."""
    folder = str(tmp_path_factory.mktemp("experts") / "model16")
    tiny_model.build(folder, base="mixtral-plain")
    g = weights.Golden("mixtral-plain")
    config = json.load(open(f"{folder}/config.json"))
    config.update(hidden_size=128, intermediate_size=96, head_dim=16)
    json.dump(config, open(f"{folder}/config.json", "w"))
    shapes = {
        n: [config["vocab_size"] if "embed" in n or "lm_head" in n else WIDER.get(s[0], s[0])]
        + [WIDER[k] for k in s[1:]]
        for n, s in g.tensors.items()
    }
    weights.write_safetensors(
        f"{folder}/model.safetensors",
        {n: weights.tensor(g.seed, n, s) for n, s in shapes.items()},
        "bf16",
    )
    return folder


def values(path):
    return {t.name: t.data for t in GGUFReader(path).tensors}


def test_each_expert_by_its_own_rows(llmc, model, tmp_path):
    kl = {}
    for method in ("nearest", "weighted", "gptq"):
        out = tmp_path / f"{method}.gguf"
        llmc("quantize", model, out, "--type", "q4_0", "--head", "q8_0", "--method", method, *MANY)
        kl[method] = llmc.json(
            "eval",
            out,
            "--reference",
            model,
            "--text",
            "configs/texts/calibration.txt",
            "--window",
            "64",
            "--windows",
            "4",
            "--device",
            "ref",
        )["kl"]["mean"]
    assert kl["gptq"] < 0.75 * min(kl["weighted"], kl["nearest"]), kl
    a, b = values(tmp_path / "gptq.gguf"), values(tmp_path / "weighted.gguf")
    for part in ("gate", "up", "down"):
        x, y = (v[f"blk.1.ffn_{part}_exps.weight"] for v in (a, b))
        assert len(x) == 4 and all((x[e] != y[e]).any() for e in range(4)), part
    llmc(
        "quantize",
        model,
        tmp_path / "again.gguf",
        "--type",
        "q4_0",
        "--head",
        "q8_0",
        *MANY[:-3],
        "-t",
        "1",
        "-q",
        "--hessian-memory",
        "1K",
    )
    again = values(tmp_path / "again.gguf")
    assert all((a[n] == again[n]).all() for n in a)


def test_few_rows_are_rounded_by_importance(llmc, model, tmp_path):
    """8 tokens: no expert gets rows for an eighth of its columns. down has no importance, so its
    blocks equal those of the other method."""
    got = {}
    for method in ("weighted", "gptq"):
        out = tmp_path / f"{method}.gguf"
        llmc(
            "quantize",
            model,
            out,
            "--type",
            "q4_0",
            "--method",
            method,
            "--window",
            "8",
            "--windows",
            "1",
            "-t",
            "2",
            "-q",
        )
        got[method] = values(out)
    for i in range(3):
        assert (
            got["gptq"][f"blk.{i}.ffn_down_exps.weight"]
            == got["weighted"][f"blk.{i}.ffn_down_exps.weight"]
        ).all()


def test_a_folder_has_each_expert_apart(llmc, model, tmp_path):
    kl = {}
    for method in ("nearest", "gptq"):
        llmc(
            "quantize",
            model,
            tmp_path / method,
            "--type",
            "int4",
            "--group",
            "32",
            "--method",
            method,
            *MANY,
        )
        kl[method] = llmc.json(
            "eval",
            tmp_path / method,
            "--reference",
            model,
            "--text",
            "configs/texts/calibration.txt",
            "--window",
            "64",
            "--windows",
            "4",
            "--device",
            "ref",
        )["kl"]["mean"]
    assert kl["gptq"] < 0.75 * kl["nearest"], kl


def test_importance_is_stored_per_expert(llmc, model, tmp_path):
    """in_sum2 [experts][columns] for gate and up, one row per expert. Their sum is the router's,
    counted twice (two experts per token)."""
    llmc(
        "quantize",
        model,
        tmp_path / "out.gguf",
        "--type",
        "q4_0",
        "--method",
        "weighted",
        "--imatrix-out",
        tmp_path / "i.gguf",
        *MANY,
    )
    t = {t.name: np.array(t.data, np.float64) for t in GGUFReader(tmp_path / "i.gguf").tensors}
    gate, up = (t[f"blk.0.ffn_{p}_exps.weight.in_sum2"].reshape(4, 128) for p in ("gate", "up"))
    assert (gate == up).all() and not np.allclose(gate[0], gate[1], rtol=0.1)
