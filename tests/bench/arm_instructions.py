#!/usr/bin/env python3
"""Count the instructions per multiply-add of the GEMM tiles for Arm, from the cross compiler's assembly.

    python tests/bench/arm_instructions.py [TYPE ...]
    python tests/bench/arm_instructions.py --ggml llama.cpp/ggml     count llama.cpp's kernels instead; CXX: a cross g++

The count is of the loop over a block of 32 columns: loads, integer dot products, conversion, scaling
and addition in fp32, without unpacking (once per chunk for all tokens). `stack` counts loads and
stores of spilled registers."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "kernels"))
import expand  # noqa: E402

FLAGS = {"neon": "-march=armv8.2-a+dotprod+fp16", "i8mm": "-march=armv8.6-a+fp16"}
TYPES = ["q4_0", "q4_k", "q6_k", "q8_0"]
TOKENS, ROWS = 6, 8
DOTS = r"\t(usmmla|usdot|sdot|smull)"


def assembly(isa, dtype, bits):
    k = expand.expand(
        f"cpu-{isa}",
        "templates/cpu/gemm/matmul.c.in",
        {"ROWS": 64, "COLS": 768, "W_DTYPE": dtype, "ACT_BITS": bits},
    )
    with tempfile.TemporaryDirectory() as folder:
        src, out = Path(folder, "k.c"), Path(folder, "k.s")
        src.write_text(k["products"][0]["text"])
        flags = ["-std=gnu11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", FLAGS[isa]]
        cc = ["aarch64-linux-gnu-gcc", *flags, f"-I{ROOT / 'templates'}", "-S", str(src)]
        subprocess.run([*cc, "-o", str(out)], check=True)
        return out.read_text()


def loops(lines):
    """Yield the lines of each loop."""
    label = {}
    for i, line in enumerate(lines):
        if m := re.match(r"^\s*(\.L\w+|\d+):", line):
            label[m[1]] = i
        jump = re.match(r"\s*(?:b\S*|cb\w+|tb\w+)\s.*?(?:(\.L\w+)|\b(\d+)b)$", line)
        if jump and (jump[1] or jump[2]) in label:
            yield lines[label[jump[1] or jump[2]] : i + 1]


def block_loop(text):
    """Return the instructions of the shortest loop with dot products in the tile of TOKENS tokens."""
    lines = re.search(rf"^\w+_tile_{TOKENS}:\n(.*?)^\t\.size", text, re.S | re.M)[1].split("\n")
    bodies = [[x for x in b if re.match(r"\t[a-z]", x)] for b in loops(lines)]
    return min((b for b in bodies if any(re.match(DOTS, x) for x in b)), key=len)


def multiply_adds(line):
    """Return the number of multiply-adds of an instruction in ggml's code, which writes some
    instructions as numbers."""
    word = re.match(r"\.inst\s+0x(\w+)", line)
    code = int(word[1], 16) if word else 0
    if re.match(r"(us|su|s|u)mmla\b", line) or code & 0xFFE0FC00 == 0x4E80A400:
        return 32
    if re.match(r"(us|su|s|u)dot\b", line) or code & 0xFFC0F400 == 0x4F80E000:
        return 16
    return 0


def count_ggml(folder):
    """Print the loop of each GEMM and dot product of ggml that has the fewest instructions per multiply-add."""
    cxx = os.environ.get("CXX", "aarch64-linux-gnu-g++").split()
    include = [f"-I{folder}/{d}" for d in ("include", "src", "src/ggml-cpu")]
    print("| target | function | instructions | multiply-adds | per multiply-add |")
    print("|---|---|---|---|---|")
    for isa, flag in FLAGS.items():
        for name in ("repack.cpp", "quants.c"):
            cc = [*cxx, "-std=c++17"] if name.endswith("cpp") else ["aarch64-linux-gnu-gcc"]
            source = f"{folder}/src/ggml-cpu/arch/arm/{name}"
            text = subprocess.run(
                [*cc, "-O3", flag, *include, "-S", source, "-o", "-"],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for m in re.finditer(
                r"^(ggml_(?:gemm|vec_dot)_\w+):\n(.*?)^\t\.size", text, re.S | re.M
            ):
                lines = [x.split("//")[0].strip() for x in re.split(r"[\n;]", m[2])]
                bodies = [[x for x in b if re.match(r"[a-z]|\.inst", x)] for b in loops(lines)]
                found = [(len(b), sum(map(multiply_adds, b))) for b in bodies]
                n, per = min((f for f in found if f[1]), key=lambda f: f[0] / f[1], default=(0, 1))
                if n:
                    print(f"| {isa} | {m[1]} | {n} | {per} | {n / per:.3f} |")


def main():
    if sys.argv[1:2] == ["--ggml"]:
        count_ggml(sys.argv[2])
        return
    print(
        "| target | weights | activations | per block | dot products | stack | per multiply-add |"
    )
    print("|---|---|---|---|---|---|---|")
    for isa in FLAGS:
        for dtype in sys.argv[1:] or TYPES:
            for bits in (16, 8):
                body = block_loop(assembly(isa, dtype, bits))
                dots = sum(bool(re.match(DOTS, x)) for x in body)
                stack = sum(bool(re.match(r"\t(ldr|str|ldp|stp)\t.*\bsp\b", x)) for x in body)
                per = len(body) / (32 * ROWS * TOKENS)
                print(
                    f"| {isa} | {dtype} | {bits} bits | {len(body)} | {dots} | {stack} | {per:.3f} |"
                )


if __name__ == "__main__":
    main()
