"""The cases of tests/golden/vision as GGUF files: a language model, and its vision tower in an mmproj file, as llama.cpp's
converter writes them. The `gguf` package writes the files and has the names of tensors; no code of llmc is involved. What
the converter computes is repeated here: permuted heads, split tensors, 1 + w of norms, keys.
"""

import re

import gguf
import numpy as np

import weights as W

Q = gguf.GGMLQuantizationType
ARCH = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2_vl_text": "qwen2vl",
    "qwen2_5_vl_text": "qwen2vl",
    "qwen3_vl_text": "qwen3vl",
    "qwen3_vl_moe_text": "qwen3vlmoe",
    "gemma3_text": "gemma3",
    "lfm2": "lfm2",
}
# type of a tower: token that stands for an image in prompts of its model
TOKENS = {
    "idefics3": "<image>",
    "mlp": "<image>",
    "gemma3": "<image_soft_token>",
    "pixtral": "[IMG]",
    "internvl": "<IMG_CONTEXT>",
    "qwen2vl_merger": "<|image_pad|>",
    "qwen2.5vl_merger": "<|image_pad|>",
    "qwen3vl_merger": "<|image_pad|>",
}


# names that older versions of the package lack
NAMES_AS = {"qwen3vl": "qwen3", "qwen3vlmoe": "qwen3moe"}
NAMES = {
    "model.vision_tower.embeddings.cls_token": "v.class_embd",
    "model.vision_tower.embeddings.patch_embeddings.projection": "v.patch_embd",
    "model.vision_tower.embeddings.position_embeddings": "v.position_embd",
    "visual.pos_embed": "v.position_embd",
}


def arch_of(name):
    name = NAMES_AS.get(name, name)
    return next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == name)


def values(case):
    return {n: W.rounded(x, case.dtype) for n, x in case.values().items()}


def text_names(tensors):
    """Return the tensors of the language model, under the names that models without images use."""
    out = {}
    for name, x in tensors.items():
        if re.search(r"vis(ion|ual)|multi_modal_projector|connector", name):
            continue
        name = re.sub(r"^(model\.)?(language_model|text_model)\.(model\.)?", "model.", name)
        out[name.replace("model.lm_head", "lm_head")] = x
    return out


def text_tensors(arch, config, tensors):
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    names = gguf.get_tensor_name_map(arch_of(arch), config["num_hidden_layers"])
    for name, x in text_names(tensors).items():
        if arch == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            x = W.halves_to_pairs(x, heads if "q_proj" in name else kv)
        if arch == "gemma3" and name.endswith("norm.weight"):
            x = x + 1
        experts = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)", name)
        if experts and experts[2] == "gate_up_proj":
            half = x.shape[1] // 2
            parts = {"gate_proj": x[:, :half], "up_proj": x[:, half:]}
        else:
            parts = {"down_proj": x} if experts else {"": x}
        for part, y in parts.items():
            full = f"{experts[1]}.{part}.weight" if part else name
            yield names.get_name(full, try_suffixes=(".weight", ".bias")), y


def rope(config):
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def text_keys(w, case, arch, config):
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "head_dim" in config:
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    angles = rope(config)
    angles = angles.get("full_attention", angles)
    w.add_rope_freq_base(angles.get("rope_theta", config.get("rope_theta")))
    if "mrope_section" in angles:
        w.add_rope_dimension_sections([*angles["mrope_section"], 0])
    if arch == "gemma3":
        w.add_sliding_window(config["sliding_window"])
        local = rope(config)["sliding_attention"]["rope_theta"]
        w.add_float32("gemma3.rope.freq_base_swa", local)
    if "num_experts" in config:
        w.add_expert_count(config["num_experts"])
        w.add_expert_used_count(config["num_experts_per_tok"])
        w.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if arch.startswith("qwen3vl"):
        deep = case.config["vision_config"].get("deepstack_visual_indexes", [])
        w.add_uint32(f"{arch}.n_deepstack_layers", len(deep))


def put(w, name, x, narrow):
    """Add a tensor to the file. narrow: matrices are stored in bf16, as by the converter; other
    tensors are fp32."""
    x = np.ascontiguousarray(x, np.float32)
    if not narrow or x.ndim < 2 or "position_embd" in name:
        w.add_tensor(name, x)
    else:
        w.add_tensor(name, gguf.quants.quantize(x, Q.BF16), raw_dtype=Q.BF16)


def write_text(path, case, tokens=None, keys=None):
    """Write the file of the language model. tokens: strings of the vocabulary."""
    config = case.config["text_config"]
    arch = ARCH[config["model_type"]]
    w = gguf.GGUFWriter(str(path), arch)
    text_keys(w, case, arch, config)
    if not keys:
        mark = TOKENS[kind_of(case)]
        tokens = tokens or [f"<{i}>" for i in range(config["vocab_size"])]
        tokens[case.image_token] = mark
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
    else:
        keys(w)
    for name, x in text_tensors(arch, config, values(case)):
        put(w, name, x, case.dtype == "bf16")
    W.finish_gguf(w)


def kind_of(case):
    kind = case.config["model_type"]
    vision = case.config["vision_config"].get("model_type")
    return {
        "smolvlm": "idefics3",
        "idefics3": "idefics3",
        "llava": "pixtral" if vision == "pixtral" else "mlp",
        "mistral3": "pixtral",
        "gemma3": "gemma3",
        "internvl": "internvl",
        "qwen2_vl": "qwen2vl_merger",
        "qwen2_5_vl": "qwen2.5vl_merger",
        "qwen3_vl": "qwen3vl_merger",
        "qwen3_vl_moe": "qwen3vl_merger",
    }[kind]


def qkv(name, x):
    third = len(x) // 3
    for i, part in enumerate("qkv"):
        yield name.replace("qkv", part), x[i * third : (i + 1) * third]


def tower_tensors(case, kind):
    """Return names and values of tensors, before the package's name map is applied. A name that
    starts with = is already a GGUF name."""
    vision = case.config["vision_config"]
    heads = vision.get("num_attention_heads")
    for name, x in values(case).items():
        if not re.search(r"vis(ion|ual)|multi_modal_projector|connector", name):
            continue
        if kind in ("gemma3", "mlp") and "vision_tower." in name and "vision_model" not in name:
            name = name.replace("vision_tower.", "vision_tower.vision_model.")
        layer = re.search(r"layers\.(\d+)\.", name)
        if layer and int(layer[1]) >= depth_of(case):
            continue
        if kind == "mlp":
            if "post_layernorm" in name:
                continue
            name = re.sub(r".*multi_modal_projector\.linear_1", "=mm.0", name)
            name = re.sub(r".*multi_modal_projector\.linear_2", "=mm.2", name)
        if ".head." in name or (kind == "internvl" and name.startswith("vision_tower.layernorm")):
            continue
        name = name.replace("model.visual.", "visual.")
        if kind == "internvl":
            at = {"layer_norm": 0, "linear_1": 1, "linear_2": 3}
            name = re.sub(r"multi_modal_projector\.(\w+)\.", lambda m: f"mlp1.{at[m[1]]}.", name)
            name = name if name.startswith("mlp1") else "model." + name
            if re.search("lambda_|position_embedding", name):
                name += ".weight"
        if kind == "gemma3":
            x = x + 1 if "soft_emb_norm" in name else x
            name = name.replace("_weight", ".weight")
        if kind == "pixtral" and re.search(r"[qk]_proj\.", name):
            x = W.halves_to_pairs(x, heads)
        if "patch_embed.proj.weight" in name:
            yield "=v.patch_embd.weight", x[:, :, 0]
            yield "=v.patch_embd.weight.1", x[:, :, 1]
        elif kind in ("qwen2vl_merger", "qwen2.5vl_merger") and ".qkv." in name:
            yield from qkv(name, x)
        elif m := re.match(
            r"visual\.deepstack_merger_list\.(\d+)\.(norm|linear_(fc.))\.(.*)", name
        ):
            layer = vision["deepstack_visual_indexes"][int(m[1])]
            yield f"=v.deepstack.{layer}.{m[3] or m[2]}.{m[4]}", x
        elif m := re.match(r"visual\.merger\.(linear_fc.|norm)\.(.*)", name):
            at = {"linear_fc1": "mm.0", "linear_fc2": "mm.2", "norm": "v.post_ln"}
            yield f"={at[m[1]]}.{m[2]}", x
        else:
            yield name, x


def depth_of(case):
    """Return the number of tower layers up to the layer whose rows are used; files omit the
    others."""
    v, layer = case.config["vision_config"], case.config.get("vision_feature_layer")
    depth = v.get("depth") or v["num_hidden_layers"]
    if kind_of(case) == "mlp":
        layer = -2 if layer is None else layer
    elif kind_of(case) != "pixtral" or layer is None:
        return depth
    return layer if layer >= 0 else depth + 1 + layer


def tower_keys(w, case, kind):
    c, v = case.config, case.config["vision_config"]
    text = c["text_config"]["hidden_size"]

    def one(x):
        return x[0] if isinstance(x, list) else x

    patch, qwen = one(v["patch_size"]), kind.startswith("qwen")
    size = one(v.get("image_size", 560))
    if kind == "qwen3vl_merger":
        size = int(v["num_position_embeddings"] ** 0.5 * patch)
    embed = v.get("embed_dim", v["hidden_size"])
    depth = depth_of(case)
    w.add_clip_has_vision_encoder(True)
    w.add_clip_projector_type(kind)
    w.add_vision_projection_dim(text)
    w.add_vision_image_size(size)
    w.add_vision_patch_size(patch)
    w.add_vision_embedding_length(embed)
    w.add_vision_feed_forward_length(v.get("intermediate_size", v["hidden_size"]))
    w.add_vision_block_count(depth)
    w.add_vision_head_count(v["num_heads"] if qwen else v["num_attention_heads"])
    w.add_vision_image_mean([0.5] * 3)
    w.add_vision_image_std([0.5] * 3)
    w.add_vision_attention_layernorm_eps(1e-6 if qwen else v.get("layer_norm_eps", 1e-5))
    if kind == "pixtral":
        w.add_float32("clip.rope.freq_base", v["rope_theta"])
        (w.add_vision_use_silu if v["hidden_act"] == "silu" else w.add_vision_use_gelu)(True)
        if "spatial_merge_size" in c:
            w.add_vision_spatial_merge_size(c["spatial_merge_size"])
    elif kind == "mlp":
        w.add_vision_use_gelu(v.get("hidden_act") == "gelu")
    else:
        w.add_vision_use_gelu(True)
    if kind == "idefics3":
        w.add_vision_projector_scale_factor(c["scale_factor"])
        w.add_uint32("clip.vision.preproc_image_size", 2 * size)
    if kind == "gemma3":
        side = size // patch // round(c["mm_tokens_per_image"] ** 0.5)
        w.add_vision_projector_scale_factor(side)
    if kind == "internvl":
        w.add_vision_projector_scale_factor(int(1 / c["downsample_ratio"]))
        w.add_uint32("clip.vision.preproc_min_tiles", 1)
        w.add_uint32("clip.vision.preproc_max_tiles", 4)
    if qwen:
        w.add_vision_spatial_merge_size(v["spatial_merge_size"])
    if kind == "qwen2.5vl_merger":
        w.add_vision_n_wa_pattern(v["fullatt_block_indexes"][0] + 1)
        w.add_uint32("clip.vision.window_size", v["window_size"])
    if kind == "qwen3vl_merger":
        deep = v.get("deepstack_visual_indexes", [])
        w.add_array("clip.vision.is_deepstack_layers", [i in deep for i in range(depth)])


def new_name(name):
    stem, dot, end = name.rpartition(".")
    part = re.fullmatch(
        r"(?:model\.)?vis(?:ion_tower|ual)\.(?:encoder\.layers?|blocks)\.(\d+)\.(.*)", stem
    )
    if name in NAMES:
        return NAMES[name]
    return f"v.blk.{part[1]}.{BLOCK[part[2]]}.{end}" if part else f"{NAMES[stem]}.{end}"


BLOCK = {
    "attention.q_proj": "attn_q",
    "attention.k_proj": "attn_k",
    "attention.v_proj": "attn_v",
    "attention.q_norm": "attn_q_norm",
    "attention.k_norm": "attn_k_norm",
    "attention.projection_layer": "attn_out",
    "layernorm_before": "ln1",
    "layernorm_after": "ln2",
    "lambda_1": "ls1",
    "lambda_2": "ls2",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
    "attn.qkv": "attn_qkv",
    "attn.proj": "attn_out",
    "norm1": "ln1",
    "norm2": "ln2",
    "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}


def write_tower(path, case, change=None, keys=None):
    """Write the file of the tower. change(tensors) changes tensors by name. keys: integers below
    clip.vision that replace those of the case; None removes a key."""
    kind = kind_of(case)
    w = gguf.GGUFWriter(str(path), "clip")
    tower_keys(w, case, kind)
    for key, v in (keys or {}).items():
        w.kv_data[0].pop("clip.vision." + key, None)
        if v is not None:
            w.add_uint32("clip.vision." + key, v)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)
    tensors = {}
    for name, x in tower_tensors(case, kind):
        if name[0] == "=":
            new = name[1:]
        else:
            new = names.get_name(name, try_suffixes=(".weight", ".bias")) or new_name(name)
        tensors[new] = x
    for name, x in (change(tensors) if change else tensors).items():
        put(w, name, x, case.dtype == "bf16")
    W.finish_gguf(w)


def build(folder, case):
    """Write model.gguf and mmproj-model.gguf; return the path of the first."""
    write_text(folder / "model.gguf", case)
    write_tower(folder / "mmproj-model.gguf", case)
    return folder / "model.gguf"
