"""GGUF files of many families as llama.cpp's converter writes them, against transformers on the
same weights (tests/golden/make_family_gguf.py)."""

import glob
import json
import os
import subprocess

import numpy as np
import pytest

from golden_run import LLMC, ROOT, TOLERANCE
from waiting import HANG

FOLDER = os.path.join(ROOT, "tests", "golden", "gguf-families")
CASES = sorted(os.path.basename(p)[:-5] for p in glob.glob(os.path.join(FOLDER, "*.gguf")))


def test_all_are_there():
    assert len(CASES) >= 25


@pytest.mark.parametrize("name", CASES)
def test_reference(name, tmp_path):
    g = np.load(os.path.join(FOLDER, name + ".npz"))
    out = str(tmp_path / "out.npy")
    p = subprocess.run(
        [
            LLMC,
            "run",
            os.path.join(FOLDER, name + ".gguf"),
            "--device",
            "ref",
            "--tokens",
            ",".join(map(str, g["prompt"])),
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            str(len(g["greedy"])),
            "--set",
            "kv.dtype=f32",
            "--artifact",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    assert "warning" not in p.stderr, p.stderr
    got, want = np.load(out), g["logits"]
    assert got.shape == want.shape and np.abs(got - want).max() <= TOLERANCE * np.ptp(want)
    assert json.loads(p.stdout)["tokens"] == g["greedy"].tolist()
