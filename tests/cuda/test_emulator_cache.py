"""Objects of the emulated GPU in the cache of built code: cached by content, independent of the
emulator's folder. With a damaged, disabled or full cache, kernels still load."""

import os
import shutil
import subprocess
import sys

import cuda_harness as H
import cache_stats
import pytest
from small_disk import small_disk

pytestmark = pytest.mark.skipif(H.REAL, reason="of the emulator")
KERNEL = 'extern "C" __global__ void answer(int *y) { if (!threadIdx.x) y[0] = %d; }'
LOAD = """
import sys
sys.path.insert(0, "tests/cuda")
import ctypes as C, numpy as np, cuda_harness as H
d = H.Device("sm_90a", sys.argv[1], 0, 4)
for text in sys.argv[2:]:
    m, y = d.module(text, "answer.cu"), d.alloc(4)
    arg = (C.c_uint64 * 1)(y)
    d.launch(m, "answer", [1], 32, 0, 1, False, arg)
    d.ok("cuCtxSynchronize")
    print(int(d.down(y, 1, np.int32)[0]))
"""


@pytest.fixture
def load(tmp_path):
    """Loads and runs kernels in a process of its own and returns what they store; lookups and
    stderr are in load.counted and load.err."""
    H._emulator()

    def run(*numbers, mode="fast", build=H.BUILD, cmd=(), **env):
        stats = tmp_path / "stats"
        stats.unlink(missing_ok=True)
        env = dict(
            os.environ,
            LLMC_EMU_CACHE=str(tmp_path / "cache"),
            LLMC_EMU_BUILD=str(build),
            LLMC_CACHE_STATS=str(stats),
            PYTHONPATH="tests:bindings/python",
            **env,
        )
        p = subprocess.run(
            [*cmd, sys.executable, "-c", LOAD, mode, *[KERNEL % n for n in numbers]],
            cwd=H.ROOT,
            env=env,
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, p.stderr
        run.counted, run.err = dict((cache_stats.total([stats]) or {}).get("emu", {})), p.stderr
        return [int(x) for x in p.stdout.split()]

    return run


def test_compiled_once_per_mode(load):
    assert load(1, 2) == [1, 2] and load.counted == {"miss": 2, "hit": 2}  # NVRTC, then the driver
    assert load(1, 2) == [1, 2] and load.counted == {"hit": 4}
    assert load(1, mode="check") == [1] and load.counted == {"miss": 1, "hit": 1}
    assert load(1, mode="check") == [1] and load.counted == {"hit": 2}


REFUSED = """
import sys
sys.path.insert(0, "tests/cuda")
import cuda_harness as H
try:
    H.Device("sm_90a", "fast", 0, 4).module(sys.argv[1], "answer.cu")
except H.Finding as e:
    print(e)
"""


def refusal(tmp_path, text, **env):
    """Messages about a source, and the cache's counts of this process."""
    stats = tmp_path / "stats"
    stats.unlink(missing_ok=True)
    p = subprocess.run(
        [sys.executable, "-c", REFUSED, text],
        cwd=H.ROOT,
        env={
            **os.environ,
            "LLMC_EMU_CACHE": str(tmp_path / "cache"),
            "LLMC_EMU_BUILD": str(H.BUILD),
            "LLMC_CACHE_STATS": str(stats),
            "PYTHONPATH": "tests:bindings/python",
            **env,
        },
        capture_output=True,
        text=True,
    )
    assert p.returncode == 0, p.stderr
    return p.stdout, {k: dict(v) for k, v in cache_stats.total([stats]).items()}


def test_messages_of_a_failed_compilation_are_cached(tmp_path):
    H._emulator()
    wrong = KERNEL.replace("%d", "no_such_name")
    text, counted = refusal(tmp_path, wrong)
    assert "answer.cu:1:" in text and "no_such_name" in text and counted == {"emu": {"miss": 1}}
    assert refusal(tmp_path, wrong) == (text, {"log": {"hit": 1}})
    # the error of a compiler that does not start is not a message about the source
    for _ in range(2):
        text, counted = refusal(tmp_path, wrong, LLMC_EMU_CXX="/nonexistent")
        assert "no_such_name" not in text and counted == {"emu": {"miss": 1}}


def test_the_folder_of_the_emulator_does_not_matter(load, tmp_path):
    load(1)
    shutil.copytree(H.BUILD / "emu", tmp_path / "build" / "emu", symlinks=True)
    assert load(1, build=tmp_path / "build") == [1] and load.counted == {"hit": 2}
    # the emulator's own code is part of the key
    with open(tmp_path / "build" / "emu" / "include" / "emu_math.h", "a") as f:
        f.write("\n")
    assert load(1, build=tmp_path / "build") == [1] and load.counted == {"miss": 1, "hit": 1}


def test_damaged_objects_are_compiled_again_with_one_warning(load, tmp_path):
    load(1, 2)
    for path in (tmp_path / "cache" / "kernels").glob("*.emu"):
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
    assert load(1, 2) == [1, 2] and load.counted == {"damaged": 2, "miss": 2, "hit": 2}
    assert load.err.count("damaged or cut off: it is built again") == 1
    assert load(1, 2) == [1, 2] and load.counted == {"hit": 4} and "damaged" not in load.err


def test_switched_off(load, tmp_path):
    (tmp_path / "tmp").mkdir()
    assert load(1, 1, LLMC_CACHE_SIZE="0", TMPDIR=str(tmp_path / "tmp")) == [1, 1]
    assert load.counted == {"miss": 2} and load.err == ""
    assert not (tmp_path / "cache").exists() and list((tmp_path / "tmp").iterdir()) == []


def test_a_cache_that_takes_no_files_is_one_warning(load, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert load(1, 2) == [1, 2]
    assert load.err.count("objects are not cached") == 1


def test_a_full_disk_is_one_warning(load, tmp_path):
    """One object fits; kernels run from a folder of the process, which is deleted afterwards."""
    for name in "cache", "tmp":
        (tmp_path / name).mkdir()
    disk = small_disk(tmp_path / "cache")
    if disk is None:
        pytest.skip("no mounts in a namespace here (unshare)")
    assert load(*range(6), cmd=disk, TMPDIR=str(tmp_path / "tmp")) == list(range(6))
    assert load.counted["hit"] >= 1 and load.counted["hit"] + load.counted["miss"] == 12
    assert (
        load.err.count("No space left on device: objects are not cached")
        == 1
        == len(load.err.splitlines())
    ), load.err
    assert list((tmp_path / "tmp").iterdir()) == []
