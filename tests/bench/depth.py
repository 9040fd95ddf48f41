#!/usr/bin/env python3
"""Attention of prefill at depth compared with a GEMM: operations per second of the last 512
prefill rows, and of a Q4_0 matrix (2048 x 2048) with 512 rows.

    tests/bench/depth.py [--target v3] [--depths 512,16384,65536]      writes tests/bench/results/depth-<cpu>.json

One kernel on one thread, in CPU time (CLOCK_THREAD_CPUTIME_ID), so that other work on the machine
affects only the caches. Attention and GEMM alternate; the result is the median of the rounds. Pages
hold small f16 values, since times do not depend on values."""

import argparse
import ctypes as C
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from machine import machine, result_file

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "kernels")]
import harness as H  # noqa: E402

# heads, kv heads, head size: Llama 3.2 1B, Qwen3 8B and Llama 2 7B; of Llama 2 7B only a few heads,
# since its heads share no keys
SHAPES = {
    "32 heads on 8, 64 wide": (32, 8, 64),
    "32 heads on 8, 128 wide": (32, 8, 128),
    "8 heads alone, 128 wide": (8, 8, 128),
}
ROWS, SIDE = 512, 2048


def kernel(template, target, params):
    """Return the function, compiled with the flags of kernels."""
    made = H.expand(template, target, params)
    stem = ROOT / "build" / "bench" / f"{template}-{made['symbol']}"
    stem.parent.mkdir(exist_ok=True)
    stem.with_suffix(".c").write_text(made["text"])
    subprocess.run(
        [
            H.CC,
            "-std=gnu11",
            "-O3",
            "-fPIC",
            "-shared",
            "-ffp-contract=off",
            "-fno-math-errno",
            *H.ARCH[target],
            f"-I{ROOT}/templates",
            f"{stem}.c",
            "-o",
            f"{stem}.so",
        ],
        check=True,
    )
    return C.CDLL(f"{stem}.so")[made["symbol"]]


def timed(fn, step, arrays):
    """Return the CPU seconds of the thread."""
    args = (C.c_void_p * len(arrays))(*[a if a is None else a.ctypes.data for a in arrays])
    t = time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID)
    fn(C.byref(step), args, 0, 1)
    return time.clock_gettime(time.CLOCK_THREAD_CPUTIME_ID) - t


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    p.add_argument("--target", default=H.TARGETS[-1])
    p.add_argument("--depths", default="512,16384,65536")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    rng = np.random.default_rng(1)
    work, y = np.zeros(1 << 24, np.float32), np.zeros(ROWS * 8192, np.float32)
    x = rng.standard_normal(ROWS * 8192).astype(np.float32)
    weights = np.full(SIDE * SIDE, 0x2C, np.uint8)
    product = kernel(
        "matmul", a.target, dict(W_DTYPE="q4_0", ACT_BITS=16, ACT_BF16=0, ROWS=SIDE, COLS=SIDE)
    )
    rows = []
    for name, (heads, kv_heads, dim) in SHAPES.items():
        page = 32 * kv_heads * 2 * dim * 2
        fn = kernel(
            "attention_mixed",
            a.target,
            dict(
                HEADS=heads,
                KV_HEADS=kv_heads,
                DIM=dim,
                V_DIM=dim,
                SCALE=0.125,
                SOFTCAP=0.0,
                WINDOW=0,
                ALIBI=0.0,
                MASK="causal",
                KV_K="f16",
                KV_V="f16",
                KV_ROTATE=0,
                KV_PAGE_BYTES=page,
            ),
        )
        for depth in map(int, a.depths.split(",")):
            pages = depth // 32
            pool = rng.integers(0x2C00, 0x3000, pages * page // 2, np.uint16)
            step = H.make_step(range(depth - ROWS, depth), [ROWS], table=[range(pages)])
            pairs = sum(range(depth - ROWS + 1, depth + 1))
            got = [
                (
                    4 * heads * dim * pairs / timed(fn, step, [x, pool, None, None, y, work]) / 1e9,
                    2
                    * SIDE
                    * SIDE
                    * ROWS
                    / timed(product, step, [x, weights, None, y, work])
                    / 1e9,
                )
                for _ in range(a.rounds)
            ]
            attention, products = map(statistics.median, zip(*got))
            rows.append(
                {
                    "shape": name,
                    "depth": depth,
                    "attention_gops": round(attention, 1),
                    "product_gops": round(products, 1),
                    "share": round(statistics.median(g[0] / g[1] for g in got), 3),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    out = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "target": a.target,
        "rounds": a.rounds,
        "load": os.getloadavg()[0],
        "command": " ".join(["tests/bench/depth.py", *sys.argv[1:]]),
        "rows": rows,
    }
    with open(result_file("depth"), "w") as f:
        json.dump(out, f, indent=1)
        f.write("\n")


main()
