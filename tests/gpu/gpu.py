"""The GPU of this machine through ctypes: what it is, and how fast it reads and copies. On the emulator the figures mean nothing."""
import ctypes as C
import os
import statistics
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
import nvrtc as tool  # noqa: E402

READ = r"""
/* Every byte once, 16 bytes a load, eight loads in flight; one number a block leaves. */
extern "C" __global__ void __launch_bounds__(512) read(const uint4 *p, unsigned long long n, unsigned *out)
{
	unsigned sum = 0;
	unsigned long long step = (unsigned long long)gridDim.x * 512, i = (unsigned long long)blockIdx.x * 512 + threadIdx.x;
	for (; i + 7 * step < n; i += 8 * step) {
		uint4 v[8];
#pragma unroll
		for (int k = 0; k < 8; k++)
			v[k] = p[i + k * step];
#pragma unroll
		for (int k = 0; k < 8; k++)
			sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
	}
	for (; i < n; i += step)
		sum += p[i].x;
	if (sum == 0x9e3779b9)
		out[0] = sum;
}
"""


class Gpu:
    def __init__(self):
        d = os.environ.get("LLMC_CUDA_LIBDIR")
        emu = d and "emu" in Path(d).name
        self.cu = C.CDLL(f"{d}/libcuda.so.1" if emu else "libcuda.so.1")
        self.rtc = C.CDLL(f"{d}/libnvrtc.so.13") if emu else tool.find()
        self.small = bool(emu)
        n, major, minor = C.c_int(), C.c_int(), C.c_int()
        self.ok("cuInit", 0)
        self.ok("cuDriverGetVersion", C.byref(n))
        self.driver = f"{n.value // 1000}.{n.value % 1000 // 10}"
        self.rtc.nvrtcVersion(C.byref(major), C.byref(minor))
        self.nvrtc_version = f"{major.value}.{minor.value}"
        name, total = C.create_string_buffer(128), C.c_size_t()
        self.ok("cuDeviceGetName", name, 128, 0)
        self.ok("cuDeviceTotalMem_v2", C.byref(total), 0)
        self.name, self.memory = name.value.decode(), total.value
        self.cc, self.sms = self.attr(75) * 10 + self.attr(76), self.attr(16)
        ctx = C.c_void_p()
        self.ok("cuDevicePrimaryCtxRetain", C.byref(ctx), 0)
        self.ok("cuCtxSetCurrent", ctx)
        self.cu.cuMemAlloc_v2.argtypes = [C.c_void_p, C.c_size_t]
        self.cu.cuMemFree_v2.argtypes = [C.c_uint64]
        self.cu.cuMemsetD8_v2.argtypes = [C.c_uint64, C.c_ubyte, C.c_size_t]
        self.cu.cuMemcpyDtoD_v2.argtypes = [C.c_uint64, C.c_uint64, C.c_size_t]

    def ok(self, name, *args):
        rc = getattr(self.cu, name)(*args)
        if rc:
            raise RuntimeError(f"{name} gave {rc}")

    def attr(self, number):
        v = C.c_int()
        self.ok("cuDeviceGetAttribute", C.byref(v), number, 0)
        return v.value

    def module(self, text):
        arch = f"sm_{self.cc}a" if self.cc >= 90 else f"sm_{self.cc}"
        r = tool.compile_one(self.rtc, "gpu.cu", text, arch)
        if not r["ok"]:
            raise RuntimeError(r["log"])
        m = C.c_void_p()
        self.ok("cuModuleLoadData", C.byref(m), r["cubin"])
        return m

    def alloc(self, n):
        p = C.c_uint64()
        self.ok("cuMemAlloc_v2", C.byref(p), n)
        return p.value

    def timed(self, what, runs=9):
        """Seconds: median and (least, most) of several, after a warm-up."""
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
        return statistics.median(seconds), (min(seconds), max(seconds))

    def read_bandwidth(self):
        n = 1 << 20 if self.small else 4 << 30
        p, out = self.alloc(n), self.alloc(4)
        self.ok("cuMemsetD8_v2", p, 0x5b, n)
        f = C.c_void_p()
        self.ok("cuModuleGetFunction", C.byref(f), self.module(READ), b"read")
        args = [C.c_uint64(p), C.c_uint64(n // 16), C.c_uint64(out)]
        ptr = (C.c_void_p * 3)(*[C.addressof(a) for a in args])
        best = None
        for blocks in (self.sms * 2, self.sms * 4):
            t, (lo, hi) = self.timed(lambda: self.ok("cuLaunchKernel", f, blocks, 1, 1, 512, 1, 1, 0, None, ptr, None))
            if best is None or t < best[0]:
                best = (t, lo, hi)
        self.ok("cuMemFree_v2", p)
        self.ok("cuMemFree_v2", out)
        return n / best[0] / 1e9, [n / best[2] / 1e9, n / best[1] / 1e9]

    def copy_bandwidth(self):
        """Bytes read and written."""
        n = 1 << 20 if self.small else 2 << 30
        p, q = self.alloc(n), self.alloc(n)
        self.ok("cuMemsetD8_v2", p, 0x5b, n)
        t, (lo, hi) = self.timed(lambda: self.ok("cuMemcpyDtoD_v2", q, p, n))
        self.ok("cuMemFree_v2", p)
        self.ok("cuMemFree_v2", q)
        return 2 * n / t / 1e9, [2 * n / hi / 1e9, 2 * n / lo / 1e9]

    def close(self):
        self.ok("cuDevicePrimaryCtxRelease_v2", 0)
