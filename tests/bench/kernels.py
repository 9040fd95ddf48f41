#!/usr/bin/env python3
"""Speed of the CPU matmul kernels: python3 tests/bench/kernels.py [--target v3] [--dtype q4_1] [--tok 1,8,256] ...

Not a test. Compare only figures of one run, better several in turn: memory speed drifts with what else a machine does."""
import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kernels"))
import harness as H  # noqa: E402

OUT = ROOT / "build" / "bench"
LANES = {"generic": 4, "v3": 8, "vnni": 8, "amx": 16, "v4": 16, "v4p": 16}
PEAK = {}
# elements of a block, bytes a row takes of it in a packed layout
BLOCK = {"f32": (1, 4), "f16": (1, 2), "bf16": (1, 2), "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
         "q8_0": (32, 34), "q4_k": (256, 148), "q5_k": (256, 180), "q6_k": (256, 210)}


def build(target, dtype, bits, rows, cols, cc, flags):
    """The library of a kernel and its function's name."""
    made = H.expand("matmul", target, dict(W_DTYPE=dtype, ACT_BITS=8 if bits == "8" else 16, ACT_BF16=int(bits == "bf16"), ROWS=rows, COLS=cols))
    stem = OUT / f"matmul-{target}-{dtype}-{bits}-{rows}-{cols}"
    stem.with_suffix(".c").write_text(made["text"])
    subprocess.run([cc, "-std=gnu11", "-fPIC", "-shared", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", *H.ARCH[target], *flags.split(),
                    f"-I{ROOT}/templates", str(stem) + ".c", "-o", str(stem) + ".so"], check=True)
    return str(stem) + ".so", made["symbol"]


def tiles(dtype, bits, threads, out):
    """Operations of tile instructions, counted in products of parts, as a share of what the registers do at best."""
    kind = "bf16" if dtype in ("f16", "bf16") or bits == "bf16" else "int8"
    if not PEAK:
        subprocess.run(["gcc", "-O2", "-mamx-tile", "-mamx-int8", "-mamx-bf16", "-pthread", "tests/bench/tiles.c", "-o", str(OUT / "tiles")], check=True, cwd=ROOT)
        PEAK.update(json.loads(subprocess.run([str(OUT / "tiles"), "1"], check=True, capture_output=True, text=True).stdout))
    parts = 1 if bits == "bf16" else {"bf16": 2, "f16": 3}.get(dtype, int(bits) // 8)
    return float(re.search(r"([\d.]+) GOPS", out)[1]) * 1e9 * parts / (PEAK[kind] * threads)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--target", default="v3")
    p.add_argument("--dtype", default="q4_1")
    p.add_argument("--bits", default="16,8", help="of activations: 16, 8 or bf16")
    p.add_argument("--tok", default="1,2,8,256")
    p.add_argument("--shape", default="576x576,1536x576,576x1536")
    p.add_argument("--threads", default="2")
    p.add_argument("--cc", default="gcc")
    p.add_argument("--flags", default="-O2")
    a = p.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O2", "-I.", "tests/bench/kernels.c", "-o", str(OUT / "kernels"), "-lpthread", "-ldl"], check=True, cwd=ROOT)
    for target in a.target.split(","):
        for dtype in a.dtype.split(","):
            for shape in a.shape.split(","):
                rows, cols = map(int, shape.split("x"))
                k, row = BLOCK[dtype]
                lanes = LANES[target]
                for bits in a.bits.split(","):
                    so, symbol = build(target, dtype, bits, rows, cols, a.cc, a.flags)
                    for tok in a.tok.split(","):
                        for th in a.threads.split(","):
                            args = [str(OUT / "kernels"), so, symbol, rows, cols, cols // k * row * lanes,
                                    (rows + lanes - 1) // lanes, th, tok, 1, 0, 3, 4]
                            print(f"{target:7} {dtype:5} i{bits:2} {shape:10} {th} threads {tok:>4} tokens: ", end="", flush=True)
                            sys.stdout.flush()
                            out = subprocess.run([str(x) for x in args], check=True, capture_output=True, text=True).stdout.strip()
                            share = f", {tiles(dtype, bits, int(th), out):.0%} of the tiles' peak" if target == "amx" else ""
                            print(out + share, flush=True)


main()
