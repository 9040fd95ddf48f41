#!/usr/bin/env python3
"""Write tests/golden/models/<case>/{config.json, case.json, logits.npy}: tiny models of every family with odd shapes.

Needs torch and transformers 5 (pip install torch transformers safetensors numpy); ChatGLM and Baichuan come from
other_models.py. Weights are those of weights.py, by name. Run:  python tests/golden/make_models.py [case ...]
Each case has a comment on its purpose; the last line of its output prints how well fp32 determines its logits.
It is one file because it is a list of cases: a family is its configuration and, below it, its cases.
"""

import json
import os
import re
import shutil
import struct
import sys
import tempfile

import numpy as np
import torch

import other_models
import weights as W

torch.set_num_threads(1)
N_PROMPT, N_GREEDY = 37, 8  # prompt and output together fill more than one KV page
# cases that also store the stream after each layer
HIDDEN = (
    "llama-smol",
    "gpt_oss-plain",
    "qwen3_5-plain",
    "qwen3_next-plain",
    "gemma4-plain",
    "nemotron_h-plain",
    "deepseek_v3-plain",
    "kimi_linear-plain",
    "llama4-plain",
    "granitemoehybrid-plain",
    "lfm2-plain",
    "cohere2-pattern",
    "mamba-plain",
)
CASES = {}


def case(
    name,
    model_type,
    base,
    *,
    dtype="f32",
    plus_one=False,
    modern=False,
    greedy=N_GREEDY,
    n=N_PROMPT,
    strip="",
    args=(),
    set=None,
    emb_bf16=False,
    other=None,
    vision=None,
    flat=False,
    **more,
):
    """Define a case. modern: commit the config as transformers 5 writes it, else as given. strip: a
    prefix to remove from tensor names. vision: the model is the text_config of a wrapper of this
    type, without its other parts. flat: commit only the text_config, which is how the model was
    published before the wrapper existed."""
    config = dict(model_type=model_type, **base)
    for k, v in more.items():
        if v is ...:
            config.pop(k, None)
        else:
            config[k] = v
    assert name not in CASES
    CASES[name] = dict(
        config=config,
        dtype=dtype,
        plus_one=plus_one,
        modern=modern,
        n_greedy=greedy,
        n=n,
        strip=strip,
        args=list(args),
        set=set or {},
        emb_bf16=emb_bf16,
        other=other,
        vision=vision,
        flat=flat,
    )


EOS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA = dict(
    vocab_size=131,
    hidden_size=72,
    intermediate_size=100,
    num_hidden_layers=3,
    num_attention_heads=9,
    num_key_value_heads=3,
    hidden_act="silu",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    rope_theta=100.0,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=32)

case("llama-smol", "llama", LLAMA, tie_word_embeddings=True)
case(
    "llama-scaled3",
    "llama",
    LLAMA,
    hidden_size=60,
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=16,
    rope_theta=10000.0,
    rope_scaling=dict(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
)
case(
    "llama-bias-linear-bf16",
    "llama",
    LLAMA,
    dtype="bf16",
    attention_bias=True,
    mlp_bias=True,
    hidden_size=40,
    num_attention_heads=4,
    num_key_value_heads=4,
    rope_scaling=dict(type="linear", factor=2.5),
)
case(
    "llama-yarn",
    "llama",
    LLAMA,
    rope_theta=50.0,
    hidden_size=48,
    num_attention_heads=3,
    num_key_value_heads=1,
    max_position_embeddings=1024,
    rope_scaling=dict(YARN, original_max_position_embeddings=256),
)
case(
    "llama-dynamic",
    "llama",
    LLAMA,
    greedy=0,
    max_position_embeddings=16,
    args=["--context", "64"],
    rope_scaling=dict(type="dynamic", factor=2.0),
)
case(
    "llama-modern",
    "llama",
    LLAMA,
    modern=True,
    head_dim=12,
    hidden_size=70,
    num_attention_heads=7,
    num_key_value_heads=7,
    vocab_size=127,
    attention_bias=True,
)

MISTRAL = dict(
    LLAMA, hidden_size=44, num_attention_heads=4, num_key_value_heads=2, head_dim=14, vocab_size=137
)
case("mistral-window", "mistral", MISTRAL, sliding_window=7)
case(
    "mistral-nemo",
    "mistral",
    MISTRAL,
    sliding_window=None,
    num_attention_heads=6,
    head_dim=10,
    rope_theta=1e6,
)
case("mistral-window-page-bf16", "mistral", MISTRAL, sliding_window=33, dtype="bf16", modern=True)

QWEN2 = dict(
    LLAMA,
    hidden_size=56,
    num_attention_heads=7,
    num_key_value_heads=1,
    vocab_size=139,
    max_window_layers=2,
    sliding_window=None,
    use_sliding_window=False,
)
case("qwen2-tied", "qwen2", QWEN2, tie_word_embeddings=True, sliding_window=5)
case(
    "qwen2-windows", "qwen2", QWEN2, num_hidden_layers=4, use_sliding_window=True, sliding_window=6
)
case("qwen2-yarn-bf16", "qwen2", QWEN2, dtype="bf16", rope_scaling=dict(YARN), rope_theta=1000.0)

QWEN3 = dict(
    QWEN2,
    head_dim=20,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_size=52,
    attention_bias=False,
)
case("qwen3-plain", "qwen3", QWEN3)
case(
    "qwen3-bias-tied",
    "qwen3",
    QWEN3,
    attention_bias=True,
    tie_word_embeddings=True,
    head_dim=8,
    num_attention_heads=6,
    num_key_value_heads=6,
)
case(
    "qwen3-windows-modern",
    "qwen3",
    QWEN3,
    modern=True,
    use_sliding_window=True,
    sliding_window=9,
    max_window_layers=1,
    dtype="bf16",
)

GEMMA2 = dict(
    vocab_size=149,
    hidden_size=60,
    intermediate_size=84,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=12,
    hidden_activation="gelu_pytorch_tanh",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    rope_theta=100.0,
    attention_bias=False,
    query_pre_attn_scalar=20,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=3.0,
    sliding_window=6,
    torch_dtype="float32",
    **EOS,
)
case("gemma2-caps", "gemma2", GEMMA2, plus_one=True)
case(
    "gemma2-modern",
    "gemma2",
    GEMMA2,
    plus_one=True,
    modern=True,
    num_hidden_layers=3,
    head_dim=10,
    sliding_window=33,
)
case(
    "gemma2-bf16-scale",
    "gemma2",
    GEMMA2,
    plus_one=True,
    dtype="bf16",
    torch_dtype="bfloat16",
    hidden_size=42,
    emb_bf16=True,
    query_pre_attn_scalar=12,
)

GEMMA3 = dict(
    GEMMA2,
    attn_logit_softcapping=None,
    final_logit_softcapping=None,
    rope_theta=5000.0,
    rope_local_base_freq=50.0,
    num_hidden_layers=6,
)
case(
    "gemma3-pattern",
    "gemma3_text",
    GEMMA3,
    plus_one=True,
    sliding_window_pattern=3,
    rope_scaling=dict(rope_type="linear", factor=8.0),
)
case(
    "gemma3-modern",
    "gemma3_text",
    GEMMA3,
    plus_one=True,
    modern=True,
    num_hidden_layers=7,
    num_attention_heads=5,
    num_key_value_heads=1,
)
case(
    "gemma3-layers-bf16",
    "gemma3_text",
    GEMMA3,
    plus_one=True,
    dtype="bf16",
    torch_dtype="bfloat16",
    emb_bf16=True,
    hidden_size=42,
    num_hidden_layers=3,
    layer_types=["full_attention", "sliding_attention", "full_attention"],
)

PHI3 = dict(
    LLAMA,
    hidden_size=64,
    num_attention_heads=4,
    num_key_value_heads=2,
    original_max_position_embeddings=64,
    pad_token_id=0,
    sliding_window=None,
    vocab_size=151,
)
SHORT, LONG = [1.0, 1.1, 1.3, 1.5, 1.9, 2.0, 2.2, 2.5], [1.0, 2.0, 3.5, 5.0, 8.0, 12.0, 20.0, 33.0]
case("phi3-window", "phi3", PHI3, sliding_window=9, original_max_position_embeddings=128)
case(
    "phi3-longrope-short",
    "phi3",
    PHI3,
    rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG),
)
case(
    "phi3-longrope-long",
    "phi3",
    PHI3,
    original_max_position_embeddings=16,
    rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG),
)
case("phi3-partial-bf16", "phi3", PHI3, dtype="bf16", partial_rotary_factor=0.75, modern=True)

MIXTRAL = dict(
    MISTRAL, num_local_experts=4, num_experts_per_tok=2, intermediate_size=36, sliding_window=None
)
case("mixtral-plain", "mixtral", MIXTRAL)
case(
    "mixtral-window",
    "mixtral",
    MIXTRAL,
    sliding_window=8,
    num_local_experts=5,
    num_experts_per_tok=1,
)
case(
    "mixtral-bf16",
    "mixtral",
    MIXTRAL,
    dtype="bf16",
    num_local_experts=6,
    num_experts_per_tok=3,
    modern=True,
)

QWEN2_MOE = dict(
    QWEN2,
    num_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=28,
    shared_expert_intermediate_size=44,
    norm_topk_prob=False,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
case("qwen2_moe-plain", "qwen2_moe", QWEN2_MOE)
case(
    "qwen2_moe-sparse",
    "qwen2_moe",
    QWEN2_MOE,
    num_hidden_layers=5,
    decoder_sparse_step=2,
    mlp_only_layers=[3],
)
case(
    "qwen2_moe-renorm-bf16",
    "qwen2_moe",
    QWEN2_MOE,
    norm_topk_prob=True,
    num_experts_per_tok=3,
    dtype="bf16",
)

QWEN3_MOE = dict(
    QWEN3,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
)
case("qwen3_moe-renorm", "qwen3_moe", QWEN3_MOE)
case(
    "qwen3_moe-raw",
    "qwen3_moe",
    QWEN3_MOE,
    norm_topk_prob=False,
    num_hidden_layers=4,
    decoder_sparse_step=2,
)
case(
    "qwen3_moe-dense-layers",
    "qwen3_moe",
    QWEN3_MOE,
    mlp_only_layers=[0],
    attention_bias=True,
    dtype="bf16",
    modern=True,
)

DSV2 = dict(
    vocab_size=157,
    hidden_size=55,
    intermediate_size=72,
    moe_intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=5,
    num_key_value_heads=5,
    n_shared_experts=2,
    n_routed_experts=8,
    num_experts_per_tok=3,
    routed_scaling_factor=1.0,
    kv_lora_rank=24,
    q_lora_rank=None,
    qk_rope_head_dim=8,
    qk_nope_head_dim=12,
    v_head_dim=10,
    topk_method="greedy",
    n_group=None,
    topk_group=None,
    norm_topk_prob=False,
    first_k_dense_replace=1,
    moe_layer_freq=1,
    hidden_act="silu",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    rope_theta=100.0,
    attention_bias=False,
    torch_dtype="float32",
    **EOS,
)
DSYARN = dict(
    type="yarn",
    factor=8.0,
    original_max_position_embeddings=16,
    beta_fast=32,
    beta_slow=1,
    mscale=0.707,
    mscale_all_dim=0.707,
)
case("deepseek_v2-lite", "deepseek_v2", DSV2)
case(
    "deepseek_v2-groups",
    "deepseek_v2",
    DSV2,
    q_lora_rank=20,
    topk_method="group_limited_greedy",
    n_group=4,
    topk_group=2,
    routed_scaling_factor=4.0,
    rope_scaling=DSYARN,
    rope_theta=10000.0,
)
case(
    "deepseek_v2-dense-bf16",
    "deepseek_v2",
    DSV2,
    dtype="bf16",
    first_k_dense_replace=2,
    q_lora_rank=16,
    qk_nope_head_dim=8,
    v_head_dim=14,
)

DSV3 = dict(
    DSV2,
    q_lora_rank=20,
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    topk_method="noaux_tc",
    scoring_func="sigmoid",
    first_k_dense_replace=1,
)
case("deepseek_v3-plain", "deepseek_v3", DSV3)
case(
    "deepseek_v3-yarn",
    "deepseek_v3",
    DSV3,
    rope_theta=10000.0,
    rope_scaling=dict(DSYARN, mscale=1.0, mscale_all_dim=1.0),
    num_experts_per_tok=4,
)
case(
    "deepseek_v3-one-group-bf16",
    "deepseek_v3",
    DSV3,
    dtype="bf16",
    q_lora_rank=None,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=0,
)

GLM = dict(
    LLAMA,
    hidden_size=52,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=163,
    partial_rotary_factor=0.5,
    attention_bias=True,
    eos_token_id=[2, 5, 7],
)
case("glm-bias", "glm", GLM)
case(
    "glm-plain",
    "glm",
    GLM,
    attention_bias=False,
    num_attention_heads=6,
    num_key_value_heads=1,
    head_dim=8,
)
case("glm-modern-bf16", "glm", GLM, dtype="bf16", modern=True, head_dim=12)
case("glm4-bias", "glm4", GLM)
case(
    "glm4-plain",
    "glm4",
    GLM,
    attention_bias=False,
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=12,
)
case("glm4-modern-bf16", "glm4", GLM, dtype="bf16", modern=True)

BLOOM = dict(
    vocab_size=167,
    hidden_size=48,
    n_layer=3,
    n_head=8,
    layer_norm_epsilon=1e-2,
    torch_dtype="float32",
    seq_length=128,
    apply_residual_connection_post_layernorm=False,
    **EOS,
)
case("bloom-plain", "bloom", BLOOM)
case("bloom-six-heads", "bloom", BLOOM, n_head=6, strip="transformer.")
case(
    "bloom-post-residual-bf16",
    "bloom",
    BLOOM,
    n_head=12,
    apply_residual_connection_post_layernorm=True,
    dtype="bf16",
    modern=True,
)

GPT2 = dict(
    vocab_size=173,
    n_embd=48,
    n_layer=3,
    n_head=6,
    n_positions=64,
    layer_norm_epsilon=1e-2,
    activation_function="gelu_new",
    torch_dtype="float32",
    bos_token_id=1,
    eos_token_id=2,
)
case("gpt2-plain", "gpt2", GPT2)
case("gpt2-inner", "gpt2", GPT2, n_inner=76, strip="transformer.", n_head=3)
case(
    "gpt2-gelu-bf16",
    "gpt2",
    GPT2,
    activation_function="gelu",
    dtype="bf16",
    modern=True,
    n_embd=40,
    n_head=5,
)

NEOX = dict(
    vocab_size=179,
    hidden_size=48,
    intermediate_size=92,
    num_hidden_layers=3,
    num_attention_heads=3,
    hidden_act="gelu",
    rotary_pct=0.25,
    rotary_emb_base=100,
    use_parallel_residual=True,
    layer_norm_eps=1e-2,
    max_position_embeddings=128,
    attention_bias=True,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("gpt_neox-parallel", "gpt_neox", NEOX)
case(
    "gpt_neox-serial",
    "gpt_neox",
    NEOX,
    use_parallel_residual=False,
    rotary_pct=0.5,
    attention_bias=False,
)
case(
    "gpt_neox-modern-bf16",
    "gpt_neox",
    NEOX,
    modern=True,
    dtype="bf16",
    rotary_pct=1.0,
    num_attention_heads=4,
)

CODEGEN = dict(
    vocab_size=149,
    n_embd=48,
    n_layer=3,
    n_head=4,
    rotary_dim=6,
    n_positions=128,
    n_ctx=128,
    n_inner=None,
    activation_function="gelu_new",
    layer_norm_epsilon=1e-2,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("moss-plain", "codegen", CODEGEN)
case(
    "moss-eight-heads-bf16",
    "codegen",
    CODEGEN,
    dtype="bf16",
    n_head=8,
    n_embd=64,
    rotary_dim=8,
    n_inner=100,
)
case("moss-whole-rotary", "codegen", CODEGEN, rotary_dim=12, n_inner=68, n_layer=4)

BAICHUAN = dict(
    vocab_size=181,
    hidden_size=48,
    intermediate_size=68,
    num_hidden_layers=3,
    num_attention_heads=6,
    hidden_act="silu",
    rms_norm_eps=1e-2,
    max_position_embeddings=128,
    model_max_length=128,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("baichuan-rope", "baichuan", BAICHUAN, other="Baichuan")
case(
    "baichuan-alibi",
    "baichuan",
    BAICHUAN,
    other="Baichuan",
    max_position_embeddings=...,
    num_attention_heads=8,
)
case(
    "baichuan-alibi-six-heads-bf16",
    "baichuan",
    BAICHUAN,
    other="Baichuan",
    max_position_embeddings=...,
    dtype="bf16",
)
case(
    "baichuan-norm-head",
    "baichuan",
    BAICHUAN,
    other="Baichuan",
    max_position_embeddings=...,
    num_attention_heads=12,
    set={"head.row_norm": "true"},
)

CHATGLM1 = dict(
    vocab_size=191,
    hidden_size=48,
    num_layers=3,
    num_attention_heads=3,
    inner_hidden_size=100,
    layernorm_epsilon=1e-2,
    max_sequence_length=128,
    position_encoding_2d=True,
    bos_token_id=188,
    eos_token_id=189,
    gmask_token_id=186,
    mask_token_id=185,
    pad_token_id=3,
    torch_dtype="float32",
)
case("chatglm1-plain", "chatglm", CHATGLM1, other="ChatGLM1")
case("chatglm1-heads", "chatglm", CHATGLM1, other="ChatGLM1", num_attention_heads=6, num_layers=4)
case(
    "chatglm1-bf16",
    "chatglm",
    CHATGLM1,
    other="ChatGLM1",
    dtype="bf16",
    num_attention_heads=2,
    inner_hidden_size=72,
)

CHATGLM2 = dict(
    padded_vocab_size=193,
    vocab_size=193,
    hidden_size=48,
    num_layers=3,
    num_attention_heads=4,
    kv_channels=16,
    multi_query_attention=True,
    multi_query_group_num=2,
    add_qkv_bias=True,
    add_bias_linear=False,
    ffn_hidden_size=52,
    seq_length=128,
    rmsnorm=True,
    post_layer_norm=True,
    layernorm_epsilon=1e-2,
    apply_residual_connection_post_layernorm=False,
    original_rope=True,
    tie_word_embeddings=False,
    torch_dtype="float32",
    eos_token_id=2,
    pad_token_id=0,
)
case("chatglm2-groups", "chatglm", CHATGLM2, other="ChatGLM2")
case("chatglm2-bias", "chatglm", CHATGLM2, other="ChatGLM2", add_bias_linear=True, kv_channels=12)
case(
    "chatglm2-post-residual-bf16",
    "chatglm",
    CHATGLM2,
    other="ChatGLM2",
    dtype="bf16",
    multi_query_attention=False,
    apply_residual_connection_post_layernorm=True,
)
case(
    "chatglm2-glm4-ratio",
    "chatglm",
    CHATGLM2,
    other="ChatGLM2",
    rope_ratio=0.02,
    kv_channels=20,
    add_qkv_bias=True,
)

# --- families whose primitives occur in the families above
case("gemma-plain", "gemma", GEMMA2, plus_one=True)
case(
    "gemma-one-kv",
    "gemma",
    GEMMA2,
    plus_one=True,
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=16,
    hidden_act="gelu",
    hidden_activation=None,
)
case(
    "gemma-bf16-modern",
    "gemma",
    GEMMA2,
    plus_one=True,
    modern=True,
    dtype="bf16",
    torch_dtype="bfloat16",
    emb_bf16=True,
    hidden_size=42,
)
case("gemma2-vault", "vaultgemma", GEMMA2, plus_one=True)

GRANITE = dict(
    LLAMA,
    embedding_multiplier=3.0,
    residual_multiplier=0.22,
    attention_multiplier=0.11,
    logits_scaling=4.0,
)
case("granite-plain", "granite", GRANITE)
case(
    "granite-tied",
    "granite",
    GRANITE,
    tie_word_embeddings=True,
    attention_bias=True,
    mlp_bias=True,
    logits_scaling=0.5,
    embedding_multiplier=0.3,
    residual_multiplier=0.9,
)
case(
    "granite-modern-bf16",
    "granite",
    GRANITE,
    modern=True,
    dtype="bf16",
    residual_multiplier=1.5,
    num_key_value_heads=1,
)

WINDOWS = dict(
    sliding_window=6, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
)
LLAMA3_ROPE = dict(
    rope_type="llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
case("cwm-windows", "cwm", LLAMA, modern=True, rope_scaling=LLAMA3_ROPE, **WINDOWS)
case("cwm-ministral", "ministral", MISTRAL, **WINDOWS)
case(
    "cwm-modern-bf16",
    "cwm",
    LLAMA,
    rope_scaling=LLAMA3_ROPE,
    modern=True,
    dtype="bf16",
    head_dim=10,
    num_hidden_layers=4,
    sliding_window=33,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
)
MINISTRAL3 = dict(MISTRAL, sliding_window=None)
TEMPERATURE = dict(
    rope_type="yarn",
    rope_theta=1000.0,
    factor=4.0,
    original_max_position_embeddings=64,
    beta_fast=32.0,
    beta_slow=1.0,
    mscale=1.0,
    mscale_all_dim=1.0,
    llama_4_scaling_beta=0.1,
)
case(
    "mistral-ministral3",
    "ministral3",
    MINISTRAL3,
    modern=True,
    rope_parameters=TEMPERATURE,
    max_position_embeddings=256,
    rope_theta=...,
)

case(
    "seed_oss-biases",
    "seed_oss",
    LLAMA,
    attention_bias=True,
    attention_out_bias=False,
    mlp_bias=True,
    head_dim=12,
)
case(
    "seed_oss-plain",
    "seed_oss",
    LLAMA,
    attention_bias=False,
    attention_out_bias=False,
    mlp_bias=False,
    tie_word_embeddings=True,
)
case(
    "seed_oss-modern-bf16",
    "seed_oss",
    LLAMA,
    modern=True,
    dtype="bf16",
    attention_bias=False,
    attention_out_bias=True,
    num_key_value_heads=9,
)

case("internlm3-biases", "internlm3", LLAMA, qkv_bias=True, bias=True)
case("internlm3-plain", "internlm3", LLAMA, qkv_bias=False, bias=False, num_key_value_heads=1)
case(
    "internlm3-modern-bf16",
    "internlm3",
    LLAMA,
    modern=True,
    dtype="bf16",
    qkv_bias=True,
    bias=True,
    num_key_value_heads=9,
)

HELIUM = dict(LLAMA, hidden_size=54, head_dim=6)
case("helium-plain", "helium", HELIUM)
case(
    "helium-biases",
    "helium",
    HELIUM,
    attention_bias=True,
    mlp_bias=True,
    hidden_size=90,
    head_dim=10,
)
case(
    "helium-modern-bf16",
    "helium",
    HELIUM,
    modern=True,
    dtype="bf16",
    tie_word_embeddings=True,
    num_key_value_heads=1,
)

EXAONE4 = dict(LLAMA, sliding_window=None, head_dim=14, layer_types=["full_attention"] * 3)
case("exaone4-plain", "exaone4", EXAONE4)
case("exaone4-tied", "exaone4", EXAONE4, tie_word_embeddings=True, num_key_value_heads=9)
case("exaone4-modern-bf16", "exaone4", EXAONE4, modern=True, dtype="bf16", num_key_value_heads=1)

ERNIE = dict(LLAMA, head_dim=10, use_bias=False)
case("ernie4_5-plain", "ernie4_5", ERNIE)
case("ernie4_5-biases", "ernie4_5", ERNIE, use_bias=True, tie_word_embeddings=True)
case(
    "ernie4_5-modern-bf16",
    "ernie4_5",
    ERNIE,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
    use_bias=True,
)

ERNIE_MOE = dict(
    LLAMA,
    use_bias=False,
    moe_intermediate_size=28,
    moe_k=2,
    moe_num_experts=5,
    moe_num_shared_experts=2,
    moe_layer_start_index=1,
    moe_layer_end_index=-1,
    moe_layer_interval=1,
    moe_norm_min=1e-12,
)
case("ernie4_5_moe-plain", "ernie4_5_moe", ERNIE_MOE)
case(
    "ernie4_5_moe-interval",
    "ernie4_5_moe",
    ERNIE_MOE,
    num_hidden_layers=5,
    moe_layer_interval=2,
    moe_num_experts=7,
    moe_k=3,
)
case(
    "ernie4_5_moe-modern-bf16",
    "ernie4_5_moe",
    ERNIE_MOE,
    modern=True,
    dtype="bf16",
    moe_num_shared_experts=1,
)

GLM_MOE = dict(
    LLAMA,
    head_dim=16,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    n_shared_experts=1,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.8,
    use_qk_norm=False,
    attention_bias=True,
    partial_rotary_factor=0.5,
)
case("glm4_moe-plain", "glm4_moe", GLM_MOE)
case(
    "glm4_moe-qk-norm",
    "glm4_moe",
    GLM_MOE,
    use_qk_norm=True,
    attention_bias=False,
    n_group=4,
    topk_group=2,
    n_shared_experts=2,
)
case(
    "glm4_moe-modern-bf16",
    "glm4_moe",
    GLM_MOE,
    modern=True,
    dtype="bf16",
    first_k_dense_replace=2,
    norm_topk_prob=False,
)
case("glm4_moe-solar", "solar_open", GLM_MOE, partial_rotary_factor=1.0, attention_bias=False)

DOTS = dict(
    LLAMA,
    head_dim=12,
    n_routed_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    n_shared_experts=2,
    n_group=1,
    topk_group=1,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    attention_bias=False,
    sliding_window=None,
    max_window_layers=3,
    layer_types=["full_attention"] * 3,
)
case("dots1-plain", "dots1", DOTS)
case("dots1-windows", "dots1", DOTS, attention_bias=True, **WINDOWS, max_window_layers=1)
case("dots1-modern-bf16", "dots1", DOTS, modern=True, dtype="bf16", n_group=2, topk_group=1)

HY3 = dict(
    LLAMA,
    head_dim=12,
    num_experts=7,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    num_shared_experts=1,
    router_scaling_factor=2.2,
    attention_bias=False,
    mlp_bias=False,
    mlp_layer_types=["dense", "sparse", "sparse"],
)
case("hy_v3-plain", "hy_v3", HY3)
case(
    "hy_v3-all", "hy_v3", HY3, mlp_layer_types=["sparse"] * 3, num_experts=5, num_experts_per_tok=5
)
case(
    "hy_v3-modern-bf16",
    "hy_v3",
    HY3,
    modern=True,
    dtype="bf16",
    num_shared_experts=2,
    mlp_layer_types=["dense", "dense", "sparse"],
)

QWEN3_VL_MOE = dict(
    QWEN3_MOE,
    rope_scaling=dict(rope_type="default", mrope_section=[4, 3, 3], mrope_interleaved=True),
)
case("qwen3_vl_moe-plain", "qwen3_vl_moe_text", QWEN3_VL_MOE, vision="qwen3_vl_moe")
case(
    "qwen3_vl_moe-dense-layers",
    "qwen3_vl_moe_text",
    QWEN3_VL_MOE,
    vision="qwen3_vl_moe",
    num_hidden_layers=4,
    decoder_sparse_step=2,
    num_experts=5,
)
case(
    "qwen3_vl_moe-bf16",
    "qwen3_vl_moe_text",
    QWEN3_VL_MOE,
    vision="qwen3_vl_moe",
    dtype="bf16",
    mlp_only_layers=[1],
    tie_word_embeddings=True,
)
case(
    "qwen3-vl", "qwen3_vl_text", QWEN3, vision="qwen3_vl", rope_scaling=QWEN3_VL_MOE["rope_scaling"]
)

MELLUM = dict(
    QWEN3_MOE,
    num_hidden_layers=3,
    **WINDOWS,
    mlp_layer_types=["sparse"] * 3,
    max_window_layers=...,
    use_sliding_window=...,
    rope_theta=...,
    rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=100.0),
        sliding_attention=dict(rope_type="default", rope_theta=30.0),
    ),
)
MELLUM = {k: v for k, v in MELLUM.items() if v is not ...}
case("mellum-windows", "mellum", MELLUM)
case(
    "mellum-odd",
    "mellum",
    MELLUM,
    num_experts=5,
    num_experts_per_tok=5,
    norm_topk_prob=False,
    attention_bias=True,
)
case("mellum-modern-bf16", "mellum", MELLUM, modern=True, dtype="bf16", sliding_window=33)

MISTRAL4 = dict(
    DSV3,
    q_lora_rank=20,
    n_group=1,
    topk_group=1,
    scoring_func=...,
    topk_method=...,
    rope_interleave=True,
    max_position_embeddings=256,
    rope_theta=...,
    rope_parameters=dict(TEMPERATURE, rope_theta=10000.0),
)
MISTRAL4 = {k: v for k, v in MISTRAL4.items() if v is not ...}
case("mistral4-plain", "mistral4", MISTRAL4, modern=True)
case(
    "mistral4-groups",
    "mistral4",
    MISTRAL4,
    modern=True,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=1.5,
)
case(
    "mistral4-bf16",
    "mistral4",
    MISTRAL4,
    modern=True,
    dtype="bf16",
    num_experts_per_tok=5,
    n_routed_experts=5,
    first_k_dense_replace=0,
)

case(
    "deepseek_v3-glm4-lite",
    "glm4_moe_lite",
    DSV3,
    n_group=1,
    topk_group=1,
    mlp_layer_types=["dense", "sparse", "sparse"],
    first_k_dense_replace=...,
)
case(
    "deepseek_v3-youtu",
    "youtu",
    {
        k: v
        for k, v in DSV3.items()
        if "moe" not in k
        and "expert" not in k
        and "topk" not in k
        and k not in ("n_group", "scoring_func", "first_k_dense_replace", "routed_scaling_factor")
    },
    modern=True,
    tie_word_embeddings=True,
)
INDEXER = dict(index_topk=64, index_n_heads=24, index_head_dim=16)
case("deepseek_v3-v32", "deepseek_v32", DSV3, **INDEXER)
case(
    "deepseek_v3-glm5",
    "glm_moe_dsa",
    DSV3,
    **INDEXER,
    mlp_layer_types=["dense", "sparse", "sparse"],
    first_k_dense_replace=...,
)
# an indexer selects the positions that a row attends to; dimensions, heads and layers have the
# proportions of published models
CHOOSES = dict(INDEXER, index_topk=11, index_n_heads=26)
case("deepseek_v3-v32-chooses", "deepseek_v32", DSV3, **CHOOSES)
case(
    "deepseek_v3-v32-chooses-bf16",
    "deepseek_v32",
    DSV3,
    **dict(CHOOSES, index_head_dim=23, index_topk=33),
    dtype="bf16",
    modern=True,
    first_k_dense_replace=0,
)
case(
    "deepseek_v3-glm5-chooses",
    "glm_moe_dsa",
    DSV3,
    **dict(CHOOSES, index_topk=7),
    mlp_layer_types=["dense", "sparse", "sparse"],
    first_k_dense_replace=...,
)
case(
    "deepseek_v3-glm5-shares",
    "glm_moe_dsa",
    DSV3,
    **CHOOSES,
    num_hidden_layers=5,
    indexer_types=["full", "full", "shared", "full", "shared"],
    mlp_layer_types=["dense", "sparse", "sparse", "sparse", "dense"],
    first_k_dense_replace=...,
)
case(
    "mistral-temperature",
    "ministral3",
    MINISTRAL3,
    modern=True,
    rope_parameters=dict(TEMPERATURE, original_max_position_embeddings=8),
    max_position_embeddings=128,
    rope_theta=...,
)
case(
    "mistral4-temperature",
    "mistral4",
    MISTRAL4,
    modern=True,
    max_position_embeddings=128,
    rope_parameters=dict(TEMPERATURE, rope_theta=10000.0, original_max_position_embeddings=8),
)

STARCODER2 = dict(
    LLAMA,
    norm_epsilon=1e-2,
    hidden_act="gelu_pytorch_tanh",
    use_bias=True,
    tie_word_embeddings=True,
    sliding_window=None,
)
case("starcoder2-plain", "starcoder2", STARCODER2)
case("starcoder2-window", "starcoder2", STARCODER2, sliding_window=7, use_bias=False)
case(
    "starcoder2-modern-bf16",
    "starcoder2",
    STARCODER2,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
    sliding_window=33,
)

BIGCODE = dict(GPT2, activation_function="gelu_pytorch_tanh", multi_query=True, pad_token_id=0)
case("gpt_bigcode-plain", "gpt_bigcode", BIGCODE)
case("gpt_bigcode-inner", "gpt_bigcode", BIGCODE, n_inner=76, n_head=3)
case(
    "gpt_bigcode-modern-bf16",
    "gpt_bigcode",
    BIGCODE,
    modern=True,
    dtype="bf16",
    n_embd=40,
    n_head=5,
)

STABLELM = dict(
    LLAMA,
    layer_norm_eps=1e-2,
    use_qkv_bias=False,
    use_parallel_residual=False,
    partial_rotary_factor=0.5,
    qk_layernorm=False,
    head_dim=...,
)
STABLELM = {k: v for k, v in STABLELM.items() if v is not ...}
case("stablelm-serial", "stablelm", STABLELM)
case("stablelm-parallel", "stablelm", STABLELM, use_parallel_residual=True, use_qkv_bias=True)
case(
    "stablelm-modern-bf16",
    "stablelm",
    STABLELM,
    modern=True,
    dtype="bf16",
    num_attention_heads=3,
    num_key_value_heads=1,
    partial_rotary_factor=0.25,
)

GPTJ = dict(
    vocab_size=173,
    n_embd=48,
    n_layer=3,
    n_head=4,
    n_positions=64,
    rotary_dim=6,
    layer_norm_epsilon=1e-2,
    activation_function="gelu_new",
    tie_word_embeddings=False,
    torch_dtype="float32",
    bos_token_id=1,
    eos_token_id=2,
)
case("gptj-plain", "gptj", GPTJ)
case("gptj-inner", "gptj", GPTJ, n_inner=76, n_head=3, rotary_dim=16)
case("gptj-modern-bf16", "gptj", GPTJ, modern=True, dtype="bf16", n_embd=40, n_head=5, rotary_dim=4)

PHI = dict(
    LLAMA,
    layer_norm_eps=1e-2,
    hidden_act="gelu_new",
    partial_rotary_factor=0.5,
    qk_layernorm=False,
    num_key_value_heads=9,
)
case("phi-plain", "phi", PHI)
case("phi-groups", "phi", PHI, num_key_value_heads=3, partial_rotary_factor=0.25)
case("phi-qk-norm", "phi", PHI, qk_layernorm=True, num_key_value_heads=3)
case(
    "phi-modern-bf16",
    "phi",
    PHI,
    modern=True,
    dtype="bf16",
    hidden_size=60,
    num_attention_heads=5,
    num_key_value_heads=5,
    partial_rotary_factor=1.0,
)

FALCON = dict(
    vocab_size=181,
    hidden_size=48,
    num_hidden_layers=3,
    num_attention_heads=4,
    layer_norm_epsilon=1e-2,
    alibi=False,
    new_decoder_architecture=False,
    multi_query=True,
    parallel_attn=True,
    bias=False,
    max_position_embeddings=128,
    rope_theta=100.0,
    torch_dtype="float32",
    **EOS,
)
case("falcon-one-kv", "falcon", FALCON)
case(
    "falcon-groups",
    "falcon",
    FALCON,
    new_decoder_architecture=True,
    num_kv_heads=2,
    hidden_size=72,
    num_attention_heads=6,
)
case("falcon-bias", "falcon", FALCON, bias=True, num_attention_heads=3, ffn_hidden_size=100)
case(
    "falcon-one-norm-bf16",
    "falcon",
    FALCON,
    modern=True,
    dtype="bf16",
    new_decoder_architecture=True,
    num_kv_heads=1,
    num_ln_in_parallel_attn=1,
)

MPT = dict(
    vocab_size=181,
    d_model=48,
    n_layers=3,
    n_heads=4,
    max_seq_len=128,
    expansion_ratio=4,
    no_bias=True,
    layer_norm_epsilon=1e-2,
    attn_config=dict(alibi=True, alibi_bias_max=8),
    torch_dtype="float32",
    **EOS,
)
case("mpt-plain", "mpt", MPT)
case(
    "mpt-odd",
    "mpt",
    MPT,
    n_heads=6,
    d_model=60,
    attn_config=dict(alibi=True, alibi_bias_max=8, softmax_scale=0.2),
)
case(
    "mpt-clipped",
    "mpt",
    MPT,
    n_heads=3,
    attn_config=dict(alibi=True, alibi_bias_max=8, clip_qkv=0.6),
)
case("mpt-modern-bf16", "mpt", MPT, modern=True, dtype="bf16", n_heads=3)

NEO = dict(
    vocab_size=173,
    hidden_size=48,
    num_layers=4,
    num_heads=6,
    max_position_embeddings=64,
    layer_norm_epsilon=1e-2,
    activation_function="gelu_new",
    attention_types=[[["global", "local"], 2]],
    window_size=6,
    torch_dtype="float32",
    bos_token_id=1,
    eos_token_id=2,
)
case("gpt_neo-plain", "gpt_neo", NEO)
case(
    "gpt_neo-inner",
    "gpt_neo",
    NEO,
    intermediate_size=76,
    num_heads=3,
    num_layers=2,
    attention_types=[[["global", "local"], 1]],
)
case(
    "gpt_neo-modern-bf16",
    "gpt_neo",
    NEO,
    modern=True,
    dtype="bf16",
    hidden_size=40,
    num_heads=5,
    num_layers=3,
    attention_types=[[["local"], 2], [["global"], 1]],
)

# --- sinks, a clamped activation with an offset, biases of router and experts
GPT_OSS = dict(
    vocab_size=131,
    hidden_size=68,
    intermediate_size=36,
    num_hidden_layers=3,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=12,
    num_local_experts=5,
    num_experts_per_tok=2,
    experts_per_token=2,
    sliding_window=6,
    rms_norm_eps=1e-2,
    rope_theta=50.0,
    attention_bias=True,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    max_position_embeddings=512,
    initial_context_length=64,
    rope_scaling=dict(
        rope_type="yarn",
        factor=8.0,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
        original_max_position_embeddings=64,
    ),
    swiglu_limit=0.8,
    hidden_act="silu",
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("gpt_oss-plain", "gpt_oss", GPT_OSS)
case(
    "gpt_oss-all-experts",
    "gpt_oss",
    GPT_OSS,
    num_local_experts=7,
    num_experts_per_tok=7,
    num_key_value_heads=1,
    layer_types=["full_attention"] * 3,
    swiglu_limit=7.0,
)
case(
    "gpt_oss-modern-bf16",
    "gpt_oss",
    GPT_OSS,
    modern=True,
    dtype="bf16",
    num_experts_per_tok=1,
    num_key_value_heads=9,
    sliding_window=33,
)
case(
    "gpt_oss-wide",
    "gpt_oss",
    GPT_OSS,
    hidden_size=64,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    num_local_experts=4,
    num_experts_per_tok=2,
    num_hidden_layers=2,
    layer_types=["sliding_attention", "full_attention"],
    swiglu_limit=7.0,
)

# --- separate factors, norms and activations
COHERE = dict(
    LLAMA,
    layer_norm_eps=1e-2,
    logit_scale=0.4,
    attention_bias=False,
    use_qk_norm=False,
    tie_word_embeddings=True,
)
case("cohere-plain", "cohere", COHERE)
case(
    "cohere-bias", "cohere", COHERE, attention_bias=True, tie_word_embeddings=False, logit_scale=2.5
)
case("cohere-modern-bf16", "cohere", COHERE, modern=True, dtype="bf16", num_key_value_heads=1)
case("cohere-qk-norm", "cohere", COHERE, use_qk_norm=True)
case(
    "cohere-qk-norm-bf16",
    "cohere",
    COHERE,
    use_qk_norm=True,
    modern=True,
    dtype="bf16",
    num_key_value_heads=9,
    hidden_size=54,
)
COHERE2 = dict(COHERE, sliding_window=6, num_hidden_layers=4, sliding_window_pattern=4, head_dim=10)
case("cohere2-pattern", "cohere2", COHERE2)
case(
    "cohere2-layers",
    "cohere2",
    COHERE2,
    layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    attention_bias=True,
)
case(
    "cohere2-modern-bf16",
    "cohere2",
    COHERE2,
    modern=True,
    dtype="bf16",
    sliding_window=33,
    num_key_value_heads=9,
)

SMOLLM3 = dict(
    LLAMA,
    num_hidden_layers=5,
    no_rope_layer_interval=2,
    attention_bias=False,
    mlp_bias=False,
    use_sliding_window=False,
)
case("smollm3-plain", "smollm3", SMOLLM3)
case(
    "smollm3-layers",
    "smollm3",
    SMOLLM3,
    no_rope_layers=[0, 1, 1, 0, 1],
    tie_word_embeddings=True,
    attention_bias=True,
    mlp_bias=True,
)
case(
    "smollm3-modern-bf16",
    "smollm3",
    SMOLLM3,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
    no_rope_layer_interval=3,
)

OLMO = dict(LLAMA, clip_qkv=None, attention_bias=False)
case("olmo-plain", "olmo", OLMO)
case("olmo-bias", "olmo", OLMO, attention_bias=True, tie_word_embeddings=True)
case("olmo-modern-bf16", "olmo", OLMO, modern=True, dtype="bf16", num_key_value_heads=9)
case("olmo-clipped", "olmo", OLMO, clip_qkv=0.7, num_key_value_heads=3)
case("olmo2-plain", "olmo2", OLMO)
case("olmo2-one-kv", "olmo2", OLMO, num_key_value_heads=1, attention_bias=True)
case("olmo2-modern-bf16", "olmo2", OLMO, modern=True, dtype="bf16", tie_word_embeddings=True)
OLMO3 = dict(OLMO, sliding_window=6, num_hidden_layers=4)
OLMO3 = {k: v for k, v in OLMO3.items() if k != "rope_theta"}
OLMO3_YARN = dict(
    rope_type="yarn",
    rope_theta=1000.0,
    factor=4.0,
    original_max_position_embeddings=16,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=1.2,
)
case(
    "olmo2-olmo3",
    "olmo3",
    OLMO3,
    rope_scaling=dict(
        rope_type="yarn",
        factor=4.0,
        original_max_position_embeddings=16,
        beta_fast=32.0,
        beta_slow=1.0,
        attention_factor=1.2,
    ),
)
case(
    "olmo2-olmo3-yarn",
    "olmo3",
    OLMO3,
    rope_parameters=dict(
        full_attention=OLMO3_YARN, sliding_attention=dict(rope_type="default", rope_theta=1000.0)
    ),
)
OLMOE = dict(OLMO, num_experts=8, num_experts_per_tok=3, norm_topk_prob=False, intermediate_size=28)
case("olmoe-plain", "olmoe", OLMOE)
case(
    "olmoe-all",
    "olmoe",
    OLMOE,
    num_experts=5,
    num_experts_per_tok=5,
    norm_topk_prob=True,
    num_key_value_heads=1,
)
case(
    "olmoe-modern-bf16",
    "olmoe",
    OLMOE,
    modern=True,
    dtype="bf16",
    num_experts=7,
    num_experts_per_tok=1,
    attention_bias=True,
)

MINIMAX = dict(
    LLAMA,
    head_dim=12,
    rotary_dim=6,
    num_local_experts=8,
    num_experts_per_tok=3,
    intermediate_size=28,
)
case("minimax_m2-plain", "minimax_m2", MINIMAX)
case(
    "minimax_m2-all",
    "minimax_m2",
    MINIMAX,
    num_local_experts=5,
    num_experts_per_tok=5,
    num_key_value_heads=1,
    rotary_dim=12,
)
case(
    "minimax_m2-modern-bf16",
    "minimax_m2",
    MINIMAX,
    modern=True,
    dtype="bf16",
    num_local_experts=7,
    num_key_value_heads=9,
)

case(
    "exaone4-windows",
    "exaone4",
    EXAONE4,
    num_hidden_layers=4,
    sliding_window=6,
    sliding_window_pattern=4,
    layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
)

HUNYUAN = dict(
    LLAMA,
    head_dim=10,
    attention_bias=False,
    rope_scaling=dict(
        type="dynamic",
        alpha=50.0,
        factor=1.0,
        beta_fast=32,
        beta_slow=1,
        mscale=1.0,
        mscale_all_dim=1.0,
    ),
)
case("hunyuan_v1-plain", "hunyuan_v1_dense", HUNYUAN, rope_scaling=None)
case("hunyuan_v1-alpha", "hunyuan_v1_dense", HUNYUAN, attention_bias=True, tie_word_embeddings=True)
case(
    "hunyuan_v1-modern-bf16",
    "hunyuan_v1_dense",
    HUNYUAN,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
)
case("hunyuan_v1_moe-plain", "hunyuan_v1_moe", HUNYUAN, num_experts=5, moe_topk=2)
case(
    "hunyuan_v1_moe-all",
    "hunyuan_v1_moe",
    HUNYUAN,
    num_experts=7,
    moe_topk=7,
    num_key_value_heads=1,
    attention_bias=True,
    rope_scaling=None,
)
case(
    "hunyuan_v1_moe-modern-bf16",
    "hunyuan_v1_moe",
    HUNYUAN,
    modern=True,
    dtype="bf16",
    num_experts=3,
    moe_topk=1,
)

ARCEE = dict(LLAMA, hidden_act="relu2", attention_bias=False, mlp_bias=False)
case("arcee-plain", "arcee", ARCEE)
case("arcee-biases", "arcee", ARCEE, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
case(
    "arcee-modern-bf16",
    "arcee",
    ARCEE,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
    head_dim=12,
)
NEMOTRON = dict(ARCEE, norm_eps=1e-2, partial_rotary_factor=0.5)
case("nemotron-plain", "nemotron", NEMOTRON, plus_one=True)
case(
    "nemotron-biases",
    "nemotron",
    NEMOTRON,
    plus_one=True,
    attention_bias=True,
    mlp_bias=True,
    head_dim=12,
)
case(
    "nemotron-modern-bf16",
    "nemotron",
    NEMOTRON,
    plus_one=True,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
    partial_rotary_factor=0.25,
    head_dim=16,
)
APERTUS = dict(LLAMA, hidden_act="xielu", attention_bias=False, rope_scaling=dict(LLAMA3_ROPE))
case("apertus-plain", "apertus", APERTUS)
case(
    "apertus-bias",
    "apertus",
    APERTUS,
    attention_bias=True,
    num_key_value_heads=1,
    tie_word_embeddings=True,
)
case(
    "apertus-text-only",
    "apertus1p5_text",
    APERTUS,
    vocab_size=160,
    output_vocab_size=131,
    head_dim=8,
)
case("apertus-modern-bf16", "apertus", APERTUS, modern=True, dtype="bf16", num_key_value_heads=9)
OPT = dict(
    vocab_size=173,
    hidden_size=48,
    ffn_dim=76,
    num_hidden_layers=3,
    num_attention_heads=6,
    max_position_embeddings=64,
    activation_function="relu",
    do_layer_norm_before=True,
    word_embed_proj_dim=48,
    torch_dtype="float32",
    bos_token_id=2,
    eos_token_id=2,
    pad_token_id=1,
)
case("opt-plain", "opt", OPT)
case("opt-no-bias", "opt", OPT, enable_bias=False, num_attention_heads=3, tie_word_embeddings=False)
case("opt-350m", "opt", OPT, do_layer_norm_before=False, word_embed_proj_dim=28)
case(
    "opt-350m-untied",
    "opt",
    OPT,
    do_layer_norm_before=False,
    word_embed_proj_dim=52,
    num_attention_heads=3,
    tie_word_embeddings=False,
)
case(
    "opt-no-final-norm",
    "opt",
    OPT,
    _remove_final_layer_norm=True,
    hidden_size=40,
    word_embed_proj_dim=40,
    num_attention_heads=5,
)
case(
    "opt-modern-bf16",
    "opt",
    OPT,
    modern=True,
    dtype="bf16",
    hidden_size=40,
    word_embed_proj_dim=40,
    num_attention_heads=5,
)

LINEAR = dict(
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=12,
    linear_value_head_dim=20,
    linear_conv_kernel_dim=4,
)
QWEN3_NEXT = dict(
    LLAMA,
    hidden_size=52,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    num_hidden_layers=5,
    partial_rotary_factor=0.25,
    num_experts=7,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=28,
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[],
    full_attention_interval=4,
    **LINEAR,
)
case("qwen3_next-plain", "qwen3_next", QWEN3_NEXT, plus_one=True)
case(
    "qwen3_next-one-tap-more",
    "qwen3_next",
    QWEN3_NEXT,
    plus_one=True,
    num_hidden_layers=3,
    linear_num_key_heads=5,
    linear_num_value_heads=5,
    linear_conv_kernel_dim=5,
    linear_key_head_dim=40,
    linear_value_head_dim=9,
    layer_types=["full_attention", "linear_attention", "full_attention"],
    mlp_only_layers=[1],
    norm_topk_prob=False,
    partial_rotary_factor=0.5,
    attention_bias=True,
)
case(
    "qwen3_next-modern-bf16",
    "qwen3_next",
    QWEN3_NEXT,
    plus_one=True,
    modern=True,
    dtype="bf16",
    num_hidden_layers=4,
    linear_num_key_heads=1,
    linear_num_value_heads=7,
    linear_conv_kernel_dim=2,
    num_experts=5,
    num_experts_per_tok=5,
    tie_word_embeddings=True,
)
QWEN3_5 = dict(
    LLAMA,
    hidden_size=52,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=16,
    num_hidden_layers=5,
    rope_theta=...,
    rope_parameters=dict(
        rope_type="default",
        rope_theta=100.0,
        partial_rotary_factor=0.25,
        mrope_section=[1, 1, 0],
        mrope_interleaved=True,
    ),
    **LINEAR,
)
QWEN3_5 = {k: v for k, v in QWEN3_5.items() if v is not ...}
case("qwen3_5-plain", "qwen3_5_text", QWEN3_5, plus_one=True, full_attention_interval=3)
case(
    "qwen3_5-wrapped",
    "qwen3_5_text",
    QWEN3_5,
    plus_one=True,
    vision="qwen3_5",
    linear_num_key_heads=3,
    linear_num_value_heads=3,
    linear_key_head_dim=17,
)
case(
    "qwen3_5-modern-bf16",
    "qwen3_5_text",
    QWEN3_5,
    plus_one=True,
    modern=True,
    dtype="bf16",
    linear_value_head_dim=33,
    linear_conv_kernel_dim=3,
    layer_types=[
        "linear_attention",
        "full_attention",
        "linear_attention",
        "linear_attention",
        "full_attention",
    ],
)
QWEN3_5_MOE = dict(
    {k: v for k, v in QWEN3_5.items() if k != "intermediate_size"},
    num_experts=7,
    num_experts_per_tok=3,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=28,
)
case("qwen3_5_moe-plain", "qwen3_5_moe_text", QWEN3_5_MOE, plus_one=True)
case(
    "qwen3_5_moe-wrapped",
    "qwen3_5_moe_text",
    QWEN3_5_MOE,
    plus_one=True,
    vision="qwen3_5_moe",
    num_hidden_layers=4,
    num_experts=5,
    num_experts_per_tok=5,
)
case(
    "qwen3_5_moe-modern-bf16",
    "qwen3_5_moe_text",
    QWEN3_5_MOE,
    plus_one=True,
    modern=True,
    dtype="bf16",
    num_experts_per_tok=1,
    tie_word_embeddings=True,
    linear_num_value_heads=2,
)

LFM2 = dict(
    {k: v for k, v in LLAMA.items() if k not in ("rms_norm_eps", "hidden_act")},
    hidden_size=48,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=4,
    norm_eps=1e-2,
    conv_L_cache=3,
    conv_bias=False,
    block_auto_adjust_ff_dim=True,
    block_multiple_of=8,
    block_ffn_dim_multiplier=1.0,
    layer_types=["conv", "conv", "full_attention", "conv"],
    tie_word_embeddings=True,
)
case("lfm2-plain", "lfm2", LFM2)
case(
    "lfm2-bias",
    "lfm2",
    LFM2,
    conv_bias=True,
    conv_L_cache=5,
    num_key_value_heads=3,
    layer_types=["full_attention", "conv", "conv", "full_attention"],
    tie_word_embeddings=False,
)
case(
    "lfm2-modern-bf16",
    "lfm2",
    LFM2,
    modern=True,
    dtype="bf16",
    conv_L_cache=2,
    num_key_value_heads=1,
    block_auto_adjust_ff_dim=False,
)
LFM2_MOE = dict(
    {k: v for k, v in LFM2.items() if not k.startswith("block_")},
    num_hidden_layers=5,
    layer_types=["conv", "full_attention", "conv", "conv", "full_attention"],
    num_dense_layers=2,
    num_experts=7,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    use_expert_bias=True,
    norm_topk_prob=True,
    routed_scaling_factor=1.0,
)
case("lfm2_moe-plain", "lfm2_moe", LFM2_MOE)
case(
    "lfm2_moe-all",
    "lfm2_moe",
    LFM2_MOE,
    num_experts=5,
    num_experts_per_tok=5,
    num_dense_layers=1,
    conv_bias=True,
    conv_L_cache=4,
    norm_topk_prob=False,
    routed_scaling_factor=1.7,
    num_key_value_heads=3,
)
case(
    "lfm2_moe-one",
    "lfm2_moe",
    LFM2_MOE,
    num_experts=1,
    num_experts_per_tok=1,
    num_dense_layers=0,
    num_hidden_layers=4,
    layer_types=["conv", "conv", "full_attention", "conv"],
)
case(
    "lfm2_moe-modern-bf16",
    "lfm2_moe",
    LFM2_MOE,
    modern=True,
    dtype="bf16",
    num_dense_layers=0,
    num_experts_per_tok=1,
    use_expert_bias=False,
    conv_L_cache=2,
)

OLMO_HYBRID = dict(
    OLMO,
    num_hidden_layers=5,
    attention_bias=False,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=12,
    linear_value_head_dim=20,
    linear_conv_kernel_dim=4,
    layer_types=[
        "linear_attention",
        "linear_attention",
        "full_attention",
        "linear_attention",
        "full_attention",
    ],
)
OLMO_HYBRID = {k: v for k, v in OLMO_HYBRID.items() if k not in ("rope_theta", "clip_qkv")}
case(
    "olmo_hybrid-plain",
    "olmo_hybrid",
    OLMO_HYBRID,
    rope_parameters=dict(rope_type="default", rope_theta=None),
)
case(
    "olmo_hybrid-rope",
    "olmo_hybrid",
    OLMO_HYBRID,
    rope_parameters=dict(rope_type="default", rope_theta=100.0),
    attention_bias=True,
    linear_allow_neg_eigval=False,
    linear_num_key_heads=5,
    linear_num_value_heads=5,
    linear_value_head_dim=9,
    linear_key_head_dim=40,
    num_key_value_heads=1,
)
case(
    "olmo_hybrid-modern-bf16",
    "olmo_hybrid",
    OLMO_HYBRID,
    modern=True,
    dtype="bf16",
    rope_parameters=None,
    linear_conv_kernel_dim=2,
    linear_num_key_heads=1,
    linear_num_value_heads=7,
    tie_word_embeddings=True,
    num_hidden_layers=3,
    layer_types=["full_attention", "linear_attention", "linear_attention"],
)

KIMI_LINEAR = dict(
    vocab_size=157,
    hidden_size=55,
    intermediate_size=72,
    moe_intermediate_size=20,
    num_hidden_layers=4,
    num_attention_heads=5,
    num_key_value_heads=5,
    num_shared_experts=2,
    num_experts=8,
    num_experts_per_token=3,
    routed_scaling_factor=2.446,
    kv_lora_rank=40,
    q_lora_rank=None,
    qk_rope_head_dim=16,
    qk_nope_head_dim=12,
    v_head_dim=10,
    num_expert_group=1,
    topk_group=1,
    moe_renormalize=True,
    hidden_act="silu",
    model_max_length=128,
    rms_norm_eps=1e-2,
    first_k_dense_replace=1,
    attention_bias=False,
    tie_word_embeddings=False,
    torch_dtype="float32",
    linear_attn_config=dict(
        full_attn_layers=[3],
        kda_layers=[1, 2, 4],
        head_dim=12,
        num_heads=3,
        short_conv_kernel_size=4,
    ),
    **EOS,
)
case("kimi_linear-plain", "kimi_linear", KIMI_LINEAR)
case(
    "kimi_linear-groups",
    "kimi_linear",
    KIMI_LINEAR,
    num_expert_group=4,
    topk_group=2,
    q_lora_rank=20,
    moe_renormalize=False,
    num_hidden_layers=3,
    num_shared_experts=1,
    linear_attn_config=dict(
        full_attn_layers=[2], kda_layers=[1, 3], head_dim=40, num_heads=2, short_conv_kernel_size=3
    ),
)
case(
    "kimi_linear-modern-bf16",
    "kimi_linear",
    KIMI_LINEAR,
    modern=True,
    dtype="bf16",
    num_experts=5,
    num_experts_per_token=5,
    linear_attn_config=dict(
        full_attn_layers=[1, 4],
        kda_layers=[2, 3],
        head_dim=33,
        num_heads=1,
        short_conv_kernel_size=2,
    ),
)

# selective scans: heads of odd size, groups, a state that is not a multiple of a vector; with and without experts and positions
GRANITE4 = dict(
    LLAMA,
    hidden_size=60,
    intermediate_size=28,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=4,
    mamba_n_heads=12,
    mamba_d_head=10,
    mamba_expand=2,
    mamba_n_groups=2,
    mamba_d_state=20,
    mamba_d_conv=4,
    mamba_conv_bias=True,
    mamba_chunk_size=8,
    layer_types=["mamba", "mamba", "attention", "mamba"],
    embedding_multiplier=3.0,
    residual_multiplier=0.6,
    attention_multiplier=0.2,
    logits_scaling=0.5,
    num_local_experts=7,
    num_experts_per_tok=3,
    shared_intermediate_size=44,
    position_embedding_type="nope",
)
case("granitemoehybrid-plain", "granitemoehybrid", GRANITE4)
case(
    "granitemoehybrid-dense",
    "granitemoehybrid",
    GRANITE4,
    num_local_experts=0,
    num_experts_per_tok=0,
    mamba_n_heads=5,
    mamba_d_head=36,
    mamba_expand=3,
    mamba_n_groups=1,
    mamba_d_conv=2,
    mamba_d_state=33,
    mamba_conv_bias=False,
    mamba_proj_bias=True,
    position_embedding_type="rope",
    attention_bias=True,
    tie_word_embeddings=True,
    layer_types=["attention", "mamba", "attention", "mamba"],
)
case(
    "granitemoehybrid-limits-modern-bf16",
    "granitemoehybrid",
    GRANITE4,
    modern=True,
    dtype="bf16",
    num_local_experts=5,
    num_experts_per_tok=5,
    mamba_n_groups=3,
    time_step_limit=[0.2, 0.9],
)
case(
    "granitemoehybrid-all-mamba",
    "granitemoehybrid",
    GRANITE4,
    layer_types=["mamba"] * 4,
    num_local_experts=0,
    num_experts_per_tok=0,
)

NEMOTRON_H = dict(
    vocab_size=131,
    hidden_size=60,
    intermediate_size=52,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=14,
    hybrid_override_pattern="M-M*E",
    max_position_embeddings=128,
    mlp_hidden_act="relu2",
    ssm_state_size=20,
    mamba_num_heads=6,
    mamba_head_dim=10,
    n_groups=2,
    conv_kernel=4,
    use_conv_bias=True,
    expand=2,
    chunk_size=8,
    time_step_min=0.001,
    time_step_limit=[0.0, float("inf")],
    n_routed_experts=7,
    moe_intermediate_size=28,
    moe_shared_expert_intermediate_size=44,
    num_experts_per_tok=3,
    routed_scaling_factor=1.5,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    layer_norm_epsilon=1e-2,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("nemotron_h-plain", "nemotron_h", NEMOTRON_H)
case(
    "nemotron_h-dense",
    "nemotron_h",
    NEMOTRON_H,
    hybrid_override_pattern="*-M-",
    use_bias=True,
    mlp_bias=True,
    use_conv_bias=False,
    n_groups=1,
    mamba_num_heads=5,
    mamba_head_dim=33,
    ssm_state_size=17,
    conv_kernel=3,
    time_step_min=0.4,
)
case(
    "nemotron_h-latent-modern-bf16",
    "nemotron_h",
    NEMOTRON_H,
    modern=True,
    dtype="bf16",
    hybrid_override_pattern="ME*EM-",
    moe_latent_size=36,
    n_routed_experts=8,
    n_group=4,
    topk_group=2,
    norm_topk_prob=False,
    num_experts_per_tok=3,
)
case(
    "nemotron_h-mixtures",
    "nemotron_h",
    NEMOTRON_H,
    hybrid_override_pattern="EMEE",
    mlp_bias=True,
    moe_latent_size=40,
    num_experts_per_tok=7,
    n_groups=3,
)
BAMBA = dict(
    LLAMA,
    hidden_size=60,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=4,
    attn_layer_indices=[2],
    mamba_n_heads=12,
    mamba_d_head=10,
    mamba_expand=2,
    mamba_n_groups=2,
    mamba_d_state=20,
    mamba_d_conv=4,
    mamba_conv_bias=True,
    mamba_chunk_size=8,
)
BAMBA = {k: v for k, v in BAMBA.items() if k != "rope_theta"} | dict(rope_theta=100.0, head_dim=12)
case("bamba-plain", "bamba", BAMBA)
case(
    "bamba-bias",
    "bamba",
    BAMBA,
    mamba_proj_bias=True,
    mamba_conv_bias=False,
    mlp_bias=True,
    attention_bias=True,
    attn_layer_indices=[0, 3],
    mamba_d_conv=3,
    mamba_n_groups=3,
    num_key_value_heads=6,
)
case(
    "bamba-modern-bf16",
    "bamba",
    BAMBA,
    modern=True,
    dtype="bf16",
    mamba_d_state=33,
    mamba_n_groups=1,
    tie_word_embeddings=True,
)

FALCON_H1 = dict(
    LLAMA,
    hidden_size=60,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=3,
    head_dim=10,
    mamba_d_ssm=100,
    mamba_n_heads=10,
    mamba_d_head=10,
    mamba_expand=2,
    mamba_n_groups=2,
    mamba_d_state=20,
    mamba_d_conv=4,
    mamba_conv_bias=True,
    mamba_chunk_size=8,
    mamba_rms_norm=False,
    mamba_norm_before_gate=False,
    embedding_multiplier=2.0,
    lm_head_multiplier=0.4,
    key_multiplier=0.8,
    attention_in_multiplier=1.2,
    attention_out_multiplier=0.7,
    ssm_in_multiplier=1.1,
    ssm_out_multiplier=0.9,
    ssm_multipliers=[0.6, 1.2, 0.7, 1.4, 0.9],
    mlp_multipliers=[0.8, 1.3],
)
case("falcon_h1-plain", "falcon_h1", FALCON_H1)
case(
    "falcon_h1-norm",
    "falcon_h1",
    FALCON_H1,
    mamba_rms_norm=True,
    mamba_norm_before_gate=True,
    mamba_n_groups=1,
    mamba_d_ssm=99,
    mamba_n_heads=3,
    mamba_d_head=33,
    mamba_d_state=17,
    mamba_d_conv=3,
    mamba_conv_bias=False,
    mlp_bias=True,
    num_key_value_heads=6,
    mlp_multipliers=...,
    ssm_multipliers=...,
    ssm_in_multiplier=...,
)
case(
    "falcon_h1-modern-bf16",
    "falcon_h1",
    FALCON_H1,
    modern=True,
    dtype="bf16",
    mamba_rms_norm=True,
    tie_word_embeddings=True,
    num_key_value_heads=1,
    mamba_n_groups=5,
)

MAMBA2 = dict(
    vocab_size=131,
    hidden_size=60,
    num_hidden_layers=3,
    num_heads=12,
    head_dim=10,
    state_size=20,
    expand=2,
    conv_kernel=4,
    n_groups=2,
    use_bias=False,
    use_conv_bias=True,
    hidden_act="silu",
    layer_norm_epsilon=1e-2,
    chunk_size=8,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("mamba2-plain", "mamba2", MAMBA2)
case(
    "mamba2-bias",
    "mamba2",
    MAMBA2,
    use_bias=True,
    use_conv_bias=False,
    n_groups=1,
    num_heads=4,
    head_dim=30,
    state_size=33,
    conv_kernel=3,
    tie_word_embeddings=True,
    time_step_limit=[0.3, 0.9],
)
case("mamba2-modern-bf16", "mamba2", MAMBA2, modern=True, dtype="bf16", n_groups=6, state_size=7)

# Mamba: rates per channel, states of 16 and of odd numbers of rows, norms of dt, B and C, with attention and experts
MAMBA = dict(
    vocab_size=131,
    hidden_size=60,
    num_hidden_layers=3,
    state_size=16,
    expand=2,
    conv_kernel=4,
    time_step_rank=7,
    use_bias=False,
    use_conv_bias=True,
    hidden_act="silu",
    layer_norm_epsilon=1e-2,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("mamba-plain", "mamba", MAMBA)
case(
    "mamba-bias",
    "mamba",
    MAMBA,
    use_bias=True,
    use_conv_bias=False,
    state_size=5,
    conv_kernel=3,
    hidden_size=45,
    expand=3,
    tie_word_embeddings=True,
)
case(
    "mamba-modern-bf16",
    "mamba",
    MAMBA,
    modern=True,
    dtype="bf16",
    state_size=20,
    time_step_rank="auto",
)
case("falcon_mamba-plain", "falcon_mamba", MAMBA, mixer_rms_eps=1e-3)
case(
    "falcon_mamba-auto",
    "falcon_mamba",
    MAMBA,
    time_step_rank="auto",
    state_size=33,
    tie_word_embeddings=True,
    hidden_size=52,
    use_bias=True,
)
case(
    "falcon_mamba-modern-bf16",
    "falcon_mamba",
    MAMBA,
    modern=True,
    dtype="bf16",
    conv_kernel=2,
    state_size=7,
)
JAMBA = dict(
    LLAMA,
    hidden_size=60,
    intermediate_size=44,
    num_attention_heads=6,
    num_key_value_heads=2,
    num_hidden_layers=5,
    attn_layer_period=4,
    attn_layer_offset=2,
    expert_layer_period=2,
    expert_layer_offset=1,
    num_experts=7,
    num_experts_per_tok=2,
    mamba_d_state=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_dt_rank=9,
    mamba_conv_bias=True,
    mamba_proj_bias=False,
)
JAMBA = {k: v for k, v in JAMBA.items() if k != "rope_theta"}
case("jamba-plain", "jamba", JAMBA)
case(
    "jamba-dense",
    "jamba",
    JAMBA,
    num_experts=1,
    num_experts_per_tok=1,
    mamba_d_state=9,
    mamba_proj_bias=True,
    mamba_conv_bias=False,
    mamba_dt_rank="auto",
    num_key_value_heads=6,
    attn_layer_offset=0,
    tie_word_embeddings=True,
)
case(
    "jamba-modern-bf16",
    "jamba",
    JAMBA,
    modern=True,
    dtype="bf16",
    num_experts=5,
    num_experts_per_tok=5,
    expert_layer_period=1,
    expert_layer_offset=0,
    mamba_d_conv=3,
    num_hidden_layers=4,
    mamba_d_state=33,
)

# layers share the weights of attention and feed-forward blocks in rotation, with low-rank matrices
# per layer; transformers shares the weights if the head is tied
ZAMBA2 = dict(
    vocab_size=131,
    hidden_size=60,
    num_hidden_layers=6,
    layers_block_type=["mamba", "hybrid", "hybrid", "mamba", "hybrid", "hybrid"],
    mamba_d_state=20,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_ngroups=2,
    n_mamba_heads=12,
    chunk_size=8,
    intermediate_size=44,
    hidden_act="gelu",
    num_attention_heads=6,
    num_key_value_heads=6,
    num_mem_blocks=2,
    use_shared_attention_adapter=False,
    adapter_rank=9,
    use_mem_rope=False,
    rms_norm_eps=1e-2,
    max_position_embeddings=128,
    tie_word_embeddings=True,
    torch_dtype="float32",
    **EOS,
)
case("zamba2-plain", "zamba2", ZAMBA2)
case(
    "zamba2-adapters",
    "zamba2",
    ZAMBA2,
    use_shared_attention_adapter=True,
    use_mem_rope=True,
    rope_theta=100.0,
    num_mem_blocks=1,
    num_hidden_layers=4,
    time_step_min=0.4,
    layers_block_type=["hybrid", "mamba", "hybrid", "hybrid"],
    n_mamba_heads=5,
    mamba_expand=3,
    mamba_ngroups=1,
    mamba_d_conv=3,
    mamba_d_state=33,
)
case(
    "zamba2-modern-bf16",
    "zamba2",
    ZAMBA2,
    modern=True,
    dtype="bf16",
    use_mem_rope=True,
    use_shared_attention_adapter=True,
    num_mem_blocks=3,
    adapter_rank=16,
    num_attention_heads=4,
    num_key_value_heads=4,
)


# --- heads per kind of layer, keys used as values, shared keys and values, per-layer embeddings, experts in parallel to a dense feed-forward
GEMMA4 = dict(
    vocab_size=149,
    hidden_size=60,
    intermediate_size=84,
    num_hidden_layers=5,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=12,
    global_head_dim=20,
    hidden_activation="gelu_pytorch_tanh",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    attention_bias=False,
    final_logit_softcapping=3.0,
    sliding_window=6,
    layer_types=[
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
        "full_attention",
    ],
    rope_parameters=dict(
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.3, rope_theta=5000.0),
        sliding_attention=dict(rope_type="default", rope_theta=50.0),
    ),
    hidden_size_per_layer_input=0,
    num_kv_shared_layers=0,
    enable_moe_block=False,
    use_double_wide_mlp=False,
    attention_k_eq_v=False,
    tie_word_embeddings=True,
    torch_dtype="float32",
    **EOS,
)
SMALL4 = dict(
    hidden_size_per_layer_input=16,
    vocab_size_per_layer_input=149,
    num_hidden_layers=7,
    num_kv_shared_layers=3,
    layer_types=[
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "full_attention",
    ],
)
MOE4 = dict(
    enable_moe_block=True,
    num_experts=5,
    top_k_experts=2,
    moe_intermediate_size=28,
    attention_k_eq_v=True,
    num_global_key_value_heads=1,
)
case("gemma4-plain", "gemma4_text", GEMMA4)
case(
    "gemma4-k-is-v",
    "gemma4_text",
    GEMMA4,
    attention_k_eq_v=True,
    num_global_key_value_heads=2,
    sliding_window=33,
)
case("gemma4-small", "gemma4_text", GEMMA4, **SMALL4, use_double_wide_mlp=True)
case(
    "gemma4-small-one-kv",
    "gemma4_text",
    GEMMA4,
    **dict(SMALL4, num_kv_shared_layers=1),
    num_key_value_heads=1,
    global_head_dim=8,
)
case("gemma4-experts", "gemma4_text", GEMMA4, **MOE4)
case(
    "gemma4-modern-bf16",
    "gemma4_text",
    GEMMA4,
    **dict(MOE4, num_experts=7, top_k_experts=7),
    modern=True,
    dtype="bf16",
    torch_dtype="bfloat16",
    emb_bf16=True,
    hidden_size=42,
)


GEMMA3N = dict(
    vocab_size=149,
    vocab_size_per_layer_input=131,
    hidden_size=60,
    intermediate_size=[84] * 7,
    num_hidden_layers=7,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=12,
    hidden_activation="gelu_pytorch_tanh",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    attention_bias=False,
    final_logit_softcapping=3.0,
    sliding_window=6,
    layer_types=[
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "full_attention",
    ],
    rope_theta=5000.0,
    rope_local_base_freq=50.0,
    rope_scaling=None,
    hidden_size_per_layer_input=16,
    num_kv_shared_layers=3,
    laurel_rank=10,
    altup_num_inputs=4,
    altup_active_idx=0,
    altup_coef_clip=120.0,
    altup_correct_scale=True,
    activation_sparsity_pattern=[0.5, 0.8, 0.95, 0.0, 0.3, 0.0, 0.0],
    tie_word_embeddings=True,
    torch_dtype="float32",
    **EOS,
)
case("gemma3n-plain", "gemma3n_text", GEMMA3N)
case(
    "gemma3n-active",
    "gemma3n_text",
    GEMMA3N,
    altup_num_inputs=3,
    altup_active_idx=2,
    altup_correct_scale=False,
    num_kv_shared_layers=0,
    num_key_value_heads=1,
    vocab_size_per_layer_input=149,
    attention_bias=True,
    sliding_window=33,
)
case(
    "gemma3n-modern-bf16",
    "gemma3n_text",
    GEMMA3N,
    modern=True,
    dtype="bf16",
    torch_dtype="bfloat16",
    emb_bf16=True,
    hidden_size=42,
    altup_num_inputs=2,
    num_kv_shared_layers=2,
)


MIMO = dict(
    vocab_size=131,
    hidden_size=60,
    intermediate_size=84,
    moe_intermediate_size=20,
    num_hidden_layers=4,
    num_attention_heads=12,
    num_key_value_heads=3,
    head_dim=12,
    v_head_dim=10,
    hidden_act="silu",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    attention_bias=False,
    sliding_window=6,
    attention_value_scale=0.707,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    routed_scaling_factor=None,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    mlp_layer_types=["dense", "sparse", "sparse", "dense"],
    rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=5000.0, partial_rotary_factor=0.7),
        sliding_attention=dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=0.7),
    ),
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("mimo_v2-plain", "mimo_v2_flash", MIMO)
case(
    "mimo_v2-groups",
    "mimo_v2_flash",
    MIMO,
    n_group=4,
    topk_group=2,
    num_key_value_heads=1,
    v_head_dim=16,
    attention_value_scale=1.3,
    sliding_window=33,
)
case(
    "mimo_v2-modern-bf16",
    "mimo_v2_flash",
    MIMO,
    modern=True,
    dtype="bf16",
    mlp_layer_types=["sparse"] * 4,
    n_routed_experts=5,
    num_experts_per_tok=5,
    routed_scaling_factor=1.5,
)


# --- layer norms on heads, clamped q, k and v, experts selected one at a time
PERSIMMON = dict(
    LLAMA,
    layer_norm_eps=1e-2,
    hidden_act="relu2",
    partial_rotary_factor=0.5,
    qk_layernorm=True,
    num_key_value_heads=...,
)
PERSIMMON = {k: v for k, v in PERSIMMON.items() if v is not ... and k != "rms_norm_eps"}
case("persimmon-plain", "persimmon", PERSIMMON)
case(
    "persimmon-no-norm",
    "persimmon",
    PERSIMMON,
    qk_layernorm=False,
    num_attention_heads=3,
    partial_rotary_factor=0.25,
)
case(
    "persimmon-modern-bf16",
    "persimmon",
    PERSIMMON,
    modern=True,
    dtype="bf16",
    num_attention_heads=4,
    partial_rotary_factor=1.0,
)

PHIMOE = dict(
    LLAMA,
    num_local_experts=5,
    num_experts_per_tok=2,
    intermediate_size=36,
    router_jitter_noise=0.4,
    attention_bias=True,
    lm_head_bias=True,
    sliding_window=None,
)
PHIMOE_ROPE = dict(
    type="longrope",
    short_factor=[1.0, 1.3, 1.9, 2.5],
    long_factor=[1.0, 3.5, 8.0, 33.0],
    short_mscale=1.2,
    long_mscale=1.2,
    original_max_position_embeddings=64,
)
case("phimoe-plain", "phimoe", PHIMOE)
case(
    "phimoe-longrope",
    "phimoe",
    PHIMOE,
    num_local_experts=7,
    rope_scaling=PHIMOE_ROPE,
    attention_bias=False,
    lm_head_bias=False,
    num_key_value_heads=1,
)
case(
    "phimoe-two", "phimoe", PHIMOE, num_local_experts=2, router_jitter_noise=0.01, sliding_window=7
)
case(
    "phimoe-modern-bf16",
    "phimoe",
    PHIMOE,
    modern=True,
    dtype="bf16",
    num_local_experts=16,
    router_jitter_noise=0.1,
    num_key_value_heads=9,
)

DBRX = dict(
    vocab_size=131,
    d_model=72,
    n_heads=9,
    n_layers=3,
    max_seq_len=128,
    attn_config=dict(clip_qkv=0.8, kv_n_heads=3, rope_theta=100.0),
    rope_theta=100.0,
    ffn_config=dict(
        ffn_hidden_size=36,
        moe_num_experts=5,
        moe_top_k=2,
        moe_normalize_expert_weights=1.0,
        ffn_act_fn=dict(name="silu"),
    ),
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("dbrx-plain", "dbrx", DBRX)
case(
    "dbrx-all",
    "dbrx",
    DBRX,
    attn_config=dict(clip_qkv=3.0, kv_n_heads=1, rope_theta=100.0),
    ffn_config=dict(
        ffn_hidden_size=28,
        moe_num_experts=7,
        moe_top_k=7,
        moe_normalize_expert_weights=1.0,
        ffn_act_fn=dict(name="gelu"),
    ),
)
case(
    "dbrx-modern-bf16",
    "dbrx",
    DBRX,
    modern=True,
    dtype="bf16",
    attn_config=dict(clip_qkv=2.0, kv_n_heads=9, rope_theta=100.0),
)

INTERNLM2 = dict(LLAMA, bias=False)
case("internlm2-plain", "internlm2", INTERNLM2, other="InternLM2")
case(
    "internlm2-bias",
    "internlm2",
    INTERNLM2,
    other="InternLM2",
    bias=True,
    num_attention_heads=6,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)
case(
    "internlm2-bf16",
    "internlm2",
    INTERNLM2,
    other="InternLM2",
    dtype="bf16",
    num_attention_heads=4,
    num_key_value_heads=4,
    rope_theta=1e6,
)
case(
    "internlm2-dynamic",
    "internlm2",
    INTERNLM2,
    other="InternLM2",
    greedy=0,
    max_position_embeddings=16,
    args=["--context", "64"],
    num_key_value_heads=1,
    rope_scaling=dict(type="dynamic", factor=2.0),
)


# --- chunked attention, unit norms after rope, queries scaled by position, an expert with weighted input
LLAMA4 = dict(
    LLAMA,
    head_dim=12,
    hidden_size=60,
    num_hidden_layers=4,
    intermediate_size=28,
    intermediate_size_mlp=52,
    num_local_experts=5,
    num_experts_per_tok=1,
    interleave_moe_layer_step=1,
    use_qk_norm=True,
    no_rope_layers=[1, 1, 0, 1],
    attention_chunk_size=8,
    attn_temperature_tuning=True,
    floor_scale=8,
    attn_scale=0.1,
    attention_bias=False,
)
case("llama4-plain", "llama4_text", LLAMA4)
case(
    "llama4-dense-layers",
    "llama4_text",
    LLAMA4,
    interleave_moe_layer_step=2,
    use_qk_norm=False,
    no_rope_layers=None,
    attention_chunk_size=33,
    num_local_experts=7,
    num_key_value_heads=1,
    attention_bias=True,
    tie_word_embeddings=True,
)
case(
    "llama4-modern-bf16",
    "llama4_text",
    LLAMA4,
    modern=True,
    dtype="bf16",
    attn_temperature_tuning=False,
    num_key_value_heads=9,
    attention_chunk_size=5,
    hidden_act="gelu",
)
# --- families of the same primitives
AFMOE = dict(
    LLAMA,
    head_dim=12,
    hidden_size=60,
    num_hidden_layers=4,
    num_dense_layers=1,
    num_experts=7,
    num_experts_per_tok=3,
    num_shared_experts=2,
    moe_intermediate_size=20,
    route_scale=1.7,
    sliding_window=6,
    global_attn_every_n_layers=2,
    attention_bias=False,
)
case("afmoe-plain", "afmoe", AFMOE)
case(
    "afmoe-mup",
    "afmoe",
    AFMOE,
    mup_enabled=True,
    num_shared_experts=1,
    num_experts=5,
    num_experts_per_tok=5,
    num_key_value_heads=1,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
)
case(
    "afmoe-modern-bf16",
    "afmoe",
    AFMOE,
    modern=True,
    dtype="bf16",
    num_dense_layers=2,
    sliding_window=33,
)
EXAONE_MOE = dict(
    LLAMA,
    head_dim=12,
    num_hidden_layers=4,
    num_experts=8,
    num_experts_per_tok=3,
    moe_intermediate_size=20,
    num_shared_experts=1,
    first_k_dense_replace=1,
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    n_group=1,
    topk_group=1,
    sliding_window=6,
    sliding_window_pattern=4,
    layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
)
case("exaone_moe-plain", "exaone_moe", EXAONE_MOE)
case(
    "exaone_moe-groups",
    "exaone_moe",
    EXAONE_MOE,
    n_group=4,
    topk_group=2,
    num_shared_experts=2,
    norm_topk_prob=False,
    num_key_value_heads=1,
)
case(
    "exaone_moe-modern-bf16",
    "exaone_moe",
    EXAONE_MOE,
    modern=True,
    dtype="bf16",
    num_experts=5,
    num_experts_per_tok=5,
    first_k_dense_replace=2,
    sliding_window=33,
)
# --- heads, rope tables and limits per kind of layer, gates per head; lists per layer also have
# elements for MTP layers
STEP = dict(
    vocab_size=131,
    hidden_size=60,
    intermediate_size=84,
    num_hidden_layers=5,
    num_attention_heads=6,
    num_attention_groups=3,
    head_dim=12,
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    sliding_window=6,
    layer_types=[
        "full_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ]
    * 2,
    attention_other_setting=dict(
        attention_type="sliding_attention",
        num_attention_heads=9,
        num_attention_groups=3,
        head_dim=12,
        true_head_dim=12,
    ),
    rope_theta=[5000.0, 50.0, 50.0, 5000.0, 50.0] * 2,
    partial_rotary_factors=[0.5, 1.0, 1.0, 0.5, 1.0] * 2,
    num_nextn_predict_layers=5,
    yarn_only_types=["full_attention"],
    rope_scaling=dict(
        rope_type="llama3",
        factor=2.0,
        original_max_position_embeddings=32,
        low_freq_factor=1.0,
        high_freq_factor=8.0,
    ),
    moe_layers_enum="1,3,4",
    moe_num_experts=7,
    moe_top_k=3,
    moe_intermediate_size=20,
    share_expert_dim=24,
    moe_router_scaling_factor=1.7,
    norm_expert_weight=True,
    use_moe_router_bias=True,
    moe_router_activation="sigmoid",
    use_head_wise_attn_gate=True,
    use_qk_norm=True,
    need_fp32_gate=True,
    zero_centered=True,
    sink=False,
    swiglu_limits=[0.0, 0.3, 0.0, 0.4, 0.0] * 2,
    swiglu_limits_shared=[0.5, 0.0, 0.0, 0.6, 0.35] * 2,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("step3p5-plain", "step3p5", STEP, plus_one=True, vision="step3p7", flat=True)
case(
    "step3p5-wrapped",
    "step3p5",
    STEP,
    plus_one=True,
    vision="step3p7",
    num_attention_heads=4,
    num_attention_groups=1,
    head_dim=16,
    moe_num_experts=5,
    moe_top_k=5,
    sliding_window=33,
    swiglu_limits=[None, 0.3, None, 0.3, 0.3] + [None] * 5,
    swiglu_limits_shared=[None, 0.3, None, 0.3, 0.3] + [None] * 5,
    rope_scaling=None,
    attention_other_setting=dict(num_attention_heads=6, num_attention_groups=1, head_dim=16),
)
case(
    "step3p5-modern-bf16",
    "step3p5",
    STEP,
    plus_one=True,
    vision="step3p7",
    modern=True,
    dtype="bf16",
    swiglu_limits=...,
    swiglu_limits_shared=...,
    rope_theta=100.0,
    partial_rotary_factors=...,
)
LAGUNA = dict(
    vocab_size=131,
    hidden_size=60,
    intermediate_size=84,
    num_hidden_layers=4,
    num_attention_heads=6,
    num_attention_heads_per_layer=[6, 9, 9, 6],
    num_key_value_heads=3,
    head_dim=12,
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    sliding_window=6,
    layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
    moe_intermediate_size=20,
    shared_expert_intermediate_size=28,
    num_experts=7,
    num_experts_per_tok=3,
    moe_routed_scaling_factor=2.5,
    gating="per-head",
    attention_bias=False,
    rope_parameters=dict(
        full_attention=dict(
            rope_type="yarn",
            rope_theta=5000.0,
            partial_rotary_factor=0.5,
            factor=4.0,
            original_max_position_embeddings=16,
            beta_slow=1.0,
            beta_fast=4.0,
            attention_factor=1.2,
        ),
        sliding_attention=dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=1.0),
    ),
    norm_topk_prob=True,
    decoder_sparse_step=1,
    mlp_only_layers=[0],
    moe_router_logit_softcapping=0.0,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("laguna-plain", "laguna", LAGUNA)
case(
    "laguna-element",
    "laguna",
    LAGUNA,
    gating="per-element",
    rope_parameters=...,
    num_key_value_heads=1,
    sliding_window=33,
    num_experts=5,
    num_experts_per_tok=5,
    attention_bias=True,
    num_attention_heads_per_layer=[5, 4, 4, 5],
    mlp_layer_types=["sparse", "dense", "sparse", "sparse"],
    tie_word_embeddings=True,
    moe_routed_scaling_factor=1.0,
)
case(
    "laguna-modern-bf16",
    "laguna",
    LAGUNA,
    modern=True,
    dtype="bf16",
    gating=True,
    layer_types=...,
    num_attention_heads_per_layer=...,
    mlp_layer_types=...,
)
JAIS2 = dict(
    {k: v for k, v in LLAMA.items() if k != "rms_norm_eps"},
    layer_norm_eps=1e-2,
    hidden_act="relu2",
    attention_bias=True,
    mlp_bias=True,
)
case("jais2-plain", "jais2", JAIS2)
case(
    "jais2-no-bias",
    "jais2",
    JAIS2,
    attention_bias=False,
    mlp_bias=False,
    tie_word_embeddings=True,
    num_key_value_heads=1,
)
case("jais2-modern-bf16", "jais2", JAIS2, modern=True, dtype="bf16", num_key_value_heads=9)
HYPERCLOVAX = dict(
    LLAMA,
    embedding_multiplier=3.0,
    attention_multiplier=0.21,
    logits_scaling=0.4,
    residual_multiplier=1.0,
    use_post_norm=True,
    attention_bias=False,
    mlp_bias=False,
)
case("hyperclovax-plain", "hyperclovax", HYPERCLOVAX)
case(
    "hyperclovax-no-post",
    "hyperclovax",
    HYPERCLOVAX,
    use_post_norm=False,
    attention_bias=True,
    mlp_bias=True,
    tie_word_embeddings=True,
    attention_multiplier=None,
)
case(
    "hyperclovax-modern-bf16",
    "hyperclovax",
    HYPERCLOVAX,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
)
GRANITEMOE = dict(GRANITE, num_local_experts=7, num_experts_per_tok=3, intermediate_size=28)
case("granitemoe-plain", "granitemoe", GRANITEMOE)
case(
    "granitemoe-shared",
    "granitemoeshared",
    GRANITEMOE,
    shared_intermediate_size=44,
    num_local_experts=5,
    num_experts_per_tok=5,
    attention_bias=True,
)
case(
    "granitemoe-modern-bf16",
    "granitemoe",
    GRANITEMOE,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
)
FLEX_OLMO = dict(OLMOE, num_experts=7, num_experts_per_tok=5)
case("flex_olmo-plain", "flex_olmo", FLEX_OLMO)
case(
    "flex_olmo-renorm",
    "flex_olmo",
    FLEX_OLMO,
    norm_topk_prob=True,
    num_experts=5,
    num_experts_per_tok=5,
    num_key_value_heads=1,
)
case(
    "flex_olmo-modern-bf16",
    "flex_olmo",
    FLEX_OLMO,
    modern=True,
    dtype="bf16",
    num_experts_per_tok=1,
    attention_bias=True,
)

# --- models of 2026: averaged experts, RoPE in the opposite direction, attention sinks and RoPE
# bases per layer, latents with factors, convolutions with windows
COHERE2_MOE = dict(
    {
        k: v
        for k, v in COHERE2.items()
        if k not in ("rms_norm_eps", "use_qk_norm", "sliding_window_pattern")
    },
    intermediate_size=28,
    prefix_dense_intermediate_size=52,
    num_experts=7,
    num_experts_per_tok=3,
    num_shared_experts=1,
    layer_types=["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
    mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
)
case("cohere2_moe-plain", "cohere2_moe", COHERE2_MOE)
case(
    "cohere2_moe-sigmoid",
    "cohere2_moe",
    COHERE2_MOE,
    expert_selection_fn="sigmoid",
    shared_expert_combination_strategy="sum",
    num_shared_experts=2,
    rms_norm_eps=1e-2,
    prefix_dense_sliding_window_pattern=2,
    attention_bias=True,
)
case(
    "cohere2_moe-all",
    "cohere2_moe",
    COHERE2_MOE,
    expert_selection_fn="sigmoid",
    norm_topk_prob=False,
    num_experts=5,
    num_experts_per_tok=5,
    num_shared_experts=0,
    layer_types=...,
    mlp_layer_types=...,
    prefix_dense_intermediate_size=...,
    sliding_window_pattern=3,
    tie_word_embeddings=False,
)
case(
    "cohere2_moe-modern-bf16",
    "cohere2_moe",
    COHERE2_MOE,
    modern=True,
    dtype="bf16",
    num_key_value_heads=9,
    expert_selection_fn="sigmoid",
    num_shared_experts=2,
    sliding_window=33,
    mlp_layer_types=["dense", "dense", "sparse", "sparse"],
)
NANOCHAT = dict(
    vocab_size=131,
    hidden_size=60,
    intermediate_size=84,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=6,
    hidden_act="relu2",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    rope_theta=100.0,
    final_logit_softcapping=3.0,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("nanochat-plain", "nanochat", NANOCHAT)
case(
    "nanochat-groups",
    "nanochat",
    NANOCHAT,
    num_key_value_heads=2,
    attention_bias=True,
    final_logit_softcapping=None,
)
case(
    "nanochat-modern-bf16",
    "nanochat",
    NANOCHAT,
    modern=True,
    dtype="bf16",
    num_key_value_heads=1,
    num_attention_heads=5,
    tie_word_embeddings=True,
)
GRANITE_SWA = dict(
    GRANITE,
    sliding_window=6,
    layer_types=["full_attention", "sliding_attention", "sliding_attention"],
    layer_rope_theta=[0.0, 100.0, 100.0],
)
case("granite_swa-plain", "granite_swa", GRANITE_SWA)
case(
    "granite_swa-moe",
    "granitemoe_swa",
    GRANITE_SWA,
    layer_rope_theta=[5000.0, 50.0, 50.0],
    num_local_experts=7,
    num_experts_per_tok=3,
    intermediate_size=28,
    shared_intermediate_size=44,
)
case(
    "granite_swa-moe-all",
    "granitemoe_swa",
    GRANITE_SWA,
    layer_rope_theta=[50.0, 0.0, 0.0],
    num_local_experts=5,
    num_experts_per_tok=5,
    intermediate_size=28,
    shared_intermediate_size=0,
    num_key_value_heads=1,
    attention_bias=True,
    tie_word_embeddings=True,
)
case(
    "granite_swa-modern-bf16",
    "granite_swa",
    GRANITE_SWA,
    modern=True,
    dtype="bf16",
    layer_types=...,
    layer_rope_theta=...,
    num_hidden_layers=5,
    sliding_window=33,
    mlp_bias=True,
)
MINICPM3 = dict(
    {
        k: v
        for k, v in DSV2.items()
        if "moe" not in k
        and "expert" not in k
        and "topk" not in k
        and k not in ("n_group", "routed_scaling_factor", "first_k_dense_replace")
    },
    q_lora_rank=20,
    scale_emb=12,
    scale_depth=1.4,
    dim_model_base=20,
    tie_word_embeddings=True,
)
case("minicpm3-plain", "minicpm3", MINICPM3)
case(
    "minicpm3-longrope",
    "minicpm3",
    MINICPM3,
    q_lora_rank=None,
    v_head_dim=None,
    tie_word_embeddings=False,
    scale_depth=0.7,
    attention_bias=True,
    rope_scaling=dict(
        type="longrope",
        short_factor=[1.0, 1.3, 1.9, 2.5],
        long_factor=[1.0, 3.5, 8.0, 33.0],
        original_max_position_embeddings=128,
    ),
)
case(
    "minicpm3-modern-bf16",
    "minicpm3",
    MINICPM3,
    modern=True,
    dtype="bf16",
    num_hidden_layers=4,
    qk_rope_head_dim=10,
    qk_nope_head_dim=6,
    mlp_bias=True,
)
LFM3 = dict(
    {k: v for k, v in LFM2.items() if not k.startswith("block_") and k != "rope_theta"},
    head_dim=10,
    conv_L_cache=4,
    sliding_window=6,
    num_hidden_layers=5,
    layer_types=["conv", "sliding_attention", "full_attention", "conv", "sliding_attention"],
    rope_parameters=dict(
        full_attention=dict(rope_type="proportional", partial_rotary_factor=0.4, rope_theta=5000.0),
        sliding_attention=dict(rope_type="default", rope_theta=50.0),
    ),
)
case("lfm3-plain", "lfm3", LFM3)
case(
    "lfm3-bare",
    "lfm3",
    LFM3,
    use_sandwich_norm=False,
    use_attention_gate=False,
    conv_bias=True,
    attention_bias=True,
    num_key_value_heads=1,
    tie_word_embeddings=False,
)
case(
    "lfm3-modern-bf16",
    "lfm3",
    LFM3,
    modern=True,
    dtype="bf16",
    conv_L_cache=7,
    sliding_window=33,
    num_hidden_layers=4,
    layer_types=["full_attention", "conv", "sliding_attention", "conv"],
)
FLINT = dict(
    {k: v for k, v in QWEN3_MOE.items() if k not in ("use_sliding_window", "max_window_layers")},
    **WINDOWS,
    mlp_only_layers=[0],
    shared_expert_intermediate_size=44,
)
case("flint-plain", "flint", FLINT)
case(
    "flint-all",
    "flint",
    FLINT,
    num_experts=5,
    num_experts_per_tok=5,
    norm_topk_prob=False,
    mlp_only_layers=[],
    attention_bias=True,
    num_key_value_heads=1,
)
case(
    "flint-modern-bf16",
    "flint",
    FLINT,
    modern=True,
    dtype="bf16",
    sliding_window=33,
    num_hidden_layers=4,
    layer_types=["full_attention", "sliding_attention"] * 2,
    mlp_only_layers=[0, 2],
)
case("deepseek_v3-axk1", "axk1", DSV3, num_hidden_layers=4)
SARVAM = dict(
    {
        k: v
        for k, v in DSV3.items()
        if k not in ("n_routed_experts", "n_shared_experts", "topk_method", "scoring_func")
    },
    num_experts=DSV3["n_routed_experts"],
    num_shared_experts=1,
    q_lora_rank=None,
    n_group=1,
    topk_group=1,
    rope_theta=10000.0,
    rope_scaling=dict(
        {k: v for k, v in DSYARN.items() if k != "type"},
        type="deepseek_yarn",
        mscale=1.0,
        mscale_all_dim=1.0,
    ),
)
case("deepseek_v3-sarvam", "sarvam_mla", SARVAM)
GLM_V = dict(rope_scaling=dict(rope_type="default", mrope_section=[2, 1, 1]))
case("glm4-vision", "glm4v_text", GLM, vision="glm4v", hidden_size=64, head_dim=..., **GLM_V)
case(
    "glm4-vision-bias",
    "glm4v_text",
    GLM,
    vision="glm4v",
    hidden_size=64,
    head_dim=...,
    attention_bias=False,  # the model's code has biases nevertheless
    **GLM_V,
)
case(
    "glm4-ocr",
    "glm_ocr_text",
    GLM,
    vision="glm_ocr",
    attention_bias=False,
    head_dim=12,
    partial_rotary_factor=1.0,
    rope_scaling=dict(rope_type="default", mrope_section=[2, 2, 2]),
)
case(
    "llama-paddleocr",
    "paddleocr_vl_text",
    LLAMA,
    vision="paddleocr_vl",
    head_dim=12,
    tie_word_embeddings=True,
    rope_scaling=dict(rope_type="default", mrope_section=[2, 2, 2]),
)
case(
    "llama-paddleocr-bias",
    "paddleocr_vl_text",
    LLAMA,
    vision="paddleocr_vl",
    head_dim=12,
    use_bias=True,
    num_key_value_heads=1,
    rope_scaling=dict(rope_type="default", mrope_section=[2, 2, 2]),
)
LARA = dict(
    {
        k: v
        for k, v in QWEN3_NEXT.items()
        if k
        not in (
            "decoder_sparse_step",
            "mlp_only_layers",
            "full_attention_interval",
            "partial_rotary_factor",
            "intermediate_size",
        )
    },
    num_hidden_layers=5,
    layer_types=["linear_attention", "sliding_attention", "linear_attention"]
    + ["full_attention", "sliding_attention"],
    sliding_window=7,
)
case("lara_mini-plain", "lara_mini", LARA)
case(
    "lara_mini-all",
    "lara_mini",
    LARA,
    num_experts=5,
    num_experts_per_tok=5,
    norm_topk_prob=False,
    attention_bias=True,
    tie_word_embeddings=True,
)
case(
    "lara_mini-modern-bf16",
    "lara_mini",
    LARA,
    modern=True,
    dtype="bf16",
    sliding_window=33,
    num_key_value_heads=1,
)
case("glm4_moe-vision", "glm4v_moe_text", GLM_MOE, vision="glm4v_moe", **GLM_V)
EXAONE = dict(
    {
        k: v
        for k, v in LLAMA.items()
        if k not in ("num_hidden_layers", "hidden_act", "rms_norm_eps")
    },
    num_layers=3,
    layer_norm_epsilon=1e-2,
    activation_function="silu",
)
case("exaone-plain", "exaone", EXAONE, other="Exaone")
case(
    "exaone-tied",
    "exaone",
    EXAONE,
    other="Exaone",
    tie_word_embeddings=True,
    num_attention_heads=6,
    num_key_value_heads=1,
    num_layers=4,
)
case(
    "exaone-bf16",
    "exaone",
    EXAONE,
    other="Exaone",
    dtype="bf16",
    num_key_value_heads=9,
    rope_theta=1e6,
)
MINICPM = dict(LLAMA, scale_emb=12, scale_depth=1.4, dim_model_base=24)
case("minicpm-plain", "minicpm", MINICPM, other="MiniCPM")
case(
    "minicpm-tied",
    "minicpm",
    MINICPM,
    other="MiniCPM",
    tie_word_embeddings=True,
    num_key_value_heads=9,
    scale_depth=0.7,
    scale_emb=1.5,
)
case(
    "minicpm-bf16",
    "minicpm",
    MINICPM,
    other="MiniCPM",
    dtype="bf16",
    num_key_value_heads=1,
    num_hidden_layers=4,
    scale_emb=3,
)
case("llama-iquest", "iquestcoder", LLAMA, head_dim=12)

# --- relatives of 2026: Sarvam, Ling 2, Aria, MiniMax M3
LING = dict(
    vocab_size=157,
    hidden_size=56,
    intermediate_size=72,
    moe_intermediate_size=20,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=10,
    num_experts=8,
    num_experts_per_tok=3,
    num_shared_experts=1,
    moe_shared_expert_intermediate_size=20,
    routed_scaling_factor=2.5,
    n_group=4,
    topk_group=2,
    norm_topk_prob=True,
    first_k_dense_replace=1,
    use_qk_norm=True,
    use_qkv_bias=False,
    score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    partial_rotary_factor=0.6,
    hidden_act="silu",
    max_position_embeddings=128,
    rms_norm_eps=1e-2,
    rope_theta=100.0,
    tie_word_embeddings=False,
    torch_dtype="float32",
    **EOS,
)
case("bailing_moe2-plain", "sarvam_moe", LING)
case(
    "bailing_moe2-whole",
    "sarvam_moe",
    LING,
    partial_rotary_factor=...,
    n_group=1,
    topk_group=1,
    num_shared_experts=2,
    moe_shared_expert_intermediate_size=...,
    num_key_value_heads=6,
    num_experts=7,
    use_qkv_bias=False,
    tie_word_embeddings=True,
    norm_topk_prob=False,
)
case(
    "bailing_moe2-modern-bf16",
    "sarvam_moe",
    LING,
    modern=True,
    dtype="bf16",
    first_k_dense_replace=0,
    num_key_value_heads=1,
    num_experts_per_tok=4,
)
ARIA = dict(
    {k: v for k, v in LLAMA.items() if k != "head_dim"},
    moe_num_experts=7,
    moe_topk=3,
    moe_num_shared_experts=2,
    intermediate_size=28,
)
case("aria-plain", "aria_text", ARIA)
case(
    "aria-all",
    "aria_text",
    ARIA,
    moe_num_experts=5,
    moe_topk=5,
    moe_num_shared_experts=1,
    num_key_value_heads=1,
    attention_bias=True,
    tie_word_embeddings=True,
)
case(
    "aria-modern-bf16",
    "aria_text",
    ARIA,
    modern=True,
    dtype="bf16",
    moe_topk=1,
    num_key_value_heads=9,
)
MINIMAX3 = dict(
    LLAMA,
    head_dim=12,
    rotary_dim=6,
    intermediate_size=28,
    dense_intermediate_size=52,
    shared_intermediate_size=28,
    num_local_experts=8,
    num_experts_per_tok=3,
    routed_scaling_factor=1.7,
    swiglu_limit=0.9,
    hidden_act="swigluoai",
    moe_layer_freq=[0, 1, 1],
    rope_parameters=dict(rope_type="default", rope_theta=100.0, partial_rotary_factor=0.5),
    sparse_attention_config=dict(
        use_sparse_attention=True,
        sparse_index_dim=12,
        sparse_num_index_heads=3,
        sparse_topk_blocks=16,
        sparse_block_size=8,
        sparse_score_type="max",
        sparse_init_block=0,
        sparse_local_block=1,
        sparse_attention_freq=[0, 1, 1],
        sparse_disable_index_value=[0, 1, 1],
    ),
)
MINIMAX3 = {k: v for k, v in MINIMAX3.items() if k != "rope_theta"}
case("minimax_m3-plain", "minimax_m3_vl_text", MINIMAX3, plus_one=True)
case(
    "minimax_m3-all",
    "minimax_m3_vl_text",
    MINIMAX3,
    plus_one=True,
    vision="minimax_m3_vl",
    num_local_experts=5,
    num_experts_per_tok=5,
    num_key_value_heads=1,
    moe_layer_freq=[1, 0, 1],
    tie_word_embeddings=True,
    swiglu_limit=7.0,
)
case(
    "minimax_m3-modern-bf16",
    "minimax_m3_vl_text",
    MINIMAX3,
    plus_one=True,
    modern=True,
    dtype="bf16",
    num_local_experts=7,
    num_key_value_heads=9,
    moe_layer_freq=[0, 0, 1],
)

# --- models that transformers lacks: relatives of llama with other names
case(
    "llama-xverse",
    "xverse",
    LLAMA,
    other="LlamaLike",
    num_key_value_heads=...,
    max_tokenizer_truncation=96,
)
case("llama-aquila", "aquila", LLAMA, other="LlamaLike")
case("llama-pangu", "PanguEmbedded", LLAMA, other="Pangu", bias=True, num_key_value_heads=1)
case("qwen2-mimo", "mimo", LLAMA, other="MiMo", attention_bias=True, num_nextn_predict_layers=1)
ORION = dict(LLAMA, attention_bias=False, max_sequence_length=128)
case("orion-plain", "orion", ORION, other="Orion")
case(
    "orion-tied",
    "orion",
    ORION,
    other="Orion",
    tie_word_embeddings=True,
    num_attention_heads=6,
    num_key_value_heads=1,
    num_hidden_layers=4,
    rms_norm_eps=1e-5,
)
case(
    "orion-bf16", "orion", ORION, other="Orion", dtype="bf16", num_key_value_heads=9, rope_theta=1e4
)
QWEN1 = dict(
    vocab_size=131,
    hidden_size=72,
    intermediate_size=200,
    num_hidden_layers=3,
    num_attention_heads=9,
    kv_channels=8,
    layer_norm_epsilon=1e-2,
    max_position_embeddings=256,
    seq_length=128,
    rotary_emb_base=100.0,
    rotary_pct=1.0,
    use_dynamic_ntk=True,
    use_logn_attn=True,
    no_bias=True,
    scale_attn_weights=True,
    tie_word_embeddings=False,
    onnx_safe=None,
    use_flash_attn="auto",
    fp32=False,
    bf16=True,
    fp16=False,
    softmax_in_fp32=False,
    use_cache_quantization=False,
    use_cache_kernel=False,
    emb_dropout_prob=0.0,
    attn_dropout_prob=0.0,
    torch_dtype="float32",
)
case("qwen-plain", "qwen", QWEN1, other="Qwen")
case(
    "qwen-heads",
    "qwen",
    QWEN1,
    other="Qwen",
    num_attention_heads=5,
    kv_channels=12,
    hidden_size=60,
    num_hidden_layers=4,
    intermediate_size=108,
    rotary_emb_base=1e4,
)
case(
    "qwen-bf16",
    "qwen",
    QWEN1,
    other="Qwen",
    dtype="bf16",
    num_attention_heads=3,
    kv_channels=24,
    use_logn_attn=False,
    use_dynamic_ntk=False,
)
DSV1 = dict(
    LLAMA,
    moe_intermediate_size=20,
    n_routed_experts=8,
    n_shared_experts=2,
    num_experts_per_tok=3,
    moe_layer_freq=1,
    first_k_dense_replace=1,
    norm_topk_prob=False,
    scoring_func="softmax",
    aux_loss_alpha=0.001,
    seq_aux=True,
    attention_bias=False,
)
case("deepseek-plain", "deepseek", DSV1, other="DeepSeek")
case(
    "deepseek-renorm",
    "deepseek",
    DSV1,
    other="DeepSeek",
    norm_topk_prob=True,
    n_shared_experts=None,
    num_hidden_layers=5,
    moe_layer_freq=2,
    n_routed_experts=5,
    num_key_value_heads=9,
)
case(
    "deepseek-bf16",
    "deepseek",
    DSV1,
    other="DeepSeek",
    dtype="bf16",
    first_k_dense_replace=0,
    num_experts_per_tok=8,
    n_shared_experts=1,
    num_key_value_heads=1,
)

LING1 = dict(
    {k: v for k, v in DSV1.items() if not re.match("n_|moe_layer|scoring|aux|seq|attention", k)},
    num_experts=8,
    num_shared_experts=2,
    norm_topk_prob=True,
    use_bias=False,
    use_qkv_bias=False,
    norm_head=False,
    norm_softmax=False,
    embedding_dropout=0.0,
    output_dropout=0.0,
    output_router_logits=False,
    rope_scaling=None,
)
case("bailing_moe-plain", "bailing_moe", LING1, other="Ling")
case(
    "bailing_moe-all",
    "bailing_moe",
    LING1,
    other="Ling",
    norm_topk_prob=False,
    first_k_dense_replace=0,
    num_experts=5,
    num_experts_per_tok=5,
    num_key_value_heads=1,
    tie_word_embeddings=True,
)
case(
    "bailing_moe-bf16",
    "bailing_moe",
    LING1,
    other="Ling",
    dtype="bf16",
    num_hidden_layers=4,
    first_k_dense_replace=2,
    num_shared_experts=1,
    num_experts_per_tok=2,
    num_key_value_heads=9,
)


def header(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        h = json.loads(f.read(n))
    return {k: v["shape"] for k, v in sorted(h.items()) if k != "__metadata__"}


def rounded_weights(c, shapes, seed):
    return {
        n: W.rounded(W.tensor(seed, n, s, c["plus_one"]), c["dtype"]) for n, s in shapes.items()
    }


def as_published(c, shapes):
    """Undo changes of transformers 5: it splits OLMo-Hybrid's convolution into three equal parts,
    whatever the sizes of q, k and v, gives the second norm of all layers one name, and it names
    Kimi Linear's dense layers like MoE layers."""
    if c["config"]["model_type"] == "kimi_linear" and not c["modern"]:
        return {re.sub(r"block_sparse_moe\.(\w+_proj)", r"mlp.\1", n): s for n, s in shapes.items()}
    if c["config"]["model_type"] != "olmo_hybrid":
        return shapes
    config, out = c["config"], {}
    rows = dict(
        q=config["linear_num_key_heads"] * config["linear_key_head_dim"],
        v=config["linear_num_value_heads"] * config["linear_value_head_dim"],
    )
    for n, s in shapes.items():
        if "_conv1d" in n:
            s = [rows["v" if "v_conv1d" in n else "q"]] + s[1:]
        elif (
            not c["modern"]
            and "feedforward_layer_norm" in n
            and config["layer_types"][int(n.split(".")[2])] == "full_attention"
        ):
            n = n.replace("feedforward_layer_norm", "post_attention_layernorm")
        out[n] = s
    return dict(sorted(out.items()))


def transformers_model(c, seed):
    """Return the shapes, the config as committed, a function from ids to logits in fp32, and such a
    function in fp64."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.mistral4.modeling_mistral4 import Mistral4ForCausalLM

    auto = AutoModelForImageTextToText if c["vision"] else AutoModelForCausalLM
    create = auto.from_config
    if c["config"]["model_type"] == "mistral4":  # the Auto classes have no entry for this class
        auto, create = Mistral4ForCausalLM, Mistral4ForCausalLM._from_config
    if c["vision"]:
        inner = c["config"]
        small = dict(
            depth=1,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=28,
            patch_size=14,
            hidden_size=16,
            num_heads=2,
            intermediate_size=16,
            out_hidden_size=c["config"]["hidden_size"],
            deepstack_visual_indexes=[0],
        )
        ids = {
            k: 3
            for k in (
                "image_token_id",
                "video_token_id",
                "vision_start_token_id",
                "vision_end_token_id",
            )
        }
        c = dict(
            c,
            config=dict(
                model_type=c["vision"],
                text_config=c["config"],
                vision_config=small,
                tie_word_embeddings=c["config"]["tie_word_embeddings"],
                **ids,
            ),
        )
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(c["config"], f)
        cfg = AutoConfig.from_pretrained(d)
        cfg._attn_implementation = "eager"
        create(cfg, dtype=torch.float32).save_pretrained(d + "/m")
        with open(d + "/m/config.json") as f:
            config = json.load(f)
        shapes = as_published(c, header(d + "/m/model.safetensors"))
        seen = {
            n: s
            for n, s in shapes.items()
            if not re.match(
                r"(model\.)?(.*\.visual\.|vision_model\.|vision_tower\.|multi_modal_projector\.|patch_merge_mlp\.|vit_)",
                n,
            )
        }
        if c["strip"]:
            shapes = {n.removeprefix(c["strip"]): s for n, s in shapes.items()}
        W.write_safetensors(
            d + "/m/model.safetensors",
            {n: torch_first(w) for n, w in rounded_weights(c, shapes, seed).items()},
            "f32",
        )
        if not c["modern"]:
            config = inner if c["vision"] and c["flat"] else c["config"]
            shutil.copy(d + "/config.json", d + "/m/config.json")
        model, info = auto.from_pretrained(
            d + "/m",
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
        given = rounded_weights(c, shapes, seed)
        # load the embedding again, because some classes recreate it after loading
        for n, p in model.named_parameters():
            if n in given and list(p.shape) == shapes[n]:
                p.data.copy_(torch.from_numpy(given[n]))
        problems = {k: v for k, v in info.items() if v and k != "missing_keys"}
        missing = [k for k in info["missing_keys"] if not (k == "lm_head.weight")]
        if problems or missing:
            raise SystemExit(f"loading: {problems} {missing}")
    model.eval()
    if c["emb_bf16"]:
        e = model.get_input_embeddings()
        e.embed_scale.copy_(e.embed_scale.bfloat16().float())

    @torch.no_grad()
    def run(ids, m=model):
        return m(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()

    def run64(ids):
        return run(ids, model.double())

    def hidden(ids):
        """Return the stream after each layer: [layers, len(ids), hidden]."""
        layers = next(
            m
            for n, m in model.named_modules()
            if isinstance(m, torch.nn.ModuleList) and n.rsplit(".")[-1] == "layers"
        )
        rows = []
        hooks = [
            m.register_forward_hook(
                lambda m, args, out: rows.append(
                    (out[0] if isinstance(out, tuple) else out).reshape(len(ids), -1).numpy().copy()
                )
            )
            for m in layers
        ]
        run(ids)
        for h in hooks:
            h.remove()
        return np.stack(rows)

    run.hidden = hidden
    if c["modern"]:
        config["dtype"] = "bfloat16" if c["emb_bf16"] else "float32"
    return seen if c["vision"] else shapes, config, run, run64


def torch_first(w):
    return np.ascontiguousarray(w).reshape(w.shape)


def other_model(c, seed):
    m = getattr(other_models, c["other"])(c["config"])
    if c["set"].get("head.row_norm"):
        m.vocab_norm = True
    shapes = m.shapes()
    w = {n: torch.from_numpy(x) for n, x in rounded_weights(c, shapes, seed).items()}

    @torch.no_grad()
    def run(ids):
        return m.logits(w, ids).numpy()

    @torch.no_grad()
    def run64(ids):
        return m.logits({n: x.double() for n, x in w.items()}, ids).float().numpy()

    return shapes, c["config"], run, run64


def prompt(c, seed):
    config = c["config"]
    if c["other"] == "ChatGLM1":
        return W.prompt(seed, c["n"] - 2, config["vocab_size"] - 10) + [
            config["gmask_token_id"],
            config["bos_token_id"],
        ]
    return W.prompt(seed, c["n"], config.get("output_vocab_size", config["vocab_size"]))


def make(name, c):
    for seed in range(1, 20):
        shapes, config, run, run64 = (other_model if c["other"] else transformers_model)(c, seed)
        ids = prompt(c, seed)
        logits = run(ids)
        hidden = run.hidden(ids) if name in HIDDEN else None
        spread = float(logits.max() - logits.min())
        greedy, gaps, row = [], [], logits[-1]
        for _ in range(c["n_greedy"]):
            top = np.sort(row)[-2:]
            gaps.append(float(top[1] - top[0]) / spread)
            greedy.append(int(row.argmax()))
            row = run(ids + greedy)[-1]
        # cross-check: distance between fp32 and fp64
        wobble = float(np.abs(run64(ids) - logits).max()) / spread
        # the next token must not depend on rounding, and the tokens must vary
        if wobble < 4e-6 and min(gaps, default=1) > 2e-3 and (not greedy or len(set(greedy)) > 2):
            break
    else:
        print(
            f"{name:34} NO SEED GOOD wobble {wobble:.1e} gap {min(gaps, default=1):.1e} greedy {greedy}"
        )
    d = os.path.join(W.MODELS, name)
    body = dict(
        family=name.split("-")[0],
        seed=seed,
        dtype=c["dtype"],
        plus_one=c["plus_one"],
        args=c["args"],
        set=c["set"],
        prompt=ids,
        greedy=greedy,
        gap=round(min(gaps, default=1.0), 6),
        wobble=wobble,
    )
    W.write_case(d, config, body, shapes)
    np.save(os.path.join(d, "logits.npy"), logits.astype(np.float32))
    if hidden is not None:
        np.save(os.path.join(d, "hidden.npy"), hidden.astype(np.float32))
    print(
        f"{name:34} seed {seed} range {spread:6.2f} wobble {wobble:.1e} gap {min(gaps, default=1):.1e} {greedy}",
        flush=True,
    )


if __name__ == "__main__":
    failed = False
    for wanted in sys.argv[1:] or CASES:
        try:
            make(wanted, CASES[wanted])
        except (Exception, SystemExit) as e:
            failed = True
            print(f"{wanted:34} FAILED: {type(e).__name__}: {str(e)[:600]}", flush=True)
    sys.exit(failed)
