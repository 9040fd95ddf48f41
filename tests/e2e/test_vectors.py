"""Vectors of strings against transformers (tests/golden/make_embed.py): pooled hidden states, and
scores of classifiers."""

import json
import os
import sys

import numpy as np
import pytest

import llmc
from processor import RUNS

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
)
import weights  # noqa: E402

with open(os.path.join(weights.HERE, "embed", "vectors.json")) as f:
    WANT = json.load(f)
HIDDEN = {m["model"]: m["texts"] for m in WANT["hidden"]}
LABELS = {m["model"]: m for m in WANT["labels"]}
ON = (
    [(m, "ref", None) for m in HIDDEN]
    + [("llama-smol", "cpu", a) for a in ("v3", "v4") if RUNS[a]]
    + [("qwen3-plain", "cpu", a) for a in ("v4",) if RUNS[a]]
)


def folder(path, name, pooling=None, modules=None, prefix=True):
    g = weights.Golden(name)
    if (
        not prefix
    ):  # a model saved by sentence-transformers: no head, and names without their first part
        g.tensors = {
            n.removeprefix("model."): s for n, s in g.tensors.items() if not n.startswith("lm_head")
        }
    g.build(path)
    if not prefix:  # the same bits under the other names
        full = weights.Golden(name)
        weights.write_safetensors(
            os.path.join(path, "model.safetensors"),
            {
                n.removeprefix("model."): weights.tensor(full.seed, n, s, full.plus_one)
                for n, s in full.tensors.items()
                if not n.startswith("lm_head")
            },
            full.dtype,
        )
    if pooling:
        os.makedirs(os.path.join(path, "1_Pooling"))
        with open(os.path.join(path, "1_Pooling", "config.json"), "w") as f:
            json.dump(pooling, f)
    if modules:
        with open(os.path.join(path, "modules.json"), "w") as f:
            json.dump(
                [
                    {"idx": i, "name": str(i), "path": p, "type": t}
                    for i, (p, t) in enumerate(modules)
                ],
                f,
            )
    return str(path)


def near(a, b, scale=None):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and np.abs(a - b).max() <= 2e-4 * (scale or np.abs(b).max()), np.abs(
        a - b
    ).max()


@pytest.mark.parametrize("name,device,arch", ON)
def test_hidden_states_are_pooled(name, device, arch, tmp_path):
    m = llmc.Model(
        folder(tmp_path, name), device=device, arch=arch, set=["head.kind=hidden", "kv.dtype=f32"]
    )
    assert m.info["output"] == 1 and m.info["out_width"] == m.info["hidden"] and m.info["pool"] == 0
    with m.session(context=64, chunk=32) as s:
        for t in HIDDEN[name]:
            for pool in ("last", "mean", "cls"):
                near(s.embed(t["ids"], pool, False), t[pool])
            unit = np.asarray(t["mean"]) / np.linalg.norm(t["mean"])
            near(s.embed(t["ids"], "mean", True), unit)
            rows = s.seq()
            near(np.asarray(s.forward([(rows, t["ids"][:32], len(t["ids"][:32]))]))[0], t["cls"])
            s.free(rows)


@pytest.mark.parametrize("name", list(LABELS))
@pytest.mark.parametrize("device", ["ref", "cpu"])
def test_scores_of_a_classifier(name, device, tmp_path):
    g = weights.Golden(name)
    n = LABELS[name]["labels"]
    g.config["architectures"] = ["QuiteForSequenceClassification"]
    g.tensors = {k: v for k, v in g.tensors.items() if k != "lm_head.weight"} | {
        "score.weight": [n, g.config["hidden_size"]]
    }
    m = llmc.Model(g.build(str(tmp_path)), device=device, set=["kv.dtype=f32"])
    assert (m.info["output"], m.info["out_width"], m.info["pool"]) == (2, n, 1)
    with m.session(context=64) as s:
        for t in LABELS[name]["texts"]:
            near(s.embed(t["ids"]), t["scores"], 1)


TRANSFORMER, POOLING, NORMALIZE = (
    ("", "sentence_transformers.models.Transformer"),
    ("1_Pooling", "sentence_transformers.models.Pooling"),
    ("2_Normalize", "sentence_transformers.models.Normalize"),
)


@pytest.mark.parametrize(
    "pooling,pool,modules",
    [
        (
            {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False},
            "last",
            [TRANSFORMER, POOLING, NORMALIZE],
        ),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
            "mean",
            [TRANSFORMER, POOLING],
        ),
        ({"pooling_mode": "cls", "embedding_dimension": 72}, "cls", None),
    ],
)
def test_pooling_of_sentence_transformers_folders(pooling, pool, modules, tmp_path):
    m = llmc.Model(folder(tmp_path, "qwen3-plain", pooling, modules, prefix=False), device="ref")
    assert ["none", "last", "mean", "cls"][m.info["pool"]] == pool and m.info["normalize"] == (
        modules is not None and len(modules) == 3
    )
    t = HIDDEN["qwen3-plain"][2]
    want = np.asarray(t[pool])
    with m.session(context=64) as s:
        near(s.embed(t["ids"]), want / np.linalg.norm(want) if m.info["normalize"] else want)


@pytest.mark.parametrize(
    "pooling,modules,output",
    [
        ({"pooling_mode_max_tokens": True}, None, "pools by the last token"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            None,
            "is not supported",
        ),
        (
            {"pooling_mode_mean_tokens": True},
            [TRANSFORMER, POOLING, ("2_Dense", "sentence_transformers.models.Dense")],
            "Dense",
        ),
    ],
)
def test_modules_after_the_model_are_not_ignored(pooling, modules, output, tmp_path):
    with pytest.raises(llmc.Error, match=output):
        llmc.Model(folder(tmp_path, "qwen3-plain", pooling, modules), device="ref", no_weights=True)


def test_text_and_vectors_are_distinguished(tmp_path):
    path = folder(tmp_path, "llama-smol")
    m = llmc.Model(path, device="ref", set=["head.kind=hidden", "kv.dtype=f32"])
    with m.session(context=32) as s:
        with pytest.raises(llmc.Error, match="returns vectors"):
            s.run([1, 2, 3])
        with pytest.raises(llmc.Error, match="no pooling selected"):
            s.embed([1, 2])
        with pytest.raises(llmc.Error, match="empty"):
            s.embed([], "last")
        with pytest.raises(llmc.Error, match="context"):
            s.embed([1] * 33, "last")
    with llmc.Model(path, device="ref").session(context=32) as s:
        with pytest.raises(llmc.Error, match="head.kind=hidden"):
            s.embed([1, 2], "last")
    for wrong, output in (
        (["pool.kind=mean"], "rows of logits are not pooled"),
        (["head.kind=labels"], "head.labels"),
        (["head.kind=hidden", "parallel.tp=2"], "one rank"),
    ):
        with pytest.raises(llmc.Error, match=output):
            llmc.Model(path, device="ref", set=wrong, no_weights=True)
