"""The check for machines with a GPU runs as far as the emulator takes it."""
import json
import os
import subprocess
import sys

import cuda_harness as H


def test_machine_stage(tmp_path):
    H._emulator()
    libs = H.BUILD / "emu"
    out = tmp_path / "r.json"
    p = subprocess.run([sys.executable, str(H.ROOT / "tests/gpu/gpu_check.py"), "--only", "machine,sanitize", "--seconds", "50", "--out", str(out)], capture_output=True,
                       text=True, timeout=120, env={**os.environ, "LLMC_CUDA_LIBDIR": str(libs), "LLMC_EMU_GPU": "sm_90a", "LLMC_EMU_CACHE": str(libs / "cache")})
    assert p.returncode == 0, p.stdout + p.stderr
    r = json.loads(out.read_text())
    assert r["failed"] == [] and r["machine"]["cc"] == 90 and r["machine"]["read_gbps"] > 0
