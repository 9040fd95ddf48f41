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


@pytest.mark.parametrize("target", ("generic", "v3", "neon"))
def test_kernels_compile_with_gcc_11(target, tmp_path):
    """It has no __builtin_shufflevector. The form for it gives the same lanes."""
    gcc = shutil.which("gcc")
    if not gcc:
        pytest.skip("no gcc")
    flags = ["-mavx2", "-mfma", "-mf16c", "-mbmi2"] if target == "v3" else []
    if flags and os.uname().machine != "x86_64":
        pytest.skip("flags of x86")
    source = tmp_path / "k.c"
    source.write_text(
        f"""#define LLMC_TARGET_{target} 1
#include "cpu/attention/attention_tile.h"
#include "cpu/gemm/matmul_kernel.h"
int main(void)
{{
	typedef int16_t half __attribute__((vector_size(16)));
	const half a = {{ 0, 1, 2, 3, 4, 5, 6, 7 }}, c = a + 8;
	const half b = VF_SHUFFLE(a, c, 0, 8, 1, 9, 7, 15, 2, 3);
	const vf x = vf_set1(1), z = x + x, y = VF_SHUFFLE(x, z, {"0, 8, 1, 9, 2, 10, 3, 11" if target == "v3" else "0, 4, 1, 5"});
	return b[1] == 8 && b[5] == 15 && b[7] == 3 && y[0] == 1 && y[1] == 2 ? 0 : 1;
}}
"""
    )
    for form in ((), ("-DLLMC_GCC_11",)):
        cmd = [gcc, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", *flags, *form]
        cmd += ["-Itemplates", str(source), "-o", str(tmp_path / "k")]
        p = subprocess.run(cmd, cwd=ROOT, capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        if "avx2" in Path("/proc/cpuinfo").read_text() or not flags:
            assert subprocess.run([tmp_path / "k"]).returncode == 0
    for path in (ROOT / "templates/cpu").rglob("*"):
        if path.is_file() and path.name != "vector.h":
            assert "__builtin_shuffle" not in path.read_text(), path


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
