#!/usr/bin/env python3
"""Compile CUDA files with the real NVRTC, without a GPU or a toolkit's compiler, and report the results.

    tools/nvrtc.py [--arch sm_80,sm_90a] [-I DIR]... [--jobs N] [--json] [--cubin DIR] FILE.cu ...

One line per kernel and architecture: registers, static shared memory, spills, time. Exit status 1: an error, a spill, a warning of any
kind. The library is searched in LLMC_CUDA_LIBDIR, a toolkit, and the wheel nvidia-cuda-nvrtc; without it the status is 77.
An artifact's folder is its own include path."""

import argparse
import ctypes as C
import glob
import json
import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import build_cache  # noqa: E402

ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a"]
ARCHS += ["sm_121a"]


def candidates():
    d = os.environ.get("LLMC_CUDA_LIBDIR")
    if d and "emu" not in Path(d).name:
        yield d
    for root in (
        os.environ.get("CUDA_HOME"),
        os.environ.get("CUDA_PATH"),
        "/usr/local/cuda",
        *sorted(glob.glob("/usr/local/cuda-*"), reverse=True),
    ):
        if root:
            yield f"{root}/lib64"
            yield f"{root}/targets/x86_64-linux/lib"
    for p in sys.path + glob.glob(
        os.path.expanduser("~/.cache/llmc/venv-*/lib/python3*/site-packages")
    ):
        for wheel in ("cu13", "cuda_nvrtc"):
            yield f"{p}/nvidia/{wheel}/lib"


def find():
    """The library, or None."""
    for d in candidates():
        for path in sorted(glob.glob(f"{d}/libnvrtc.so.1[2-9]")):
            try:
                return C.CDLL(path)
            except OSError:
                continue
    return None


def identity(lib):
    """Version of the library and size of its file: builds of one version differ."""
    major, minor = C.c_int(), C.c_int()
    lib.nvrtcVersion(C.byref(major), C.byref(minor))
    return major.value, minor.value, os.path.getsize(lib._name)


def compile_one(lib, name, text, arch, include=(), extra=()):
    """dict: name, arch, ok, log, kernels [{name, registers, shared, spill}], seconds, cubin; from the build cache if present"""
    opts = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *extra]
    body = re.sub(r"\A/\*.*?\*/\n", "", text, flags=re.S)  # the comment at the top names the model
    key = build_cache.key(name, body, build_cache.included(text, include), opts, identity(lib))
    start = time.time()
    kept = build_cache.get("nvrtc", key)
    if kept:
        result, _, cubin = kept.partition(b"\n")
        result = json.loads(result)
    else:
        result, cubin = report(*translate(lib, name, text, [*opts, *(f"-I{d}" for d in include)]))
        build_cache.put("nvrtc", key, json.dumps(result).encode() + b"\n" + cubin)
    return dict(name=name, arch=arch, **result, seconds=time.time() - start, cubin=cubin)


def translate(lib, name, text, opts):
    """Run NVRTC: (ok, log, image)"""
    prog, n = C.c_void_p(), C.c_size_t()
    if lib.nvrtcCreateProgram(C.byref(prog), text.encode(), name.encode(), 0, None, None):
        raise RuntimeError("nvrtcCreateProgram")
    rc = lib.nvrtcCompileProgram(
        prog, len(opts), (C.c_char_p * len(opts))(*[o.encode() for o in opts])
    )
    lib.nvrtcGetProgramLogSize(prog, C.byref(n))
    log = C.create_string_buffer(n.value)
    lib.nvrtcGetProgramLog(prog, log)
    cubin = b""
    if rc == 0:
        lib.nvrtcGetCUBINSize(prog, C.byref(n))
        image = C.create_string_buffer(n.value)
        lib.nvrtcGetCUBIN(prog, image)
        cubin = image.raw
    lib.nvrtcDestroyProgram(C.byref(prog))
    return rc == 0, log.value.decode(errors="replace"), cubin


def report(ok, log, cubin):
    """Split the log of ptxas into rows per kernel and the rest"""
    kernels, rest, this = [], [], None
    for line in log.split("\n"):
        m = re.search(r"Compiling entry function '(\w+)'", line)
        if m:
            this = dict(name=m[1], registers=0, shared=0, spill=0, stack=0)
            kernels.append(this)
        elif this and (
            m := re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line
            )
        ):
            # stack and spills of the kernel and of the functions that it calls
            this["stack"], this["spill"] = (
                max(this["stack"], int(m[1])),
                this["spill"] + int(m[2]) + int(m[3]),
            )
        elif this and (m := re.search(r"Used (\d+) registers", line)):
            this["registers"] = int(m[1])
            m = re.search(r"(\d+) bytes smem", line)
            this["shared"] = int(m[1]) if m else 0
        elif line.strip() and not re.search(r"ptxas info\s*:|Function properties for", line):
            rest.append(line)
    return dict(ok=ok, log="\n".join(rest), kernels=kernels), cubin


def compile_all(lib, todo, include=(), jobs=None):
    """todo: (name, text, arch); results are in the same order."""
    with ThreadPoolExecutor(jobs or min(2, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda t: compile_one(lib, *t, include), todo))


def bad(r):
    """The error of a result, or None."""
    if not r["ok"]:
        return "error"
    if any(k["spill"] for k in r["kernels"]):
        return "spills"
    if "Potential Performance Loss" in r["log"]:
        return "Potential Performance Loss"
    return "warning" if r["log"] else None


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("files", nargs="+")
    a.add_argument("--arch", default=",".join(ARCHS))
    a.add_argument("-I", dest="include", action="append", default=[])
    a.add_argument("--jobs", type=int)
    a.add_argument("--json", action="store_true")
    a.add_argument("--cubin", metavar="DIR")
    a = a.parse_args()
    lib = find()
    if lib is None:
        print(
            "nvrtc.py: no libnvrtc: set LLMC_CUDA_LIBDIR, or pip install nvidia-cuda-nvrtc",
            file=sys.stderr,
        )
        return 77
    todo = [
        (Path(f).name, Path(f).read_text(), arch, f) for f in a.files for arch in a.arch.split(",")
    ]
    here = sorted(
        {
            str(p)
            for f in a.files
            for p in (Path(f).parent, Path(f).parent.parent)
            if (p / "common").is_dir()
        }
    )
    results = compile_all(lib, [t[:3] for t in todo], [*a.include, *here], a.jobs)
    for r in results:
        if a.cubin and r["cubin"]:
            Path(a.cubin).mkdir(parents=True, exist_ok=True)
            (Path(a.cubin) / f"{r['name']}.{r['arch']}.cubin").write_bytes(r["cubin"])
        wrong = bad(r)
        if not a.json:
            for k in r["kernels"] or [dict(name="-", registers=0, shared=0, spill=0, stack=0)]:
                print(
                    f"{r['arch']:8} {k['registers']:3} regs {k['shared']:6} shared {k['spill']:4} spill {k['stack']:4} stack "
                    f"{r['seconds'] * 1000:6.0f} ms  {r['name']} {k['name']}"
                    + (f"  {wrong.upper()}" if wrong else "")
                )
        if wrong and r["log"]:
            print(r["log"], file=sys.stderr)
    if a.json:
        print(json.dumps([{k: v for k, v in r.items() if k != "cubin"} for r in results], indent=1))
    return 1 if any(bad(r) for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
