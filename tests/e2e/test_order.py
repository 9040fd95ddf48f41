"""Ordering of the runtime's work on an emulated GPU in checking mode. One engine moves pages to
host memory and back, uses window pages, splits prompts into more chunks than the step ring has
entries, and has adapters and masks. A missing wait is a finding of the emulator; expected tokens
come from the reference interpreter."""

import json
import os
import subprocess
import sys

import pytest

from cuda_emu import environment
from golden_run import ROOT
from waiting import HANG

sys.path.insert(0, os.path.join(ROOT, "tests", "serve"))
import tiny_model  # noqa: E402

SCRIPT = """
import json, sys, llmc
folder, device, *adapters = sys.argv[1:]
pages = {"kv.host": "1M"} if device == "cuda" else {}
with llmc.open(folder, device=device, set={"kv.dtype": "f32", "attention.window": "40", "attention.window_layers": "[0]", "adapters.slots": "2", "adapters.rank": "4", **pages}) as m:
    numbers = [0] + [m.load_adapter(a) for a in adapters]
    grammar = llmc.Grammar(m.tokenizer, "regex", "([a-f][0-4]){3,6}")
    prompts = [[5 + (i * 7 + k * 11) % 200 for k in range(n)] for i, n in enumerate((70, 97, 40))]
    params = [dict(max_tokens=3, ignore_eos=True, adapter=numbers[1]), dict(max_tokens=4, grammar=grammar), dict(max_tokens=4, ignore_eos=True, adapter=numbers[2])]
    few = dict(kv_tokens=160) if device == "cuda" else {}  # five pages: each prompt takes those of the others
    with m.engine(context=128, seqs=3, chunk=8, **few) as e:
        turns = [[e.submit(p, **k).wait()["tokens"] for p, k in zip(prompts, params)]]
        crowd = [e.submit(p, **k) for p, k in zip(prompts, params)]
        turns.append([r.wait()["tokens"] for r in crowd])
        stats = e.stats()
print(json.dumps([turns, stats]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("order")
    path = tiny_model.build(folder / "model")
    return [
        path,
        *(tiny_model.adapter(str(folder / n), path, i) for i, n in enumerate(("low", "high"))),
    ]


def run(model, device, env):
    p = subprocess.run(
        [sys.executable, "-c", SCRIPT, model[0], device, *model[1:]],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def expected(model):
    (alone, together), _ = run(model, "ref", {})
    assert alone == together
    return alone


def test_pages_chunks_adapters_and_masks(model, expected):
    turns, stats = run(model, "cuda", environment("sm_90a", mode="check", seed=3))
    assert turns == [expected] * 2
    assert (
        stats["host_in"] >= 64
        and stats["host_out"] >= stats["host_in"]
        and stats["prefix_hits"] >= 64
        and stats["failed"] == 0
    )
