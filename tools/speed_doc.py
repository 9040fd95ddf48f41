#!/usr/bin/env python3
"""Write the table of speed in README.md and the chart docs/speed.svg from the result files.

tools/speed_doc.py [--check]      --check: exit 1 if either differs from the result files"""

import json
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BENCH, GPU = "tests/bench/results", "tests/gpu/results"
# file, model in it, label, prefill test, decode test, batched decode test
CPU_ROWS = [
    ("peer-intel-r-xeon-r-processor-best", None, "SmolLM2-135M, Q4_1", "pp512", "tg128", "tg32 b8"),
    (
        "peer-intel-r-xeon-r-processor-best-widths",
        "qwen3-30b-a3b",
        "Qwen3 30B-A3B, Q4_0",
        "pp512",
        "tg32",
        "tg32 b8",
    ),
    (
        "peer-amd-epyc-best-recent",
        "qwen3.5-35b-a3b",
        "Qwen3.5 35B-A3B, Q4_K_M",
        "pp512",
        "tg32",
        None,
    ),
    ("peer-amd-epyc-best-recent", "gpt-oss-20b", "gpt-oss 20B, MXFP4", "pp512", "tg32", None),
    (
        "peer-amd-epyc-best-recent",
        "gemma4-26b-a4b",
        "Gemma 4 26B-A4B, Q4_K_M",
        "pp512",
        "tg32",
        None,
    ),
]
MACHINES = {"AMD EPYC": "EPYC, AVX2", "Intel(R) Xeon(R) Processor": "Xeon, AMX"}
GPU_FILE = "nvidia-h100-80gb-hbm3"
GPU_ROWS = [
    ("llama3.2-1b", "Llama 3.2 1B, bf16"),
    ("llama3-8b", "Llama 3 8B, bf16"),
    ("mixtral-8x7b", "Mixtral 8x7B, 8 layers"),
    ("qwen3-30b-a3b", "Qwen3 30B-A3B, 12 layers"),
    ("deepseek-v2-lite", "DeepSeek-V2-Lite, 9 layers"),
]


def load(folder, name):
    with open(os.path.join(ROOT, folder, name + ".json"), encoding="utf-8") as f:
        return json.load(f)


def cpu_rows():
    for file, model, label, *tests in CPU_ROWS:
        r = load(BENCH, file)
        found = {t["test"]: t for t in r["tests"] if t.get("model") == model}
        pairs = [(found[t]["i16"]["tps"], found[t]["i16"]["ratio"]) if t else None for t in tests]
        yield label, MACHINES[r["machine"]["cpu"]], "llama.cpp", pairs


def gpu_rows():
    f = load(GPU, GPU_FILE)["figures"]

    def pair(model, **want):
        def of(side):
            return next(
                x
                for x in f[side]
                if is_bf16(x)
                and x["model"] == model
                and all(x.get(k) == v for k, v in want.items())
            )

        mine, peer = of("llmc"), of("torch")
        return mine["tps"], peer["seconds"] / mine["seconds"]

    for model, label in GPU_ROWS:
        decode = [pair(model, test="tg", batch=b, depth=0) for b in (1, 64)]
        yield label, "H100", "PyTorch", [pair(model, test="pp", tokens=4096), *decode]


def is_bf16(x):
    """Whether a figure uses the plan's choice between llmc's kernels and cuBLASLt."""
    return x.get("storage", "bf16") == "bf16" and "way" not in x


def rounded(tps):
    return f"{tps / 1000:.0f}k" if tps >= 10000 else f"{tps:.0f}"


def cell(pair):
    return f"{rounded(pair[0])}, **{pair[1]:.2f}x**" if pair else ""


def table(rows):
    out = ["| model | machine | prefill | decode | decode, batch |", "|---|---|---|---|---|"]
    return "\n".join(
        out
        + [
            f"| {label} | {machine} | {' | '.join(cell(p) for p in pairs)} |"
            for label, machine, _, pairs in rows
        ]
    )


STYLE = """text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.dim { fill: #59636e } .axis { stroke: #59636e } .grid { stroke: #d1d9e0 }
.prefill { fill: #1f6feb } .decode { fill: #bf5700 } .batch { fill: #7a5195 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .dim { fill: #9198a1 } .axis { stroke: #9198a1 } .grid { stroke: #3d444d }
.prefill { fill: #58a6ff } .decode { fill: #f0883e } .batch { fill: #bc8cff } }"""
SERIES = [("prefill", "prefill"), ("decode", "decode, 1 sequence"), ("batch", "decode, batch")]
LEFT, WIDE, BAR, GAP, TOP = 330, 620, 9, 14, 58


def chart(rows):
    most = max(p[1] for *_, pairs in rows for p in pairs if p)
    last = int(most) + 1
    step = (WIDE - 60) / last
    out, y = [], TOP
    for label, machine, peer, pairs in rows:
        middle = y + 1.5 * BAR + 4
        out.append(
            f'<text x="{LEFT - 10}" y="{middle:.1f}" text-anchor="end">{label} <tspan class="dim">({machine})</tspan></text>'
        )
        for i, (p, (kind, _)) in enumerate(zip(pairs, SERIES)):
            if p:
                at = y + i * BAR
                out.append(
                    f'<rect class="{kind}" x="{LEFT}" y="{at}" width="{p[1] * step:.1f}" height="{BAR - 1}"/>'
                )
                out.append(
                    f'<text class="dim" x="{LEFT + p[1] * step + 4:.1f}" y="{at + BAR - 1}" style="font-size:9px">{p[1]:.1f}</text>'
                )
        y += 3 * BAR + GAP
    grid = []
    for v in range(last + 1):
        x = LEFT + v * step
        grid.append(
            f'<line class="{"axis" if v in (0, 1) else "grid"}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{y - GAP + 4}"/>'
        )
        grid.append(f'<text class="dim" x="{x:.1f}" y="{y + 6}" text-anchor="middle">{v}x</text>')
    legend, x = [], LEFT
    for kind, name in SERIES:
        legend.append(
            f'<rect class="{kind}" x="{x}" y="30" width="12" height="10"/><text x="{x + 17}" y="40">{name}</text>'
        )
        x += 30 + 7 * len(name)
    title = "llmc: tokens per second as a multiple of llama.cpp (CPU rows) and PyTorch (H100 rows)"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDE}" height="{y + 16}" viewBox="0 0 {LEFT + WIDE} {y + 16}" role="img" aria-label="{title}">\n'
        f"<style>{STYLE}</style>\n"
        f'<text x="10" y="18" style="font-weight:600">{title}</text>\n'
        + "\n".join(grid + out + legend)
        + "\n</svg>\n"
    )


def documents():
    rows = [*cpu_rows(), *gpu_rows()]
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        readme = f.read()
    mark = re.compile(r"(<!-- tools/speed_doc.py -->\n).*?(\n<!-- end -->)", re.S)
    if not mark.search(readme):
        sys.exit(
            "README.md lacks the markers of the table: <!-- tools/speed_doc.py --> ... <!-- end -->"
        )
    return {
        "README.md": mark.sub(lambda m: m[1] + table(rows) + m[2], readme),
        "docs/speed.svg": chart(rows),
    }


def main():
    check = sys.argv[1:] == ["--check"]
    for name, text in documents().items():
        path = os.path.join(ROOT, name)
        if check:
            with open(path, encoding="utf-8") as f:
                if f.read() != text:
                    sys.exit(f"{name} differs from the result files: run tools/speed_doc.py")
        else:
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)


main()
