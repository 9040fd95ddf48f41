"""Guesses of models whose layers keep states, made by transformers: a walk along a golden prompt in which guesses come true or not, and every one that does not takes the
sequence back to its mark. All rows are those of the prompt in one piece, to the bit, and transformers'."""

import os
import random

import numpy as np
import pytest

import llmc
from golden_run import TOLERANCE, weights
from processor import RUNS

EVERY = "LLMC_CHECK_ALL" in os.environ
BEST = [a for a in ("v3", "v4", "amx") if RUNS.get(a)][-1:]
NAMES = ["qwen3_next-plain", "qwen3_5-plain", "nemotron_h-plain", "granitemoehybrid-plain"]
ON = [(n, "ref", None) for n in NAMES] + [
    (n, "cpu", a) for n in NAMES for a in BEST if EVERY or n == "nemotron_h-plain"
]


def said(s, chunks):
    return np.array(s.forward(chunks))


def walk(s, text, vocab, r):
    """Rows of all positions of text"""
    q, other = s.seq(), s.seq()
    rows = [said(s, [(q, text[:3], 3)])]
    at, again = 3, 0  # rows that are known; of them those that the sequence has gone back behind
    back = 0
    while at < len(text):
        right = min(r.randrange(4), len(text) - at - 1)
        wrong = [(t + 1) % vocab for t in text[at + right + 1 :][: r.randrange(3)]]
        if again == 0:
            s.mark(q)
        beside = [(other, [r.randrange(vocab)], 0)] if r.randrange(2) else []
        out = said(
            s, [*beside, (q, text[at - again : at + 1 + right] + wrong, 1 + right + len(wrong))]
        )
        rows.append(out[: 1 + right])
        if wrong:
            s.trim(q, at - again)
            again += 1 + right
            back += 1
        else:
            again = 0
        at += 1 + right
    assert back > 3
    s.free(q)
    s.free(other)
    return np.concatenate(rows)


@pytest.mark.parametrize("name,device,arch", ON)
def test_wrong_guesses_leave_nothing(name, device, arch, tmp_path):
    g = weights.Golden(name)
    with (
        llmc.Model(
            str(g.build(tmp_path / "m")), set=["kv.dtype=f32"], device=device, arch=arch
        ) as m,
        m.session(context=64, chunk=64, n_out=64, seqs=3, marks=1) as s,
    ):
        text = list(g.prompt)
        q = s.seq()
        whole = said(s, [(q, text, len(text))])
        s.free(q)
        assert np.abs(whole - g.logits).max() <= (TOLERANCE if device == "ref" else 1e-3) * np.ptp(
            g.logits
        )
        for seed in range(12 if EVERY else 4):
            assert np.array_equal(walk(s, text, g.config["vocab_size"], random.Random(seed)), whole)
