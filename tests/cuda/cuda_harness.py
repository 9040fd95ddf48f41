"""Runs CUDA kernels on the emulator: expands a template as the compiler does, builds it, launches
it and returns its outputs.

    import cuda_harness as H     # not "harness": tests/kernels has one, and module names must differ
    k = H.build("matmul", "sm_90a", dict(ROWS=8, COLS=64, W_DTYPE="q8_0", HAS_B=0))
    step = H.make_step(pos=[0, 1, 2], rows=[3])
    y, = k.run(step, [x, w, None, H.out((3, 8))], seed=1)     # mode="check": checking mode

The name is that of a file in templates/cuda. Arguments are those of the op, in order: a numpy array
(input), None, `out(shape)`, `inout(array)` (pools), `alias(i)` (memory of argument i). out and
inout are returned, in order. Scratch is made from the head. i32 scratch starts as zeros. Kernels
that have it run twice with the same i32 scratch, while outputs and other scratch are NaN again
before the second run, so a counter that was not reset shows.

Findings of the emulator are exceptions (Finding) with its message. So are unwritten outputs in
checking mode, and writes next to an output. `bucket=n`: the grid is sized for n rows, sequences and
outputs although the step has fewer. `rounds=n`: number of rounds of launches with rounds.

A kernel with pdl launches runs after one that writes its activations, pool and step, as in a model.
In checking mode and the second time, that kernel also reads its outputs and scratch. A missing
griddep_wait is found, and a write before it.

tests/kernels/expand.c defines the parameters. `nvrtc(template, params)` compiles with the real
NVRTC if there is one.

LLMC_TEST_GPU=1 runs the same tests on the GPU of this machine, with its own driver and NVRTC.
Kernels of every architecture are compiled for it; modes and seeds have no effect. With
LLMC_CUDA_LIBDIR=build/emu the emulator takes the role of that machine, to try the GPU check without
a GPU.

`early=[(argument, first byte, bytes), ...]`: the step's arrays and pools are older than the
preceding kernel, which writes activations and those bytes of pools. A kernel may read everything
else before its griddep_wait.

Each combination of GPU, mode, seed and number of SMs has a process of its own, which is reused;
objects are in the cache of built code (tools/build_cache.py)."""

import atexit
import ctypes as C
import multiprocessing as mp
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "kernels"), str(ROOT / "tests"), str(ROOT / "tools")]
import build_cache  # noqa: E402
import expand as E  # noqa: E402
from code_blocks import CODES  # noqa: E402
from waiting import HANG, SLOW  # noqa: E402

TEMPLATES = ROOT / "templates"
BUILD = Path(os.environ.get("LLMC_EMU_BUILD", ROOT / "build"))
# The list omits sm_103a, sm_110a and sm_121a, which have the kernels of sm_100a and sm_120a.
ARCHS = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"]
REAL = os.environ.get("LLMC_TEST_GPU") == "1"
BLOCK = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k")
GROUP = (
    "u4_32",
    "u4_128",
    "u4_32_f32",
    "u4_128_f32",
    "u8_32",
    "u8_128",
    "u8_32_f32",
    "u8_128_f32",
    "f8_32",
    "f8_128",
    "nf4_32",
    "nf4_64",
    "fp4_32",
    "fp4_64",
    "u2_32",
    "u2_128",
    "u3_32",
    "u3_128",
    "m2_32",
    "m2_64",
    "m3_32",
    "m3_64",
    "m4_32",
    "m4_64",
    "m8_32",
    "m8_64",
)
FP4 = ("mxfp4", "nvfp4")
CODE = tuple(CODES)
CODE_SAMPLE = (
    "q2_k",
    "q3_k",
    "iq4_nl",
    "iq4_xs",
    "iq3_s",
    "iq2_xs",
    "iq1_m",
)  # each architecture has a feature that the others lack
PACKED = BLOCK + FP4 + CODE + GROUP
DTYPES = ["f32", "f16", "bf16", *PACKED]
EVERY = "LLMC_CHECK_ALL" in os.environ  # make check-all
PAGE = 32
GUARD = 256  # bytes before and after each output
ITEM = {"f32": np.float32, "i32": np.int32, "u8": np.uint8, "f16": np.uint16, "bf16": np.uint16}


class Finding(AssertionError):
    """A finding of the emulator, or a failed launch"""


def super_block(dtype):
    """Return whether a block of the type has 256 columns"""
    return dtype.endswith("_k") or CODES.get(dtype, [0])[0] == 256


# ---- templates ----------------------------------------------------------------------------------------------------


def expand(template, arch, params):
    """Returns the kernel that the compiler makes from a file of templates/cuda, or from this path,
    with its headers inlined; None if the template does not accept the parameters."""
    path = template if isinstance(template, Path) else f"templates/cuda/{template}.cu.in"
    k = E.expand(f"cuda-{arch}", path, params)
    name = k and Path(k["file"]).name
    return k and dict(k, name=name, text=inline(f'#line 1 "{name}"\n{k["text"]}', name, set()))


def accepts(template, arch, params):
    return expand(template, arch, params) is not None


def inline(text, name, seen):
    """Inlines the headers, so that the object depends on those that are included and no others."""
    out = []
    for i, line in enumerate(text.split("\n"), 1):
        m = re.match(r'\s*#\s*include\s+"((?:common|cpu|cuda)/[\w./]+)"', line)
        if not m:
            out.append(line)
        elif m[1] not in seen:
            seen.add(m[1])
            out += [
                f'#line 1 "{m[1]}"',
                inline((TEMPLATES / m[1]).read_text(), m[1], seen),
                f'#line {i + 1} "{name}"',
            ]
        else:
            out.append("")
    return "\n".join(out)


# ---- arguments ----------------------------------------------------------------------------------------------------


class out:
    """An output of this shape; `alloc`: allocated elements if more than the shape's"""

    def __init__(self, shape, dtype=np.float32, alloc=None):
        self.shape, self.dtype = (shape if isinstance(shape, tuple) else (shape,)), np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.alloc = max(self.nbytes, (alloc or 0) * self.dtype.itemsize)


class inout:
    def __init__(self, array):
        self.array = np.ascontiguousarray(array)


class far(inout):
    """An inout whose bytes begin `skip` bytes after the argument. Memory before them is untouched,
    so it costs nothing."""

    def __init__(self, array, skip):
        super().__init__(array)
        self.skip = skip


class alias:
    def __init__(self, index):
        self.index = index


class Step:
    """Sizes and arrays of a step"""

    def __init__(self, n, arrays, stride):
        self.n, self.arrays, self.stride = n, arrays, stride


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
    """pos: position of each row; rows: number of rows per sequence (default: one each). As in
    tests/kernels/harness.py."""
    n_tok = len(pos)
    rows = [1] * n_tok if rows is None else list(rows)
    start = np.concatenate([[0], np.cumsum(rows)])
    assert start[-1] == n_tok
    n_seq = len(rows)
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
        seq_of=np.repeat(np.arange(n_seq), rows),
        q_start=start,
        kv_len=kv_len,
        prefix_len=np.zeros(n_seq) if prefix is None else prefix,
        out_row=out_row,
        block_table=table,
        seq=np.arange(n_seq) if seq is None else seq,
        adapter=np.full(n_seq, -1) if adapter is None else adapter,
    )
    n = dict(n_tok=n_tok, n_dec=n_dec, n_seq=n_seq, n_out=len(out_row))
    return Step(
        n, {k: np.ascontiguousarray(v, dtype=np.int32) for k, v in arrays.items()}, table.shape[1]
    )


# ---- the process that runs kernels ----------------------------------------------------------------------------------

FEED = """#include "cuda/runtime/step.h"
#include "cuda/ptx/ptx.h"
struct feed_args { unsigned char *dst[48]; const unsigned char *src[48]; unsigned n[48]; int count; };
extern "C" __global__ void __launch_bounds__(64) feed(const feed_args p)
{
#if __CUDA_ARCH__ >= 900
	griddep_wait();
	griddep_launch();
#endif
	for (int i = 0; i < p.count; i++)
		for (unsigned at = 4 * (blockIdx.x * 64 + threadIdx.x); at < p.n[i]; at += 4 * 64 * gridDim.x) {
			if (at + 4 <= p.n[i])
				st_v1(p.dst[i] + at, ld_v1(p.src[i] + at));
			else
				for (unsigned k = at; k < p.n[i]; k++)
					p.dst[i][k] = p.src[i][k];
		}
}
"""


class FeedArgs(C.Structure):
    _fields_ = [
        ("dst", C.c_uint64 * 48),
        ("src", C.c_uint64 * 48),
        ("n", C.c_uint32 * 48),
        ("count", C.c_int),
    ]


class Prefetch(C.Structure):
    """The weights that a kernel prefetches to L2: three of p.next, then p.experts"""

    _fields_ = [("at", C.c_uint64), ("stride", C.c_int64), ("bytes", C.c_uint32), ("n", C.c_int32)]


class CallArgs(C.Structure):
    _fields_ = [
        (n, C.c_uint64)
        for n in "n tok pos pos2 seq_of q_start kv_len prefix_len out_row block_table seq adapter".split()
    ] + [
        ("block_stride", C.c_int32),
        ("rows", C.c_int32),
        ("round", C.c_int32),
        ("a", C.c_uint64 * 16),
        ("prefetch", Prefetch * 4),
    ]


class Attr(C.Structure):
    _fields_ = [("id", C.c_int), ("pad", C.c_int), ("value", C.c_uint32 * 16)]


class Config(C.Structure):
    _fields_ = [(n, C.c_uint32) for n in "gx gy gz bx by bz dyn".split()] + [
        ("stream", C.c_void_p),
        ("attrs", C.c_void_p),
        ("n_attrs", C.c_uint32),
    ]


def cublaslt():
    """Load the emulated library, or on a GPU the real one from the folders where NVRTC is
    searched"""
    tool = nvrtc_tool()
    d = os.environ.get("LLMC_CUDA_LIBDIR", "")
    places = (
        [str(BUILD / "emu")]
        if not REAL
        else [d]
        if os.path.exists(f"{d}/libcuda.so.1")
        else [*tool[1].candidates()]
        if tool
        else []
    )
    for path in [f"{p}/libcublasLt.so.13" for p in places] + ["libcublasLt.so.13"]:
        if os.path.exists(path) or "/" not in path:
            return C.CDLL(path)


class Device:
    """The emulator, inside its own process"""

    def __init__(self, arch, mode, seed, sms):
        self.modules, self.mem, self.lt = {}, [], None
        if REAL:
            self.open_real()
        else:
            self.open_emulator(arch, mode, seed, sms)
        self.declare()

    def open_real(self):
        d = os.environ.get("LLMC_CUDA_LIBDIR", "")
        stand_in = os.path.exists(f"{d}/libcuda.so.1")
        self.cu = C.CDLL(f"{d}/libcuda.so.1" if stand_in else "libcuda.so.1")
        self.cu.emu_last_report = lambda: b""
        if hasattr(self.cu, "emu_count"):
            self.rtc = C.CDLL(f"{d}/libnvrtc.so.13")
        else:
            found = nvrtc_tool()
            assert found, "no NVRTC: set LLMC_CUDA_LIBDIR, or pip install nvidia-cuda-nvrtc"
            self.rtc = found[0]
        self.ok("cuInit", 0)
        major, minor = C.c_int(), C.c_int()
        self.ok("cuDeviceGetAttribute", C.byref(major), 75, 0)
        self.ok("cuDeviceGetAttribute", C.byref(minor), 76, 0)
        cc = 10 * major.value + minor.value
        self.arch = f"sm_{cc}a" if cc >= 90 else f"sm_{cc}"

    def open_emulator(self, arch, mode, seed, sms):
        os.environ.update(
            LLMC_EMU_GPU=arch,
            LLMC_EMU_MODE=mode,
            LLMC_EMU_SEED=str(seed),
            LLMC_EMU_SMS=str(sms),
            LLMC_EMU_QUIET="1",
        )
        self.arch = arch
        d = BUILD / "emu"
        self.cu = C.CDLL(str(d / "libcuda.so.1"))
        self.rtc = C.CDLL(str(d / "libnvrtc.so.13"))
        self.cu.emu_last_report.restype = C.c_char_p

    def declare(self):
        for n in ("cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemFree_v2", "cuMemsetD8_v2"):
            getattr(self.cu, n).argtypes = {
                "cuMemcpyHtoD_v2": [C.c_uint64, C.c_void_p, C.c_size_t],
                "cuMemcpyDtoH_v2": [C.c_void_p, C.c_uint64, C.c_size_t],
                "cuMemFree_v2": [C.c_uint64],
                "cuMemsetD8_v2": [C.c_uint64, C.c_ubyte, C.c_size_t],
            }[n]
        self.cu.cuMemAlloc_v2.argtypes = [C.c_void_p, C.c_size_t]
        self.ok("cuInit", 0)
        ctx = C.c_void_p()
        self.ok("cuDevicePrimaryCtxRetain", C.byref(ctx), 0)
        self.ok("cuCtxSetCurrent", ctx)
        self.stream = C.c_void_p()
        self.ok("cuStreamCreate", C.byref(self.stream), 1)

    def ok(self, name, *args):
        rc = getattr(self.cu, name)(*args)
        if rc:
            text = self.cu.emu_last_report().decode(errors="replace")
            raise Finding(f"{name} gave {rc}" + (f": {text}" if text else ""))

    def module(self, text, name):
        if text in self.modules:
            return self.modules[text]
        prog, n = C.c_void_p(), C.c_size_t()
        self.rtc.nvrtcCreateProgram(C.byref(prog), text.encode(), name.encode(), 0, None, None)
        opts = [f"--gpu-architecture={self.arch}", "--std=c++17"]
        rc = self.rtc.nvrtcCompileProgram(
            prog, len(opts), (C.c_char_p * len(opts))(*[o.encode() for o in opts])
        )
        self.rtc.nvrtcGetProgramLogSize(prog, C.byref(n))
        log = C.create_string_buffer(n.value)
        self.rtc.nvrtcGetProgramLog(prog, log)
        if rc:
            raise Finding(
                f"{name} does not compile for {self.arch}:\n{log.value.decode(errors='replace')}"
            )
        self.rtc.nvrtcGetCUBINSize(prog, C.byref(n))
        image = C.create_string_buffer(n.value)
        self.rtc.nvrtcGetCUBIN(prog, image)
        self.rtc.nvrtcDestroyProgram(C.byref(prog))
        m = C.c_void_p()
        self.ok("cuModuleLoadData", C.byref(m), image)
        self.modules[text] = m
        return m

    def alloc(self, n):
        p = C.c_uint64()
        self.ok("cuMemAlloc_v2", C.byref(p), max(n, 4))
        self.mem.append(p.value)
        return p.value

    def up(self, array):
        p = self.alloc(array.nbytes)
        if array.nbytes:
            self.ok("cuMemcpyHtoD_v2", p, array.ctypes.data, array.nbytes)
        return p

    def down(self, p, shape, dtype):
        a = np.empty(shape, dtype)
        if a.nbytes:
            self.ok("cuMemcpyDtoH_v2", a.ctypes.data, p, a.nbytes)
        return a

    def tensor_maps(self, maps, ptr, size):
        """The second parameter: four maps of 128 bytes, aligned to 128"""
        room = C.create_string_buffer(5 * 128)
        at = -(-C.addressof(room) // 128) * 128
        for i, (arg, cols, box, swizzle) in enumerate(maps):
            dim, stride = (
                (C.c_uint64 * 2)(cols, max(1, size[arg] // (2 * cols))),
                (C.c_uint64 * 1)(2 * cols),
            )
            self.ok(
                "cuTensorMapEncodeTiled",
                C.c_void_p(at + 128 * i),
                1,
                2,
                C.c_void_p(ptr[arg]),
                dim,
                stride,
                (C.c_uint32 * 2)(*box),
                (C.c_uint32 * 2)(1, 1),
                0,
                {0: 0, 32: 1, 64: 2, 128: 3}[swizzle],
                2,
                0,
            )
        self.room = room
        return at

    def launch(self, m, fn, grid, block, shared, cluster, pdl, arg, maps=0, cooperative=False):
        f = C.c_void_p()
        self.ok("cuModuleGetFunction", C.byref(f), m, fn.encode())
        if shared > 48 << 10:
            self.ok("cuFuncSetAttribute", f, 8, shared)
        attrs, n = (Attr * 3)(), 0
        if cooperative:
            attrs[n].id, attrs[n].value[0] = 2, 1
            n += 1
        if cluster > 1:
            attrs[n].id, attrs[n].value[0], attrs[n].value[1], attrs[n].value[2] = 4, cluster, 1, 1
            n += 1
        if pdl:
            attrs[n].id, attrs[n].value[0] = 6, 1
            n += 1
        c = Config(*(grid + [1, 1])[:3], block, 1, 1, shared, self.stream, C.addressof(attrs), n)
        self.ok("cuLaunchKernelEx", C.byref(c), f, (C.c_void_p * 2)(C.addressof(arg), maps), None)

    def library_matmul(self, ptr, n, rows, cols, args, w_type, y_type, beta):
        """Compute y = beta * add + act w^T by cuBLASLt, which uses column order: y^T = (w^T)^T
        act^T."""
        lt = self.lt = self.lt or cublaslt()
        kind = {"f32": 0, "f16": 2, "bf16": 14}
        handle, desc, pref = C.c_void_p(), C.c_void_p(), C.c_void_p()
        wl, xl, yl = C.c_void_p(), C.c_void_p(), C.c_void_p()
        found, algo, yes = C.c_int(), (C.c_uint64 * 12)(), C.c_int(1)

        def do(name, *a):
            rc = getattr(lt, name)(*a)
            if rc:
                raise Finding(f"{name} gave {rc}")

        for layout, t, r, c in (
            (wl, w_type, cols, rows),
            (xl, w_type, cols, n),
            (yl, y_type, rows, n),
        ):
            do(
                "cublasLtMatrixLayoutCreate",
                C.byref(layout),
                kind[t],
                C.c_uint64(r),
                C.c_uint64(c),
                C.c_int64(r),
            )
        do("cublasLtCreate", C.byref(handle))
        do("cublasLtMatmulDescCreate", C.byref(desc), 68, 0)
        do("cublasLtMatmulDescSetAttribute", desc, 3, C.byref(yes), C.c_size_t(4))
        do("cublasLtMatmulPreferenceCreate", C.byref(pref))
        do(
            "cublasLtMatmulAlgoGetHeuristic",
            handle,
            desc,
            wl,
            xl,
            yl,
            yl,
            pref,
            1,
            algo,
            C.byref(found),
        )
        act, w, y, add = (C.c_void_p(ptr[i]) if i is not None else None for i in args)
        do(
            "cublasLtMatmul",
            handle,
            desc,
            C.byref(C.c_float(1)),
            w,
            wl,
            act,
            xl,
            C.byref(C.c_float(beta)),
            add or y,
            yl,
            y,
            yl,
            algo,
            None,
            C.c_size_t(0),
            self.stream,
        )
        for name, x in (
            ("MatmulPreference", pref),
            ("MatmulDesc", desc),
            ("MatrixLayout", wl),
            ("MatrixLayout", xl),
            ("MatrixLayout", yl),
        ):
            do(f"cublasLt{name}Destroy", x)
        self.ok("cuStreamSynchronize", self.stream)
        do("cublasLtDestroy", handle)

    def raw(self, job):
        """Run kernels whose only parameter is a struct of any kind. job: arrays {name: array}, pack
        (struct format), fields (numbers, names of arrays), launches [(text, file, function, grid,
        block, shared, {array: new content})], fetch (names): arrays to return after each launch;
        maps [(array, type, dims, strides, box, target array)]: tensor maps, at the start of the
        struct if they have no target; cluster, cooperative."""
        self.mem = []
        at = {k: self.up(v) for k, v in job["arrays"].items()}
        packed = struct.pack(
            job["pack"], *[at[f] if isinstance(f, str) else f for f in job["fields"]]
        )
        room = C.create_string_buffer(1024 + len(packed))
        base = to = -(-C.addressof(room) // 128) * 128
        for of, kind, dims, strides, box, into in job.get("maps", []):
            n, space = len(dims), C.create_string_buffer(256)
            made = to if into is None else -(-C.addressof(space) // 128) * 128
            self.ok(
                "cuTensorMapEncodeTiled",
                C.c_void_p(made),
                kind,
                n,
                C.c_void_p(at[of]),
                (C.c_uint64 * n)(*dims),
                (C.c_uint64 * n)(*strides),
                (C.c_uint32 * n)(*box),
                (C.c_uint32 * n)(*[1] * n),
                0,
                0,
                0,
                0,
            )
            if into is None:
                to += 128
            else:
                self.ok("cuMemcpyHtoD_v2", at[into], made, 128)
        C.memmove(to, packed, len(packed))
        arg = C.c_char.from_address(base)
        res = []
        for text, name, fn, grid, block, shared, change in job["launches"]:
            for k, v in change.items():
                self.ok("cuMemcpyHtoD_v2", at[k], v.ctypes.data, v.nbytes)
            # the copies may still be in flight, and the stream does not wait for them
            self.ok("cuCtxSynchronize")
            self.launch(
                self.module(text, name),
                fn,
                list(grid),
                block,
                shared,
                job.get("cluster", 1),
                False,
                arg,
                cooperative=job.get("cooperative", False),
            )
            self.ok("cuCtxSynchronize")
            res.append(
                {
                    k: self.down(at[k], job["arrays"][k].shape, job["arrays"][k].dtype)
                    for k in job["fetch"]
                }
            )
        for p in self.mem:
            self.ok("cuMemFree_v2", p)
        return res

    def run(self, job):
        """job: text, name, launches [(fn, grid, block, shared, cluster, pdl) or (None, arguments of
        library_matmul)], n, step arrays, stride, args [(kind, value, moving; bytes before it if
        kind is far)], scratch, repeat, maps"""
        self.mem = []
        m = self.module(job["text"], job["name"])
        pdl = any(x[0] and x[5] for x in job["launches"])
        call, fed, older, ptr, size, guards = CallArgs(), [], [], [], [], []
        made, scratch = (
            [],
            [],
        )  # (address, bytes) of outputs, and of scratch that each launch must find overwritten

        def fresh(array, moving, old=False):
            """Fill an array in place now, or let the preceding kernel fill it; old: let an earlier
            kernel fill it."""
            if not (pdl and moving and array.nbytes):
                return self.up(array)
            p, src = self.alloc(array.nbytes), self.up(array)
            (older if old else fed).append((p, src, array.nbytes))
            return p

        early = job.get("early")
        call.n = fresh(np.array(job["n"], np.int32), True, early is not None)
        for k, v in job["step"].items():
            setattr(call, k, fresh(v, True, early is not None))
        call.block_stride, call.rows = job["stride"], job.get("rows", 0)
        for kind, value, moving in job["args"]:
            size.append(
                0
                if kind == "none"
                else size[value]
                if kind == "alias"
                else value
                if kind == "out"
                else value.nbytes + (moving if kind == "far" else 0)
            )
            if kind == "none":
                ptr.append(0)
            elif kind == "alias":
                ptr.append(ptr[value])
            elif kind == "far":
                ptr.append(self.alloc(moving + value.nbytes))
                self.ok("cuMemcpyHtoD_v2", ptr[-1] + moving, value.ctypes.data, value.nbytes)
            elif kind == "out":
                base = self.alloc(value + 2 * GUARD)
                self.ok("cuMemsetD8_v2", base, 0xA5, GUARD)
                self.ok("cuMemsetD8_v2", base + GUARD + value, 0xA5, GUARD)
                guards.append((base, base + GUARD + value))
                ptr.append(base + GUARD)
                made.append((base + GUARD, value))
            else:
                mine = [x for x in early or [] if x[0] == len(ptr)]
                ptr.append(fresh(value, moving, bool(mine)))
                for _, at, n in mine if older else []:
                    fed.append((ptr[-1] + at, older[-1][1] + at, n))
        for dtype, n in job["scratch"]:
            size.append(n * np.dtype(ITEM[dtype]).itemsize)
            ptr.append(self.up(np.zeros(n, np.int32)) if dtype == "i32" else self.alloc(size[-1]))
            if dtype != "i32":
                scratch.append((ptr[-1], size[-1]))
        for i, v in enumerate(ptr):
            call.a[i] = v
        maps = self.tensor_maps(job["maps"], ptr, size)
        self.ok("cuCtxSynchronize")
        for turn in range(job["repeat"]):
            feed = fed
            if turn:
                self.ok("cuCtxSynchronize")
                for i, skip, shape, dtype in job["fetch"]:
                    self.down(
                        ptr[i] + skip, shape, dtype
                    )  # a second run reports what the first run has not written
                for p, n in made + scratch:
                    self.ok("cuMemsetD8_v2", p, 0xFF, n)
                self.ok("cuCtxSynchronize")
                if fed and job["check"]:
                    sink = self.alloc(max([n for _, n in made + scratch], default=4))
                    feed = fed + [(sink, p, n) for p, n in made + scratch]
            # A kernel in between orders the older inputs: it waits for them, then triggers the
            # dependent kernel.
            for now in ([older, []] if older and not turn else []) + [feed] * bool(feed):
                f = FeedArgs(count=len(now))
                for i, (d, s, n) in enumerate(now):
                    f.dst[i], f.src[i], f.n[i] = d, s, n
                self.launch(
                    self.module(inline(FEED, "feed.cu", set()), "feed.cu"),
                    "feed",
                    [3],
                    64,
                    0,
                    1,
                    early is not None,
                    f,
                )
            for fn, *rest in job["launches"]:
                if fn:
                    *rest, call.round = rest
                    self.launch(m, fn, *rest, call, maps)
                else:
                    self.library_matmul(ptr, *rest)
        self.ok("cuCtxSynchronize")
        for lo, hi in guards:
            for p in (lo, hi):
                if (self.down(p, GUARD, np.uint8) != 0xA5).any():
                    raise Finding("wrote outside of an output")
        res = [self.down(ptr[i] + skip, shape, dtype) for i, skip, shape, dtype in job["fetch"]]
        for p in self.mem:
            self.ok("cuMemFree_v2", p)
        return res


def _serve(pipe, arch, mode, seed, sms):
    device = None
    while True:
        try:
            job = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            device = device or Device(arch, mode, seed, sms)
            answer = device.raw(job) if "pack" in job else device.run(job)
        except Finding as e:
            pipe.send(e)
            os._exit(0)
        except Exception as e:  # report a mistake of the harness or its caller
            pipe.send(RuntimeError(f"{type(e).__name__}: {e}"))
            os._exit(0)
        pipe.send(answer)


_workers = {}
_built = False


def _emulator():
    global _built
    if not _built:
        r = subprocess.run(
            ["make", "--no-print-directory", "-s", "-f", "emu/emu.mk", f"BUILD={BUILD}", "emu-lib"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        if r.returncode:
            print(r.stderr, file=sys.stderr)
            assert (BUILD / "emu" / "libcuda.so.1").exists(), "the emulator does not build"
            print(
                "the emulator does not build; going on with the one that is there", file=sys.stderr
            )
        _built = True


def not_here(arch):
    """Skips kernels of other GPUs than this one (LLMC_TEST_ARCH, set by tests/gpu/gpu_check.py)."""
    own = os.environ.get("LLMC_TEST_ARCH")
    if own and own != arch and (arch.endswith("a") or int(arch[3:]) > int(own[3:].rstrip("a"))):
        import pytest

        pytest.skip(f"for {arch}")


def only_emulated():
    """Skips the rest of a test whose mistake a GPU would hide, or which needs a compiler on this
    machine."""
    if REAL:
        import pytest

        pytest.skip("not on a GPU")


def always(cases, *names):
    """Marks the cases that contain one of these names and run in fast mode: make check never drops
    them."""
    import pytest

    return [
        pytest.param(*c, marks=pytest.mark.always)
        if set(names) & set(c) and "check" not in c
        else c
        for c in cases
    ]


def submit(arch, mode, seed, sms, job, timeout=HANG):
    if REAL:
        timeout = min(timeout, 120 * SLOW)  # the limit is mostly compile time
        not_here(arch)
    key = ("gpu", "fast", 0, 0) if REAL else (arch, mode, seed, sms)
    if key not in _workers:
        if not REAL:
            _emulator()
        here, there = mp.Pipe()
        # a compiler that this process has used may have initialised the driver, which a forked
        # child could not use
        p = mp.get_context("spawn" if REAL else "fork").Process(
            target=_serve, args=(there, *key), daemon=True
        )
        p.start()
        there.close()
        _workers[key] = (p, here)
    p, pipe = _workers[key]
    answer = None
    try:
        pipe.send(job)
        if pipe.poll(timeout):
            answer = pipe.recv()
    except (EOFError, OSError):
        answer = Finding(f"the emulator's process ended (exit status {p.exitcode})")
    if answer is None:
        answer = Finding(f"no answer after {timeout} s: a kernel spins")
    if isinstance(answer, Exception):
        p.kill()
        p.join()
        pipe.close()
        del _workers[key]
        raise answer
    return answer


def host_library(name, sources):
    """Host code that tests compare with, as a library; a pack for machines without a compiler
    contains it."""
    brought = ROOT / "lib" / f"{name}.so"
    if brought.exists():
        return C.CDLL(str(brought))
    texts = [(n, (ROOT / n).read_text()) for n in sources]
    key = build_cache.key(
        HOST,
        [
            (n, t, build_cache.included(t, [ROOT, ROOT / "include", TEMPLATES], (ROOT / n).parent))
            for n, t in texts
        ],
        build_cache.version("gcc"),
    )
    return build_cache.library("test", key, lambda path: build_host_library(path, sources))


HOST = ["gcc", "-std=gnu11", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-D_GNU_SOURCE"]


def build_host_library(path, sources):
    subprocess.run(
        [
            *HOST,
            f"-I{ROOT}",
            f"-I{ROOT}/include",
            f"-I{ROOT}/templates",
            *[str(ROOT / s) for s in sources],
            "-o",
            str(path),
            "-lm",
        ],
        check=True,
    )


def stop():
    for p, pipe in _workers.values():
        p.kill()
        p.join()
    _workers.clear()


atexit.register(stop)


# ---- kernels --------------------------------------------------------------------------------------------------------


class Kernel:
    def __init__(self, template, arch, params):
        self.template, self.arch, self.params = template, arch, params
        k = expand(template, arch, params)
        assert k, f"{template} does not take {params} for {arch}"
        self.text, self.name, self.launches = k["text"], k["name"], k["launch"]
        self.maps = [(m["arg"], m["cols"], tuple(m["box"]), m["swizzle"]) for m in k["map"]]
        self.args, self.scratch = (
            [a for a in k["arg"] if (a["dir"] == "scratch") == want] for want in (False, True)
        )

    def run(
        self,
        step,
        args,
        mode="fast",
        seed=0,
        sms=4,
        bucket=0,
        repeat=None,
        timeout=HANG,
        path="own",
        early=None,
        rounds=1,
    ):
        args, place = E.complete(args, self.args)
        syms = {k: max(v, bucket) for k, v in step.n.items()}
        syms.update(n_pre=syms["n_tok"], n_sm=sms, n_part=1)
        elems = lambda e: max(1, E.elems(e, syms))
        scratch = [(a["type"], elems(a["extent"])) for a in self.scratch]
        pdl = any(x.get("pdl") for x in self.launches)
        changes = any(isinstance(a, inout) for a in args)
        repeat = repeat or (
            2
            if any(d == "i32" for d, _ in scratch) or (pdl and mode == "check" and not changes)
            else 1
        )
        passed, fetch = [], []
        for i, (a, decl) in enumerate(zip(args, self.args)):
            moving = decl["dir"] in ("pool", "rope", "inout") or isinstance(decl["extent"], dict)
            if a is None:
                passed.append(("none", None, False))
            elif isinstance(a, alias):
                passed.append(("alias", place[a.index], False))
            elif isinstance(a, out):
                passed.append(("out", a.alloc, False))
                fetch.append((i, 0, a.shape, a.dtype))
            elif isinstance(a, far):
                passed.append(("far", a.array, a.skip))
                fetch.append((i, a.skip, a.array.shape, a.array.dtype))
            elif isinstance(a, inout):
                assert repeat == 1 or a.array.nbytes == 0 or pdl or decl["dir"] == "pool", (
                    "an inout argument changes between the two runs: pass repeat=1"
                )
                passed.append(("in", a.array, moving))
                fetch.append((i, 0, a.array.shape, a.array.dtype))
            else:
                assert isinstance(a, np.ndarray), (
                    f"argument {i} of {self.template} is {type(a).__name__}"
                )
                passed.append(("in", np.ascontiguousarray(a), moving))
        # an alias of an input is read back separately
        todo = []
        for x in self.launches:
            p = x.get("product")
            if not p:
                rows = syms.get(x["rows"])
                runs = rows is None or rows >= x["least"] and (x["most"] == 0 or rows <= x["most"])
                if x["path"] in ("any", path) and runs:
                    todo.append(
                        (
                            x["fn"],
                            [elems(g) for g in x["grid"]],
                            x["block"],
                            x["shared"],
                            x["cluster"],
                            x["pdl"],
                            0,
                        )
                    )
            elif path == "library":
                y_type = "f32" if p["y"] < len(args) else scratch[p["y"] - len(args)][0]
                at = [p["act"], p["w"], p["y"], p["add"] if p["add"] >= 0 else None]
                todo.append(
                    (
                        None,
                        step.n["n_tok"],
                        *args[p["w"]].shape[-2:],
                        at,
                        self.params["W_DTYPE"],
                        y_type,
                        p["beta"],
                    )
                )
        apart = [
            i for i, x in enumerate(self.launches) if x.get("rounds")
        ]  # for concurrent launches, and for kernels with only one path
        if apart:
            todo[apart[0] : apart[-1] + 1] = [
                (*x[:-1], r) for r in range(rounds) for x in todo[apart[0] : apart[-1] + 1]
            ]
        assert path == "own" or any(x[0] is None for x in todo), (
            f"{self.template} leaves nothing to a library"
        )
        n = [step.n[k] for k in ("n_tok", "n_dec", "n_seq", "n_out")]
        job = dict(
            text=self.text,
            name=self.name,
            launches=todo,
            n=n,
            step=step.arrays,
            stride=step.stride,
            rows=syms["n_tok"],
            args=passed,
            scratch=scratch,
            repeat=repeat,
            check=mode == "check",
            fetch=fetch,
            maps=self.maps,
            early=early,
        )
        return submit(self.arch, mode, seed, sms, job, timeout)


def build(template, arch="sm_90a", params=None, **more):
    return Kernel(template, arch, dict(params or {}, **more))


# Modes of a test: two schedules (one in make check) and a checking run. Each mode compiles the
# kernel for itself.
FAST = [("fast", 0), ("fast", 1)][: 1 + EVERY]
RUNS = [*FAST, ("check", 2)]


def nvrtc_tool():
    """Return (library, module tools/nvrtc.py), or None if there is no real NVRTC"""
    import nvrtc as tool

    lib = tool.find()
    return (lib, tool) if lib else None


def nvrtc(template, params, archs=None):
    """Compiles with the real NVRTC for the architectures that the template accepts: no error,
    warning or spill. Returns the results, or None without NVRTC."""
    found = nvrtc_tool()
    if found is None:
        return None
    lib, tool = found
    made = [
        (k, arch)
        for k, arch in ((expand(template, arch, params), arch) for arch in archs or ARCHS)
        if k
    ]
    results = tool.compile_all(lib, [(k["name"], k["text"], arch) for k, arch in made], [TEMPLATES])
    for r, (k, _) in zip(results, made):
        r["symbol"] = k["symbol"]
        assert tool.bad(r) is None, (
            f"{r['name']} for {r['arch']}: {tool.bad(r)}: {r['kernels']}\n{r['log']}"
        )
    return results
