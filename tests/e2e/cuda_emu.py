"""Return the environment that runs llmc on the GPU emulator; build the emulator if it is
missing."""

import os
import subprocess

import pytest

from golden_run import ROOT

BUILD = os.environ.get("LLMC_EMU_BUILD", os.path.join(ROOT, "build"))
LIBS = os.path.join(BUILD, "emu")


def environment(arch="sm_90a", mode="fast", seed=0, **more):
    """Return variables under which llmc finds an emulated GPU of this architecture."""
    if not os.path.exists(os.path.join(LIBS, "libcuda.so.1")):
        if subprocess.run(["make", "-s", f"BUILD={BUILD}", "emu-lib"], cwd=ROOT).returncode:
            pytest.fail("the emulator does not build")
    env = {
        "LLMC_CUDA_LIBDIR": LIBS,
        "LLMC_EMU_GPU": arch,
        "LLMC_EMU_MODE": mode,
        "LLMC_EMU_SEED": str(seed),
        "LLMC_COMM_TIMEOUT": "3600",
        "LLMC_NCCL": "never",
        "LLMC_PEER_SUMS": "one-shot",
    }
    return env | {k: str(v) for k, v in more.items()}
