"""GPU kernels with a recurrent state against the values of tests/kernels/test_states.py, on the
emulator and in checking mode, whole and divided into steps, which must be bit-identical"""

import os

import numpy as np
import pytest

import cuda_harness as H
import state_oracle as O

EVERY = os.environ.get("LLMC_CHECK_ALL")
RUNS = [
    ("fast", "sm_75", 0, [0, 40]),
    ("check", "sm_90a", 1, [0, 1, 3, 40]),
    ("fast", "sm_90a", 2, [0, 13, 14, 40]),
]


def planted(text, right, wrong):
    if text.count(right) != 1:  # not AssertionError, which means that a mutation was detected
        raise LookupError(f"not once in the kernel: {right}")
    return text.replace(right, wrong)


# steps of a run: rows at which all sequences are cut, or a list of [(sequence, first row, end)] per
# step
def compare(
    op,
    params,
    inputs,
    fixed,
    shape,
    out_shape,
    want,
    want_state,
    runs=RUNS,
    changed=None,
    most=3e-6,
    same=True,
    before=0,
):
    """changed: (text, other text) of the kernel. most: error, relative to the largest value. same:
    all runs are bit-identical. before: number of unused states before those in use."""
    skip = before * 4 * int(np.prod(shape))
    first, rows = None, [len(x) for x in inputs[0]]
    for mode, arch, seed, cuts in runs:
        if not EVERY:  # one GPU per mode: each kernel is compiled once for it
            arch = "sm_90a" if mode == "check" else "sm_80" if "sm80" in op else "sm_75"
        kernel = H.build(op, arch, params)
        if changed:
            kernel.text = planted(kernel.text, *changed)
        state, y = (
            np.full((O.SEQS, *shape), np.nan, np.float32),
            [np.zeros((n, *out_shape), np.float32) for n in rows],
        )
        for step in O.steps(cuts, rows) if isinstance(cuts[0], int) else cuts:
            step.sort(key=lambda x: x[2] - x[1] > 1)  # decode rows first
            pos = [p for _, a, b in step for p in range(a, b)]
            args = [np.concatenate([x[i][a:b] for i, a, b in step]) for x in inputs]
            s = H.make_step(
                pos,
                [b - a for _, a, b in step],
                seq=[O.AT[i] + before for i, _, _ in step],
                n_dec=sum(b - a == 1 for _, a, b in step),
            )
            state, out = kernel.run(
                s,
                [
                    *args,
                    *fixed,
                    H.far(state, skip) if before else H.inout(state),
                    H.out((len(pos), *out_shape)),
                ],
                mode=mode,
                seed=seed,
            )
            at = 0
            for i, a, b in step:
                y[i][a:b] = out[at : at + b - a]
                at += b - a
        got = [*y, *(state[a] for a in O.AT)]
        for g, w in zip(got, [*want, *want_state]):
            assert np.isfinite(g).all()
            np.testing.assert_allclose(g, w, rtol=0, atol=most * max(1, np.abs(w).max()))
        assert np.isnan(state[1]).all(), "the place of a sequence that is not in the step"
        assert first is None or not same or all(np.array_equal(a, b) for a, b in zip(first, got)), (
            f"{cuts}: other bits"
        )
        first = first or got


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", range(len(O.CONV)))
def test_conv1d(case):
    compare("conv1d", *O.conv(*O.CONV[case]))


@pytest.mark.sample(5)
@pytest.mark.parametrize("case", range(len(O.DELTA)))
def test_delta_rule(case):
    compare("delta_rule", *O.delta(case))


# chunked: bit-identical when cut at page boundaries, within rounding elsewhere; decode rows next to
# prefill rows as alone
CHUNK_ROWS = [70, 35, 100]
CUT = [
    ("fast", "sm_80", 0, [0, 100]),
    ("check", "sm_90a", 1, [0, 32, 100]),
    ("fast", "sm_120a", 2, [0, 64, 96, 100]),
]
UNEVEN = [
    ("fast", "sm_90a", 0, [0, 13, 50, 51, 100]),
    (
        "check",
        "sm_80",
        1,
        [
            [(0, 0, 40), (1, 0, 35)],
            [(0, 40, 41), (2, 0, 70)],
            [(2, 70, 71), (0, 41, 70)],
            [(2, 71, 100)],
        ],
    ),
]
PAGES = [("fast", "sm_90a", 0, [0, 13, 100]), ("fast", "sm_80", 0, [0, 13, 32, 96, 100])]
CHUNKED = [i for i, p in enumerate(O.DELTA) if p.get("g_dim", 1) == 1 and p["k_dim"] % 4 == 0]


@pytest.mark.parametrize("case", CHUNKED)
def test_delta_rule_in_chunks(case):
    compare(
        "delta_rule_mixed_sm80",
        *O.delta(case, CHUNK_ROWS),
        runs=CUT if EVERY or case != 1 else [CUT[0], CUT[2]],
    )
    if EVERY or case != 1:  # wide heads are slow
        compare("delta_rule_mixed_sm80", *O.delta(case, CHUNK_ROWS), runs=UNEVEN, same=False)
        compare("delta_rule_mixed_sm80", *O.delta(case, CHUNK_ROWS), runs=PAGES)


def test_which_rules_run_in_chunks():
    params = O.delta(1)[0]
    assert H.accepts("delta_rule_mixed_sm80", "sm_80", params)
    for other in (
        dict(arch="sm_75"),
        dict(K_DIM=130),
        dict(K_DIM=17),
        dict(V_DIM=33),
        dict(G_DIM=128),
        dict(DETERMINISTIC=1),
    ):
        assert not H.accepts(
            "delta_rule_mixed_sm80", other.pop("arch", "sm_90a"), params | other
        ), other


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", range(len(O.SCAN)))
def test_selective_scan(case):
    compare("selective_scan", *O.scan(case))


SCANS = [
    i
    for i, p in enumerate(O.SCAN)
    if p["n_state"] % 4 == 0 and p["n_state"] <= 256 and p["dim"] % 4 == 0
]


@pytest.mark.parametrize("case", SCANS)
def test_selective_scan_in_chunks(case):
    for runs, same in (CUT, True), (UNEVEN, False), (PAGES, True):
        compare(
            "selective_scan_mixed_sm80",
            *O.scan(case, CHUNK_ROWS),
            runs=runs if EVERY else runs[:2],
            same=same,
        )


def test_which_scans_run_in_chunks():
    params = O.scan(1)[0]
    assert H.accepts("selective_scan_mixed_sm80", "sm_80", params)
    for other in (
        dict(arch="sm_75"),
        dict(N_STATE=260),
        dict(N_STATE=18),
        dict(DIM=33),
        dict(DETERMINISTIC=1),
    ):
        assert not H.accepts(
            "selective_scan_mixed_sm80", other.pop("arch", "sm_90a"), params | other
        ), other


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", range(len(O.CHANNELS)))
def test_channel_scan(case):
    compare("channel_scan", *O.channels(case))


def norm_gate(case, runs=RUNS, changed=None):
    params, args, want = O.gate(*O.GATES[case])
    for mode, arch, seed, _ in runs:
        kernel = H.build("norm_gate", arch, params)
        if changed:
            kernel.text = planted(kernel.text, *changed)
        (y,) = kernel.run(H.make_step([3] * 9), [*args, H.out(want.shape)], mode=mode, seed=seed)
        np.testing.assert_allclose(y, want, rtol=0, atol=3e-6 * np.abs(want).max())


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", range(len(O.GATES)))
def test_norm_gate(case):
    norm_gate(case)


# Mutations of each kernel: checking mode or the values must detect them. A missing wait only shows
# after a predecessor kernel that these tests lack; tests/emu covers those.
PLANTED = {
    "conv1d: a state of the sequence before": ("conv1d", "p.s.seq[q] *", "q *"),
    "conv1d: what lay there before position 0": ("conv1d", "begins ? 0 : state", "0 ? 0 : state"),
    "conv1d: the state is not written": ("conv1d", "state[j * WIDTH] = seen[j];", ";"),
    "conv1d: a channel too many": (
        "conv1d",
        "i < n; i += flat_threads()",
        "i <= n; i += flat_threads()",
    ),
    "conv1d: taps in the other order": (
        "conv1d",
        "fmaf(tap[j], seen[j], sum)",
        "fmaf(tap[TAPS - 1 - j], seen[j], sum)",
    ),
    "delta_rule: a state of the sequence before": (
        "delta_rule",
        "(s.seq[q] * (long long)D::VH",
        "(q * (long long)D::VH",
    ),
    "delta_rule: what lay there before position 0": ("delta_rule", "!begins && r * 32", "r * 32"),
    "delta_rule: columns behind the head's last": (
        "delta_rule",
        "if (r * 32 + lane < KD && col + c < VD)",
        "if (r * 32 + lane < KD)",
    ),
    "delta_rule: rows behind the head's last": (
        "delta_rule",
        "v[r] = r * 32 + (int)lane_id() < KD ? x[r * 32 + lane_id()] : 0;",
        "v[r] = x[r * 32 + lane_id()];",
    ),
    "delta_rule: a sum of one lane": ("delta_rule", "column_sum<COLS>(u);", "u[0];"),
    "delta_rule: keys of another head": (
        "delta_rule",
        "part(x + (KH + from) * KD, row.k);",
        "part(x + (KH + h) * KD, row.k);",
    ),
    "delta_rule: a row too few": ("delta_rule", "if (t + 2 < end)", "if (t + 3 < end)"),
    "delta_rule: a row too many": ("delta_rule", "if (t + 2 < end)", "if (t + 1 < end)"),
    "delta_rule: the row before": (
        "delta_rule",
        "if (t + 1 < end)\n\t\t\t\t\tmake",
        "if (t < first)\n\t\t\t\t\tmake",
    ),
    "selective_scan: a state of the sequence before": (
        "selective_scan",
        "(s.seq[q] * (long long)D::H",
        "(q * (long long)D::H",
    ),
    "selective_scan: what lay there before position 0": (
        "selective_scan",
        "!begins && r * 32",
        "r * 32",
    ),
    "selective_scan: columns behind the head's last": (
        "selective_scan",
        "if (r * 32 + lane < N && col + c < DIM)",
        "if (r * 32 + lane < N)",
    ),
    "selective_scan: rows behind the head's last": (
        "selective_scan",
        "v[r] = r * 32 + (int)lane_id() < N ? x[r * 32 + lane_id()] : 0;",
        "v[r] = x[r * 32 + lane_id()];",
    ),
    "selective_scan: a sum of one lane": ("selective_scan", "column_sum<COLS>(y);", "y[0];"),
    "selective_scan: another column's sum": (
        "selective_scan",
        "col + column_of<COLS>(lane)",
        "col + (COLS - 1 - column_of<COLS>(lane))",
    ),
    "selective_scan: a row too few": (
        "selective_scan",
        "t + 1 < end ? t + 1 : t",
        "t + 2 < end ? t + 1 : t",
    ),
    "delta_rule: another column's sum": (
        "delta_rule",
        "column_get<COLS>(seen, c)",
        "column_get<COLS>(seen, 0)",
    ),
    "selective_scan: the group of another head": (
        "selective_scan",
        "return h / (D::H / D::G);",
        "return h % D::G;",
    ),
    "selective_scan: the input is not scaled": (
        "selective_scan",
        "const float add = d * row.u[c]",
        "const float add = row.u[c]",
    ),
    "channel_scan: a state of the sequence before": (
        "channel_scan",
        "(p.s.seq[q] * (long long)W",
        "(q * (long long)W",
    ),
    "channel_scan: what lay there before position 0": ("channel_scan", "!begins && there", "there"),
    "channel_scan: channels behind the last": (
        "channel_scan",
        "if (i < W && j + r < N)",
        "if (j + r < N)",
    ),
    "channel_scan: rows behind a state's last": (
        "channel_scan",
        "if (i < W && j + r < N)",
        "if (i < W)",
    ),
    "channel_scan: a sum of one lane": ("channel_scan", "y += __shfl_xor_sync(~0u, y, k);", ";"),
    "channel_scan: rates of the channel before": (
        "channel_scan",
        "ARG_rate[(long long)i * N",
        "ARG_rate[(long long)(i > 0 ? i - 1 : 0) * N",
    ),
    "channel_scan: a row too few": ("channel_scan", "if (t + 1 < end)", "if (t + 2 < end)"),
    "channel_scan: a row too many": ("channel_scan", "if (t + 1 < end)", "if (t < end)"),
    "chunks: a state of the sequence before": (
        "chunks",
        "(s.seq[q] * (long long)D::VH",
        "(q * (long long)D::VH",
    ),
    "chunks: what lay there before position 0": ("chunks", "!begins && j < T::KD", "j < T::KD"),
    "chunks: columns behind the head's last": (
        "chunks",
        "if (j < T::KD && col + at_col < T::VD)",
        "if (j < T::KD)",
    ),
    "chunks: rows behind the head's last": (
        "chunks",
        "if (j < T::KD && col + at_col < T::VD)",
        "if (col + at_col < T::VD)",
    ),
    "chunks: they begin where the step does": (
        "pages",
        "at = (pos / CHUNK + i) * CHUNK;",
        "at = pos + i * DELTA_C;",
    ),
    "chunks: y without its own row": ("chunks", "j <= i ? keep * qk", "j < i ? keep * qk"),
    "chunks: T of the transposed": (
        "chunks",
        "fmaf(-a[i * T::SHORT + j], t[j], sum)",
        "fmaf(-a[j * T::SHORT + i], t[j], sum)",
    ),
    "chunks: decays of the row before": (
        "chunks",
        "run = r == i ? 1 : run * own;",
        "run = r == i ? 1 : run * e;",
    ),
    "chunks: the state keeps all": ("chunks", "const float keep = all;", "const float keep = 1;"),
    "chunks: rows do not fade behind them": ("chunks", "* rest[row], a[m]", ", a[m]"),
    "chunks: no beta": ("chunks", "= beta[i] * (v[", "= (v["),
    "chunks: keys of another head": (
        "chunks",
        "float *own = x + (long long)row * delta_row<D>() + delta_from<D>(h) * T::KD",
        "float *own = x + (long long)row * delta_row<D>() + h * T::KD",
    ),
    "chunks: the last parts are left out": ("chunks", "mma_tf32_m16n8k8(d, a.lo, b.hi, d);", ""),
    "chunks: the state is not shown": (
        "chunks",
        "advance(own);\n\t\t\tshow(own);",
        "advance(own);",
    ),
    "chunks: no wait behind x": (
        "chunks",
        "gain[i] * acc[m][n]);\n\t\t\t\t\t}\n\t\t\t__syncthreads();",
        "gain[i] * acc[m][n]);\n\t\t\t\t\t}",
    ),
    "chunks: no wait behind u": ("chunks", "= one[n];\n\t\t\t__syncthreads();", "= one[n];"),
    "chunks: no wait behind a chunk": (
        "chunks",
        "show(own);\n\t\t\t__syncthreads();",
        "show(own);",
    ),
    "chunks: no wait for decays": (
        "chunks",
        "e = decays(in, at, h);\n\t\t__syncthreads();",
        "e = decays(in, at, h);",
    ),
    "chunks: no wait behind the chunk before": (
        "chunks",
        "qk[2][4] = {};\n\n\t\t__syncthreads();",
        "qk[2][4] = {};",
    ),
    "chunks: decode rows too": (
        "chunks",
        "delta_walk<Rule>::deal(p.s, in, N_DEC(p));",
        "delta_walk<Rule>::deal(p.s, in, N_SEQ(p));",
    ),
    "chunks: no decode rows": ("chunks", "delta_walk<Rule>::deal(p.s, in, N_DEC(p));", ""),
    "scans: a state of the sequence before": (
        "scans",
        "(s.seq[q] * (long long)D::H",
        "(q * (long long)D::H",
    ),
    "scans: what lay there before position 0": ("scans", "!begins && i < D::N", "i < D::N"),
    "scans: columns behind the head's last": (
        "scans",
        "if (i < D::N && col + j < D::DIM)",
        "if (i < D::N)",
    ),
    "scans: rows behind the head's last": (
        "scans",
        "if (i < D::N && col + j < D::DIM)",
        "if (col + j < D::DIM)",
    ),
    "scans: they begin where the step does": (
        "scan pages",
        "at = (pos / CHUNK + i) * CHUNK;",
        "at = pos + i * CHUNK;",
    ),
    "scans: y without its own row": ("scans", "ps[n] = j + n > i ?", "ps[n] = j + n >= i ?"),
    "scans: rows see those behind them": ("scans", "ps[n] = j + n > i ? 0 :", "ps[n] ="),
    "scans: the input is not scaled": ("scans", "ps[n] * d_j *", "ps[n] *"),
    "scans: the input of states is not scaled": ("scans", "left = d * fades", "left = fades"),
    "scans: the state keeps all": (
        "scans",
        "const float keep = gain[C - 1];",
        "const float keep = 1;",
    ),
    "scans: rows do not fade behind them": ("scans", "us[n] * left;", "us[n] * d;"),
    "scans: sums of steps in one float": (
        "scans",
        "rest += a_rest + ((l - (sum - of_a)) + (a - of_a));",
        ";",
    ),
    "scans: the group of another head": ("scans", "return h / (D::H / D::G);", "return h % D::G;"),
    "scans: the last parts are left out": ("scans", "mma_tf32_m16n8k8(d, a.lo, b.hi, d);", ""),
    "scans: a quarter's sums are left out": (
        "scans",
        "for (int n = 0; n < 3; n++) {\n\t\t\tconst float4 more",
        "for (int n = 0; n < 2; n++) {\n\t\t\tconst float4 more",
    ),
    "scans: no wait behind a chunk": (
        "scans",
        "float mine[4];\n\n\t\t\t__syncthreads();",
        "float mine[4];\n",
    ),
    "scans: no wait behind sums": (
        "scans",
        "results(own, mine);\n\t\t\tcp_async_wait_all();\n\t\t\t__syncthreads();",
        "results(own, mine);\n\t\t\tcp_async_wait_all();",
    ),
    "scans: B is not waited for": (
        "scans",
        "results(own, mine);\n\t\t\tcp_async_wait_all();",
        "results(own, mine);",
    ),
    "scans: C is not waited for": (
        "scans",
        "(n + 1) % 2);\n\t\t\tcp_async_wait_all();",
        "(n + 1) % 2);",
    ),
    "scans: one w": ("scans", "float u[COLS * SHORT], w[2]", "float u[COLS * SHORT], w[1]"),
    "scans: no wait behind a slab": (
        "scans",
        "n += SLAB) {\n\t\t\t__syncthreads();",
        "n += SLAB) {",
    ),
    "scans: decode rows too": (
        "scans",
        "scan_walk<Scan>::deal(p.s, in, N_DEC(p));",
        "scan_walk<Scan>::deal(p.s, in, N_SEQ(p));",
    ),
    "scans: no decode rows": ("scans", "scan_walk<Scan>::deal(p.s, in, N_DEC(p));", ""),
    "norm_gate: a group too many": (
        "norm_gate",
        "g < n; g += (long long)gridDim.x",
        "g <= n; g += (long long)gridDim.x",
    ),
    "norm_gate: a sum of one lane": ("norm_gate", "warp_sum(sum) / DIM", "sum / DIM"),
    "norm_gate: an element too many": (
        "norm_gate",
        "for (int i = lane_id(); i < DIM; i += 32)\n\t\t\ty[i]",
        "for (int i = lane_id(); i <= DIM; i += 32)\n\t\t\ty[i]",
    ),
}


@pytest.mark.findings
@pytest.mark.sample(4)
@pytest.mark.parametrize("what", PLANTED)
def test_planted(what):
    op, right, wrong = PLANTED[what]
    runs = [("check", "sm_90a", 1, [0, 13, 40])]
    with pytest.raises((H.Finding, AssertionError)):
        if op == "norm_gate":
            norm_gate(0, runs, (right, wrong))
        elif op in ("scans", "scan pages"):
            compare(
                "selective_scan_mixed_sm80",
                *O.scan(0, CHUNK_ROWS),
                runs=PAGES if op == "scan pages" else UNEVEN[1:],
                changed=(right, wrong),
            )
        elif op in ("chunks", "pages"):
            compare(
                "delta_rule_mixed_sm80",
                *O.delta(4, CHUNK_ROWS),
                runs=PAGES if op == "pages" else UNEVEN[1:],
                changed=(right, wrong),
            )
        else:
            compare(
                op,
                *dict(
                    conv1d=lambda: O.conv(*O.CONV[0]),
                    delta_rule=lambda: O.delta(0),
                    selective_scan=lambda: O.scan(0),
                    channel_scan=lambda: O.channels(1),
                )[op](),
                runs=runs,
                changed=(right, wrong),
            )


SPILLS = [  # published shapes, and the widest that a template accepts
    ("conv1d", dict(WIDTH=8192, TAPS=4, GATE="silu", HAS_B=0)),
    ("conv1d", dict(WIDTH=10240, TAPS=4, GATE="silu", HAS_B=1)),
    ("conv1d", dict(WIDTH=2048, TAPS=3, GATE="none", HAS_B=0)),
    ("conv1d", dict(WIDTH=520, TAPS=16, GATE="silu", HAS_B=1)),
    (
        "delta_rule",
        dict(
            K_HEADS=16,
            V_HEADS=32,
            K_DIM=128,
            V_DIM=128,
            G_DIM=1,
            SCALE=0.1,
            EPS=1e-6,
            TILED=0,
            A_LOG=1,
            B_SCALE=1.0,
        ),
    ),
    (
        "delta_rule",
        dict(
            K_HEADS=32,
            V_HEADS=32,
            K_DIM=128,
            V_DIM=128,
            G_DIM=128,
            SCALE=0.1,
            EPS=1e-6,
            TILED=0,
            A_LOG=1,
            B_SCALE=1.0,
        ),
    ),
    (
        "delta_rule",
        dict(
            K_HEADS=4,
            V_HEADS=4,
            K_DIM=256,
            V_DIM=512,
            G_DIM=256,
            SCALE=0.1,
            EPS=1e-6,
            TILED=0,
            A_LOG=1,
            B_SCALE=2.0,
        ),
    ),
    (
        "delta_rule",
        dict(
            K_HEADS=4,
            V_HEADS=4,
            K_DIM=1024,
            V_DIM=512,
            G_DIM=1,
            SCALE=0.1,
            EPS=1e-6,
            TILED=0,
            A_LOG=1,
            B_SCALE=2.0,
        ),
    ),
    (
        "delta_rule_mixed_sm80",
        dict(
            K_HEADS=16,
            V_HEADS=32,
            K_DIM=128,
            V_DIM=128,
            G_DIM=1,
            SCALE=0.1,
            EPS=1e-6,
            TILED=0,
            A_LOG=1,
            B_SCALE=1.0,
        ),
    ),
    (
        "delta_rule_mixed_sm80",
        dict(
            K_HEADS=3,
            V_HEADS=6,
            K_DIM=12,
            V_DIM=20,
            G_DIM=1,
            SCALE=0.1,
            EPS=1e-6,
            TILED=1,
            A_LOG=0,
            B_SCALE=2.0,
        ),
    ),
    (
        "selective_scan",
        dict(HEADS=128, DIM=64, GROUPS=8, N_STATE=128, A_LOG=1, DT_MIN=0.001, DT_MAX=0.0),
    ),
    (
        "selective_scan",
        dict(HEADS=128, DIM=64, GROUPS=1, N_STATE=128, A_LOG=1, DT_MIN=0.0, DT_MAX=0.0),
    ),
    (
        "selective_scan",
        dict(HEADS=32, DIM=128, GROUPS=2, N_STATE=256, A_LOG=1, DT_MIN=0.0, DT_MAX=0.0),
    ),
    (
        "selective_scan",
        dict(HEADS=112, DIM=64, GROUPS=2, N_STATE=64, A_LOG=1, DT_MIN=0.001, DT_MAX=0.0),
    ),
    (
        "selective_scan",
        dict(HEADS=32, DIM=64, GROUPS=1, N_STATE=1024, A_LOG=0, DT_MIN=0.001, DT_MAX=0.1),
    ),
    (
        "selective_scan_mixed_sm80",
        dict(HEADS=128, DIM=64, GROUPS=8, N_STATE=128, A_LOG=1, DT_MIN=0.001, DT_MAX=0.0),
    ),
    (
        "selective_scan_mixed_sm80",
        dict(HEADS=48, DIM=64, GROUPS=1, N_STATE=128, A_LOG=1, DT_MIN=0.0, DT_MAX=0.0),
    ),
    (
        "selective_scan_mixed_sm80",
        dict(HEADS=32, DIM=128, GROUPS=2, N_STATE=256, A_LOG=1, DT_MIN=0.0, DT_MAX=0.0),
    ),
    (
        "selective_scan_mixed_sm80",
        dict(HEADS=6, DIM=20, GROUPS=2, N_STATE=12, A_LOG=0, DT_MIN=0.001, DT_MAX=0.1),
    ),
    ("channel_scan", dict(WIDTH=8192, N_STATE=16, A_LOG=1)),
    ("channel_scan", dict(WIDTH=1536, N_STATE=64, A_LOG=0)),
    ("channel_scan", dict(WIDTH=520, N_STATE=512, A_LOG=1)),
    ("norm_gate", dict(DIM=128, GROUPS=32, EPS=1e-6, ORDER="norm_first", GATE="silu")),
    ("norm_gate", dict(DIM=1024, GROUPS=8, EPS=1e-5, ORDER="gate_first", GATE="silu")),
    ("norm_gate", dict(DIM=8192, GROUPS=1, EPS=1e-5, ORDER="gate_first", GATE="silu")),
]


@pytest.mark.sample(6)
@pytest.mark.parametrize("op,params", SPILLS)
def test_compiles_without_spills(op, params):
    if H.nvrtc(op, params, None if EVERY else ["sm_75", "sm_90a", "sm_100a", "sm_120a"]) is None:
        pytest.skip("no libnvrtc")
