#!/usr/bin/env python3
"""Write tests/golden/ops.txt: inputs and expected outputs of every op of ops/ops.def, for tests/unit/test_ref_ops.c.

The expectations come from torch in double precision (its own rms_norm, layer_norm, gelu, attention and so on), not
from this project. Needs torch; run it only when an op changes:  python tests/golden/make_ops.py

It is one script because each op is a function of few lines, in the order of ops.def.

The file is a list of cases:
  case OP NAME
  attr KEY i|f|s VALUE
  step n_tok ... / arrays of the step
  none | f32 | i32 | weight | vector | rope | pool      arguments in the order of ops.def
  out ARG n values                                      expected content of argument ARG
  end
"""

import math
import os

import torch
import torch.nn.functional as F

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)
OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops.txt")
lines = []


def rnd(*shape, scale=1.0):
    # rounded to fp32, so that the file's text is the exact input of both sides
    return (torch.randn(*shape) * scale).float().double()


def numbers(t):
    return " ".join("%.9g" % v for v in t.reshape(-1).tolist())


class Case:
    def __init__(self, op, name, **attrs):
        lines.append(f"case {op} {name}")
        for k, v in attrs.items():
            kind = "s" if isinstance(v, str) else "f" if isinstance(v, float) else "i"
            lines.append(f"attr {k} {kind} {v!r}".replace("'", ""))
        self.n_arg = 0
        self.a = attrs

    def step(self, pos, seq_of=None, tok=None, kv_len=None, prefix=None, out_row=None, pos2=None):
        n = len(pos)
        seq_of = seq_of or [0] * n
        tok = tok or [0] * n
        n_seq = max(seq_of) + 1
        kv_len = kv_len or [
            max([p for p, s in zip(pos, seq_of) if s == q]) + 1 for q in range(n_seq)
        ]
        prefix = prefix or [0] * n_seq
        out_row = out_row if out_row is not None else [n - 1]
        for key, v in (
            ("pos", pos),
            ("seq_of", seq_of),
            ("tok", tok),
            ("kv_len", kv_len),
            ("prefix_len", prefix),
            ("out_row", out_row),
            *([("pos2", pos2)] if pos2 else []),
        ):
            lines.append(f"step {key} {len(v)} {' '.join(map(str, v))}")
        return self

    def arg(self, text):
        lines.append(text)
        self.n_arg += 1
        return self

    def none(self):
        return self.arg("none")

    def f32(self, t):
        return self.arg(f"f32 {t.numel()} {numbers(t)}")

    def i32(self, t):
        return self.arg(f"i32 {t.numel()} {' '.join(map(str, t.reshape(-1).tolist()))}")

    def weight(self, t):
        return self.arg(f"weight {t.shape[0]} {t.shape[1]} {numbers(t)}")

    def vector(self, t):
        return self.none() if t is None else self.arg(f"vector {t.numel()} {numbers(t)}")

    def pool(self, mla, kv_heads, k_dim, v_dim, dtype, k=None, v=None, seqs=None):
        """Add a KV pool. k, v: initial contents: the concatenated rows of all sequences; seqs:
        number of rows of each sequence."""
        text = f"pool {int(mla)} {kv_heads} {k_dim} {v_dim} {dtype}"
        if k is None:
            return self.arg(text + " 0")
        rows = k.shape[0]
        return self.arg(
            f"{text} {rows} {len(seqs)} {' '.join(map(str, seqs))} {numbers(k)} {numbers(v)}"
        )

    def state(self, heads, rows, cols, t):
        """Add a pool of recurrent states with the contents t [sequences, heads, rows, cols]."""
        return self.arg(f"state {heads} {rows} {cols} {t.shape[0]} {numbers(t)}")

    def room(self, n, kind="f32"):
        """Add an output of n elements, which the test fills with garbage."""
        self.last_room = self.n_arg
        return self.arg(f"room {kind} {n}")

    def out(self, t, arg=None):
        lines.append(
            f"out {self.last_room if arg is None else arg} {t.numel()} {numbers(t.double())}"
        )
        return self

    def end(self):
        lines.append("end")


def rms(x, w, eps, plus_one=0):
    return F.rms_norm(x, (x.shape[-1],), None, eps) * (
        (w + 1 if plus_one else w) if w is not None else 1
    )


def layer(x, w, b, eps):
    return F.layer_norm(x, (x.shape[-1],), w, b, eps)


ACT = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}


def glu(g, u, act, limit):
    if limit:
        g, u = g.clamp(max=limit), u.clamp(-limit, limit)
    return g * torch.sigmoid(1.702 * g) * (u + 1) if act == "swiglu_oai" else ACT[act](g) * u


def silu_limit(g, u, limit):
    return F.silu(g).clamp(max=limit) * u.clamp(-limit, limit) if limit > 0 else F.silu(g) * u


def angles(pos, dims, theta=100.0):
    a = torch.tensor(pos)[:, None] * theta ** (-torch.arange(0, dims, 2) / dims)
    return torch.cat([a.cos(), a.sin()], -1).float().double()


def rotate(x, ang, style):
    """Rotate x [T, heads, R] by complex multiplication; the implementation uses other
    arithmetic."""
    half = ang.shape[-1] // 2
    turn = torch.complex(ang[:, None, :half], ang[:, None, half:])
    if style == "half":
        z = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous()) * turn
        return torch.cat([z.real, z.imag], -1)
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], half, 2).contiguous()) * turn
    return torch.view_as_real(z).reshape(x.shape)


# --- rows in, rows out
w = rnd(7, 5)
Case("embed", "scaled", hidden=5, scale=1.5).step([0, 1, 2], tok=[6, 0, 3]).weight(w).room(15).out(
    1.5 * w[[6, 0, 3]]
).end()
x = rnd(3, 5)
Case("embed_pos", "offset", hidden=5, offset=2).step([0, 4, 1]).f32(x).weight(w).room(15).out(
    x + w[[2, 6, 3]]
).end()
for name, groups, plus_one in (("plain", 1, 0), ("plus_one", 1, 1), ("groups", 3, 0)):
    x, w = rnd(2, groups, 6, scale=3), rnd(6)
    Case("rmsnorm", name, dim=6, groups=groups, eps=0.01, plus_one=plus_one).step([0, 1]).f32(
        x
    ).vector(w).room(x.numel()).out(rms(x, w, 0.01, plus_one)).end()
x = rnd(2, 12, scale=3)
Case("rmsnorm", "unit", dim=6, groups=2, eps=0.01, plus_one=0).step([0, 1]).f32(x).none().room(
    24
).out(rms(x.view(2, 2, 6), None, 0.01)).end()
for b in (None, rnd(9)):
    x, w = rnd(2, 9, scale=2) + 3, rnd(9)
    Case(
        "layernorm",
        "bias" if b is not None else "plain",
        dim=9,
        groups=1,
        per_group=0,
        eps=0.02,
        plus_one=0,
    ).step([0, 1]).f32(x).vector(w).vector(b).room(18).out(layer(x, w, b, 0.02)).end()
Case("layernorm", "plus_one", dim=9, groups=1, per_group=0, eps=0.02, plus_one=1).step([0, 1]).f32(
    x
).vector(w).none().room(18).out(layer(x, w + 1, None, 0.02)).end()
Case("layernorm", "unit", dim=9, groups=1, per_group=0, eps=0.02, plus_one=0).step([0, 1]).f32(
    x
).none().none().room(18).out(layer(x, None, None, 0.02)).end()
for b in (None, rnd(4)):
    x, w = rnd(3, 19), rnd(4, 19)
    Case("matmul", "bias" if b is not None else "plain", rows=4, cols=19).step([0, 1, 2]).f32(
        x
    ).weight(w).vector(b).room(12).out(F.linear(x, w, b)).end()
x = rnd(3, 8)
Case("slice", "middle", width=8, first=2, count=5).step([0, 1, 2]).f32(x).room(15).out(
    x[:, 2:7]
).end()
for style in ("half", "interleaved"):
    x, ang = rnd(3, 2, 10), angles([0, 5, 77], 6)
    y = x.clone()
    y[..., 3:9] = rotate(x[..., 3:9], ang, style)
    Case("rope", style, heads=2, dim=10, first=3, rope_dims=6, style=style).step([0, 5, 77]).f32(
        x
    ).arg(f"rope 6 {numbers(ang)}").room(60).out(y).end()
x, a1, a2 = rnd(3, 2, 8), angles([3, 4, 4], 4), angles([0, 1, 2], 4)
y = torch.cat([rotate(x[..., :4], a1, "half"), rotate(x[..., 4:], a2, "half")], -1)
Case("rope_2d", "half", heads=2, dim=8, rope_dims=4, style="half").step([3, 4, 5]).f32(x).arg(
    f"rope 4 {numbers(a1)}"
).arg(f"rope 4 {numbers(a2)}").room(48).out(y).end()
for act in ACT:
    x, u = rnd(2, 7, scale=3), rnd(2, 7)
    Case("act", act, width=7, act=act).step([0, 1]).f32(x).none().room(14).out(ACT[act](x)).end()
    Case("glu", act, width=7, act=act, limit=0.0).step([0, 1]).f32(x).f32(u).room(14).out(
        ACT[act](x) * u
    ).end()
x, u, p = rnd(2, 7, scale=3), rnd(2, 7, scale=3), rnd(2)
for act, limit in (("silu", 1.25), ("swiglu_oai", 0.0), ("swiglu_oai", 1.5)):
    Case("glu", f"{act}_{limit}", width=7, act=act, limit=limit).step([0, 1]).f32(x).f32(u).room(
        14
    ).out(glu(x, u, act, limit)).end()
x[0, 0], x[0, 1], x[1, 6] = 0, -1e-7, -60
ap, an = F.softplus(p[0]), 0.5 + F.softplus(p[1])
y = torch.where(x > 0, ap * x * x + 0.5 * x, (torch.expm1(x.clamp(max=-1e-6)) - x) * an + 0.5 * x)
Case("act", "xielu", width=7, act="xielu").step([0, 1]).f32(x).vector(p).room(14).out(y).end()
x, r = rnd(2, 7), rnd(2, 7)
Case("add", "scaled", width=7, scale=2.5).step([0, 1]).f32(x).f32(r).room(14).out(2.5 * x + r).end()
s = rnd(2, 1)
Case("gate_mul", "plain", width=7, groups=1, gate="sigmoid").step([0, 1]).f32(x).f32(s).room(
    14
).out(x * torch.sigmoid(s)).end()
x = rnd(2, 7, scale=5)
Case("softcap", "plain", width=7, scale=1.0, softcap=3.0).step([0, 1]).f32(x).room(14).out(
    3 * torch.tanh(x / 3)
).end()
Case("softcap", "scaled", width=7, scale=0.7, softcap=3.0).step([0, 1]).f32(x).room(14).out(
    3 * torch.tanh(0.7 * x / 3)
).end()
Case("softcap", "none", width=7, scale=0.7, softcap=0.0).step([0, 1]).f32(x).room(14).out(
    0.7 * x
).end()
x = rnd(4, 3)
Case("gather_rows", "two", width=3).step([0, 1, 2, 3], out_row=[1, 3]).f32(x).room(6).out(
    x[[1, 3]]
).end()


# --- attention: computed by torch, with mask and biases as an additive matrix
def slopes(heads, max_bias=8.0):
    """Return ALiBi slopes by the recursion over powers of two in the paper's appendix."""

    def power(n):
        start = 2 ** (-max_bias / n)
        return [start ** (i + 1) for i in range(n)]

    if math.log2(heads).is_integer():
        return power(heads)
    near = 2 ** math.floor(math.log2(heads))
    return power(near) + slopes(2 * near, max_bias)[0::2][: heads - near]


def attend(
    q, k, v, pos, scale, cap=0.0, window=0, prefix=0, alibi=0.0, sink=None, chunk=0, both=False
):
    heads, kv_heads = q.shape[1], k.shape[1]
    k, v = (t.repeat_interleave(heads // kv_heads, 1) for t in (k, v))
    s = torch.einsum("thd,jhd->htj", q, k) * scale
    if cap:
        s = cap * torch.tanh(s / cap)
    j, p = torch.arange(k.shape[0])[None], torch.tensor(pos)[:, None]
    if alibi:
        s = s + torch.tensor(slopes(heads, alibi))[:, None, None] * (j - p)
    seen = (j <= p) | (j < prefix)
    if window:
        seen &= (j // window == p // window) if chunk else j > p - window
    if both:
        seen = (j - p).abs() < window if window else torch.ones_like(seen)
    s = s.masked_fill(~seen, -math.inf)
    if sink is not None:  # a sink is one more column, with value 0
        s = torch.cat([s, sink[:, None, None].expand(-1, s.shape[1], 1)], -1)
    return torch.einsum("htj,jhd->thd", s.softmax(-1)[..., : k.shape[0]], v)


def half_precision(t, dtype):
    return t.half().double() if dtype == "f16" else t


ATT = [  # name, heads, kv, dim, v_dim, cap, window, prefix, alibi, dtype
    ("gqa", 6, 2, 6, 6, 0.0, 0, 0, 0.0, "f32"),
    ("f16", 2, 2, 4, 4, 0.0, 0, 0, 0.0, "f16"),
    ("v_dim", 3, 1, 6, 4, 0.0, 0, 0, 0.0, "f32"),
    ("softcap", 2, 1, 4, 4, 1.5, 0, 0, 0.0, "f32"),
    ("window", 2, 1, 4, 4, 0.0, 9, 0, 0.0, "f32"),
    ("prefix", 2, 1, 4, 4, 0.0, 0, 38, 0.0, "f32"),
    ("alibi", 8, 8, 4, 4, 0.0, 0, 0, 8.0, "f32"),
    ("alibi_odd", 6, 6, 4, 4, 0.0, 0, 0, 8.0, "f32"),
    ("sinks", 6, 2, 6, 6, 0.0, 0, 0, 0.0, "f32"),
    ("sinks_window", 2, 1, 4, 4, 0.0, 3, 0, 0.0, "f32"),
]
for name, heads, kv, dim, v_dim, cap, window, prefix, alibi, dtype in ATT:
    seqs = [40, 3]
    pos, seq_of = [5, 37, 38, 39, 1, 2], [0, 0, 0, 0, 1, 1]
    k, v, q = rnd(43, kv, dim, scale=2), rnd(43, kv, v_dim), rnd(6, heads, dim)
    kk, vv = half_precision(k, dtype), half_precision(v, dtype)
    sink = rnd(heads, scale=3) if "sinks" in name else None
    args = dict(scale=0.7, cap=cap, window=window, alibi=alibi, sink=sink)
    y = torch.cat(
        [
            attend(q[:4], kk[:40], vv[:40], pos[:4], prefix=prefix, **args),
            attend(q[4:], kk[40:], vv[40:], pos[4:], prefix=0, **args),
        ]
    )
    Case(
        "attention",
        name,
        heads=heads,
        kv_heads=kv,
        dim=dim,
        v_dim=v_dim,
        scale=0.7,
        softcap=cap,
        window=window,
        chunk=0,
        mask="prefix" if prefix else "causal",
        alibi=alibi,
        alibi_first=0,
        alibi_heads=0,
    ).step(pos, seq_of, kv_len=seqs, prefix=[prefix, 0]).f32(q).pool(
        False, kv, dim, v_dim, dtype, k, v, seqs
    ).none().vector(sink).room(6 * heads * v_dim).out(y).end()

# This case checks at which position of a page the op writes each element.
k, v = rnd(35, 2, 4), rnd(35, 2, 3)
page = 32 * 2 * (4 + 3)
want = torch.zeros(2, page)
for p in range(35):
    for h in range(2):
        for i in range(4):
            want[p // 32, (h * 4 + i) * 32 + p % 32] = k[p, h, i]
        for i in range(3):
            want[p // 32, 32 * 2 * 4 + (h * 32 + p % 32) * 3 + i] = v[p, h, i]
Case("kv_append", "pages", kv_heads=2, dim=4, v_dim=3).step(list(range(35))).f32(k).f32(v).pool(
    False, 2, 4, 3, "f32"
).none().out(want, 2).end()
c, r = rnd(35, 5), rnd(35, 2)
want = torch.zeros(2, 32 * 7)
for p in range(35):
    want[p // 32, (p % 32) * 7 : (p % 32) * 7 + 7] = torch.cat([c[p], r[p]])
Case("mla_append", "pages", kv_rank=5, rope_dim=2).step(list(range(35))).f32(c).f32(r).pool(
    True, 1, 7, 0, "f32"
).none().out(want, 2).end()

# MLA in the unabsorbed form: keys and values are expanded, and plain attention follows
heads, rank, nope, rope, v_dim = 3, 5, 4, 2, 6
c, r, q = rnd(40, rank), rnd(40, rope), rnd(3, heads, nope + rope)
k_b, v_b = rnd(heads * nope, rank), rnd(heads * v_dim, rank)
k = torch.cat([F.linear(c, k_b).view(40, heads, nope), r[:, None].expand(40, heads, rope)], -1)
y = attend(q, k, F.linear(c, v_b).view(40, heads, v_dim), [3, 38, 39], 0.4)
Case(
    "mla_attention",
    "absorbed",
    heads=heads,
    kv_rank=rank,
    nope_dim=nope,
    rope_dim=rope,
    v_dim=v_dim,
    index_top_k=0,
    scale=0.4,
).step([3, 38, 39], kv_len=[40]).f32(q).weight(k_b).weight(v_b).pool(
    True, 1, rank + rope, 0, "f32", c, r, [40]
).none().none().room(3 * heads * v_dim).out(y).end()


# --- experts
def route(x, bias, top_k, score, renorm, scale, groups, keep, group_score, sum_eps=1e-20):
    s = x.sigmoid() if score == "sigmoid" else x.softmax(-1)
    choice = s + (bias if bias is not None else 0)
    if groups > 1:
        g = choice.view(x.shape[0], groups, -1)
        best = g.topk(2, -1).values.sum(-1) if group_score == "top2" else g.amax(-1)
        keep_mask = torch.zeros_like(best).scatter(1, best.topk(keep, -1).indices, 1.0)
        choice = choice.masked_fill(keep_mask.repeat_interleave(g.shape[-1], 1) == 0, -math.inf)
    ids = choice.topk(top_k, -1).indices
    wt = s.gather(1, ids)
    if renorm:
        wt = wt / (wt.sum(-1, keepdim=True) + sum_eps)
    return ids, wt * scale


for name, bias, score, renorm, scale, groups, keep, gs in (
    ("softmax", 0, "softmax", 0, 1.0, 1, 1, "max"),
    ("renorm", 0, "softmax", 1, 1.0, 1, 1, "max"),
    ("v2", 0, "softmax", 0, 16.0, 4, 2, "max"),
    ("v3", 1, "sigmoid", 1, 2.5, 4, 2, "top2"),
):
    x, b = rnd(6, 8, scale=2), rnd(8, scale=0.5) if bias else None
    ids, wt = route(x, b, 3, score, renorm, scale, groups, keep, gs)
    Case(
        "moe_route",
        name,
        n_experts=8,
        top_k=3,
        score=score,
        renorm=renorm,
        sum_eps=1e-20,
        scale=scale,
        jitter=0.0,
        groups=groups,
        top_k_groups=keep,
        group_score=gs,
    ).step(list(range(6))).f32(x).vector(b).room(18, "i32").out(ids).room(18).out(wt).end()
wt = rnd(3, 2)
x, g, u, d = rnd(3, 5), rnd(4, 6, 5), rnd(4, 6, 5), rnd(4, 5, 6)
zero = torch.zeros(4, 6).double(), torch.zeros(4, 6).double(), torch.zeros(4, 5).double()
chosen = torch.tensor([[2, 0], [3, 2], [0, 3]])
for name, act, limit, elsewhere, ids, (gb, ub, db) in (
    ("silu", "silu", 0.0, 0, chosen, zero),
    ("biases", "swiglu_oai", 0.75, 0, chosen, (rnd(4, 6), rnd(4, 6), rnd(4, 5))),
    ("elsewhere", "silu", 0.0, 3, torch.tensor([[-1, 2], [-1, -1], [0, 3]]), zero),
):
    y = torch.stack(
        [
            sum(
                (
                    wt[t, k]
                    * (d[e] @ glu(g[e] @ x[t] + gb[e], u[e] @ x[t] + ub[e], act, limit) + db[e])
                    for k, e in enumerate(ids[t])
                    if e >= 0
                ),
                start=0 * x[t],
            )
            for t in range(3)
        ]
    )
    case = (
        Case(
            "moe_ffn",
            name,
            n_experts=4,
            n_remote_experts=elsewhere,
            top_k=2,
            x_rows_per_token=1,
            hidden=5,
            width=6,
            act=act,
            limit=limit,
        )
        .step([0, 1, 2])
        .f32(x)
        .i32(ids)
        .f32(wt)
        .weight(g.view(24, 5))
        .weight(u.view(24, 5))
        .weight(d.view(20, 6))
    )
    case = (
        case.none().none().none()
        if name != "biases"
        else case.vector(gb.view(-1)).vector(ub.view(-1)).vector(db.view(-1))
    )
    case.room(15).out(y).end()


# --- fused
def normed(x, kind, w, b, eps, plus_one):
    return (
        rms(x, w, eps, plus_one) if kind == "rms" else layer(x, w, b, eps) if kind == "layer" else x
    )


for kind, plus_one in (("rms", 1), ("layer", 0), ("none", 0), ("layer", 1)):
    x, nw, nb = rnd(3, 9), rnd(9) if kind != "none" else None, rnd(9) if kind == "layer" else None
    n = normed(x, kind, nw + 1 if kind == "layer" and plus_one else nw, nb, 0.03, plus_one)
    kind_name = kind + "_plus_one" * (kind == "layer" and plus_one)
    common = dict(cols=9, norm=kind, eps=0.03, plus_one=plus_one)
    w, b = rnd(4, 9), rnd(4)
    Case("norm_matmul", kind_name, rows=4, **common).step([0, 1, 2]).f32(x).vector(nw).vector(
        nb
    ).weight(w).vector(b).room(12).out(F.linear(n, w, b)).end()
    Case("norm_act", kind_name, rows=4, act="gelu", **common).step([0, 1, 2]).f32(x).vector(
        nw
    ).vector(nb).weight(w).vector(b).room(12).out(F.gelu(F.linear(n, w, b))).end()
    Case("norm_glu", kind_name, rows=2, act="silu", limit=0.0, **common).step([0, 1, 2]).f32(
        x
    ).vector(nw).vector(nb).weight(w).none().room(6).out(
        F.silu(F.linear(n, w[:2])) * F.linear(n, w[2:])
    ).end()
    Case(
        "lm_head",
        kind_name,
        rows=4,
        scale=1.5 if kind != "none" else 1.0,
        softcap=2.0 if plus_one else 0.0,
        **common,
    ).step([0, 1, 2], out_row=[0, 2]).f32(x).vector(nw).vector(nb).weight(w).room(8).out(
        (
            2 * torch.tanh(1.5 * F.linear(n, w) / 2)
            if plus_one
            else (1.5 if kind == "layer" else 1) * F.linear(n, w)
        )[[0, 2]]
    ).end()
x, w, b, r = rnd(3, 9), rnd(4, 9), rnd(4), rnd(3, 4)
Case("matmul_add", "scaled", rows=4, cols=9, scale=1.25).step([0, 1, 2]).f32(x).weight(w).vector(
    b
).f32(r).room(12).out(1.25 * r + F.linear(x, w, b)).end()
for name, style, qk, with_rope in (
    ("half", "half", True, True),
    ("interleaved", "interleaved", False, True),
    ("no_rope", "half", False, False),
):
    heads, kv, dim, hidden, pos = 4, 2, 6, 9, [0, 1, 2]
    x, nw, w, b = (
        rnd(3, hidden),
        rnd(hidden),
        rnd((heads + 2 * kv) * dim, hidden),
        rnd((heads + 2 * kv) * dim),
    )
    qn, kn = (rnd(dim), rnd(dim)) if qk else (None, None)
    qkv = F.linear(rms(x, nw, 0.01), w, b).view(3, -1, dim)
    q, k, v = qkv.split([heads, kv, kv], 1)
    if qk:
        q, k = rms(q, qn, 0.5, 1), rms(k, kn, 0.5, 1)
    ang = angles(pos, 4)
    if with_rope:
        q, k = (torch.cat([rotate(t[..., :4], ang, style), t[..., 4:]], -1) for t in (q, k))
    want = torch.zeros(32 * kv * dim * 2)
    for p in range(3):
        for h in range(kv):
            for i in range(dim):
                want[(h * dim + i) * 32 + p] = k[p, h, i]
                want[32 * kv * dim + (h * 32 + p) * dim + i] = v[p, h, i]
    case = (
        Case(
            "norm_qkv",
            name,
            hidden=hidden,
            heads=heads,
            kv_heads=kv,
            dim=dim,
            norm="rms",
            eps=0.01,
            plus_one=0,
            qk_eps=0.5,
            qk_plus_one=1,
            rope_dims=4,
            style=style,
        )
        .step(pos)
        .f32(x)
        .vector(nw)
        .none()
        .weight(w)
        .vector(b)
        .vector(qn)
        .vector(kn)
    )
    case.arg(f"rope 4 {numbers(ang)}") if with_rope else case.none()
    case.pool(False, kv, dim, dim, "f32").room(3 * heads * dim).out(q).none().out(want, 8).end()

# MoE in three steps: the results of the first two equal those of the unfused ops
for name, bias, score, renorm, scale, groups, keep, gs, mix in (
    ("softmax", 0, "softmax", 1, 1.0, 1, 1, "max", 0),
    ("v3", 1, "sigmoid", 1, 2.5, 4, 2, "top2", 0),
    ("mix", 0, "softmax", 0, 1.0, 1, 1, "max", 1),
    ("biased", 0, "softmax", 1, 1.0, 1, 1, "max", 0),
):
    x, nw, w, b = rnd(3, 9), rnd(9), rnd(8 + mix, 9), rnd(8, scale=0.5) if bias else None
    lb = rnd(8) if name == "biased" else None
    logits = F.linear(rms(x, nw, 0.02), w, lb)
    ids, wt = route(logits[:, :8], b, 3, score, renorm, scale, groups, keep, gs)
    if mix:
        wt = torch.cat([wt, logits[:, 8:].sigmoid()], 1)
    Case(
        "norm_route",
        name,
        n_experts=8,
        top_k=3,
        hidden=9,
        shared_gate=mix,
        score=score,
        renorm=renorm,
        sum_eps=1e-20,
        scale=scale,
        jitter=0.0,
        groups=groups,
        top_k_groups=keep,
        group_score=gs,
        norm="rms",
        eps=0.02,
        plus_one=0,
    ).step([0, 1, 2]).f32(x).vector(nw).none().weight(w).vector(lb).vector(b).room(9, "i32").out(
        ids
    ).room(wt.numel()).out(wt).end()
for name, shared, mix, scale, act, limit in (
    ("routed", 0, 0, 1.0, "gelu", 0.0),
    ("shared", 7, 0, 1.5, "gelu", 0.0),
    ("gated", 7, 1, 1.0, "gelu", 0.0),
    ("biased", 0, 0, 1.0, "swiglu_oai", 0.75),
    ("biased_shared", 7, 0, 1.0, "silu", 0.5),
):
    ids, wt = torch.tensor([[2, 0], [3, 2], [0, 3]]), rnd(3, 2 + mix)
    x, nw, g, u, d = rnd(3, 5), rnd(5), rnd(4, 6, 5), rnd(4, 6, 5), rnd(4, 5, 6)
    sg, su, sd, r = rnd(7, 5), rnd(7, 5), rnd(5, 7), rnd(3, 5)
    n = rms(x, nw, 0.02)
    gb, ub, db = (rnd(4, 6), rnd(4, 6), rnd(4, 5)) if "biased" in name else zero
    h = torch.stack(
        [
            torch.cat([glu(g[e] @ n[t] + gb[e], u[e] @ n[t] + ub[e], act, limit) for e in ids[t]])
            for t in range(3)
        ]
    )
    if shared:
        h = torch.cat([h, glu(F.linear(n, sg), F.linear(n, su), act, limit)], 1)
    sizes = dict(n_experts=4, n_remote_experts=0, top_k=2, hidden=5, width=6, shared=shared)
    case = (
        Case(
            "norm_moe_glu",
            name,
            n_experts=4,
            n_remote_experts=0,
            top_k=2,
            x_rows_per_token=1,
            hidden=5,
            width=6,
            shared=shared,
            act=act,
            limit=limit,
            norm="rms",
            eps=0.02,
            plus_one=0,
        )
        .step([0, 1, 2])
        .f32(x)
        .vector(nw)
        .none()
        .i32(ids)
        .weight(g.view(24, 5))
        .weight(u.view(24, 5))
    )
    case = case.vector(gb.view(-1)).vector(ub.view(-1)) if "biased" in name else case.none().none()
    case = case.weight(sg).weight(su) if shared else case.none().none()
    case.none().room(h.numel()).out(h).end()
    h = rnd(*h.shape)
    y = torch.stack(
        [
            sum(wt[t, k] * (d[e] @ h[t, 6 * k : 6 * k + 6] + db[e]) for k, e in enumerate(ids[t]))
            for t in range(3)
        ]
    )
    if shared:
        y = y + F.linear(h[:, 12:], sd) * (wt[:, 2:] if mix else 1)
    if not mix:
        y = y + scale * r
    case = (
        Case("moe_down_add", name, **sizes, shared_gate=mix, scale=scale)
        .step([0, 1, 2])
        .f32(h)
        .i32(ids)
        .f32(wt)
        .weight(d.view(20, 6))
    )
    case = case.vector(db.view(-1)) if "biased" in name else case.none()
    case = case.weight(sd) if shared else case.none()
    (case.none() if mix else case.f32(r)).room(15).out(y).end()

# latent attention in its two fused forms; the number of rows determines the form
heads, rank, nope, rope, v_dim = 3, 5, 4, 2, 6
c, r, q = rnd(40, rank), rnd(40, rope), rnd(3, heads, nope + rope)
k_b, v_b = rnd(heads * nope, rank), rnd(heads * v_dim, rank)
k = torch.cat([F.linear(c, k_b).view(40, heads, nope), r[:, None].expand(40, heads, rope)], -1)
for form, expand in (("absorbed", 0), ("expanded", 3)):
    wide = torch.zeros(3, heads, rank + rope)
    if expand:
        wide[..., : nope + rope] = q
    else:
        wide[..., :rank] = torch.einsum("thi,hir->thr", q[..., :nope], k_b.view(heads, nope, rank))
        wide[..., rank:] = q[..., nope:]
    wide = wide.float().double()
    v_b4 = v_b.view(heads, v_dim, rank)[:, :4]
    case = (
        Case(
            "mla_attend",
            form,
            heads=heads,
            kv_rank=rank,
            nope_dim=nope,
            rope_dim=rope,
            v_dim=4 if expand else v_dim,
            expand=expand,
            index_top_k=0,
            scale=0.4,
        )
        .step([3, 38, 39], kv_len=[40])
        .f32(wide)
    )
    case.weight(k_b).weight(v_b4.reshape(-1, rank)) if expand else case.none().none()
    if expand:
        o = torch.zeros(3, heads, rank)
        o[..., :4] = attend(
            q, k, F.linear(c, v_b4.reshape(-1, rank)).view(40, heads, 4), [3, 38, 39], 0.4
        )
    else:
        key = torch.cat([c, r], -1)[:, None].expand(40, heads, rank + rope)
        o = attend(wide, key, c[:, None].expand(40, heads, rank), [3, 38, 39], 0.4)
    case.pool(True, 1, rank + rope, 0, "f32", c, r, [40]).none().none().room(3 * heads * rank).out(
        o
    ).end()
    o, n_v = rnd(3, heads, rank), 4 if expand else v_dim
    w = rnd(heads * n_v, rank)
    Case(
        "mla_value", form, heads=heads, kv_rank=rank, v_dim=n_v, expand=expand, index_top_k=0
    ).step([3, 38, 39], kv_len=[40]).f32(o).weight(w).room(3 * heads * n_v).out(
        o[..., :4] if expand else torch.einsum("thr,hvr->thv", o, w.view(heads, n_v, rank))
    ).end()

    for q_rank, style, stacked in ((7, "interleaved", 1), (0, "half", 0)):
        pos, dim = [0, 1, 2], nope + rope
        low, both, qn = (
            rnd(3, q_rank or heads * dim),
            rnd(3, rank + rope),
            rnd(7) if q_rank else None,
        )
        q_b, kvn, ang = rnd(heads * dim, 7) if q_rank else None, rnd(rank), angles(pos, rope)
        full = (F.linear(rms(low, qn, 0.02), q_b) if q_rank else low).view(3, heads, dim)
        turned = rotate(full[..., nope:], ang, style)
        wide = torch.zeros(3, heads, rank + rope)
        if expand:
            wide[..., :dim] = torch.cat([full[..., :nope], turned], -1)
        else:
            wide = torch.cat(
                [
                    torch.einsum("thi,hir->thr", full[..., :nope], k_b.view(heads, nope, rank)),
                    turned,
                ],
                -1,
            )
        page = torch.zeros(32, rank + rope)
        page[:3] = torch.cat(
            [rms(both[:, :rank], kvn, 0.02), rotate(both[:, None, rank:], ang, style)[:, 0]], -1
        )
        case = Case(
            "mla_query",
            f"{form}_{style}",
            heads=heads,
            q_rank=q_rank,
            kv_rank=rank,
            nope_dim=nope,
            rope_dim=rope,
            fused=stacked,
            expand=expand,
            index_top_k=0,
            eps=0.02,
            style=style,
        ).step(pos)
        case.f32(torch.cat([low, both], -1)).none() if stacked else case.f32(low).f32(both)
        case.vector(qn)
        case.weight(q_b) if q_rank else case.none()
        case.vector(kvn).weight(k_b).arg(f"rope {rope} {numbers(ang)}").pool(
            True, 1, rank + rope, 0, "f32"
        )
        case.room(3 * heads * (rank + rope)).out(wide).none().out(page, 7).end()

# gates per group of a row, and gates per element
for groups in (3, 12):
    x, s = rnd(2, 12), rnd(2, groups)
    Case("gate_mul", f"groups{groups}", width=12, groups=groups, gate="sigmoid").step([0, 1]).f32(
        x
    ).f32(s).room(24).out(x * torch.sigmoid(s).repeat_interleave(12 // groups, 1)).end()

# Recurrent states: the first sequence continues after position 4, the second starts and must ignore
# the old contents of its slot. One has more rows than the window, the other fewer
POS, SEQ = [4, 5, 6, 7, 8, 0, 1], [0, 0, 0, 0, 0, 1, 1]
for gate, taps, bias in (("silu", 4, None), ("none", 5, rnd(3)), ("none", 2, rnd(3))):
    width, n = 3, [5, 2]
    x, w, old = rnd(7, width), rnd(width, taps), rnd(2, 1, taps - 1, width)
    y, new = [], []
    for q, rows in enumerate(x.split(n)):
        padded = torch.cat([old[q, 0] if q == 0 else torch.zeros(taps - 1, width), rows])
        y.append(F.conv1d(padded.T[None], w[:, None], bias, groups=width)[0].T)
        new.append(padded[-(taps - 1) :])
    y = torch.cat(y)
    Case("conv1d", f"{gate}{taps}", width=width, taps=taps, gate=gate).step(POS, SEQ).f32(x).vector(
        w
    ).vector(bias).state(1, taps - 1, width, old).room(7 * width).out(
        F.silu(y) if gate == "silu" else y
    ).out(torch.stack(new), 3).end()

for name, k_heads, v_heads, k_dim, v_dim, channel, tiled, a_log, b_scale in (
    ("grouped", 2, 4, 3, 5, False, 0, 1, 1.0),
    ("tiled", 2, 6, 3, 2, False, 1, 0, 2.0),
    ("channel", 2, 2, 4, 3, True, 0, 1, 1.0),
):
    g_dim = k_dim if channel else 1
    q, k, v = rnd(7, k_heads, k_dim), rnd(7, k_heads, k_dim), rnd(7, v_heads, v_dim)
    a, b, rate, dt, old = (
        rnd(7, v_heads, g_dim),
        rnd(7, v_heads),
        rnd(v_heads),
        rnd(v_heads, g_dim),
        rnd(2, v_heads, k_dim, v_dim),
    )
    rate = rate if a_log else -rate.abs()
    unit = lambda u: u * torch.rsqrt((u * u).sum(-1, keepdim=True) + 1e-3)
    of = torch.arange(v_heads) % k_heads if tiled else torch.arange(v_heads) * k_heads // v_heads
    decay = ((-rate.exp() if a_log else rate)[:, None] * F.softplus(a + dt)).exp()
    y, new = [], []
    for s, rows in zip((old[0], torch.zeros_like(old[1])), (range(5), range(5, 7))):
        for t in rows:
            key, query = unit(k[t])[of], unit(q[t])[of] * 0.7
            s = s * decay[t][:, :, None]
            s = s + torch.einsum(
                "hi,hj->hij",
                key,
                b_scale
                * torch.sigmoid(b[t])[:, None]
                * (v[t] - torch.einsum("hij,hi->hj", s, key)),
            )
            y.append(torch.einsum("hij,hi->hj", s, query))
        new.append(s)
    x = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], 1)
    Case(
        "delta_rule",
        name,
        k_heads=k_heads,
        v_heads=v_heads,
        k_dim=k_dim,
        v_dim=v_dim,
        g_dim=g_dim,
        scale=0.7,
        eps=1e-3,
        tiled=tiled,
        a_log=a_log,
        b_scale=b_scale,
    ).step(POS, SEQ).f32(x).f32(a).f32(b).vector(rate).vector(dt).state(
        v_heads, k_dim, v_dim, old
    ).room(7 * v_heads * v_dim).out(torch.stack(y)).out(torch.stack(new), 5).end()

for name, heads, groups, dim, n, a_log, least, most in (
    ("groups", 4, 2, 3, 5, 1, 0.0, 0.0),
    ("limits", 3, 1, 2, 4, 1, 0.4, 0.9),
    ("plain", 2, 2, 1, 6, 0, 0.3, 0.0),
):
    u, b, c, dt = rnd(7, heads, dim), rnd(7, groups, n), rnd(7, groups, n), rnd(7, heads)
    rate, bias, skip, old = rnd(heads), rnd(heads), rnd(heads), rnd(2, heads, n, dim)
    rate = rate if a_log else -rate.abs()
    each = lambda v: v.repeat_interleave(heads // groups, 0)
    d = F.softplus(dt + bias).clamp(least, most or math.inf)
    y, new = [], []
    for s, rows in zip((old[0], torch.zeros_like(old[1])), (range(5), range(5, 7))):
        for t in rows:
            s = s * ((-rate.exp() if a_log else rate) * d[t]).exp()[:, None, None] + torch.einsum(
                "hi,hj->hij", each(b[t]), d[t][:, None] * u[t]
            )
            y.append(torch.einsum("hij,hi->hj", s, each(c[t])) + skip[:, None] * u[t])
        new.append(s)
    x = torch.cat([u.flatten(1), b.flatten(1), c.flatten(1)], 1)
    Case(
        "selective_scan",
        name,
        heads=heads,
        dim=dim,
        groups=groups,
        n_state=n,
        a_log=a_log,
        dt_min=least,
        dt_max=most,
    ).step(POS, SEQ).f32(x).f32(dt).vector(rate).vector(bias).vector(skip).state(
        heads, n, dim, old
    ).room(7 * heads * dim).out(torch.stack(y)).out(torch.stack(new), 5).end()

for order, gate in (("norm_first", "silu"), ("gate_first", "silu"), ("norm_first", "sigmoid")):
    x, z = rnd(3, 2, 5), rnd(3, 2, 5)
    w = rnd(2, 5) if order == "gate_first" else rnd(5)
    g = F.silu(z) if gate == "silu" else torch.sigmoid(z)
    Case("norm_gate", f"{order}_{gate}", dim=5, groups=2, eps=0.02, order=order, gate=gate).step(
        [0, 1, 2]
    ).f32(x).f32(z).vector(w).room(30).out(
        rms(x * g, w, 0.02) if order == "gate_first" else rms(x, w, 0.02) * g
    ).end()

x, w = rnd(2, 7), rnd(1)
Case("scale_cols", "weight", width=7, scale=0.6, first=0, count=7).step([0, 1]).f32(x).vector(
    w
).room(14).out(0.6 * w * x).end()
Case("scale_cols", "plain", width=7, scale=-2.5, first=0, count=7).step([0, 1]).f32(x).none().room(
    14
).out(-2.5 * x).end()
Case("scale_cols", "part", width=7, scale=-2.5, first=2, count=3).step([0, 1]).f32(x).none().room(
    14
).out(torch.cat([x[:, :2], -2.5 * x[:, 2:5], x[:, 5:]], 1)).end()
x, w, chosen = rnd(3, 2), rnd(5), torch.tensor([[4, 0], [2, 2], [1, 3]])
Case("expert_gain", "plain", n_experts=5, top_k=2).step([0, 1, 2]).i32(chosen).f32(x).vector(
    w
).room(6).out(x * w[chosen]).end()

x = rnd(3, 4)
Case("pos_scale", "plain", width=4, scale=0.3, offset=1, base=5).step([3, 4, 15]).f32(x).room(
    12
).out(x * torch.tensor([[1], [1 + 0.3 * math.log(2)], [1 + 0.3 * math.log(4)]])).end()

for name, width, n, a_log in (("log", 5, 3, 1), ("plain", 3, 6, 0), ("one_row", 4, 1, 1)):
    u, dt, b, c = rnd(7, width), rnd(7, width), rnd(7, n), rnd(7, n)
    rate, bias, skip, old = rnd(width, n), rnd(width), rnd(width), rnd(2, 1, width, n)
    rate = rate if a_log else -rate.abs()
    d = F.softplus(dt + bias)
    y, new = [], []
    for s, rows in zip((old[0, 0], torch.zeros_like(old[1, 0])), (range(5), range(5, 7))):
        for t in rows:
            s = s * ((-rate.exp() if a_log else rate) * d[t][:, None]).exp() + torch.outer(
                d[t] * u[t], b[t]
            )
            y.append(s @ c[t] + skip * u[t])
        new.append(s)
    Case("channel_scan", name, width=width, n_state=n, a_log=a_log).step(POS, SEQ).f32(u).f32(
        dt
    ).f32(b).f32(c).vector(rate).vector(bias).vector(skip).state(1, width, n, old).room(
        7 * width
    ).out(torch.stack(y)).out(torch.stack(new), 7).end()

x, z = rnd(3, 5), rnd(3, 2)
Case("concat", "sides", width=5, count=2).step([0, 1, 2]).f32(x).f32(z).room(21).out(
    torch.cat([x, z], 1)
).end()

x, b = rnd(4, 8, scale=2), rnd(8, scale=0.5)
ids, wt = route(x, b, 3, "sigmoid", 1, 1.5, 1, 1, "max", 0.25)
Case(
    "moe_route",
    "sum_eps",
    n_experts=8,
    top_k=3,
    score="sigmoid",
    renorm=1,
    sum_eps=0.25,
    scale=1.5,
    jitter=0.0,
    groups=1,
    top_k_groups=1,
    group_score="max",
).step(list(range(4))).f32(x).vector(b).room(12, "i32").out(ids).room(12).out(wt).end()

# layer norms on heads; clamping; experts selected one at a time
for name, own, bias in (("shared", 0, 1), ("each", 1, 0)):
    x, w, b = rnd(2, 3, 4, scale=2) + 3, rnd(3, 4) if own else rnd(4), rnd(4) if bias else None
    y = torch.stack([layer(x[:, h], w[h] if own else w, b, 0.02) for h in range(3)], 1)
    Case("layernorm", name, dim=4, groups=3, per_group=own, eps=0.02, plus_one=0).step([0, 1]).f32(
        x
    ).vector(w.reshape(-1)).vector(b).room(24).out(y).end()
x = rnd(2, 7)
Case("clamp", "plain", width=7, limit=0.6).step([0, 1]).f32(x).room(14).out(
    x.clamp(-0.6, 0.6)
).end()


def mixer(x, top_k, jitter):
    """Select experts by the published algorithm: apply a threshold relative to each score and a
    softmax over the remaining scores, mask the best expert, and repeat."""
    scores, masked, ids, wt = x, x, [], []
    for _ in range(top_k):
        top, best = masked.max(-1, keepdim=True)
        factor = scores.abs().clamp(min=top)
        gates = masked.masked_fill((top - scores) / factor > 2 * jitter, -math.inf).softmax(-1)
        ids.append(best)
        wt.append(gates.gather(-1, best))
        masked = masked.scatter(-1, best, -math.inf)
    return torch.cat(ids, -1), torch.cat(wt, -1)


for top_k, jitter in ((2, 0.3), (5, 0.05)):
    x = rnd(6, 5, scale=2)
    ids, wt = mixer(x, top_k, jitter)
    Case(
        "moe_route",
        f"sparsemixer_{top_k}",
        n_experts=5,
        top_k=top_k,
        score="sparsemixer",
        renorm=0,
        sum_eps=1e-20,
        scale=1.5,
        jitter=jitter,
        groups=1,
        top_k_groups=1,
        group_score="max",
    ).step(list(range(6))).f32(x).none().room(6 * top_k, "i32").out(ids).room(6 * top_k).out(
        1.5 * wt
    ).end()

# attention in chunks; one expert per row with weighted input
k, v, q = rnd(40, 1, 4, scale=2), rnd(40, 1, 3), rnd(4, 2, 4)
y = attend(q, k, v, [5, 8, 9, 39], 0.7, window=9, chunk=1)
Case(
    "attention",
    "chunks",
    heads=2,
    kv_heads=1,
    dim=4,
    v_dim=3,
    scale=0.7,
    softcap=0.0,
    window=9,
    chunk=1,
    mask="causal",
    alibi=0.0,
    alibi_first=0,
    alibi_heads=0,
).step([5, 8, 9, 39], kv_len=[40]).f32(q).pool(
    False, 1, 4, 3, "f32", k, v, [40]
).none().none().room(24).out(y).end()
x, w = rnd(3, 5), rnd(3, 1)
Case("expert_input", "plain", hidden=5).step([0, 1, 2]).f32(x).f32(w).room(15).out(x * w).room(
    3
).out(torch.ones(3, 1)).end()

# limits after the activation, softplus gates
x, u = rnd(2, 7, scale=3), rnd(2, 7, scale=3)
for limit in (0.0, 1.25):
    Case("glu", f"silu_limit_{limit}", width=7, act="silu_limit", limit=limit).step([0, 1]).f32(
        x
    ).f32(u).room(14).out(silu_limit(x, u, limit)).end()
for groups in (3, 12):
    x, s = rnd(2, 12), rnd(2, groups, scale=6)
    s[0, 0], s[1, 2] = 40, -90
    Case("gate_mul", f"softplus{groups}", width=12, groups=groups, gate="softplus").step(
        [0, 1]
    ).f32(x).f32(s).room(24).out(x * F.softplus(s).repeat_interleave(12 // groups, 1)).end()

# an indexer: its keys, its selection, and latent attention over the selection. Scores of row 0 have few distinct values, so that positions break ties; row 1 attends to no more positions than are selected
k = rnd(35, 6)
want = torch.zeros(2, 32 * 6)
for p in range(35):
    want[p // 32, (p % 32) * 6 : (p % 32) * 6 + 6] = k[p]
Case("index_append", "pages", dim=6).step(list(range(35))).f32(k).pool(
    True, 1, 6, 0, "f32"
).none().out(want, 1).end()
for name, scale, few in (("scores", 0.3, 0), ("ties", 1.0, 1)):
    heads, dim, chosen, pos = 3, 6, 7, [39, 6, 7, 38]
    k, q, w = rnd(40, dim), rnd(4, heads, dim), rnd(4, heads)
    if few:
        k, q, w = k.round(), q.round(), torch.ones(4, heads)
    s = torch.einsum("th,thj->tj", w, (scale * torch.einsum("thd,jd->thj", q, k)).relu())
    want = torch.full((4, chosen), -1)
    for t, p in enumerate(pos):
        order = s[t, : p + 1].sort(descending=True, stable=True).indices[:chosen]
        want[t, : len(order)] = order.sort().values
    Case("index_select", name, heads=heads, dim=dim, index_top_k=chosen, scale=scale).step(
        pos, kv_len=[40]
    ).f32(q).f32(w).pool(True, 1, dim, 0, "f32", k, rnd(40, 0), [40]).none().room(
        4 * chosen, "i32"
    ).out(want).end()

heads, rank, nope, rope, v_dim, chosen = 3, 5, 4, 2, 6, 9
c, r, q = rnd(40, rank), rnd(40, rope), rnd(3, heads, nope + rope)
k_b, v_b = rnd(heads * nope, rank), rnd(heads * v_dim, rank)
sel = torch.full((3, chosen), -1)
sel[0, :4] = torch.arange(4)
sel[1], sel[2] = torch.arange(chosen) * 4 + 1, torch.arange(chosen) * 3 + 15
wide = (
    torch.cat(
        [torch.einsum("thi,hir->thr", q[..., :nope], k_b.view(heads, nope, rank)), q[..., nope:]],
        -1,
    )
    .float()
    .double()
)
y, o = [], []
for t in range(3):
    rows = sel[t][sel[t] >= 0]
    key = torch.cat(
        [F.linear(c[rows], k_b).view(-1, heads, nope), r[rows][:, None].expand(-1, heads, rope)], -1
    )
    p = (0.4 * torch.einsum("hd,jhd->hj", q[t], key)).softmax(-1)
    y.append(torch.einsum("hj,jhv->hv", p, F.linear(c[rows], v_b).view(-1, heads, v_dim)))
    p = (0.4 * wide[t] @ torch.cat([c[rows], r[rows]], -1).T).softmax(-1)
    o.append(p @ c[rows])
for op, x, want, more in (("mla_attention", q, y, {}), ("mla_attend", wide, o, dict(expand=0))):
    case = (
        Case(
            op,
            "chosen",
            heads=heads,
            kv_rank=rank,
            nope_dim=nope,
            rope_dim=rope,
            v_dim=v_dim,
            **more,
            index_top_k=chosen,
            scale=0.4,
        )
        .step([3, 38, 39], kv_len=[40])
        .f32(x)
    )
    case.none().none() if more else case.weight(k_b).weight(v_b)
    want = torch.stack(want)
    case.pool(True, 1, rank + rope, 0, "f32", c, r, [40]).none().i32(sel).room(want.numel()).out(
        want
    ).end()

# parallel streams; elements above the mean of their row
x = rnd(3, 9, scale=2)
m, d = x.mean(-1, keepdim=True), x.std(-1, keepdim=True, unbiased=False)
Case("gaussian_topk", "plain", width=9, scale=0.8).step([0, 1, 2]).f32(x).room(27).out(
    F.relu(x - m - 0.8 * d)
).end()
x, r = rnd(3, 7, scale=2), rnd(3, 7)
x[1] = 0
Case("match_rms", "plain", width=7, eps=0.01).step([0, 1, 2]).f32(x).f32(r).room(21).out(
    x
    * r.square().mean(-1, keepdim=True).sqrt()
    / x.square().mean(-1, keepdim=True).clamp(min=0.01).sqrt()
).end()
x, m, a, z, c = rnd(2, 3, 5), rnd(2, 3, 3), rnd(2, 5), rnd(2, 5), rnd(2, 3)
Case("stream_mix", "three", width=5, groups=3).step([0, 1]).f32(x).f32(m).room(30).out(
    x + torch.einsum("tij,tjw->tiw", m, x)
).end()
Case("stream_correct", "second", width=5, groups=3, first=1).step([0, 1]).f32(x).f32(a).f32(c).room(
    30
).out(x + (1 + c)[..., None] * (a - x[:, 1])[:, None]).end()
Case("stream_add", "but_first", width=5, groups=3, first=1).step([0, 1]).f32(x).f32(z).room(30).out(
    x + z[:, None] * torch.tensor([0.0, 1, 1])[:, None]
).end()

# rows for experts with permuted columns, and experts that read such rows
x, order, ids = (
    rnd(3, 5),
    torch.stack([torch.randperm(5) for _ in range(4)]),
    torch.tensor([[2, 0], [3, 2], [0, 3]]),
)
rows = torch.stack([torch.stack([x[t][order[e]] for e in ids[t]]) for t in range(3)])
Case("permute_expert_cols", "plain", n_experts=4, top_k=2, width=5).step([0, 1, 2]).f32(x).i32(
    ids
).vector(order.double().view(-1)).room(30).out(rows).end()
wt, g, u, d = rnd(3, 2), rnd(4, 6, 5), rnd(4, 6, 5), rnd(4, 5, 6)
h = torch.stack(
    [
        torch.stack(
            [glu(g[e] @ rows[t, k], u[e] @ rows[t, k], "silu", 0.0) for k, e in enumerate(ids[t])]
        )
        for t in range(3)
    ]
)
y = torch.stack([sum(wt[t, k] * (d[e] @ h[t, k]) for k, e in enumerate(ids[t])) for t in range(3)])
sizes = dict(n_experts=4, n_remote_experts=0, top_k=2, x_rows_per_token=2, hidden=5, width=6)
Case("moe_ffn", "spread", **sizes, act="silu", limit=0.0).step([0, 1, 2]).f32(rows.view(3, 10)).i32(
    ids
).f32(wt).weight(g.view(24, 5)).weight(u.view(24, 5)).weight(
    d.view(20, 6)
).none().none().none().room(15).out(y).end()
Case(
    "norm_moe_glu",
    "spread",
    **sizes,
    shared=0,
    act="silu",
    limit=0.0,
    norm="none",
    eps=0.0,
    plus_one=0,
).step([0, 1, 2]).f32(rows.view(3, 10)).none().none().i32(ids).weight(g.view(24, 5)).weight(
    u.view(24, 5)
).none().none().none().none().none().room(h.numel()).out(h.view(3, 12)).end()

# --- encoders
x, w = rnd(3, 5), rnd(2, 5)
Case("embed_type", "rows", hidden=5, types=2).step([0, 1, 2], pos2=[1, 0, 1]).f32(x).weight(w).room(
    15
).out(x + w[[1, 0, 1]]).end()
for name, window in (("none", 0), ("none_window", 9)):
    k, v, q = rnd(43, 1, 4, scale=2), rnd(43, 1, 4), rnd(6, 2, 4)
    pos = [5, 37, 0, 39, 1, 2]
    y = torch.cat(
        [
            attend(q[:4], k[:40], v[:40], pos[:4], 0.7, window=window, both=True),
            attend(q[4:], k[40:], v[40:], pos[4:], 0.7, window=window, both=True),
        ]
    )
    Case(
        "attention",
        name,
        heads=2,
        kv_heads=1,
        dim=4,
        v_dim=4,
        scale=0.7,
        softcap=0.0,
        window=window,
        chunk=0,
        mask="none",
        alibi=0.0,
        alibi_first=0,
        alibi_heads=0,
    ).step(pos, [0, 0, 0, 0, 1, 1], kv_len=[40, 3]).f32(q).pool(
        False, 1, 4, 4, "f32", k, v, [40, 3]
    ).none().none().room(48).out(y).end()

# --- rows of images
x, r = rnd(4, 3), rnd(4, 3)
for mean in (0, 1):
    y = torch.stack([x[:2], x[2:]])
    y = y.mean(1) if mean else y.reshape(2, 6)
    Case("merge_rows", ("concat", "mean")[mean], width=3, count=2, mean=mean).step(
        [0, 1, 2, 3], out_row=[1, 3]
    ).f32(x).room(y.numel()).out(y).end()
Case("scatter_rows", "two", width=3).step([0, 1, 2, 3], pos2=[0, 1, 0, 1]).f32(x).f32(r).room(
    12
).out(torch.stack([x[0], r[1], x[2], r[3]])).end()

with open(OUT, "w") as f:
    f.write("\n".join(lines) + "\n")
print(f"{OUT}: {sum(l.startswith('case') for l in lines)} cases, {os.path.getsize(OUT)} bytes")
