"""GGUF files of encoders as llama.cpp's converter writes them, against transformers on the same weights, and their tokenizers against `tokenizers`
(tests/golden/make_encoder_gguf.py)."""

import glob
import os

import numpy as np
import pytest

import llmc
from golden_run import ROOT
from processor import RUNS

FOLDER = os.path.join(ROOT, "tests", "golden", "gguf-encoders")
CASES = sorted(os.path.basename(p)[:-5] for p in glob.glob(os.path.join(FOLDER, "*.gguf")))
TEXTS = [
    "The quick brown fox",
    "l'état, c'est moi! 3.14 (naïve)",
    "東京 Tokyo\tx\n",
    "unaffable [MASK] #1",
]
PAIRS = [("what is a panda?", "The giant panda is a bear."), ("Ünïcode", "a b")]
POOL = {"bert": "cls", "xlm_roberta": "cls", "distilbert": "none"}
CPU = {"bert": "v3", "modernbert": "v4", "gemma_embedding": "v3", "xlm_roberta_labels": "v4"}


def golden(name):
    g = np.load(os.path.join(FOLDER, name + ".npz"))
    inputs = [g[f"input{i}"].tolist() for i in range(3)]
    return g, inputs, g["rows"]


def rows(model, inputs):
    with model.session(seqs=len(inputs)) as s:
        if model.info["output"] == 2:
            return np.array([s.embed(ids, normalize=False) for ids in inputs])
        return np.asarray(s.forward([(s.seq(), ids, len(ids)) for ids in inputs]))


def cosines(got, want):
    return (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)


def check(model, name):
    _, inputs, want = golden(name)
    got = rows(model, inputs)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5 * np.ptp(want), np.abs(got - want).max() / np.ptp(want)
    assert cosines(got, want).min() >= 0.9999


def opened(name, device="ref", arch=None):
    path = os.path.join(FOLDER, name + ".gguf")
    return llmc.Model(path, device=device, arch=arch, set=["kv.dtype=f32"])


def test_all_are_there():
    assert len(CASES) >= 13


@pytest.mark.parametrize("name", CASES)
def test_reference(name):
    with opened(name) as m:
        check(m, name)
        labels = name.endswith("_labels")
        pool = "cls" if labels else POOL.get(name, "mean")
        assert m.info["pool"] == ["none", "last", "mean", "cls"].index(pool)
        assert m.info["normalize"] == (not labels and pool != "none")


@pytest.mark.parametrize("name,arch", [(n, a) for n, a in CPU.items() if RUNS[a]])
def test_processors(name, arch):
    with opened(name, "cpu", arch) as m:
        check(m, name)


@pytest.mark.parametrize("name", CASES)
def test_ids(name):
    g, _, _ = golden(name)
    with llmc.Tokenizer(os.path.join(FOLDER, name + ".gguf")) as t:
        for i, text in enumerate(TEXTS):
            if f"text{i}" in g:
                assert t.encode(text) == g[f"text{i}"].tolist(), text
        for i, (first, second) in enumerate(PAIRS):
            if f"pair{i}" in g:
                both = t.encode(first, special=4) + t.encode(second, special=8)
                assert both == g[f"pair{i}"].tolist(), first


def test_names_of_labels():
    for name, want in (("bert_labels", ["a", "b", "c"]), ("xlm_roberta_labels", ["LABEL_0"])):
        with opened(name) as m:
            assert m.labels == want
    with opened("bert") as m:
        assert m.labels == []
