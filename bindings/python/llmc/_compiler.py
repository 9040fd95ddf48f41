"""A C compiler without the system's packages: that of the ziglang package, if it is installed."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shutil
import tempfile

# oldest glibc that Zig compiles for: kernels need no newer one
GLIBC = "2.17"


def _cache() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("LLMC_CACHE") or os.path.join(home, "llmc")


def use_zig() -> None:
    """Name Zig's C compiler in LLMC_CC if no compiler is named or found. The library runs a program
    without arguments, so a script adds them."""
    if os.environ.get("LLMC_CC") or any(map(shutil.which, ("cc", "gcc", "clang"))):
        return
    found = importlib.util.find_spec("ziglang")
    if found is None or found.origin is None:
        return
    zig = os.path.join(os.path.dirname(found.origin), "zig")
    target = f"{platform.machine()}-linux-gnu.{GLIBC}"
    text = f'#!/bin/sh\nexec "{zig}" cc -target {target} "$@"\n'
    folder = _cache()
    path = os.path.join(folder, f"zig-cc-{hashlib.sha256(text.encode()).hexdigest()[:12]}")
    if not os.access(path, os.X_OK):
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            fd, temporary = tempfile.mkstemp(dir=folder)
            with os.fdopen(fd, "w") as f:
                f.write(text)
            os.chmod(temporary, 0o700)
            os.replace(temporary, path)
        except OSError:  # opening a model names the missing compiler
            return
    os.environ["LLMC_CC"] = path
