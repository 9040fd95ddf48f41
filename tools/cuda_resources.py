#!/usr/bin/env python3
"""Compile every CUDA kernel of descriptions with the real NVRTC (no GPU needed), and tabulate its resources.

    tools/cuda_resources.py [--arch sm_80,...] [--set KEY=VALUE]... [--markdown FILE] CONFIG.yaml ...

Results are in the cache of built code (tools/build_cache.py). Exit status 1: an error, a spill, a warning, too much shared memory;
77: no NVRTC."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nvrtc  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
LLMC = os.environ.get("LLMC", str(ROOT / "build" / "llmc"))
# threads and shared memory per SM, shared memory per thread block: CUDA C++ Programming Guide, table of compute capabilities
SM = {
    "sm_75": (1024, 64, 64),
    "sm_80": (2048, 164, 163),
    "sm_86": (1536, 100, 99),
    "sm_89": (1536, 100, 99),
    "sm_90a": (2048, 228, 227),
    "sm_100a": (2048, 228, 227),
    "sm_103a": (2048, 228, 227),
    "sm_110a": (1536, 228, 227),
    "sm_120a": (1536, 100, 99),
    "sm_121a": (1536, 100, 99),
}


def occupancy(arch, block, registers, shared):
    """Thread blocks per SM."""
    threads, sm_kb, _ = SM[arch]
    warps = (block + 31) // 32
    by_regs = 65536 // (max(1, -(-registers * 32 // 256) * 256) * warps) if registers else 32
    by_shared = sm_kb * 1024 // (shared + 1024) if shared else 32
    return max(
        0,
        min(
            32 if arch not in ("sm_75", "sm_86", "sm_89") else 16,
            threads // block,
            by_regs,
            by_shared,
        ),
    )


def emit(config, archs, sets, folder):
    cmd = [
        LLMC,
        "compile",
        str(config),
        "--target",
        "cuda",
        "--arch",
        ",".join(archs),
        "-o",
        str(folder),
    ]
    for s in sets:
        cmd += ["--set", s]
    p = subprocess.run(cmd, capture_output=True, text=True)
    if p.returncode:
        raise RuntimeError(f"{' '.join(cmd)}\n{p.stderr}")


def compile_file(lib, path, arch):
    return nvrtc.compile_one(
        lib, path.name, path.read_text(), arch, [str(path.parent), str(path.parent / "common")]
    )


def survey(configs, archs, sets=(), jobs=None):
    """Rows: config, arch, kernel, launch, registers, shared bytes, blocks per SM, error (or None)."""
    lib = nvrtc.find()
    if lib is None:
        return None
    rows = []
    with (
        tempfile.TemporaryDirectory() as tmp,
        ThreadPoolExecutor(jobs or min(2, os.cpu_count() or 1)) as pool,
    ):
        for n, config in enumerate(configs):
            folder = Path(tmp) / str(n)
            emit(config, archs, sets, folder)
            for arch in archs:
                plan = json.loads((folder / f"plan-cuda-{arch}.json").read_text())
                done = list(
                    pool.map(lambda k: compile_file(lib, folder / k["file"], arch), plan["kernel"])
                )
                for k, r in zip(plan["kernel"], done):
                    by_name = {x["name"]: x for x in r["kernels"]}
                    for u in (u for u in k["launch"] if "fn" in u):  # a library GEMM has no kernel
                        x = by_name.get(u["fn"])
                        wrong = nvrtc.bad(r) or (None if x else "no such function")
                        row = dict(
                            config=Path(config).stem,
                            arch=arch,
                            kernel=k["id"],
                            fn=u["fn"],
                            block=u["block"],
                            wrong=wrong,
                            log=r["log"],
                        )
                        if x:
                            shared = x["shared"] + u["shared"]
                            row |= dict(
                                registers=x["registers"],
                                shared=shared,
                                blocks=occupancy(arch, u["block"], x["registers"], shared),
                            )
                            if shared > SM[arch][2] * 1024:
                                row["wrong"] = (
                                    f"{shared} bytes of shared memory, a block has {SM[arch][2]} KiB"
                                )
                            elif not wrong and row["blocks"] == 0:
                                row["wrong"] = "too many registers for its block"
                        rows.append(row)
    return rows


def cells(rows):
    """{(function, index among equal names): {architecture: text}} of one description, in the order of the plans"""
    out, seen = {}, {}
    for r in (r for r in rows if "registers" in r):
        name = re.sub(r"_[0-9a-f]{12}", "", r["fn"])
        n = seen[r["arch"], name] = seen.get((r["arch"], name), 0) + 1
        out.setdefault((name, n), {})[r["arch"]] = (
            f"{r['block']}, {r['registers']}, {r['shared'] / 1024:.4g}K, {r['blocks']}"
        )
    return out


def trouble(rows):
    """A sentence that lists the kernels with errors."""
    found = {}
    for r in (r for r in rows if r["wrong"]):
        found.setdefault(
            (r["wrong"], re.sub(r"_[0-9a-f]{12}", "", r["fn"]), r["config"]), []
        ).append(r["arch"])
    return (
        "; ".join(
            f"{wrong}: {fn} of {config} on {', '.join(archs)}"
            for (wrong, fn, config), archs in found.items()
        )
        or "No kernel spills"
    )


def markdown(rows, version_note):
    out = [
        "# Resources of CUDA kernels",
        "",
        f"Made by `make nvrtc` on {time.strftime('%Y-%m-%d')} ({version_note}), from the kernels of that date: threads per block, registers per thread, shared memory per block (static and dynamic),",
        f"blocks per SM. {trouble(rows)}. Functions with equal names are kernels for different shapes.",
        "",
    ]
    for config in dict.fromkeys(r["config"] for r in rows):
        mine = [r for r in rows if r["config"] == config]
        archs = list(dict.fromkeys(r["arch"] for r in mine))
        out += [
            f"## {config}",
            "",
            f"| function | {' | '.join(archs)} |",
            "|---" * (len(archs) + 1) + "|",
        ]
        for (name, n), by_arch in cells(mine).items():
            out.append(
                f"| {name}{f' ({n})' if n > 1 else ''} | "
                + " | ".join(by_arch.get(a, "") for a in archs)
                + " |"
            )
        out.append("")
    return "\n".join(out)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("configs", nargs="+")
    a.add_argument("--arch", default=",".join(nvrtc.ARCHS))
    a.add_argument("--set", action="append", default=[])
    a.add_argument("--markdown")
    a = a.parse_args()
    rows = survey(a.configs, a.arch.split(","), a.set)
    if rows is None:
        print(
            "cuda_resources.py: no libnvrtc: set LLMC_CUDA_LIBDIR, or pip install nvidia-cuda-nvrtc",
            file=sys.stderr,
        )
        return 77
    for r in rows:
        print(
            f"{r['config']:14} {r['arch']:8} {r.get('registers', 0):3} regs {r.get('shared', 0):6} shared {r.get('blocks', 0):2} blocks  {r['fn']}"
            + (f"  {r['wrong'].upper()}" if r["wrong"] else "")
        )
        if r["wrong"] and r["log"]:
            print(r["log"], file=sys.stderr)
    if a.markdown:
        Path(a.markdown).write_text(markdown(rows, "NVRTC and ptxas of CUDA 13"))
    wrong = sum(1 for r in rows if r["wrong"])
    print(f"{len(rows)} functions, {wrong} with trouble")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
