"""The machine that a benchmark ran on, as named in result files, and the location of these
files."""

import os
import pathlib
import platform
import re

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


def machine():
    with open("/proc/cpuinfo") as f:
        text = f.read()
    name = re.search(r"^model name\s*: *(.*)$", text, re.M)
    flags = set(text.split())
    return {
        "cpu": name[1].strip() if name else platform.machine(),
        "cores": os.cpu_count(),
        "avx512_vnni": "avx512_vnni" in flags,
        "amx_int8": "amx_int8" in flags,
        "kernel": platform.release(),
    }


def result_file(kind, suffix=""):
    """Return results/KIND-PROCESSOR[-SUFFIX].json."""
    name = re.sub("[^a-z0-9]+", "-", machine()["cpu"].lower()).strip("-")
    return RESULTS / f"{kind}-{name}{'-' + suffix if suffix else ''}.json"
