"""Configurations that differ from a golden model in one key, against transformers
(tests/golden/make_config_keys.py): each key is applied as transformers applies it, or refused."""

import json
import os

import numpy as np
import pytest

import llmc
from golden_run import ROOT, weights
from make_config_keys import project

with open(os.path.join(ROOT, "tests", "golden", "config-keys.json")) as f:
    EXPECTED = json.load(f)
TOLERANCE = 1e-4  # relative to the range of the unchanged model's logits
# llmc follows the code that the model was published with
OTHERWISE = {"deepseek_v2-lite": [{"norm_topk_prob": True}]}  # transformers drops the key
EVERY = "LLMC_CHECK_ALL" in os.environ


def logits(folder, golden):
    """Return the logits of all prompt tokens, on the reference."""
    settings = {"kv.dtype": "f32"} | golden.set
    n = len(golden.prompt)
    out = os.path.join(folder, "out")
    with llmc.open(folder, device="ref", threads=1, set=settings, out_dir=out) as model:
        with model.session(context=64, n_out=n) as session:
            rows = session.forward([(session.seq(), golden.prompt, n)])
            return np.array(rows).reshape(n, -1)


def sampled(variants):
    """Every variant, or those of the positions and each fifth other one."""
    about = ("rope_parameters", "rope_scaling", "partial_rotary_factor", "layer_types")
    return [
        v for i, v in enumerate(variants) if EVERY or i % 5 == 0 or any(k in v[0] for k in about)
    ]


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", EXPECTED)
def test_a_changed_key_is_applied_or_refused(name, tmp_path):
    g = weights.Golden(name)
    g.build(tmp_path)
    spread, wrong, refused = EXPECTED[name]["spread"], [], 0
    variants = [[{}, project(g.logits)], *sampled(EXPECTED[name]["variants"])]
    for change, want in variants:
        if change in OTHERWISE.get(name, ()):
            continue
        (tmp_path / "config.json").write_text(json.dumps(g.config | change))
        try:
            got = project(logits(str(tmp_path), g))
        except llmc.Error as e:
            assert change and str(e), (change, e)
            refused += 1
            continue
        error = float(np.abs(got - np.array(want)).max()) / spread
        if not error <= TOLERANCE:
            wrong.append(f"{json.dumps(change)}: off by {error:.1e} of the range")
    assert not wrong, f"{len(wrong)} of {len(variants)}, {refused} refused:\n" + "\n".join(wrong)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused(value, tmp_path):
    g = weights.Golden("qwen3-plain")
    g.build(tmp_path)
    text = json.dumps(g.config | {"rope_theta": "VALUE"}).replace('"VALUE"', value)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(llmc.Error, match=r"config\.json:1:\d+: error: not JSON: ") as e:
        llmc.open(tmp_path, no_weights=True)
    assert "finite" in str(e.value) or "overflow" in str(e.value)
