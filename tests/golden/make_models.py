#!/usr/bin/env python3
"""Writes tests/golden/models/<case>/{config.json, case.json, logits.npy}: tiny models of every family, odd in shape.

Needs torch and transformers 5 (pip install torch transformers safetensors numpy); ChatGLM and Baichuan come from
other_models.py. Weights are those of weights.py, by name. Run again:  python tests/golden/make_models.py [case ...]
Each case states what it is there to show; the last line of its output tells how well fp32 determines its logits.
"""
import json
import os
import shutil
import struct
import sys
import tempfile

import numpy as np
import torch

import other_models
import weights as W

torch.set_num_threads(1)
N_PROMPT, N_GREEDY = 37, 8      # together past one KV page
CASES = {}


def case(name, model_type, base, *, dtype="f32", plus_one=False, modern=False, greedy=N_GREEDY, n=N_PROMPT, strip="",
         args=(), set=None, emb_bf16=False, other=None, **more):
    """modern: commit the config as transformers 5 writes it, else as given. strip: a prefix to take off tensor names."""
    config = dict(model_type=model_type, **base)
    for k, v in more.items():
        if v is ...:
            config.pop(k, None)
        else:
            config[k] = v
    assert name not in CASES
    CASES[name] = dict(config=config, dtype=dtype, plus_one=plus_one, modern=modern, n_greedy=greedy, n=n, strip=strip,
                       args=list(args), set=set or {}, emb_bf16=emb_bf16, other=other)


EOS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA = dict(vocab_size=131, hidden_size=72, intermediate_size=100, num_hidden_layers=3, num_attention_heads=9,
             num_key_value_heads=3, hidden_act="silu", max_position_embeddings=128, rms_norm_eps=1e-2,
             rope_theta=100.0, tie_word_embeddings=False, torch_dtype="float32", **EOS)
YARN = dict(type="yarn", factor=4.0, original_max_position_embeddings=32)

case("llama-smol", "llama", LLAMA, tie_word_embeddings=True)
case("llama-scaled3", "llama", LLAMA, hidden_size=60, num_attention_heads=5, num_key_value_heads=1, head_dim=16,
     rope_theta=10000.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                           original_max_position_embeddings=16))
case("llama-bias-linear-bf16", "llama", LLAMA, dtype="bf16", attention_bias=True, mlp_bias=True, hidden_size=40,
     num_attention_heads=4, num_key_value_heads=4, rope_scaling=dict(type="linear", factor=2.5))
case("llama-yarn", "llama", LLAMA, rope_theta=50.0, hidden_size=48, num_attention_heads=3, num_key_value_heads=1,
     max_position_embeddings=1024, rope_scaling=dict(YARN, original_max_position_embeddings=256))
case("llama-dynamic", "llama", LLAMA, greedy=0, max_position_embeddings=16, args=["--context", "64"],
     rope_scaling=dict(type="dynamic", factor=2.0))
case("llama-modern", "llama", LLAMA, modern=True, head_dim=12, hidden_size=70, num_attention_heads=7, num_key_value_heads=7,
     vocab_size=127, attention_bias=True)

MISTRAL = dict(LLAMA, hidden_size=44, num_attention_heads=4, num_key_value_heads=2, head_dim=14, vocab_size=137)
case("mistral-window", "mistral", MISTRAL, sliding_window=7)
case("mistral-nemo", "mistral", MISTRAL, sliding_window=None, num_attention_heads=6, head_dim=10, rope_theta=1e6)
case("mistral-window-page-bf16", "mistral", MISTRAL, sliding_window=33, dtype="bf16", modern=True)

QWEN2 = dict(LLAMA, hidden_size=56, num_attention_heads=7, num_key_value_heads=1, vocab_size=139, max_window_layers=2,
             sliding_window=None, use_sliding_window=False)
case("qwen2-tied", "qwen2", QWEN2, tie_word_embeddings=True, sliding_window=5)
case("qwen2-windows", "qwen2", QWEN2, num_hidden_layers=4, use_sliding_window=True, sliding_window=6)
case("qwen2-yarn-bf16", "qwen2", QWEN2, dtype="bf16", rope_scaling=dict(YARN), rope_theta=1000.0)

QWEN3 = dict(QWEN2, head_dim=20, num_attention_heads=4, num_key_value_heads=2, hidden_size=52, attention_bias=False)
case("qwen3-plain", "qwen3", QWEN3)
case("qwen3-bias-tied", "qwen3", QWEN3, attention_bias=True, tie_word_embeddings=True, head_dim=8,
     num_attention_heads=6, num_key_value_heads=6)
case("qwen3-windows-modern", "qwen3", QWEN3, modern=True, use_sliding_window=True, sliding_window=9,
     max_window_layers=1, dtype="bf16")

GEMMA2 = dict(vocab_size=149, hidden_size=60, intermediate_size=84, num_hidden_layers=4, num_attention_heads=6,
              num_key_value_heads=2, head_dim=12, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=128,
              rms_norm_eps=1e-2, rope_theta=100.0, attention_bias=False, query_pre_attn_scalar=20,
              attn_logit_softcapping=2.0, final_logit_softcapping=3.0, sliding_window=6, torch_dtype="float32", **EOS)
case("gemma2-caps", "gemma2", GEMMA2, plus_one=True)
case("gemma2-modern", "gemma2", GEMMA2, plus_one=True, modern=True, num_hidden_layers=3, head_dim=10, sliding_window=33)
case("gemma2-bf16-scale", "gemma2", GEMMA2, plus_one=True, dtype="bf16", torch_dtype="bfloat16", hidden_size=42,
     emb_bf16=True, query_pre_attn_scalar=12)

GEMMA3 = dict(GEMMA2, attn_logit_softcapping=None, final_logit_softcapping=None, rope_theta=5000.0,
              rope_local_base_freq=50.0, num_hidden_layers=6)
case("gemma3-pattern", "gemma3_text", GEMMA3, plus_one=True, sliding_window_pattern=3,
     rope_scaling=dict(rope_type="linear", factor=8.0))
case("gemma3-modern", "gemma3_text", GEMMA3, plus_one=True, modern=True, num_hidden_layers=7, num_attention_heads=5,
     num_key_value_heads=1)
case("gemma3-layers-bf16", "gemma3_text", GEMMA3, plus_one=True, dtype="bf16", torch_dtype="bfloat16", emb_bf16=True,
     hidden_size=42, num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "full_attention"])

PHI3 = dict(LLAMA, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, original_max_position_embeddings=64,
            pad_token_id=0, sliding_window=None, vocab_size=151)
SHORT, LONG = [1.0, 1.1, 1.3, 1.5, 1.9, 2.0, 2.2, 2.5], [1.0, 2.0, 3.5, 5.0, 8.0, 12.0, 20.0, 33.0]
case("phi3-window", "phi3", PHI3, sliding_window=9, original_max_position_embeddings=128)
case("phi3-longrope-short", "phi3", PHI3, rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG))
case("phi3-longrope-long", "phi3", PHI3, original_max_position_embeddings=16,
     rope_scaling=dict(type="longrope", short_factor=SHORT, long_factor=LONG))
case("phi3-partial-bf16", "phi3", PHI3, dtype="bf16", partial_rotary_factor=0.75, modern=True)

MIXTRAL = dict(MISTRAL, num_local_experts=4, num_experts_per_tok=2, intermediate_size=36, sliding_window=None)
case("mixtral-plain", "mixtral", MIXTRAL)
case("mixtral-window", "mixtral", MIXTRAL, sliding_window=8, num_local_experts=5, num_experts_per_tok=1)
case("mixtral-bf16", "mixtral", MIXTRAL, dtype="bf16", num_local_experts=6, num_experts_per_tok=3, modern=True)

QWEN2_MOE = dict(QWEN2, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=28,
                 shared_expert_intermediate_size=44, norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[])
case("qwen2_moe-plain", "qwen2_moe", QWEN2_MOE)
case("qwen2_moe-sparse", "qwen2_moe", QWEN2_MOE, num_hidden_layers=5, decoder_sparse_step=2, mlp_only_layers=[3])
case("qwen2_moe-renorm-bf16", "qwen2_moe", QWEN2_MOE, norm_topk_prob=True, num_experts_per_tok=3, dtype="bf16")

QWEN3_MOE = dict(QWEN3, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=24, norm_topk_prob=True,
                 decoder_sparse_step=1, mlp_only_layers=[])
case("qwen3_moe-renorm", "qwen3_moe", QWEN3_MOE)
case("qwen3_moe-raw", "qwen3_moe", QWEN3_MOE, norm_topk_prob=False, num_hidden_layers=4, decoder_sparse_step=2)
case("qwen3_moe-dense-layers", "qwen3_moe", QWEN3_MOE, mlp_only_layers=[0], attention_bias=True, dtype="bf16",
     modern=True)

DSV2 = dict(vocab_size=157, hidden_size=55, intermediate_size=72, moe_intermediate_size=20, num_hidden_layers=3,
            num_attention_heads=5, num_key_value_heads=5, n_shared_experts=2, n_routed_experts=8, num_experts_per_tok=3,
            routed_scaling_factor=1.0, kv_lora_rank=24, q_lora_rank=None, qk_rope_head_dim=8, qk_nope_head_dim=12,
            v_head_dim=10, topk_method="greedy", n_group=None, topk_group=None, norm_topk_prob=False,
            first_k_dense_replace=1, moe_layer_freq=1, hidden_act="silu", max_position_embeddings=128,
            rms_norm_eps=1e-2, rope_theta=100.0, attention_bias=False, torch_dtype="float32", **EOS)
DSYARN = dict(type="yarn", factor=8.0, original_max_position_embeddings=16, beta_fast=32, beta_slow=1, mscale=0.707,
              mscale_all_dim=0.707)
case("deepseek_v2-lite", "deepseek_v2", DSV2)
case("deepseek_v2-groups", "deepseek_v2", DSV2, q_lora_rank=20, topk_method="group_limited_greedy", n_group=4,
     topk_group=2, routed_scaling_factor=4.0, rope_scaling=DSYARN, rope_theta=10000.0)
case("deepseek_v2-dense-bf16", "deepseek_v2", DSV2, dtype="bf16", first_k_dense_replace=2, q_lora_rank=16,
     qk_nope_head_dim=8, v_head_dim=14)

DSV3 = dict(DSV2, q_lora_rank=20, n_group=4, topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5,
            topk_method="noaux_tc", scoring_func="sigmoid", first_k_dense_replace=1)
case("deepseek_v3-plain", "deepseek_v3", DSV3)
case("deepseek_v3-yarn", "deepseek_v3", DSV3, rope_theta=10000.0,
     rope_scaling=dict(DSYARN, mscale=1.0, mscale_all_dim=1.0), num_experts_per_tok=4)
case("deepseek_v3-one-group-bf16", "deepseek_v3", DSV3, dtype="bf16", q_lora_rank=None, n_group=1, topk_group=1,
     first_k_dense_replace=0)

GLM = dict(LLAMA, hidden_size=52, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=163,
           partial_rotary_factor=0.5, attention_bias=True, eos_token_id=[2, 5, 7])
case("glm-bias", "glm", GLM)
case("glm-plain", "glm", GLM, attention_bias=False, num_attention_heads=6, num_key_value_heads=1, head_dim=8)
case("glm-modern-bf16", "glm", GLM, dtype="bf16", modern=True, head_dim=12)
case("glm4-bias", "glm4", GLM)
case("glm4-plain", "glm4", GLM, attention_bias=False, num_attention_heads=5, num_key_value_heads=1, head_dim=12)
case("glm4-modern-bf16", "glm4", GLM, dtype="bf16", modern=True)

BLOOM = dict(vocab_size=167, hidden_size=48, n_layer=3, n_head=8, layer_norm_epsilon=1e-2, torch_dtype="float32",
             seq_length=128, apply_residual_connection_post_layernorm=False, **EOS)
case("bloom-plain", "bloom", BLOOM)
case("bloom-six-heads", "bloom", BLOOM, n_head=6, strip="transformer.")
case("bloom-post-residual-bf16", "bloom", BLOOM, n_head=12, apply_residual_connection_post_layernorm=True, dtype="bf16",
     modern=True)

GPT2 = dict(vocab_size=173, n_embd=48, n_layer=3, n_head=6, n_positions=64, layer_norm_epsilon=1e-2,
            activation_function="gelu_new", torch_dtype="float32", bos_token_id=1, eos_token_id=2)
case("gpt2-plain", "gpt2", GPT2)
case("gpt2-inner", "gpt2", GPT2, n_inner=76, strip="transformer.", n_head=3)
case("gpt2-gelu-bf16", "gpt2", GPT2, activation_function="gelu", dtype="bf16", modern=True, n_embd=40, n_head=5)

NEOX = dict(vocab_size=179, hidden_size=48, intermediate_size=92, num_hidden_layers=3, num_attention_heads=3,
            hidden_act="gelu", rotary_pct=0.25, rotary_emb_base=100, use_parallel_residual=True, layer_norm_eps=1e-2,
            max_position_embeddings=128, attention_bias=True, tie_word_embeddings=False, torch_dtype="float32", **EOS)
case("gpt_neox-parallel", "gpt_neox", NEOX)
case("gpt_neox-serial", "gpt_neox", NEOX, use_parallel_residual=False, rotary_pct=0.5, attention_bias=False)
case("gpt_neox-modern-bf16", "gpt_neox", NEOX, modern=True, dtype="bf16", rotary_pct=1.0, num_attention_heads=4)

BAICHUAN = dict(vocab_size=181, hidden_size=48, intermediate_size=68, num_hidden_layers=3, num_attention_heads=6,
                hidden_act="silu", rms_norm_eps=1e-2, max_position_embeddings=128, model_max_length=128,
                tie_word_embeddings=False, torch_dtype="float32", **EOS)
case("baichuan-rope", "baichuan", BAICHUAN, other="Baichuan")
case("baichuan-alibi", "baichuan", BAICHUAN, other="Baichuan", max_position_embeddings=..., num_attention_heads=8)
case("baichuan-alibi-six-heads-bf16", "baichuan", BAICHUAN, other="Baichuan", max_position_embeddings=..., dtype="bf16")
case("baichuan-norm-head", "baichuan", BAICHUAN, other="Baichuan", max_position_embeddings=..., num_attention_heads=12,
     set={"head.row_norm": "true"})

CHATGLM1 = dict(vocab_size=191, hidden_size=48, num_layers=3, num_attention_heads=3, inner_hidden_size=100,
                layernorm_epsilon=1e-2, max_sequence_length=128, position_encoding_2d=True, bos_token_id=188,
                eos_token_id=189, gmask_token_id=186, mask_token_id=185, pad_token_id=3, torch_dtype="float32")
case("chatglm1-plain", "chatglm", CHATGLM1, other="ChatGLM1")
case("chatglm1-heads", "chatglm", CHATGLM1, other="ChatGLM1", num_attention_heads=6, num_layers=4)
case("chatglm1-bf16", "chatglm", CHATGLM1, other="ChatGLM1", dtype="bf16", num_attention_heads=2, inner_hidden_size=72)

CHATGLM2 = dict(padded_vocab_size=193, vocab_size=193, hidden_size=48, num_layers=3, num_attention_heads=4,
                kv_channels=16, multi_query_attention=True, multi_query_group_num=2, add_qkv_bias=True,
                add_bias_linear=False, ffn_hidden_size=52, seq_length=128, rmsnorm=True, post_layer_norm=True,
                layernorm_epsilon=1e-2, apply_residual_connection_post_layernorm=False, original_rope=True,
                tie_word_embeddings=False, torch_dtype="float32", eos_token_id=2, pad_token_id=0)
case("chatglm2-groups", "chatglm", CHATGLM2, other="ChatGLM2")
case("chatglm2-bias", "chatglm", CHATGLM2, other="ChatGLM2", add_bias_linear=True, kv_channels=12)
case("chatglm2-post-residual-bf16", "chatglm", CHATGLM2, other="ChatGLM2", dtype="bf16", multi_query_attention=False,
     apply_residual_connection_post_layernorm=True)
case("chatglm2-glm4-ratio", "chatglm", CHATGLM2, other="ChatGLM2", rope_ratio=0.02, kv_channels=20, add_qkv_bias=True)


def header(path):
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        h = json.loads(f.read(n))
    return {k: v["shape"] for k, v in sorted(h.items()) if k != "__metadata__"}


def rounded_weights(c, shapes, seed):
    return {n: W.rounded(W.tensor(seed, n, s, c["plus_one"]), c["dtype"]) for n, s in shapes.items()}


def transformers_model(c, seed):
    """(shapes, config as committed, function ids -> logits in fp32, the same in fp64)"""
    from transformers import AutoConfig, AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(c["config"], f)
        cfg = AutoConfig.from_pretrained(d)
        cfg._attn_implementation = "eager"
        AutoModelForCausalLM.from_config(cfg, dtype=torch.float32).save_pretrained(d + "/m")
        with open(d + "/m/config.json") as f:
            config = json.load(f)
        shapes = header(d + "/m/model.safetensors")
        if c["strip"]:
            shapes = {n.removeprefix(c["strip"]): s for n, s in shapes.items()}
        W.write_safetensors(d + "/m/model.safetensors", {n: torch_first(w) for n, w in rounded_weights(
            c, shapes, seed).items()}, "f32")
        if not c["modern"]:
            config = c["config"]
            shutil.copy(d + "/config.json", d + "/m/config.json")
        model, info = AutoModelForCausalLM.from_pretrained(
            d + "/m", dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
            output_loading_info=True)
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
    if c["modern"]:
        config["dtype"] = "bfloat16" if c["emb_bf16"] else "float32"
    return shapes, config, run, run64


def torch_first(w):
    return np.ascontiguousarray(w)


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
        return W.prompt(seed, c["n"] - 2, config["vocab_size"] - 10) + [config["gmask_token_id"], config["bos_token_id"]]
    return W.prompt(seed, c["n"], config["vocab_size"])


def make(name, c):
    for seed in range(1, 20):
        shapes, config, run, run64 = (other_model if c["other"] else transformers_model)(c, seed)
        ids = prompt(c, seed)
        logits = run(ids)
        spread = float(logits.max() - logits.min())
        greedy, gaps, row = [], [], logits[-1]
        for _ in range(c["n_greedy"]):
            top = np.sort(row)[-2:]
            gaps.append(float(top[1] - top[0]) / spread)
            greedy.append(int(row.argmax()))
            row = run(ids + greedy)[-1]
        # a second opinion: how far fp32 itself is from fp64
        wobble = float(np.abs(run64(ids) - logits).max()) / spread
        # the next token must not hang on rounding, nor repeat itself so that it shows nothing
        if wobble < 4e-6 and min(gaps, default=1) > 2e-3 and (not greedy or len(set(greedy)) > 2):
            break
    else:
        print(f"{name:34} NO SEED GOOD wobble {wobble:.1e} gap {min(gaps, default=1):.1e} greedy {greedy}")
    d = os.path.join(W.MODELS, name)
    os.makedirs(d, exist_ok=True)
    with open(os.path.join(d, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")
    with open(os.path.join(d, "case.json"), "w") as f:
        body = dict(family=name.split("-")[0], seed=seed, dtype=c["dtype"], plus_one=c["plus_one"], args=c["args"],
                    set=c["set"], prompt=ids, greedy=greedy, gap=round(min(gaps, default=1.0), 6), wobble=wobble)
        text = "{\n" + "".join(f' "{k}": {json.dumps(v)},\n' for k, v in body.items()) + ' "tensors": {\n'
        text += ",\n".join(f'  "{n}": {json.dumps(s)}' for n, s in shapes.items()) + "\n }\n}\n"
        json.loads(text)
        f.write(text)
    np.save(os.path.join(d, "logits.npy"), logits.astype(np.float32))
    print(f"{name:34} seed {seed} range {spread:6.2f} wobble {wobble:.1e} gap {min(gaps, default=1):.1e} {greedy}", flush=True)


if __name__ == "__main__":
    failed = False
    for wanted in sys.argv[1:] or CASES:
        try:
            make(wanted, CASES[wanted])
        except (Exception, SystemExit) as e:
            failed = True
            print(f"{wanted:34} FAILED: {type(e).__name__}: {str(e)[:600]}", flush=True)
    sys.exit(failed)
