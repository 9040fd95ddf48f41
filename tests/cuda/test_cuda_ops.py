"""Kernels without a GEMM, of GPUs and CPUs, against numpy: ragged sizes, in place, grids for more
rows than there are"""

import subprocess

import numpy as np
import pytest

import cuda_harness as H
import expand as E
from cuda_weights import Weights
from test_cuda_matmul import act, close, norm
from planted import plant

if not H.REAL:  # a machine with a lent GPU has no compiler for CPU kernels
    import harness as CPU

N = 7
ARCHS = {"fast": "sm_75", "check": "sm_90a"}


def each(op, params, step, args, check, **more):
    """Two schedules on one architecture, checking mode on another"""
    for mode, seed in H.RUNS:
        check(H.build(op, ARCHS[mode], params).run(step, args, mode=mode, seed=seed, **more))


def on_processors(op, params, step, args, check):
    """Every instruction set of this CPU, divided among threads in several ways that must be
    bit-identical"""
    for target in CPU.TARGETS:
        kernel, first = CPU.build(op, target, params), None
        for parts in (1, 2, 5):
            a = []
            for x in args:
                if x is None or isinstance(x, H.alias):
                    a.append(None if x is None else a[x.index])
                    continue
                given = None if isinstance(x, H.out) else x.array if isinstance(x, H.inout) else x
                a.append(
                    CPU.aligned(x.shape)
                    if given is None
                    else CPU.aligned(
                        given.shape, np.int32 if given.dtype == np.int32 else np.float32
                    )
                )
                if given is not None:
                    a[-1][...] = given
            kernel.call(CPU.make_step(**step), a, parts)
            got = [y for y, x in zip(a, args) if isinstance(x, (H.out, H.inout))]
            check(got)
            assert first is None or all(np.array_equal(y, z) for y, z in zip(got, first)), (
                f"{target}, {parts} parts"
            )
            first = first or got


def on_the_reference(op, params, step, args, check):
    """The fp32 interpreter, which also checks the shapes of the arguments
    (tests/kernels/reference.c)"""
    ints = lambda a: np.ascontiguousarray(a, np.int32).tobytes()
    declared = [
        a
        for a in E.expand("cuda-sm_75", f"templates/cuda/{op}.cu.in", params)["arg"]
        if a["dir"] != "scratch"
    ]
    args = E.complete(args, declared)[0]
    data = (
        ints(step["pos"])
        + ints(step["tok"])
        + ints(step["out_row"])
        + ints(step.get("adapter", [-1] * len(step["pos"])))
    )
    for x in (x for x in args if not isinstance(x, H.out)):
        data += np.int64(-1 if x is None else x.size).tobytes() + (
            b"" if x is None else np.ascontiguousarray(x, np.float32).tobytes()
        )
    values = [f"{k.lower()}={v}" for k, v in (E.USUAL | params).items() if not k.startswith("HAS_")]
    r = subprocess.run(
        [str(E.tool("reference")), op, str(len(step["pos"])), str(len(step["out_row"])), *values],
        input=data,
        capture_output=True,
    )
    assert r.returncode == 0, r.stderr.decode()
    check([np.frombuffer(r.stdout, np.float32).reshape(args[-1].shape)])


def everywhere(op, params, step, args, want, exact=False, **more):
    """By the reference, on GPUs and on CPUs, against the same values: the needed rows of the first
    output"""

    def compare(got, rel):
        if exact:
            np.testing.assert_array_equal(got[0][: len(want)], want)
        else:
            close(got[0][: len(want)], want, rel=rel)

    each(op, params, H.make_step(**step), args, lambda got: compare(got, 1e-5), **more)
    if not H.REAL:
        on_processors(op, params, step, args, lambda got: compare(got, 2e-6))
        if isinstance(args[-1], H.out):
            on_the_reference(op, params, step, args, lambda got: compare(got, 2e-7))


@pytest.fixture
def x():
    x = np.random.default_rng(4).standard_normal((N, 70)).astype(np.float32) * 3
    x[0, :12] = [0, -0.0, 1e-20, -1e-20, 80, -80, 500, -500, 1, -1, 0.5, 30]
    return x


ROWS = dict(pos=[5, 0, 2, 9, 3, 4, 11], tok=[3, 0, 11, -1, 12, 5, 5], out_row=[1, 2, 6])
STEP = H.make_step(**ROWS)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -700, None)))


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "op,params,args,want",
    [
        ("add", dict(SCALE=0.5), 2, lambda x, r: 0.5 * x + r),
        ("mul", dict(), 2, lambda x, z: x * z),
        ("act", dict(ACT="silu"), 1, lambda x: x * sigmoid(x)),
        ("act", dict(ACT="gelu"), 1, lambda x: act(x, "gelu")),
        ("act", dict(ACT="gelu_tanh"), 1, lambda x: act(x, "gelu_tanh")),
        ("act", dict(ACT="gelu_quick"), 1, lambda x: x * sigmoid(1.702 * x)),
        ("glu", dict(ACT="gelu_quick"), 2, lambda g, u: g * sigmoid(1.702 * g) * u),
        ("act", dict(ACT="relu"), 1, lambda x: np.maximum(x, 0)),
        ("act", dict(ACT="relu2"), 1, lambda x: np.maximum(x, 0) ** 2),
        (
            "glu",
            dict(ACT="silu", LIMIT=2.0),
            2,
            lambda g, u: np.minimum(g, 2) * sigmoid(np.minimum(g, 2)) * np.clip(u, -2, 2),
        ),
        (
            "glu",
            dict(ACT="swiglu_oai", LIMIT=7.0),
            2,
            lambda g, u: np.minimum(g, 7)
            * sigmoid(1.702 * np.minimum(g, 7))
            * (np.clip(u, -7, 7) + 1),
        ),
        ("glu", dict(ACT="relu2"), 2, lambda g, u: np.maximum(g, 0) ** 2 * u),
        ("glu", dict(ACT="silu"), 2, lambda g, u: g * sigmoid(g) * u),
        ("glu", dict(ACT="gelu_tanh"), 2, lambda g, u: act(g, "gelu_tanh") * u),
        (
            "glu",
            dict(ACT="silu_limit", LIMIT=0.5),
            2,
            lambda g, u: np.minimum(g * sigmoid(g), 0.5) * np.clip(u, -0.5, 0.5),
        ),
        ("gate_mul", dict(GROUPS=1, GATE="sigmoid"), 2, lambda x, s: x * sigmoid(s)),
        ("gate_mul", dict(GROUPS=1, GATE="softplus"), 2, lambda x, s: x * np.logaddexp(0, s)),
    ],
)
def test_elementwise(x, op, params, args, want):
    p = dict(WIDTH=70, **params)
    other = (
        np.random.default_rng(5)
        .standard_normal((N, 70 if op != "gate_mul" else 1))
        .astype(np.float32)
    )
    if op == "gate_mul":
        other[:4, 0] = [80, -80, 500, -500]
    given = [x, other][:args]
    w = want(*[g.astype(np.float64) for g in given])
    everywhere(op, p, ROWS, given + [H.out((N, 70))], w, bucket=20)
    everywhere(op, p, ROWS, [H.inout(x)] + given[1:] + [H.alias(0)], w)
    if op in ("add", "glu", "mul"):
        everywhere(op, p, ROWS, [x, H.inout(other), H.alias(1)], w)


@pytest.mark.sample(2)
@pytest.mark.parametrize("cols,rank,count", [(70, 3, 1), (64, 4, 3), (5, 16, 2)])
def test_adapters(cols, rank, count):
    """Rows of sequences with one adapter each (four of the same slot among them) and without; other
    slots are not read."""
    r, slots, width = np.random.default_rng(8), 3, 37
    step = dict(ROWS, adapter=[1, 1, 1, 1, -1, 2, 1])
    x, y = (
        r.standard_normal((N, cols)).astype(np.float32),
        r.standard_normal((N, width)).astype(np.float32),
    )
    a, b = (
        r.standard_normal((slots, n)).astype(np.float32)
        for n in (count * rank * cols, rank * width)
    )
    a[0] = b[0] = np.nan
    low = np.array(
        [
            a[s].reshape(-1, cols).astype(np.float64) @ x[t] if s >= 0 else np.zeros(count * rank)
            for t, s in enumerate(step["adapter"])
        ]
    )
    everywhere(
        "lora_down",
        dict(COLS=cols, RANK=rank, COUNT=count, SLOTS=slots),
        step,
        [x, a, H.out((N, count * rank))],
        low,
        bucket=20,
    )
    low, first = low.astype(np.float32), count - 1
    part = low[:, first * rank :].astype(np.float64)
    want = np.array(
        [
            y[t] + (part[t] @ b[s].reshape(rank, width) if s >= 0 else 0)
            for t, s in enumerate(step["adapter"])
        ]
    )
    p = dict(ROWS=width, RANK=rank, COUNT=count, FIRST=first, SLOTS=slots)
    everywhere("lora_up", p, step, [y, low, b, H.out((N, width))], want, bucket=20)
    everywhere("lora_up", p, step, [H.inout(y), low, b, H.alias(0)], want)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "heads,width,cols,apart,rank", [(3, 20, 12, 12, 4), (2, 37, 33, 0, 3), (1, 5, 5, 7, 16)]
)
def test_adapters_of_heads(heads, width, cols, apart, rank):
    """Factors per head or shared by all heads; elements after a head's columns do not change."""
    r, slots = np.random.default_rng(9), 3
    step = dict(ROWS, adapter=[1, 1, 1, 1, -1, 2, 1])
    wide = cols + (heads - 1) * apart
    x = r.standard_normal((N, heads, width)).astype(np.float32)
    a = r.standard_normal((slots, rank, wide)).astype(np.float32)
    a[0] = np.nan
    of = [
        [
            a[s][:, h * apart : h * apart + cols].astype(np.float64)
            if s >= 0
            else np.zeros((rank, cols))
            for h in range(heads)
        ]
        for s in step["adapter"]
    ]
    low = np.array([[of[t][h] @ x[t, h, :cols] for h in range(heads)] for t in range(N)])
    p = dict(HEADS=heads, WIDTH=width, COLS=cols, HEAD_STRIDE=apart, RANK=rank, SLOTS=slots)
    everywhere("lora_heads_down", p, step, [x, a, H.out((N, heads, rank))], low, bucket=20)
    low = low.astype(np.float32)
    want = x.astype(np.float64)
    for t in range(N):
        for h in range(heads):
            want[t, h, :cols] += low[t, h].astype(np.float64) @ of[t][h]
    everywhere("lora_heads_up", p, step, [x, low, a, H.out((N, heads, width))], want, bucket=20)
    everywhere("lora_heads_up", p, step, [H.inout(x), low, a, H.alias(0)], want)


def chosen(rng, n_experts, top_k, elsewhere):
    """Experts of each row, -1 for those of other ranks, as floats, which the harness passes on
    unchanged"""
    ids = np.array([rng.permutation(n_experts + elsewhere)[:top_k] for _ in range(N)], np.int32)
    ids[ids >= n_experts] = -1
    return ids, ids.view(np.float32)


def experts_adapted(rng, cols, rows, n_experts, top_k, rank, count, each, slots, elsewhere, step):
    """Arguments and results of the three ops of experts: other slots and experts are not read."""
    ids, as_floats = chosen(rng, n_experts, top_k, elsewhere)
    a, b, last = (
        rng.standard_normal((slots, n_experts, *s)).astype(np.float32)
        for s in ((count, rank, cols), (count, rank, rows), (rank, rows))
    )
    read = {(s, e) for t, s in enumerate(step["adapter"]) for e in ids[t] if s >= 0 and e >= 0}
    for s in range(slots):
        for e in range(n_experts):
            if (s, e) not in read:
                a[s, e] = b[s, e] = last[s, e] = np.nan
    x = (
        rng.standard_normal((N, top_k, cols) if each else (N, cols)).astype(np.float32) / 8
    )  # keeps rounding errors of sums below the tolerance
    y, weight = (
        rng.standard_normal((N, rows)).astype(np.float32),
        rng.random((N, top_k)).astype(np.float32),
    )
    low, up, out = (
        np.zeros((N, top_k, count, rank)),
        np.zeros((N, top_k, count, rows)),
        y.astype(np.float64),
    )
    for t, s in enumerate(step["adapter"]):
        for k, e in enumerate(ids[t]):
            if s >= 0 and e >= 0:
                low[t, k] = a[s, e].astype(np.float64) @ (x[t, k] if each else x[t])
    low32 = low.astype(np.float32)
    for t, s in enumerate(step["adapter"]):
        for k, e in enumerate(ids[t]):
            if s >= 0 and e >= 0:
                up[t, k] = np.einsum(
                    "cr,cri->ci", low32[t, k].astype(np.float64), b[s, e].astype(np.float64)
                )
                out[t] += weight[t, k].astype(np.float64) * (
                    low32[t, k, 0].astype(np.float64) @ last[s, e]
                )
    p = dict(N_EXPERTS=n_experts, N_REMOTE_EXPERTS=elsewhere, TOP_K=top_k, RANK=rank, SLOTS=slots)
    return [
        (
            "lora_experts_down",
            dict(p, COLS=cols, PER_GROUP=int(each), COUNT=count),
            [x, as_floats, a],
            low.reshape(N, -1),
        ),
        (
            "lora_experts_up",
            dict(p, ROWS=rows, COUNT=count),
            [low32.reshape(N, -1), as_floats, b],
            up.reshape(N, -1),
        ),
        (
            "lora_experts_add",
            dict(p, ROWS=rows),
            [y, np.ascontiguousarray(low32[:, :, 0]).reshape(N, -1), as_floats, weight, last],
            out,
        ),
    ]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "cols,rows,n_experts,top_k,rank,count,each,elsewhere",
    [
        (70, 37, 5, 2, 3, 2, False, 0),
        (37, 70, 5, 2, 3, 1, True, 0),
        (64, 5, 3, 3, 4, 2, False, 4),
        (5, 64, 7, 1, 16, 1, True, 1),
    ],
)
def test_adapters_of_experts(cols, rows, n_experts, top_k, rank, count, each, elsewhere):
    """Rows of sequences with an adapter each and without, with experts on this and on other ranks;
    the last op also in place."""
    step = dict(ROWS, adapter=[1, 1, 1, 1, -1, 2, 1])
    for op, p, args, want in experts_adapted(
        np.random.default_rng(12),
        cols,
        rows,
        n_experts,
        top_k,
        rank,
        count,
        each,
        3,
        elsewhere,
        step,
    ):
        everywhere(op, p, step, args + [H.out(want.shape)], want, bucket=20)
        if op == "lora_experts_add":
            everywhere(op, p, step, [H.inout(args[0]), *args[1:], H.alias(0)], want)


EXPERTS_PLANTED = {
    "another slot's experts": (
        "down",
        "(long long)slot * n_experts + id[i]",
        "(long long)(slot > 0) * n_experts + id[i]",
    ),
    "the first choice's expert": ("down", "n_experts + id[i];", "n_experts + id[i - i % top_k];"),
    "the row of another choice": (
        "down",
        "(1 ? i : i / TOP_K) * COLS",
        "(1 ? i / TOP_K * TOP_K : i / TOP_K) * COLS",
    ),
    "up has gate's factor": ("up", "(place * COUNT + m % COUNT)", "(place * COUNT)"),
    "a rank too many": ("up", "k < RANK", "k <= RANK"),
    "a weight of another choice": ("add", "ARG_weight[k]", "ARG_weight[t * TOP_K]"),
    "slot 0 is none": ("add", "lora_slot(p.s, t) < 0", "lora_slot(p.s, t) < 1"),
    "a choice too few": ("add", "k < (t + 1) * TOP_K", "k < (t + 1) * TOP_K - 1"),
}


@pytest.mark.findings
@pytest.mark.sample(3)
@pytest.mark.parametrize("what", EXPERTS_PLANTED)
def test_adapters_of_experts_planted(what):
    op, right, wrong = EXPERTS_PLANTED[what]
    step = dict(ROWS, adapter=[2, 1, 0, 1, -1, 2, 1])
    op, p, args, want = {
        o[0][13:]: o
        for o in experts_adapted(
            np.random.default_rng(13),
            40,
            37,
            4,
            3,
            3,
            2 - (op == "down"),
            op == "down",
            3,
            2 * (op == "up"),
            step,
        )
    }[op]
    k, args = H.build(op, ARCHS["check"], p), args + [H.out(want.shape)]
    close(k.run(H.make_step(**step), args, mode="check", seed=1)[0], want, rel=1e-5)
    k.text = plant(k.text, right, wrong)
    with pytest.raises((H.Finding, AssertionError)):
        close(k.run(H.make_step(**step), args, mode="check", seed=1)[0], want, rel=1e-5)


@pytest.mark.parametrize(
    "op", ["gaussian_topk", "match_rms", "stream_mix", "stream_correct", "stream_add"]
)
def test_streams(op):
    W, G = 70, 3
    rng = np.random.default_rng(11)
    x, a, z, c, m = (
        rng.standard_normal(s).astype(np.float32)
        for s in ((N, G, W), (N, W), (N, W), (N, G), (N, G, G))
    )
    x64 = x.astype(np.float64)
    if op == "gaussian_topk":
        cut = a.mean(-1, keepdims=True, dtype=np.float64) + 0.7 * a.std(
            -1, keepdims=True, dtype=np.float64
        )
        everywhere(
            op, dict(WIDTH=W, SCALE=0.7), ROWS, [a, H.out((N, W))], np.maximum(a - cut, 0), bucket=9
        )
    elif op == "match_rms":
        a[2] = 0
        own, want = (np.square(v, dtype=np.float64).mean(-1, keepdims=True) for v in (a, z))
        everywhere(
            op,
            dict(WIDTH=W, EPS=1e-5),
            ROWS,
            [a, z, H.out((N, W))],
            a * np.sqrt(want / np.maximum(own, 1e-5)),
            bucket=9,
        )
    elif op == "stream_mix":
        everywhere(
            op,
            dict(WIDTH=W, GROUPS=G),
            ROWS,
            [x, m, H.out((N, G, W))],
            x64 + np.einsum("tij,tjw->tiw", m, x64),
            bucket=20,
        )
    elif op == "stream_correct":
        everywhere(
            op,
            dict(WIDTH=W, GROUPS=G, FIRST=1),
            ROWS,
            [x, a, c, H.out((N, G, W))],
            x64 + (1 + c)[..., None] * (a - x64[:, 1])[:, None],
            bucket=20,
        )
    else:
        want = x64 + np.array([0, 1, 1])[:, None] * z[:, None]
        everywhere(
            op, dict(WIDTH=W, GROUPS=G, FIRST=1), ROWS, [x, z, H.out((N, G, W))], want, bucket=20
        )
        everywhere(op, dict(WIDTH=W, GROUPS=G, FIRST=1), ROWS, [H.inout(x), z, H.alias(0)], want)


PLANTED = {
    "another slot": ("lora_down", "(slot * (long long)N", "((slot > 0) * (long long)N"),
    "a row too many": ("lora_down", "i < n; i += warps", "i <= n; i += warps"),
    "rows without an adapter": ("lora_down", "if (slot >= 0) {", "if (slot >= -1) {"),
    "a sum of one lane": ("lora_down", "warp_sum(sum)", "sum"),
    "a step's place for a sequence's number": (
        "lora_up",
        "s.adapter[s.seq[s.seq_of[t]]]",
        "s.adapter[s.seq_of[t]]",
    ),
    "a rank too many": ("lora_up", "k < RANK", "k <= RANK"),
    "the first matrix' part": ("lora_up", "+ 1 * RANK, *b", "+ 0 * RANK, *b"),
}


@pytest.mark.findings
@pytest.mark.sample(3)
@pytest.mark.parametrize("what", PLANTED)
def test_adapters_planted(what):
    op, right, wrong = PLANTED[what]
    r, cols, rank, slots, width = np.random.default_rng(8), 40, 3, 3, 37
    step = H.make_step(ROWS["pos"], adapter=[-1, 2, 0, 2, -1, 2, 2], seq=[6, 5, 4, 3, 2, 1, 0])
    slot = [[-1, 2, 0, 2, -1, 2, 2][q] for q in (6, 5, 4, 3, 2, 1, 0)]
    x, y = (
        r.standard_normal((N, cols)).astype(np.float32),
        r.standard_normal((N, width)).astype(np.float32),
    )
    a, b = (
        r.standard_normal((slots, n)).astype(np.float32) for n in (2 * rank * cols, rank * width)
    )
    low = np.array(
        [
            a[s].reshape(-1, cols) @ x[t] if s >= 0 else np.zeros(2 * rank, np.float32)
            for t, s in enumerate(slot)
        ]
    )
    if op == "lora_down":
        k, args, want = (
            H.build(op, ARCHS["check"], dict(COLS=cols, RANK=rank, COUNT=2, SLOTS=slots)),
            [x, a, H.out((N, 2 * rank))],
            low,
        )
    else:
        k, args = (
            H.build(op, ARCHS["check"], dict(ROWS=width, RANK=rank, COUNT=2, FIRST=1, SLOTS=slots)),
            [y, low, b, H.out((N, width))],
        )
        want = np.array(
            [
                y[t] + (low[t, rank:] @ b[s].reshape(rank, width) if s >= 0 else 0)
                for t, s in enumerate(slot)
            ]
        )
    close(k.run(step, args, mode="check", seed=1)[0], want, rel=1e-5)
    k.text = plant(k.text, right, wrong)
    with pytest.raises((H.Finding, AssertionError)):
        close(k.run(step, args, mode="check", seed=1)[0], want, rel=1e-5)


def test_xielu(x):
    """Also near 0, where a difference loses digits"""
    x[1, :40] = np.linspace(-1.5, 0.1, 40)
    p = np.array([0.4, -0.7], np.float32)
    z, (a, b) = x.astype(np.float64), np.log1p(np.exp(p.astype(np.float64))) + [0, 0.5]
    want = np.where(z > 0, a * z * z + z / 2, (np.expm1(np.minimum(z, -1e-6)) - z) * b + z / 2)
    everywhere(
        "act", dict(WIDTH=70, ACT="xielu", HAS_P=1), ROWS, [x, p, H.out((N, 70))], want, bucket=9
    )


def test_gains(x):
    w, id = (
        np.array([-1.7], np.float32),
        np.random.default_rng(6).integers(0, 5, (N, 3)).astype(np.int32),
    )
    for given in [H.inout(x), H.alias(0)], [x, H.out((N, 70))]:
        everywhere(
            "scale_cols",
            dict(WIDTH=70, SCALE=0.6, FIRST=0, COUNT=70, HAS_W=1),
            ROWS,
            [given[0], w, given[1]],
            0.6 * -1.7 * x.astype(np.float64),
            bucket=9,
        )
        everywhere(
            "scale_cols",
            dict(WIDTH=70, SCALE=0.6, FIRST=0, COUNT=70, HAS_W=0),
            ROWS,
            [given[0], None, given[1]],
            0.6 * x.astype(np.float64),
        )
        part = (np.arange(70) >= 9) & (np.arange(70) < 46)
        everywhere(
            "scale_cols",
            dict(WIDTH=70, SCALE=0.6, FIRST=9, COUNT=37, HAS_W=0),
            ROWS,
            [given[0], None, given[1]],
            np.where(part, 0.6 * x.astype(np.float64), x),
        )
    each_one = np.array([0.5, -2, 1, 3, 0.1], np.float32)
    weight = np.ascontiguousarray(x[:, :3])
    params, want = dict(N_EXPERTS=5, TOP_K=3), weight * each_one[id]
    for given in [H.inout(weight), H.alias(1)], [weight, H.out((N, 3))]:
        each(
            "expert_gain",
            params,
            STEP,
            [id, given[0], each_one, given[1]],
            lambda got: np.testing.assert_array_equal(got[0], want),
        )
    for target in () if H.REAL else CPU.TARGETS:
        chosen, y = CPU.aligned((N, 3)).view(np.int32), CPU.aligned((N, 3))
        chosen[...] = id
        CPU.build("expert_gain", target, params).call(
            CPU.make_step(**ROWS), [chosen, weight, each_one, y], 2
        )
        np.testing.assert_array_equal(y, want)


def test_pos_scale(x):
    want = x.astype(np.float64) * (1 + 0.3 * np.log1p((np.array(ROWS["pos"]) + 1) // 4))[:, None]
    for args in [H.inout(x), H.alias(0)], [x, H.out((N, 70))]:
        everywhere(
            "pos_scale", dict(WIDTH=70, SCALE=0.3, OFFSET=1, BASE=4), ROWS, args, want, bucket=9
        )


def test_cap_slice_select(x):
    x3, picked = x[:3], x[[1, 2, 6]]
    everywhere(
        "softcap",
        dict(WIDTH=70, SCALE=0.8, SOFTCAP=2.5, ROWS_OF="n_out"),
        ROWS,
        [x3, H.out((3, 70))],
        2.5 * np.tanh(0.8 * x3.astype(np.float64) / 2.5),
        bucket=9,
    )
    everywhere(
        "concat",
        dict(WIDTH=70, COUNT=21),
        ROWS,
        [x, np.ascontiguousarray(x[:, 9:30]), H.out((N, 91))],
        np.concatenate([x, x[:, 9:30]], 1),
        exact=True,
        bucket=9,
    )
    everywhere(
        "slice",
        dict(WIDTH=70, FIRST=3, COUNT=21),
        ROWS,
        [x, H.out((N, 21))],
        x[:, 3:24],
        exact=True,
        bucket=9,
    )
    everywhere("gather_rows", dict(WIDTH=70), ROWS, [x, H.out((3, 70))], picked, exact=True)
    everywhere("gather_rows", dict(WIDTH=70), ROWS, [H.inout(x), H.alias(0)], picked, exact=True)


def test_rows_of_images():
    rng = np.random.default_rng(7)
    x, rows = (rng.standard_normal((6, 70)).astype(np.float32) for _ in range(2))
    step = dict(pos=list(range(6)), tok=[0] * 6, out_row=[2, 5])
    for mean, y in (0, x.reshape(2, 210)), (1, x.reshape(2, 3, 70).mean(1)):
        everywhere(
            "merge_rows",
            dict(WIDTH=70, COUNT=3, MEAN=mean),
            step,
            [x, H.out(y.shape)],
            y,
            exact=not mean,
        )
    marks = [0, 3, 1, 0, 0, 1]
    y = np.where(np.array(marks)[:, None] > 0, rows, x)
    step = dict(pos=list(range(6)), tok=[0] * 6, pos2=marks, out_row=[5])
    same = lambda got: np.testing.assert_array_equal(got[0][:6], y)
    for args in [x, rows, H.out((6, 70))], [H.inout(x), rows, H.alias(0)]:
        each("scatter_rows", dict(WIDTH=70), H.make_step(**step), args, same)
        if not H.REAL:
            on_processors("scatter_rows", dict(WIDTH=70), step, args, same)


@pytest.mark.parametrize(
    "kind,order,factor",
    [("none", True, False), ("rms", True, True), ("layer", False, True), ("none", False, False)],
)
def test_arrange(kind, order, factor):
    """An order that repeats and omits columns, and indices that are not columns"""
    rng, width = np.random.default_rng(3), 1030
    x, nw, nb, f = (
        rng.standard_normal(s).astype(np.float32) for s in ((N, width), width, width, width)
    )
    o = rng.integers(0, width, width).astype(np.float32)
    o[:4] = [-5, np.nan, 1e30, width]
    at = np.arange(width)
    if order:
        at = np.array([0, 0, width - 1, width - 1, *o[4:].astype(int)])
    want = (norm(x, kind, nw, nb if kind == "layer" else None, eps=1e-6) if kind != "none" else x)[
        :, at
    ] * (f if factor else 1)
    has = dict(
        HAS_NW=int(kind != "none"),
        HAS_NB=int(kind == "layer"),
        HAS_ORDER=int(order),
        HAS_FACTOR=int(factor),
    )
    everywhere(
        "permute_cols",
        dict(WIDTH=width, NORM=kind, EPS=1e-6, PLUS_ONE=0, **has),
        ROWS,
        [
            x,
            nw if kind != "none" else None,
            nb if kind == "layer" else None,
            o if order else None,
            f if factor else None,
            H.out((N, width)),
        ],
        want,
        bucket=9,
    )


@pytest.mark.parametrize("dim,groups,plus", [(70, 1, 0), (14, 5, 1), (1025, 1, 0)])
def test_rmsnorm(dim, groups, plus):
    rng = np.random.default_rng(8)
    x, w = (
        rng.standard_normal((N, groups * dim)).astype(np.float32),
        rng.standard_normal(dim).astype(np.float32),
    )
    want = norm(x.reshape(N, groups, dim), "rms", w, eps=1e-6, plus=plus).reshape(N, -1)
    p = dict(DIM=dim, GROUPS=groups, EPS=1e-6, PLUS_ONE=plus)
    everywhere("rmsnorm", p, ROWS, [x, w, H.out(x.shape)], want, bucket=9)
    if groups == 1:
        each(
            "rmsnorm",
            dict(p, ROWS_OF="n_out"),
            STEP,
            [x[:3], w, H.out((3, dim))],
            lambda got: close(got[0], want[:3], rel=1e-5),
            bucket=9,
        )
    else:
        everywhere("rmsnorm", p, ROWS, [H.inout(x), w, H.alias(0)], want)


@pytest.mark.parametrize("bias", [0, 1])
def test_layernorm(bias):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((N, 70)).astype(np.float32) * 3 + 20
    w, b = (
        rng.standard_normal(70).astype(np.float32),
        rng.standard_normal(70).astype(np.float32) if bias else None,
    )
    want = norm(x, "layer", w, b)
    each(
        "layernorm",
        dict(DIM=70, GROUPS=1, EPS=1e-5),
        STEP,
        [x, w, b, H.out(x.shape)],
        lambda got: close(got[0], want, rel=2e-5),
        bucket=9,
    )
    each(
        "layernorm",
        dict(DIM=70, GROUPS=1, EPS=1e-5, ROWS_OF="n_out"),
        STEP,
        [x[:3], w, b, H.out((3, 70))],
        lambda got: close(got[0], want[:3], rel=2e-5),
    )


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "own,bias,dim,groups", [(0, 1, 14, 5), (1, 0, 14, 5), (1, 1, 45, 3), (0, 0, 33, 2)]
)
def test_layernorm_of_groups(own, bias, dim, groups):
    """Heads, with shared weights or weights per head"""
    rng = np.random.default_rng(own * 2 + bias)
    x = rng.standard_normal((N, groups, dim)).astype(np.float32) * 3 + 5
    w, b = (rng.standard_normal((groups, dim) if own else dim).astype(np.float32) for _ in range(2))
    want = norm(x, "layer", w, b if bias else None)
    flat = lambda v: v.reshape(N, groups * dim)
    everywhere(
        "layernorm",
        dict(DIM=dim, GROUPS=groups, PER_GROUP=own, EPS=1e-5),
        ROWS,
        [flat(x), w.ravel(), b.ravel() if bias else None, H.out((N, groups * dim))],
        flat(want),
    )


def test_clip(x):
    want = np.clip(x, -np.float32(0.7), np.float32(0.7))
    everywhere(
        "clamp", dict(WIDTH=70, LIMIT=0.7), ROWS, [x, H.out((N, 70))], want, exact=True, bucket=9
    )
    everywhere("clamp", dict(WIDTH=70, LIMIT=0.7), ROWS, [H.inout(x), H.alias(0)], want, exact=True)


def test_arrange_experts(x):
    rng = np.random.default_rng(8)
    id = np.array([rng.permutation(5)[:3] for _ in range(N)], np.int32)
    order = np.stack([rng.permutation(70) for _ in range(5)]).astype(np.float32)
    order[4, :3] = -1, 70, np.nan  # not a column of this row: the first, the last, the first
    at = np.nan_to_num(order, nan=0).clip(0, 69).astype(int)
    want = np.stack([np.concatenate([x[t][at[e]] for e in id[t]]) for t in range(N)])

    def check(got):
        np.testing.assert_array_equal(got[0], want)

    params = dict(N_EXPERTS=5, TOP_K=3, WIDTH=70)
    each("permute_expert_cols", params, STEP, [x, id, order, H.out((N, 210))], check, bucket=9)
    if not H.REAL:
        on_processors("permute_expert_cols", params, ROWS, [x, id, order, H.out((N, 210))], check)


def test_expert_input(x):
    w = np.random.default_rng(9).standard_normal((N, 1)).astype(np.float32)

    def check(got):
        assert np.array_equal(got[0], x * w) and (got[1] == 1).all()

    each(
        "expert_input",
        dict(HIDDEN=70),
        STEP,
        [x, w, H.out((N, 70)), H.out((N, 1))],
        check,
        bucket=9,
    )
    if not H.REAL:
        on_processors(
            "expert_input", dict(HIDDEN=70), ROWS, [x, w, H.out((N, 70)), H.out((N, 1))], check
        )


@pytest.mark.sample(6)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q4_1", "q5_0", "q8_0", "q4_k", "q6_k"])
def test_embed(dtype):
    cols = 256 if dtype in H.BLOCK else 75
    w = Weights(dtype, 12, cols)
    table = np.vstack([w.value, np.zeros((2, cols), np.float32)])
    p = dict(W_DTYPE=dtype, W_ROWS=12, HIDDEN=cols, SCALE=1.5, OFFSET=2)
    want = 1.5 * table[[3, 0, 11, 12, 12, 5, 5]]
    each(
        "embed",
        p,
        STEP,
        [w.packed, H.out((N, cols))],
        lambda got: close(got[0], want, rel=1e-6),
        bucket=9,
    )
    x = np.ones((N, cols), np.float32)
    want2 = 1 + table[[7, 2, 4, 11, 5, 6, 12]]
    if dtype in ("bf16", "q4_1"):
        each(
            "embed_pos",
            p,
            STEP,
            [x, w.packed, H.out((N, cols))],
            lambda got: close(got[0], want2, rel=1e-6),
        )
        each(
            "embed_type",
            dict(p, TYPES=12),
            H.make_step(list(range(N)), pos2=[1, 0, 0, 1, 11, 12, 0]),
            [x, w.packed, H.out((N, cols))],
            lambda got: close(got[0], 1 + table[[1, 0, 0, 1, 11, 12, 0]], rel=1e-6),
        )


def test_real_compiler():
    p = dict(
        WIDTH=4096,
        SCALE=1.0,
        ACT="gelu",
        GATE="softplus",
        SOFTCAP=30.0,
        FIRST=1,
        COUNT=77,
        DIM=4096,
        GROUPS=1,
        EPS=1e-5,
        PLUS_ONE=0,
        W_DTYPE="q5_k",
        W_ROWS=32000,
        HIDDEN=4096,
        OFFSET=0,
        TYPES=2,
        MEAN=0,
    )
    for op in "add act glu gate_mul softcap concat slice gather_rows merge_rows scatter_rows rmsnorm layernorm embed embed_pos embed_type".split():
        if H.nvrtc(op, p, ["sm_75", "sm_90a"] if op != "act" else H.ARCHS) is None:
            pytest.skip("no libnvrtc")
