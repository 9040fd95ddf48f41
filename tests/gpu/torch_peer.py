#!/usr/bin/env python3
"""PyTorch on the same shapes: bf16 random weights, static KV cache, SDPA, decode in a CUDA graph; and the rates of its GEMMs (cuBLASLt).
One JSON line a figure. Usage: torch_peer.py [--seconds N]"""
import argparse
import json
import statistics
import time

import torch
import torch.nn.functional as F

SHAPES = {  # layers, hidden, heads, kv heads, head dim, ffn, vocabulary, q/k norm
    "llama3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, False),
    "llama3-8b": (32, 4096, 32, 8, 128, 14336, 128256, False),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936, True),
}


class Layer:
    def __init__(self, h, heads, kv, d, f, qk_norm):
        def w(*shape):
            return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02
        self.qkv, self.o, self.gate_up, self.down = w((heads + 2 * kv) * d, h), w(h, heads * d), w(2 * f, h), w(h, f)
        self.n1, self.n2 = torch.ones(h, device="cuda", dtype=torch.bfloat16), torch.ones(h, device="cuda", dtype=torch.bfloat16)
        self.qn = torch.ones(d, device="cuda", dtype=torch.bfloat16) if qk_norm else None


class Model:
    def __init__(self, name, batch, context):
        n, h, self.heads, self.kv, self.d, f, vocab, qk = SHAPES[name]
        self.h, self.layers = h, [Layer(h, self.heads, self.kv, self.d, f, qk) for _ in range(n)]
        self.embed = torch.randn(vocab, h, device="cuda", dtype=torch.bfloat16) * 0.02
        self.head = torch.randn(vocab, h, device="cuda", dtype=torch.bfloat16) * 0.02
        self.norm = torch.ones(h, device="cuda", dtype=torch.bfloat16)
        self.k = [torch.zeros(batch, self.kv, context, self.d, device="cuda", dtype=torch.bfloat16) for _ in range(n)]
        self.v = [torch.zeros_like(k) for k in self.k]
        inv = 1.0 / (500000 ** (torch.arange(0, self.d, 2, device="cuda").float() / self.d))
        angle = torch.arange(context, device="cuda").float()[:, None] * inv
        self.cos, self.sin = angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)

    def rope(self, x, pos):
        a, b = x.chunk(2, -1)
        c, s = self.cos[pos][None, :, None], self.sin[pos][None, :, None]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def forward(self, tok, pos, upto, last_only=True):
        """tok [B, T]; pos [T]; keys 0 .. upto are looked at (a fixed length: the graph's)"""
        x = F.embedding(tok, self.embed)
        b, t, _ = x.shape
        for i, L in enumerate(self.layers):
            y = F.linear(F.rms_norm(x, (self.h,), L.n1, 1e-5), L.qkv)
            q, k, v = y.view(b, t, self.heads + 2 * self.kv, self.d).split([self.heads, self.kv, self.kv], 2)
            if L.qn is not None:
                q, k = F.rms_norm(q, (self.d,), L.qn, 1e-6), F.rms_norm(k, (self.d,), L.qn, 1e-6)
            q, k = self.rope(q, pos).transpose(1, 2), self.rope(k, pos).transpose(1, 2)
            self.k[i].index_copy_(2, pos, k)
            self.v[i].index_copy_(2, pos, v.transpose(1, 2))
            a = F.scaled_dot_product_attention(q, self.k[i][:, :, :upto], self.v[i][:, :, :upto], is_causal=t > 1, enable_gqa=True)
            x = x + F.linear(a.transpose(1, 2).reshape(b, t, -1), L.o)
            g, u = F.linear(F.rms_norm(x, (self.h,), L.n2, 1e-5), L.gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, L.down)
        x = x[:, -1:] if last_only else x
        return F.linear(F.rms_norm(x, (self.h,), self.norm, 1e-5), self.head)


def timed(fn, runs):
    a, b, out = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True), []
    for i in range(runs + 2):
        a.record()
        fn()
        b.record()
        b.synchronize()
        if i >= 2:
            out.append(a.elapsed_time(b) * 1e-3)
    return statistics.median(out), min(out), max(out)


def say(**row):
    print(json.dumps(row), flush=True)


@torch.inference_mode()
def measure(name, end):
    for batch, depth in ((1, 0), (1, 4000), (8, 0), (64, 0)):
        if time.time() > end:
            return
        m = Model(name, batch, depth + 128)
        tok = torch.zeros(batch, 1, dtype=torch.long, device="cuda")
        pos = torch.full((1,), depth + 64, dtype=torch.long, device="cuda")
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            for _ in range(2):
                m.forward(tok, pos, depth + 128)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tok.copy_(m.forward(tok, pos, depth + 128).argmax(-1))
        t, lo, hi = timed(graph.replay, 20)
        say(model=name, test="tg", batch=batch, depth=depth, seconds=t, tps=batch / t, spread=[batch / hi, batch / lo])
        del graph, m
        torch.cuda.empty_cache()
    for n in (512, 4096):
        if time.time() > end:
            return
        m = Model(name, 1, n)
        tok, pos = torch.zeros(1, n, dtype=torch.long, device="cuda"), torch.arange(n, device="cuda")
        t, lo, hi = timed(lambda: m.forward(tok, pos, n), 5)
        say(model=name, test="pp", rows=n, seconds=t, tps=n / t, spread=[n / hi, n / lo])
        _, h, heads, kv, d, f, vocab, _ = SHAPES[name]
        total = 0.0
        for rows, cols in (((heads + 2 * kv) * d, h), (h, heads * d), (2 * f, h), (h, f)):
            x, w = torch.randn(n, cols, device="cuda", dtype=torch.bfloat16), torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16)
            t, lo, hi = timed(lambda: F.linear(x, w), 10)
            total += t * len(m.layers)
            say(model=name, test="gemm", m=n, n=rows, k=cols, seconds=t, tflops=2e-12 * n * rows * cols / t)
        say(model=name, test="gemms alone", rows=n, seconds=total)
        del m
        torch.cuda.empty_cache()


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=120)
    end = time.time() + a.parse_args().seconds
    for shape in SHAPES:
        measure(shape, end)
