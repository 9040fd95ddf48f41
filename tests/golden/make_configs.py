#!/usr/bin/env python3
"""Write published configurations as transformers writes them, so that no expectation depends on manual transcription. Needs
transformers 5, no torch:

    python tests/golden/make_configs.py [--check]

config-fixtures/<model>/config.json         of the models in OWN: the class, with the values in which the model differs from its defaults
config-fixtures/<model>/transformers.json   of every other model with a class in transformers: its config.json, read and written again
config-classes.json                         the classes' defaults

--check writes nothing and fails if a file would change.
"""

import json
import os
import sys
import tempfile

import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
FIXTURES = os.path.join(HERE, "config-fixtures")
CLASSES = os.path.join(HERE, "config-classes.json")
QWEN35_ROPE = dict(
    mrope_interleaved=True,
    mrope_section=[11, 11, 10],
    partial_rotary_factor=0.25,
    rope_theta=10000000,
    rope_type="default",
)
# Values in the hub's config.json of a model that differ from the defaults of its class.
OWN = {
    # google/gemma-2-9b; the defaults of the class are those of the 2B model
    "gemma-2-9b": (
        "Gemma2Config",
        dict(
            hidden_size=3584,
            intermediate_size=14336,
            num_attention_heads=16,
            num_hidden_layers=42,
            num_key_value_heads=8,
        ),
    ),
    # microsoft/Phi-3-mini-4k-instruct
    "phi-3-mini-4k": ("Phi3Config", dict(sliding_window=2047)),
    # bigscience/bloom-7b1; the defaults of the class are those of a toy model
    "bloom-7b1": (
        "BloomConfig",
        dict(hidden_size=4096, n_layer=30, n_head=32, vocab_size=250880, pad_token_id=3),
    ),
    # openai/gpt-oss-20b; the defaults of the class are those of the 120B model
    "gpt-oss-20b": (
        "GptOssConfig",
        dict(
            num_hidden_layers=24,
            num_local_experts=32,
            eos_token_id=200002,
            pad_token_id=199999,
            router_aux_loss_coef=0.9,
        ),
    ),
    # text_config of Qwen/Qwen3.5-9B and of Qwen/Qwen3.6-35B-A3B
    "qwen3.5-9b": (
        "Qwen3_5TextConfig",
        dict(max_position_embeddings=262144, eos_token_id=248044, rope_parameters=QWEN35_ROPE),
    ),
    "qwen3.5-35b-a3b": (
        "Qwen3_5MoeTextConfig",
        dict(
            max_position_embeddings=262144,
            bos_token_id=248044,
            eos_token_id=248044,
            rope_parameters=QWEN35_ROPE,
        ),
    ),
    # text_config of google/gemma-4-26B-A4B-it
    "gemma4-26b-a4b": (
        "Gemma4TextConfig",
        dict(
            hidden_size=2816,
            num_attention_heads=16,
            num_key_value_heads=8,
            num_global_key_value_heads=2,
            intermediate_size=2112,
            num_hidden_layers=30,
            attention_k_eq_v=True,
            hidden_size_per_layer_input=0,
            enable_moe_block=True,
            num_experts=128,
            top_k_experts=8,
            moe_intermediate_size=704,
            sliding_window=1024,
            max_position_embeddings=262144,
            final_logit_softcapping=30.0,
        ),
    ),
}
DROP = ("transformers_version", "_name_or_path", "architectures")


def text(d):
    return (
        json.dumps({k: v for k, v in d.items() if k not in DROP}, indent=1, sort_keys=True) + "\n"
    )


def written(config):
    """The config.json that save_pretrained writes."""
    with tempfile.TemporaryDirectory() as d:
        config.save_pretrained(d)
        with open(os.path.join(d, "config.json")) as f:
            return json.load(f)


def known(folder):
    with open(os.path.join(folder, "config.json")) as f:
        return json.load(f)["model_type"] in transformers.CONFIG_MAPPING


def main():
    out, classes = {}, set()
    for name, (cls, numbers) in OWN.items():
        out[os.path.join(FIXTURES, name, "config.json")] = text(
            written(getattr(transformers, cls)(**numbers))
        )
        classes.add(cls)
    for name in sorted(os.listdir(FIXTURES)):
        folder = os.path.join(FIXTURES, name)
        if name in OWN or not known(folder):
            continue
        with open(os.path.join(folder, "config.json")) as f:
            numbers = json.load(f)
        scaling = numbers.get("rope_scaling") or {}
        if (
            scaling.get("type") == "su"
        ):  # longrope's first name, which transformers no longer supports
            scaling["type"] = "longrope"
        config = transformers.CONFIG_MAPPING[numbers.pop("model_type")](**numbers)
        out[os.path.join(folder, "transformers.json")] = text(written(config))
        classes.add(type(config).__name__)
    out[CLASSES] = (
        json.dumps(
            {c: json.loads(text(getattr(transformers, c)().to_dict())) for c in sorted(classes)},
            indent=1,
            sort_keys=True,
        )
        + "\n"
    )
    changed = []
    for path, body in out.items():
        if os.path.exists(path) and open(path).read() == body:
            continue
        changed.append(os.path.relpath(path, HERE))
        if "--check" not in sys.argv:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(body)
    print(f"{len(out)} files, {len(changed)} changed" + "".join(f"\n  {c}" for c in changed))
    sys.exit("--check" in sys.argv and bool(changed))


if __name__ == "__main__":
    main()
