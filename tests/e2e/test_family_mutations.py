"""Import ignores no part of a checkpoint. Per family, an unknown key, an unknown tensor, a renamed
tensor and each value that the family file excludes must be refused. Unknown keys, and tensors
outside the layers, pass only with --allow-unknown-keys. Only import runs, so this is quick."""

import json
import os
import subprocess

import pytest
import yaml

from golden_run import LLMC, ROOT, weights
from test_goldens import ONE_EACH
from waiting import HANG

FAMILIES = os.path.join(ROOT, "configs", "families")


def imported(folder, *args):
    return subprocess.run(
        [LLMC, "import", str(folder), *args], capture_output=True, text=True, timeout=HANG
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            g = weights.Golden(name)
            g.build(folder)
            made[name] = g, folder
        return made[name]

    return get


def refused_values(family):
    """Yield (key, value) pairs that `expect` of the family file excludes."""
    with open(os.path.join(FAMILIES, family + ".yaml")) as f:
        expect = (yaml.safe_load(f).get("hf") or {}).get("expect") or {}
    for key, allowed in expect.items():
        if allowed in ("any", "given") or "." in key:
            continue
        given = [v for v in (allowed if isinstance(allowed, list) else [allowed]) if v is not None]
        if any(isinstance(v, bool) for v in given):
            yield key, not given[0]
        elif any(isinstance(v, str) for v in given):
            yield key, "something_else"
        else:
            yield key, 77


@pytest.mark.sample(14)
@pytest.mark.parametrize("name", ONE_EACH.values())
def test_a_changed_checkpoint_shows(name, models):
    g, folder = models(name)
    plain = imported(folder)
    assert plain.returncode == 0 and "does not use" not in plain.stderr, plain.stderr
    # an unknown key
    config = folder / "config.json"

    def changed(**more):
        return (
            dict(g.config, text_config=g.config["text_config"] | more)
            if "text_config" in g.config
            else g.config | more
        )

    config.write_text(json.dumps(changed(frobnication_factor=2)))
    p = imported(folder)
    assert (
        p.returncode != 0
        and "does not use the key frobnication_factor = 2" in p.stderr
        and "--allow-unknown-keys" in p.stderr
    )
    p = imported(folder, "--allow-unknown-keys")
    assert (
        p.returncode == 0
        and p.stdout == plain.stdout
        and "does not use the key frobnication_factor = 2: ignored" in p.stderr
    ), p.stderr
    # values that the family file excludes
    for key, value in refused_values(g.family):
        config.write_text(json.dumps(changed(**{key: value})))
        p = imported(folder)
        assert p.returncode != 0 and key in p.stderr, f"{key} = {value}: {p.stderr}"
    config.write_text(json.dumps(g.config))
    # each tensor of the first layer renamed
    path = folder / "model.safetensors"
    good = path.read_bytes()
    size = int.from_bytes(good[:8], "little")
    head = json.loads(good[8 : 8 + size])
    for tensor in [
        t
        for t in head
        if ".0." in t
        and not t.endswith(
            ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias", "act_fn.beta", "act_fn.eps")
        )
        and "expert" not in t
    ][:6]:
        text = json.dumps(
            {(k[:-1] + "q" if k == tensor else k): v for k, v in head.items()}
        ).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + good[8 + size :])
        p = imported(folder)
        assert p.returncode != 0 and (tensor in p.stderr or tensor[:-1] + "q" in p.stderr), (
            f"{tensor}: {p.stderr}"
        )
    # an additional tensor outside the layers
    text = json.dumps(
        head | {"model.frobnicator.weight": dict(dtype="F32", shape=[0], data_offsets=[0, 0])}
    ).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + good[8 + size :])
    p = imported(folder)
    assert ("text_config" in g.config) == (
        p.returncode == 0
    ) and "model.frobnicator.weight" in p.stderr, p.stderr
    assert imported(folder, "--allow-unknown-keys").returncode == 0
    path.write_bytes(good)


@pytest.mark.parametrize(
    "name,key,value",
    [
        ("laguna-plain", "num_attention_heads_per_layer", [6, 9, 6, 6]),
        ("step3p5-plain", "rope_theta", [5000.0, 50.0, 60.0, 5000.0, 50.0] * 2),
        ("step3p5-plain", "partial_rotary_factors", [0.5, 1.0, 0.5, 0.5, 1.0] * 2),
        ("gemma3n-plain", "intermediate_size", [84, 84, 60, 84, 84, 84, 84]),
    ],
)
def test_layers_of_one_kind_that_differ(name, key, value, tmp_path):
    """Layers of one kind share one number; a different one in the middle must be refused, not
    ignored."""
    g = weights.Golden(name)
    g.build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(g.config | {key: value}))
    p = imported(tmp_path)
    assert (
        p.returncode != 0
        and key in p.stderr
        and "have different values: llmc supports one value" in p.stderr
    ), p.stderr


@pytest.mark.parametrize(
    "name,like",
    [("qwen3-plain", "qwen3"), ("gpt_oss-plain", "gpt_oss"), ("deepseek_v3-plain", "deepseek_v")],
)
def test_an_unknown_family_names_the_nearest(name, like, tmp_path):
    g = weights.Golden(name)
    g.build(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps(
            g.config
            | dict(
                model_type="frobnicator",
                frobnication_factor=2,
                attention_dropout=0.5,
                summary_type="mean",
            )
        )
    )
    p = imported(tmp_path)
    assert p.returncode != 0 and "no family file matches model_type = frobnicator" in p.stderr
    assert (
        f"the most similar family is {like}" in p.stderr
        and "it does not use the keys" in p.stderr
        and "frobnication_factor" in p.stderr
        and "dropout" not in p.stderr
    ), p.stderr
