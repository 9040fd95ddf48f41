"""Tiny models of every family, from the model folder to logits and greedy tokens, against
transformers (tests/golden).

The reference runs all of them. The kernels of each instruction set run a selection that covers all
primitives, since each further model costs the compilation of its kernels."""

import json
import os
import subprocess

import numpy as np
import pytest

from processor import RUNS

from golden_run import LLMC, TOLERANCE, Refused, check, error, run, weights

import quant_format_values  # see golden_run

CASES = weights.cases()
ONE_EACH = {}
for case in CASES:
    ONE_EACH.setdefault(case.split("-")[0], case)


CPU = {  # case: instruction sets
    "llama-smol": "v3 v4 vnni amx",
    "llama-bias-linear-bf16": "generic v3",
    "mistral-window": "v3",
    "qwen2-windows": "v4",
    "qwen3-bias-tied": "v3",
    "gemma2-caps": "generic v3",
    "gemma3-layers-bf16": "v4 amx",
    "phi3-longrope-long": "v3",
    "mixtral-bf16": "v3",
    "mixtral-window": "v4",
    "qwen3_moe-renorm": "generic amx",
    "qwen2_moe-sparse": "v4",
    "deepseek_v2-groups": "v3",
    "deepseek_v3-plain": "generic v4",
    "deepseek_v2-dense-bf16": "generic",
    "deepseek_v3-glm5-shares": "v4",
    "deepseek_v2-lite": "v4",
    "deepseek_v3-one-group-bf16": "v3",
    "deepseek_v3-yarn": "v4",
    "glm4-bias": "v3",
    "bloom-post-residual-bf16": "generic",
    "bloom-six-heads": "v3",
    "gpt2-inner": "v3",
    "gpt_neox-parallel": "v4",
    "baichuan-alibi": "v4",
    "chatglm1-plain": "v3 v4",
    "chatglm2-bias": "generic",
    "granite-tied": "v4",
    "ernie4_5_moe-plain": "v3",
    "gpt_oss-plain": "generic v4 amx",
    "gpt_oss-modern-bf16": "v3",
    "olmo2-olmo3-yarn": "v3",
    "hunyuan_v1-alpha": "v4",
    "nemotron-biases": "v4",
    "apertus-plain": "v3",
    "qwen3_next-plain": "v3 v4",
    "qwen3_next-one-tap-more": "generic",
    "qwen3_5-modern-bf16": "v4",
    "granitemoehybrid-plain": "generic v4",
    "granitemoehybrid-dense": "v3",
    "granitemoehybrid-all-mamba": "v4",
    "nemotron_h-plain": "v4",
    "nemotron_h-latent-modern-bf16": "v3",
    "nemotron_h-mixtures": "generic",
    "bamba-bias": "v4",
    "falcon_h1-plain": "v4",
    "mamba2-bias": "v3",
    "mamba-plain": "generic v4",
    "falcon_mamba-auto": "v3",
    "jamba-plain": "v4",
    "zamba2-plain": "generic",
    "zamba2-adapters": "v4",
    "gemma4-small": "v4",
    "gemma4-experts": "v3",
    "mistral-temperature": "v3",
    "mistral4-temperature": "v4",
    "mimo_v2-plain": "v3",
    "lfm2_moe-plain": "v3",
    "olmo_hybrid-rope": "v4",
    "kimi_linear-groups": "v4",
    "kimi_linear-plain": "generic",
    "llama4-plain": "v4",
    "step3p5-plain": "v4",
    "laguna-element": "v3",
    "gemma3n-plain": "v4",
    "bailing_moe2-plain": "v3",
    "minimax_m3-plain": "v3",
    "deepseek-plain": "v3",
    "orion-plain": "v4",
}
if os.environ.get("LLMC_CHECK_ALL"):
    CPU = (
        {c: "v4" for c in CASES}
        | CPU
        | {
            c: " ".join(RUNS)
            for c in CASES
            if c.split("-")[0]
            in ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3")
        }
    )


# Every op of any golden, and nearly every attribute, is in one of these. make check runs only them
# on the emulated GPU, as each costs the compilation of ten or more kernels; make check-all runs
# every golden there.
CHOICE = [
    "mistral4-bf16",
    "qwen3_5-modern-bf16",
    "moss-whole-rotary",
    "minimax_m2-modern-bf16",
    "gpt2-gelu-bf16",
    "gpt_oss-all-experts",
    "apertus-bias",
    "gemma4-experts",
    "lfm2_moe-all",
    "baichuan-alibi",
    "zamba2-adapters",
    "mamba-plain",
    "deepseek_v3-glm5-shares",
]
QUICK = "LLMC_CHECK_QUICK" in os.environ  # make quick runs only these, on each target
if QUICK:
    CPU = {c: " ".join(RUNS) for c in CHOICE}


def test_every_family_has_three():
    families = [c.split("-")[0] for c in CASES]
    assert len(set(families)) == 106
    assert all(families.count(f) >= 3 for f in families)


@pytest.mark.parametrize("name", CHOICE if QUICK else CASES)
def test_reference(name, tmp_path):
    g = weights.Golden(name)
    g.build(tmp_path)
    check(g, *run(tmp_path, g, "--device", "ref"))


@pytest.mark.sample(12)
@pytest.mark.parametrize("name", [n for f, n in ONE_EACH.items() if f != "chatglm1"])
def test_reference_in_chunks(name, tmp_path):
    """Prompts in chunks of seven tokens. chatglm1 is prefilled in one chunk, as its prompt tokens
    attend to each other."""
    g = weights.Golden(name)
    g.build(tmp_path)
    check(g, *run(tmp_path, g, "--device", "ref", "--chunk", "7"))


def test_experts_stored_transposed(tmp_path):
    """Published files of Qwen3-VL MoE store [experts, in, out]; transformers 5 writes [experts,
    out, in]."""
    g = weights.Golden("qwen3_vl_moe-plain")
    g.build(tmp_path)
    path = str(tmp_path / "model.safetensors")
    t = quant_format_values.read(path)
    turned = {n: (kind, x.transpose(0, 2, 1) if x.ndim == 3 else x) for n, (kind, x) in t.items()}
    assert any(x.ndim == 3 for _, x in t.values())
    quant_format_values.write(path, turned)
    check(g, *run(tmp_path, g, "--device", "ref"))


def test_layers_by_numbers(tmp_path):
    """Published configurations of MiMo-V2-Flash mark windowed layers and MoE layers by lists of 0
    and 1. Their window excludes the token itself."""
    g = weights.Golden("mimo_v2-plain")
    g.build(tmp_path)
    drop = ("layer_types", "mlp_layer_types", "rope_parameters", "sliding_window", "rms_norm_eps")
    config = {k: v for k, v in g.config.items() if k not in drop} | dict(
        hybrid_layer_pattern=[0, 1, 1, 0],
        moe_layer_freq=[0, 1, 1, 0],
        sliding_window_size=5,
        layernorm_epsilon=1e-2,
        rope_theta=5000.0,
        swa_rope_theta=50.0,
        partial_rotary_factor=0.7,
        swa_num_key_value_heads=6,
        swa_num_attention_heads=12,
        swa_head_dim=12,
        swa_v_head_dim=10,
        n_shared_experts=None,
        add_swa_attention_sink_bias=True,
        add_full_attention_sink_bias=False,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    check(g, *run(tmp_path, g, "--device", "ref"))


def test_a_wrapper_with_the_keys_of_others(tmp_path):
    """Published files of Gemma 4 include a vision tower, and keys for layers that read the KV of
    others."""
    g = weights.Golden("gemma4-small")
    config = dict(
        model_type="gemma4",
        text_config=g.config,
        vision_config=dict(model_type="gemma4_vision"),
        tie_word_embeddings=True,
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    t = {
        n.replace("model.", "model.language_model.", 1): weights.tensor(g.seed, n, s, g.plus_one)
        for n, s in g.tensors.items()
    }
    t["model.vision_tower.patch.weight"] = np.ones((2, 2), np.float32)
    for part, shape in ("k_proj", (60, 60)), ("v_proj", (60, 60)), ("k_norm", (20,)):
        t[f"model.language_model.layers.6.self_attn.{part}.weight"] = np.ones(shape, np.float32)
    weights.write_safetensors(str(tmp_path / "model.safetensors"), t, "f32")
    check(g, *run(tmp_path, g, "--device", "ref"))


def to(prefix):
    """Rename tensors as in the wrapper that transformers saves: all get the prefix, or only
    "model." is replaced and the head keeps its name."""
    return (
        lambda name: prefix + name
        if not prefix.startswith("model.")
        else prefix + name[6:]
        if name.startswith("model.")
        else name
    )


# wrappers of a golden's text model, as transformers 5.23 saves them or as published; {} is replaced
# by these keys
WRAPPERS = [
    ("llama-modern", "llava", to("language_model."), "text_config"),
    ("llama-modern", "idefics3", to("model.text_model."), "text_config"),
    ("qwen2-windows", "llava_onevision", to("model.language_model."), "text_config"),
    ("qwen2-tied", "internvl_chat", to("language_model."), "llm_config"),
    ("lfm2-plain", "lfm2_vl", to("model.language_model."), "text_config"),
    ("nemotron_h-plain", "nemotron_h_omni", to("language_model."), "text_config"),
    ("qwen3_moe-renorm", "qwen3_omni_moe", to("thinker."), "thinker_config"),
    ("granite-plain", "granite_docling", to("model.text_model."), "text_config"),
    ("gpt2-plain", "a_wrapper", to("language_model."), "text_config"),
]


@pytest.mark.parametrize("name,kind,names,key", WRAPPERS, ids=[w[1] for w in WRAPPERS])
def test_the_language_model_of_a_wrapper(name, kind, names, key, tmp_path):
    """Vision and audio tensors are ignored. The head is found under the wrapper's name and not
    confused with the embedding."""
    g = weights.Golden(name)
    text = g.config["text_config"] if "text_config" in g.config else g.config
    text = text | {
        "granite_docling": {"model_type": "granite_docling_text"},
        "qwen3_omni_moe": {"model_type": "qwen3_omni_moe_text"},
    }.get(kind, {})
    inner = (
        {"text_config": text, "audio_config": {"model_type": "an_ear"}}
        if key == "thinker_config"
        else text
    )
    config = {
        "model_type": kind,
        key: inner,
        "vision_config": {"model_type": "an_eye", "hidden_size": 8},
        "image_token_id": 5,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    t = {names(n): weights.tensor(g.seed, n, s, g.plus_one) for n, s in g.tensors.items()}
    t |= {
        "model.vision_tower.patch.weight": np.ones((2, 2), np.float32),
        "multi_modal_projector.linear.bias": np.ones(2, np.float32),
    }
    weights.write_safetensors(str(tmp_path / "model.safetensors"), t, "f32")
    check(g, *run(tmp_path, g, "--device", "ref"))


@pytest.mark.parametrize(
    "around",
    [
        {"thinker_config": None},
        {"thinker_config": {}},
        {"thinker_config": {"audio_config": {"model_type": "an_ear"}}},
        {"thinker_config": "deep", "text_config": None},
        {"text_config": [1], "key": "language_config"},
        {"text_config": {}, "key": "llm_config"},
    ],
)
def test_a_wrapper_around_nothing(around, tmp_path):
    """Wrapper keys that hold nothing, or no model, hide no key."""
    g = weights.Golden("llama-modern")
    around = dict(around)
    key = around.pop("key", "llm_config" if "text_config" in around else "text_config")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "a_wrapper", key: g.config} | around)
    )
    weights.write_safetensors(
        str(tmp_path / "model.safetensors"),
        {
            "language_model." + n: weights.tensor(g.seed, n, s, g.plus_one)
            for n, s in g.tensors.items()
        },
        "f32",
    )
    check(g, *run(tmp_path, g, "--device", "ref"))


@pytest.mark.parametrize(
    "name", [c for c in CASES if os.path.exists(os.path.join(weights.MODELS, c, "hidden.npy"))]
)
def test_the_stream_after_each_layer(name, tmp_path):
    g = weights.Golden(name)
    g.build(tmp_path)
    want = np.load(os.path.join(g.dir, "hidden.npy")) / g.config.get(
        "residual_multiplier", 1
    )  # folded: the residual stream is kept divided by it
    (tmp_path / "values").mkdir()
    subprocess.run(
        [
            LLMC,
            "verify",
            str(tmp_path),
            "--device",
            "ref",
            "-q",
            "--tokens",
            ",".join(map(str, g.prompt)),
            "--values",
            str(tmp_path / "values"),
            "--set",
            "kv.dtype=f32",
            *(a for k, v in g.set.items() for a in ("--set", f"{k}={v}")),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for n, layer in enumerate(want, 1):
        got = np.load(tmp_path / "values" / f"x{n}.npy")
        assert got.shape == layer.shape
        assert np.abs(got - layer).max() <= TOLERANCE * np.ptp(layer), (
            f"behind layer {n}: off by {np.abs(got - layer).max() / np.ptp(layer):.2e} of the range"
        )


@pytest.mark.parametrize("head", ["lm_head.weight", "talker.lm_head.weight"])
def test_a_head_that_stands_alone(head, tmp_path):
    """A head outside the model's prefix may belong to another model, so it is not dropped in favour
    of the embedding."""
    g = weights.Golden("llama-modern")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "a_wrapper", "text_config": g.config})
    )
    t = {
        head if n == "lm_head.weight" else "language_model." + n: weights.tensor(
            g.seed, n, s, g.plus_one
        )
        for n, s in g.tensors.items()
    }
    weights.write_safetensors(str(tmp_path / "model.safetensors"), t, "f32")
    with pytest.raises(Refused, match="language_model.lm_head.weight is missing"):
        run(tmp_path, g, "--device", "ref")


@pytest.mark.parametrize("name", ["qwen3-plain", "gpt_oss-plain", "qwen3_5-plain"])
def test_a_head_that_was_trained_apart(name, tmp_path):
    """tie_word_embeddings with a stored head that differs from the embedding: transformers 5 uses
    the head."""
    g = weights.Golden(name)
    assert not g.config.get("tie_word_embeddings") and "lm_head.weight" in g.tensors
    g.build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(g.config | {"tie_word_embeddings": True}))
    check(g, *run(tmp_path, g, "--device", "ref"))


def test_experts_in_mxfp4(tmp_path):
    """Published files of gpt-oss: blocks [experts, out, groups, 16] and scales, gate and up
    interleaved by row. The same values as transposed floats, as transformers writes them, give
    the same bits on the reference; kernels round activations."""
    g = weights.Golden("gpt_oss-wide")
    g.build(tmp_path / "floats")
    t = quant_format_values.read(str(tmp_path / "floats" / "model.safetensors"))
    floats, blocks = dict(t), dict(t)
    for name, (kind, x) in t.items():
        if x.ndim != 3:
            continue
        w = x.transpose(0, 2, 1).reshape(x.shape[0], x.shape[2], -1, 32)
        power = np.floor(np.log2(np.abs(w).max(-1, keepdims=True))) - 2
        code = (
            np.abs(w[..., None] / np.exp2(power)[..., None] - quant_format_values.E2M1)
            .argmin(-1)
            .astype(np.uint8)
        )
        value = (quant_format_values.E2M1[code] * np.exp2(power)).astype(np.float32)
        floats[name] = (
            kind,
            np.ascontiguousarray(
                value.reshape(x.shape[0], x.shape[2], x.shape[1]).transpose(0, 2, 1)
            ),
        )
        del blocks[name]
        blocks[name + "_blocks"] = ("U8", code[..., 0::2] | code[..., 1::2] << 4)
        blocks[name + "_scales"] = ("U8", (power[..., 0] + 127).astype(np.uint8))
    quant_format_values.write(str(tmp_path / "floats" / "model.safetensors"), floats)
    (tmp_path / "blocks").mkdir()
    config = g.config | dict(
        quantization_config=dict(
            quant_method="mxfp4",
            modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        )
    )
    (tmp_path / "blocks" / "config.json").write_text(json.dumps(config))
    quant_format_values.write(str(tmp_path / "blocks" / "model.safetensors"), blocks)
    want, tokens = run(tmp_path / "floats", g, "--device", "ref")
    got, same = run(tmp_path / "blocks", g, "--device", "ref")
    assert np.array_equal(got, want) and same == tokens
    near, _ = run(tmp_path / "blocks", g, "--device", "cpu", "--threads", "2")
    assert np.abs(near - want).max() < 1e-3 * np.ptp(want)


def test_longer_than_exact_is_refused(tmp_path):
    """Layers share an indexer's choice, and the configuration gives only how often. That is exact
    while all positions are chosen; longer sequences are refused."""
    g, limit = weights.Golden("deepseek_v3-v32"), 64
    g.build(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(g.config | dict(index_topk_freq=2)))
    check(g, *run(tmp_path, g, "--device", "ref", "--context", str(limit)))
    for args in (("--context", str(limit + 1)), ("--set", f"limits.context={limit + 1}")):
        with pytest.raises(
            Refused, match=f"exact only up to {limit} positions|1 .. {limit}: as it is built"
        ):
            run(tmp_path, g, "--device", "ref", *args)


@pytest.mark.parametrize("name", ["llama-smol", "deepseek_v3-plain"])
def test_kv_in_half_precision(name, tmp_path):
    """The default KV type changes logits a little, but not by zero, so it is not ignored."""
    g = weights.Golden(name)
    g.build(tmp_path)
    logits, _ = run(tmp_path, g, "--device", "ref", set={"kv.dtype": "f16"})
    assert 1e-6 < error(g, logits) < 5e-3


@pytest.mark.sample(13)
@pytest.mark.parametrize("name,arch", [(n, a) for n, archs in CPU.items() for a in archs.split()])
def test_cpu(name, arch, tmp_path):
    if not RUNS[arch]:
        pytest.skip(f"this processor does not run {arch}")
    g = weights.Golden(name)
    g.build(tmp_path)
    check(g, *run(tmp_path, g, "--device", "cpu", "--arch", arch, "--threads", "2"))
