"""Compiles the tests' kernels faster without changing a byte of them. <immintrin.h> is a fifth of the compile time of a small kernel, so it is
precompiled once per instruction set, with the kernels' own flags: gcc 12 may crash on a header that was precompiled with another -O. A compiler that rejects
the precompiled header reads the plain one."""

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

from processor import RUNS

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
import build_cache  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
HEADER = "#ifdef __AVX2__\n#include <immintrin.h>\n#endif\n"


def targets():
    """Flags of each vector instruction set that runs here, from plan/target.c."""
    text = (ROOT / "plan/target.c").read_text()
    named = dict(re.findall(r'^#define (\w+) +"([^"]*)"', text, re.M))
    rows = re.findall(r'\{ "cpu-(\w+)",.*?"(-O3[^}]*) \}', text)
    return {
        a: " ".join(named.get(w, w.strip('"')) for w in f.split()).split()
        for a, f in rows
        if RUNS.get(a) and a != "generic"
    }


def include(common, sets):
    """Flags that include the header, precompiled for gcc with `common` and each of the sets of flags (name: flags). Empty for another compiler."""
    cc = os.environ.get("LLMC_CC") or "gcc"
    version = build_cache.version(cc)
    if "Free Software Foundation" not in version or not sets:
        return []
    key = build_cache.key(version, common, sorted(sets.items()))[:12]
    at = build_cache.folder()
    # next to built code: this path is among the flags, and flags are part of the cache key
    d = (at.resolve() / ".headers" if at else ROOT / "build" / "test-headers") / key
    while True:
        lock = locked(d, fcntl.LOCK_SH)
        if not (d / "done").exists():
            lock.close()
            lock = locked(d, fcntl.LOCK_EX)
            if not (d / "done").exists():
                precompile(d, cc, common, sets)
                if at:
                    build_cache.add_folder(d)
            fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock.fileno()).st_nlink:  # not evicted between the two locks
            os.utime(d / "lock")
            USED.append(lock)
            break
        lock.close()
    return ["-include", str(d / "vectors.h")]


def precompile(d, cc, common, sets):
    (d / "vectors.h").write_text(HEADER)
    (d / "vectors.h.gch").mkdir(exist_ok=True)
    for name, flags in sets.items():
        out = ["-x", "c-header", str(d / "vectors.h"), "-o", str(d / "vectors.h.gch" / name)]
        subprocess.run([cc, *common, *flags, *out], stderr=subprocess.DEVNULL)
    (d / "done").touch()


USED = []  # locks of folders that this process reads


def locked(d, how):
    """The lock of a folder, which is created, held shared or exclusively."""
    while True:
        d.mkdir(parents=True, exist_ok=True)
        try:
            lock = open(d / "lock", "a")
        except FileNotFoundError:  # evicted just now
            continue
        fcntl.flock(lock, how)
        if os.fstat(lock.fileno()).st_nlink:
            return lock
        lock.close()


def kernel_cflags():
    """LLMC_KERNEL_CFLAGS of the tests: only results of kernels are tested, and -O1 builds them in half the time."""
    common = (
        "-std=gnu11 -fPIC -shared -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror".split()
    )
    return " ".join(["-O1", *include(common, {a: [*f, "-O1"] for a, f in targets().items()})])


def use_cached(root):
    """Make llmc compile kernels through tests/kernels/cached_cc.c, so that tests with an empty cache
    share objects in the cache of the test run at `root`."""
    cc = ROOT / "build/cached_cc"
    if not os.environ.get("LLMC_CC") and cc.exists():
        os.environ.update(LLMC_CC=str(cc), LLMC_TEST_CC_CACHE=str(root))
