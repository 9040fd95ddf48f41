"""The sample of make check contains every case that is the only one of its purpose."""

import os
import re
import subprocess
import sys

import pytest

from waiting import HANG

COLLECT = """
import pytest, sys
class Chosen:
    def pytest_collection_finish(self, session):
        for item in session.items:
            for mark in item.iter_markers("covers"):
                print("covers", *mark.args)
            if hasattr(item, "callspec"):
                print("case", item.path.name, item.originalname, *(str(v) for v in item.callspec.params.values()))
sys.exit(pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", "tests/cuda"], plugins=[Chosen()]))
"""


@pytest.fixture(scope="module")
def chosen():
    """Return the source lines of the cases in tests/cuda that make check runs."""
    env = {
        k: v
        for k, v in os.environ.items()
        if k != "LLMC_CHECK_ALL" and not k.startswith("PYTEST_XDIST")
    }
    p = subprocess.run(
        [sys.executable, "-c", COLLECT], capture_output=True, text=True, env=env, timeout=HANG
    )
    assert p.returncode == 0, p.stdout[-4000:] + p.stderr
    return p.stdout.splitlines()


def test_every_storage_type_has_its_cases(chosen):
    text = open("formats/dtype.h").read()
    types = re.findall(
        r'\bX\(\w+, "(\w+)", \d+, \d+, -?\d+, ".*?"\)', text.split("#define DTYPE_LIST")[0]
    )
    assert len(types) >= 52 and {"f32", "q6_k", "mxfp4", "iq1_m", "m8_64"} <= set(types)
    wanted = {(t, purpose) for t in types for purpose in ("decode", "small", "prefill", "experts")}
    covered = {tuple(line.split()[1:]) for line in chosen if line.startswith("covers ")}
    assert not wanted - covered, f"no chosen case: {sorted(wanted - covered)}"
    assert not covered - wanted, f"no such type or purpose: {sorted(covered - wanted)}"


@pytest.mark.parametrize(
    "file,test,row",
    [
        ("test_cuda_attention.py", "test_portable", "low"),
        ("test_cuda_attention.py", "test_decode", "low"),
        ("test_cuda_attention.py", "test_decode", "many"),
        ("test_flash.py", "test_whole_prompts", "low"),
        ("test_flash.py", "test_many_sequences", None),
        ("test_cuda_mla.py", "test_portable", "low"),
        ("test_cuda_mla.py", "test_decode_attends", "low"),
        ("test_cuda_mla.py", "test_wgmma", "low"),
        ("test_cuda_mla.py", "test_wgmma", "pages"),
        ("test_cuda_mla.py", "test_mixed_attends", "low"),
    ],
)
def test_extreme_rows_are_chosen(chosen, file, test, row):
    """For each attention kernel the sample has scores far below zero, more sequences than lanes in
    a warp, and lengths around a page boundary."""
    cases = [line.split()[3:] for line in chosen if line.startswith(f"case {file} {test} ")]
    found = [c for c in cases if row is None or row in c]
    assert found, cases
    if file == "test_flash.py" or (file, test) == (
        "test_cuda_mla.py",
        "test_mixed_attends",
    ):  # required for the mma kernel and the wgmma kernel
        archs = {a for c in found for a in c if a.startswith("sm_")}
        assert len(archs) == 2, archs
    if (file, test) == ("test_cuda_attention.py", "test_decode"):
        assert {"attention_decode", "attention_decode_sm80"} <= {v for c in found for v in c}
