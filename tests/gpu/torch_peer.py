#!/usr/bin/env python3
"""PyTorch on the same shapes: bf16 random weights, static KV cache, SDPA, every step in a CUDA
graph; and the time of prefill GEMMs alone (F.linear uses the choice of cuBLASLt's heuristics).

Reads requests from stdin, one per line: {"model": NAME, "decode": [[batch, depth], ...], "prefill":
[tokens, ...]}. Answers with one JSON line per figure, then {"done": NAME}. --cpu runs without GPU
and graphs, to test the script."""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F

# layers, hidden, heads, kv heads, head size, ffn (per expert), vocabulary, q/k norm; experts,
# chosen experts, size of the shared expert, ffn of a
SHAPES = {
    # dense first layer. Layers of MoE models: figures.py
    "llama3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, False),
    "llama3-8b": (32, 4096, 32, 8, 128, 14336, 128256, False),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936, True),
    "mixtral-8x7b": (8, 4096, 32, 8, 128, 14336, 32000, False, 8, 2),
    "qwen3-30b-a3b": (12, 2048, 32, 4, 128, 768, 151936, True, 128, 8),
    "deepseek-v2-lite": (9, 2048, 16, 16, 192, 1408, 102400, False, 64, 6, 2816, 10944),
    "rehearsal": (2, 256, 4, 2, 64, 256, 512, True),
    "rehearsal-moe": (2, 64, 2, 1, 32, 64, 512, True, 7, 3),
    "rehearsal-mla": (2, 64, 2, 2, 48, 64, 512, False, 5, 2, 64, 96),
}
LATENT = {
    "deepseek-v2-lite": (512, 128, 64, 128),
    "rehearsal-mla": (64, 32, 16, 32),
}  # rank, nope, rope, v
DEV = "cuda"


def weight(*shape):
    return torch.randn(*shape, device=DEV, dtype=torch.bfloat16) * 0.02


class Dense:
    def __init__(self, h, f):
        self.gate_up, self.down = weight(2 * f, h), weight(h, f)

    def __call__(self, x):
        g, u = F.linear(x, self.gate_up).chunk(2, -1)
        return F.linear(F.silu(g) * u, self.down)

    def matrices(self):
        return [self.gate_up, self.down]


class Mixture:
    """MoE: rows sorted by expert and torch's grouped GEMM, if it supports this GPU; else each
    expert with all rows."""

    def __init__(self, h, f, n, top_k, shared=0):
        self.n, self.top_k, self.f, self.router, self.shared = (
            n,
            top_k,
            f,
            weight(n, h),
            Dense(h, shared) if shared else None,
        )
        self.gate_up, self.down = weight(n, h, 2 * f), weight(n, f, h)
        self.grouped = DEV == "cuda" and hasattr(torch, "_grouped_mm")

    def experts(self, x, counts):
        """x: rows sorted by expert."""
        if self.grouped:
            ends = counts.cumsum(0).to(torch.int32)
            g, u = torch._grouped_mm(x, self.gate_up, offs=ends).chunk(2, -1)
            return torch._grouped_mm(F.silu(g) * u, self.down, offs=ends)
        own = torch.repeat_interleave(torch.arange(self.n, device=DEV), counts, output_size=len(x))
        y = torch.zeros_like(x)
        for e in range(self.n):
            g, u = (x @ self.gate_up[e]).chunk(2, -1)
            y += (own == e)[:, None] * ((F.silu(g) * u) @ self.down[e])
        return y

    def __call__(self, x):
        shape, x = x.shape, x.reshape(-1, x.shape[-1])
        other = self.shared(x) if self.shared else 0
        w, ids = F.softmax(F.linear(x, self.router), -1).topk(self.top_k)
        ids, order = ids.reshape(-1).sort(stable=True)
        counts = (ids[:, None] == torch.arange(self.n, device=DEV)).sum(0)
        y = torch.empty(len(order), x.shape[-1], device=DEV, dtype=x.dtype)
        y[order] = self.experts(x[order // self.top_k], counts)
        return (
            (y.view(len(x), self.top_k, -1) * (w / w.sum(-1, keepdim=True))[..., None])
            .sum(1)
            .add(other)
            .view(shape)
        )

    def matrices(self):
        return []


class Attention:
    def __init__(self, h, heads, kv, d, qk_norm):
        self.heads, self.kv, self.d = heads, kv, d
        self.qkv, self.o = weight((heads + 2 * kv) * d, h), weight(h, heads * d)
        self.qn = torch.ones(d, device=DEV, dtype=torch.bfloat16) if qk_norm else None

    def cache(self, batch, context):
        self.k = torch.zeros(batch, self.kv, context, self.d, device=DEV, dtype=torch.bfloat16)
        self.v = torch.zeros_like(self.k)
        return self.d

    def __call__(self, y, pos, rope):
        b, t, _ = y.shape
        q, k, v = (
            F.linear(y, self.qkv)
            .view(b, t, self.heads + 2 * self.kv, self.d)
            .split([self.heads, self.kv, self.kv], 2)
        )
        if self.qn is not None:
            q, k = F.rms_norm(q, (self.d,), self.qn, 1e-6), F.rms_norm(k, (self.d,), self.qn, 1e-6)
        q, k = rope(q, pos).transpose(1, 2), rope(k, pos).transpose(1, 2)
        self.k.index_copy_(2, pos, k)
        self.v.index_copy_(2, pos, v.transpose(1, 2))
        a = F.scaled_dot_product_attention(q, self.k, self.v, is_causal=t > 1, enable_gqa=True)
        return F.linear(a.transpose(1, 2).reshape(b, t, -1), self.o)

    def matrices(self):
        return [self.qkv, self.o]


class Latent:
    """Latent attention without a query latent: absorbed for one row per sequence, expanded for
    prefill."""

    def __init__(self, h, heads, rank, nope, rope, v):
        self.heads, self.rank, self.nope, self.rope = heads, rank, nope, rope
        self.qkv, self.o, self.k_b, self.v_b = (
            weight(heads * (nope + rope) + rank + rope, h),
            weight(h, heads * v),
            weight(heads, nope, rank),
            weight(heads, v, rank),
        )
        self.norm = torch.ones(rank, device=DEV, dtype=torch.bfloat16)

    def cache(self, batch, context):
        self.k = torch.zeros(
            batch, context, self.rank + self.rope, device=DEV, dtype=torch.bfloat16
        )
        return self.rope

    def __call__(self, y, pos, rope):
        b, t, _ = y.shape
        q, c, key = F.linear(y, self.qkv).split(
            [self.heads * (self.nope + self.rope), self.rank, self.rope], -1
        )
        q, turned = q.view(b, t, self.heads, -1).split([self.nope, self.rope], -1)
        turned = rope(turned, pos)
        self.k.index_copy_(
            1,
            pos,
            torch.cat(
                [F.rms_norm(c, (self.rank,), self.norm, 1e-6), rope(key[:, :, None], pos)[:, :, 0]],
                -1,
            ),
        )
        scale = (self.nope + self.rope) ** -0.5
        if t == 1:
            q = torch.cat([torch.einsum("bthn,hnr->bthr", q, self.k_b), turned], -1).transpose(1, 2)
            a = F.scaled_dot_product_attention(
                q, self.k[:, None], self.k[:, None, :, : self.rank], scale=scale, enable_gqa=True
            )
            a = torch.einsum("bhtr,hvr->bthv", a, self.v_b)
        else:
            latent, key = self.k.split([self.rank, self.rope], -1)
            k = torch.cat(
                [
                    torch.einsum("bjr,hnr->bhjn", latent, self.k_b),
                    key[:, None].expand(-1, self.heads, -1, -1),
                ],
                -1,
            )
            v = torch.einsum("bjr,hvr->bhjv", latent, self.v_b)
            a = F.scaled_dot_product_attention(
                torch.cat([q, turned], -1).transpose(1, 2), k, v, is_causal=True, scale=scale
            ).transpose(1, 2)
        return F.linear(a.reshape(b, t, -1), self.o)

    def matrices(self):
        return [self.qkv, self.o]


class Layer:
    def __init__(self, h, attention, ffn):
        self.attention, self.ffn = attention, ffn
        self.n1, self.n2 = (
            torch.ones(h, device=DEV, dtype=torch.bfloat16),
            torch.ones(h, device=DEV, dtype=torch.bfloat16),
        )


class Model:
    def __init__(self, name):
        n, h, heads, kv, d, f, vocab, qk, *mixture = SHAPES[name]
        dense = mixture.pop() if len(mixture) > 3 else 0
        attention = (
            lambda: Latent(h, heads, *LATENT[name])
            if name in LATENT
            else Attention(h, heads, kv, d, qk)
        )
        self.h, self.layers = (
            h,
            [
                Layer(
                    h,
                    attention(),
                    Dense(h, dense)
                    if dense and i == 0
                    else Mixture(h, f, *mixture)
                    if mixture
                    else Dense(h, f),
                )
                for i in range(n)
            ],
        )
        self.embed, self.head = weight(vocab, h), weight(vocab, h)
        self.norm = torch.ones(h, device=DEV, dtype=torch.bfloat16)

    def cache(self, batch, context):
        d = [L.attention.cache(batch, context) for L in self.layers][0]
        inv = 1.0 / (500000 ** (torch.arange(0, d, 2, device=DEV).float() / d))
        angle = torch.arange(context, device=DEV).float()[:, None] * inv
        self.cos, self.sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

    def forget(self):
        for L in self.layers:
            L.attention.k = L.attention.v = None

    def rope(self, x, pos):
        a, b = x.chunk(2, -1)
        c, s = self.cos[pos][None, :, None], self.sin[pos][None, :, None]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def forward(self, tok, pos):
        """tok [B, T]; pos [T]. Attention reads all keys of the cache (a fixed length, for the
        graph). Returns the logits of the last row."""
        x = F.embedding(tok, self.embed)
        for L in self.layers:
            x = x + L.attention(F.rms_norm(x, (self.h,), L.n1, 1e-5), pos, self.rope)
            x = x + L.ffn(F.rms_norm(x, (self.h,), L.n2, 1e-5))
        return F.linear(F.rms_norm(x[:, -1:], (self.h,), self.norm, 1e-5), self.head)

    def gemms(self, x):
        """Run only the GEMMs of the layers; x: inputs by their size. Rows of a MoE layer are split
        evenly."""
        for L in self.layers:
            for w in L.attention.matrices() + L.ffn.matrices():
                F.linear(x[w.shape[1]], w)
            if isinstance(L.ffn, Mixture):
                rows = x[self.h].repeat(L.ffn.top_k, 1)
                counts = torch.full((L.ffn.n,), len(rows) // L.ffn.n, device=DEV)
                counts[-1] += len(rows) - len(rows) // L.ffn.n * L.ffn.n
                L.ffn.experts(rows, counts)


def timed(fn, runs):
    """Return seconds: median, least, most; by events on a GPU."""
    out = []
    if DEV == "cpu":
        for _ in range(runs):
            t = time.perf_counter()
            fn()
            out.append(time.perf_counter() - t)
    else:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for i in range(runs + 2):
            a.record()
            fn()
            b.record()
            b.synchronize()
            if i >= 2:
                out.append(a.elapsed_time(b) * 1e-3)
    return dict(seconds=statistics.median(out), spread=[min(out), max(out)])


def replay(fn):
    """Return fn as the replay of a CUDA graph, or fn itself, with a message, if it cannot be
    captured."""
    if DEV == "cpu":
        return fn, False
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            fn()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fn()
    return graph.replay, True


def emit(**row):
    print(json.dumps(row), flush=True)


def decode(m, name, batch, depth):
    m.cache(batch, depth + 128)
    tok = torch.zeros(batch, 1, dtype=torch.long, device=DEV)
    pos = torch.full((1,), depth + 64, dtype=torch.long, device=DEV)
    step, graph = replay(lambda: tok.copy_(m.forward(tok, pos).argmax(-1)))
    emit(model=name, test="tg", batch=batch, depth=depth, graph=graph, **timed(step, 20))


def prefill(m, name, n):
    m.cache(1, n)
    tok, pos = torch.zeros(1, n, dtype=torch.long, device=DEV), torch.arange(n, device=DEV)
    step, graph = replay(lambda: m.forward(tok, pos))
    emit(model=name, test="pp", tokens=n, graph=graph, **timed(step, 5))
    del step
    x = {
        w: torch.randn(n, w, device=DEV, dtype=torch.bfloat16)
        for w in {m.h}
        | {w.shape[1] for L in m.layers for w in L.attention.matrices() + L.ffn.matrices()}
    }
    step, graph = replay(lambda: m.gemms(x))
    emit(model=name, test="gemms", tokens=n, graph=graph, **timed(step, 5))
    del step
    for w in m.layers[0].attention.matrices() + m.layers[0].ffn.matrices():
        t = timed(lambda: F.linear(x[w.shape[1]], w), 10)
        emit(
            model=name,
            test="gemm",
            m=n,
            n=w.shape[0],
            k=w.shape[1],
            tflops=2e-12 * n * w.numel() / t["seconds"],
            **t,
        )


@torch.inference_mode()
def answer(req):
    name = req["model"]
    m = Model(name)
    for what, args in [(decode, a) for a in req["decode"]] + [
        (prefill, [n]) for n in req["prefill"]
    ]:
        try:
            what(m, name, *args)
        except Exception as e:  # later models may work
            emit(model=name, test=what.__name__, args=args, error=f"{type(e).__name__}: {e}"[:400])
        m.forget()
        if DEV == "cuda":
            torch.cuda.empty_cache()
    del m
    if DEV == "cuda":
        torch.cuda.empty_cache()
    emit(done=name)


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("--cpu", action="store_true")
    if a.parse_args().cpu:
        DEV = "cpu"
    emit(torch=torch.__version__, device="cpu" if DEV == "cpu" else torch.cuda.get_device_name(0))
    for line in sys.stdin:
        answer(json.loads(line))
