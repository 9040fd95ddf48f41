"""From the kernel name in a plan, the main loop of a GPU kernel is at most three files away.

Hop 1 opens kernels/<name>.cu of the artifact; each further hop opens the header that defines a
function which the file before calls.
"""

import heapq
import json
import re
import subprocess
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LLMC = ROOT / "build/llmc"
HOPS = 3

# kernels (template and architecture) -> functions whose loops take most of the time
MAIN_LOOPS = {
    r"(?!norm_moe)(matmul|norm|lm_head)\w*_decode": ["gemv_groups"],
    r"(?!norm_moe|norm_route)(matmul|norm|lm_head)\w*_mixed sm_80": ["swap_ab_kernel", "mainloop"],
    r"(?!norm_moe|norm_route)(matmul|norm|lm_head)\w*_mixed sm_90a": [
        "swap_ab_kernel",
        "gemm90_consume",
    ],
    r"attention_decode": ["att_decode_segment"],
    r"attention_mixed sm_80": ["flash_tile"],
    r"attention_mixed sm_90a": ["flash90_multiply"],
    r"mla_query_mixed": ["mla_query_tiles"],
    r"mla_attend_decode sm_80": ["mla_attend"],
    r"mla_attend_decode sm_90a": ["mla90_multiply"],
    r"mla_attend_mixed": ["flash_tile", "mla_attend"],
    r"mla_value_mixed": ["mla_value_tiles"],
    r"(norm_moe_glu|moe_down_add|moe_ffn)_decode": ["moe_rows"],
    r"(norm_moe_glu|moe_down_add)_mixed sm_80": ["mainloop"],
    r"(norm_moe_glu|moe_down_add)_mixed sm_90a": ["gemm90_consume"],
    r"delta_rule_mixed": ["chunk_schedule"],
    r"selective_scan_mixed": ["chunk_schedule"],
}
NOT_A_CALL = {"if", "for", "while", "switch", "return", "sizeof", "catch"}
DEFINITION = re.compile(r"\b(\w+)\s*\(((?:[^;{}()]|\([^()]*\))*)\)\s*(?:const\s*)?\{")
CALL = re.compile(r"\b(\w+)\s*(?:<[^;{}()]*(?:\([^()]*\)[^;{}()]*)*>)?\s*\(")


@cache
def functions(path):
    """Return [(function, names that its body calls)] of a file, and the headers that the file
    includes."""
    text = path.read_text()
    headers = re.findall(r'#include "([^"]+)"', text)
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"", " ", text, flags=re.S)
    found = []
    for m in DEFINITION.finditer(text):
        depth, end = 1, m.end()
        while depth and end < len(text):
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        if m[1] not in NOT_A_CALL:
            found.append((m[1], set(CALL.findall(text[m.end() : end])) - NOT_A_CALL))
    return found, headers


def hops(kernel, folder):
    """Return {function: number of files that a reader opens, from the kernel's entry to the
    function's definition}."""
    files, pending = set(), [kernel]
    while pending:
        f = pending.pop()
        if f not in files:
            files.add(f)
            pending += [folder / h for h in functions(f)[1] if (folder / h).exists()]
    where = defaultdict(list)
    for f in files:
        for name, called in functions(f)[0]:
            where[name].append((f, called))
    best, queue = {}, [(1, str(kernel), name) for name, _ in functions(kernel)[0]]
    heapq.heapify(queue)
    while queue:
        n, at, name = heapq.heappop(queue)
        if (at, name) in best:
            continue
        best[at, name] = n
        for f, called in where[name]:
            if str(f) == at:
                for c in called:
                    for to, _ in where.get(c, ()):
                        heapq.heappush(queue, (n + (str(to) != at), str(to), c))
    nearest = {}
    for (_, name), n in best.items():
        nearest[name] = min(n, nearest.get(name, n))
    return nearest


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v2-lite", "mixtral-8x7b", "qwen3.5-9b"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_main_loops_are_three_files_away(model, arch, tmp_path):
    out = tmp_path / "out"
    subprocess.run(
        [LLMC, "compile", ROOT / f"configs/{model}.yaml", "--target", "cuda", "--arch", arch]
        + ["-o", out, "-q"],
        check=True,
    )
    plan = json.loads((out / f"plan-cuda-{arch}.json").read_text())
    checked = 0
    for row in plan["kernel"]:
        template = f"{row['id'].split('.')[0]} {arch}"
        wanted = [v for k, v in MAIN_LOOPS.items() if re.match(rf"(?:{k})(?: |$)", template)]
        if wanted:
            found = hops(out / row["file"], out / "kernels")
            for loop in wanted[0]:
                assert loop in found or len(wanted[0]) > 1, f"{row['id']} does not call {loop}"
            reached = {loop: found[loop] for loop in wanted[0] if loop in found}
            assert reached and max(reached.values()) <= HOPS, f"{row['id']}: {reached}"
            checked += 1
    assert checked >= 5
