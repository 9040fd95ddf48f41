#!/usr/bin/env python3
"""Time to the first token of SmolLM2, cold (empty cache, kernels are compiled) and warm, and peak
memory compared with the plan.

    tests/bench/startup.py [MODEL]               writes tests/bench/results/startup-<cpu>.json
    tests/bench/startup.py --moe [ROUNDS]        cold start of MoE models compared with a dense model: startup-moe-<cpu>.json

MoE models have their published sizes, random weights in Q4_0, one layer of each kind and few
experts, so their kernels are those of the whole model. The difference is what must be compiled, so
CPU seconds are recorded with wall seconds, which other work increases."""

import argparse
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from machine import machine, result_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LLMC = os.path.join(ROOT, "build", "llmc")

# the memory run fills this context completely, so that every planned page is touched
LIMITS = ["--context", "1024", "--chunk", "32"]


def first_token(model, cache, extra=("-n", "2")):
    """Return the seconds from starting the process to its first byte of text, and its peak resident
    bytes."""
    env = dict(os.environ, LLMC_CACHE=cache)
    t0 = time.monotonic()
    p = subprocess.Popen(
        [LLMC, "run", model, "--prompt", "Hello", "--ignore-eos", "--quiet", *extra],
        stdout=subprocess.PIPE,
        env=env,
    )
    p.stdout.read(1)
    took = time.monotonic() - t0
    p.stdout.read()
    _, status, usage = os.wait4(p.pid, 0)
    if status:
        sys.exit("startup: llmc run failed")
    return took, usage.ru_maxrss * 1024


# description, replacements
CUT = [
    "vocab_size=4096",
    "max_positions=1024",
    "text.bos=1",
    "text.eos=[2]",
    "storage.default=q4_0",
]
MIXTURES = [
    ("qwen3-8b", ["n_layers=1", "hidden=2048"]),
    ("qwen3-30b-a3b", ["n_layers=1", "moe.n_experts=16"]),
    ("mixtral-8x7b", ["n_layers=1", "moe.n_experts=2"]),
    ("deepseek-v2-lite", ["n_layers=2", "moe.n_experts=16"]),
]


def cold(config, sets):
    """Return wall and CPU seconds from an empty cache to two tokens, and the number of kernels."""
    cache = tempfile.mkdtemp(prefix="llmc-startup-")
    cmd = [
        LLMC,
        "run",
        os.path.join(ROOT, "configs", config + ".yaml"),
        "--random-weights",
        "--tokens",
        "1,5,9",
        "-n",
        "2",
        "--ignore-eos",
        "--json",
    ]
    for s in CUT + sets:
        cmd += ["--set", s]
    try:
        before, t0 = os.times(), time.monotonic()
        subprocess.run(
            cmd,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, LLMC_CACHE=cache),
        )
        took, after = time.monotonic() - t0, os.times()
        kernels = sum(f.endswith(".so") for _, _, files in os.walk(cache) for f in files)
    finally:
        shutil.rmtree(cache)
    return took, sum(after[2:4]) - sum(before[2:4]), kernels


def mixtures(rounds):
    """The first model is dense; the others are compared with it."""
    rows = {c: [] for c, _ in MIXTURES}
    for _ in range(rounds):
        for config, sets in MIXTURES:
            rows[config].append(cold(config, sets))
    out = {}
    for config, got in rows.items():
        clock, processor, kernels = (statistics.median(x) for x in zip(*got))
        out[config] = {
            "cold_s": round(clock, 2),
            "processor_s": round(processor, 2),
            "kernels": int(kernels),
        }
    dense = out[MIXTURES[0][0]]
    for config, _ in MIXTURES[1:]:
        out[config]["more_s"] = round(out[config]["cold_s"] - dense["cold_s"], 2)
        out[config]["more_processor_s_a_core"] = round(
            (out[config]["processor_s"] - dense["processor_s"]) / os.cpu_count(), 2
        )
    return out


def write(name, result):
    print(json.dumps(result, indent=1))
    with open(result_file(name), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    a.add_argument("model", nargs="?", help="a model with at least 1024 positions [SmolLM2]")
    a.add_argument(
        "--moe",
        nargs="?",
        type=int,
        const=3,
        metavar="ROUNDS",
        help="MoE models compared with a dense one [3]",
    )
    a = a.parse_args()
    run = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load_before": os.getloadavg()[0],
    }
    if a.moe:
        return write("startup-moe", dict(run, first_token=mixtures(a.moe)))
    model = (
        a.model
        or subprocess.run(
            [os.path.join(ROOT, "tools", "smollm2.sh")],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout.strip()
    )
    first, warm, packed, peak = [], [], [], []
    for _ in range(3):
        cache = tempfile.mkdtemp(prefix="llmc-startup-")
        try:
            first.append(first_token(model, cache)[0])
            for _ in range(3):
                warm.append(first_token(model, cache)[0])
            peak.append(first_token(model, cache, ["-n", "-1", *LIMITS])[1])
            first_token(model, cache, ["-n", "2", "--cache-packed"])
            packed.append(first_token(model, cache, ["-n", "2", "--cache-packed"])[0])
        finally:
            shutil.rmtree(cache)
    plan = json.loads(
        subprocess.run(
            [LLMC, "plan", model, "--json", "-t", str(os.cpu_count()), *LIMITS],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
        ).stdout
    )
    tokenizer = subprocess.Popen(
        [LLMC, "tokenize", model, "--text", "Hello"], stdout=subprocess.DEVNULL
    )
    _, _, usage = os.wait4(tokenizer.pid, 0)
    process = usage.ru_maxrss * 1024
    m = statistics.median
    result = {
        **run,
        "cold_s": round(m(first), 3),
        "cold_all_s": [round(x, 3) for x in first],
        "warm_s": round(m(warm), 3),
        "warm_all_s": [round(x, 3) for x in warm],
        "warm_packed_cache_s": round(m(packed), 3),
        "plan_bytes": plan["memory"]["total"],
        "peak_bytes": int(m(peak)),
        "process_and_vocabulary_bytes": process,
        "peak_over_plan": round((m(peak) - process) / plan["memory"]["total"], 4),
    }
    write("startup", result)


main()
