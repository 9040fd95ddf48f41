"""Layers with a sliding window. Sequences that run together, in any order, have the same bits as their
own tokens in one chunk and can be trimmed by 32 positions. Forks, trims, saved sequences and
steps of several sequences, in a session with few pages; alone, over ranks and over stages."""

import random

import numpy as np
import pytest

import llmc
from bits import rows

MODEL = """llmc: 1
name: windows
family: llama
vocab_size: 323
max_positions: 1024
n_layers: 3
hidden: 32
attention: {n_heads: 2, n_kv_heads: 1, head_dim: 16, window: %d, window_layers: [0, 2]}
ffn: {width: 32}
text: {bos: 1, eos: [2]}
"""
OPS, CHUNK, BACK = 120, 24, 32
WIDE = ["attention.head_dim=32"]
CASES = [(window, sets) for window in (1, 2, 23, 32, 33, 40) for sets in ([], ["parallel.pp=2"])]
CASES += [
    (window, ["ffn.width=64", "attention.n_heads=4", "attention.n_kv_heads=2", "parallel.tp=2"])
    for window in (5, 33)
]
# KV rows that are read in 16 bits while recent
CASES += [
    (23, WIDE + ["kv.k=int4c", "kv.v=int4", "kv.window=32", "kv.sinks=5"]),
    (33, WIDE + ["kv.dtype=int4", "kv.window=3", "kv.sinks=40"]),
    (1, WIDE + ["kv.dtype=int8", "kv.window=70"]),
]


class Sequences:
    """The sequences of a session, and the tokens that each of them should hold."""

    def __init__(self, session, alone, context, rnd):
        self.s, self.alone, self.context, self.rnd = session, alone, context, rnd
        self.tok, self.longest, self.saved = {}, {}, []

    def any(self):
        return self.rnd.choice(sorted(self.tok))

    def add(self, q, tok, longest):
        self.tok[q], self.longest[q] = list(tok), longest

    def drop(self, q):
        self.s.free(q)
        del self.tok[q]

    def step(self):
        room, part = CHUNK, []
        for q in self.rnd.sample(sorted(self.tok), self.rnd.randint(1, min(len(self.tok), 3))):
            n = min(
                self.rnd.choice([1, 1, 2, 3, 8, 9, room]), room, self.context - len(self.tok[q])
            )
            if n > 0:
                part.append((q, [self.rnd.randrange(3, 320) for _ in range(n)], n))
                room -= n
        try:
            out = rows(self.s, part) if part else None
        except llmc.Error as e:
            assert e.name == "LLMC_E_FULL", e
            self.drop(self.any())
            return
        for q, tok, n in part:
            self.tok[q] += tok
            self.longest[q] = max(self.longest[q], len(self.tok[q]))
            assert np.array_equal(out[:n], self.alone(self.tok[q])[-n:]), (q, len(self.tok[q]), n)
            out = out[n:]

    def cut(self):
        q = self.any()
        to = max(0, len(self.tok[q]) - self.rnd.choice([0, 1, 2, 15, 31, 32, 33, 60, self.context]))
        try:
            self.s.trim(q, to)
            self.add(q, self.tok[q][:to], self.longest[q] if to else 0)
        except llmc.Error as e:
            assert "no longer kept" in str(e) and self.longest[q] - to > BACK, (
                self.longest[q],
                to,
                e,
            )

    def one(self):
        op, full = self.rnd.random(), len(self.tok) == 4
        if not self.tok or (op < 0.08 and not full):
            self.add(self.s.seq(), [], 0)
        elif op < 0.7:
            self.step()
        elif op < 0.78 and not full:
            q = self.any()
            self.add(self.s.fork(q), self.tok[q], self.longest[q])
        elif op < 0.9:
            self.cut()
        elif op < 0.94:
            q = self.any()
            self.saved = self.saved[-2:] + [(list(self.tok[q]), self.longest[q], self.s.save(q))]
        elif op < 0.97 and self.saved and not full:
            tok, longest, data = self.rnd.choice(self.saved)
            try:
                self.add(self.s.load(data), tok, longest)
            except llmc.Error as e:
                assert e.name == "LLMC_E_FULL", e
        else:
            self.drop(self.any())


@pytest.mark.sample(5)
@pytest.mark.parametrize("window,sets", CASES)
def test_sequences_have_the_bits_of_their_tokens(window, sets, tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(MODEL % window)
    rnd = random.Random(window)
    context = rnd.choice([90, 200])
    with llmc.open(path, random_weights=True, device="ref", set=sets) as m:
        with (
            m.session(context=context, chunk=context, n_out=context, threads=1) as whole,
            m.session(
                context=context, seqs=4, chunk=CHUNK, n_out=CHUNK, threads=1, kv_tokens=14 * 32
            ) as s,
        ):

            def alone(tok):
                q = whole.seq()
                out = rows(whole, [(q, tok, len(tok))])
                whole.free(q)
                return out

            sequences = Sequences(s, alone, context, rnd)
            for _ in range(OPS):
                sequences.one()
