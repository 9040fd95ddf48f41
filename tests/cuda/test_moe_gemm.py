"""MoE in mixed steps, on tensor cores (templates/cuda/moe/moe_ffn_mixed.cu.in), against numpy in
double precision.

Expected values round activations to 16 bits as the kernels do. The remaining error is the order of
sums and, for h, values that fall on the other side of a rounding boundary. LLMC_CHECK_ALL=1: all
cases, and every storage type on every generation with its own code path."""

import os

import cuda_harness as H
import numpy as np
import pytest

import cuda_weights as CW
from test_gemm import rounded
from test_cuda_moe import ACTS
from planted import plant

EVERY = bool(os.environ.get("LLMC_CHECK_ALL"))


def rounded_h(h, x, gate, down):
    """h as the down GEMM reads it; halves are scaled by a power of two that depends on the row of
    x."""
    if down == "bf16":
        return rounded(h, "bf16")
    top = np.abs(x).max(-1, keepdims=True)
    s = 16.0 if gate == "bf16" else 2.0 ** (2 * np.floor(np.log2(np.where(top > 0, top, 1))) - 2)
    return np.clip(h / s, -65504, 65504).astype(np.float16).astype(np.float64) * s


class Mixture:
    """Experts of one layer; make(rows) selects experts for that many rows and returns the result in
    float64."""

    def __init__(self, n, top_k, hidden, width, dtypes, act="silu", seed=0, elsewhere=0, spread=1):
        self.elsewhere, self.spread = elsewhere, spread
        self.n, self.top_k, self.hidden, self.width, self.dtypes, self.act = (
            n,
            top_k,
            hidden,
            width,
            dtypes,
            act,
        )
        self.gate, self.up, self.down = (
            CW.Weights(d, n * r, c, seed + i + 1, c**-0.5)
            for i, (d, r, c) in enumerate(
                zip(dtypes, (width, width, hidden), (hidden, hidden, width))
            )
        )
        self.params = dict(
            N_EXPERTS=n,
            N_REMOTE_EXPERTS=elsewhere,
            TOP_K=top_k,
            X_ROWS_PER_TOKEN=spread,
            HIDDEN=hidden,
            WIDTH=width,
            ACT=act,
            GATE_DTYPE=dtypes[0],
            UP_DTYPE=dtypes[1],
            DOWN_DTYPE=dtypes[2],
        )

    def values(self):
        for m, d in zip((self.gate, self.up, self.down), self.dtypes):
            v = (
                m.value if d in ("bf16", "f16") else m.value.astype(np.float16)
            )  # rounded as for the tensor cores
            yield v.astype(np.float64).reshape(self.n, -1, m.cols)

    def make(self, rows, used=None, one=None, seed=0, scale=1.0):
        r = np.random.default_rng(seed)
        self.x = (
            r.standard_normal((rows, self.spread * self.hidden))
            * np.broadcast_to(scale, (rows,))[:, None]
        ).astype(np.float32)
        self.id = np.array(
            [r.permutation(used or self.n + self.elsewhere)[: self.top_k] for _ in range(rows)],
            np.int32,
        )
        self.id[self.id >= self.n] = -1
        if one is not None:  # first choice of every row
            self.id[:, 0] = one
            self.id[:, 1:] = np.array(
                [[e for e in range(self.n) if e != one][: self.top_k - 1]] * rows
            )
        self.weight = r.random((rows, self.top_k)).astype(np.float32)
        g, u, d = self.values()
        own = self.x.reshape(rows, self.spread, self.hidden)
        x = rounded(self.x.reshape(-1, self.hidden), self.dtypes[0]).reshape(own.shape)
        want = np.zeros((rows, self.hidden))
        for e in range(self.n):
            t, k = np.nonzero(self.id == e)
            if len(t):
                s = k * (self.spread > 1)
                h = rounded_h(
                    ACTS[self.act](x[t, s] @ g[e].T) * (x[t, s] @ u[e].T),
                    own[t, s],
                    self.dtypes[0],
                    self.dtypes[2],
                )
                np.add.at(want, t, self.weight[t, k][:, None] * (h @ d[e].T))
        return want

    def packed(self):
        """Unselected experts must not matter: their bytes are NaN."""
        for m in (self.gate, self.up, self.down):
            p = m.packed.copy()
            for e in set(range(self.n)) - set(self.id.reshape(-1).tolist()):
                p.reshape(self.n, -1)[e] = 0xFF
            yield p

    def run(self, kernel, pick=None, **kw):
        pick = range(len(self.x)) if pick is None else pick
        step = H.make_step([5] * len(pick), [1] * len(pick))
        return kernel.run(
            step,
            [
                self.x[pick],
                self.id[pick],
                self.weight[pick],
                *self.packed(),
                H.out((len(pick), self.hidden)),
            ],
            **kw,
        )[0]

    def close(self, got, want):
        """Error of a row relative to its size"""
        assert np.isfinite(got).all()
        err = (np.abs(got - want).max(-1) / np.maximum(np.abs(want).max(-1), 1e-30)).max()
        assert err < (6e-3 if "bf16" in self.dtypes else 1e-3), f"relative error {err:g}"


def build(m, arch, **more):
    return H.build("moe_ffn_mixed", arch, dict(m.params, **more))


# n experts, top_k, hidden size, width, types; then steps of (rows, number of experts to select
# from, first choice of every row), mode and seed
CASES = {
    "sm_80 5 experts": (
        "sm_80",
        (5, 2, 64, 40, ("bf16",) * 3),
        [(1, None, None, "fast", 0), (20, 3, None, "check", 2), (300, None, None, "fast", 1)],
    ),
    "sm_80 spread": (
        "sm_80",
        (5, 3, 64, 64, ("u4_32",) * 3, "silu", 0, 0, 3),
        [(1, None, None, "fast" if EVERY else "check", 0), (40, None, None, "check", 2)],
    ),
    "sm_80 all of 7": (
        "sm_80",
        (7, 7, 96, 72, ("f16",) * 3),
        [(9, None, None, "check", 1), (70, None, None, "fast", 0)],
    ),
    "sm_80 hidden 576": (
        "sm_80",
        (3, 1, 576, 96, ("q4_0",) * 3),
        [(17, None, None, "fast", 0), (140, 2, 1, "fast", 1)],
    ),
    "sm_120a all to one": (
        "sm_120a",
        (40, 1, 64, 24, ("bf16",) * 3),
        [(150, None, 37, "check", 2), (33, 2, None, "fast", 0)],
    ),
    "sm_89 k formats": (
        "sm_89",
        (2, 1, 256, 256, ("q4_k", "q4_k", "q6_k")),
        [(40, None, None, "fast", 0)],
    ),
    "sm_89 codes": (
        "sm_89",
        (5, 2, 256, 256, ("iq2_s", "iq2_s", "q3_k")),
        [(40, None, None, "fast", 0)],
    ),
    "sm_86 two kinds": (
        "sm_86",
        (4, 2, 64, 64, ("bf16", "bf16", "q8_0")),
        [(40, None, None, "fast", 1)],
    ),
}
if EVERY:
    for a in "sm_80", "sm_86", "sm_100a", "sm_120a":
        for d in H.DTYPES[1:]:
            wide = 256 if H.super_block(d) else 128 if d in H.GROUP else 96
            CASES[f"{a} {d}"] = (
                a,
                (5, 3, wide, wide, (d,) * 3),
                [(n, None, None, "fast", n % 2) for n in (1, 9, 64, 130)]
                + [(40, 3, 1, "check", 2)],
            )


@pytest.mark.parametrize(
    "name", CASES if EVERY else ["sm_80 5 experts", "sm_80 spread", "sm_80 hidden 576"]
)
def test_ffn(name):
    arch, shape, steps = CASES[name]
    m = Mixture(*shape)
    k = build(m, arch)
    for rows, used, one, mode, seed in steps:
        want = m.make(rows, used, one, seed=rows)
        m.close(m.run(k, mode=mode, seed=seed, bucket=rows + seed), want)


@pytest.mark.parametrize("arch, dtypes", [("sm_80", ("f16",) * 3)])
def test_rows_do_not_depend_on_other_rows(arch, dtypes):
    m = Mixture(7, 7, 96, 72, dtypes)
    k = build(m, arch, DETERMINISTIC=1)
    m.make(150)
    every = m.run(k)
    for pick in [137], list(range(100, 120)), list(range(3, 73)):
        assert (m.run(k, pick, seed=1).view(np.uint32) == every[pick].view(np.uint32)).all()


def test_experts_on_other_ranks():
    """Experts of other ranks are omitted, whatever else a row has selected."""
    m = Mixture(3, 4, 64, 40, ("bf16",) * 3, elsewhere=6)
    k = build(m, "sm_80", DETERMINISTIC=1)
    for rows, mode, seed in (1, "fast", 0), (40, "check", 2), (300, "fast", 1):
        want = m.make(rows, seed=rows)
        assert (m.id < 0).any() and (rows < 40 or (m.id < 0).all(1).any())
        got = m.run(k, mode=mode, seed=seed, bucket=rows + seed)
        m.close(got, want)
    assert (m.run(k, [137]).view(np.uint32) == got[[137]].view(np.uint32)).all()


def test_large_and_small_rows():
    """A row scaled by any power of two has h with the same digits."""
    m = Mixture(7, 7, 96, 72, ("f16",) * 3)
    k = build(m, "sm_80")
    scale = np.array([1e6, 1e-4, 1, 3e8, 1e-9, 0], np.float32)
    with np.errstate(over="ignore"):
        want = m.make(6, scale=scale)
    got = m.run(k)
    assert (got[5] == 0).all()
    m.close(got[:5], want[:5])


PLANTED = {
    "up does not wait for prep": (
        "_up(const llmc_call p)\n{\n\tPDL_WAIT();\n\tPDL_LAUNCH();",
        "_up(const llmc_call p)\n{\n\tPDL_LAUNCH();",
    ),
    "a tile begins while the last one is read": (
        "__syncthreads();\n#pragma unroll\nfor (int s = 0; s < T::STAGES - 1; s++) {",
        "for (int s = 0; s < T::STAGES - 1; s++) {",
    ),
    "pairs of the warps before are forgotten": ("at += w < warp ? s.here[w] : 0;", ""),
    "other ranks' experts are summed": ("if (at < 0)\n\t\t\tcontinue;", ""),
    "a tail of 16 has no tile": ("tail > 0 && tail <= 16", "tail > 0 && tail < 16"),
    "results stand in the order of experts": (
        "(long long)pair[m] * WIDTH",
        "(long long)(m + pair[0] * 0) * WIDTH",
    ),
}


@pytest.mark.findings
@pytest.mark.parametrize("bug", PLANTED if EVERY else list(PLANTED)[:1])
def test_planted_bugs_are_found(bug):
    m = Mixture(5, 2, 64, 40, ("bf16",) * 3, elsewhere=3 * ("other" in bug))
    k = build(m, "sm_90a" if "wait" in bug else "sm_80", DETERMINISTIC=1)
    before, after = PLANTED[bug]
    k.text = plant(k.text, before, after)
    want = m.make(48)
    with pytest.raises(AssertionError):
        m.close(m.run(k, mode="check", seed=2), want)


@pytest.mark.parametrize(
    "dtype, arch",
    [("bf16", "sm_80")] * (not EVERY)
    + [(d, a) for d in H.DTYPES[1:] for a in ("sm_80", "sm_90a", "sm_120a")] * EVERY,
)
def test_nvrtc(dtype, arch):
    """Real NVRTC: no spill, no warning"""
    p = dict(
        N_EXPERTS=128,
        N_REMOTE_EXPERTS=0,
        TOP_K=8,
        X_ROWS_PER_TOKEN=1,
        HIDDEN=2048,
        WIDTH=768,
        ACT="silu",
        GATE_DTYPE=dtype,
        UP_DTYPE=dtype,
        DOWN_DTYPE="q6_k" if dtype == "q4_k" else dtype,
    )
    if H.nvrtc("moe_ffn_mixed", p, [arch]) is None:
        pytest.skip("no libnvrtc")


def test_refuses():
    """Cases left to the portable kernel"""
    p = Mixture(4, 2, 64, 64, ("bf16",) * 3).params
    assert H.accepts("moe_ffn_mixed", "sm_80", p) and not H.accepts("moe_ffn_mixed", "sm_75", p)
    for other in (
        dict(UP_DTYPE="f16"),
        dict(GATE_DTYPE="f32", UP_DTYPE="f32"),
        dict(DOWN_DTYPE="f32"),
        dict(WIDTH=36),
    ):
        assert not H.accepts("moe_ffn_mixed", "sm_80", dict(p, **other))
