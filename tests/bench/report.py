#!/usr/bin/env python3
"""The README's figures from the result files. Usage: report.py [--readme]: print them, or put them into README.md."""
import glob
import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAMES = {"pp512": "prefill, 512 tokens", "tg128": "decode, 128 tokens", "tg32 @ d2048": "decode at depth 2048", "tg32 b4": "decode, batch 4, total",
         "tg32 b8": "decode, batch 8, total"}


def load(pattern):
    return [(os.path.basename(f), json.load(open(f))) for f in sorted(glob.glob(os.path.join(ROOT, "tests", "bench", "results", pattern)))]


def cell(x):
    return f"{x['tps']:.0f} t/s, **{x['ratio']:.1f}x** ({x['ratio_min']:.1f}-{x['ratio_max']:.1f})"


def peer_table(name, r):
    m, out = r["machine"], []
    isa = "both sides held to AVX2" if r["isa"] == "v3" else "each side's best instructions"
    out.append(f"{m['cpu']}, {r['threads']} threads, {isa}, {r['date']}; medians of {r['rounds']} interleaved rounds, ratio to llama.cpp's better "
               f"flag with its spread ([{name}](tests/bench/results/{name})):\n")
    formats = {t["format"] for t in r["tests"]}
    out.append(f"| SmolLM2-135M {'Q4_1' if formats == {'Q4_1'} else ''} | llama.cpp | llmc (int16 activations) | llmc `activations: i8` |")
    out.append("|---|---|---|---|")
    for t in r["tests"]:
        what = NAMES.get(t["test"], t["test"]) + ("" if formats == {"Q4_1"} else f", {t['format']}")
        out.append(f"| {what} | {t['peer_tps']:.0f} t/s | {cell(t['i16'])} | {cell(t['i8'])} |")
    return "\n".join(out) + "\n"


def main():
    parts = [peer_table(n, r) for n, r in load("peer-*.json") if not n.endswith(("-formats.json", "-widths.json"))]
    for n, r in load("startup-*.json"):
        parts.append(f"First token of SmolLM2 on the {r['machine']['cores']} cores of a {r['machine']['cpu']}: {r['cold_s']:.1f} s from an empty cache, kernels compiled; "
                     f"{r['warm_s']:.2f} s after that. Peak memory {100 * r['peak_over_plan']:.0f} % of what `llmc plan` says, process and vocabulary aside "
                     f"([{n}](tests/bench/results/{n})).\n")
    text = "\n".join(parts)
    if "--readme" not in sys.argv:
        print(text)
        return
    path = os.path.join(ROOT, "README.md")
    readme = open(path).read()
    new = re.sub(r"(## How fast\n\n).*?(?=Other weight formats|## Carry on)", lambda m: m.group(1) + text + "\n", readme, flags=re.S)
    with open(path, "w") as f:
        f.write(new)


main()
