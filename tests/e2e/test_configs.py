"""configs/: values equal the published configurations, and every description compiles for every
target.

Each description must resolve to what import makes of the model's config.json
(tests/golden/config-fixtures), also after transformers has rewritten that file, if it has the
class. Differences from the class's defaults are listed here."""

import json
import os
import re
import shutil
import subprocess

import pytest
import yaml

from golden_run import LLMC, ROOT
from waiting import HANG

FIXTURES = os.path.join(ROOT, "tests", "golden", "config-fixtures")
CLASSES = json.load(open(os.path.join(ROOT, "tests", "golden", "config-classes.json")))
# description: folder of its config.json
MODELS = {
    "deepseek-v2-lite": "deepseek-v2-lite",
    "deepseek-v2": "deepseek-v2",
    "deepseek-v3": "deepseek-v3-bf16",
    "mixtral-8x7b": "mixtral-8x7b",
    "qwen3-30b-a3b": "qwen3-30b-a3b",
    "gemma2-9b": "gemma-2-9b",
    "phi3-mini": "phi-3-mini-4k",
    "glm4-9b": "glm-4-9b-0414",
    "chatglm3-6b": "chatglm3-6b",
    "baichuan2-13b": "baichuan2-13b",
    "bloom-7b1": "bloom-7b1",
    "gpt-oss-20b": "gpt-oss-20b",
    "qwen3.5-9b": "qwen3.5-9b",
    "qwen3.5-35b-a3b": "qwen3.5-35b-a3b",
    "gemma4-26b-a4b": "gemma4-26b-a4b",
    "llama2-7b": "llama-2-7b",
    "llama2-70b": "llama-2-70b",
    "llama3.2-1b": "llama-3.2-1b",
    "mistral-7b": "mistral-7b-v0.1",
    "qwen2.5-7b": "qwen2.5-7b-instruct",
    "qwen3-8b": "qwen3-8b",
    "smollm2-135m": "smollm2-135m-instruct",
}
# class, and values of the published model that differ from its defaults
YARN = {
    "rope_theta": 10000.0,
    "rope_type": "yarn",
    "type": "yarn",
    "factor": 40.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 4096,
}
QWEN35_ROPE = {
    "mrope_interleaved": True,
    "mrope_section": [11, 11, 10],
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000,
    "rope_type": "default",
}
DIFFERENT = {
    "deepseek-v3-bf16": (
        "DeepseekV3Config",
        {
            "max_position_embeddings": 163840,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "mixtral-8x7b": (
        "MixtralConfig",
        {"max_position_embeddings": 32768, "router_aux_loss_coef": 0.02},
    ),
    "gemma-2-9b": (
        "Gemma2Config",
        {
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_hidden_layers": 42,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        },
    ),
    "phi-3-mini-4k": ("Phi3Config", {"sliding_window": 2047}),
    "glm-4-9b-0414": ("Glm4Config", {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}),
    "qwen3-30b-a3b": (
        "Qwen3MoeConfig",
        {
            "num_hidden_layers": 48,
            "max_position_embeddings": 40960,
            "head_dim": 128,
            "norm_topk_prob": True,
            "max_window_layers": 48,
            "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
        },
    ),
    "gpt-oss-20b": (
        "GptOssConfig",
        {"num_hidden_layers": 24, "num_local_experts": 32, "router_aux_loss_coef": 0.9},
    ),
    "qwen3.5-9b": (
        "Qwen3_5TextConfig",
        {"max_position_embeddings": 262144, "rope_parameters": QWEN35_ROPE},
    ),
    "qwen3.5-35b-a3b": (
        "Qwen3_5MoeTextConfig",
        {"max_position_embeddings": 262144, "rope_parameters": QWEN35_ROPE},
    ),
    "gemma4-26b-a4b": (
        "Gemma4TextConfig",
        {
            "hidden_size": 2816,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "intermediate_size": 2112,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 128,
            "top_k_experts": 8,
            "moe_intermediate_size": 704,
            "sliding_window": 1024,
            "max_position_embeddings": 262144,
            "final_logit_softcapping": 30.0,
            "per_layer_config": {
                f"{i:02}": {"head_dim": 512, "num_key_value_heads": 2} for i in range(5, 30, 6)
            },
        },
    ),
}
# keys that do not describe the model: of the library, of training, of tokens for other tasks
SILENT = {
    "dtype",
    "torch_dtype",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "layer_types",
    "use_cache",
    "initializer_range",
    "_attn_implementation",
    "auto_map",
    "ep_size",
    "aux_loss_alpha",
    "seq_aux",
    "moe_layer_freq",
    "scoring_func",
    "topk_method",
}
ROWS = re.findall(
    r'TARGET_(REF|CPU|CUDA), +"(\w+)"', open(os.path.join(ROOT, "plan", "target.c")).read()
)
TARGETS = {kind.lower(): [isa for k, isa in ROWS if k == kind] for kind in ("REF", "CPU", "CUDA")}


def described(source, *args):
    p = subprocess.run(
        [LLMC, "compile", source, "--dump", "spec", "-q", *args],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=ROOT,
    )
    assert p.returncode == 0, p.stderr
    spec = yaml.safe_load(p.stdout)
    for key in ("name", "weights", "storage", "dtype"):
        spec.pop(key, None)
    return spec


def imported(folder, tmp_path):
    p = subprocess.run(
        [LLMC, "import", folder, "-o", str(tmp_path / "m.yaml")],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    return described(str(tmp_path / "m.yaml"))


@pytest.mark.parametrize("model", MODELS)
def test_numbers_are_the_published_ones(model, tmp_path):
    folder = os.path.join(FIXTURES, MODELS[model])
    own = described(f"configs/{model}.yaml")
    if model == "llama3.2-1b":  # the description also names Instruct's end-of-sequence ids
        assert own["text"]["eos"][0] == 128001
        own["text"]["eos"] = [128001]
    assert own == imported(folder, tmp_path)
    again = os.path.join(folder, "transformers.json")
    if os.path.exists(again):
        (tmp_path / "t").mkdir()
        shutil.copy(again, tmp_path / "t" / "config.json")
        if os.path.exists(os.path.join(folder, "generation_config.json")):
            shutil.copy(os.path.join(folder, "generation_config.json"), tmp_path / "t")
        assert own == imported(str(tmp_path / "t"), tmp_path)


@pytest.mark.parametrize("name", DIFFERENT)
def test_fixtures_are_the_classes_of_transformers(name):
    """A mistyped number differs from the class's default without being listed."""
    folder = os.path.join(FIXTURES, name)
    again = os.path.join(folder, "transformers.json")
    have = json.load(open(again if os.path.exists(again) else os.path.join(folder, "config.json")))
    cls, numbers = DIFFERENT[name]
    default = CLASSES[cls]
    differs = {
        k: v
        for k, v in have.items()
        if k not in SILENT and v != default.get(k) and not (v is None and k not in default)
    }
    assert differs == numbers


def test_the_fixtures_are_current():
    """LLMC_ORACLE names a Python that has transformers."""
    python = os.environ.get("LLMC_ORACLE")
    if not python:
        pytest.skip("LLMC_ORACLE names no Python with transformers")
    p = subprocess.run(
        [python, os.path.join(ROOT, "tests", "golden", "make_configs.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stdout + p.stderr


def test_all_descriptions_are_here():
    listed = {f[:-5] for f in os.listdir(os.path.join(ROOT, "configs")) if f.endswith(".yaml")} - {
        "pretokenizers",
        "tiny",
    }
    assert listed == set(MODELS) | {"llama3-8b", "llama3-70b"}  # these have no config.json here
    for model in listed - {
        "llama2-7b",
        "llama2-70b",
        "llama3-8b",
        "llama3-70b",
        "llama3.2-1b",
        "mistral-7b",
        "qwen2.5-7b",
        "qwen3-8b",
        "smollm2-135m",
    }:
        with open(os.path.join(ROOT, "configs", model + ".yaml")) as f:
            comments = " ".join(line.lstrip("# \n").strip() for line in f if line.startswith("#"))
        assert "Numbers: config.json of " in comments, model


NEW = list(MODELS)[:15]


@pytest.mark.parametrize("model", NEW)
def test_compiles_for_every_target(model, tmp_path):
    """Four layers per target, since the other layers repeat them."""
    path = os.path.join(ROOT, "configs", model + ".yaml")
    for target, archs in TARGETS.items():
        p = subprocess.run(
            [
                LLMC,
                "compile",
                path,
                "-o",
                str(tmp_path / target),
                "-q",
                "--target",
                target,
                "--set",
                "n_layers=4",
            ]
            + (["--arch", ",".join(archs)] if target != "ref" else []),
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert p.returncode == 0, p.stderr
        plans = [
            f
            for f in os.listdir(tmp_path / target)
            if f.startswith("plan-") and f.endswith(".json")
        ]
        assert len(plans) == len(archs) > 0


@pytest.mark.parametrize("model", NEW)
def test_memory_of_the_whole_model(model):
    p = subprocess.run(
        [
            LLMC,
            "plan",
            os.path.join(ROOT, "configs", model + ".yaml"),
            "--json",
            "--length",
            "4096",
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    # billions of parameters, as published
    billions = {
        "deepseek-v2-lite": 15.7,
        "deepseek-v2": 236,
        "deepseek-v3": 671,
        "mixtral-8x7b": 46.7,
        "qwen3-30b-a3b": 30.5,
        "gemma2-9b": 9.24,
        "phi3-mini": 3.82,
        "glm4-9b": 9.4,
        "chatglm3-6b": 6.24,
        "baichuan2-13b": 13.9,
        "bloom-7b1": 7.07,
        "gpt-oss-20b": 20.9,
        "qwen3.5-9b": 8.95,
        "qwen3.5-35b-a3b": 34.7,
        "gemma4-26b-a4b": 25.2,
    }[model]
    assert json.loads(p.stdout)["params"] / 1e9 == pytest.approx(billions, rel=0.006)
