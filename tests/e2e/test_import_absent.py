"""Missing keys of config.json get transformers' defaults; a list longer than the number of layers
is truncated."""

import json
import os
import subprocess

import pytest

from golden_run import LLMC, ROOT
from waiting import HANG, cpu_limit

# defaults of the configuration classes of transformers 5.23
GRANITE = {
    "rms_norm_eps": 1e-6,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "attention_multiplier": 1.0,
}
CASES = [
    (case, key, value)
    for case, defaults in (
        ("granite-tied", GRANITE),
        ("granite_swa-plain", GRANITE | {"rms_norm_eps": 1e-5}),
        ("granite_swa-moe", GRANITE),
        ("deepseek_v3-axk1", {"moe_layer_freq": 1}),
    )
    for key, value in defaults.items()
]


def described(folder, case, limit=None, **keys):
    """Return the description of the case's configuration with these keys; None removes a key."""
    with open(
        os.path.join(ROOT, "tests", "golden", "models", case, "config.json"), encoding="utf-8"
    ) as f:
        config = json.load(f) | keys
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    p = subprocess.run(
        [LLMC, "import", str(folder)],
        capture_output=True,
        text=True,
        timeout=HANG,
        preexec_fn=limit,
    )
    return p.stdout.replace(", every: 1}", "}") if p.returncode == 0 else "refused: " + p.stderr


@pytest.mark.parametrize("case,key,value", CASES)
def test_absent_is_the_default(case, key, value, tmp_path):
    more = {"first_k_dense_replace": 2} if key == "moe_layer_freq" else {}
    want = described(tmp_path, case, **more, **{key: value})
    assert not want.startswith("refused"), want
    assert described(tmp_path, case, **more, **{key: None}) == want


def test_lists_end_at_the_layers(tmp_path):
    text = described(
        tmp_path,
        "cohere2_moe-plain",
        limit=cpu_limit(2),
        layer_types=["full_attention"] * 65536,
        mlp_layer_types=["sparse"] * 65536,
    )
    assert "refused" not in text
