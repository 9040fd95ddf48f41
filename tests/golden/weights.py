"""Weights of the golden models, made from their names: the generator (make_models.py, with torch) and the tests
(numpy only) get the same bits, so only configurations and expected logits are committed.

Every value is a hash of (seed, tensor name, element number) in integer arithmetic, hence independent of numpy's own
generators. Matrices have about unit gain, with outlier columns; norms and biases are random: weights of the usual
small magnitude would hide most bugs of a graph.
"""

import hashlib
import json
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = os.path.join(HERE, "models")
ENCODERS = os.path.join(HERE, "encoders")
VISION = os.path.join(HERE, "vision")
U = np.uint64


def mix(x):
    """Apply splitmix64's finaliser to an array of uint64."""
    x = (x ^ (x >> U(30))) * U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U(27))) * U(0x94D049BB133111EB)
    return x ^ (x >> U(31))


def noise(key, n):
    """Return n nearly normal values with mean 0 and deviation 1. Each is the sum of four 16-bit
    numbers, which fp32 represents exactly, times a factor."""
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
    with np.errstate(over="ignore"):
        h = mix(U(start) + np.arange(n, dtype=np.uint64) * U(0x9E3779B97F4A7C15))
    parts = sum(((h >> U(16 * i)) & U(0xFFFF)).astype(np.float64) for i in range(4))
    return (parts - 2 * 65535.0) / (65536.0 * np.sqrt(4 / 12.0))


def tensor(seed, name, shape, plus_one=False):
    if name.endswith(
        ("act_fn.beta", "act_fn.eps")
    ):  # these tensors are constants, which files contain nevertheless
        return np.full(shape, 0.5 if name.endswith("beta") else -1e-6, np.float32)
    n = noise(f"{seed}/{name}", int(np.prod(shape))).reshape(shape)
    last = name.rsplit(".", 1)[-1]
    is_norm = len(shape) == 1 and last == "weight"
    if is_norm:
        n = 0.3 * n if plus_one else 1 + 0.3 * n
    elif name.endswith((".layer_scalar", ".router.scale", ".per_expert_scale")):
        n = 1 + 0.3 * n
    elif "e_score_correction_bias" in name:
        n = 0.3 * np.abs(n)
    elif len(shape) == 1:
        n = 0.3 * n
    elif "embed" in name or "wte" in name or "wpe" in name:
        n = (
            0.15 if plus_one else 0.3
        ) * n  # the embedding is small, because otherwise a tied model only repeats its input
    else:
        gain = (
            2.0
            if name.endswith(
                ("mlp.gate.weight", "block_sparse_moe.gate.weight", ".router.proj.weight")
            )
            else 0.5
            if ".shared_transformer." in name
            else 1.2
        )
        n = n * (gain / np.sqrt(shape[-1]))
        loud = np.abs(noise(f"{seed}/{name}/loud", shape[-1])) > 1.8
        n = np.where(loud, 4 * n, n)
    return n.astype(np.float32)


def to_bf16(x):
    """Convert to bf16 as uint16 bits, rounded to nearest even."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(x, dtype):
    return (
        x
        if dtype == "f32"
        else (to_bf16(x).astype(np.uint32) << 16).view(np.float32).reshape(np.shape(x))
    )


def write_safetensors(path, tensors, dtype):
    """Write a safetensors file. tensors: {name: array}; float32 arrays are stored as dtype (f32 or
    bf16), integers and flags in their own type."""
    header, blobs, at = {}, [], 0
    for name, x in tensors.items():
        whole = {"i": f"I{8 * x.itemsize}", "b": "BOOL"}.get(x.dtype.kind)
        blob = (
            x.tobytes()
            if whole
            else to_bf16(x).tobytes()
            if dtype == "bf16"
            else np.ascontiguousarray(x, np.float32).tobytes()
        )
        header[name] = {
            "dtype": whole or ("BF16" if dtype == "bf16" else "F32"),
            "shape": list(x.shape),
            "data_offsets": [at, at + len(blob)],
        }
        at += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            f.write(blob)


def halves_to_pairs(x, heads):
    """Reorder rows of q or k as llama.cpp's converter does: the pairs that RoPE rotates become
    adjacent; before, they are in two halves."""
    return (
        x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
    )


def finish_gguf(w):
    """Write the file of a gguf.GGUFWriter that has all keys and tensors."""
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def special_token(i, content):
    """Return an element of added_tokens of a tokenizer.json."""
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
    return dict(id=i, content=content, special=True, **flags)


def bert_tokenizer(vocab):
    """Return BERT's tokenizer.json with this vocabulary and without special tokens."""
    return dict(
        added_tokens=[],
        normalizer=dict(
            type="BertNormalizer",
            clean_text=True,
            handle_chinese_chars=True,
            strip_accents=None,
            lowercase=True,
        ),
        pre_tokenizer=dict(type="BertPreTokenizer"),
        post_processor=None,
        decoder=dict(type="WordPiece", prefix="##", cleanup=True),
        model=dict(
            type="WordPiece",
            unk_token="[UNK]",
            continuing_subword_prefix="##",
            max_input_chars_per_word=100,
            vocab=vocab,
        ),
    )


def prompt(seed, n, vocab):
    return [int(v) for v in mix(np.arange(n, dtype=np.uint64) + U(seed * 1000003 + 17)) % U(vocab)]


def write_case(folder, config, body, shapes):
    """Write config.json, and case.json with the body and the shapes of the tensors, one per line."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    lines = [f' "{k}": {json.dumps(v)},\n' for k, v in body.items()]
    tensors = [f'  "{n}": {json.dumps(s)}' for n, s in shapes.items()]
    text = "{\n" + "".join(lines) + ' "tensors": {\n' + ",\n".join(tensors) + "\n }\n}\n"
    json.loads(text)
    with open(os.path.join(folder, "case.json"), "w") as f:
        f.write(text)


def cases(models=MODELS):
    return sorted(
        d for d in os.listdir(models) if os.path.exists(os.path.join(models, d, "case.json"))
    )


class Golden:
    """A committed case of make_models.py: config (dict), tensors (name -> shape), prompt, greedy,
    logits [len(prompt), vocab]."""

    MODELS, ROWS = MODELS, "logits.npy"

    def __init__(self, name):
        self.name = name
        self.dir = os.path.join(self.MODELS, name)
        with open(os.path.join(self.dir, "case.json")) as f:
            self.__dict__.update(json.load(f))
        with open(os.path.join(self.dir, "config.json")) as f:
            self.config = json.load(f)
        self.logits = np.load(os.path.join(self.dir, self.ROWS))

    def values(self):
        return {n: tensor(self.seed, n, s, self.plus_one) for n, s in self.tensors.items()}

    def build(self, folder):
        """Write the model folder: config.json and model.safetensors."""
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(self.config, f, indent=1)
        write_safetensors(os.path.join(folder, "model.safetensors"), self.values(), self.dtype)
        return folder


class Encoder(Golden):
    """A case of make_encoders.py: config, tensors, inputs (lists of ids), logits: the rows of all of them, concatenated."""

    MODELS, ROWS = ENCODERS, "rows.npy"

    def rows(self):
        """Return the expected rows, split by input."""
        return np.split(self.logits, np.cumsum([len(t) for t in self.inputs])[:-1])

    def build_served(self, folder, pooling="mean_tokens", normalize=False):
        """Write a folder of sentence-transformers whose tokenizer converts the word "w7" to id 7.
        pooling None: write a folder of transformers."""
        self.build(folder)
        vocab = {f"w{i}": i for i in range(1, self.config["vocab_size"])} | {"[UNK]": 0}
        files = {
            "1_Pooling/config.json": {f"pooling_mode_{pooling}": True},
            "modules.json": [
                dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
                for i, (kind, path) in enumerate(
                    [("Transformer", ""), ("Pooling", "1_Pooling")]
                    + [("Normalize", "2_Normalize")] * normalize
                )
            ],
        }
        files = {"tokenizer.json": bert_tokenizer(vocab)} | (files if pooling else {})
        for name, content in files.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                json.dump(content, f)
        return folder

    def texts(self):
        return [" ".join(f"W{t}" for t in ids) for ids in self.inputs]


def pixels(config, grids):
    """Return images of normalised pixels [channels, rows, columns], whose sizes follow from the
    grids of patches."""
    v = config["vision_config"]
    p, channels = v["patch_size"], v.get("num_channels", 3)
    p = p[0] if isinstance(p, list) else p
    return [
        noise(f"pixels/{i}", channels * h * p * w * p)
        .reshape(channels, h * p, w * p)
        .astype(np.float32)
        for i, (h, w) in enumerate(grids)
    ]


def squares(pixels, h, w, side, frames=1):
    """Return the patches of an image as rows [patches, channels * frames * p * p], and their
    indices. The patches of a square of side x side are contiguous."""
    p = pixels.shape[1] // h
    x = pixels.reshape(-1, h // side, side, p, w // side, side, p).transpose(1, 4, 2, 5, 0, 3, 6)
    x = np.repeat(x[:, :, :, :, :, None], frames, 5)
    at = np.arange(h * w).reshape(h // side, side, w // side, side).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(x.reshape(h * w, -1)), at.reshape(-1)


class Vision(Golden):
    """A case of make_vision.py: config, tensors, grids (patches of each image), ids (a prompt with all images), image_token,
    logits of the prompt, rows of the tower."""

    MODELS = VISION

    def __init__(self, name):
        super().__init__(name)
        self.rows = np.load(os.path.join(self.dir, "rows.npy"))

    def patches(self, side):
        """Return the rows and indices of the patches of each image, in the order of squares()."""
        frames = self.config["vision_config"].get("temporal_patch_size", 1)
        return [
            squares(x, h, w, side, frames)
            for (h, w), x in zip(self.grids, pixels(self.config, self.grids))
        ]


# How a draft head is stored. layer and names; dense: it has the feed-forward of layer 0; windowed: it has the attention of windowed layers; output: its
# output matrix; raw: it reads rows before the norms; lists: keys of the config with an element for it, equal to that of layer 1
SEPARATE = dict(
    layer="mtp.layers.0.",
    enorm="mtp.pre_fc_norm_embedding",
    hnorm="mtp.pre_fc_norm_hidden",
    proj="mtp.fc",
    norm="mtp.norm",
)
HEADS = {
    "qwen3_next": SEPARATE,
    "qwen3_5": SEPARATE,
    "qwen3_5_moe": SEPARATE,
    "exaone_moe": dict(SEPARATE, dense=True),
    "mimo_v2": dict(
        layer="model.mtp.layers.0.",
        enorm="model.mtp.layers.0.enorm",
        hnorm="model.mtp.layers.0.hnorm",
        proj="model.mtp.layers.0.eh_proj",
        norm="model.mtp.layers.0.final_layernorm",
        dense=True,
        windowed=True,
        renamed=("post_attention_layernorm", "pre_mlp_layernorm"),
    ),
    "ernie4_5_moe": dict(
        layer="model.mtp_block.0.",
        enorm="model.mtp_emb_norm.0",
        hnorm="model.mtp_hidden_norm.0",
        proj="model.mtp_linear_proj.0",
        norm=None,
        dense=True,
    ),
    "step3p5": dict(
        layer="model.layers.5.",
        enorm="model.layers.5.enorm",
        hnorm="model.layers.5.hnorm",
        proj="model.layers.5.eh_proj",
        norm="model.layers.5.transformer.shared_head.norm",
        output="model.layers.5.transformer.shared_head.output",
        dense=True,
        windowed=True,
        raw=True,
        lists=("layer_types", "rope_theta", "partial_rotary_factors"),
    ),
}


class Mtp(Golden):
    """A golden model with an MTP layer after its last layer, in the form that DeepSeek, GLM and
    others publish."""

    def __init__(self, name):
        super().__init__(name)
        n, hidden = self.config["num_hidden_layers"], self.config["hidden_size"]
        own = f"model.layers.{n}."
        self.how = HEADS.get(self.family) or dict(
            layer=own,
            enorm=own + "enorm",
            hnorm=own + "hnorm",
            proj=own + "eh_proj",
            norm=own + "shared_head.norm",
        )
        last = max(
            i
            for i in range(n)
            if f"model.layers.{i}.input_layernorm.weight" in self.tensors and self.is_like(i)
        )
        self.tensors = dict(self.tensors)
        for layer, mlp in (last, False), (0 if self.how.get("dense") else last, True):
            stem = f"model.layers.{layer}."
            self.tensors |= {
                self.own_name(t[len(stem) :]): s
                for t, s in self.tensors.items()
                if t.startswith(stem)
                and t.startswith(stem + "mlp.") == mlp
                and not (
                    self.how.get("dense") and t.startswith((stem + "moe.", stem + "share_expert."))
                )
            }
        self.tensors |= {
            self.how[k] + ".weight": [hidden] for k in ("enorm", "hnorm", "norm") if self.how[k]
        } | {self.how["proj"] + ".weight": [hidden, 2 * hidden]}
        if self.how.get("output"):
            self.tensors[self.how["output"] + ".weight"] = [self.config["vocab_size"], hidden]
        for key in self.how.get("lists", ()):
            self.config[key] = (
                self.config[key][:n] + [self.config[key][1]] + self.config[key][n + 1 :]
            )
        self.copies = {}
        if self.family not in HEADS:
            self.config["num_nextn_predict_layers"] = 1
            self.copies = {
                own + "embed_tokens.weight": "model.embed_tokens.weight",
                own + "shared_head.head.weight": "lm_head.weight",
            }

    def is_like(self, layer):
        kinds = self.config.get("layer_types")
        return f"model.layers.{layer}.self_attn.o_proj.weight" in self.tensors and (
            not kinds
            or kinds[layer]
            == ("sliding_attention" if self.how.get("windowed") else "full_attention")
        )

    def own_name(self, part):
        return self.how["layer"] + part.replace(*self.how.get("renamed", ("", "")))

    def values(self):
        w = super().values()
        return w | {copy: w[of] for copy, of in self.copies.items()}


DRAFTS = {
    # the original form, which SpecForge uses too: the embedding is the model's, tokens are stored
    # as offsets, and the draft reads outputs of layers
    "specforge": dict(
        target="llama-scaled3",
        config=dict(
            architectures=["LlamaForCausalLMEagle3"],
            model_type="llama",
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=100,
            rope_theta=5000.0,
            draft_vocab_size=53,
            eagle_config=dict(
                eagle_aux_hidden_state_layer_ids=[0, 2, 1], use_aux_hidden_state=True
            ),
        ),
        layer="midlayer",
        reads=[1, 3, 2],
    ),
    # the form of the package speculators: the draft has its own embedding, another hidden size and
    # two layers
    "speculators": dict(
        target="gemma3-pattern",
        config=dict(
            architectures=["Eagle3Speculator"],
            speculators_model_type="eagle3",
            draft_vocab_size=61,
            norm_before_residual=True,
            target_hidden_size=60,
            transformer_layer_config=dict(
                model_type="qwen3",
                hidden_size=44,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=1,
                head_dim=10,
                intermediate_size=52,
                rope_theta=800.0,
            ),
        ),
        layer="layers.{}",
        embed=True,
        qk_norm=True,
        reads=[2, 3, 3],
    ),
    # the draft has no embedding, no output matrix and no subset of tokens
    "whole": dict(
        target="qwen3-plain",
        config=dict(
            architectures=["LlamaForCausalLMEagle3"],
            model_type="llama",
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=14,
            intermediate_size=64,
        ),
        layer="midlayer",
        head=False,
        reads=[2, 1, 0],
    ),
}


class Draft:
    """An EAGLE-3 draft checkpoint for a golden model."""

    def __init__(self, name):
        how = DRAFTS[name]
        self.name, self.target, self.layer = name, Golden(how["target"]), how["layer"]
        self.reads, self.config = how["reads"], json.loads(json.dumps(how["config"]))
        t = self.target.config
        self.own = self.config.get("transformer_layer_config", self.config)
        for key, value in dict(
            hidden_size=t["hidden_size"],
            num_hidden_layers=1,
            vocab_size=t["vocab_size"],
            rms_norm_eps=2e-5,
            rope_theta=10000.0,
            max_position_embeddings=64,
            hidden_act="silu",
            tie_word_embeddings=False,
            dtype="float32",
        ).items():
            self.own.setdefault(key, value)
        c = self.own
        h, d, ffn = c["hidden_size"], c["head_dim"], c["intermediate_size"]
        n, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
        self.columns = self.config.get("draft_vocab_size", c["vocab_size"])
        self.shapes = {"fc.weight": [h, len(self.reads) * t["hidden_size"]], "norm.weight": [h]}
        for i in range(c["num_hidden_layers"]):
            wide = h * (2 if i == 0 else 1)
            own = dict(
                input_layernorm=[h],
                post_attention_layernorm=[h],
                **{"self_attn.q_proj": [n, wide], "self_attn.k_proj": [kv, wide]},
                **{"self_attn.v_proj": [kv, wide], "self_attn.o_proj": [h, n]},
                **{"mlp.gate_proj": [ffn, h], "mlp.up_proj": [ffn, h], "mlp.down_proj": [h, ffn]},
            )
            if i == 0:
                own["hidden_norm"] = [h]
            if how.get("qk_norm"):
                own |= {"self_attn.q_norm": [d], "self_attn.k_norm": [d]}
            self.shapes |= {f"{self.layer.format(i)}.{k}.weight": s for k, s in own.items()}
        if how.get("embed"):
            self.shapes["embed_tokens.weight"] = [c["vocab_size"], h]
        if how.get("head", True):
            self.shapes["lm_head.weight"] = [self.columns, h]

    def tokens(self):
        """Return the token of each column of the logits."""
        vocab = self.own["vocab_size"]
        order = np.argsort(noise(f"{self.name}/d2t", vocab), kind="stable")
        return np.sort(order[: self.columns]).astype(np.int64)

    def values(self):
        w = {n: tensor(self.name, n, s) for n, s in self.shapes.items()}
        if self.columns < self.own["vocab_size"]:
            w["d2t"] = self.tokens() - np.arange(self.columns)
            w["t2d"] = np.isin(np.arange(self.own["vocab_size"]), self.tokens())
        return w

    def build(self, folder, values=None):
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(self.config, f, indent=1)
        write_safetensors(os.path.join(folder, "model.safetensors"), values or self.values(), "f32")
        return folder
