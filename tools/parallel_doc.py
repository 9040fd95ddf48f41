#!/usr/bin/env python3
"""Write the figures of docs/parallel.md: predictions of `llmc plan --gpu` for models over several GPUs. Usage: parallel_doc.py [--check] [NAME ...]"""

import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOC = os.path.join(ROOT, "docs", "parallel.md")
LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
TABLES = {
    "llama2-70b": ("configs/llama2-70b.yaml --gpu h100", ["--tp 1", "--tp 2", "--tp 4", "--tp 8"]),
    "deepseek-v3": (
        "configs/deepseek-v3.yaml --set storage.default=f8_128 --gpu h100",
        ["--tp 8 --pp 2", "--tp 16"],
    ),
}


def plan(args):
    out = subprocess.run(
        [LLMC, "plan", *args.split(), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return json.loads(out[: out.index(',"plan":')] + "}")


def table(name):
    base, ways = TABLES[name]
    lines = [
        f"`llmc plan {base} --tp N`:"
        if name == "llama2-70b"
        else f"`llmc plan {base} --tp N --pp N`:",
        "",
        "| | weights per GPU, GiB | decode, batch 1: ms = read + kernels + links | tokens/s | batch 8 | batch 64 | prefill of 4096 |",
        "|---|---|---|---|---|---|---|",
    ]
    for way in ways:
        p = plan(f"{base} {way}")
        gpu, ranks = p["gpu"], p.get("ranks", [p["memory"]])
        one, more = gpu["steps"][0], gpu["steps"][1:]
        launch, link = one["launches"] * gpu["launch_s"], one["link_s"]
        parts = " + ".join(f"{1e3 * t:.2f}" for t in (one["seconds"] - launch - link, launch, link))
        weights = max(r["weights"] for r in ranks)
        fits = "" if weights <= gpu["memory"] else ": does not fit"
        lines.append(
            f"| `{way}` | {weights / 2**30:.1f}{fits} | {1e3 * one['seconds']:.2f} = {parts} | {one['tps']:.0f} | "
            + " | ".join(f"{s['tps']:.0f}" for s in more)
            + " |"
        )
    return "\n".join(lines) + "\n"


def main():
    names = [a for a in sys.argv[1:] if not a.startswith("-")] or list(TABLES)
    with open(DOC) as f:
        old = f.read()
    new = old
    for name in names:
        mark = re.compile(rf"(<!-- {name}: tools/parallel_doc.py -->\n).*?(<!-- end -->\n)", re.S)
        assert mark.search(new), name
        new = mark.sub(lambda m: m[1] + table(name) + m[2], new)
    if "--check" in sys.argv:
        sys.exit(f"{DOC} is out of date: run tools/parallel_doc.py" if new != old else 0)
    with open(DOC, "w") as f:
        f.write(new)


if __name__ == "__main__":
    main()
