#!/usr/bin/env python3
"""GGUF files of real models' widths and few layers, with random weights: what a comparison of speed needs and no more.

    random_gguf.py SHAPE TYPE [-o FILE]     random_gguf.py --list

Shapes take their widths from the published configurations. Types are mixed as llama-quantize mixes them, fallbacks of rows that are no
whole block of 256 included. Weights are normal with the deviation 1 / sqrt(columns), so that activations keep their size and routers choose
about evenly. The rows of a layer's matrix are drawn out of 4096 that were quantised once: quantising is what would take long.
The tokenizer is a fake one of single bytes and numbered words.
"""
import argparse
import math
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType as T, GGUFWriter, quants

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kernels"))
import code_blocks  # noqa: E402

POOL = 4096
CACHE = os.environ.get("LLMC_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc")


# --- shapes: (architecture, keys, layers, {tensor: [rows of the file's order, outermost first]} ) ---------------------

def gqa(hidden, heads, kv_heads, head_dim, qk_norm=False):
    """Tensors of grouped attention."""
    t = {"attn_q": [heads * head_dim, hidden], "attn_k": [kv_heads * head_dim, hidden], "attn_v": [kv_heads * head_dim, hidden],
         "attn_output": [hidden, heads * head_dim]}
    return t | ({"attn_q_norm": [head_dim], "attn_k_norm": [head_dim]} if qk_norm else {})


def ffn(hidden, width):
    return {"ffn_gate": [width, hidden], "ffn_up": [width, hidden], "ffn_down": [hidden, width]}


def experts(hidden, n, width, shared=0):
    t = {"ffn_gate_inp": [n, hidden], "ffn_gate_exps": [n, width, hidden], "ffn_up_exps": [n, width, hidden], "ffn_down_exps": [n, hidden, width]}
    return t | ({"ffn_gate_shexp": [shared, hidden], "ffn_up_shexp": [shared, hidden], "ffn_down_shexp": [hidden, shared]} if shared else {})


class Shape:
    """tensors(i): of layer i. Vocabularies of mixtures are cut: few layers would drown in their heads."""
    def __init__(self, arch, layers, hidden, vocab, keys, tensors, tied=False):
        self.arch, self.layers, self.hidden, self.vocab, self.keys, self.tensors, self.tied = arch, layers, hidden, vocab, keys, tensors, tied

    def all(self):
        yield "token_embd.weight", [self.vocab, self.hidden]
        for i in range(self.layers):
            for name, dims in ({"attn_norm": [self.hidden], "ffn_norm": [self.hidden]} | self.tensors(i)).items():
                yield f"blk.{i}.{name}.weight", dims
        yield "output_norm.weight", [self.hidden]
        if not self.tied:
            yield "output.weight", [self.vocab, self.hidden]


def mla(hidden, heads, nope, rope, v, rank):
    """Latent attention as converters write it: k_b and v_b apart, k_b transposed; no query latent (its rank is given as 0, because
    llama.cpp tells files without one by their number of layers)."""
    return {"attn_q": [heads * (nope + rope), hidden], "attn_kv_a_mqa": [rank + rope, hidden], "attn_kv_a_norm": [rank],
            "attn_k_b": [heads, rank, nope], "attn_v_b": [heads, v, rank], "attn_output": [hidden, heads * v]}


def deepseek_lite(layers, hidden, heads, nope, rope, v, rank, dense, n, top_k, width, shared, vocab):
    attention = mla(hidden, heads, nope, rope, v, rank)
    keys = {"attention.head_count": heads, "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-6, "feed_forward_length": dense,
            "attention.q_lora_rank": 0, "attention.kv_lora_rank": rank, "attention.key_length": rank + rope, "attention.value_length": rank,
            "attention.key_length_mla": nope + rope, "attention.value_length_mla": v, "rope.dimension_count": rope, "rope.freq_base": 10000.0,
            "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0, "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_log_multiplier": 0.0707, "leading_dense_block_count": 1, "expert_count": n, "expert_used_count": top_k,
            "expert_shared_count": shared, "expert_feed_forward_length": width, "expert_weights_scale": 1.0, "expert_weights_norm": False,
            "expert_gating_func": 1}
    return Shape("deepseek2", layers, hidden, vocab, keys,
                 lambda i: attention | (experts(hidden, n, width, shared * width) if i else ffn(hidden, dense)))


def qwen3_moe(layers, hidden, heads, kv_heads, head_dim, dense, n, top_k, width, vocab):
    keys = {"attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.key_length": head_dim, "attention.value_length": head_dim,
            "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6, "feed_forward_length": dense, "expert_count": n,
            "expert_used_count": top_k, "expert_feed_forward_length": width}
    return Shape("qwen3moe", layers, hidden, vocab, keys, lambda i: gqa(hidden, heads, kv_heads, head_dim, True) | experts(hidden, n, width))


def llama(layers, hidden, heads, kv_heads, width, theta, vocab, tied=False, n=0, top_k=0):
    dim = hidden // heads
    keys = {"attention.head_count": heads, "attention.head_count_kv": kv_heads, "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": dim, "rope.freq_base": theta, "feed_forward_length": width}
    keys |= {"expert_count": n, "expert_used_count": top_k} if n else {}
    return Shape("llama", layers, hidden, vocab, keys,
                 lambda i: gqa(hidden, heads, kv_heads, dim) | (experts(hidden, n, width) if n else ffn(hidden, width)), tied)


SHAPES = {
    "qwen3-30b-a3b": qwen3_moe(4, 2048, 32, 4, 128, 6144, 128, 8, 768, 32768),             # Qwen/Qwen3-30B-A3B: 48 layers
    "deepseek-v2-lite": deepseek_lite(4, 2048, 16, 128, 64, 128, 512, 10944, 64, 6, 1408, 2, 32768),  # deepseek-ai/DeepSeek-V2-Lite: 27
    "mixtral-8x7b": llama(2, 4096, 32, 8, 14336, 1e6, 32000, n=8, top_k=2),                # mistralai/Mixtral-8x7B-v0.1: 32
    "llama3.2-1b": llama(16, 2048, 32, 8, 8192, 500000.0, 128256, tied=True),              # meta-llama/Llama-3.2-1B, all of it
    # the same kinds, small enough for a test
    "tiny-qwen3moe": qwen3_moe(2, 256, 4, 2, 64, 512, 5, 2, 256, 512),
    "tiny-deepseek": deepseek_lite(2, 256, 4, 32, 32, 32, 64, 512, 7, 3, 96, 2, 512),
    "tiny-mixtral": llama(2, 256, 4, 2, 512, 1e6, 512, n=8, top_k=2),
    "tiny-llama": llama(2, 256, 4, 2, 512, 1e4, 512, tied=True),
}
# types that are codes (tests/kernels/code_blocks.py): as in files of llama-quantize but for matrices that it gives more bits, the head's but
CODED = {"Q2_K": 10, "Q3_K": 12, "IQ4_NL": 25, "IQ4_XS": 30, "IQ3_S": 26, "IQ3_XXS": 23, "IQ2_S": 28, "IQ2_XS": 20, "IQ2_XXS": 19, "IQ1_S": 24, "IQ1_M": 31, "TQ1_0": 36,
         "TQ2_0": 37}
TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "F16", "BF16", *CODED)
FILE_TYPE = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32, **CODED}


# --- types ------------------------------------------------------------------------------------------------------------

def type_of(shape, kind, name, dims):
    """What llama-quantize makes of a tensor in a file of this kind."""
    if len(dims) < 2 or "_norm" in name or "ffn_gate_inp" in name:
        return T.F32
    if kind in ("F16", "BF16"):
        return T[kind]
    t = T.Q4_K if kind == "Q4_K_M" else T[kind]
    eight = shape.keys.get("expert_count") == 8
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    n = shape.layers
    more = kind == "Q4_K_M" and (layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2)
    if name == "output.weight" or shape.tied and name == "token_embd.weight":
        t = T.Q6_K if kind != "Q8_0" else t
    elif ".attn_v." in name:
        t = T.Q8_0 if eight else T.Q6_K if more else t
    elif ".attn_k." in name:
        t = T.Q8_0 if eight else t
    elif ".ffn_down" in name:
        t = T.Q6_K if more else t
    elif ".attn_output." in name and eight and kind == "Q4_K_M":
        t = T.Q5_K
    if dims[-1] % 256:
        t = T.IQ4_NL if kind in CODED and t == T[kind] else t
        t = {T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0}.get(t, t)
    return t


def halves(x):
    return x.astype(np.float16).view(np.uint8).reshape(*x.shape, 2)


def pack_k45(x, five):
    """Q4_K and Q5_K of rows [n, 256 k]: eight scales and minima of 6 bits for 256."""
    top = 31 if five else 15
    b = x.reshape(-1, 8, 32)
    low = np.maximum(0, -b.min(axis=2))
    step = (b.max(axis=2) + low) / top
    d = step.max(axis=1).astype(np.float16)
    dmin = (low.max(axis=1) / 63).astype(np.float16)
    d = (d.astype(np.float32) / 63).astype(np.float16)
    sc = np.clip(np.rint(step / np.maximum(d.astype(np.float32)[:, None], 1e-12)), 0, 63).astype(np.uint8)
    mn = np.clip(np.rint(low / np.maximum(dmin.astype(np.float32)[:, None], 1e-12)), 0, 63).astype(np.uint8)
    scale = (d.astype(np.float32)[:, None] * sc)[:, :, None]
    q = np.clip(np.rint((b + (dmin.astype(np.float32)[:, None] * mn)[:, :, None]) / np.maximum(scale, 1e-12)), 0, top).astype(np.uint8)
    s = np.concatenate([sc[:, :4] | sc[:, 4:] >> 4 << 6, mn[:, :4] | mn[:, 4:] >> 4 << 6, sc[:, 4:] & 15 | (mn[:, 4:] & 15) << 4], axis=1)
    low4 = (q[:, 0::2] & 15) | (q[:, 1::2] & 15) << 4
    parts = [halves(d), halves(dmin), s]
    if five:
        parts.append(((q >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1, dtype=np.uint8))
    parts.append(low4.reshape(-1, 128))
    return np.concatenate(parts, axis=1).reshape(len(x), -1)


def pack_k6(x):
    """Q6_K: sixteen scales of 8 bits for 256."""
    b = x.reshape(-1, 16, 16)
    step = np.abs(b).max(axis=2) / 31
    d = (step.max(axis=1) / 127).astype(np.float16)
    sc = np.clip(np.rint(step / np.maximum(d.astype(np.float32)[:, None], 1e-12)), 1, 127).astype(np.int8)
    q = np.clip(np.rint(b / np.maximum(d.astype(np.float32)[:, None] * sc, 1e-12)[:, :, None]), -32, 31).astype(np.int8)
    q = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([(q[:, :, 0] & 15) | (q[:, :, 2] & 15) << 4, (q[:, :, 1] & 15) | (q[:, :, 3] & 15) << 4], axis=2)
    high = (q[:, :, 0] >> 4) | (q[:, :, 1] >> 4) << 2 | (q[:, :, 2] >> 4) << 4 | (q[:, :, 3] >> 4) << 6
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), sc.view(np.uint8), halves(d)], axis=1).reshape(len(x), -1)


def codes(rows, cols, t):
    """Any codes, with scales such that weights have the deviation 1 / sqrt(cols): finding the best ones for given weights takes minutes a layer."""
    name, rng = t.name.lower(), np.random.default_rng(rows + cols)
    some = code_blocks.blocks(rng, name, (64,), 1)
    size = np.sqrt((quants.dequantize(some, t) ** 2).mean())
    return code_blocks.blocks(rng, name, (rows, cols // code_blocks.CODES[name][0]), 1 / math.sqrt(cols) / size).reshape(rows, -1)


def pack(x, t):
    """Rows of fp32 -> rows of bytes."""
    if t == T.F32:
        return x.view(np.uint8).reshape(len(x), -1)
    if t.name in CODED:
        return codes(len(x), x.shape[1], t)
    own = {T.Q4_K: lambda: pack_k45(x, False), T.Q5_K: lambda: pack_k45(x, True), T.Q6_K: lambda: pack_k6(x)}.get(t)
    rows = own() if own else quants.quantize(x, t)
    return rows.view(np.uint8).reshape(len(x), -1)


# --- the file ---------------------------------------------------------------------------------------------------------

def normal(rng, rows, cols):
    return rng.standard_normal((rows, cols), dtype=np.float32) / np.float32(math.sqrt(cols))


def tensor(rng, pools, name, dims, t):
    """Bytes of a tensor: [.., row bytes]."""
    if len(dims) == 1:
        return 1 + 0.1 * rng.standard_normal(dims, dtype=np.float32)
    rows, cols = math.prod(dims[:-1]), dims[-1]
    if "token_embd" in name or name == "output.weight" or t == T.F32:      # rows that repeat would tie
        out = np.concatenate([pack(normal(rng, min(8192, rows - at), cols), t) for at in range(0, rows, 8192)])
    else:
        key = (t, cols)
        if key not in pools:
            pools[key] = pack(normal(rng, POOL, cols), t)
        out = pools[key][rng.integers(0, POOL, rows)]
    if t == T.F32:
        return out.view(np.float32).reshape(dims)
    return out.reshape(*dims[:-1], -1)


def tokens(n):
    """A byte-level vocabulary: the bytes as GPT-2 writes them, one merge, numbered words, an end of text."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]
    return [*letters, "th", *(f"w{i}" for i in range(n - 258)), "<|end|>"]


def write(path, name, kind):
    shape, rng, pools = SHAPES[name], np.random.default_rng(11), {}
    w = GGUFWriter(path + ".part", shape.arch)
    w.add_name(f"random {name}")
    w.add_file_type(FILE_TYPE[kind])
    for key, value in ({"block_count": shape.layers, "context_length": 40960, "embedding_length": shape.hidden, "vocab_size": shape.vocab} | shape.keys).items():
        add = w.add_bool if isinstance(value, bool) else w.add_uint32 if isinstance(value, int) else w.add_string if isinstance(value, str) else w.add_float32
        add(f"{shape.arch}.{key}", value)
    vocabulary = tokens(shape.vocab)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("default")
    w.add_token_list(vocabulary)
    w.add_token_types([1] * (len(vocabulary) - 1) + [3])
    w.add_token_merges(["t h"])
    w.add_eos_token_id(len(vocabulary) - 1)
    w.add_add_bos_token(False)
    plan = [(n, dims, type_of(shape, kind, n, dims)) for n, dims in shape.all()]
    for n, dims, t in plan:
        raw = quants.quant_shape_to_byte_shape(dims, t) if t != T.F32 else tuple(dims)
        nbytes = math.prod(raw) * (4 if t == T.F32 else 1)
        w.add_tensor_info(n, raw, np.dtype(np.float32 if t == T.F32 else np.uint8), nbytes, raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for n, dims, t in plan:
        w.write_tensor_data(np.ascontiguousarray(tensor(rng, pools, n, dims, t)))
    w.close()
    os.rename(path + ".part", path)


def make(name, kind, folder=None):
    """Its path; made when it is not there."""
    folder = folder or os.environ.get("LLMC_PEER_MODELS") or os.path.join(CACHE, "peer-models")
    path = os.path.join(folder, f"{name}-{kind}.gguf")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        print(f"random_gguf: writing {path}", file=sys.stderr, flush=True)
        write(path, name, kind)
    return path


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("shape", nargs="?", choices=SHAPES)
    ap.add_argument("type", nargs="?", choices=TYPES)
    ap.add_argument("-o", "--out", help="file [in LLMC_PEER_MODELS, else in the cache]")
    ap.add_argument("--list", action="store_true", help="shapes and what their files hold")
    a = ap.parse_args()
    if a.list:
        for name, s in SHAPES.items():
            print(f"{name:20} {s.arch:10} {s.layers} layers, {sum(math.prod(d) for _, d in s.all()) / 1e6:.0f} M weights")
        return
    if not a.type:
        ap.error("name a shape and a type")
    if a.out:
        write(a.out, a.shape, a.type)
    print(a.out or make(a.shape, a.type))


if __name__ == "__main__":
    main()
