"""A program that initialises MPI itself passes a communicator: four processes, two models of two
ranks each at a time, and messages of the program's own. The program is Python with ctypes; the C
example uses half of its processes."""

import ast
import os
import subprocess
import sys

import pytest

from test_mpi import mpi  # noqa: F401 (a fixture)
from test_ranks import MODELS
from waiting import HANG

PROGRAM = """
import ctypes as C, sys
openmpi = sys.argv[1] == "openmpi"
lib = C.CDLL(sys.argv[2], mode=C.RTLD_GLOBAL)
# a handle: the address of a symbol, or a number
handle = C.c_void_p if openmpi else C.c_int
world = handle(C.addressof(C.c_char.in_dll(lib, "ompi_mpi_comm_world"))) if openmpi else handle(0x44000000)
byte = handle(C.addressof(C.c_char.in_dll(lib, "ompi_mpi_byte"))) if openmpi else handle(0x4c00010d)
level, rank = C.c_int(), C.c_int()
assert lib.MPI_Init_thread(None, None, C.c_int(int(sys.argv[4])), C.byref(level)) == 0
lib.MPI_Comm_rank(world, C.byref(rank))
half = handle()
assert lib.MPI_Comm_split(world, C.c_int(rank.value % 2), rank, C.byref(half)) == 0
import llmc
def told(*what):  # a file for each rank: a launcher may put two ranks' output into one line
    with open(f"{sys.argv[5]}/told-{rank.value}", "w") as f:
        f.write(repr(what))
try:
    m = llmc.open(sys.argv[3], device="ref", random_weights=True, threads=1, mpi_comm=C.addressof(half))
except llmc.Error as e:
    told(rank.value, str(e))
    lib.MPI_Barrier(world)
    lib.MPI_Finalize()
    sys.exit(0)
with m:
    if m.info["rank"]:
        m.follow()
    else:
        prompt = [5 + rank.value, 6, 7, 8]
        with m.engine(seqs=1, context=64) as e:
            tokens = e.submit(prompt, max_tokens=8, ignore_eos=True).wait()["tokens"]
        told(rank.value, m.info["ranks"], tokens)
mine = C.c_char(rank.value)  # MPI is still the program's
everybody = C.create_string_buffer(4)
assert lib.MPI_Allgather(C.byref(mine), 1, byte, everybody, 1, byte, world) == 0
assert everybody.raw == bytes(range(4))
lib.MPI_Finalize()
"""


def start(mpi, tmp_path, level):  # noqa: F811
    path, program = tmp_path / "m.yaml", tmp_path / "program.py"
    path.write_text(MODELS["llama"])
    program.write_text(PROGRAM)
    folder = os.path.join(os.path.dirname(os.path.dirname(mpi.run)), "lib")
    names = ["libmpi.so.40"] if mpi.kind == "openmpi" else ["libmpi.so.12", "libmpich.so.12"]
    name = next(n for n in names if os.path.exists(os.path.join(folder, n)))
    p = subprocess.run(
        [
            mpi.run,
            *mpi.options,
            "-n",
            "4",
            sys.executable,
            str(program),
            mpi.kind,
            os.path.join(folder, name),
            str(path),
            str(level),
            str(tmp_path),
        ],
        env=mpi.env,
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, (p.stdout, p.stderr)
    return sorted(ast.literal_eval(f.read_text()) for f in tmp_path.glob("told-*"))


def test_a_communicator_of_the_program(mpi, tmp_path):  # noqa: F811
    import llmc

    got = start(mpi, tmp_path, 2)
    assert [g[:2] for g in got] == [(0, 2), (1, 2)]
    with (
        llmc.open(
            tmp_path / "m.yaml", device="ref", random_weights=True, threads=1, set=["parallel.tp=2"]
        ) as m,
        m.engine(seqs=1, context=64) as e,
    ):
        for rank, _, tokens in got:
            assert (
                tokens
                == e.submit([5 + rank, 6, 7, 8], max_tokens=8, ignore_eos=True).wait()["tokens"]
            )


def test_the_example_in_c(mpi, tmp_path):  # noqa: F811
    import llmc
    from golden_run import weights

    folder, lib = (
        os.path.dirname(os.path.dirname(mpi.run)),
        os.path.dirname(os.path.abspath(os.environ.get("LLMC_LIBRARY", "build/libllmc.so"))),
    )
    if not os.path.exists(os.path.join(folder, "include", "mpi.h")):
        pytest.skip("no header of MPI")
    g = weights.Golden("llama-smol")
    g.build(tmp_path)
    os.symlink(os.path.join(lib, "libllmc.so"), tmp_path / "libllmc.so.0")
    subprocess.run(
        [
            "gcc",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Iinclude",
            "-isystem",
            os.path.join(folder, "include"),
            "examples/mpi.c",
            f"-L{lib}",
            "-lllmc",
            f"-L{folder}/lib",
            "-lmpi",
            "-o",
            tmp_path / "mpi",
        ],
        check=True,
    )
    p = subprocess.run(
        [mpi.run, *mpi.options, "-n", "4", tmp_path / "mpi", tmp_path, "ref", "5", "6", "7"],
        env=mpi.env | {"LD_LIBRARY_PATH": f"{tmp_path}:{folder}/lib"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, (p.stdout, p.stderr)
    assert "4 processes, 6 together" in p.stdout
    with llmc.open(tmp_path, device="ref", set=["parallel.tp=2"]) as m, m.session() as s:
        tokens = s.run([5, 6, 7], max_tokens=12, ignore_eos=True)["tokens"]
    assert "2 ranks: " + " ".join(map(str, tokens)) in p.stdout


def test_mpi_that_threads_may_not_call(mpi, tmp_path):  # noqa: F811
    got = start(mpi, tmp_path, 0)
    if len(got) == 2 and len(got[0]) == 3:
        pytest.skip("this library gives more than it is asked for")
    assert len(got) == 4 and all("MPI_THREAD_SERIALIZED" in g[1] for g in got), got
