"""Plants the mistakes of mutants.toml, one at a time, in a copy of the tree, and runs the tests that are expected to catch each.

    make mutants                        every mutant; MUTANTS_ARGS="--jobs 1 --hole 13" or parts of names
    tests/mutants/run.py --check        only check that each `old` is still in its file and each test file exists

A mutant is caught when at least one of its tests fails, and the line names it. Errors, with exit status 1: a mutant that no test catches, an `old` that is not in its file
exactly `count` times (1), a mutant that does not build, a test that fails without a mutant. Copies stay in build/mutants, so that later runs build little."""

import argparse
import collections
import concurrent.futures
import os
import queue
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
import build_cache  # noqa: E402
from planted import anywhere  # noqa: E402

TABLE = Path(__file__).with_name("mutants.toml")
WORK = ROOT / "build" / "mutants"
FIELDS = {"name", "file", "old", "new", "tests", "hole", "count"}
TIMEOUT = 900
# compiler error in the output of a test: such a mutant proves nothing. llmc reports mistakes of
# descriptions and of --set in the same form.
BROKEN = re.compile(r"(?<!--set)(?<!\.yaml):\d+:\d+: error: |fatal error: ")


class Stale(Exception):
    pass


def unit(test):
    """(program, its case or "", whether it runs in checking mode) of unit:NAME, unit:check:NAME or unit:NAME::CASE; None for a pytest test"""
    m = re.fullmatch(r"unit:(check:)?(\w+)(?:::(\w+))?", test)
    return m and (m[2], m[3] or "", bool(m[1]))


def table(text=None):
    """The mutants, each with its fields checked."""
    rows = tomllib.loads(text if text is not None else TABLE.read_text())["mutant"]
    names = collections.Counter(m.get("name") for m in rows)
    for m in rows:
        if missing := {"name", "file", "old", "new", "tests"} - m.keys():
            raise Stale(f"{m.get('name')}: lacks {sorted(missing)}")
        if unknown := m.keys() - FIELDS:
            raise Stale(f"{m['name']}: unknown fields {sorted(unknown)}")
        if names[m["name"]] > 1:
            raise Stale(f"{m['name']}: two mutants have this name")
        if m["old"] == m["new"] or not m["tests"]:
            raise Stale(f"{m['name']}: changes nothing, or names no test")
    return rows


def planted(m, root=ROOT):
    """The mutant's file with the mistake in it."""
    path = root / m["file"]
    if not path.is_file():
        raise Stale(f"{m['name']}: {m['file']} is not there")
    text, n = anywhere(m["old"]).subn(lambda _: m["new"], path.read_text())
    if n != m.get("count", 1):
        raise Stale(
            f"{m['name']}: its text is in {m['file']} {n} times, expected {m.get('count', 1)}: the table is stale"
        )
    return text


def check(rows, root=ROOT):
    for m in rows:
        planted(m, root)
        for t in m["tests"]:
            file = root / (f"tests/unit/{unit(t)[0]}.c" if unit(t) else t.split("::")[0])
            if not file.is_file():
                raise Stale(f"{m['name']}: the test {t} is not there")
            case = t.partition("::")[2].partition("[")[0]
            if case and not re.search(rf"^(def )?{case}\(", file.read_text(), re.M):
                raise Stale(f"{m['name']}: {file.name} has no test {case}")


def lane(number):
    """Updates a copy of the tree: files that changed since the last run are copied again."""
    tree = WORK / f"tree-{number}"
    tree.mkdir(parents=True, exist_ok=True)
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    names = {n for n in names.split("\0") if n and (ROOT / n).is_file()}
    for n in names:
        to = tree / n
        if not to.exists() or to.read_bytes() != (ROOT / n).read_bytes():
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / n, to)
            os.utime(to)
    for n in [
        p for p in tree.rglob("*") if p.is_file() and p.relative_to(tree).parts[0] != "build"
    ]:
        if str(n.relative_to(tree)) not in names:
            n.unlink()
    return tree


def environment():
    """Environment for builds and tests of a copy. Built code is shared with all other tests: the cache key contains the source, so a mutant has its own entries."""
    env = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("LLMC_EMU", "LLMC_CHECK", "MAKE", "MFLAGS"))
    } | {"LLMC_EMU_QUIET": "1"}
    return env | ({"LLMC_EMU_CACHE": str(build_cache.root())} if build_cache.folder() else {})


def make(tree, env, *targets):
    # a mutation may leave a variable unused
    return subprocess.run(
        ["make", "-s", f"CC={os.environ.get('CC', 'gcc')}", "CFLAGS=-O2 -Wno-error", *targets],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
    )


def build(tree, env, tests):
    targets = {
        f"build/unit/{unit(t)[0]}"
        if unit(t)
        else "build/expand"
        if t.startswith("tests/cuda/")
        else "all"
        for t in tests
    }
    return make(tree, env, "emu-lib", *sorted(targets))


def run_tests(tree, env, tests):
    """(names of tests that failed, output). Unit programs run first; pytest stops at the first failure."""
    output = ""
    for name, case, checked in filter(None, map(unit, tests)):
        more = ({"LLMC_EMU_MODE": "check"} if checked else {}) | (
            {"TEST_ONLY": case} if case else {}
        )
        r = subprocess.run(
            [f"build/unit/{name}"],
            cwd=tree,
            env=env | more,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
        output += r.stdout + r.stderr
        if r.returncode:
            cases = re.findall(r"^\[  FAILED  \] (\w+)$", output, re.M)
            return [f"{name}: {cases[0] if cases else 'the program as a whole'}"], output
    cases = [t for t in tests if not unit(t)]
    if not cases:
        return [], output
    r = subprocess.run(
        ["tools/pytest.sh", "-x", "-rfE", *cases],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT,
    )
    output += r.stdout + r.stderr
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", r.stdout, re.M)
    if r.returncode not in (0, 1) or (r.returncode == 1) != bool(failed):
        raise Stale(f"pytest ended with {r.returncode}:\n{output[-2000:]}")
    if r.returncode == 0 and not re.search(r"\d+ passed", r.stdout):
        raise Stale(f"none of its tests ran:\n{output[-2000:]}")
    return failed, output


def plant(m, tree, env):
    """Returns the report line of a mutant, and whether it was caught."""
    path, start = tree / m["file"], time.monotonic()
    before = path.read_text()
    path.write_text(planted(m, tree))
    try:
        made = build(tree, env, m["tests"])
        if made.returncode:
            return False, f"does not build: {(made.stdout + made.stderr)[-600:]}"
        failed, output = run_tests(tree, env, m["tests"])
        if failed and BROKEN.search(output):
            return False, f"its kernel does not compile:\n{output[-1500:]}"
        return (
            bool(failed),
            f"{time.monotonic() - start:5.0f} s  {failed[0]}"
            if failed
            else f"not seen by {', '.join(m['tests'])}",
        )
    except subprocess.TimeoutExpired:
        return False, f"its tests did not end in {TIMEOUT} s"
    except Stale as e:
        return False, str(e)
    finally:
        path.write_text(before)


def prepare(number):
    tree = lane(number)
    env = environment()
    made = make(tree, env, "all", "emu-lib")
    if made.returncode:
        sys.exit(f"the copy of the tree does not build:\n{made.stdout}{made.stderr}")
    return tree, env


def without_mutants(rows, tree, env):
    """Run the tests in the tree as it is: a test that fails without a mutant catches nothing."""
    tests = sorted({t for m in rows for t in m["tests"]})
    made = build(tree, env, tests)
    if made.returncode:
        sys.exit(f"the tests do not build:\n{made.stdout}{made.stderr}")
    for part in ([t for t in tests if unit(t)], [t for t in tests if not unit(t)]):
        failed, output = run_tests(tree, env, part) if part else ([], "")
        if failed:
            sys.exit(f"{failed[0]} fails without any mutant:\n{output[-3000:]}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("names", nargs="*", help="parts of names of mutants; all by default")
    p.add_argument("--hole", type=int, help="only those of this kind of hole")
    p.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    p.add_argument("--check", action="store_true", help="check the table, plant nothing")
    p.add_argument(
        "--no-baseline", action="store_true", help="do not run the tests without mutants first"
    )
    a = p.parse_args()
    try:
        rows = table()
        check(rows)
    except Stale as e:
        sys.exit(f"mutants: {e}")
    if a.check:
        print(
            f"mutants: {len(rows)} of {len({m['file'] for m in rows})} files, each text in its place"
        )
        return
    rows = [
        m
        for m in rows
        if (not a.names or any(n in m["name"] for n in a.names))
        and (a.hole is None or m.get("hole") == a.hole)
    ]
    lanes = queue.SimpleQueue()
    first = prepare(0)
    if not a.no_baseline:
        without_mutants(rows, *first)
    lanes.put(first)
    for i in range(1, min(a.jobs, len(rows))):
        lanes.put(prepare(i))

    def one(m):
        tree, env = lanes.get()
        try:
            return plant(m, tree, env)
        finally:
            lanes.put((tree, env))

    missed = 0
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for m, (caught, line) in zip(rows, pool.map(one, rows)):
            missed += not caught
            print(
                f"{'caught' if caught else 'MISSED'}  {m['name']} ({m['file']}): {line}", flush=True
            )
    print(f"mutants: {len(rows) - missed} of {len(rows)} caught")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()
