"""Oracle of kernels with recurrent states, on CPUs and GPUs: inputs, and expected values in float64."""

import numpy as np

SEQS, ROWS = 4, [11, 7, 40]  # slots of the pool, rows of three sequences
AT = [2, 0, 3]  # their slots


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def steps(cuts, rows=ROWS):
    """Return each step as [(sequence, first row, end)]: all sequences are divided at the same rows."""
    for a, b in zip(cuts, cuts[1:]):
        yield [(i, a, min(b, n)) for i, n in enumerate(rows) if a < n]


CONV = [(70, 4, "silu", False), (5, 2, "none", True), (130, 5, "silu", True)]


def conv(width, taps, gate, bias):
    """Return params, inputs of rows, arguments between them and the state, shapes of a state and of an output row, outputs, states after the last row."""
    rng = np.random.default_rng(width)
    x = [rng.standard_normal((n, width)).astype(np.float32) for n in ROWS]
    w, b = (
        rng.standard_normal((width, taps)).astype(np.float32),
        rng.standard_normal(width).astype(np.float32) if bias else None,
    )
    want, states = [], []
    for s in x:
        padded = np.concatenate([np.zeros((taps - 1, width)), s.astype(np.float64)])
        z = sum(padded[j : j + len(s)] * w[:, j] for j in range(taps)) + (0 if b is None else b)
        want.append(z * sigmoid(z) if gate == "silu" else z)
        states.append(padded[len(s) :])
    params = dict(WIDTH=width, TAPS=taps, GATE=gate, HAS_B=int(bias))
    return params, [x], [w, b], (taps - 1, width), (width,), want, states


DELTA = [
    dict(k_heads=2, v_heads=6, k_dim=12, v_dim=20),
    dict(k_heads=3, v_heads=6, k_dim=128, v_dim=128, tiled=1),
    dict(k_heads=1, v_heads=3, k_dim=17, v_dim=33, a_log=0),
    dict(k_heads=2, v_heads=2, k_dim=40, v_dim=64, g_dim=40, b_scale=2.0),
    dict(k_heads=1, v_heads=2, k_dim=72, v_dim=36, b_scale=2.0, tiled=1),
]


def delta(case, of_rows=ROWS):
    p = dict(g_dim=1, tiled=0, a_log=1, b_scale=1.0) | DELTA[case]
    hk, hv, dk, dv, dg = (p[k] for k in ("k_heads", "v_heads", "k_dim", "v_dim", "g_dim"))
    rng, eps, scale = np.random.default_rng(case), 1e-6, dk**-0.5
    x = [rng.standard_normal((n, 2 * hk * dk + hv * dv)).astype(np.float32) for n in of_rows]
    a, b = (
        [rng.standard_normal((n, hv, d)[: 3 if d else 2]).astype(np.float32) for n in of_rows]
        for d in (dg, 0)
    )
    rate, dt = (
        rng.standard_normal(hv).astype(np.float32),
        rng.standard_normal((hv, dg)).astype(np.float32),
    )
    if not p["a_log"]:
        rate = -np.abs(rate)
    a[0][0] = 40  # softplus(x) = x here
    a[1][1] = -40
    want, states = [], []
    of = np.arange(hv) % hk if p["tiled"] else np.arange(hv) * hk // hv
    unit = lambda u: u / np.sqrt((u * u).sum(-1, keepdims=True) + eps)
    for rows, an, bn in zip(x, a, b):
        rows, state, y = rows.astype(np.float64), np.zeros((hv, dk, dv)), []
        for r, ar, br in zip(rows, an.astype(np.float64), bn.astype(np.float64)):
            q, k, v = (
                unit(r[: hk * dk].reshape(hk, dk))[of] * scale,
                unit(r[hk * dk : 2 * hk * dk].reshape(hk, dk))[of],
                r[2 * hk * dk :].reshape(hv, dv),
            )
            r64 = rate.astype(np.float64)
            keep = np.exp((-np.exp(r64) if p["a_log"] else r64)[:, None] * np.logaddexp(0, ar + dt))
            state = state * keep[:, :, None]
            state = (
                state
                + k[:, :, None]
                * (p["b_scale"] * sigmoid(br)[:, None] * (v - np.einsum("hij,hi->hj", state, k)))[
                    :, None, :
                ]
            )
            y.append(np.einsum("hij,hi->hj", state, q))
        want.append(np.array(y))
        states.append(state)
    params = {k.upper(): v for k, v in p.items()} | dict(SCALE=scale, EPS=eps)
    return params, [x, a, b], [rate, dt], (hv, dk, dv), (hv, dv), want, states


SCAN = [
    dict(heads=6, dim=20, groups=2, n_state=12),
    dict(heads=2, dim=64, groups=1, n_state=128, dt_min=0.3, dt_max=0.9),
    dict(heads=3, dim=33, groups=3, n_state=17, a_log=0),
    dict(heads=5, dim=1, groups=1, n_state=40),
    dict(heads=1, dim=70, groups=1, n_state=300, dt_max=1.5),
    dict(heads=4, dim=80, groups=2, n_state=64),
    dict(heads=8, dim=16, groups=8, n_state=16),
    dict(heads=2, dim=36, groups=1, n_state=192, dt_min=0.001),
]


def scan(case, of_rows=ROWS):
    p = dict(a_log=1, dt_min=0.0, dt_max=0.0) | SCAN[case]
    heads, dim, groups, n = (p[k] for k in ("heads", "dim", "groups", "n_state"))
    rng = np.random.default_rng(case + 50)
    x = [rng.standard_normal((k, heads * dim + 2 * groups * n)).astype(np.float32) for k in of_rows]
    dt = [rng.standard_normal((k, heads)).astype(np.float32) for k in of_rows]
    rate, bias, skip = (rng.standard_normal(heads).astype(np.float32) for _ in range(3))
    if not p["a_log"]:
        rate = -np.abs(rate)
    if heads > 1:  # one total decay, and rows between that keep nearly everything
        rate[0] = np.log(60) if p["a_log"] else -60
        for d in dt:
            d[:, 0] = np.where(np.arange(len(d)) % 4 == 3, 1, -6)
    dt[0][0] = 40  # softplus(x) = x here
    dt[1][1] = -40
    want, states = [], []
    of = np.arange(heads) * groups // heads
    for rows, steps_of in zip(x, dt):
        state, y = np.zeros((heads, n, dim)), []
        for r, d in zip(rows.astype(np.float64), steps_of.astype(np.float64)):
            u, b, c = (
                r[: heads * dim].reshape(heads, dim),
                r[heads * dim : heads * dim + groups * n].reshape(groups, n)[of],
                r[heads * dim + groups * n :].reshape(groups, n)[of],
            )
            d = np.clip(np.logaddexp(0, d + bias), p["dt_min"], p["dt_max"] or None)
            r64 = rate.astype(np.float64)
            state = (
                np.exp((-np.exp(r64) if p["a_log"] else r64) * d)[:, None, None] * state
                + b[:, :, None] * (d[:, None] * u)[:, None, :]
            )
            y.append(np.einsum("hij,hi->hj", state, c) + skip[:, None] * u)
        want.append(np.array(y))
        states.append(state)
    return (
        {k.upper(): v for k, v in p.items()},
        [x, dt],
        [rate, bias, skip],
        (heads, n, dim),
        (heads, dim),
        want,
        states,
    )


CHANNELS = [
    dict(width=70, n_state=16),
    dict(width=9, n_state=7, a_log=0),
    dict(width=33, n_state=20),
    dict(width=5, n_state=130),
    dict(width=130, n_state=1),
]


def channels(case):
    p = dict(a_log=1) | CHANNELS[case]
    width, n = p["width"], p["n_state"]
    rng = np.random.default_rng(case + 90)
    x, dt, b, c = (
        [rng.standard_normal((k, w)).astype(np.float32) for k in ROWS] for w in (width, width, n, n)
    )
    rate, bias, skip = (
        rng.standard_normal((width, n)).astype(np.float32),
        *(rng.standard_normal(width).astype(np.float32) for _ in range(2)),
    )
    if not p["a_log"]:
        rate = -np.abs(rate)
    dt[0][0] = 40  # softplus(x) = x here
    dt[1][1] = -40
    r = -np.exp(rate.astype(np.float64)) if p["a_log"] else rate.astype(np.float64)
    want, states = [], []
    for rows in zip(x, dt, b, c):
        state, y = np.zeros((width, n)), []
        for u, d, i, o in zip(*(v.astype(np.float64) for v in rows)):
            d = np.logaddexp(0, d + bias)
            state = np.exp(r * d[:, None]) * state + (d * u)[:, None] * i
            y.append(state @ o + skip * u)
        want.append(np.array(y))
        states.append(state)
    return (
        {k.upper(): v for k, v in p.items()},
        [x, dt, b, c],
        [rate, bias, skip],
        (width, n),
        (width,),
        want,
        states,
    )


GATES = [
    (20, 3, "norm_first", "silu"),
    (128, 2, "norm_first", "sigmoid"),
    (33, 5, "gate_first", "silu"),
]


def gate(dim, groups, order, gate):
    rng = np.random.default_rng(dim)
    x, z = (rng.standard_normal((9, groups, dim)).astype(np.float32) for _ in range(2))
    w = rng.standard_normal((groups, dim) if order == "gate_first" else dim).astype(np.float32)
    g = sigmoid(z.astype(np.float64)) * (z if gate == "silu" else 1)
    rms = lambda v: v / np.sqrt((v * v).mean(-1, keepdims=True) + 1e-3)
    want = rms(x * g) * w if order == "gate_first" else rms(x.astype(np.float64)) * w * g
    return dict(DIM=dim, GROUPS=groups, EPS=1e-3, ORDER=order, GATE=gate), [x, z, w], want
