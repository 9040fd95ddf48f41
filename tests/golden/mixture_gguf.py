"""Tiny GGUF files with MoE and latent attention, made like published files: types mixed by role and layer as in
llama-quantize, types with blocks of 32 for rows that are not a multiple of 256, the factors of latent attention
quantised, or in one tensor as in older files, and MTP layers.

The `gguf` package writes the files and reads their values back; no code of llmc is involved. Weights are derived from
names (weights.py), so the tests write the same files as make_mixture_gguf.py, which computes the logits with transformers.
"""

import os

import gguf
import numpy as np

import weights as W

OUT = os.path.join(W.HERE, "gguf-mixtures")
VOCAB = 150
Q = gguf.GGMLQuantizationType
CASES = {}


def case(name, config, types, **more):
    """Define a case. types: [(part of a tensor's name, type)], the first match applies; older,
    nextn: variants of the file."""
    CASES[name] = dict(config=config, types=types, older=False, nextn=0) | more


COMMON = dict(
    vocab_size=VOCAB,
    hidden_act="silu",
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    rope_theta=500.0,
    bos_token_id=1,
    eos_token_id=2,
    attention_bias=False,
)
YARN = dict(type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1)
V2 = dict(
    COMMON,
    model_type="deepseek_v2",
    hidden_size=96,
    intermediate_size=96,
    moe_intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=3,
    n_shared_experts=2,
    n_routed_experts=5,
    num_experts_per_tok=2,
    routed_scaling_factor=1.0,
    kv_lora_rank=64,
    q_lora_rank=None,
    qk_rope_head_dim=16,
    qk_nope_head_dim=32,
    v_head_dim=64,
    topk_method="greedy",
    n_group=1,
    topk_group=1,
    norm_topk_prob=False,
    first_k_dense_replace=1,
    moe_layer_freq=1,
)
# V2-Lite: no query latent; all matrices in Q4_0, also k_b and v_b
case(
    "deepseek2-lite-q4_0",
    dict(V2, rope_scaling=dict(YARN, mscale=0.707, mscale_all_dim=0.707)),
    [("", Q.Q4_0)],
)
# like Q4_K_M: down in Q6_K in every second layer; rows that are not a multiple of 256 in types with blocks of 32
case(
    "deepseek2-k-quants",
    dict(
        V2,
        hidden_size=256,
        moe_intermediate_size=256,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=256,
        kv_lora_rank=256,
        num_hidden_layers=3,
        v_head_dim=32,
        qk_nope_head_dim=64,
        n_routed_experts=6,
        n_group=3,
        topk_group=2,
        topk_method="group_limited_greedy",
        routed_scaling_factor=4.0,
        intermediate_size=96,
    ),
    [
        ("attn_k_b", Q.Q5_0),
        ("attn_output", Q.Q5_0),
        ("blk.0.ffn_down", Q.Q5_0),
        ("blk.1.ffn_down_exps", Q.Q6_K),
        ("shexp", Q.Q5_K),
        ("output.weight", Q.Q6_K),
        ("", Q.Q4_K),
    ],
)
# an old file, from before the absorbed form: kv_b is one tensor, head sizes are full, there is no
# gating function and no groups
case(
    "deepseek2-older-q8_0",
    dict(V2, hidden_size=160, kv_lora_rank=32, num_attention_heads=5, num_key_value_heads=5),
    [("", Q.Q8_0)],
    older=True,
)
V3 = dict(
    V2,
    model_type="deepseek_v3",
    q_lora_rank=32,
    n_routed_experts=7,
    num_experts_per_tok=3,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
)
# rank 40 is not a multiple of a block, so v_b remains in 16 bits; k_b is quantised, because its
# rows have nope_dim elements. The file has an MTP layer
case(
    "deepseek2-v3-nextn",
    dict(V3, kv_lora_rank=40, rope_scaling=dict(YARN, mscale=1.0, mscale_all_dim=1.0)),
    [("attn_v_b", Q.F16), ("attn_k_b", Q.Q5_1), ("ffn_down_exps", Q.Q5_0), ("", Q.Q8_0)],
    nextn=1,
)
MOE = dict(
    COMMON,
    hidden_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=96,
)
# with moe_intermediate_size 96, down has types Q5_0 and Q8_0 where Q4_K_M would have Q4_K and Q6_K
case(
    "qwen3moe-q4_k_m",
    dict(
        MOE,
        model_type="qwen3_moe",
        num_experts=7,
        num_experts_per_tok=7,
        moe_intermediate_size=96,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    [
        ("blk.0.ffn_down_exps", Q.Q8_0),
        ("ffn_down_exps", Q.Q5_0),
        ("attn_output", Q.Q5_0),
        ("attn_v", Q.Q6_K),
        ("", Q.Q4_K),
    ],
)
case(
    "mixtral-mixed",
    dict(
        MOE, model_type="mixtral", num_local_experts=5, num_experts_per_tok=2, sliding_window=None
    ),
    [
        ("blk.0.ffn_down_exps", Q.Q5_1),
        ("ffn_gate_exps", Q.Q4_1),
        ("token_embd", Q.Q4_0),
        ("ffn_gate_inp", Q.F16),
        ("", Q.Q8_0),
    ],
)
case(
    "qwen2moe-q4_0",
    dict(
        MOE,
        model_type="qwen2_moe",
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=64,
        shared_expert_intermediate_size=96,
        norm_topk_prob=False,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        use_sliding_window=False,
        sliding_window=None,
        max_window_layers=2,
        head_dim=64,
    ),
    [("blk.1.ffn_down_exps", Q.Q4_1), ("output.weight", Q.Q6_K), ("", Q.Q4_0)],
)
ARCH = {
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "qwen3_moe": "qwen3moe",
    "mixtral": "llama",
    "qwen2_moe": "qwen2moe",
}


def shapes(c):
    """GGUF name -> shape, rows first"""
    g = c["config"]
    H, heads, V = g["hidden_size"], g["num_attention_heads"], g["vocab_size"]
    latent = "kv_lora_rank" in g
    E = g.get("n_routed_experts") or g.get("num_experts") or g["num_local_experts"]
    width = g.get("moe_intermediate_size", g["intermediate_size"])
    out = {"token_embd.weight": (V, H), "output_norm.weight": (H,), "output.weight": (V, H)}
    for i in range(g["num_hidden_layers"] + c["nextn"]):
        b = f"blk.{i}."
        out |= {b + "attn_norm.weight": (H,), b + "ffn_norm.weight": (H,)}
        if latent:
            nope, rope, v, rank, q_rank = (
                g[k]
                for k in (
                    "qk_nope_head_dim",
                    "qk_rope_head_dim",
                    "v_head_dim",
                    "kv_lora_rank",
                    "q_lora_rank",
                )
            )
            q_rows = heads * (nope + rope)
            if q_rank:
                out |= {
                    b + "attn_q_a.weight": (q_rank, H),
                    b + "attn_q_a_norm.weight": (q_rank,),
                    b + "attn_q_b.weight": (q_rows, q_rank),
                }
            else:
                out[b + "attn_q.weight"] = (q_rows, H)
            out |= {
                b + "attn_kv_a_mqa.weight": (rank + rope, H),
                b + "attn_kv_a_norm.weight": (rank,),
                b + "attn_output.weight": (H, heads * v),
            }
            if c["older"]:
                out[b + "attn_kv_b.weight"] = (heads * (nope + v), rank)
            else:
                out |= {
                    b + "attn_k_b.weight": (heads, rank, nope),
                    b + "attn_v_b.weight": (heads, v, rank),
                }
        else:
            D, kv = g["head_dim"], g["num_key_value_heads"]
            out |= {
                b + "attn_q.weight": (heads * D, H),
                b + "attn_k.weight": (kv * D, H),
                b + "attn_v.weight": (kv * D, H),
                b + "attn_output.weight": (H, heads * D),
            }
            if g["model_type"] == "qwen3_moe":
                out |= {b + "attn_q_norm.weight": (D,), b + "attn_k_norm.weight": (D,)}
            if g["model_type"] == "qwen2_moe":
                out |= {
                    b + "attn_q.bias": (heads * D,),
                    b + "attn_k.bias": (kv * D,),
                    b + "attn_v.bias": (kv * D,),
                }
        if i < g.get("first_k_dense_replace", 0):
            F = g["intermediate_size"]
            out |= {
                b + "ffn_gate.weight": (F, H),
                b + "ffn_up.weight": (F, H),
                b + "ffn_down.weight": (H, F),
            }
            continue
        out |= {
            b + "ffn_gate_inp.weight": (E, H),
            b + "ffn_gate_exps.weight": (E, width, H),
            b + "ffn_up_exps.weight": (E, width, H),
            b + "ffn_down_exps.weight": (E, H, width),
        }
        if g["model_type"] == "deepseek_v3":
            out[b + "exp_probs_b.bias"] = (E,)
        S = g.get("shared_expert_intermediate_size") or g.get("n_shared_experts", 0) * width
        if S:
            out |= {
                b + "ffn_gate_shexp.weight": (S, H),
                b + "ffn_up_shexp.weight": (S, H),
                b + "ffn_down_shexp.weight": (H, S),
            }
        if g["model_type"] == "qwen2_moe":
            out[b + "ffn_gate_inp_shexp.weight"] = (H,)
        if i >= g["num_hidden_layers"]:
            out |= {
                b + "nextn.eh_proj.weight": (H, 2 * H),
                b + "nextn.enorm.weight": (H,),
                b + "nextn.hnorm.weight": (H,),
            }
    return out


def plain(seed, name, shape):
    n = W.noise(f"{seed}/{name}", int(np.prod(shape))).reshape(shape)
    if name.endswith(".bias"):
        n = 0.3 * np.abs(n)
    elif len(shape) == 1 and "shexp" not in name:
        n = 1 + 0.3 * n
    else:
        n = n * (
            (0.3 if "token_embd" in name else 2.0 if "ffn_gate_inp" in name else 1.2)
            / np.sqrt(shape[-1])
            * (shape[-1] ** 0.5 if "token_embd" in name else 1)
        )
    return n.astype(np.float32)


def random_k_blocks(seed, name, shape, kind):
    """Return random rows of Q4_K, Q5_K or Q6_K, which the gguf package reads but does not write.
    Any bytes are valid codes; only the scales must have a usual magnitude."""
    blocks, size = int(np.prod(shape)) // 256, gguf.GGML_QUANT_SIZES[kind][1]
    start = np.uint64(int.from_bytes(name.encode()[-7:], "little") ^ (seed << 40) ^ len(name) << 56)
    with np.errstate(over="ignore"):
        raw = W.mix(
            start
            + np.arange(blocks * size // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        )
    b = raw.view(np.uint8)[: blocks * size].reshape(blocks, size).copy()
    unit = 1.0 / np.sqrt(shape[-1])
    if kind == Q.Q6_K:
        d = unit / (74 * 18)  # scales of -128..127, values of -32..31
        b[:, 208:210] = np.full((blocks, 1), d, np.float16).view(np.uint8)
    else:
        top = 15 if kind == Q.Q4_K else 31
        d = unit / (17 * top)  # scales and minima of 0..63, values of 0..top
        b[:, 0:2] = np.full((blocks, 1), d, np.float16).view(np.uint8)
        b[:, 2:4] = np.full((blocks, 1), d * top / 2, np.float16).view(np.uint8)
    return b.reshape(*shape[:-1], -1)


def tensor_type(c, name, shape):
    if len(shape) == 1 or "nextn" in name:
        return Q.F32
    if "ffn_gate_inp" in name and not any(part and part in name for part, _ in c["types"]):
        return Q.F32  # llama-quantize does not quantise routers
    kind = next(t for part, t in c["types"] if part in name)
    assert shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0, (name, shape, kind)
    return kind


def stored(c, seed):
    """Return {name: (type, bytes in the file)}, and {name: values that the gguf package reads from
    these bytes}."""
    raw, values = {}, {}
    for name, shape in shapes(c).items():
        kind = tensor_type(c, name, shape)
        if kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
            data = random_k_blocks(seed, name, shape, kind)
        else:
            data = gguf.quants.quantize(plain(seed, name, shape), kind)
        raw[name] = (kind, data)
        values[name] = gguf.quants.dequantize(data, kind).astype(np.float32).reshape(shape)
    return raw, values


def write(path, c, seed, change=None):
    """Write the file. change(writer keys, raw tensors) makes it inconsistent."""
    g, arch = c["config"], ARCH[c["config"]["model_type"]]
    latent = "kv_lora_rank" in g
    blocks = g["num_hidden_layers"] + c["nextn"]
    E = g.get("n_routed_experts") or g.get("num_experts") or g["num_local_experts"]
    keys = {
        "block_count": blocks,
        "context_length": g["max_position_embeddings"],
        "embedding_length": g["hidden_size"],
        "feed_forward_length": g["intermediate_size"],
        "attention.head_count": g["num_attention_heads"],
        "attention.head_count_kv": g["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": g["rms_norm_eps"],
        "rope.freq_base": g["rope_theta"],
        "expert_count": E,
        "expert_used_count": g["num_experts_per_tok"],
        "vocab_size": VOCAB,
    }
    if latent:
        nope, rope, v, rank = (
            g[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank")
        )
        keys |= {
            "leading_dense_block_count": g["first_k_dense_replace"],
            "expert_feed_forward_length": g["moe_intermediate_size"],
            "expert_shared_count": g["n_shared_experts"],
            "expert_weights_scale": g["routed_scaling_factor"],
            "rope.dimension_count": rope,
            "attention.kv_lora_rank": rank,
        }
        if g["q_lora_rank"]:
            keys["attention.q_lora_rank"] = g["q_lora_rank"]
        if c["older"]:
            keys |= {"attention.key_length": nope + rope, "attention.value_length": v}
        else:
            keys |= {
                "attention.key_length": rank + rope,
                "attention.value_length": rank,
                "attention.key_length_mla": nope + rope,
                "attention.value_length_mla": v,
                "attention.head_count_kv": 1,
                "expert_group_count": g["n_group"],
                "expert_group_used_count": g["topk_group"],
                "expert_weights_norm": g["norm_topk_prob"],
                "expert_gating_func": 2 if g["model_type"] == "deepseek_v3" else 1,
            }
        if "rope_scaling" in g:
            s = g["rope_scaling"]
            keys |= {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": s["factor"],
                "rope.scaling.original_context_length": s["original_max_position_embeddings"],
                "rope.scaling.yarn_log_multiplier": 0.1 * s["mscale_all_dim"],
            }
        if c["nextn"]:
            keys["nextn_predict_layers"] = c["nextn"]
    else:
        keys |= {
            "attention.key_length": g["head_dim"],
            "attention.value_length": g["head_dim"],
            "rope.dimension_count": g["head_dim"],
        }
        if g["model_type"] != "mixtral":
            keys["expert_feed_forward_length"] = g["moe_intermediate_size"]
        if "shared_expert_intermediate_size" in g:
            keys["expert_shared_feed_forward_length"] = g["shared_expert_intermediate_size"]
    raw, _ = stored(c, seed)
    if change:
        change(keys, raw)
    w = gguf.GGUFWriter(path, arch)
    for k, value in keys.items():
        add = (
            w.add_string
            if isinstance(value, str)
            else w.add_bool
            if isinstance(value, bool)
            else w.add_float32
            if isinstance(value, float)
            else w.add_uint32
        )
        add(f"{arch}.{k}", value)
    w.add_eos_token_id(2)
    w.add_bos_token_id(1)
    for name, (kind, data) in raw.items():
        w.add_tensor(name, data, raw_dtype=kind if kind not in (Q.F32, Q.F16) else None)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
