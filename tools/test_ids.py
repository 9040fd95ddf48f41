#!/usr/bin/env python3
"""Print the id of each test that make check runs, sorted; with LLMC_CHECK_ALL=1 those of make check-all.

usage: tools/test_ids.py                        the ids
       tools/test_ids.py --compare BEFORE.txt   ids missing compared with an earlier list, and new ids; exit 1 if any is missing

pytest NODE, unit PROGRAM TEST, fuzz NAME -runs=N, emu PROGRAM MODE SEED, san and tsan PROGRAM or the arguments of llmc. Needs make all."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import check

SHIM = """#!/bin/sh
case "$*" in *nonexistent*|*README.md*|"run configs --tokens"*) code=1;; esac
echo "$(basename "$0" | sed 's/^llmc$//') $*" | sed -e "s|$TMPDIR/tmp[^/]*|TMP|" -e 's/^ //' >>"$SHIM_OUT"
exit ${code:-0}
"""


def output(*argv, **env):
    return subprocess.run(
        argv, env=os.environ | env, capture_output=True, text=True, check=True
    ).stdout


def pytest_ids():
    return [
        f"pytest {line}"
        for line in output("tools/pytest.sh", "--collect-only", "tests").splitlines()
        if "::" in line
    ]


def unit_ids(item):
    _, name, *checked = item.name.split()
    if checked:
        return [f"unit check:{name}"]
    text = Path(f"tests/unit/{name}.c").read_text()
    return [f"unit {name} {t}" for t in re.findall(r"cmocka_unit_test[a-z_]*\(\s*(\w+)", text)]


def fuzz_ids(item):
    return [f"fuzz {item.argv[-1]} {output(item.argv[0], '--runs', item.argv[-1]).strip()}"]


def emulator_ids(item):
    part = item.argv[-1]
    seeds = range(8 if check.EVERY else 3)
    return (
        [f"emu {t} {part} {s}" for t in ("t_basic", "t_sm90") for s in seeds]
        if part in ("fast", "check")
        else [f"emu t_{part} seeds=4"]
    )


def script_ids(item):
    """Commands of sanitized.sh and threads.sh, obtained with replacement programs that print their arguments."""
    script, _, part = item.argv
    if part == "soak":
        return [f"{item.step} soak 60 6"]
    if part == "mixed":
        return [f"{item.step} pytest test_mixed.py"]
    if part == "binding":
        return [f"{item.step} pytest test_binding.py"]
    with tempfile.TemporaryDirectory() as d:
        (Path(d) / "unit").mkdir()
        unit = sorted(f"unit/{p.stem}" for p in Path("tests/unit").glob("test_*.c"))
        for program in ("llmc", *unit):
            p = Path(d) / program
            p.write_text(SHIM)
            p.chmod(0o755)
        output(script, d, part, SHIM_OUT=f"{d}/out", TMPDIR=d)
        return [
            f"{item.step} {line.strip()}"
            + " on kernels under the sanitizer" * line.startswith("test_")
            for line in Path(d, "out").read_text().splitlines()
        ]


def ids():
    out = pytest_ids()
    for i in check.all_items({}):
        if i.argv[0].endswith((".sh",)) and i.step in ("san", "tsan"):
            out += script_ids(i)
        elif i.step == "san":
            out.append(f"san unit {i.name.split()[1]}")
        else:
            out += {"unit": unit_ids, "fuzz": fuzz_ids, "emu": emulator_ids}.get(
                i.step, lambda i: []
            )(i)
    return sorted(out)


def main():
    os.chdir(check.ROOT)
    now = ids()
    if len(sys.argv) < 3:
        print("\n".join(now))
        return 0
    before = Path(sys.argv[2]).read_text().splitlines()
    lost, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
    print("\n".join([f"- {i}" for i in lost] + [f"+ {i}" for i in new]))
    print(f"{len(before)} before, {len(now)} now, {len(lost)} lost, {len(new)} new")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
