"""Fixtures of all Python tests: the built command, one cache for the run, the demo model."""

import collections
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import pytest

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tools"))
import build_cache
import quick_cc
from processor import cpu_archs
from waiting import HANG

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.chdir(ROOT)
sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))


def share_built_code(folder):
    """Set LLMC_CACHE to a folder of the tests, for models and weights. Its built code is a link to
    the cache that was set before, which outlives build/. Tests that start with an empty cache still
    share objects of the emulated GPU with it. Each cache has a folder of its own, because test runs
    with different caches may overlap."""
    outer = os.path.abspath(build_cache.root())
    if os.path.dirname(outer) == folder:  # set by the parent process
        return
    own = os.path.join(folder, hashlib.sha256(outer.encode()).hexdigest()[:8])
    link = os.path.join(own, "kernels")
    if build_cache.folder():
        os.environ.setdefault("LLMC_EMU_CACHE", outer)
        os.makedirs(own, exist_ok=True)
        for old in os.listdir(folder):
            kernels = os.path.join(folder, old, "kernels")
            # remove the link, because its cache no longer exists
            if os.path.islink(kernels) and not os.path.exists(kernels):
                shutil.rmtree(os.path.join(folder, old), ignore_errors=True)
        # this folder was created while caching was off
        if os.path.isdir(link) and not os.path.islink(link):
            shutil.rmtree(link)
        if not os.path.islink(link):
            made = tempfile.mktemp(prefix="kernels.", dir=own)
            os.symlink(os.path.join(outer, "kernels"), made)
            os.replace(made, link)
    os.environ["LLMC_CACHE"] = own


share_built_code(os.path.join(ROOT, "build", "test-cache"))
if "LLMC_KERNEL_CFLAGS" not in os.environ:  # kernel_cflags() precompiles a header
    os.environ["LLMC_KERNEL_CFLAGS"] = quick_cc.kernel_cflags()
quick_cc.use_cached(os.environ["LLMC_CACHE"])
if "LLMC_CHECK_ALL" not in os.environ:  # emulated kernels take longer to compile than to run
    os.environ.setdefault("LLMC_EMU_LEVEL", "-O0")


# file of findings of the emulated GPU in any process; a finding fails the test that ran it
FINDINGS = os.path.join(tempfile.mkdtemp(prefix="llmc-findings-"), "emu.txt")
os.environ["LLMC_EMU_REPORT"] = FINDINGS


def pytest_configure(config):
    config.addinivalue_line("markers", "findings: the emulator is expected to report a finding")
    config.addinivalue_line(
        "markers",
        "sample(n): make check runs n of the cases and those marked always or covers, make check-all every one",
    )
    config.addinivalue_line(
        "markers", "always: the only case of its purpose, which make check must not drop"
    )
    config.addinivalue_line(
        "markers", "covers(dtype, purpose): always, and tests/repo/test_sample.py counts it"
    )


# families of types: plain; blocks of 32; blocks of 256; codebooks; fp4 types of files; groups of
# integers; groups of floats; groups with minima
FAMILIES = [
    "f32|f16|bf16",
    r"q\d_[01]",
    r"q\d_k",
    r"[it]q.*",
    "(mx|nv)fp4",
    r"u\d_.*",
    r"(f8|nf4|fp4)_.*",
    r"m\d_.*",
]


def shows(name, value):
    """Return the properties that a parameter of a case covers: its value, and for a type its
    family."""
    return {f"{name}={value!r}"} | {
        f"{name} of {f}" for f in FAMILIES if isinstance(value, str) and re.fullmatch(f, value)
    }


def sampled(items, n):
    """Choose the n cases of a sweep that `make check` runs; `make check-all` runs all. The others
    are types that share traits with a chosen one, instruction sets and GPUs whose kernels differ in
    vector or tile size, and families that combine the same ops. The choice is deterministic: each
    next case is the one with the most properties that no chosen case has."""
    left = {
        i: set().union(*(shows(k, v) for k, v in i.callspec.params.items()))
        for i in sorted(items, key=lambda i: hashlib.sha256(i.name.encode()).digest())
    }
    seen, chosen = set(), []
    while left and len(chosen) < n:
        best = max(left, key=lambda i: len(left[i] - seen))
        seen |= left.pop(best)
        chosen.append(best)
    return chosen


def kept(item):
    """Returns whether a case is always chosen, because of its purpose."""
    return any(item.get_closest_marker(m) for m in ("always", "covers"))


def pytest_collection_modifyitems(config, items):
    cases = collections.defaultdict(list)
    for i in items:
        mark = i.get_closest_marker("sample")
        if mark and hasattr(i, "callspec"):
            cases[i.parent.nodeid, i.originalname, mark.args[0]].append(i)
    asked = any("[" in a for a in config.args)  # a case is selected by name
    if "LLMC_CHECK_ALL" in os.environ or "LLMC_CHECK_QUICK" in os.environ or asked:
        return
    dropped = {
        i
        for (*_, n), group in cases.items()
        for i in set(group) - set(sampled(group, n))
        if not kept(i)
    }
    config.hook.pytest_deselected(items=[i for i in items if i in dropped])
    items[:] = [i for i in items if i not in dropped]


def pytest_unconfigure(config):
    shutil.rmtree(os.path.dirname(FINDINGS), ignore_errors=True)


@pytest.fixture(autouse=True)
def no_findings(request):
    before = os.path.getsize(FINDINGS) if os.path.exists(FINDINGS) else 0
    yield
    if os.path.exists(FINDINGS) and not request.node.get_closest_marker("findings"):
        with open(FINDINGS) as f:
            f.seek(before)
            found = f.read()
        assert not found, found


class Llmc:
    """Runs build/llmc, and keeps the output of the last process."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *args, code=0, env=None, stdin=None, cwd=None, timeout=HANG):
        p = subprocess.run(
            [self.path, *map(str, args)],
            capture_output=True,
            text=True,
            input=stdin,
            cwd=cwd,
            env=dict(os.environ, **(env or {})),
            timeout=timeout,
            errors="replace",
        )
        assert p.returncode == code, (
            f"llmc {' '.join(map(str, args))}: exit {p.returncode}, expected {code}\n{p.stdout}\n{p.stderr}"
        )
        self.out, self.err = p.stdout, p.stderr
        return p

    def json(self, *args, **kw):
        self(*args, "--json", **kw)
        return json.loads(self.out)


@pytest.fixture(scope="session")
def llmc():
    path = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
    assert os.path.exists(path), "build/llmc is missing: run make all"
    return Llmc(path)


@pytest.fixture(scope="session", params=cpu_archs())
def arch(request):
    return request.param


@pytest.fixture(scope="session")
def smollm2():
    path = os.environ.get("LLMC_SMOLLM2")
    if not path or not os.path.exists(path):
        pytest.skip("LLMC_SMOLLM2 names no file (make smollm2 fetches it)")
    return path
