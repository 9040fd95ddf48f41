"""llmc and libllmc.so for any Linux with glibc 2.28 or newer, compiled by Zig's clang."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import libraries

ROOT = Path(__file__).resolve().parents[2]
GLIBC = "2.28"
ARCHES = ("x86_64", "aarch64")


def build_folder():
    return ROOT / os.environ.get("BUILD", "build") / "release"


def version():
    text = (ROOT / "include/llmc.h").read_text()
    return re.search(r'^#define LLMC_VERSION "(.*)"', text, re.M)[1]


def zig():
    """Path of the Zig program, from its package in the environment of releases."""
    venv = subprocess.run(
        ["sh", "tools/venv.sh", "release"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    return next(Path(venv).glob("lib/python3*/site-packages/ziglang")) / "zig"


def compiler(out, arch):
    """Write the compiler as a program of one word, which make takes."""
    path = out / f"cc-{arch}"
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\n[ "$1" = -dumpmachine ] && exec echo {arch}-linux-gnu\nexec "{zig()}" cc -target {arch}-linux-gnu.{GLIBC} -fno-sanitize=all "$@"\n'
    )
    path.chmod(0o755)
    return path


def newest_glibc(path):
    """Newest version of glibc's symbols that a file needs."""
    text = subprocess.run(["readelf", "-V", path], check=True, capture_output=True, text=True)
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", text.stdout)
    return max((int(a), int(b)) for a, b in found)


def check(path):
    """A release file needs only glibc, and none that is too new."""
    text = subprocess.run(["readelf", "-d", path], check=True, capture_output=True, text=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text.stdout))
    glibc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
    others = {n for n in needed - glibc if not n.startswith("ld-linux")}
    if others:
        raise SystemExit(f"release: {path} needs {', '.join(sorted(others))}")
    if newest_glibc(path) > tuple(int(x) for x in GLIBC.split(".")):
        raise SystemExit(f"release: {path} needs glibc {newest_glibc(path)}, not {GLIBC}")


def build(arch, jobs):
    """Build for an architecture; return the folder with llmc and libllmc.so, stripped."""
    base = build_folder()
    out = base / arch
    cc = compiler(base, arch)
    libraries.fetch(base / "sources")
    ar = [str(zig()), "ar"]
    flags, archives = libraries.build(base / "sources", out / "libraries", [cc], ar, jobs)
    relative = out.relative_to(ROOT)
    subprocess.run(
        [
            *("make", f"-j{jobs}", "--no-print-directory", "-s"),
            *(
                f"BUILD={relative}",
                f"CC={cc}",
                f"AR={' '.join(ar)}",
                "CROSS=",
                "PKGS=",
                "IMAGE_PKGS=",
            ),
            "CFLAGS=-O2 -g0 -Wno-error",
            f"CPPFLAGS_=-I. -Iinclude -Itemplates -D_GNU_SOURCE {' '.join(flags)}",
            f"LIBS={' '.join(map(str, archives))} -Wl,-s -lm -lpthread -ldl",
            *(f"{relative}/llmc", f"{relative}/libllmc.so"),
        ],
        cwd=ROOT,
        check=True,
    )
    for name in ("llmc", "libllmc.so"):
        check(out / name)
    return out


def host_llmc(jobs):
    """llmc of this machine's own build, which writes man pages and completions."""
    path = ROOT / os.environ.get("BUILD", "build") / "llmc"
    subprocess.run(["make", "-s", f"-j{jobs}", str(path.relative_to(ROOT))], cwd=ROOT, check=True)
    return path


def pages(share, jobs):
    """Man pages and completions below share."""
    shutil.rmtree(share, ignore_errors=True)
    env = {**os.environ, "HOST_LLMC": str(host_llmc(jobs))}
    subprocess.run(["tools/install_pages.sh", share], cwd=ROOT, check=True, env=env)
