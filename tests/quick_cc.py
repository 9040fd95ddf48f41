"""What makes compiling the tests' kernels quicker and changes no byte of them: <immintrin.h> is a fifth of what a small kernel takes, so it is
parsed once for each instruction set, with the kernels' own flags: gcc 12 may crash where the header was made with another -O. A compiler that does not take
what was made here reads the header, as ever."""

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
    """Flags of each instruction set with vectors that runs here, as plan/target.c has them."""
    text = (ROOT / "plan/target.c").read_text()
    named = dict(re.findall(r'^#define (\w+) +"([^"]*)"', text, re.M))
    rows = re.findall(r'\{ "cpu-(\w+)",.*?"(-O3[^}]*) \}', text)
    return {
        a: " ".join(named.get(w, w.strip('"')) for w in f.split()).split()
        for a, f in rows
        if RUNS.get(a) and a != "generic"
    }


def include(common, sets):
    """Flags that include the header, made for gcc with `common` and each of the sets of flags (name: flags); none where the compiler is another."""
    cc = os.environ.get("LLMC_CC") or "gcc"
    version = build_cache.version(cc)
    if "Free Software Foundation" not in version or not sets:
        return []
    key = build_cache.key(version, common, sorted(sets.items()))[:12]
    at = build_cache.folder()
    # next to built code: the path is one of the flags that such code is kept by
    d = (at.resolve() / ".headers" if at else ROOT / "build" / "test-headers") / key
    d.mkdir(parents=True, exist_ok=True)
    with open(d / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (d / "done").exists():
            (d / "vectors.h").write_text(HEADER)
            (d / "vectors.h.gch").mkdir(exist_ok=True)
            for name, flags in sets.items():
                subprocess.run(
                    [
                        cc,
                        *common,
                        *flags,
                        "-x",
                        "c-header",
                        str(d / "vectors.h"),
                        "-o",
                        str(d / "vectors.h.gch" / name),
                    ],
                    stderr=subprocess.DEVNULL,
                )
            (d / "done").touch()
    return ["-include", str(d / "vectors.h")]


def kernel_cflags():
    """LLMC_KERNEL_CFLAGS of the tests: emitted kernels are tested for what they compute, and -O1 builds them in half the time."""
    common = (
        "-std=gnu11 -fPIC -shared -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror".split()
    )
    return " ".join(["-O1", *include(common, {a: [*f, "-O1"] for a, f in targets().items()})])
