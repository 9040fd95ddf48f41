"""Processors and systems other than 64-bit little-endian Linux are refused by the compiler with a sentence; the sources compile for RISC-V."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CC = os.environ.get("CC") or "cc"
RISCV = "riscv64-linux-gnu-gcc"


@pytest.mark.parametrize(
    "flags, sentence",
    [
        (["-U__SIZEOF_POINTER__", "-D__SIZEOF_POINTER__=4"], "llmc needs a 64-bit processor"),
        (
            ["-U__BYTE_ORDER__", "-D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__"],
            "llmc needs a little-endian processor",
        ),
        (["-U__linux__"], "llmc runs on Linux only"),
    ],
)
def test_another_platform_is_refused(flags, sentence):
    p = subprocess.run(
        [CC, *flags, "-w", "-fsyntax-only", "base/platform.c"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert p.returncode and sentence in p.stderr


@pytest.mark.skipif(not shutil.which(RISCV), reason="no cross compiler for RISC-V")
@pytest.mark.skipif("LLMC_CHECK_ALL" not in os.environ, reason="runs in make check-all")
def test_the_sources_compile_for_riscv(tmp_path):
    """Headers of the libraries are the same for all processors."""
    for name in ("yaml.h", "jansson.h", "jansson_config.h", "pcre2.h", "utf8proc.h"):
        found = [*Path("/usr/include").glob(name), *Path("/usr/include").glob(f"*/{name}")]
        (tmp_path / name).write_bytes(found[0].read_bytes())
    sources = subprocess.run(
        ["git", "ls-files", "*.c", ":!tests", ":!emu", ":!examples", ":!templates", ":!bindings"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    flags = f"-I. -Iinclude -Itemplates -I{tmp_path} -D_GNU_SOURCE -std=gnu11 -Wall -Wextra -Werror"
    p = subprocess.run(
        [RISCV, *flags.split(), "-fsyntax-only", *sources], cwd=ROOT, capture_output=True, text=True
    )
    assert p.returncode == 0, p.stderr[-4000:]
