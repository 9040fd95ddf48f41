"""A model folder small enough to be built in each run: golden weights, a byte-level tokenizer, a
chat template.

Every byte is a token, so any text can be tokenized. Half of the ids are single bytes beyond
ASCII, so answers are full of incomplete UTF-8.
"""

import json
import os
import random
import struct
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import weights  # noqa: E402

SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld"]
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'forbidden' or m.content == 'refuse me' %}{{ raise_exception('not this message') }}{% endif %}"
    "{% if m.content == 'loop for ever' %}{% for i in range(1000000) %}{% for j in range(1000000) %}{{ j }}{% endfor %}{% endfor %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}{% for c in m.tool_calls %}[{{ c.function.name }} {{ c.function.arguments.x }}]{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if mood %}({{ mood }}){% endif %}{% endif %}"
)

NAMES = ["tiny", "low", "mid", "high"]  # a model and its adapters
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "string", "maxLength": 6},
        "b": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": SCHEMA}},
    {
        "type": "function",
        "function": {"name": "g", "parameters": {"type": "object", "properties": {}}},
    },
]


def byte_chars():
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return [
        chr(c)
        for _, c in sorted([(b, b) for b in plain] + [(b, 256 + i) for i, b in enumerate(rest)])
    ]


def vocabulary(marks=()):
    return [*SPECIAL, *byte_chars(), *("".join(m.split()) for m in MERGES), *marks]


def tokenizer(marks=(), words=()):
    vocab = {t: i for i, t in enumerate(vocabulary((*marks, *words)))}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": vocab[t],
                "content": t,
                "special": t not in words,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
            }
            for t in (*SPECIAL, *marks, *words)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": MERGES,
        },
    }


def build(
    folder,
    context=256,
    base="llama-smol",
    padding=0,
    template=TEMPLATE,
    golden=None,
    marks=(),
    words=(),
):
    """Build the folder. golden: weights.Mtp adds a draft head; marks: additional special
    tokens, after all others; words: additional text tokens, after the marks.
    """
    g = (golden or weights.Golden)(base)
    n = len(vocabulary((*marks, *words))) + padding  # ids that the tokenizer does not have
    g.config.update(vocab_size=n, max_position_embeddings=context, rope_theta=10000.0)
    for name in g.tensors:
        if "embed_tokens" in name or "lm_head" in name or "shared_head.output" in name:
            g.tensors[name] = [n, g.tensors[name][1]]
    g.build(folder)
    for name, content in (
        ("tokenizer.json", tokenizer(marks, words)),
        (
            "tokenizer_config.json",
            {
                "bos_token": "<s>",
                "eos_token": "</s>",
                **({"chat_template": template} if template else {}),
            },
        ),
    ):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(content, f)
    return str(folder)


def adapter(folder, model, seed):
    """Write a small PEFT adapter of the first layer's projections."""
    os.makedirs(folder)
    with open(os.path.join(model, "config.json")) as f:
        hidden = json.load(f)["hidden_size"]
    data, head, at = b"", {}, 0
    r = random.Random(seed)
    for name, shape in (("A", [4, hidden]), ("B", [hidden, 4])):
        raw = struct.pack(
            f"<{shape[0] * shape[1]}f",
            *(r.uniform(-0.05, 0.05) for _ in range(shape[0] * shape[1])),
        )
        head[f"base_model.model.model.layers.0.self_attn.q_proj.lora_{name}.weight"] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [at, at + len(raw)],
        }
        data += raw
        at += len(raw)
    text = json.dumps(head).encode()
    with open(os.path.join(folder, "adapter_model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}, f)
    return folder


def everything(folder, model, name=NAMES[0]):
    """Options of a server with everything enabled: NAMES (three of them adapters in two slots,
    into which others may be loaded), speculation, and prefix pages and batches stored below
    the folder.
    """
    home = os.path.join(folder, "adapters")
    loras = [
        a
        for i, name in enumerate(NAMES[1:])
        for a in ("--lora", f"{name}=" + adapter(os.path.join(home, name), model, i))
    ]
    return [
        "--model-name",
        name,
        "--lora-slots",
        "2",
        "--lora-dir",
        home,
        *loras,
        "--speculate",
        "15",
        "--prefix-dir",
        os.path.join(folder, "prefix"),
        "--batch-dir",
        os.path.join(folder, "batches"),
    ]


if __name__ == "__main__":
    print(build(sys.argv[1]))
