#!/usr/bin/env python3
"""GGUF files with the sizes of real models, few layers and random weights, for comparisons of
speed.

    random_gguf.py SHAPE TYPE [-o FILE]     random_gguf.py --list

Sizes come from the published configurations. Types are mixed as llama-quantize mixes them, with its
fallbacks for rows that are not a multiple of 256. Weights are normal with deviation 1 /
sqrt(columns), so that activations keep their magnitude and routers choose about evenly. The rows of
a layer's matrix are drawn from 4096 rows that were quantised once, since quantising is slow. The
tokenizer is synthetic: single bytes and numbered words."""

import argparse
import enum
import math
import os
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T, GGUFWriter, quants

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "kernels"))
import code_blocks  # noqa: E402

# the gguf package has this type only since 0.18
MXFP4 = getattr(T, "MXFP4", None) or enum.IntEnum("Newer", {"MXFP4": 39}).MXFP4
GGML_QUANT_SIZES.setdefault(MXFP4, (32, 17))
POOL = 4096
CACHE = os.environ.get("LLMC_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "llmc"
)


# --- shapes: (architecture, keys, layers, {tensor: [rows of the file's order, outermost first]} ) ---------------------


def gqa(hidden, heads, kv_heads, head_dim, qk_norm=False):
    """Return the tensors of grouped-query attention."""
    t = {
        "attn_q": [heads * head_dim, hidden],
        "attn_k": [kv_heads * head_dim, hidden],
        "attn_v": [kv_heads * head_dim, hidden],
        "attn_output": [hidden, heads * head_dim],
    }
    return t | ({"attn_q_norm": [head_dim], "attn_k_norm": [head_dim]} if qk_norm else {})


def ffn(hidden, width):
    return {"ffn_gate": [width, hidden], "ffn_up": [width, hidden], "ffn_down": [hidden, width]}


def experts(hidden, n, width, shared=0):
    t = {
        "ffn_gate_inp": [n, hidden],
        "ffn_gate_exps": [n, width, hidden],
        "ffn_up_exps": [n, width, hidden],
        "ffn_down_exps": [n, hidden, width],
    }
    return t | (
        {
            "ffn_gate_shexp": [shared, hidden],
            "ffn_up_shexp": [shared, hidden],
            "ffn_down_shexp": [hidden, shared],
        }
        if shared
        else {}
    )


class Shape:
    """The shape of a file.

    tensors(i): tensors of layer i; ".weight" is appended unless a suffix is given. MoE models get a
    smaller vocabulary, since their few layers would otherwise be small compared with the LM head.
    values: centre and deviation of vectors that are not about 1, by the end of their names."""

    def __init__(
        self, arch, layers, hidden, vocab, keys, tensors, tied=False, extra=None, values=None
    ):
        self.arch, self.layers, self.hidden, self.vocab, self.keys, self.tensors, self.tied = (
            arch,
            layers,
            hidden,
            vocab,
            keys,
            tensors,
            tied,
        )
        self.extra, self.values = extra or {}, {".bias": (0, 0.1)} | (values or {})

    def all(self):
        yield "token_embd.weight", [self.vocab, self.hidden]
        yield from self.extra.items()
        for i in range(self.layers):
            own = self.tensors(i)
            norms = {
                "attn_norm": [self.hidden],
                "post_attention_norm"
                if "ffn_norm" in own and own["ffn_norm"] is None
                else "ffn_norm": [self.hidden],
            }
            for name, dims in (norms | own).items():
                if dims:
                    yield (
                        f"blk.{i}.{name}" + ("" if "." in name or name == "ssm_a" else ".weight"),
                        dims,
                    )
        yield "output_norm.weight", [self.hidden]
        if not self.tied:
            yield "output.weight", [self.vocab, self.hidden]


def mla(hidden, heads, nope, rope, v, rank):
    """Return the tensors of latent attention as converters write them: k_b and v_b are separate,
    and k_b is transposed. There is no query latent, so its rank is 0: llama.cpp recognises files
    without one by their number of layers."""
    return {
        "attn_q": [heads * (nope + rope), hidden],
        "attn_kv_a_mqa": [rank + rope, hidden],
        "attn_kv_a_norm": [rank],
        "attn_k_b": [heads, rank, nope],
        "attn_v_b": [heads, v, rank],
        "attn_output": [hidden, heads * v],
    }


def deepseek_lite(
    layers, hidden, heads, nope, rope, v, rank, dense, n, top_k, width, shared, vocab
):
    attention = mla(hidden, heads, nope, rope, v, rank)
    keys = {
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "feed_forward_length": dense,
        "attention.q_lora_rank": 0,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": v,
        "rope.dimension_count": rope,
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.yarn_log_multiplier": 0.0707,
        "leading_dense_block_count": 1,
        "expert_count": n,
        "expert_used_count": top_k,
        "expert_shared_count": shared,
        "expert_feed_forward_length": width,
        "expert_weights_scale": 1.0,
        "expert_weights_norm": False,
        "expert_gating_func": 1,
    }
    return Shape(
        "deepseek2",
        layers,
        hidden,
        vocab,
        keys,
        lambda i: attention
        | (experts(hidden, n, width, shared * width) if i else ffn(hidden, dense)),
    )


def qwen3_moe(layers, hidden, heads, kv_heads, head_dim, dense, n, top_k, width, vocab):
    keys = {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "feed_forward_length": dense,
        "expert_count": n,
        "expert_used_count": top_k,
        "expert_feed_forward_length": width,
    }
    return Shape(
        "qwen3moe",
        layers,
        hidden,
        vocab,
        keys,
        lambda i: gqa(hidden, heads, kv_heads, head_dim, True) | experts(hidden, n, width),
    )


def llama(layers, hidden, heads, kv_heads, width, theta, vocab, tied=False, n=0, top_k=0):
    dim = hidden // heads
    keys = {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": dim,
        "rope.freq_base": theta,
        "feed_forward_length": width,
    }
    keys |= {"expert_count": n, "expert_used_count": top_k} if n else {}
    return Shape(
        "llama",
        layers,
        hidden,
        vocab,
        keys,
        lambda i: gqa(hidden, heads, kv_heads, dim)
        | (experts(hidden, n, width) if n else ffn(hidden, width)),
        tied,
    )


def delta(
    layers,
    hidden,
    heads,
    kv_heads,
    k_heads,
    v_heads,
    vocab,
    feed_forward,
    keys,
    arch,
    head_dim=256,
    dim=128,
):
    """Return a shape with three delta-rule layers per attention layer. Query rows of attention are
    followed by their gate; value heads are ordered as ggml repeats key heads."""
    attention = {
        "attn_q": [2 * heads * head_dim, hidden],
        "attn_k": [kv_heads * head_dim, hidden],
        "attn_v": [kv_heads * head_dim, hidden],
        "attn_output": [hidden, heads * head_dim],
        "attn_q_norm": [head_dim],
        "attn_k_norm": [head_dim],
    }
    rows = (2 * k_heads + v_heads) * dim
    rule = {
        "attn_qkv": [rows, hidden],
        "attn_gate": [v_heads * dim, hidden],
        "ssm_conv1d": [rows, 4],
        "ssm_dt.bias": [v_heads],
        "ssm_a": [v_heads],
        "ssm_beta": [v_heads, hidden],
        "ssm_alpha": [v_heads, hidden],
        "ssm_norm": [dim],
        "ssm_out": [hidden, v_heads * dim],
    }
    keys = {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e7,
        "rope.dimension_count": head_dim // 4,
        "rope.dimension_sections": [11, 11, 10, 0],
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.state_size": dim,
        "ssm.group_count": k_heads,
        "ssm.time_step_rank": v_heads,
        "ssm.inner_size": v_heads * dim,
    } | keys
    return Shape(
        arch,
        layers,
        hidden,
        vocab,
        keys,
        lambda i: {"ffn_norm": None} | (attention if i % 4 == 3 else rule) | feed_forward,
        values={"ssm_a": (-1, 0.1), "ssm_dt.bias": (-2, 0.5)},
    )


def qwen35(layers, hidden, heads, kv_heads, k_heads, v_heads, width, vocab):
    return delta(
        layers,
        hidden,
        heads,
        kv_heads,
        k_heads,
        v_heads,
        vocab,
        ffn(hidden, width),
        {"feed_forward_length": width},
        "qwen35",
    )


def qwen35_moe(layers, hidden, heads, kv_heads, k_heads, v_heads, n, top_k, width, vocab):
    keys = {
        "expert_count": n,
        "expert_used_count": top_k,
        "expert_feed_forward_length": width,
        "expert_shared_feed_forward_length": width,
    }
    return delta(
        layers,
        hidden,
        heads,
        kv_heads,
        k_heads,
        v_heads,
        vocab,
        experts(hidden, n, width, width) | {"ffn_gate_inp_shexp": [hidden]},
        keys,
        "qwen35moe",
    )


def gpt_oss(layers, hidden, heads, kv_heads, dim, n, top_k, width, vocab):
    """Return a shape with windows of 128 on every other layer, sinks, and biases on all
    matrices."""
    bias = {
        "attn_q.bias": [heads * dim],
        "attn_k.bias": [kv_heads * dim],
        "attn_v.bias": [kv_heads * dim],
        "attn_output.bias": [hidden],
        "attn_sinks": [heads],
        "ffn_gate_inp.bias": [n],
        "ffn_gate_exps.bias": [n, width],
        "ffn_up_exps.bias": [n, width],
        "ffn_down_exps.bias": [n, hidden],
    }
    keys = {
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 128,
        "feed_forward_length": width,
        "expert_feed_forward_length": width,
        "expert_count": n,
        "expert_used_count": top_k,
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }
    return Shape(
        "gpt-oss",
        layers,
        hidden,
        vocab,
        keys,
        lambda i: {"ffn_norm": None}
        | gqa(hidden, heads, kv_heads, dim)
        | experts(hidden, n, width)
        | bias,
    )


def gemma4(
    layers,
    hidden,
    heads,
    kv_heads,
    width,
    window,
    vocab,
    full_kv=None,
    n=0,
    top_k=0,
    expert=0,
    per_layer=0,
    shared=0,
    dim=256,
    full_dim=512,
):
    """Return a shape with windows on five of six layers. Large models have experts in addition to
    the dense feed-forward, and layers whose values are made from the keys. Small models have
    per-layer embeddings, and last layers that read the KV of earlier ones."""
    full = [i % 6 == 5 for i in range(layers)]

    def tensors(i):
        d, kv = (full_dim, full_kv or kv_heads) if full[i] else (dim, kv_heads)
        t = (
            gqa(hidden, heads, kv, d, True)
            | ffn(hidden, width)
            | {
                "post_attention_norm": [hidden],
                "post_ffw_norm": [hidden],
                "layer_output_scale": [1],
            }
        )
        drop = (
            ["attn_k", "attn_v", "attn_k_norm"]
            if i >= layers - shared
            else ["attn_v"]
            if full[i] and full_kv
            else []
        )
        if n:
            t |= {
                "ffn_gate_inp": [n, hidden],
                "ffn_gate_inp.scale": [hidden],
                "ffn_gate_up_exps": [n, 2 * expert, hidden],
                "ffn_down_exps": [n, hidden, expert],
                "ffn_down_exps.scale": [n],
                "post_ffw_norm_1": [hidden],
                "pre_ffw_norm_2": [hidden],
                "post_ffw_norm_2": [hidden],
            }
        if per_layer:
            t |= {
                "inp_gate": [per_layer, hidden],
                "proj": [hidden, per_layer],
                "post_norm": [hidden],
            }
        return {k: v for k, v in t.items() if k not in drop}

    keys = {
        "attention.head_count": heads,
        "attention.head_count_kv": [(full_kv or kv_heads) if f else kv_heads for f in full]
        if full_kv
        else kv_heads,
        "attention.key_length": full_dim,
        "attention.value_length": full_dim,
        "attention.key_length_swa": dim,
        "attention.value_length_swa": dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [not f for f in full],
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": per_layer,
        "feed_forward_length": width,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 1e4,
        "rope.dimension_count": full_dim,
        "rope.dimension_count_swa": dim,
        "final_logit_softcapping": 30.0,
    }
    keys |= (
        {"expert_count": n, "expert_used_count": top_k, "expert_feed_forward_length": expert}
        if n
        else {}
    )
    extra = {"rope_freqs.weight": [full_dim // 2]}
    if per_layer:
        extra |= {
            "per_layer_token_embd.weight": [vocab, layers * per_layer],
            "per_layer_model_proj.weight": [layers * per_layer, hidden],
            "per_layer_proj_norm.weight": [per_layer],
        }
    # the scores have no scale, so norms contain it; the router's input is divided by the root of
    # the hidden size
    small = (0.2, 0.02)
    return Shape(
        "gemma4",
        layers,
        hidden,
        vocab,
        keys,
        tensors,
        True,
        extra,
        {
            "attn_q_norm.weight": small,
            "attn_k_norm.weight": small,
            "ffn_gate_inp.scale": (math.sqrt(hidden), 1),
        },
    )


SHAPES = {
    "qwen3-30b-a3b": qwen3_moe(
        4, 2048, 32, 4, 128, 6144, 128, 8, 768, 32768
    ),  # Qwen/Qwen3-30B-A3B: 48 layers
    "deepseek-v2-lite": deepseek_lite(
        4, 2048, 16, 128, 64, 128, 512, 10944, 64, 6, 1408, 2, 32768
    ),  # deepseek-ai/DeepSeek-V2-Lite: 27
    "mixtral-8x7b": llama(
        2, 4096, 32, 8, 14336, 1e6, 32000, n=8, top_k=2
    ),  # mistralai/Mixtral-8x7B-v0.1: 32
    "llama3.2-1b": llama(
        16, 2048, 32, 8, 8192, 500000.0, 128256, tied=True
    ),  # meta-llama/Llama-3.2-1B, complete
    "qwen3.5-9b": qwen35(4, 4096, 16, 4, 16, 32, 12288, 32768),  # Qwen/Qwen3.5-9B: 32 layers
    "qwen3.5-35b-a3b": qwen35_moe(
        4, 2048, 16, 2, 16, 32, 256, 8, 512, 32768
    ),  # Qwen/Qwen3.5-35B-A3B: 40
    "gpt-oss-20b": gpt_oss(4, 2880, 64, 8, 64, 32, 4, 2880, 32768),  # openai/gpt-oss-20b: 24
    "gemma4-26b-a4b": gemma4(
        6, 2816, 16, 8, 2112, 1024, 32768, 2, 128, 8, 704
    ),  # google/gemma-4-26B-A4B: 30
    "gemma4-e4b": gemma4(
        12, 2560, 8, 2, 10240, 512, 32768, per_layer=256, shared=6
    ),  # google/gemma-4-E4B: 42, of which 18 share
    # the same architectures, small enough for a test
    "tiny-qwen3moe": qwen3_moe(2, 256, 4, 2, 64, 512, 5, 2, 256, 512),
    "tiny-deepseek": deepseek_lite(2, 256, 4, 32, 32, 32, 64, 512, 7, 3, 96, 2, 512),
    "tiny-mixtral": llama(2, 256, 4, 2, 512, 1e6, 512, n=8, top_k=2),
    "tiny-llama": llama(2, 256, 4, 2, 512, 1e4, 512, tied=True),
    "tiny-qwen35": qwen35(4, 256, 2, 1, 2, 4, 512, 512),
    "tiny-qwen35moe": qwen35_moe(4, 256, 2, 1, 2, 4, 6, 2, 256, 512),
    "tiny-gpt-oss": gpt_oss(4, 320, 4, 2, 64, 8, 2, 192, 512),
    "tiny-gemma4-moe": gemma4(6, 256, 4, 2, 512, 64, 512, 1, 6, 2, 96),
    "tiny-gemma4": gemma4(12, 256, 4, 2, 512, 64, 512, per_layer=256, shared=6),
}
# low-bit types (tests/kernels/code_blocks.py): files like those of llama-quantize, but without its
# higher types for some matrices; the head keeps its higher type
CODED = {
    "Q2_K": 10,
    "Q3_K": 12,
    "IQ4_NL": 25,
    "IQ4_XS": 30,
    "IQ3_S": 26,
    "IQ3_XXS": 23,
    "IQ2_S": 28,
    "IQ2_XS": 20,
    "IQ2_XXS": 19,
    "IQ1_S": 24,
    "IQ1_M": 31,
    "TQ1_0": 36,
    "TQ2_0": 37,
}
TYPES = ("Q4_0", "Q4_K_M", "Q8_0", "MXFP4", "F16", "BF16", *CODED)
FILE_TYPE = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32, "MXFP4": 38, **CODED}


# --- types ------------------------------------------------------------------------------------------------------------


def type_of(shape, kind, name, dims):
    """Return the type that llama-quantize gives a tensor in a file of this kind."""
    if (
        len(dims) < 2
        or "_norm" in name
        or "ffn_gate_inp" in name
        or "ssm_conv1d" in name
        or name.endswith(".bias")
    ):
        return T.F32
    if name == "per_layer_model_proj.weight":  # llama-quantize keeps the type of this tensor
        return T.BF16
    if kind in ("F16", "BF16"):
        return T[kind]
    if kind == "MXFP4":
        return MXFP4 if len(dims) == 3 else T.Q8_0
    t = T.Q4_K if kind == "Q4_K_M" else T[kind]
    eight = shape.keys.get("expert_count") == 8
    layer = int(name.split(".")[1]) if name.startswith("blk.") else 0
    n = shape.layers
    more = kind == "Q4_K_M" and (layer < n // 8 or layer >= 7 * n // 8 or (layer - n // 8) % 3 == 2)
    if name == "output.weight" or shape.tied and "token_embd.weight" in name:
        t = T.Q6_K if kind != "Q8_0" else t
    elif ".attn_v." in name or ".attn_qkv." in name:
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
    """Pack rows [n, 256 k] as Q4_K and Q5_K: eight 6-bit scales and minima per 256 columns."""
    top = 31 if five else 15
    b = x.reshape(-1, 8, 32)
    low = np.maximum(0, -b.min(axis=2))
    step = (b.max(axis=2) + low) / top
    d = step.max(axis=1).astype(np.float16)
    dmin = (low.max(axis=1) / 63).astype(np.float16)
    d = (d.astype(np.float32) / 63).astype(np.float16)
    sc = np.clip(np.rint(step / np.maximum(d.astype(np.float32)[:, None], 1e-12)), 0, 63).astype(
        np.uint8
    )
    mn = np.clip(np.rint(low / np.maximum(dmin.astype(np.float32)[:, None], 1e-12)), 0, 63).astype(
        np.uint8
    )
    scale = (d.astype(np.float32)[:, None] * sc)[:, :, None]
    q = np.clip(
        np.rint(
            (b + (dmin.astype(np.float32)[:, None] * mn)[:, :, None]) / np.maximum(scale, 1e-12)
        ),
        0,
        top,
    ).astype(np.uint8)
    s = np.concatenate(
        [
            sc[:, :4] | sc[:, 4:] >> 4 << 6,
            mn[:, :4] | mn[:, 4:] >> 4 << 6,
            sc[:, 4:] & 15 | (mn[:, 4:] & 15) << 4,
        ],
        axis=1,
    )
    low4 = (q[:, 0::2] & 15) | (q[:, 1::2] & 15) << 4
    parts = [halves(d), halves(dmin), s]
    if five:
        parts.append(
            ((q >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1, dtype=np.uint8)
        )
    parts.append(low4.reshape(-1, 128))
    return np.concatenate(parts, axis=1).reshape(len(x), -1)


def pack_k6(x):
    """Pack Q6_K: sixteen 8-bit scales per 256 columns."""
    b = x.reshape(-1, 16, 16)
    step = np.abs(b).max(axis=2) / 31
    d = (step.max(axis=1) / 127).astype(np.float16)
    sc = np.clip(np.rint(step / np.maximum(d.astype(np.float32)[:, None], 1e-12)), 1, 127).astype(
        np.int8
    )
    q = np.clip(
        np.rint(b / np.maximum(d.astype(np.float32)[:, None] * sc, 1e-12)[:, :, None]), -32, 31
    ).astype(np.int8)
    q = (q + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate(
        [(q[:, :, 0] & 15) | (q[:, :, 2] & 15) << 4, (q[:, :, 1] & 15) | (q[:, :, 3] & 15) << 4],
        axis=2,
    )
    high = (
        (q[:, :, 0] >> 4) | (q[:, :, 1] >> 4) << 2 | (q[:, :, 2] >> 4) << 4 | (q[:, :, 3] >> 4) << 6
    )
    return np.concatenate(
        [low.reshape(-1, 128), high.reshape(-1, 64), sc.view(np.uint8), halves(d)], axis=1
    ).reshape(len(x), -1)


def pack_mxfp4(x):
    """Pack an 8-bit exponent and 32 values of E2M1, in the order of Q4_0."""
    b = x.reshape(len(x), -1, 32)
    e = np.clip(np.floor(np.log2(np.maximum(np.abs(b).max(axis=2), 1e-30))) - 2, -127, 127)
    size = np.abs(b) / np.exp2(e)[..., None]
    q = (
        np.searchsorted(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5], np.float32), size).astype(
            np.uint8
        )
        | (b < 0).astype(np.uint8) << 3
    )
    return np.concatenate(
        [(e + 127).astype(np.uint8)[..., None], q[..., :16] | q[..., 16:] << 4], axis=2
    ).reshape(len(x), -1)


def codes(rows, cols, t):
    """Return random codes with scales that give weights the deviation 1 / sqrt(cols); searching for
    the best codes takes minutes per layer."""
    name, rng = t.name.lower(), np.random.default_rng(rows + cols)
    some = code_blocks.blocks(rng, name, (64,), 1)
    size = np.sqrt((quants.dequantize(some, t) ** 2).mean())
    return code_blocks.blocks(
        rng, name, (rows, cols // code_blocks.CODES[name][0]), 1 / math.sqrt(cols) / size
    ).reshape(rows, -1)


def pack(x, t):
    """Pack rows of fp32 into rows of bytes."""
    if t == T.F32:
        return x.view(np.uint8).reshape(len(x), -1)
    if t.name in CODED:
        return codes(len(x), x.shape[1], t)
    own = {
        T.Q4_K: lambda: pack_k45(x, False),
        T.Q5_K: lambda: pack_k45(x, True),
        T.Q6_K: lambda: pack_k6(x),
        MXFP4: lambda: pack_mxfp4(x),
    }.get(t)
    rows = own() if own else quants.quantize(x, t)
    return rows.view(np.uint8).reshape(len(x), -1)


# --- the file ---------------------------------------------------------------------------------------------------------


def normal(rng, rows, cols):
    return rng.standard_normal((rows, cols), dtype=np.float32) / np.float32(math.sqrt(cols))


def tensor(rng, pools, shape, name, dims, t):
    """Return the bytes of a tensor: [.., row bytes]."""
    if name == "rope_freqs.weight":  # a quarter of the pairs rotate
        return np.where(np.arange(dims[0]) < dims[0] // 4, 1, 1e30).astype(np.float32)
    if len(dims) == 1:
        centre, spread = next(
            (v for end, v in shape.values.items() if name.endswith(end)), (1, 0.1)
        )
        return np.float32(centre) + np.float32(spread) * rng.standard_normal(dims, dtype=np.float32)
    rows, cols = math.prod(dims[:-1]), dims[-1]
    # repeated rows would give equal logits
    if "token_embd" in name or name == "output.weight" or t == T.F32:
        out = np.concatenate(
            [pack(normal(rng, min(8192, rows - at), cols), t) for at in range(0, rows, 8192)]
        )
    else:
        key = (t, cols)
        if key not in pools:
            pools[key] = pack(normal(rng, POOL, cols), t)
        out = pools[key][rng.integers(0, POOL, rows)]
    if t == T.F32:
        return out.view(np.float32).reshape(dims)
    return out.reshape(*dims[:-1], -1)


def tokens(n):
    """Return a byte-level vocabulary: bytes in GPT-2's spelling, one merge, numbered words, an
    end-of-text token."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(len(rest))]
    return [*letters, "th", *(f"w{i}" for i in range(n - 258)), "<|end|>"]


def write(path, name, kind):
    shape, rng, pools = SHAPES[name], np.random.default_rng(11), {}
    w = GGUFWriter(path + ".part", shape.arch)
    w.add_name(f"random {name}")
    w.add_file_type(FILE_TYPE[kind])
    for key, value in (
        {
            "block_count": shape.layers,
            "context_length": 40960,
            "embedding_length": shape.hidden,
            "vocab_size": shape.vocab,
        }
        | shape.keys
    ).items():
        add = next(
            a
            for kind, a in (
                (bool, w.add_bool),
                (int, w.add_uint32),
                (str, w.add_string),
                (list, w.add_array),
                (float, w.add_float32),
            )
            if isinstance(value, kind)
        )
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
        w.add_tensor_info(
            n, raw, np.dtype(np.float32 if t == T.F32 else np.uint8), nbytes, raw_dtype=t
        )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for n, dims, t in plan:
        w.write_tensor_data(np.ascontiguousarray(tensor(rng, pools, shape, n, dims, t)))
    w.close()
    os.rename(path + ".part", path)


def make(name, kind, folder=None):
    """Return the path of the file; create it if it is missing."""
    folder = folder or os.environ.get("LLMC_PEER_MODELS") or os.path.join(CACHE, "peer-models")
    path = os.path.join(folder, f"{name}-{kind}.gguf")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        print(f"random_gguf: writing {path}", file=sys.stderr, flush=True)
        write(path, name, kind)
    return path


def main():
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("shape", nargs="?", choices=SHAPES)
    ap.add_argument("type", nargs="?", choices=TYPES)
    ap.add_argument("-o", "--out", help="file [in LLMC_PEER_MODELS, else in the cache]")
    ap.add_argument(
        "--list", action="store_true", help="list shapes and the contents of their files"
    )
    a = ap.parse_args()
    if a.list:
        for name, s in SHAPES.items():
            print(
                f"{name:20} {s.arch:10} {s.layers} layers, {sum(math.prod(d) for _, d in s.all()) / 1e6:.0f} M weights"
            )
        return
    if not a.type:
        ap.error("name a shape and a type")
    if a.out:
        write(a.out, a.shape, a.type)
    print(a.out or make(a.shape, a.type))


if __name__ == "__main__":
    main()
