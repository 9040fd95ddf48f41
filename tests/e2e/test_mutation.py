"""Are the goldens able to fail? Each primitive of a description is changed on its own, and the logits must then leave
their tolerance tenfold. A mutation that the golden does not see would be a hole in the net."""
import pytest

from golden_run import TOLERANCE, error, run, weights

# what nearly every family has; a case below drops or adds
ROPE = ["rope.theta=110", "rope.style=*"]
COMMON = ["norm.eps=0.011", "attention.scale=*1.01", "ffn.act=*", "residual.skip_scale=*1.001", "embed.scale=*1.01",
          "attention.window=30"]

MUTATIONS = {
    "llama-smol": COMMON + ROPE + ["norm.plus_one=true", "position=none", "head.cap=40",
                                   "attention.score_cap=60", "residual.from=norm", "residual.form=parallel"],
    "llama-scaled3": ["rope.scaling.factor=9", "rope.scaling.low_freq_factor=1.1", "rope.scaling.high_freq_factor=3.8",
                      "rope.scaling.original_positions=17", "rope.scaling.kind=none", "rope.scaling.kind=linear"],
    "llama-bias-linear-bf16": ["rope.scaling.factor=2.6", "rope.scaling.kind=none"],
    "llama-yarn": ["rope.scaling.factor=4.5", "rope.scaling.beta_slow=2", "rope.scaling.beta_fast=16",
                   "rope.scaling.attention_factor=1.1", "rope.scaling.truncate=false",
                   "rope.scaling.original_positions=128"],
    "llama-dynamic": ["rope.scaling.factor=2.1", "rope.scaling.kind=none"],
    "mistral-window": COMMON[:-1] + ROPE + ["attention.window=6", "attention.window=8",
                                            "attention.window_layers=[0, 1]"],
    "qwen2-windows": COMMON[:-1] + ROPE + ["attention.window=7", "attention.window_layers=[1, 2, 3]"],
    "qwen3-plain": COMMON + ROPE + ["norm.qk_eps=0.02"],
    "gemma2-caps": COMMON[:-1] + ROPE + ["attention.window=7", "attention.window_layers=[1, 3]", "head.cap=3.01",
                                         "attention.score_cap=2.1", "norm.plus_one=false"],
    "gemma3-pattern": COMMON[:-1] + ["rope.theta=5500", "rope.local.theta=55", "rope.scaling.factor=7.5",
                                     "rope.local.theta=0", "attention.window=7", "norm.qk_eps=0.02",
                                     "attention.window_layers=[0, 1, 3]"],
    "phi3-longrope-long": COMMON + ROPE + ["rope.scaling.original_positions=64", "rope.scaling.attention_factor=1.0"],
    "phi3-partial-bf16": ["rope.dims=16", "rope.dims=10"],
    "mixtral-plain": [m for m in COMMON if "ffn" not in m] + ROPE + [
        "moe.act=gelu", "moe.renorm=false", "moe.top_k=1", "moe.top_k=3", "moe.scale=1.01", "moe.score=sigmoid"],
    "qwen2_moe-plain": [m for m in COMMON if "ffn" not in m] + ROPE + [
        "moe.act=gelu_tanh", "moe.renorm=true", "moe.top_k=1", "moe.scale=1.01"],
    "qwen3_moe-renorm": [m for m in COMMON if "ffn" not in m] + ROPE + [
        "moe.renorm=false", "moe.top_k=2", "norm.qk_eps=0.02"],
    "deepseek_v2-groups": [m for m in COMMON if "window" not in m] + [
        "rope.theta=11000", "rope.style=*", "norm.latent_eps=0.001", "moe.scale=3.9", "moe.renorm=true", "moe.groups=2",
        "moe.keep_groups=3", "moe.group_score=top2", "rope.scaling.factor=7"],
    "deepseek_v3-plain": [m for m in COMMON if "window" not in m] + ROPE + [
        "norm.latent_eps=0.001", "moe.scale=2.4", "moe.renorm=false", "moe.score=softmax", "moe.keep_groups=3",
        "moe.group_score=max", "moe.groups=2"],
    "deepseek_v3-v32-chooses": ["attention.index.top_k=12", "attention.index.top_k=10", "attention.index.rope=interleaved", "attention.index.eps=0.5", "attention.index.layers=[0]"],
    "deepseek_v3-glm5-shares": ["attention.index.rope=half", "attention.index.layers=[0, 1]"],
    "glm-bias": COMMON + ROPE + ["rope.dims=16", "rope.dims=6"],
    "glm4-bias": COMMON + ROPE + ["rope.dims=16"],
    "bloom-six-heads": COMMON + ["alibi.max_bias=8.1", "position=none", "residual.from=norm"],
    "bloom-post-residual-bf16": ["residual.from=stream"],
    # the two gelus differ by less than ten tolerances here; bloom and chatglm1 tell them apart
    "gpt2-plain": [m for m in COMMON if "ffn" not in m] + ["position=none", "ffn.act=silu"],
    "gpt_neox-parallel": COMMON + ROPE + ["residual.form=serial", "rope.dims=6"],
    "gpt_neox-serial": ["residual.form=parallel"],
    "baichuan-rope": COMMON + ["rope.theta=11000", "rope.style=*"],
    "baichuan-alibi": COMMON + ["alibi.max_bias=8.1"],
    "baichuan-norm-head": ["head.row_norm=false"],
    "chatglm1-plain": COMMON[:-1] + ["rope.theta=11000", "rope.style=*", "attention.mask=causal",
                                     "residual.from=stream"],
    "chatglm2-groups": COMMON + ["rope.theta=11000", "rope.style=*", "rope.dims=16"],
    "chatglm2-post-residual-bf16": ["residual.from=stream"],
    "chatglm2-glm4-ratio": ["rope.theta=190"],
    # families of the same primitives: what each is told apart by
    "gemma-plain": COMMON + ["norm.plus_one=false", "rope.style=*"], "gemma2-vault": ["attention.window=7", "head.cap=3.01", "attention.score_cap=2.1"],
    "granite-plain": COMMON + ROPE + ["head.scale=0.26"], "cwm-windows": COMMON[:-1] + ROPE + ["attention.window=7", "attention.window_layers=[0]", "rope.scaling.factor=9"],
    "seed_oss-biases": COMMON + ROPE, "internlm3-biases": COMMON + ROPE, "helium-plain": COMMON + ROPE, "exaone4-plain": COMMON + ROPE + ["norm.qk_eps=0.02"],
    "ernie4_5-plain": COMMON + ROPE,
    "ernie4_5_moe-plain": ROPE + ["moe.renorm=false", "moe.top_k=3", "moe.scale=1.01", "moe.score=sigmoid", "moe.choice_bias=false"],
    "glm4_moe-qk-norm": ROPE + ["moe.renorm=false", "moe.top_k=2", "moe.scale=1.7", "moe.score=softmax", "moe.keep_groups=3", "moe.group_score=max", "rope.dims=16"],
    "dots1-windows": ROPE + ["moe.scale=2.4", "attention.window=7", "attention.window_layers=[1]", "norm.qk_eps=0.02"],
    "hy_v3-plain": ROPE + ["moe.renorm=false", "moe.scale=2.1", "moe.choice_bias=false"],
    "qwen3_vl_moe-plain": ROPE + ["moe.renorm=false", "moe.top_k=2"], "mellum-windows": ["rope.theta=110", "rope.local.theta=33", "attention.window=7", "moe.renorm=false"],
    "mistral4-groups": ROPE + ["moe.keep_groups=3", "moe.group_score=max", "moe.scale=1.45", "norm.latent_eps=0.001", "rope.scaling.factor=5"],
    "mistral-temperature": ["attention.temperature.scale=0", "attention.temperature.scale=0.11", "attention.temperature.positions=9", "attention.temperature.layers=[0, 1]"],
    "mistral4-temperature": ["attention.temperature.scale=0", "attention.temperature.offset=1"],
    "mimo_v2-plain": ["attention.v_scale=1", "attention.sinks=false", "attention.window=7", "rope.local.theta=55", "rope.theta=5500", "moe.renorm=false", "moe.choice_bias=false", "norm.eps=0.011"],
    "starcoder2-window": COMMON[:-1] + ROPE + ["attention.window=8"], "gpt_bigcode-plain": [m for m in COMMON if "ffn" not in m] + ["position=none"],
    "stablelm-parallel": COMMON + ROPE + ["rope.dims=6", "residual.form=serial"],
    "gptj-plain": [m for m in COMMON if "ffn" not in m] + ROPE + ["rope.dims=8"], "phi-plain": [m for m in COMMON if "ffn" not in m] + ROPE + ["rope.dims=6"],
    "falcon-groups": [m for m in COMMON if "ffn" not in m] + ROPE, "mpt-odd": COMMON + ["alibi.max_bias=8.1"],
    "gpt_neo-plain": COMMON[:2] + ["attention.window=7", "attention.window_layers=[0, 2]"],
    "gpt_oss-plain": ["norm.eps=0.011", "attention.scale=*1.01", "rope.theta=55", "rope.scaling.truncate=true", "rope.scaling.factor=9", "attention.sinks=false",
                      "attention.window=7", "attention.window_layers=[1]", "moe.limit=0.9", "moe.limit=0", "moe.act=silu", "moe.router_bias=false", "moe.bias=false",
                      "moe.renorm=false", "moe.top_k=3", "moe.score=sigmoid"],
    "cohere-bias": [m for m in COMMON if "skip" not in m] + ROPE + ["head.scale=2.6"],
    "cohere2-pattern": ["rope.layers=all", "rope.layers=[0, 1]", "rope.theta=110", "attention.window=7", "head.scale=0.41"],
    "smollm3-layers": COMMON[:-1] + ROPE + ["rope.layers=all", "rope.layers=none", "rope.layers=[1, 2]"],
    "olmo-plain": COMMON + ROPE, "olmo2-olmo3-yarn": ["rope.theta=1100", "rope.local.theta=1100", "rope.local.theta=0", "rope.scaling.factor=5", "norm.qk_eps=0.02",
                                                      "attention.window=7", "rope.scaling.attention_factor=1.1"],
    "olmoe-plain": ROPE + ["moe.renorm=true", "moe.top_k=2", "norm.qk_eps=0.02"],
    "minimax_m2-plain": ROPE + ["rope.dims=12", "moe.renorm=false", "moe.score=softmax", "moe.choice_bias=false", "norm.qk_eps=0.02"],
    "exaone4-windows": ["rope.layers=all", "attention.window=7", "attention.window_layers=[0, 1]"],
    "hunyuan_v1-alpha": COMMON[:-1] + ["attention.qk_norm_place=before", "attention.qk_norm=unit", "rope.theta=*1.1", "norm.qk_eps=0.02"],
    "hunyuan_v1_moe-plain": ["attention.qk_norm_place=before", "moe.renorm=false", "moe.top_k=1"],
    "gemma4-k-is-v": ["norm.eps=0.011", "norm.qk_eps=0.02", "attention.scale=1.01", "ffn.act=*", "embed.scale=*1.01", "attention.window=30",
                      "rope.theta=5500", "rope.local.theta=55", "rope.scaling.turning=0.45", "rope.scaling.turning=1", "rope.scaling.kind=none",
                      "attention.v_norm=none", "residual.layer_gain=false", "head.cap=3.01"],
    "gemma4-small": ["norm.eps=0.011", "ffn.act=*", "attention.window=7", "per_layer.width=0", "rope.scaling.turning=0.45"],
    "gemma4-experts": ["moe.router_norm=false", "moe.expert_gain=false", "moe.top_k=1", "moe.top_k=3", "moe.act=silu", "norm.eps=0.011"],
    "arcee-plain": COMMON + ROPE, "nemotron-plain": COMMON + ROPE + ["norm.plus_one=false", "rope.dims=8"],
    "apertus-plain": [m for m in COMMON if "ffn" not in m] + ["rope.scaling.factor=9", "norm.qk_eps=0.02", "ffn.act=relu2"],
    "qwen3_next-plain": ["attention.out_gate=none", "norm.plus_one=false", "rope.dims=8", "moe.renorm=false", "linear.beta_scale=1.01", "linear.order=tiled", "linear.rate=plain"],
    "granitemoehybrid-plain": ["norm.eps=0.04", "norm.ssm_eps=0.02", "embed.scale=*1.01", "attention.scale=*1.1", "head.scale=2.1", "position=rope", "moe.renorm=false", "moe.top_k=2", "moe.act=gelu",
                               "ssm.rate=plain", "ssm.dt_min=0.3", "ssm.dt_max=0.9", "ssm.norm=none", "ssm.norm_groups=1", "ssm.norm_groups=4"],
    "granitemoehybrid-dense": ["ffn.act=gelu", "position=none", "rope.theta=120", "norm.ssm_eps=0.02", "ssm.norm=norm_first"],
    "granitemoehybrid-limits-modern-bf16": ["ssm.dt_min=0", "ssm.dt_max=0", "ssm.dt_min=0.21", "ssm.dt_max=0.88"],
    "lfm2_moe-all": ["norm.eps=0.011", "rope.theta=110", "moe.scale=1.6", "moe.renorm=true", "moe.score=softmax", "moe.choice_bias=false"],
    "olmo_hybrid-rope": ["norm.linear_eps=0.01", "norm.eps=0.011", "rope.theta=110", "position=none", "linear.beta_scale=1.01", "linear.gate=sigmoid", "norm.in_layers=none",
                         "norm.out_layers=none", "attention.qk_norm=unit"],
    "kimi_linear-plain": ["norm.linear_eps=0.011", "norm.latent_eps=0.001", "linear.gate=silu", "linear.beta_scale=1.01", "linear.rate=plain", "moe.scale=2.4", "moe.renorm=false",
                          "moe.choice_bias=false", "moe.top_k=2", "attention.scale=*1.01"],
    "nemotron_h-plain": ["norm.eps=0.011", "attention.scale=*1.1", "position=rope", "moe.renorm=false", "moe.scale=1.6", "moe.top_k=2", "moe.score=softmax", "moe.choice_bias=false",
                         "ssm.norm_groups=1", "norm.ssm_eps=0.02", "ffn.act=relu"],
    "nemotron_h-dense": ["ssm.dt_min=0.3", "ssm.norm=none", "ssm.norm=norm_first"], "nemotron_h-latent-modern-bf16": ["moe.keep_groups=3", "moe.group_score=max", "moe.renorm=true"],
    "bamba-plain": ["norm.eps=0.011", "rope.dims=12", "rope.theta=110", "rope.style=*", "ssm.norm_groups=1", "norm.ssm_eps=0.02", "ssm.dt_max=0.9"],
    "falcon_h1-plain": ["norm.eps=0.011", "attention.scale=*1.1", "attention.out_scale=0.9", "ssm.beside=false", "ssm.in_scale=1.01", "ssm.gains=[0.5, 1.2, 0.7, 1.4, 0.9]",
                        "ssm.gains=[0.6, 1.3, 0.7, 1.4, 0.9]", "ssm.gains=[0.6, 1.2, 0.8, 1.4, 0.9]", "ssm.gains=[0.6, 1.2, 0.7, 1.5, 0.9]", "ssm.gains=[0.6, 1.2, 0.7, 1.4, 1]", "ssm.out_scale=1.1",
                        "ffn.gate_scale=1", "ffn.out_scale=1", "rope.theta=110", "head.scale=0.41", "embed.scale=*1.1"],
    "falcon_h1-norm": ["ssm.norm=gate_first", "ssm.norm=none", "norm.ssm_eps=0.02"], "falcon_h1-modern-bf16": ["ssm.norm_groups=1", "ssm.norm=none"],
    "mamba2-plain": ["norm.eps=0.011", "norm.ssm_eps=0.02", "ssm.norm_groups=1", "ssm.dt_max=0.9"], "mamba2-bias": ["ssm.dt_min=0", "ssm.dt_max=0"],
    "mamba-plain": ["norm.eps=0.011", "ssm.low_norm=unit"], "falcon_mamba-plain": ["norm.eps=0.011", "norm.ssm_eps=0.02", "ssm.low_norm=none"],
    "jamba-plain": ["norm.eps=0.011", "norm.ssm_eps=0.03", "ssm.low_norm=unit", "ssm.low_norm=none", "attention.scale=*1.1", "position=rope", "moe.renorm=true", "moe.top_k=1", "moe.score=sigmoid"],
    "zamba2-plain": ["norm.eps=0.011", "norm.ssm_eps=0.02", "attention.scale=*1.1", "position=rope", "ffn.act=silu", "ssm.norm_groups=1", "ssm.dt_min=0.3"],
    "zamba2-adapters": ["rope.theta=110", "position=none", "ssm.dt_min=0.001", "rope.style=*"],
    "lfm2_moe-one": ["moe.renorm_eps=0.00001"],
    "llama4-plain": ["attention.window_kind=sliding", "attention.window=9", "attention.window_layers=[0, 1]", "attention.qk_norm=none", "norm.qk_eps=0.02",
                     "attention.qk_norm_layers=all", "attention.temperature.scale=0", "attention.temperature.layers=all", "attention.temperature.offset=0", "rope.layers=all", "rope.style=*",
                     "moe.weights_on=output", "moe.score=softmax", "norm.eps=0.011"],
    "afmoe-plain": ["attention.out_gate=none", "attention.window=7", "rope.layers=all", "moe.choice_bias=false", "moe.scale=1.6", "moe.renorm=false", "norm.eps=0.011", "norm.qk_eps=0.02"],
    "step3p5-plain": ["attention.out_gate=none", "attention.out_gate_act=softplus", "attention.window=7", "rope.theta=5500", "rope.local.theta=55", "rope.dims=4", "rope.local.dims=10",
                      "rope.scaling.kind=none", "rope.scaling.factor=3", "norm.plus_one=false", "norm.eps=0.011", "norm.qk_eps=0.02", "ffn.act=silu", "moe.act=silu", "ffn.limits=[]", "ffn.limits=[0.4, 0, 0, 0.6, 0.35]",
                      "moe.limits=[]", "moe.limits=[0, 0.3, 0, 0.5, 0]", "moe.shared.limits=[]", "moe.shared.limits=[0.5, 0, 0, 0.6, 0.4]", "moe.choice_bias=false", "moe.renorm=false", "moe.scale=1.6", "moe.top_k=2"],
    "laguna-plain": ["attention.out_gate=none", "attention.out_gate_act=sigmoid", "attention.window=7", "rope.theta=5500", "rope.local.theta=55", "rope.dims=4", "rope.scaling.attention_factor=1.1",
                     "rope.scaling.factor=5", "norm.eps=0.011", "norm.qk_eps=0.02", "moe.act=gelu", "moe.choice_bias=false", "moe.renorm=false", "moe.scale=2.4", "moe.top_k=2"],
    "gemma3n-plain": ["norm.eps=0.011", "norm.qk_eps=0.02", "attention.scale=1.01", "ffn.act=*", "ffn.sparsity=[]", "ffn.sparsity=[0.5, 0.8, 0.95, 0, 0.35, 0, 0]", "embed.scale=*1.01", "attention.window=7",
                      "rope.theta=5500", "rope.local.theta=55", "attention.v_norm=none", "residual.low_rank=0", "streams.active=1", "streams.gain=false", "head.cap=3.01"],
    "afmoe-mup": ["embed.scale=1", "moe.top_k=4"],
    "exaone_moe-groups": ["rope.layers=all", "attention.window=7", "moe.keep_groups=3", "moe.group_score=max", "moe.renorm=true", "moe.scale=2.4", "norm.qk_eps=0.02"],
    "jais2-plain": COMMON + ROPE, "hyperclovax-plain": COMMON + ROPE + ["head.scale=0.41", "norm.attn_out=false"],
    "granitemoe-shared": ROPE + ["head.scale=0.26", "embed.scale=*1.01", "norm.eps=0.3", "moe.act=gelu", "moe.shared.width=0"],
    "flex_olmo-plain": ROPE + ["moe.renorm=true", "moe.top_k=4", "norm.qk_eps=0.02", "norm.ffn_out=false"],
    "internlm2-plain": COMMON[:-1] + ROPE, "internlm2-dynamic": ["rope.scaling.factor=2.1", "rope.scaling.kind=none"],
    "cohere-qk-norm": ["attention.qk_norm=none", "attention.qk_norm=unit", "attention.qk_norm_place=after", "norm.qk_eps=0.02"], "phi-qk-norm": ["attention.qk_norm=none", "norm.qk_eps=0.02"],
    "olmo-clipped": ["attention.qkv_limit=0", "attention.qkv_limit=0.71"], "mpt-clipped": ["attention.qkv_limit=0", "attention.qkv_limit=0.61"],
    "persimmon-plain": ["attention.qk_norm=none", "norm.qk_eps=0.02", "rope.dims=8", "ffn.act=*", "norm.eps=0.011"],
    "phimoe-plain": ["moe.jitter=0.39", "moe.jitter=0", "moe.score=softmax", "moe.top_k=1", "moe.scale=1.01", "norm.eps=0.011", "rope.theta=110", "head.bias=false"],
    "phimoe-longrope": ["rope.scaling.attention_factor=1.21", "rope.theta=110"],
    "dbrx-plain": ["attention.qkv_limit=0", "attention.qkv_limit=0.81", "moe.renorm=false", "moe.top_k=1", "moe.act=gelu", "rope.theta=110"],
    "opt-350m": ["norm.sum=false", "norm.eps=0.001", "residual.skip_scale=*1.001", "attention.scale=*1.01"],
    "opt-plain": [m for m in COMMON if "eps" not in m] + ["norm.eps=0.001"],
    "cohere2_moe-plain": ["norm.eps=0.011", "rope.theta=110", "rope.style=*", "rope.layers=[1, 3]", "rope.layers=all", "attention.window=7", "moe.scale=1", "moe.shared.scale=1", "moe.renorm=false",
                          "moe.top_k=2", "head.scale=0.41"],
    "cohere2_moe-sigmoid": ["norm.kind=layer", "moe.score=softmax", "moe.renorm=false", "moe.shared.scale=0.5", "rope.layers=all"],
    "nanochat-plain": ["norm.eps=0.011", "rope.theta=110", "rope.style=*", "rope.scaling.factor=1", "rope.scaling.factor=-1.1", "attention.qk_norm=none", "norm.qk_eps=0.02", "norm.embed=false",
                       "head.cap=3.01", "ffn.act=relu"],
    "granite_swa-plain": ["rope.layers=all", "rope.local.theta=110", "attention.sinks=false", "attention.window=7", "attention.window_layers=[1]", "head.scale=0.26", "embed.scale=*1.01"],
    "granite_swa-moe": ["rope.theta=5500", "rope.local.theta=55", "moe.renorm=false", "moe.top_k=2", "moe.shared.width=0"],
    "minicpm3-plain": ["norm.eps=0.05", "norm.latent_eps=0.001", "rope.theta=110", "rope.style=*", "embed.scale=*1.01", "head.scale=0.37", "attention.scale=*1.01"],
    "lfm3-plain": ["attention.out_gate=none", "norm.attn_out=false", "norm.ffn_out=false", "attention.window=7", "rope.local.theta=55", "rope.theta=5500", "rope.scaling.turning=1", "norm.eps=0.011",
                   "norm.qk_eps=0.02"],
    "flint-plain": ["attention.sinks=false", "rope.layers=all", "attention.window=7", "moe.score=softmax", "moe.renorm=false", "moe.shared.width=0", "norm.qk_eps=0.02"],
    "exaone-plain": COMMON[:-1] + ROPE, "minicpm-plain": ["norm.eps=0.05", "embed.scale=*1.01", "head.scale=0.34", "rope.theta=110", "rope.style=*", "ffn.act=*"],
    "bailing_moe2-plain": ROPE + ["rope.dims=4", "moe.renorm=false", "moe.top_k=2", "moe.scale=2.4", "moe.score=softmax", "moe.choice_bias=false", "moe.keep_groups=3", "moe.group_score=max", "moe.shared.width=0",
                                  "norm.qk_eps=0.02"],
    "aria-plain": ROPE + ["moe.renorm=false", "moe.top_k=2", "moe.score=sigmoid", "moe.shared.width=0"],
    "minimax_m3-plain": ROPE + ["rope.dims=12", "norm.plus_one=false", "moe.renorm=false", "moe.score=softmax", "moe.choice_bias=false", "moe.scale=1.6", "moe.limit=0.8", "moe.act=silu", "ffn.limit=0.8", "ffn.act=silu",
                                "norm.qk_eps=0.02", "moe.shared.width=0"],
    "llama-pangu": COMMON + ROPE, "qwen2-mimo": COMMON + ROPE, "orion-plain": COMMON + ROPE, "qwen-plain": COMMON + ROPE,
    "bailing_moe-plain": ROPE + ["moe.renorm=false", "moe.top_k=2", "moe.score=sigmoid", "moe.shared.width=0"],
    "deepseek-plain": ROPE + ["moe.renorm=true", "moe.top_k=2", "moe.score=sigmoid", "moe.shared.width=0", "norm.eps=0.05"],
    "deepseek_v3-axk1": ["norm.ffn_out=false", "norm.out_layers=[2, 3]"],
    "deepseek_v3-sarvam": ["rope.scaling.factor=7", "rope.scaling.mscale_all_dim=0.5", "moe.top_k=2", "moe.shared.width=0", "moe.choice_bias=false"],
}
OTHER = {"half": "interleaved", "interleaved": "half", "silu": "gelu", "gelu": "gelu_tanh", "gelu_tanh": "gelu", "relu": "silu", "relu2": "relu"}
CASES = [(n, m) for n, ms in MUTATIONS.items() for m in ms]


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """name -> (golden, folder, resolved value of a key)"""
    made = {}

    def get(name):
        if name not in made:
            g = weights.Golden(name)
            folder = tmp_path_factory.mktemp(name)
            g.build(folder)
            import llmc
            with llmc.open(folder, device="ref", no_weights=True, set=g.set) as m:
                made[name] = (g, folder, {k: m[k] for k in (
                    "rope.style", "ffn.act", "attention.scale", "residual.skip_scale", "embed.scale", "rope.theta")})
        return made[name]
    return get


@pytest.mark.sample(90)
@pytest.mark.parametrize("name,mutation", CASES)
def test_mutation_shows(name, mutation, models):
    g, folder, value = models(name)
    key, new = mutation.split("=")
    if new == "*":
        new = OTHER[value[key]]
    elif new.startswith("*"):
        new = repr(float(value[key]) * float(new[1:]))
    logits, _ = run(folder, g, "--device", "ref", set={key: new}, n=1)
    assert error(g, logits) > 10 * TOLERANCE
