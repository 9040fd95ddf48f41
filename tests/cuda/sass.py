#!/usr/bin/env python3
"""Reads the SASS that ptxas generated for a kernel: instructions in order, from a cubin, and the
facts that tests check.

    tests/cuda/sass.py FILE.cubin ...        one line per function: counts, order, widths

    s = sass.functions(cubin)["norm_glu_decode"]     # a list of instructions as strings
    s.first("LDGSTS", "LDG") < s.first("ACQBULK")    # weights before the wait of a dependent launch

ACQBULK is griddepcontrol.wait, PREEXIT launch_dependents, LDGSTS cp.async, UBLKCP a bulk copy, HMMA
and HGMMA the tensor cores, LDL and STL spills. The disassembler is that of a CUDA toolkit or of the
triton wheel, searched in LLMC_NVDISASM, PATH, /usr/local/cuda and Python's packages; without one
functions() is None."""

import functools
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import build_cache  # noqa: E402


@functools.lru_cache
def disassembler():
    named = os.environ.get("LLMC_NVDISASM")
    if named:
        return named
    found = shutil.which("nvdisasm")
    if found:
        return found
    places = ["/usr/local/cuda*/bin/nvdisasm"]
    for p in sys.path:
        places += [f"{p}/triton/backends/nvidia/bin/nvdisasm", f"{p}/nvidia/cu13/bin/nvdisasm"]
    for p in places:
        for path in sorted(glob.glob(p), reverse=True):
            if os.access(path, os.X_OK):
                return path
    return None


class Sass(list):
    """Instructions in the order of the file, such as `@P0 LDG.E.128 R4, ...`; label: index of each
    label of the disassembler"""

    def __init__(self, items=()):
        super().__init__(items)
        self.label = {}

    def where(self, *ops):
        """Return the indices of the instructions whose name begins with one of ops (names end at a
        dot)"""
        want = tuple(ops)
        out = []
        for i, text in enumerate(self):
            name = re.sub(r"^@\S+\s+", "", text).split(" ")[0]
            if any(name == o or name.startswith(o + ".") for o in want):
                out.append(i)
        return out

    def first(self, *ops):
        """Return the index of the first such instruction, or the length if there is none"""
        return next(iter(self.where(*ops)), len(self))

    def count(self, *ops):
        return len(self.where(*ops))

    def loops(self, *ops):
        """Return the bodies of loops, in order. A loop extends from a label to the last branch back
        to it; it must contain an instruction of each of ops, and no other such loop"""
        last = {}
        for i in self.where("BRA"):
            m = re.search(r"(\.L\w+)", self[i])
            if m and self.label.get(m[1], i + 1) <= i:
                last[self.label[m[1]]] = i + 1
        found = [
            Sass(self[a:b])
            for a, b in sorted(last.items())
            if all(any(a <= k < b for k in self.where(o)) for o in ops)
            and not any(
                a <= c
                and d <= b
                and (a, b) != (c, d)
                and all(any(c <= k < d for k in self.where(o)) for o in ops)
                for c, d in last.items()
            )
        ]
        return found

    def ways(self, *ops):
        """For each loop with an instruction of ops[0], return the number of instructions on the
        shortest path around the loop that passes the most of ops, in their order. Code after a
        branch out of the loop (the end of a tile) is not counted."""
        heads = {}
        for i in self.where("BRA"):
            m = re.search(r"(\.L\w+)", self[i])
            if m and self.label.get(m[1], i + 1) <= i:
                heads[self.label[m[1]]] = i
        marks, found = [set(self.where(o)) for o in ops], []
        for head, tail in sorted(heads.items()):
            # for each instruction, of the best path to the branch back: number of passed ops, then
            # minus the length
            best = {}
            for i in range(tail, head - 1, -1):
                m = re.match(r"(@!?\S+\s+)?(\S+)\s*(.*)", self[i])
                to = (
                    self.label.get((re.search(r"\.L\w+", self[i]) or [""])[0])
                    if m[2].split(".")[0] == "BRA"
                    else None
                )
                after = (
                    [best[i + 1]]
                    if i + 1 in best
                    and (to is None or m[1] or re.match(r"!?U?P\d", m[3]))
                    and not (m[2] == "EXIT" and not m[1])
                    else []
                )
                after += [(0,) * (len(ops) + 1)] if to == head else [best[to]] if to in best else []
                if after:
                    *n, length = max(after)
                    best[i] = (*[x + (i in mark) for x, mark in zip(n, marks)], length - 1)
            if head in best and best[head][0]:
                found.append(-best[head][-1])
        return found


def disassembled(tool, cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        return subprocess.run(
            [tool, "-c", f.name], capture_output=True, text=True, check=True
        ).stdout


def functions(cubin):
    """{name: Sass} of a cubin's bytes; None without a disassembler"""
    tool = disassembler()
    if tool is None:
        return None
    key = build_cache.key(hashlib.sha256(cubin).hexdigest(), os.path.getsize(tool), "-c")
    kept = build_cache.get("sass", key)
    text = zlib.decompress(kept).decode() if kept else disassembled(tool, cubin)
    if not kept:
        build_cache.put("sass", key, zlib.compress(text.encode(), 1))
    out, name = {}, None
    for line in text.split("\n"):
        m = re.match(r"\s*\.section\s+\.text\.(\w+)", line)
        if m:
            name = m[1]
            out[name] = Sass()
        m = re.match(r"(\.L\w+):", line)
        if m and name:
            out[name].label[m[1]] = len(out[name])
        m = re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?)\s*;", line)
        if m and name:
            out[name].append(m[1].strip("{ "))
    return out


def faults(s, bytes_=16, tensor=True):
    """Returns, as sentences, the rules for kernels that stream weights that this one breaks.
    bytes_: width of the first load of weights."""
    out = []
    load, wait = s.first("LDGSTS", "UBLKCP"), s.first("ACQBULK")
    if load == len(s):
        load = s.first("LDG")
    if s.where("ACQBULK") and load > wait:
        out.append("weights are asked for after griddepcontrol.wait")
    if s.where("ACQBULK") and s.first("STG", "ATOMG", "RED", "ST") < wait:
        out.append("a store stands before griddepcontrol.wait")
    if not s.where("UBLKCP") and (
        load == len(s) or f".{bytes_ * 8}" not in s[load].split(" ")[0 if s[load][0] != "@" else 1]
    ):
        out.append(
            f"the first load of weights is not {bytes_} bytes wide: {s[load] if load < len(s) else 'none'}"
        )
    if s.where("LDG") and any(
        ".CONSTANT" in s[i].split(" ")[0 if s[i][0] != "@" else 1] for i in s.where("LDG")
    ):
        out.append("a load is ld.global.nc: ptxas may move it across a wait")
    if s.where("LDL", "STL"):
        out.append("registers are spilled")
    if tensor and not s.where("HMMA", "HGMMA", "UTCHMMA"):
        out.append("no tensor cores")
    return out


def main():
    for path in sys.argv[1:]:
        with open(path, "rb") as f:
            found = functions(f.read())
        if found is None:
            print(
                "no nvdisasm (LLMC_NVDISASM, PATH, /usr/local/cuda, the triton wheel)",
                file=sys.stderr,
            )
            return 77
        for name, s in found.items():
            print(
                f"{name}: {len(s)} instructions, {s.count('LDGSTS')} LDGSTS, {s.count('LDG')} LDG, {s.count('HMMA')} HMMA, "
                f"{min(s.first('LDGSTS'), s.first('LDG'))} first load, {s.first('ACQBULK')} wait; {'; '.join(faults(s)) or 'as wanted'}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
