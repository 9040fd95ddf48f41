"""Pages keep their form, and what they name exists."""

import glob
import os
import re
import subprocess
import sys

import pytest

INTERNALS = sorted(glob.glob("docs/internals/*.md"))


@pytest.mark.parametrize("page", INTERNALS)
def test_a_contract_begins_with_its_invariant_and_ends_with_its_test(page):
    lines = open(page).read().rstrip("\n").split("\n")
    assert len(lines) <= 60
    assert re.match(r"# \S", lines[0]) and lines[1] == "" and lines[2].startswith("**Invariant.** ")
    last = re.match(r"\*\*Test\.\*\* (.+)\.$", lines[-1])
    assert last, "the last line names the test"
    files = re.findall(r"`(tests/[\w./]+)`", last[1])
    assert files
    source = "".join(open(f).read() for f in files)
    for name in re.findall(r"`(\w+)`", last[1]):
        assert re.search(rf"^(?:def {name}\(|{name}\(void|(?:BENCH_)?TEST\({name}\))", source, re.M), name


def test_every_contract_is_listed():
    text = open("docs/design.md").read()
    assert [p for p in INTERNALS if f"({p[5:]})" not in text] == []
    assert len(text.split("\n")) <= 150


def test_only_the_list_of_devices_names_a_device():
    """runtime/ knows a device by its table; the list of tables is one line of one file."""
    found = []
    for folder, _, names in os.walk("runtime"):
        if folder.startswith(("runtime/cpu", "runtime/cuda")):
            continue
        for name in sorted(names):
            if name.endswith((".c", ".h")):
                text = re.sub(r"/\*.*?\*/|//[^\n]*", "", open(f"{folder}/{name}").read(), flags=re.S)
                found += [
                    f"{folder}/{name}: {line.strip()}"
                    for line in text.split("\n")
                    if re.search(r"runtime/(?:cpu|cuda)/|\b(?:cpu|cuda)_device\b", line)
                ]
    assert len(found) == 2 and all(f.startswith("runtime/runtime.c: ") for f in found), "\n".join(found)


def test_the_readme_is_short_and_its_figures_are_those_of_the_result_files():
    assert open("README.md").read().count("\n") <= 120
    p = subprocess.run([sys.executable, "tools/speed_doc.py", "--check"], capture_output=True, text=True)
    assert p.returncode == 0, p.stderr


def test_every_environment_variable_is_listed():
    """docs/environment.md has the variables that the library and the command read, and no others."""
    page = open("docs/environment.md").read()
    read = set()
    for top in ("api", "base", "cli", "compiler", "formats", "grammar", "quant", "runtime", "serve", "text"):
        for folder, _, names in os.walk(top):
            for name in names:
                if name.endswith(".c"):
                    text = open(f"{folder}/{name}").read()
                    read |= set(re.findall(r'getenv\("(\w+)"\)', text))
                    read |= set(re.findall(r'open_below\("(\w+)"', text))
    listed = set(re.findall(r"`([A-Z][A-Z_]+)`", page.split("The emulator")[0]))
    assert len(read) > 15 and sorted(read - listed) == []
    other = {"LLMC_LIBRARY", "LLMC_SERVE_PORT", "CUDA_HOME", "CUDA_PATH", "CUDA_ROOT", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}
    assert sorted(listed - read - other) == []
