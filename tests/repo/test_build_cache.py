"""The cache of built code from Python and from C: same files, same limit, and never a partial entry (docs/internals/built-code.md)."""

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import build_cache as B  # noqa: E402
import cache_stats  # noqa: E402
import quick_cc  # noqa: E402
from small_disk import small_disk  # noqa: E402

TINY = [
    "run",
    "configs/tiny.yaml",
    "--random-weights",
    "--arch",
    "generic",
    "--tokens",
    "1,2,3",
    "-n",
    "2",
    "--ignore-eos",
    "--json",
]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Return an empty cache that counts lookups."""
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LLMC_CACHE_STATS", str(tmp_path / "stats"))
    monkeypatch.delenv("LLMC_CACHE_SIZE", raising=False)
    B._warned.clear()
    return tmp_path / "cache" / "kernels"


def counted(tmp_path):
    path = tmp_path / "stats"
    found = cache_stats.total([path])
    path.unlink(missing_ok=True)
    return {k: dict(v) for k, v in (found or {}).items()}


def entries(cache, kind):
    return sorted(cache.glob(f"*.{kind}"))


def test_entries_come_back(cache, tmp_path):
    key = B.key("text", ["-O1"], 3)
    assert key != B.key("text", ["-O", "1"], 3) and len(key) == 64
    assert B.get("nvrtc", key) is None
    B.put("nvrtc", key, b"\0data\xff")
    assert B.get("nvrtc", key) == b"\0data\xff" and B.get("sass", key) is None
    assert counted(tmp_path) == {"nvrtc": {"miss": 1, "hit": 1}, "sass": {"miss": 1}}


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "of another key"])
def test_damaged_entries_are_a_miss_with_one_warning(cache, tmp_path, capfd, how):
    for i in range(2):
        B.put("nvrtc", B.key(i), b"contents" * 100)
        path = cache / f"{B.key(i)}.nvrtc"
        data = bytearray(path.read_bytes())
        if how == "flipped":
            data[50] ^= 1
        path.write_bytes({"empty": b"", "cut": data[:-1], "flipped": data}.get(how, data))
        if how == "of another key":
            path = path.rename(cache / f"{B.key(i + 10)}.nvrtc")
        key = path.stem
        assert B.get("nvrtc", key) is None
        B.put("nvrtc", key, b"new")
        assert B.get("nvrtc", key) == b"new"
    assert capfd.readouterr().err.count("damaged or cut off: it is built again") == 1
    assert counted(tmp_path)["nvrtc"] == {"damaged": 2, "miss": 2, "hit": 2}


def test_what_others_may_write_is_not_loaded(cache):
    B.put("test", B.key(1), b"code")
    (cache / f"{B.key(1)}.test").chmod(0o622)
    with pytest.raises(B.Untrusted, match="others may write to it"):
        B.get("test", B.key(1))


def test_the_bound_and_the_order(cache, monkeypatch):
    monkeypatch.setenv("LLMC_CACHE_SIZE", "100000")
    data = b"x" * (10000 - B.TRAILER)
    for i in range(10):
        B.put("test", B.key(i), data)
        os.utime(cache / f"{B.key(i)}.test", (1e9 + i, 1e9 + i))
    assert B.get("test", B.key(0))  # a lookup updates the entry's time of last use
    with B._held("test", B.key(2)) as (path, _):
        os.utime(path, (1e9, 1e9))
        B.put("test", B.key(10), data)
    left = [i for i in range(11) if (cache / f"{B.key(i)}.test").exists()]
    assert left == [0, 2, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("used", [False, True])
def test_precompiled_headers_count_and_go_when_unused(cache, llmc, monkeypatch, used):
    data = b"x" * (10000 - B.TRAILER)
    d = cache / ".headers" / "set"
    B.put("test", B.key("first"), data)
    lock = quick_cc.locked(d, fcntl.LOCK_EX)
    (d / "vectors.h.gch").mkdir()
    (d / "vectors.h.gch" / "v3").write_bytes(b"x" * 60000)
    B.add_folder(d)
    os.utime(d / "lock", (1e9, 1e9))
    parts = {p["name"]: p["bytes"] for p in llmc.json("cache")["parts"]}
    assert parts["kernels"] == 70000
    for i in range(3):
        os.utime(cache / f"{B.key('first')}.test", (2e9, 2e9))
        B.put("test", B.key(i), data)
    assert d.exists()
    if not used:
        lock.close()
    monkeypatch.setenv("LLMC_CACHE_SIZE", "99000")  # the next count evicts 10 kB or more
    B.put("test", B.key("last"), data)
    left = len(list(cache.glob("*.test")))
    assert d.exists() == used and left == (5 if not used else 2)
    lock.close()


def test_switched_off(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC_CACHE_SIZE", "0")
    B.put("test", B.key(1), b"code")
    assert B.get("test", B.key(1)) is None and not cache.exists()
    assert counted(tmp_path) == {"test": {"miss": 1}}


def test_libraries_are_compiled_once(cache, tmp_path):
    def make(path):
        made.append(path)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", path],
            input="int answer(void) { return 42; }",
            text=True,
            check=True,
        )

    made = []
    for _ in range(2):
        assert B.library("test", B.key("answer"), make).answer() == 42
    assert len(made) == 1 and not os.path.exists(made[0])
    assert counted(tmp_path) == {"test": {"miss": 1, "hit": 1}}


def test_llmc_and_python_read_each_others_entries(cache, llmc, tmp_path):
    want = llmc.json(*TINY)["tokens"]
    n = len(entries(cache, "so"))
    assert n > 3 and counted(tmp_path) == {"so": {"miss": n}}
    for path in entries(cache, "so"):
        data = B.get("so", path.stem)
        assert data.startswith(b"\177ELF")
        path.unlink()
        B.put("so", path.stem, data)
    counted(tmp_path)
    assert llmc.json(*TINY)["tokens"] == want and "compiling" not in llmc.err
    assert counted(tmp_path) == {"so": {"hit": n}}
    kinds = {k["name"]: k for k in llmc.json("cache")["kinds"]}
    assert kinds["so"]["files"] == n and kinds["so"]["bytes"] == sum(
        p.stat().st_size for p in entries(cache, "so")
    )


def test_llmc_keeps_to_the_bound(cache, llmc):
    llmc.json(*TINY)
    size = sum(p.stat().st_size for p in cache.iterdir() if not p.name.startswith("."))
    for p in cache.iterdir():
        if p.is_file():
            p.unlink()
    for env in {"LLMC_CACHE_SIZE": str(size // 2)}, {"LLMC_CACHE_SIZE": "0"}:
        assert llmc.json(*TINY, env=env)["tokens"]
        assert "not kept" not in llmc.err
        assert (
            sum(p.stat().st_size for p in cache.iterdir() if not p.name.startswith("."))
            <= size // 2
        )
    llmc(*TINY, env={"LLMC_CACHE_SIZE": "much"}, code=2)
    assert 'LLMC_CACHE_SIZE is "much": expected a size' in llmc.err


WRITER = """
import sys, random
sys.path.insert(0, "tools")
import build_cache as B
r = random.Random(sys.argv[1])
while True:
    n = r.randrange(30)
    if r.random() < 0.5:
        B.put("test", B.key(n), bytes([n]) * (1000 + 100 * n))
    else:
        assert B.get("test", B.key(n)) in (None, bytes([n]) * (1000 + 100 * n))
"""


def test_writers_that_are_killed_leave_whole_entries(cache, monkeypatch):
    """Four concurrent writers are killed at random; the cache is always too small."""
    monkeypatch.setenv("LLMC_CACHE_SIZE", "40000")
    r = random.Random(1)
    for round_ in range(6):
        all_ = [
            subprocess.Popen([sys.executable, "-c", WRITER, f"{round_} {i}"], cwd=ROOT)
            for i in range(4)
        ]
        time.sleep(0.3 + 0.3 * r.random())
        for p in all_:
            assert p.poll() is None
            p.send_signal(signal.SIGKILL)
        for p in all_:
            p.wait()
        for n in range(30):
            assert B.get("test", B.key(n)) in (None, bytes([n]) * (1000 + 100 * n))
    B.put("test", B.key(100), b"the next one")
    assert B.get("test", B.key(100)) == b"the next one"
    assert sum(p.stat().st_size for p in entries(cache, "test")) <= 40000


def test_a_full_disk_is_one_warning(llmc, tmp_path):
    """If the disk is full, the model runs from kernels compiled in memory."""
    (tmp_path / "disk").mkdir()
    disk = small_disk(tmp_path / "disk")
    if disk is None:
        pytest.skip("no mounts in a namespace here (unshare)")
    artifact = tmp_path / "a"
    llmc("compile", TINY[1], "-o", artifact, "--arch", "generic")
    run = [TINY[0], str(artifact), *TINY[2:]]
    want = llmc.json(*run[:-1])["tokens"]
    p = subprocess.run(
        [*disk, llmc.path, *run],
        capture_output=True,
        text=True,
        env=dict(os.environ, LLMC_CACHE=str(tmp_path / "disk")),
    )
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout)["tokens"] == want
    said = [line for line in p.stderr.splitlines() if "LLMC_CACHE" in line]
    assert (
        len(said) == 1
        and "compiled kernels are not kept for the next time" in said[0]
        and "No space left on device" in said[0]
    ), p.stderr
    code = "import build_cache as B\nfor i in range(40):\n B.put('test', B.key(i), b'x' * 5000)\nprint(sum(B.get('test', B.key(i)) is not None for i in range(40)))"
    p = subprocess.run(
        [*disk, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=dict(os.environ, LLMC_CACHE=str(tmp_path / "disk"), PYTHONPATH=str(ROOT / "tools")),
    )
    assert p.returncode == 0 and 5 < int(p.stdout) < 20, p.stdout + p.stderr
    assert p.stderr.count("not kept for the next time") == 1 == len(p.stderr.splitlines()), p.stderr


def test_counts_are_added_up(llmc, tmp_path, monkeypatch):
    here, there = (tmp_path / "my cache" / "kernels").resolve(), "/tmp/other cache/kernels"
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "my cache"))
    for i, text in enumerate(
        [
            f"hit so {here}\nmiss so {here}\nhit emu {here}\nmiss so -\n",
            f"miss emu {here}\ndamaged so {here}\nmiss so {here}\nhit so {there}\n",
        ]
    ):
        (tmp_path / f"{i}").write_text(text)
    cmd = [sys.executable, str(ROOT / "tools/cache_stats.py")]
    p = subprocess.run(
        [*cmd, "--kinds", tmp_path / "0", tmp_path / "1"], capture_output=True, text=True
    )
    assert p.returncode == 0 and p.stdout == (
        "hits 2, misses 3, damaged 1; in caches of tests: hits 1, misses 1\n"
        "  emu: hits 1, misses 1\n  so: hits 1, misses 2, damaged 1\n  so in caches of tests: hits 1, misses 1\n"
    )
    here.mkdir(parents=True)
    kinds = {
        k["name"]: k
        for k in llmc.json("cache", env={"LLMC_CACHE_STATS": str(tmp_path / "1")})["kinds"]
    }
    assert (kinds["so"]["hits"], kinds["so"]["misses"], kinds["emu"]["misses"]) == (0, 1, 1)
    p = subprocess.run([*cmd, tmp_path / "none"], capture_output=True, text=True)
    assert p.returncode == 1 and p.stdout == ""


def test_test_runs_with_different_caches_do_not_share_a_link(tmp_path):
    """The folder of a test run links to the cache that was set before; a run with another cache
    does not change the link, because a compiler of the first run may be writing through it."""
    code = "import sys; sys.path.insert(0, 'tests'); import conftest, os; print(os.environ['LLMC_CACHE'])"
    own = [
        Path(
            subprocess.run(
                [sys.executable, "-c", code],
                cwd=ROOT,
                env=dict(os.environ, LLMC_CACHE=str(tmp_path / name)),
                check=True,
                capture_output=True,
                text=True,
            ).stdout.strip()
        )
        for name in "ab"
    ]
    assert own[0] != own[1]
    for folder, name in zip(own, "ab"):
        assert (folder / "kernels").resolve() == (tmp_path / name / "kernels").resolve()
        shutil.rmtree(folder)
