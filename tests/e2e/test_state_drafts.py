"""Draft tokens on models with recurrent states made by transformers. A golden prompt is replayed
with accepted and rejected draft tokens; each rejection returns the sequence to its mark. All
rows equal those of the prompt in one chunk, to the bit, and transformers'."""

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
    """Return the rows of all positions of the prompt."""
    q, other = s.seq(), s.seq()
    rows = [said(s, [(q, text[:3], 3)])]
    at, again = 3, 0  # rows accepted so far; rows recomputed after a rejection
    back = 0
    while at < len(text):
        right = min(r.randrange(4), len(text) - at - 1)
        wrong = [(t + 1) % vocab for t in text[at + right + 1 :][: r.randrange(3)]]
        if again == 0:
            s.mark(q)
        neighbour = [(other, [r.randrange(vocab)], 0)] if r.randrange(2) else []
        out = said(
            s, [*neighbour, (q, text[at - again : at + 1 + right] + wrong, 1 + right + len(wrong))]
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
def test_rejected_draft_tokens_leave_nothing(name, device, arch, tmp_path):
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
