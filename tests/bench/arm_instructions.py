#!/usr/bin/env python3
"""Count the instructions per multiply-add of the GEMM tiles for Arm, from the cross compiler's assembly.

    python tests/bench/arm_instructions.py [TYPE ...]

The count is of the loop over a block of 32 columns: loads, integer dot products, conversion, scaling
and addition in fp32, without unpacking (once per chunk for all tokens). `stack` counts loads and
stores of spilled registers."""

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


def block_loop(text):
    """Return the instructions of the shortest loop with dot products in the tile of TOKENS tokens."""
    lines = re.search(rf"^\w+_tile_{TOKENS}:\n(.*?)^\t\.size", text, re.S | re.M)[1].split("\n")
    label = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"^(\.L\w+):", line))}
    loops = []
    for i, line in enumerate(lines):
        jump = re.match(r"\t(?:b\S*|cb\w+|tb\w+)\t.*?(\.L\w+)$", line)
        if jump and label.get(jump[1], i) < i:
            loops.append([x for x in lines[label[jump[1]] : i + 1] if re.match(r"\t[a-z]", x)])
    return min((b for b in loops if any(re.match(DOTS, x) for x in b)), key=len)


def main():
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
