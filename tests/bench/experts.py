#!/usr/bin/env python3
"""Compare llmc and llama.cpp by turns on the routed experts of a layer on a CPU, which is what
--offload experts runs there.

    tests/bench/experts.py --ggml SOURCE/ggml/include BUILD/ggml/src [--rounds 5]

Sizes of Qwen3-30B-A3B (hidden 2048, 128 experts of 768, 8 per row), Q4_K, two layers in turn. llmc's
time is that of the ops norm_moe_glu and moe_down_add of `llmc bench --ops`. llama.cpp's is its graph of
these experts (experts_peer.cpp) with repacked and plain weights, of which the faster one counts. Both
run repeatedly with the same experts, with one thread. Medians of wall time are compared for 512 rows.
Runs of 1 and 4 rows take about as long as a time slice of the scheduler; there llama.cpp's CPU time
counts, so that other processes can only make llmc slower. A round is one burst of each; medians of the
rounds and of their ratios are reported, with quartiles."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from machine import machine

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
ROWS = {1: "tg16", 4: "tg16 b4", 512: "pp512"}
SETS = ["n_layers=2", "vocab_size=1024", "text={bos: 1, eos: [2]}"]


def ours(activations):
    cmd = [LLMC, "bench", os.path.join(ROOT, "configs", "qwen3-30b-a3b.yaml")]
    for s in [*SETS, f"activations={activations}"]:
        cmd += ["--set", s]
    cmd += ["--random-weights", "--quantize", "q4_k", "--ops", "-t", "1"]
    cmd += ["-p", "512", "-n", "16", "-b", "1,4", "-r", "1", "--json"]
    r = json.loads(subprocess.run(cmd, check=True, stdout=subprocess.PIPE).stdout)
    ops = {t["test"]: {o["op"]: o["s"] / o["n"] for o in t["ops"]} for t in r["results"]}
    return {n: ops[t]["norm_moe_glu"] + ops[t]["moe_down_add"] for n, t in ROWS.items()}


def theirs(tool, repack):
    cmd = [tool, "2048", "768", "128", "8", "1", str(repack)]
    out = {}
    for runs, rows in ("64", [1, 4]), ("3", [512]):
        text = subprocess.run(
            [*cmd, runs, *map(str, rows)],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ).stdout
        for line in text.splitlines():
            n, *seconds = line.split()
            wall, cpu = zip(*(map(float, x.split("/")) for x in seconds), strict=True)
            out[int(n)] = statistics.median(wall if int(n) == 512 else cpu)
    return out


def build(include, lib, out):
    libs = [os.path.join(lib, f"lib{n}.a") for n in ("ggml", "ggml-cpu", "ggml-base")]
    source = os.path.join(ROOT, "tests", "bench", "experts_peer.cpp")
    subprocess.run(
        [
            "g++",
            "-O2",
            "-I" + include,
            source,
            "-o",
            out,
            *libs,
            "-fopenmp",
            "-lpthread",
            "-ldl",
            "-lm",
        ],
        check=True,
    )


def spread(x):
    q = statistics.quantiles(x, n=4, method="inclusive")
    return {"median": q[1], "quartiles": [q[0], q[2]]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ggml", nargs=2, required=True, metavar=("INCLUDE", "LIB"))
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("-o", "--out")
    a = ap.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as tmp:
        tool = os.path.join(tmp, "experts_peer")
        build(*a.ggml, tool)
        for i in range(a.rounds):
            one = {"llama.cpp, repacked": theirs(tool, 1), "i16": ours("i16")}
            one |= {"llama.cpp, plain": theirs(tool, 0), "i8": ours("i8")}
            rounds.append(one)
            print(
                i,
                {k: {n: round(s * 1e3, 3) for n, s in v.items()} for k, v in one.items()},
                file=sys.stderr,
                flush=True,
            )
    rows = {}
    for n in ROWS:
        best = min(
            ("llama.cpp, repacked", "llama.cpp, plain"),
            key=lambda k: statistics.median(r[k][n] for r in rounds),
        )
        rows[n] = {"peer": best, "peer_ms": spread([1e3 * r[best][n] for r in rounds])}
        for k in "i16", "i8":
            rows[n][k + "_ms"] = spread([1e3 * r[k][n] for r in rounds])
            rows[n][k + "_ratio"] = spread([r[best][n] / r[k][n] for r in rounds])
        print(n, json.dumps(rows[n]))
    if a.out:
        with open(a.out, "w") as f:
            json.dump(
                {"machine": machine(), "threads": 1, "rounds": rounds, "rows": rows}, f, indent=1
            )
            f.write("\n")


if __name__ == "__main__":
    main()
