#!/usr/bin/env python3
"""Speed of the CPU matmul kernels.

    tests/bench/kernels.py [--target v3] [--dtype q4_1] [--tok 1,8,256] ... [--write]

Not a test. Memory speed and clock vary with other work on the machine. So every round also measures
the bound of a kernel: a plain read of the same bytes (kernels.c), and for tile kernels the peak of
the tiles (tiles.c) before each run. The result is the median of the shares of that bound. --write:
tests/bench/results/kernels-<cpu>.json."""

import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import machine

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kernels"))
import harness as H  # noqa: E402

OUT = ROOT / "build" / "bench"
LANES = {"generic": 4, "v3": 8, "vnni": 8, "amx": 16, "v4": 16, "v4p": 16}
# elements per block, bytes per block of a row in a packed layout
BLOCK = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q4_k": (256, 148),
    "q5_k": (256, 180),
    "q6_k": (256, 210),
    "q2_k": (256, 84),
    "q3_k": (256, 114),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 138),
    "iq3_s": (256, 114),
    "iq3_xxs": (256, 106),
    "iq2_s": (256, 82),
    "iq2_xs": (256, 82),
    "iq2_xxs": (256, 74),
    "iq1_s": (256, 50),
    "iq1_m": (256, 58),
    "tq1_0": (256, 66),
    "tq2_0": (256, 66),
    "mxfp4": (32, 17),
    "nvfp4": (64, 36),
    "u4_32": (32, 19),
    "u4_128": (128, 67),
    "nf4_32": (32, 20),
    "nf4_64": (64, 36),
    "fp4_64": (64, 36),
    "f8_128": (128, 132),
    "m4_64": (64, 40),
    "u8_128": (128, 131),
}
WHOLE = {"nvfp4": 4}  # bytes that a packed row has before its blocks


def build(target, dtype, bits, rows, cols, cc, flags):
    """Build a kernel's library; return its path and the name of its function."""
    made = H.expand(
        "matmul",
        target,
        dict(
            W_DTYPE=dtype,
            ACT_BITS=8 if bits == "8" else 16,
            ACT_BF16=int(bits == "bf16"),
            ROWS=rows,
            COLS=cols,
        ),
    )
    stem = OUT / f"matmul-{target}-{dtype}-{bits}-{rows}-{cols}"
    files = [f"{stem}{i}.c" for i in range(1 + len(made["products"]))]
    for file, part in zip(files, [made, *made["products"]]):
        Path(file).write_text(part["text"])
    subprocess.run(
        [
            cc,
            "-std=gnu11",
            "-fPIC",
            "-shared",
            "-ffp-contract=off",
            "-fno-math-errno",
            "-Wall",
            "-Wextra",
            *H.ARCH[target],
            *flags.split(),
            f"-I{ROOT}/templates",
            *files,
            "-o",
            str(stem) + ".so",
        ],
        check=True,
    )
    return str(stem) + ".so", made["symbol"]


def tiles_peak(threads):
    """Return the operations per second of int8 and bf16 tile instructions in registers, on all
    threads."""
    return json.loads(
        subprocess.run(
            [str(OUT / "tiles"), str(threads)], check=True, capture_output=True, text=True
        ).stdout
    )


def tiles_parts(dtype, bits):
    """Return the type of a kernel's tile instructions, and how many of them make one exact
    matmul."""
    if dtype in ("f16", "bf16") or bits == "bf16":
        return "bf16", 1 if bits == "bf16" else {"bf16": 2, "f16": 3}[dtype]
    return "int8", int(bits) // 8


def measure(args, target, dtype, bits, threads, rounds):
    """Return medians of `rounds` runs; tile_share is the median share of the peak measured before
    each."""
    got = {}
    for _ in range(rounds):
        peak = tiles_peak(threads) if target == "amx" else None
        out = subprocess.run(
            [str(x) for x in args], check=True, capture_output=True, text=True
        ).stdout
        call, rate, read, share, gops = (
            float(re.search(p, out)[1])
            for p in (
                r"([\d.]+) us a call",
                r"call, +([\d.]+) GB/s",
                r"read +([\d.]+) GB/s",
                r"share of it ([\d.]+)",
                r"([\d.]+) GOPS",
            )
        )
        row = {"us": call, "gbps": rate, "read_gbps": read, "read_share": share, "gops": gops}
        if peak:
            kind, parts = tiles_parts(dtype, bits)
            row |= {
                "tile_peak_gops": peak[kind] * 1e-9,
                "tile_share": gops * 1e9 * parts / peak[kind],
            }
        for k, v in row.items():
            got.setdefault(k, []).append(v)
    return {k: float(f"{statistics.median(v):.4g}") for k, v in got.items()}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--target", default="v3")
    p.add_argument("--dtype", default="q4_1")
    p.add_argument("--bits", default="16,8", help="bits of activations: 16, 8 or bf16")
    p.add_argument("--tok", default="1,2,8,256")
    p.add_argument("--shape", default="576x576,1536x576,576x1536")
    p.add_argument("--threads", default="2")
    p.add_argument("--cc", default="gcc")
    p.add_argument("--flags", default="-O2")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument(
        "--write", action="store_true", help="write tests/bench/results/kernels-<cpu>.json"
    )
    a = p.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "gcc",
            "-O2",
            "-I.",
            "-Itemplates",
            "tests/bench/kernels.c",
            "-o",
            str(OUT / "kernels"),
            "-lpthread",
            "-ldl",
        ],
        check=True,
        cwd=ROOT,
    )
    if "amx" in a.target.split(","):
        subprocess.run(
            [
                "gcc",
                "-O2",
                "-mamx-tile",
                "-mamx-int8",
                "-mamx-bf16",
                "-pthread",
                "tests/bench/tiles.c",
                "-o",
                str(OUT / "tiles"),
            ],
            check=True,
            cwd=ROOT,
        )
    load, rows_out = os.getloadavg()[0], []
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
                            args = [
                                str(OUT / "kernels"),
                                so,
                                symbol,
                                rows,
                                cols,
                                (cols // k * row + WHOLE.get(dtype, 0)) * lanes,
                                (rows + lanes - 1) // lanes,
                                th,
                                tok,
                                1,
                                0,
                                3,
                                4,
                            ]
                            got = measure(args, target, dtype, bits, int(th), a.rounds)
                            share = (
                                f", {got['tile_share']:.0%} of the tiles' peak"
                                if "tile_share" in got
                                else ""
                            )
                            print(
                                f"{target:7} {dtype:5} i{bits:2} {shape:10} {th} threads {tok:>4} tokens: {got['us']:8.1f} us a call, {got['gbps']:6.2f} GB/s, "
                                f"share of reads {got['read_share']:.2f}, {got['gops']:7.1f} GOPS{share}",
                                flush=True,
                            )
                            rows_out.append(
                                {
                                    "target": target,
                                    "dtype": dtype,
                                    "activations": bits,
                                    "shape": shape,
                                    "threads": int(th),
                                    "tokens": int(tok),
                                    **got,
                                }
                            )
    if a.write:
        text = json.dumps(
            {
                "date": datetime.date.today().isoformat(),
                "machine": machine.machine(),
                "load_before": load,
                "rounds": a.rounds,
                "kernels": rows_out,
            },
            indent=1,
        )
        machine.result_file("kernels").write_text(text + "\n")


main()
