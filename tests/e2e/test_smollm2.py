"""SmolLM2-135M-Instruct (Q4_1, GGUF) against transformers' greedy continuations
(tests/golden/smollm2), token for token.

Another token is allowed only at a step whose two best logits differ by less than CLOSE; later
tokens are then not compared. LLMC_SMOLLM2 names the file; else tools/smollm2.sh has put it into the
cache."""

import hashlib
import json
import os
import sys

import pytest

from golden_run import ROOT
from test_goldens import RUNS

sys.path.insert(0, os.path.join(ROOT, "bindings", "python"))
CLOSE = 0.05
with open(os.path.join(ROOT, "tests", "golden", "smollm2", "greedy.json")) as f:
    GOLDEN = json.load(f)


# location used by tools/smollm2.sh; the tests' own cache is another
CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc")


@pytest.fixture(scope="module")
def model_file():
    path = os.environ.get("LLMC_SMOLLM2") or os.path.join(
        CACHE, "downloads", "SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    if not os.path.exists(path):
        pytest.skip("no SmolLM2: LLMC_SMOLLM2 is not set and tools/smollm2.sh has not run")
    with open(path, "rb") as g:
        assert hashlib.sha256(g.read()).hexdigest() == GOLDEN["model_sha256"]
    return path


def compare(case, tokens):
    for i, (got, want, gap) in enumerate(zip(tokens, case["tokens"], case["gaps"])):
        if got != want:
            assert gap < CLOSE, (
                f"{case['name']}: token {i} is {got}, expected {want}, which leads by {gap}"
            )
            return i
    return len(tokens)


# all cases on the best instruction set of this processor, some on the others
BEST = "v4" if RUNS["v4"] else "v3" if RUNS["v3"] else "generic"


@pytest.mark.parametrize(
    "device,arch,n_cases,n_new",
    [
        ("cpu", a, *((16, 24) if a == BEST else n))
        for a, n in (("v4", (0, 0)), ("v3", (4, 16)), ("generic", (2, 8)), ("amx", (4, 16)))
    ]
    + [("ref", None, 1, 3)],
)
def test_greedy(device, arch, n_cases, n_new, model_file):
    if arch and not RUNS[arch]:
        pytest.skip(f"this processor does not run {arch}")
    import llmc

    agreed = 0
    with (
        llmc.open(model_file, device=device, arch=arch, threads=1) as model,
        model.session(context=256) as session,
    ):
        for case in GOLDEN["cases"][:n_cases]:
            tokens = session.run(case["prompt"], max_tokens=n_new, ignore_eos=True)["tokens"]
            assert len(tokens) == n_new
            agreed += compare(case, tokens)
    # a close step may end a comparison, but most must be complete
    assert agreed >= 0.8 * n_cases * n_new


def test_prompts_tokenize_alike(model_file):
    import llmc

    with llmc.open(model_file, no_weights=True) as model:
        for case in GOLDEN["cases"]:
            assert model.tokenizer.encode(case["text"]) == case["prompt"], case["name"]
