"""Elements beyond 2^31 and bytes beyond 2^32 of a tensor on CPUs: rows of weights, experts, adapter slots, recurrent states and pools. Memory below them is never
touched and not allocated."""

import mmap

import numpy as np
import pytest

import harness as H
import test_attention as A
import test_index as I
import test_mla as M
import test_moe as E
from attention_oracle import close as attention_close
from state_oracle import CONV, channels, conv, delta, scan
from test_matmul import FAST, TARGETS, Weights, close, lib, loose, seen  # noqa: F401 (lib is a fixture)

TARGET = TARGETS[-1]
ROWS = int(H.LAYOUT[TARGET][1:])  # rows per row group
ELEMENTS, BYTES = 1 << 31, 1 << 32


def far(content, skip):
    """Return (address of a mapping, its content after `skip` bytes); the mapping lives as long as the content."""
    room = mmap.mmap(
        -1, skip + content.nbytes + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
    )  # MAP_NORESERVE
    whole = np.frombuffer(room, np.uint8)
    held = whole[skip : skip + content.nbytes].view(content.dtype).reshape(content.shape)
    held[...] = content
    return whole, held


def units(unit_bytes, unit_elements):
    """Return the number of units after which an offset exceeds 31 bits of elements and 32 bits of bytes."""
    return max(-(-ELEMENTS // unit_elements), -(-BYTES // unit_bytes)) + 3


@pytest.mark.parametrize("dtype", ["bf16", "q4_k"])
def test_rows_of_a_matrix(lib, dtype):  # noqa: F811
    """The last rows, processed by the last of 64 parts; and rows that a lookup reads."""
    cols, n = 4096, 2 * ROWS
    w = Weights(lib, dtype, n, cols)
    packed = w.packed(TARGET)
    groups = units(packed[0].nbytes, ROWS * cols)
    rows = groups * ROWS + n
    whole, _ = far(packed, groups * packed[0].nbytes)
    k = H.build("matmul", TARGET, dict(ROWS=rows, COLS=cols, W_DTYPE=dtype, ACT_BITS=16), FAST)
    x = H.aligned((3, cols))
    x[...] = np.random.default_rng(1).standard_normal(x.shape)
    y = H.aligned((3, rows))
    k.call(H.make_step([0] * 3), [x, whole, None, y], 64, order=[63])
    xs = seen(x, dtype, 16)
    close(
        y[:, -n:],
        xs @ w.value.T.astype(np.float64),
        4 * np.abs(xs) @ np.abs(w.value.T.astype(np.float64)),
        1e-5,
    )
    assert np.isnan(y[:, : rows // 2]).all()
    k = H.build(
        "embed",
        TARGET,
        dict(W_DTYPE=dtype, W_ROWS=rows, HIDDEN=cols, SCALE=1.0, W_LAYOUT=H.LAYOUT[TARGET]),
        FAST,
    )
    ids = np.array([n - 1, 0, 3])
    e = H.aligned((3, cols))
    k.call(H.make_step([0] * 3, tok=ids + groups * ROWS), [whole, e], 2)
    assert np.abs(e - w.value[ids]).max() < 1e-6


def test_experts(lib):  # noqa: F811
    m = E.Mixture(
        lib, TARGET, n=3, top_k=2, hidden=1024, width=1024, types=("bf16",) * 3, kind="none", rows=5
    )
    before = (1 << 11) + 3
    each = [p.nbytes // 3 for p in m.packed]
    assert before * each[0] > BYTES
    m.n, m.id = before + 3, m.id + np.int32(before)
    m.packed = [far(p, before * size)[0] for p, size in zip(m.packed, each)]
    everyone = list(range(m.rows))
    glu, down = m.glu_kernel(), m.down_kernel()
    h = m.glu(glu, everyone, 3)
    y = m.down(down, h, everyone, 3)
    m.n, m.id = 3, m.id - np.int32(before)
    want, size = m.glu_want()
    close(h, want, size, max(loose(t) for t in m.types))
    want, size = m.down_want(h)
    close(y, want, size, 3e-6)


def test_slots_of_adapters():
    rng, cols, rows, rank, n, experts = np.random.default_rng(2), 512, 512, 16, 3, 4
    x, y, low = (rng.standard_normal((n, w)).astype(np.float32) for w in (cols, rows, rank))
    own = [1, None, 0]

    def run(op, params, args, factor, out):
        """factor: that of the last two slots"""
        each = factor[0].nbytes
        slots = units(each, each // 4) + 2
        whole, _ = far(factor, (slots - 2) * each)
        got = H.aligned(out)
        step = H.make_step([3] * n, adapter=[slots - 1, -1, slots - 2])
        H.build(op, TARGET, dict(params, SLOTS=slots), FAST).call(
            step, [*(whole if v is factor else v for v in args), got], 2
        )
        return got

    def same(got, want):
        assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()

    zero = lambda f: np.array(
        [f(t, s) if s is not None else np.zeros_like(f(t, 0)) for t, s in enumerate(own)],
        np.float64,
    )
    a, b = (
        rng.standard_normal((2, rank, cols)).astype(np.float32),
        rng.standard_normal((2, rank, rows)).astype(np.float32),
    )
    same(
        run("lora_down", dict(COLS=cols, RANK=rank, COUNT=1), [x, a], a, (n, rank)),
        zero(lambda t, s: a[s].astype(np.float64) @ x[t]),
    )
    same(
        run("lora_up", dict(ROWS=rows, RANK=rank, COUNT=1, FIRST=0), [y, low, b], b, (n, rows)),
        y + zero(lambda t, s: low[t].astype(np.float64) @ b[s]),
    )
    e, weight = np.array([[3], [1], [0]], np.int32), rng.random((n, 1)).astype(np.float32)
    a, b = (
        rng.standard_normal((2, experts, rank, cols)).astype(np.float32),
        rng.standard_normal((2, experts, rank, rows)).astype(np.float32),
    )
    p = dict(N_EXPERTS=experts, N_REMOTE_EXPERTS=0, TOP_K=1, RANK=rank)
    same(
        run("lora_experts_down", dict(p, COLS=cols, PER_GROUP=0, COUNT=1), [x, e, a], a, (n, rank)),
        zero(lambda t, s: a[s, e[t, 0]].astype(np.float64) @ x[t]),
    )
    up = zero(lambda t, s: low[t].astype(np.float64) @ b[s, e[t, 0]])
    same(run("lora_experts_up", dict(p, ROWS=rows, COUNT=1), [low, e, b], b, (n, rows)), up)
    same(
        run("lora_experts_add", dict(p, ROWS=rows), [y, low, e, weight, b], b, (n, rows)),
        y + weight * up,
    )


@pytest.mark.parametrize(
    "op,case",
    [
        ("conv1d", conv(*CONV[0])),
        ("delta_rule", delta(1)),
        ("selective_scan", scan(5)),
        ("channel_scan", channels(0)),
    ],
    ids=lambda v: v if isinstance(v, str) else "far",
)
def test_states(op, case):
    params, inputs, fixed, shape, out_shape, want, want_state = case
    size = int(np.prod(shape))
    before = units(4 * size, size)
    whole, state = far(np.full((4, *shape), np.nan, np.float32), before * 4 * size)
    kernel, rows = H.build(op, TARGET, params), [len(x) for x in inputs[0]]
    for i, n in enumerate(rows):
        y = H.aligned((n, *out_shape))
        kernel.call(
            H.make_step(list(range(n)), [n], seq=[before + i]),
            [*(x[i] for x in inputs), *fixed, whole, y],
            2,
        )
        for got, w in (y, want[i]), (state[i], want_state[i]):
            np.testing.assert_allclose(got, w, rtol=0, atol=3e-6 * max(1, np.abs(w).max()))
    assert np.isnan(state[3]).all()


def beyond(pool, table):
    """Return (pages after 9 GiB, those pages, their block table)."""
    first = -(-(9 << 30) // pool[0].nbytes)
    whole, held = far(pool, first * pool[0].nbytes)
    return whole, held, np.where(table < 1 << 29, table + first, table)


@pytest.mark.parametrize("kv", ["f16", "int8"])
def test_pages_of_attention(kv):
    c = A.Case([40, 300], heads=8, kv_heads=2, dim=64, kv=kv)
    rows = [(0, list(range(30, 40))), (1, list(range(280, 300)))]
    near, near_table = c.pool.copy(), c.table
    c.pool, held, c.table = beyond(c.pool, c.table)
    for phase, some in ("decode", c.last()), ("mixed", rows):
        got = c.run(H.build(f"attention_{phase}", TARGET, c.params), some, 3)
        attention_close(got, np.concatenate([c.want(i, ps) for i, ps in some]), 3e-4)
    k, v = (
        np.random.default_rng(3).standard_normal((1, 2, 64)).astype(np.float32) for _ in range(2)
    )
    append, was = (
        H.build(
            "kv_append",
            TARGET,
            dict(KV_HEADS=2, DIM=64, V_DIM=64, KV_DTYPE=kv, KV_PAGE_BYTES=c.page_bytes),
        ),
        near.copy(),
    )
    for pool, table in (c.pool, c.table), (near, near_table):
        append.call(H.make_step([300], [1], table=table[1:]), [k, v, pool, None], 1)
    assert np.array_equal(held, near) and not np.array_equal(near, was)


@pytest.mark.parametrize("expand", [0, M.EXPAND])
def test_pages_of_latents(lib, expand):  # noqa: F811
    c = M.Case(lib, dtype="f16", lens=(70, 1, 33))
    c.build(TARGET, expand)
    whole, held, c.table = beyond(c.pages(), c.table)
    full = [(i, list(range(n))) for i, n in enumerate(c.lens)]
    y = c.run(full, pool=whole)[2]
    close(y, c.want(full), c.size(), M.tolerance(c))
    last = [(i, [n - 1]) for i, n in enumerate(c.lens)]
    close(c.run(last, "decode", 3, whole)[2], c.want(last), c.size(), M.tolerance(c))


def test_keys_of_an_indexer():
    c = I.Indexer([700, 90], heads=3, dim=16, chosen=37, kv="f16")
    append, select = (H.build(t, TARGET, c.params) for t in ("index_append", "index_select"))
    empty = np.full((c.n_pages, c.params["KV_PAGE_BYTES"]), 0xFF, np.uint8)
    whole, _, c.table = beyond(empty, c.table)
    pos, seq, step = c.step([(i, list(range(n))) for i, n in enumerate(c.lens)])
    append.call(step, [np.ascontiguousarray(c.k[seq, pos]), whole, None], 2)
    last = [(i, [n - 2, n - 1]) for i, n in enumerate(c.lens)]
    assert np.array_equal(c.run(select, whole, last, 3), c.want(last))
