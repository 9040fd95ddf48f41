#!/usr/bin/env python3
"""Measure which lines and functions the tests reach: builds with clang's counters into build/coverage, runs test steps there, writes build/coverage/html/index.html,
and prints one line per module and the functions that no test reaches.

usage: tools/coverage.py [STEP | FILE ...]      default: unit pytest serve cuda; --report: report on earlier runs, without running anything
"""

import collections
import json
import os
import re
import shutil
import subprocess
import sys

import check

BUILD = "build/coverage"
PROFILES = f"{BUILD}/profiles"
PROGRAMS = ("llmc", "libllmc.so", "expand", "reference")
ENV = {
    "LLVM_PROFILE_FILE": str(
        check.ROOT / PROFILES / "%4m.profraw"
    ),  # processes of one program share four files
    "LLMC": str(check.ROOT / BUILD / "llmc"),
    "LLMC_LIBRARY": str(check.ROOT / BUILD / "libllmc.so"),
    "LLMC_LIB": str(check.ROOT / BUILD / "libllmc.so"),
    "LLMC_TEST_BUILD": BUILD,
    "LLMC_EMU_BUILD": str(check.ROOT / BUILD),
    "BUILD": BUILD,
}


def tool(name):
    """llvm-cov or llvm-profdata of the clang used for the build."""
    suffix = re.search(r"(-\d+)?$", check.clang().split()[-1])[0]
    return name + suffix


def run_tests(names):
    shutil.rmtree(PROFILES, ignore_errors=True)
    times = check.known_times()
    items = check.chosen(check.all_items(times, names), names)
    for i in items:
        i.env = i.env | ENV
        i.argv = [a.replace("build/unit/", f"{BUILD}/unit/") for a in i.argv]
        if i.step == "build":
            i.argv = [
                *i.argv,
                f"BUILD={BUILD}",
                f"CC={os.environ.get('SAN_CC', check.clang())}",
                "CFLAGS=-O1 -g1",
                "SAN=-fprofile-instr-generate -fcoverage-mapping",
            ]
    check.set_ranks(items, times)
    run = check.Run(items)
    run.run()
    return run.summary()


def binaries():
    units = sorted(f"{BUILD}/unit/{p.stem}" for p in (check.ROOT / "tests/unit").glob("test_*.c"))
    found = [p for p in [f"{BUILD}/{p}" for p in PROGRAMS] + units if os.path.exists(p)]
    return [found[0], *(a for p in found[1:] for a in ("-object", p))]


def functions(export):
    """{(file, name): calls} of each function of the library and the command line, with the largest count of any program."""
    calls = collections.Counter()
    for data in export["data"]:
        for f in data["functions"]:
            name = f["name"].split(":")[-1]
            file = os.path.relpath(f["filenames"][0], check.ROOT)
            if not file.startswith(("tests/", "/usr", "..")):
                calls[file, name] += f["count"]
    return calls


def report():
    data = f"{BUILD}/profile"
    raw = [os.path.join(PROFILES, f) for f in os.listdir(PROFILES)]
    subprocess.run([tool("llvm-profdata"), "merge", "-sparse", "-o", data, *raw], check=True)
    common = ["-instr-profile", data, "-ignore-filename-regex=(^|/)tests/|/usr/", *binaries()]
    html = f"{BUILD}/html"
    subprocess.run(
        [
            tool("llvm-cov"),
            "show",
            "-format=html",
            "-show-branches=count",
            f"-output-dir={html}",
            *common,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    export = json.loads(
        subprocess.run(
            [tool("llvm-cov"), "export", *common], check=True, capture_output=True, text=True
        ).stdout
    )
    modules = collections.defaultdict(lambda: [0, 0, 0, 0])
    for f in export["data"][0]["files"]:
        module = os.path.dirname(os.path.relpath(f["filename"], check.ROOT)) or "."
        for k, (kind, key) in enumerate([("lines", "covered"), ("lines", "count")]):
            modules[module][k] += f["summary"][kind][key]
    calls = functions(export)
    for (file, _), n in calls.items():
        modules[os.path.dirname(file) or "."][2] += n > 0
        modules[os.path.dirname(file) or "."][3] += 1
    print("module                 lines reached            functions reached")
    for module, (lines, of, reached, n) in sorted(modules.items()):
        if of:
            print(
                f"{module:20s} {lines:6d} of {of:6d} {100 * lines / of:5.1f} %   {reached:5d} of {n:5d} {100 * reached / max(1, n):5.1f} %"
            )
    missed = sorted(k for k, n in calls.items() if n == 0)
    print(f"\n{len(missed)} functions that no test has reached:")
    for file, name in missed:
        print(f"  {file}: {name}")
    print(f"\n{html}/index.html shows each line with its count")


def main():
    os.chdir(check.ROOT)
    if not check.clang():
        sys.exit("coverage: no clang here (packages clang, llvm)")
    names = sys.argv[1:] or ["unit", "pytest", "serve", "cuda"]
    failed = 0 if names == ["--report"] else run_tests(names)
    report()
    return failed


if __name__ == "__main__":
    sys.exit(main())
