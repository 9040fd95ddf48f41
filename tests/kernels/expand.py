"""Kernels as the compiler expands them: build/expand (expand.c) expands a template for an op with the library.

    k = expand("cuda-sm_90a", "templates/cuda/gemm/matmul.cu.in", dict(ROWS=8, COLS=64, W_DTYPE="q8_0", HAS_B=0))
    k["text"], k["symbol"], k["arg"], k["launch"], k["map"]     # the kernel's row of a plan (docs/plan-format.md)
    k["products"]                                               # the same for the matmul files that it calls

None: the template does not support this op. An extent (elems) is a number or {symbol: factor} or {symbol: [factor, divisor]}."""

import fcntl
import functools
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LLMC_EMU_BUILD", ROOT / "build"))


@functools.cache
def tool(name="expand"):
    brought = ROOT / "lib" / name
    if brought.exists():  # a test pack for machines without a compiler
        return brought
    BUILD.mkdir(parents=True, exist_ok=True)
    with open(BUILD / "expand.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            ["make", "--no-print-directory", "-s", f"BUILD={BUILD}", f"{BUILD}/{name}"],
            cwd=ROOT,
            check=True,
        )
    return BUILD / name


# absent in most ops: omitted unless a test sets them
LACKS = {"sink", "p", "add", "gate_b", "up_b", "down_b", "logit_b"}
USUAL = {f"HAS_{n.upper()}": 0 for n in LACKS} | {
    "LIMIT": 0,
    "PLUS_ONE": 0,
    "JITTER": 0,
    "PER_GROUP": 0,
    "CHUNK": 0,
    "ALIBI_FIRST": 0,
    "ALIBI_HEADS": 0,
}


def expand(target, path, params):
    params = USUAL | dict(params)
    values = [f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in params.items()]
    return _expand(target, str(path), tuple(values))


@functools.cache
def _expand(target, path, values):
    r = subprocess.run([str(tool()), target, path, *values], cwd=ROOT, capture_output=True)
    if r.returncode == 3:
        return None
    assert r.returncode == 0, r.stderr.decode()
    texts, rest = [], r.stdout
    while True:
        size, rest = rest.split(b"\n", 1)
        if not int(size):
            break
        texts.append(rest[: int(size)].decode())
        rest = rest[int(size) :]
    kernel, *products = [
        dict(k, text=t) for k, t in zip(json.loads(rest)["kernel"], texts, strict=True)
    ]
    return dict(kernel, products=products)


def complete(args, declared):
    """Arguments in declared order, with None for omitted optional ones, and the index of each given argument."""
    if not declared or len(args) == len(declared):  # no declaration: not a kernel of a template
        return list(args), list(range(len(args)))
    place = [i for i, d in enumerate(declared) if d["name"] not in LACKS or d["dir"] != "none"]
    assert len(place) == len(args), (
        f"{len(declared)} arguments, {len(place)} of them are there, {len(args)} given"
    )
    out = [None] * len(declared)
    for i, a in zip(place, args):
        out[i] = a
    return out, place


def elems(extent, syms):
    if isinstance(extent, int):
        return extent
    ((sym, by),) = extent.items()
    mul, div = by if isinstance(by, list) else (by, 1)
    return mul * -(-syms[sym] // div)
