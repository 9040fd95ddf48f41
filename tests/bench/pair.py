#!/usr/bin/env python3
"""Compare two builds of llmc on the same model. They alternate on one thread, and CPU time is
measured, which other work on the machine affects little.

    tests/bench/pair.py OTHER/build/llmc [--rounds 9] [--arch v3,best] [--out tests/bench/results/pair-<cpu>.json]

Rounds start with either build in turn. The fixed cost of a run is measured once by a run of one
token and subtracted. Above 1: this build is faster."""

import argparse
import datetime
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peer  # noqa: E402
from machine import machine, result_file  # noqa: E402

TOKENS = ",".join(str(1000 + i * 37 % 9000) for i in range(512))
TESTS = {
    "prefill 512": ("--tokens", TOKENS, "-n", "1"),
    "decode 384": ("--tokens", "1,2,3,4", "-n", "385"),
}
NONE = ("--tokens", "1,2,3,4", "-n", "1")


def seconds(llmc, model, arch, act, what, tries=3):
    cmd = [
        llmc,
        "run",
        model,
        "-t",
        "1",
        "--quiet",
        "--ignore-eos",
        "--show-tokens",
        "--set",
        f"activations={act}",
        *what,
    ]
    cmd += ["--arch", arch] if arch != "best" else []
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.execv(llmc, cmd)
    _, status, usage = os.wait4(pid, 0)
    if status == 0:
        return usage.ru_utime
    if tries == 1:
        sys.exit(f"pair: {' '.join(cmd)} ends with {status}")
    return seconds(llmc, model, arch, act, what, tries - 1)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    ap.add_argument("other")
    ap.add_argument("--rounds", type=int, default=9)
    ap.add_argument("--arch", default="v3,best")
    ap.add_argument("--out")
    a = ap.parse_args()
    model = peer.sh(os.path.join(peer.ROOT, "tools", "smollm2.sh")).strip()
    result = {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "model": os.path.basename(model),
        "threads": 1,
        "rounds": a.rounds,
        "load_before": os.getloadavg()[0],
        "measured": "processor time in user mode of the tokens, other build over this one",
        "tests": [],
    }
    cases = [(arch, act, t) for arch in a.arch.split(",") for act in ("i16", "i8") for t in TESTS]
    ratios, start = {}, {}
    for arch, act, t in cases:
        for llmc in (a.other, peer.LLMC):
            start[llmc, arch, act, t] = seconds(llmc, model, arch, act, NONE)
    for r in range(a.rounds):
        for case in cases:
            arch, act, t = case
            cost = {}
            for llmc in (a.other, peer.LLMC)[:: 1 - 2 * (r % 2)]:
                cost[llmc] = seconds(llmc, model, arch, act, TESTS[t]) - start[llmc, arch, act, t]
            ratios.setdefault(case, []).append(cost[a.other] / cost[peer.LLMC])
        peer.report(
            f"round {r + 1}: " + ", ".join(f"{' '.join(c)} {v[-1]:.3f}" for c, v in ratios.items())
        )
    result["load_after"] = os.getloadavg()[0]
    for (arch, act, t), v in ratios.items():
        q = statistics.quantiles(v, n=4)
        row = {
            "arch": arch,
            "activations": act,
            "test": t,
            "ratio": round(statistics.median(v), 3),
            "quartiles": [round(q[0], 3), round(q[2], 3)],
            "least": round(min(v), 3),
            "most": round(max(v), 3),
        }
        result["tests"].append(row)
        print(row)
    out = a.out or result_file("pair")
    with open(out, "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
