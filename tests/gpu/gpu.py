"""Measure the read and copy bandwidth of this machine's GPU. Prints one JSON document; on the
emulator the rates are meaningless.

The read kernel is llmc's own (templates/cuda/runtime/read.cu), compiled by NVRTC, or included as
lib/read.sm_XX.cubin."""

import ctypes as C
import json
import os
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import nvrtc as tool  # noqa: E402


def libraries():
    """Return the driver, NVRTC or None, and whether the driver is the emulator."""
    d = os.environ.get("LLMC_CUDA_LIBDIR", "")
    cu = C.CDLL(f"{d}/libcuda.so.1" if os.path.exists(f"{d}/libcuda.so.1") else "libcuda.so.1")
    emulator = hasattr(cu, "emu_count")
    return cu, C.CDLL(f"{d}/libnvrtc.so.13") if emulator else tool.find(), emulator


class Gpu:
    def __init__(self):
        self.cu, self.rtc, self.small = libraries()
        n = C.c_int()
        self.ok("cuInit", 0)
        self.ok("cuDriverGetVersion", C.byref(n))
        self.driver = f"{n.value // 1000}.{n.value % 1000 // 10}"
        name, total = C.create_string_buffer(128), C.c_size_t()
        self.ok("cuDeviceGetName", name, 128, 0)
        self.ok("cuDeviceTotalMem_v2", C.byref(total), 0)
        self.name, self.memory = name.value.decode(), total.value
        self.cc, self.sms, self.l2 = (
            self.attr(75) * 10 + self.attr(76),
            self.attr(16),
            self.attr(38),
        )
        self.arch = f"sm_{self.cc}a" if self.cc >= 90 else f"sm_{self.cc}"
        ctx = C.c_void_p()
        self.ok("cuDevicePrimaryCtxRetain", C.byref(ctx), 0)
        self.ok("cuCtxSetCurrent", ctx)
        self.cu.cuMemAlloc_v2.argtypes = [C.c_void_p, C.c_size_t]
        self.cu.cuMemFree_v2.argtypes = [C.c_uint64]
        self.cu.cuMemsetD8_v2.argtypes = [C.c_uint64, C.c_ubyte, C.c_size_t]
        self.cu.cuMemcpyDtoD_v2.argtypes = [C.c_uint64, C.c_uint64, C.c_size_t]

    def nvrtc(self):
        if not self.rtc:
            return None
        major, minor = C.c_int(), C.c_int()
        self.rtc.nvrtcVersion(C.byref(major), C.byref(minor))
        return f"{major.value}.{minor.value}"

    def ok(self, name, *args):
        rc = getattr(self.cu, name)(*args)
        if rc:
            raise RuntimeError(f"{name} gave {rc}")

    def attr(self, number):
        v = C.c_int()
        self.ok("cuDeviceGetAttribute", C.byref(v), number, 0)
        return v.value

    def read_kernel(self):
        brought = ROOT / "lib" / f"read.{self.arch}.cubin"
        if self.rtc:
            text = (ROOT / "templates/cuda/runtime/read.cu").read_text()
            r = tool.compile_one(self.rtc, "read.cu", text, self.arch, [ROOT / "templates"])
            if not r["ok"]:
                raise RuntimeError(r["log"])
            image = r["cubin"]
        elif brought.exists():
            image = brought.read_bytes()
        else:
            raise RuntimeError(f"no NVRTC, and no {brought.name} was brought along")
        m, f = C.c_void_p(), C.c_void_p()
        self.ok("cuModuleLoadData", C.byref(m), image)
        self.ok("cuModuleGetFunction", C.byref(f), m, b"llmc_read_all")
        return f

    def alloc(self, n):
        p = C.c_uint64()
        self.ok("cuMemAlloc_v2", C.byref(p), n)
        return p.value

    def timed(self, what, runs=9):
        """Run `what` once to warm up, then several times; return the median, least and greatest
        seconds."""
        a, b, ms = C.c_void_p(), C.c_void_p(), C.c_float()
        self.ok("cuEventCreate", C.byref(a), 0)
        self.ok("cuEventCreate", C.byref(b), 0)
        seconds = []
        for i in range(runs + 2):
            self.ok("cuEventRecord", a, None)
            what()
            self.ok("cuEventRecord", b, None)
            self.ok("cuEventSynchronize", b)
            self.ok("cuEventElapsedTime", C.byref(ms), a, b)
            if i >= 2:
                seconds.append(max(ms.value, 1e-6) * 1e-3)
        return statistics.median(seconds), min(seconds), max(seconds)

    def bytes_for(self, most):
        return 1 << 20 if self.small else min(most, self.memory // 8 & ~0xFFFF)

    def read_bandwidth(self):
        n = self.bytes_for(4 << 30)
        p, out = self.alloc(n), self.alloc(4)
        self.ok("cuMemsetD8_v2", p, 0x5B, n)
        f = self.read_kernel()
        arg = (C.c_uint64 * 3)(p, n // 16, out)
        ptr = (C.c_void_p * 1)(C.addressof(arg))
        best = min(
            self.timed(
                lambda: self.ok("cuLaunchKernel", f, blocks, 1, 1, 512, 1, 1, 0, None, ptr, None)
            )
            for blocks in (self.sms * 2, self.sms * 3, self.sms * 4)
        )
        self.ok("cuMemFree_v2", p)
        self.ok("cuMemFree_v2", out)
        return n / best[0] / 1e9, [n / best[2] / 1e9, n / best[1] / 1e9]

    def copy_bandwidth(self):
        """Return the bytes read plus the bytes written per second."""
        n = self.bytes_for(2 << 30)
        p, q = self.alloc(n), self.alloc(n)
        self.ok("cuMemsetD8_v2", p, 0x5B, n)
        t, lo, hi = self.timed(lambda: self.ok("cuMemcpyDtoD_v2", q, p, n))
        self.ok("cuMemFree_v2", p)
        self.ok("cuMemFree_v2", q)
        return 2 * n / t / 1e9, [2 * n / hi / 1e9, 2 * n / lo / 1e9]


def main():
    try:
        g = Gpu()
    except OSError as e:
        sys.exit(f"no NVIDIA driver: {e}")
    info = dict(
        name=g.name,
        arch=g.arch,
        cc=g.cc,
        sms=g.sms,
        l2=g.l2,
        memory=g.memory,
        driver=g.driver,
        nvrtc=g.nvrtc(),
        driver_path=g.cu._name,
        nvrtc_path=getattr(g.rtc, "_name", None),
        emulator=g.small,
    )
    info["copy_gbps"], info["copy_spread"] = g.copy_bandwidth()
    print(json.dumps(info), flush=True)  # print this even if the kernel fails
    info["read_gbps"], info["read_spread"] = g.read_bandwidth()
    print(json.dumps(info), flush=True)


if __name__ == "__main__":
    main()
