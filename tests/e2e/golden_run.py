"""Run a golden model of tests/golden/models through the command line and compare it with torch."""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path[:0] = [os.path.join(ROOT, "tests", "golden"), os.path.join(ROOT, "tests")]
import weights  # noqa: E402, F401 (other tests import it from here)
from waiting import HANG  # noqa: E402

LLMC = os.environ.get("LLMC", os.path.join(ROOT, "build", "llmc"))
TOLERANCE = 1e-5  # relative to the range of the logits


class Refused(Exception):
    pass


def run(folder, golden, *args, set=None, n=None, timeout=HANG):
    """Return (logits [n_prompt, vocab], new tokens); raise Refused if the command fails.

    The artifact stays in the folder; built kernels go to the cache that all tests share."""
    out = os.path.join(str(folder), "out.npy")
    cmd = [
        LLMC,
        "run",
        str(folder),
        "--tokens",
        ",".join(map(str, golden.prompt)),
        "--logits",
        out,
        "--json",
        "--ignore-eos",
        "-n",
        str(n or len(golden.greedy) or 1),
        "--artifact",
        tempfile.mkdtemp(dir=str(folder)),
        *golden.args,
        *args,
    ]
    for key, value in ({"kv.dtype": "f32"} | golden.set | (set or {})).items():
        cmd += ["--set", f"{key}={value}"]
    p = subprocess.run(cmd, capture_output=True, text=True, timeout=timeout)
    if p.returncode:
        raise Refused(f"exit {p.returncode}: {' '.join(cmd)}\n{p.stderr}")
    return np.load(out), json.loads(p.stdout)["tokens"]


def error(golden, logits):
    """Return the largest difference relative to the range of the golden logits, without rows of
    padding ids."""
    assert logits.shape == golden.logits.shape, (logits.shape, golden.logits.shape)
    assert np.isfinite(logits).all()
    return float(np.abs(logits - golden.logits).max() / (golden.logits.max() - golden.logits.min()))


def check(golden, logits, tokens, tolerance=TOLERANCE):
    e = error(golden, logits)
    worst = int(np.abs(logits - golden.logits).max(axis=1).argmax())
    first = int(
        (np.abs(logits - golden.logits).max(axis=1) > tolerance * np.ptp(golden.logits)).argmax()
    )
    assert e <= tolerance, (
        f"off by {e:.2e} of the range; worst at position {worst}, first at {first}"
    )
    if golden.greedy:
        assert tokens == golden.greedy
