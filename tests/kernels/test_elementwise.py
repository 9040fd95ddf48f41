"""CPU kernels that process rows, against float64. Elementwise kernels are in tests/cuda/test_cuda_ops.py."""

import ctypes as C
import functools

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

import harness as H
import kv_types as K
from code_blocks import CODES, blocks
from host_sources import PACKING

F = np.float32
ROWS = [1, 3, 37]
V = "v3" if H.RUNS["v3"] else "generic"


def rows(n, *width, seed=0, spread=1.0):
    a = H.aligned((n, *width))
    a[...] = np.random.default_rng(seed).standard_normal(a.shape) * spread
    return a


def run(
    name, target, params, n_tok, ins, out_shape, in_place=None, step=None, parts=(1, 2, 5), tail=()
):
    """Return the output, which must be equal for several numbers of parts; it is poisoned before."""
    k = H.build(name, target, params)
    step = step or H.make_step(list(range(n_tok)))
    first = None
    for n in parts:
        y = H.aligned(out_shape)
        k.call(step, [*ins, y, *tail], n)
        assert np.isfinite(y).all(), f"{n} parts leave something unwritten"
        assert first is None or np.array_equal(y, first), f"{n} parts"
        first = y if first is None else first
    if in_place is not None:  # y in the memory of that input
        x = H.aligned(ins[in_place].shape)
        x[...] = ins[in_place]
        k.call(step, [*ins[:in_place], x, *ins[in_place + 1 :], x, *tail], 3)
        assert np.array_equal(x.reshape(-1)[: first.size], first.reshape(-1)), "in place"
    return first


def close(got, want, rel=1e-6, absolute=1e-6):
    err = np.abs(got - want) / (absolute + rel * np.abs(want))
    assert err.max() < 1, f"{err.max()} at {np.argmax(err)}"


@pytest.mark.parametrize(
    "target,dim,groups,plus_one",
    [(V, 576, 1, 0), (V, 64, 5, 1), (V, 8, 1, 1)] + [(t, 45, 2, 0) for t in H.TARGETS],
)
def test_rmsnorm(target, dim, groups, plus_one):
    x, w = rows(9, groups, dim, spread=3), rows(1, dim, seed=2)[0]
    x[1] *= 1e-4
    x64 = x.astype(np.float64)
    want = (
        x64
        / np.sqrt((x64**2).mean(-1, keepdims=True) + F(1e-5))
        * (w.astype(np.float64) + plus_one)
    )
    close(
        run(
            "rmsnorm",
            target,
            dict(DIM=dim, GROUPS=groups, EPS=1e-5, PLUS_ONE=plus_one),
            9,
            [x, w],
            x.shape,
            in_place=0,
        ),
        want,
        2e-6,
        1e-6,
    )


@pytest.mark.parametrize("target,dim", [(V, 64)] + [(t, 333) for t in H.TARGETS])
def test_layernorm(target, dim):
    x, w, b = rows(6, dim) + F(3), rows(1, dim, seed=2)[0], rows(1, dim, seed=3)[0]
    x64 = x.astype(np.float64)
    m = x64.mean(-1, keepdims=True)
    want = (x64 - m) / np.sqrt(((x64 - m) ** 2).mean(-1, keepdims=True) + F(1e-5)) * w
    p = dict(DIM=dim, GROUPS=1, EPS=1e-5)
    close(run("layernorm", target, p, 6, [x, w, b], x.shape), want + b, 5e-6, 5e-6)
    close(run("layernorm", target, p, 6, [x, w, None], x.shape), want, 5e-6, 5e-6)


def turned(x, ang, style, first, dims):
    y = x.astype(np.float64).copy()
    h = dims // 2
    a, b = (
        (np.arange(h), np.arange(h) + h)
        if style == "half"
        else (2 * np.arange(h), 2 * np.arange(h) + 1)
    )
    c, s = (v[:, None, :].astype(np.float64) for v in (ang[:, :h], ang[:, h:]))
    xa, xb = x[..., first + a].astype(np.float64), x[..., first + b].astype(np.float64)
    y[..., first + a] = xa * c - xb * s
    y[..., first + b] = xb * c + xa * s
    return y


def angles(n, dims, seed=0):
    a = np.random.default_rng(seed).uniform(0, 6.3, (n, dims // 2))
    return np.ascontiguousarray(np.concatenate([np.cos(a), np.sin(a)], 1).astype(F))


@pytest.mark.parametrize("target", [V, "generic"])
@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("dim,first,dims", [(64, 0, 64), (24, 4, 12)])
def test_rope(target, style, dim, first, dims):
    x, ang = rows(5, 3, dim), angles(5, dims)
    p = dict(HEADS=3, DIM=dim, FIRST=first, ROPE_DIMS=dims, STYLE=style)
    got = run("rope", target, p, 5, [x, ang], x.shape)
    close(got, turned(x, ang, style, first, dims), 1e-6, 3e-7)
    y = x.copy()
    H.build("rope", target, p).call(H.make_step([0] * 5), [y, ang, y], 2)
    assert np.array_equal(y, got)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rope_2d(style):
    x, a1, a2 = rows(5, 2, 32), angles(5, 8), angles(5, 8, seed=1)
    got = run(
        "rope_2d", V, dict(HEADS=2, DIM=32, ROPE_DIMS=8, STYLE=style), 5, [x, a1, a2], x.shape
    )
    close(got, turned(turned(x, a1, style, 0, 8), a2, style, 16, 8), 1e-6, 3e-7)


@pytest.mark.parametrize(
    "target,kv,kv_v,rotate",
    sorted(
        {(V, t, t, 0) for t in K.TYPES}
        | {
            (V, "int6", "int4", 1),
            (V, "f16", "int8", 1),
            ("generic", "f16", "f16", 0),
            ("generic", "int8", "f8", 1),
        }
    ),
)
def test_kv_append(target, kv, kv_v, rotate):
    heads, dim, v_dim = 3, 20, 72
    bytes_k, bytes_v = (heads * 32 * K.row_bytes(t, d) for t, d in ((kv, dim), (kv_v, v_dim)))
    p = dict(
        KV_HEADS=heads,
        DIM=dim,
        V_DIM=v_dim,
        KV_K=kv,
        KV_V=kv_v,
        KV_ROTATE=rotate,
        KV_PAGE_BYTES=bytes_k + bytes_v,
    )
    # three sequences, rows across page ends, pages scattered
    pos, n = [30, 31, 32, 33, 0, 64], [4, 1, 1]
    table = [[5, 2, 9], [0, 9, 9], [9, 9, 3]]
    k, v = rows(6, heads, dim, seed=1), rows(6, heads, v_dim, seed=2)
    k[0, 0, :4] = [1e9, -1e9, 65504, 1e-7]
    v[1, 2] = 0
    v[2, 1, :32] = 1e-9
    # rows packed by numpy, in zeroed pages
    want = np.zeros((10, bytes_k + bytes_v), np.uint8)
    made = [
        K.encode(t, K.turn(a) if rotate and not K.plain(t) else a) for t, a in ((kv, k), (kv_v, v))
    ]
    for page in {page for seq in table for page in seq}:
        at = [
            (t, a % 32)
            for t, (a, seq) in enumerate(zip(pos, [0, 0, 0, 0, 1, 2]))
            if table[seq][a // 32] == page
        ]
        for t, r, d, key, part in (
            (kv, made[0], dim, True, slice(0, bytes_k)),
            (kv_v, made[1], v_dim, False, slice(bytes_k, None)),
        ):
            whole = [None if a is None else np.zeros((32, *a.shape[1:]), a.dtype) for a in r]
            for i, j in at:
                for a, b in zip(whole, r):
                    if b is not None:
                        a[j] = b[i]
            want[page, part] = K.plane(t, K.Rows(*whole), d, key).reshape(-1)
    for parts in (1, 4):
        pool = np.zeros((10, bytes_k + bytes_v), np.uint8)
        H.build("kv_append", target, p).call(
            H.make_step(pos, n, table=table), [k, v, pool, None], parts
        )
        assert np.array_equal(pool, want)


@pytest.mark.parametrize("kv,kv_v,rotate,windowed", [("int8", "int4", 1, 0), ("f32", "int6", 0, 1)])
def test_kv_append_exact(kv, kv_v, rotate, windowed):
    """Rows are also stored in exact pages, below the pages in descending order. They have their own indices, or with a window those of the pages."""
    heads, dim, v_dim = 3, 20, 72
    bytes_k, bytes_v = (heads * 32 * K.row_bytes(t, d) for t, d in ((kv, dim), (kv_v, v_dim)))
    exact_k, exact_v = (
        heads * 32 * K.row_bytes(K.exact(t), d) for t, d in ((kv, dim), (kv_v, v_dim))
    )
    p = dict(
        KV_HEADS=heads,
        DIM=dim,
        V_DIM=v_dim,
        KV_K=kv,
        KV_V=kv_v,
        KV_ROTATE=rotate,
        KV_PAGE_BYTES=bytes_k + bytes_v,
    )
    pos, n = [30, 31, 32, 33, 0], [4, 1]
    table, number = (
        np.array([[5, 2], [0, 9]]),
        np.array([[5, 2], [0, 9]] if windowed else [[1, 4], [3, 9]]),
    )
    k, v = rows(5, heads, dim, seed=1), rows(5, heads, v_dim, seed=2)
    k[0, 0, :4] = [1e9, -1e9, 65504, 1e-7]
    plain, both = (
        np.zeros((10, bytes_k + bytes_v), np.uint8),
        np.zeros(10 * (exact_k + exact_v + bytes_k + bytes_v), np.uint8),
    )
    H.build("kv_append", V, p).call(H.make_step(pos, n, table=table), [k, v, plain, None], 2)
    exact, pool = (
        both[: 10 * (exact_k + exact_v)].reshape(10, -1),
        both[10 * (exact_k + exact_v) :].reshape(10, -1),
    )
    H.build("kv_append", V, p | dict(KV_RECENT=8, KV_SINKS=1, KV_WINDOWED=windowed)).call(
        H.make_step(pos, n, table=table if windowed else np.concatenate([table, number], 1)),
        [k, v, pool, None],
        3,
    )
    assert np.array_equal(plain, pool)
    want = np.zeros_like(exact)
    for x, t, d, key, part in (
        (k, kv, dim, True, slice(0, exact_k)),
        (v, kv_v, v_dim, False, slice(exact_k, None)),
    ):
        made = K.encode(K.exact(t), K.turn(x) if rotate and not K.plain(t) else x).code
        for seq, pages in enumerate(number):
            for i, page in enumerate(pages):
                whole = np.zeros((32, heads, d), made.dtype)
                for row, at in enumerate(pos):
                    if (row == 4) == seq and at // 32 == i:
                        whole[at % 32] = made[row]
                want[9 - page, part] = K.plane(K.exact(t), K.Rows(whole), d, key).reshape(-1)
    assert np.array_equal(exact, want)


@pytest.mark.parametrize("windowed,dim", [(0, 64), (1, 20)])
def test_kv_close(windowed, dim):
    """Pages that a row of the step completes are quantised; nothing else is written."""
    heads, v_dim = 3, 8
    keys, bytes_v, exact = (
        heads * 32 * K.row_bytes("int4c", dim),
        heads * 32 * K.row_bytes("int6", v_dim),
        heads * 64 * (dim + v_dim),
    )
    pos, n = [30, 31, 32, 63, 31, 62], [4, 1, 1]
    table, number = (
        np.array([[5, 2], [0, 9], [7, 8]]),
        np.array([[5, 2], [0, 9], [7, 8]] if windowed else [[1, 4], [3, 9], [0, 2]]),
    )
    both = np.random.default_rng(4).integers(0, 256, 10 * (exact + keys + bytes_v), np.uint8)
    pages, pool = both[: 10 * exact].reshape(10, -1), both[10 * exact :].reshape(10, -1)
    x = (np.random.default_rng(5).standard_normal((10, 32, heads, dim)) * 3).astype(np.float16)
    x[:, :, 1, 3] = 2.5
    pages[:, : 64 * heads * dim] = np.stack(
        [K.plane("f16", K.Rows(a), dim, True).reshape(-1) for a in x]
    )
    want = both.copy()
    for seq, page in ((0, 0), (0, 1), (1, 0)):
        r = K.encode("int4c", x[9 - number[seq][page]])
        want[10 * exact :].reshape(10, -1)[table[seq][page], :keys] = K.plane_by_channel(
            r.code, r.scale[0], r.zero[0]
        ).reshape(-1)
    got = H.build(
        "kv_quantize_page",
        V,
        dict(
            KV_HEADS=heads,
            DIM=dim,
            V_DIM=v_dim,
            KV_K="int4c",
            KV_V="int6",
            KV_ROTATE=1,
            KV_RECENT=32,
            KV_WINDOWED=windowed,
        ),
    )
    before, wide = both.copy(), -(-dim // 32) * 32

    def known(a):
        """drop codes and scales of padding elements, which are unspecified"""
        a = a.copy()
        planes = a[10 * exact :].reshape(10, -1)[:, :keys].reshape(10, heads, -1)
        for first in (dim // 2 * 32, 16 * wide + 2 * dim, 18 * wide + 2 * dim):
            planes[
                :, :, first : first + (16 * (wide - dim) if first < 16 * wide else 2 * (wide - dim))
            ] = 0
        return a

    for parts in (1, 4):
        both[:] = before
        got.call(
            H.make_step(pos, n, table=table if windowed else np.concatenate([table, number], 1)),
            [pool, None, None],
            parts,
        )
        assert np.array_equal(known(both), known(want))


# --- embeddings ---------------------------------------------------------------------------------------------------
COLS, TABLE = 512, 37
QUANT = gguf.GGMLQuantizationType
BLOCKS = {
    "q4_0": QUANT.Q4_0,
    "q4_1": QUANT.Q4_1,
    "q5_0": QUANT.Q5_0,
    "q5_1": QUANT.Q5_1,
    "q8_0": QUANT.Q8_0,
    "q4_k": QUANT.Q4_K,
    "q5_k": QUANT.Q5_K,
    "q6_k": QUANT.Q6_K,
}
BLOCKS |= {n: QUANT[n.upper()] for n in CODES}
BYTES = {"q4_k": 144, "q5_k": 176, "q6_k": 210}
HALVES = {"q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}
ENUM = "f32 f16 bf16 q4_0 q4_1 q5_0 q5_1 q8_0 q4_k q5_k q6_k mxfp4 nvfp4 {} u4_32 u4_128 u4_32_f32 u4_128_f32 u8_32 u8_128 u8_32_f32 u8_128_f32 f8_32 f8_128 nf4_32 nf4_64 fp4_32 fp4_64 u2_32 u2_128 u3_32 u3_128 m2_32 m2_64 m3_32 m3_64 m4_32 m4_64 m8_32 m8_64 i32 i64".format(
    " ".join(CODES)
).split()


def table_of(dtype):
    """Return bytes in file order [TABLE, row bytes], and the exact values from gguf."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((TABLE, COLS)).astype(F)
    if dtype == "f32":
        return x.view(np.uint8), x
    if dtype == "f16":
        return x.astype(np.float16).view(np.uint8), x.astype(np.float16).astype(F)
    if dtype == "bf16":
        h = (x.view(np.uint32) >> 16).astype(np.uint16)
        return h.view(np.uint8), (h.astype(np.uint32) << 16).view(F)
    if dtype in CODES:
        raw = blocks(rng, dtype, (TABLE, COLS // CODES[dtype][0])).reshape(TABLE, -1)
    elif (
        dtype in BYTES
    ):  # gguf reads these types but does not write them: random bytes with ordinary scales
        b = rng.integers(0, 256, (TABLE, COLS // 256, BYTES[dtype]), dtype=np.uint8)
        for at in HALVES[dtype]:
            b[..., at : at + 2] = (
                rng.uniform(-1, 1, b.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
            )
        raw = b.reshape(TABLE, -1)
    else:
        raw = quantize(x, BLOCKS[dtype])
    return np.ascontiguousarray(raw), dequantize(raw, BLOCKS[dtype])


@functools.cache
def packer():
    return H.host_library(PACKING)


def packed(dtype, raw, r):
    lib, d = packer(), ENUM.index(dtype)
    size = getattr(lib, f"packed{r}_bytes")
    size.restype, size.argtypes = C.c_int64, [C.c_int, C.c_int64]
    pack = getattr(lib, f"packed{r}_pack")
    pack.restype, pack.argtypes = None, [C.c_int, C.c_int64, C.c_void_p, C.c_void_p]
    groups = -(-TABLE // r)
    padded = np.zeros((groups * r, raw.shape[1]), np.uint8)
    padded[:TABLE] = raw
    out = H.aligned((groups, size(d, COLS)), np.uint8)
    for g in range(groups):
        pack(d, COLS, padded[g * r :].ctypes.data, out[g:].ctypes.data)
    return out


def embeddings():
    wide = H.TARGETS[-1] if H.RUNS["v3"] else "generic"
    for dtype in (*ENUM[:11], "q2_k", "iq4_xs", "iq3_s", "iq2_xxs", "iq1_m", "tq1_0"):
        yield dtype, "row", V
    for dtype in CODES:
        yield dtype, "r4", "generic"
    for dtype in ("f32", "bf16", "q4_0", "q4_1", "q5_1", "q8_0", "q4_k", "q6_k"):
        yield dtype, H.LAYOUT[V], V
    for dtype in ("q4_1", "q5_k", "q6_k"):
        yield dtype, "r4", "generic"
    for dtype in ("f16", "q5_0", "q8_0", "q5_k"):
        yield dtype, "r16", wide
    yield "f32", "f32", V


@pytest.mark.sample(12)
@pytest.mark.parametrize("dtype,layout,target", sorted(set(embeddings())))
def test_embed(dtype, layout, target):
    raw, exact = table_of(dtype)
    w = raw if layout in ("row", "f32") else packed(dtype, raw, int(layout[1:]))
    tok = [0, 36, 7, 8, 15, 16, 36, 1, 99, -1]
    want = np.where(
        np.array([0 <= t < TABLE for t in tok])[:, None],
        exact[[t if 0 <= t < TABLE else 0 for t in tok]],
        F(0),
    )
    step = H.make_step(list(range(len(tok))), tok=tok)
    p = dict(W_DTYPE=dtype, W_LAYOUT=layout, W_ROWS=TABLE, HIDDEN=COLS)
    got = run("embed", target, dict(p, SCALE=1.0), len(tok), [w], want.shape, step=step)
    assert np.array_equal(got, want)
    if dtype in ("q8_0", "f16"):
        got = run("embed", target, dict(p, SCALE=24.5), len(tok), [w], want.shape, step=step)
        assert np.array_equal(got, want * F(24.5))
        x = rows(4, COLS)
        got = run(
            "embed_pos",
            target,
            dict(p, OFFSET=2),
            4,
            [x, w],
            x.shape,
            step=H.make_step([0, 5, 34, 35]),
        )
        assert np.array_equal(got, x + np.vstack([exact[[2, 7, 36]], np.zeros((1, COLS), F)]))
        got = run(
            "embed_type",
            target,
            dict(p, TYPES=TABLE),
            4,
            [x, w],
            x.shape,
            step=H.make_step([0, 1, 2, 3], pos2=[1, 0, 0, TABLE]),
        )
        assert np.array_equal(got, x + np.vstack([exact[[1, 0, 0]], np.zeros((1, COLS), F)]))
