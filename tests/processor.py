"""Instruction sets that this processor runs: RUNS[arch] for each CPU value of --arch."""

import ctypes
import re
from pathlib import Path


def _flags():
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    m = re.search(r"^flags\s*:(.*)$", text, re.M)
    return set(m[1].split()) if m else set()


def _tiles():
    """Returns whether the kernel lets this process use tile registers: arch_prctl(ARCH_REQ_XCOMP_PERM, 18)"""
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


CPU = _flags()
V3 = {"avx2", "fma", "f16c", "bmi2"} <= CPU
V4 = V3 and {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512_vnni"} <= CPU
RUNS = {
    "generic": True,
    "v3": V3,
    "vnni": V3 and "avx_vnni" in CPU,
    "v4": V4,
    "amx": V4 and {"amx_tile", "amx_int8", "amx_bf16", "avx512_bf16"} <= CPU and _tiles(),
}


def cpu_archs():
    """Instruction sets that this processor runs and whose kernels differ in more than GEMMs."""
    return [a for a in ("generic", "v3", "v4") if RUNS[a]]
