"""Harness of the kernel tests: expands a template with the compiler, builds it as the runtime does, and calls it through ctypes."""

import ctypes as C
import functools
import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np

import expand as E

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import quick_cc  # noqa: E402, I001  (adds tools/ to the path)
import build_cache  # noqa: E402
from processor import RUNS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
CC = os.environ.get("LLMC_CC", "gcc")
WARN = "-Wall -Wextra -Wshadow -Wstrict-prototypes -Wpointer-arith -Wvla -Werror".split()
# -O1 halves the time; check-all also tests optimised code
LEVEL = "-O2" if "LLMC_CHECK_ALL" in os.environ else "-O1"
FLAGS = f"-std=gnu11 {LEVEL} -fstrict-aliasing -fPIC -shared -ffp-contract=off -fno-math-errno -fvisibility=default".split()
# portable variants need not be fast, so compile them quickly
ARCH = {
    "generic": ["-O1"],
    "v3": ["-march=x86-64-v3"],
    "v4": ["-march=x86-64-v4", "-mavx512vnni"],
    "vnni": ["-march=x86-64-v3", "-mavxvnni"],
    "amx": [
        "-march=x86-64-v4",
        "-mavx512vnni",
        "-mavx512bf16",
        "-mamx-tile",
        "-mamx-int8",
        "-mamx-bf16",
    ],
    "v4p": ["-O1", "-march=x86-64-v3", "-DLLMC_PORTABLE_V4"],
    # the portable definition of the Arm targets: fmaf needs an instruction to be fast
    "neon": ["-O1", "-mfma"],
    "i8mm": ["-O1", "-mfma"],
}
LAYOUT = {
    "generic": "r4",
    "v3": "r8",
    "vnni": "r8",
    "v4": "r16",
    "amx": "r16",
    "v4p": "r16",
    "neon": "r4",
    "i8mm": "r4",
}
PAGE = 32


# variants that run on this machine: v4p is the portable definition of v4
TARGETS = ["generic"] + (["v3", "v4p"] if RUNS["v3"] else []) + (["v4"] if RUNS["v4"] else [])
# variants that differ from v3 and v4 only in matmuls; a sample of tests runs them
MORE = [t for t in ("vnni", "amx") if RUNS[t]] + (["neon", "i8mm"] if RUNS["v3"] else [])


class Step(C.Structure):
    _fields_ = (
        [("n_tok", C.c_int32), ("n_dec", C.c_int32), ("n_seq", C.c_int32), ("n_out", C.c_int32)]
        + [
            (n, C.c_void_p)
            for n in "tok pos pos2 seq_of q_start kv_len prefix_len out_row block_table".split()
        ]
        + [("block_stride", C.c_int32), ("seq", C.c_void_p), ("adapter", C.c_void_p)]
    )


def make_step(
    pos,
    rows=None,
    kv_len=None,
    prefix=None,
    table=None,
    tok=None,
    pos2=None,
    out_row=None,
    n_dec=0,
    seq=None,
    adapter=None,
):
    """pos: position of each row; rows: rows of each sequence (default: one row each); seq: sequence numbers in the session (default: in order); adapter: slots
    by that number (default: none). The arrays live as long as the step."""
    n_tok = len(pos)
    rows = [1] * n_tok if rows is None else list(rows)
    n_seq = len(rows)
    start = np.concatenate([[0], np.cumsum(rows)])
    assert start[-1] == n_tok
    seq_of = np.repeat(np.arange(n_seq), rows)
    if kv_len is None:
        kv_len = [
            max((pos[t] for t in range(start[i], start[i + 1])), default=-1) + 1
            for i in range(n_seq)
        ]
    table = np.zeros((n_seq, 1)) if table is None else np.asarray(table)
    out_row = [] if out_row is None else out_row
    arrays = dict(
        tok=np.zeros(n_tok) if tok is None else tok,
        pos=pos,
        pos2=np.zeros(n_tok) if pos2 is None else pos2,
        seq_of=seq_of,
        q_start=start,
        kv_len=kv_len,
        prefix_len=np.zeros(n_seq) if prefix is None else prefix,
        out_row=out_row,
        block_table=table,
        seq=np.arange(n_seq) if seq is None else seq,
        adapter=np.full(n_seq, -1) if adapter is None else adapter,
    )
    s = Step(n_tok=n_tok, n_dec=n_dec, n_seq=n_seq, n_out=len(out_row), block_stride=table.shape[1])
    s.keep = {k: np.ascontiguousarray(v, dtype=np.int32) for k, v in arrays.items()}
    for k, v in s.keep.items():
        setattr(s, k, v.ctypes.data)
    return s


def expand(template, target, params):
    """Expand a file of templates/cpu with the compiler."""
    isa = "v4" if target == "v4p" else target
    k = E.expand(f"cpu-{isa}", f"templates/cpu/{template}.c.in", params)
    assert k, f"{template} does not take {params} for {isa}"
    return k


@functools.cache
def vectors():
    return quick_cc.include(
        [*FLAGS, *WARN], {t: ARCH[t] for t in [*TARGETS, *MORE] if t != "generic"}
    )


def build(template, target, params, extra=()):
    made = expand(template, target, params)
    return Kernel(
        compiled(template, target, called(made["text"], made["products"], target, extra), extra),
        made,
    )


@functools.cache
def product(target, symbol, text, extra):
    """Load matmul functions as the runtime does. They get a unique name, which is returned, since v4p has the text of v4."""
    name = f"{symbol}_{target}_{hashlib.sha256(' '.join(extra).encode()).hexdigest()[:8]}"
    compiled("products", target, text.replace(symbol, name), extra, C.RTLD_GLOBAL)
    return name


def called(text, products, target, extra):
    """Return the kernel's text with the names of the loaded matmul functions."""
    for p in products:
        text = text.replace(
            p["symbol"] + "\n", product(target, p["symbol"], p["text"], tuple(extra)) + "\n"
        )
    return text


def compiled(name, target, text, extra=(), mode=C.DEFAULT_MODE):
    """Return the library of a kernel's text, cached by text, headers, flags and compiler."""
    flags = [
        *FLAGS,
        *WARN,
        *ARCH[target],
        *extra,
        *os.environ.get("LLMC_KERNEL_TEST_CFLAGS", "").split(),
    ]

    def make(so):
        src = Path(so).with_name(f"{name}-{target}.c")
        src.write_text(text)
        cmd = [CC, *flags, *vectors(), f"-I{TEMPLATES}", str(src), "-o", so, "-lm"]
        r = subprocess.run(cmd, capture_output=True, text=True)
        assert r.returncode == 0, f"{' '.join(cmd)}\n{r.stderr}"

    key = build_cache.key(
        text, build_cache.included(text, [TEMPLATES]), flags, build_cache.version(CC)
    )
    return build_cache.library("test", key, make, mode)


def host_library(sources, flags=(), folders=()):
    """Return a library of C files of the tree, compiled once, for comparison."""
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", *flags]
    paths = [ROOT / s for s in sources]
    dirs = [ROOT, TEMPLATES, *folders]
    texts = [
        (p.name, p.read_text(), build_cache.included(p.read_text(), dirs, p.parent)) for p in paths
    ]

    def make(so):
        subprocess.run(
            [CC, *flags, *[f"-I{d}" for d in dirs], *map(str, paths), "-o", so, "-lm"], check=True
        )

    return build_cache.library("test", build_cache.key(texts, flags, build_cache.version(CC)), make)


class Kernel:
    def __init__(self, lib, made):
        self.lib = lib
        self.fn = getattr(lib, made["symbol"])
        self.fn.restype = None
        self.fn.argtypes = [C.POINTER(Step), C.POINTER(C.c_void_p), C.c_int, C.c_int]
        self.scratch_decl = [a for a in made["arg"] if a["dir"] == "scratch"]
        self.args = [a for a in made["arg"] if a["dir"] != "scratch"]

    def scratch(self, step, n_parts):
        """Return zeroed scratch, as the runtime allocates it."""
        syms = dict(n_part=n_parts, n_tok=step.n_tok, n_seq=step.n_seq, n_out=step.n_out)
        types = {"f32": np.float32, "i32": np.int32, "u8": np.uint8}
        return [aligned(E.elems(a["extent"], syms), types[a["type"]], 0) for a in self.scratch_decl]

    def call(self, step, args, n_parts=1, order=None, threads=False, scratch=None):
        """args: numpy arrays, None or addresses, as in the head; parts run sequentially in `order`, or as threads."""
        scratch = self.scratch(step, n_parts) if scratch is None else scratch
        ptr = [
            a.ctypes.data if isinstance(a, np.ndarray) else a
            for a in [*E.complete(args, self.args)[0], *scratch]
        ]
        arr = (C.c_void_p * len(ptr))(*ptr)
        if threads:
            ts = [
                threading.Thread(target=self.fn, args=(C.byref(step), arr, p, n_parts))
                for p in range(n_parts)
            ]
            for t in ts:
                t.start()
            for t in ts:
                t.join()
        else:
            for p in order or range(n_parts):
                self.fn(C.byref(step), arr, p, n_parts)
        return scratch


def page_table(rng, pages, spare):
    """[sequences, most pages]: page indices in random order out of sum(pages) + spare; unused entries hold no valid page."""
    order = iter(rng.permutation(sum(pages) + spare))
    table = np.full((len(pages), max(pages)), 1 << 29, np.int64)
    for i, n in enumerate(pages):
        table[i, :n] = [next(order) for _ in range(n)]
    return table


def aligned(shape, dtype=np.float32, fill=None):
    """Return a 64-byte aligned array, filled (poison: NaN)."""
    n = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(n + 64, np.uint8)
    off = -raw.ctypes.data % 64
    a = raw[off : off + n].view(dtype).reshape(shape)
    a[...] = np.nan if fill is None and np.issubdtype(dtype, np.floating) else (fill or 0)
    return a
