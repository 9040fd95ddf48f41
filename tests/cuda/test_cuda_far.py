"""Elements beyond 2^31 and bytes beyond 2^32 of a tensor: rows of weights, experts, adapter slots,
recurrent states and pools. Pages before them, which nothing reads, take no memory. For pools of
attention see test_a_large_pool in the tests of the kernels."""

import cuda_harness as H
import numpy as np
import pytest

import state_oracle as O
import test_cuda_index as I
import test_cuda_mla as M
import test_cuda_state as S
from cuda_weights import Weights
from test_gemm import rounded
from test_moe_fused import Experts

FAR = 9 << 30  # bytes


def before(row_bytes, row_elements):
    """Return the number of rows after which an offset exceeds 31 bits in elements and 32 bits in
    bytes"""
    return max(-(-(1 << 32) // row_bytes), -(-(1 << 31) // row_elements)) + 3


@pytest.mark.parametrize("op,dtype", [("embed", "bf16"), ("embed", "q4_k"), ("embed_pos", "q8_0")])
def test_rows_of_a_table(op, dtype):
    w = Weights(dtype, 5, 1024)
    first = before(w.packed[0].nbytes, 1024)
    ids = np.array([4, 0, 3], np.int32) + first
    k = H.build(
        op, "sm_90a", dict(W_DTYPE=dtype, W_ROWS=first + 5, HIDDEN=1024, SCALE=1.0, OFFSET=0)
    )
    table, x = H.far(w.packed, first * w.packed[0].nbytes), np.ones((3, 1024), np.float32)
    args = [table, H.out((3, 1024))] if op == "embed" else [x, table, H.out((3, 1024))]
    y = k.run(H.make_step(list(ids) if op == "embed_pos" else [0, 0, 0], tok=ids), args)[-1]
    assert np.abs(y - w.value[ids - first] - (op == "embed_pos")).max() < 1e-6


def only_last(k, blocks):
    """Lets only the last CTAs of the GEMM's launch run; the others, which have earlier rows, return
    at once."""
    name = min((x["fn"] for x in k.launches), key=len)  # others have a suffix
    head = f"{name}(const llmc_call p"
    at = k.text.index("{", k.text.index(head))
    k.text = (
        k.text[: at + 1]
        + f"\n\tif ((int)blockIdx.x < (int)gridDim.x - {blocks})\n\t\treturn;"
        + k.text[at + 1 :]
    )


@pytest.mark.parametrize(
    "template,arch,dtype,n,sms,last",
    [
        ("matmul_decode", "sm_90a", "bf16", 1, 4096, 4),
        ("matmul_decode", "sm_90a", "q8_0", 3, 4096, 4),
        ("matmul_mixed", "sm_80", "bf16", 10, 4200, 300),
        ("matmul_mixed", "sm_90a", "bf16", 10, 4200, 300),
    ],
)
def test_rows_of_a_matmul(template, arch, dtype, n, sms, last):
    """The last rows of a matrix: earlier rows are zeros, and CTAs without any of the last rows do
    nothing."""
    H.only_emulated()
    cols = 4096 if dtype == "bf16" else 8192
    w = Weights(dtype, 64, cols, scale=cols**-0.5)
    size = w.packed[0].nbytes
    rows = before(size, cols) + 64
    x = np.random.default_rng(1).standard_normal((n, cols)).astype(np.float32)
    k = H.build(template, arch, dict(ROWS=rows, COLS=cols, W_DTYPE=dtype, DETERMINISTIC=1))
    only_last(k, last)
    y = k.run(
        H.make_step([0] * n),
        [x, H.far(w.packed, (rows - 64) * size), None, H.inout(np.zeros((n, rows), np.float32))],
        sms=sms,
        repeat=1,
    )[-1]
    want = (rounded(x, dtype) if "mixed" in template else x.astype(np.float64)) @ w.value.T.astype(
        np.float64
    )
    assert np.abs(y[:, -64:] - want).max() < 1e-3 * np.abs(want).max()


@pytest.mark.parametrize(
    "phase,arch,dtype",
    [
        ("_decode", "sm_90a", "bf16"),
        ("_mixed", "sm_80", "bf16"),
        ("_mixed", "sm_90a", "bf16"),
        ("_mixed", "sm_90a", "q8_0"),
    ],
)
def test_experts(phase, arch, dtype):
    c = Experts(3, 2, 1024, 1024, 0, (dtype,) * 4, before=(1 << 11) + 3)
    rows = 3 if phase == "_decode" else 9
    c.choose(rows)
    c.glu(H.build("norm_moe_glu" + phase, arch, c.glu_params), rows, phase == "_mixed")
    c.down_add(
        H.build("moe_down_add" + phase, arch, dict(c.down_params, HAS_R=1)), rows, phase == "_mixed"
    )


def test_experts_portable():
    """The grid of the portable kernels has one CTA per group of rows of all experts: rows are long
    here, so there are few."""
    c = Experts(3, 2, 16384, 64, 0, ("f16",) * 4, kind="none", adapted=True, before=(1 << 11) + 3)
    c.choose(3)
    c.glu(H.build("norm_moe_glu", "sm_75", c.glu_params), 3, False)
    c = Experts(3, 2, 64, 16384, 0, ("f16",) * 4, before=(1 << 11) + 3)
    c.choose(3)
    c.down_add(H.build("moe_down_add", "sm_75", dict(c.down_params, HAS_R=1)), 3, False)


def test_slots_of_adapters():
    rng, cols, rows, rank, n, experts = np.random.default_rng(2), 512, 512, 16, 3, 4
    x, y, low = (rng.standard_normal((n, w)).astype(np.float32) for w in (cols, rows, rank))
    a, b = (
        rng.standard_normal((2, rank, cols)).astype(np.float32),
        rng.standard_normal((2, rank, rows)).astype(np.float32),
    )

    def run(op, params, args, factor, out):
        """factor: of the last two slots"""
        each = factor[0].nbytes
        slots = before(each, each // 4) + 2
        step = H.make_step([3] * n, adapter=[slots - 1, -1, slots - 2])
        args = [H.far(factor, (slots - 2) * each) if v is factor else v for v in args]
        return H.build(op, "sm_90a", dict(params, SLOTS=slots)).run(step, [*args, H.out(out)])[-1]

    def close(got, want):
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()

    own = [1, None, 0]
    zero = lambda f: np.array(
        [f(t, s) if s is not None else np.zeros_like(f(t, 0)) for t, s in enumerate(own)],
        np.float64,
    )
    close(
        run("lora_down", dict(COLS=cols, RANK=rank, COUNT=1), [x, a], a, (n, rank)),
        zero(lambda t, s: a[s].astype(np.float64) @ x[t]),
    )
    close(
        run("lora_up", dict(ROWS=rows, RANK=rank, COUNT=1, FIRST=0), [y, low, b], b, (n, rows)),
        y + zero(lambda t, s: low[t].astype(np.float64) @ b[s]),
    )
    e, weight = np.array([[3], [1], [0]], np.int32), rng.random((n, 1)).astype(np.float32)
    a, b = (
        rng.standard_normal((2, experts, rank, cols)).astype(np.float32),
        rng.standard_normal((2, experts, rank, rows)).astype(np.float32),
    )
    p = dict(N_EXPERTS=experts, N_REMOTE_EXPERTS=0, TOP_K=1, RANK=rank)
    close(
        run("lora_experts_down", dict(p, COLS=cols, PER_GROUP=0, COUNT=1), [x, e, a], a, (n, rank)),
        zero(lambda t, s: a[s, e[t, 0]].astype(np.float64) @ x[t]),
    )
    up = zero(lambda t, s: low[t].astype(np.float64) @ b[s, e[t, 0]])
    close(run("lora_experts_up", dict(p, ROWS=rows, COUNT=1), [low, e, b], b, (n, rows)), up)
    close(
        run("lora_experts_add", dict(p, ROWS=rows), [y, low, e, weight, b], b, (n, rows)),
        y + weight * up,
    )


@pytest.mark.parametrize(
    "op,case",
    [
        ("conv1d", O.conv(*O.CONV[0])),
        ("delta_rule", O.delta(1)),
        ("delta_rule_mixed_sm80", O.delta(1)),
        ("selective_scan", O.scan(5)),
        ("selective_scan_mixed_sm80", O.scan(5)),
        ("channel_scan", O.channels(0)),
    ],
    ids=lambda v: v if isinstance(v, str) else "far",
)
def test_states(op, case):
    """Recurrent states of sequences with large indices: index of a sequence times the bytes of a
    state"""
    size = int(np.prod(case[3]))
    S.compare(
        op,
        *case,
        runs=[("fast", "sm_90a", 0, [0, 13, 40])],
        before=before(4 * size, size),
        same=False,
    )


def test_keys_of_an_indexer():
    c = I.Indexer([700, 90], heads=3, dim=16, chosen=37, kv="f16")
    c.pool.pages = c.empty
    pages, table = c.pool.beyond(FAR)
    c.pool.table = table
    rows = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    (got,) = H.build("index_append", "sm_90a", c.params).run(
        c.step(rows), [np.concatenate([k[:, 0] for k in c.k]), pages, None]
    )
    last = [(i, [n - 2, n - 1]) for i, n in enumerate(c.lens)]
    q, w = (np.concatenate([x[i][ps] for i, ps in last]) for x in (c.q, c.w))
    sel = H.build("index_select", "sm_90a", c.params).run(
        c.step(last), [q, w, H.far(got, pages.skip), None, H.out((len(q), c.chosen), np.int32)]
    )[-1]
    assert np.array_equal(sel, c.want(last))


@pytest.mark.parametrize(
    "template,arch",
    [
        ("mla_attend", "sm_75"),
        ("mla_attend_decode_sm80", "sm_90a"),
        ("mla_attend_decode_sm90", "sm_90a"),
        ("mla_attend_mixed_sm80", "sm_86"),
        ("mla_attend_mixed_sm80", "sm_90a"),
    ],
)
def test_latents(template, arch):
    mixed = "mixed" in template
    c = M.Steps(**dict(M.MIXED["lite"][0] if mixed else M.STEPS["lite"]))
    if "sm90" in template:
        M.rounded_queries(c)
    k = H.build(template, arch, c.params)
    rows = M.MIXED["lite"][1] if mixed else [1] * len(c.lens)
    c.attend(
        k,
        rows,
        3e-2 if mixed else 8e-3,
        beyond=FAR,
        **(dict(rounds=M.rounds(c, k, rows)) if mixed else {}),
    )
