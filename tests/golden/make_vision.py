#!/usr/bin/env python3
"""Write tests/golden/vision/<case>/{config.json, case.json, rows.npy, logits.npy}: tiny models that read images, the
rows that the tower of transformers computes for a few images, and the logits of a prompt that contains them.

Needs torch and transformers 5. Weights and pixels are those of weights.py, by name. Run:  python tests/golden/make_vision.py [case ...]
"""

import json
import os
import sys
import tempfile

import numpy as np
import torch

import weights as W

torch.set_num_threads(1)
CASES = {}
IMAGE = 5  # token that stands for a row of an image
# the implementation that also works in double precision
EXPERTS = dict(experts_implementation="eager")


def case(name, config, grids, *, dtype="f32", plus_one=False, inputs, tokens):
    """Define a case. grids: rows and columns of patches of each image. inputs(pixels, grids, ids):
    keyword arguments of the model. tokens(grid): number of tokens of an image."""
    assert name not in CASES
    CASES[name] = dict(
        config=config, grids=grids, dtype=dtype, plus_one=plus_one, inputs=inputs, tokens=tokens
    )


LLAMA = dict(
    model_type="llama",
    vocab_size=131,
    hidden_size=48,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=256,
    rms_norm_eps=1e-3,
    rope_theta=500.0,
    tie_word_embeddings=False,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
SIGLIP = dict(
    hidden_size=36,
    intermediate_size=50,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_channels=3,
    image_size=32,
    patch_size=8,
    layer_norm_eps=1e-3,
    hidden_act="gelu_pytorch_tanh",
)


def smolvlm(kind, text=None, vision=None, **more):
    return dict(
        model_type=kind,
        image_token_id=IMAGE,
        scale_factor=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        torch_dtype="float32",
        text_config=dict(LLAMA, **(text or {})),
        vision_config=dict(SIGLIP, **(vision or {})),
        **more,
    )


def batch(pixels, grids, ids):
    return dict(pixel_values=torch.stack(pixels)[None])


case(
    "smolvlm-plain",
    smolvlm("smolvlm"),
    [(4, 4), (4, 4), (4, 4)],
    inputs=batch,
    tokens=lambda g: g[0] * g[1] // 4,
)
case(
    "smolvlm-idefics3-bf16",
    smolvlm("idefics3", vision=dict(hidden_size=72, num_attention_heads=4, image_size=48)),
    [(6, 6), (6, 6)],
    dtype="bf16",
    inputs=batch,
    tokens=lambda g: g[0] * g[1] // 4,
)
case(
    "smolvlm-scale3",
    smolvlm("smolvlm", dict(tie_word_embeddings=True), dict(image_size=48, hidden_act="gelu"))
    | dict(scale_factor=3, tie_word_embeddings=True),
    [(6, 6)],
    inputs=batch,
    tokens=lambda g: g[0] * g[1] // 9,
)


CLIP = dict(
    model_type="clip_vision_model",
    hidden_size=36,
    intermediate_size=50,
    projection_dim=20,
    num_hidden_layers=3,
    num_attention_heads=3,
    image_size=40,
    patch_size=8,
    layer_norm_eps=1e-3,
)


def llava(text=None, vision=None, **more):
    return dict(
        model_type="llava",
        image_token_index=IMAGE,
        pad_token_id=0,
        torch_dtype="float32",
        text_config=dict(LLAMA, **(text or {})),
        vision_config=dict(CLIP, **(vision or {})),
        **more,
    )


def stacked(pixels, grids, ids):
    return dict(pixel_values=torch.stack(pixels))


def all_patches(g):
    return g[0] * g[1]


case("llava-plain", llava(), [(5, 5)] * 3, inputs=stacked, tokens=all_patches)
case(
    "llava-bf16",
    llava(vision=dict(hidden_size=72, num_attention_heads=4, image_size=24)),
    [(3, 3)] * 2,
    dtype="bf16",
    inputs=stacked,
    tokens=all_patches,
)
case(
    "llava-layer1",
    llava(vision=dict(hidden_act="gelu"), vision_feature_layer=1, projector_hidden_act="silu")
    | dict(multimodal_projector_bias=False),
    [(5, 5)],
    inputs=stacked,
    tokens=all_patches,
)


QWEN2 = dict(
    LLAMA,
    model_type="qwen2_vl_text",
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=...,
    rope_theta=...,
    rope_parameters=dict(rope_type="default", rope_theta=500.0, mrope_section=[2, 3, 3]),
)
TOKENS = dict(
    image_token_id=IMAGE, video_token_id=6, vision_start_token_id=7, vision_end_token_id=8
)


def without(config):
    return {k: v for k, v in config.items() if v is not ...}


def qwen2_vl(vision=None, **more):
    tower = dict(depth=2, embed_dim=48, hidden_size=48, num_heads=3, mlp_ratio=2, patch_size=4)
    tower |= dict(
        spatial_merge_size=2, temporal_patch_size=2, in_channels=3, hidden_act="quick_gelu"
    )
    return dict(
        model_type="qwen2_vl",
        torch_dtype="float32",
        text_config=without(QWEN2),
        vision_config=dict(tower, model_type="qwen2_vl", **(vision or {})),
        tie_word_embeddings=False,
        **TOKENS,
        **more,
    )


def in_squares(side):
    """Return inputs of the Qwen models: the patches of a merged square are adjacent, and each image
    is two equal frames."""

    def inputs(pixels, grids, ids):
        p = [W.squares(x.numpy(), h, w, side, 2) for x, (h, w) in zip(pixels, grids)]
        rows = torch.from_numpy(np.concatenate([r for r, _ in p]))
        return dict(
            pixel_values=rows.to(pixels[0].dtype),
            image_grid_thw=torch.tensor([(1, h, w) for h, w in grids]),
            mm_token_type_ids=(ids == IMAGE).long(),
        )

    return inputs


def merged(side):
    return lambda g: g[0] * g[1] // side**2


case("qwen2_vl-plain", qwen2_vl(), [(4, 6), (6, 2), (2, 2)], inputs=in_squares(2), tokens=merged(2))
case(
    "qwen2_vl-bf16",
    qwen2_vl(dict(embed_dim=64, num_heads=2, mlp_ratio=1)),
    [(6, 10), (2, 4)],
    dtype="bf16",
    inputs=in_squares(2),
    tokens=merged(2),
)


def qwen2_5_vl(vision=None, **more):
    tower = dict(depth=3, hidden_size=48, intermediate_size=56, out_hidden_size=48, num_heads=3)
    tower |= dict(patch_size=4, spatial_merge_size=2, temporal_patch_size=2, in_channels=3)
    tower |= dict(window_size=16, fullatt_block_indexes=[1], hidden_act="silu")
    return dict(
        model_type="qwen2_5_vl",
        torch_dtype="float32",
        text_config=without(QWEN2) | dict(model_type="qwen2_5_vl_text"),
        vision_config=dict(tower, model_type="qwen2_5_vl", **(vision or {})),
        tie_word_embeddings=False,
        **TOKENS,
        **more,
    )


# windows of 2 x 2 squares of patches; the last windows of a row or column are smaller
case(
    "qwen2_5_vl-plain",
    qwen2_5_vl(),
    [(10, 6), (2, 14), (2, 2)],
    inputs=in_squares(2),
    tokens=merged(2),
)
case(
    "qwen2_5_vl-bf16",
    qwen2_5_vl(dict(hidden_size=64, num_heads=2, window_size=48, fullatt_block_indexes=[0, 2])),
    [(12, 14), (4, 20)],
    dtype="bf16",
    inputs=in_squares(2),
    tokens=merged(2),
)


def qwen3_vl(kind, text, deep=(0, 1), vision=None, **more):
    tower = dict(
        depth=3,
        hidden_size=48,
        intermediate_size=72,
        out_hidden_size=48,
        num_heads=3,
        patch_size=4,
        num_position_embeddings=25,
    )
    tower |= dict(spatial_merge_size=2, temporal_patch_size=2, in_channels=3)
    tower |= dict(deepstack_visual_indexes=list(deep)) if deep else {}
    return dict(
        model_type=kind,
        torch_dtype="float32",
        text_config=text,
        vision_config=dict(tower, model_type=kind + "_vision", **(vision or {})),
        tie_word_embeddings=False,
        **TOKENS,
        **more,
    )


def interleaved(kind, section, **more):
    text = dict(QWEN2, model_type=kind, head_dim=16, num_hidden_layers=3)
    rope = dict(rope_type="default", rope_theta=500.0, mrope_interleaved=True)
    text["rope_parameters"] = dict(rope, mrope_section=section)
    return without(text) | more


QWEN3_5 = interleaved(
    "qwen3_5_text",
    [3, 3, 2],
    head_dim=32,
    layer_types=["linear_attention", "full_attention", "linear_attention"],
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    linear_key_head_dim=8,
    linear_value_head_dim=12,
    linear_conv_kernel_dim=4,
)
QWEN3_5["rope_parameters"]["partial_rotary_factor"] = 0.5
QWEN3_VL = interleaved("qwen3_vl_text", [2, 3, 3])
case(
    "qwen3_vl-plain",
    qwen3_vl("qwen3_vl", QWEN3_VL),
    [(4, 6), (10, 2), (2, 2)],
    inputs=in_squares(2),
    tokens=merged(2),
)
case(
    "qwen3_vl-bf16",
    qwen3_vl("qwen3_vl", dict(QWEN3_VL, num_hidden_layers=2), [1], dict(num_heads=2, patch_size=6)),
    [(6, 10), (2, 12)],
    dtype="bf16",
    inputs=in_squares(2),
    tokens=merged(2),
)
case(
    "qwen3_vl-qwen3_5",
    qwen3_vl("qwen3_5", QWEN3_5, None, dict(num_position_embeddings=16)),
    [(4, 6), (2, 8)],
    inputs=in_squares(2),
    tokens=merged(2),
    plus_one=True,
)


case(
    "qwen3_vl-moe",
    qwen3_vl(
        "qwen3_vl_moe",
        interleaved(
            "qwen3_vl_moe_text",
            [2, 3, 3],
            num_hidden_layers=2,
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
        ),
        [2],
    ),
    [(4, 6), (2, 2)],
    inputs=in_squares(2),
    tokens=merged(2),
)
case(
    "qwen3_vl-qwen3_5_moe",
    qwen3_vl(
        "qwen3_5_moe",
        dict(
            QWEN3_5,
            model_type="qwen3_5_moe_text",
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=24,
            shared_expert_intermediate_size=32,
        ),
        None,
    ),
    [(4, 6), (2, 8)],
    inputs=in_squares(2),
    tokens=merged(2),
    plus_one=True,
)


def pixtral(kind="mistral3", text=None, vision=None, **more):
    tower = dict(
        model_type="pixtral",
        hidden_size=48,
        intermediate_size=56,
        num_hidden_layers=3,
        num_attention_heads=3,
        head_dim=16,
        image_size=64,
        patch_size=4,
        hidden_act="gelu",
        rope_theta=100.0,
    )
    config = dict(
        model_type=kind,
        image_token_index=IMAGE,
        torch_dtype="float32",
        text_config=dict(LLAMA, model_type="mistral", sliding_window=None, **(text or {})),
        vision_config=tower | (vision or {}),
        projector_hidden_act="gelu",
        multimodal_projector_bias=False,
        tie_word_embeddings=False,
    )
    return config | dict(dict(spatial_merge_size=2) if kind == "mistral3" else {}, **more)


def padded(pixels, grids, ids):
    """Return images of several sizes in one batch, padded to the largest height and width."""
    sizes = [tuple(p.shape[1:]) for p in pixels]
    x = torch.zeros((len(pixels), 3, *(max(s) for s in zip(*sizes))), dtype=pixels[0].dtype)
    for i, p in enumerate(pixels):
        x[i, :, : p.shape[1], : p.shape[2]] = p
    return dict(pixel_values=x, image_sizes=torch.tensor(sizes))


case("pixtral-plain", pixtral(), [(4, 6), (10, 2), (2, 2)], inputs=padded, tokens=merged(2))
case(
    "pixtral-bf16",
    pixtral(
        text=dict(rms_norm_eps=1e-5),
        vision=dict(hidden_size=64, num_attention_heads=2, head_dim=32, hidden_act="silu"),
        multimodal_projector_bias=True,
        spatial_merge_size=3,
    ),
    [(6, 12), (3, 3)],
    dtype="bf16",
    inputs=padded,
    tokens=merged(3),
)
case(
    "pixtral-llava",
    pixtral("llava", multimodal_projector_bias=True, vision_feature_select_strategy="full")
    | dict(vision_feature_layer=-2),
    [(5, 3), (2, 7)],
    inputs=padded,
    tokens=all_patches,
)


GEMMA3 = dict(
    LLAMA,
    model_type="gemma3_text",
    num_hidden_layers=3,
    sliding_window=14,
    query_pre_attn_scalar=16,
    rope_parameters=dict(
        full_attention=dict(rope_type="default", rope_theta=500.0),
        sliding_attention=dict(rope_type="default", rope_theta=50.0),
    ),
    layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    hidden_activation="gelu_pytorch_tanh",
    rope_theta=...,
    tie_word_embeddings=True,
)


def gemma3(text=None, vision=None, **more):
    config = dict(
        model_type="gemma3",
        image_token_index=IMAGE,
        boi_token_index=7,
        eoi_token_index=8,
        mm_tokens_per_image=4,
        torch_dtype="float32",
        text_config=without(GEMMA3 | (text or {})),
        vision_config=SIGLIP | dict(model_type="siglip_vision_model") | (vision or {}),
    )
    return config | more


def typed(pixels, grids, ids):
    return dict(pixel_values=torch.stack(pixels), token_type_ids=(ids == IMAGE).long())


case("gemma3-plain", gemma3(), [(4, 4)] * 3, inputs=typed, tokens=lambda g: 4, plus_one=True)
case(
    "gemma3-bf16",
    gemma3(
        dict(sliding_window=20, head_dim=16),
        dict(hidden_size=72, num_attention_heads=4, image_size=48),
        mm_tokens_per_image=9,
    ),
    [(6, 6)] * 2,
    dtype="bf16",
    inputs=typed,
    tokens=lambda g: 9,
    plus_one=True,
)
case(  # an image is longer than the window
    "gemma3-narrow",
    gemma3(dict(sliding_window=3)),
    [(4, 4)] * 3,
    inputs=typed,
    tokens=lambda g: 4,
    plus_one=True,
)


def internvl(text=None, vision=None, **more):
    tower = dict(
        SIGLIP,
        model_type="internvl_vision",
        image_size=[32, 32],
        patch_size=[8, 8],
        hidden_act="gelu",
        attention_bias=True,
        layer_scale_init_value=0.1,
    )
    config = dict(
        model_type="internvl",
        image_token_id=IMAGE,
        image_seq_length=4,
        downsample_ratio=0.5,
        torch_dtype="float32",
        text_config=LLAMA | (text or {}),
        vision_config=tower | (vision or {}),
    )
    return config | more


case("internvl-plain", internvl(), [(4, 4)] * 3, inputs=stacked, tokens=lambda g: g[0] * g[1] // 4)
case(
    "internvl-bf16",
    internvl(
        vision=dict(
            hidden_size=72,
            num_attention_heads=4,
            image_size=[48, 48],
            attention_bias=False,
            use_mean_pooling=False,
        )
    ),
    [(6, 6)] * 2,
    dtype="bf16",
    inputs=stacked,
    tokens=lambda g: g[0] * g[1] // 4,
)


def tensors(model):
    return {
        n: list(p.shape) for n, p in sorted(model.state_dict().items()) if p.is_floating_point()
    }


def saved_names(model, values):
    """Return names and values of tensors as save_pretrained writes them."""
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        from safetensors import safe_open

        with safe_open(os.path.join(d, "model.safetensors"), "np") as f:
            return {n: list(f.get_slice(n).get_shape()) for n in sorted(f.keys())}


def make(name, c):
    from transformers import AutoConfig, AutoModelForImageTextToText

    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "config.json"), "w") as f:
            json.dump(c["config"], f)
        config = AutoConfig.from_pretrained(d)
        model = AutoModelForImageTextToText.from_config(
            config, attn_implementation="eager", **EXPERTS
        ).eval()
        shapes = saved_names(model, None)
        values = {
            n: W.rounded(W.tensor(1, n, s, c["plus_one"]), c["dtype"]) for n, s in shapes.items()
        }
        W.write_safetensors(os.path.join(d, "model.safetensors"), values, "f32")
        model = AutoModelForImageTextToText.from_pretrained(
            d, attn_implementation="eager", dtype=torch.float32, **EXPERTS
        ).eval()
    pixels = [torch.from_numpy(p) for p in W.pixels(c["config"], c["grids"])]
    ids = W.prompt(7, 5, 100)
    ids = [t + 10 for t in ids]
    for i, g in enumerate(c["grids"]):
        ids += [IMAGE] * c["tokens"](g) + [t + 10 for t in W.prompt(8 + i, 3, 100)]
    rows = []

    def keep(module, args, out):
        rows.append(out)

    @torch.no_grad()
    def run(m, dtype):
        px = [p.to(dtype) for p in pixels]
        more = c["inputs"](px, c["grids"], torch.tensor([ids]))
        out = m(input_ids=torch.tensor([ids]), use_cache=False, **more)
        feats = m.get_image_features(**{k: v for k, v in more.items() if k in FEATURES})
        deep = getattr(feats, "deepstack_features", None) or []
        feats = getattr(feats, "pooler_output", feats)
        feats = torch.cat(list(feats)) if isinstance(feats, (list, tuple)) else feats
        deep = [torch.cat(list(d)) if isinstance(d, (list, tuple)) else d for d in deep]
        feats = torch.cat([feats, *deep], -1) if deep else feats
        return out.logits[0].double().numpy(), feats.reshape(-1, feats.shape[-1]).double().numpy()

    logits, rows = run(model.float(), torch.float32)
    wobble = float(np.abs(run(model.double(), torch.float64)[0] - logits).max() / np.ptp(logits))
    text = model.float()(input_ids=torch.tensor([ids])).logits[0].detach().double().numpy()
    apart = float(np.abs(text - logits).max() / np.ptp(logits))
    body = dict(
        family=name.split("-")[0],
        seed=1,
        dtype=c["dtype"],
        plus_one=c["plus_one"],
        grids=c["grids"],
        ids=ids,
        image_token=IMAGE,
        wobble=wobble,
    )
    d = os.path.join(W.VISION, name)
    W.write_case(d, c["config"], body, shapes)
    np.save(os.path.join(d, "rows.npy"), rows.astype(np.float32))
    np.save(os.path.join(d, "logits.npy"), logits.astype(np.float32))
    print(
        f"{name:34} range {np.ptp(logits):6.2f} wobble {wobble:.1e} images {apart:.2f}", flush=True
    )


RUNS = {}  # processors of cases that `llmc run` is tested with


def run_case(name, tokens, processor=None, call=None, first=11, **preprocessor):
    """Define a case for `llmc run`. tokens(n): image tokens, given the tensors of the processor.
    call: arguments that the model's processor passes to the image processor. first: first token of
    the prompt"""
    RUNS[name] = dict(
        call=call or {},
        first=first,
        preprocessor=dict(
            preprocessor, do_convert_rgb=True, do_rescale=True, rescale_factor=1 / 255
        ),
        processor=processor or {},
        tokens=tokens,
    )


HALF = dict(do_normalize=True, image_mean=[0.5] * 3, image_std=[0.5] * 3)

run_case(  # images are cut into squares of 32 pixels
    "smolvlm-plain",
    lambda px: 4 * px["pixel_values"].shape[1],
    dict(image_seq_len=4),
    image_processor_type="SmolVLMImageProcessor",
    do_resize=True,
    size=dict(longest_edge=64),
    resample=1,
    do_image_splitting=True,
    max_image_size=dict(longest_edge=32),
    do_pad=True,
    **HALF,
)
run_case(
    "llava-plain",
    lambda px: 25 * px["pixel_values"].shape[0],
    dict(patch_size=8, num_additional_image_tokens=1, vision_feature_select_strategy="default"),
    image_processor_type="CLIPImageProcessor",
    do_resize=True,
    size=dict(shortest_edge=40),
    resample=3,
    do_center_crop=True,
    crop_size=dict(height=40, width=40),
    **HALF,
)


run_case(
    "qwen2_vl-plain",
    lambda px: int(px["image_grid_thw"].prod(1).sum()) // 4,
    image_processor_type="Qwen2VLImageProcessor",
    do_resize=True,
    min_pixels=64,
    max_pixels=1600,
    resample=3,
    patch_size=4,
    temporal_patch_size=2,
    merge_size=2,
    **HALF,
)


run_case(
    "qwen2_5_vl-plain",
    lambda px: int(px["image_grid_thw"].prod(1).sum()) // 4,
    image_processor_type="Qwen2VLImageProcessor",
    do_resize=True,
    min_pixels=64,
    max_pixels=1600,
    resample=3,
    patch_size=4,
    temporal_patch_size=2,
    merge_size=2,
    **HALF,
)


run_case(
    "qwen3_vl-plain",
    lambda px: int(px["image_grid_thw"].prod(1).sum()) // 4,
    image_processor_type="Qwen2VLImageProcessorFast",
    do_resize=True,
    size=dict(shortest_edge=64, longest_edge=1600),
    resample=3,
    patch_size=4,
    temporal_patch_size=2,
    merge_size=2,
    **HALF,
)


run_case(
    "pixtral-plain",
    lambda px: int(px["image_sizes"].prod(1).sum()) // 64,
    image_processor_type="PixtralImageProcessorFast",
    do_resize=True,
    size=dict(longest_edge=40),
    patch_size=4,
    call=dict(patch_size=8),
    first=21,
    resample=3,
    **HALF,
)


run_case(
    "gemma3-plain",
    lambda px: 4 * px["pixel_values"].shape[0],
    dict(image_seq_length=4),
    image_processor_type="Gemma3ImageProcessor",
    do_resize=True,
    size=dict(height=32, width=32),
    resample=2,
    image_seq_length=4,
    **HALF,
)


run_case(
    "internvl-plain",
    lambda px: 4 * px["pixel_values"].shape[0],
    dict(image_seq_length=4),
    call=dict(crop_to_patches=True),
    image_processor_type="GotOcr2ImageProcessor",
    do_resize=True,
    size=dict(height=32, width=32),
    resample=3,
    crop_to_patches=False,
    min_patches=1,
    max_patches=4,
    **HALF,
)


def make_run(name, new=8):
    """Write image.png, and <case>/run.json: the files of a processor, a prompt with this image, and
    the tokens that transformers generates after the prompt."""
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    case, path, how = W.Vision(name), os.path.join(W.VISION, "image.png"), RUNS[name]
    y, x = np.mgrid[0:28, 0:40]
    Image.fromarray(np.stack([x * 6, y * 9, x * y], -1).astype(np.uint8)).save(path)
    with tempfile.TemporaryDirectory() as d:
        case.build(d)
        with open(os.path.join(d, "preprocessor_config.json"), "w") as f:
            json.dump(how["preprocessor"], f)
        processor = AutoImageProcessor.from_pretrained(d)
        px = processor(images=[[Image.open(path)]], return_tensors="pt", **how["call"])
        model = AutoModelForImageTextToText.from_pretrained(
            d, attn_implementation="eager", dtype=torch.float32, **EXPERTS
        ).eval()
    ids = [how["first"], 12] + [IMAGE] * how["tokens"](px) + [13, 14]
    tokens, gap = list(ids), 1e9
    with torch.no_grad():
        for _ in range(new):
            now = torch.tensor([tokens])
            if "image_grid_thw" in px:
                px["mm_token_type_ids"] = (now == IMAGE).long()
            if name.startswith("gemma3"):
                px["token_type_ids"] = (now == IMAGE).long()
                px.pop("num_crops", None)
            out = model(input_ids=now, use_cache=False, **px)
            best = out.logits[0, -1].topk(2)
            gap = min(gap, float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
    body = {k: how[k] for k in ("preprocessor", "processor")}
    body |= dict(ids=ids, new=tokens[len(ids) :], gap=gap)
    with open(os.path.join(W.VISION, name, "run.json"), "w") as f:
        json.dump(body, f, indent=1)
        f.write("\n")


A, B = {"type": "image"}, {"type": "image", "file": 1}  # image.png, image-2.png


def said(text):
    return {"type": "text", "text": text}


CHATS = {
    "one": [{"role": "user", "content": [A, said("What is this?")]}],
    "two": [{"role": "user", "content": [said("First"), B, said("then"), A, said("which?")]}],
    "turns": [
        {"role": "user", "content": [A, said("Look.")]},
        {"role": "assistant", "content": [said("Yes.")]},
        {"role": "user", "content": [B, B, said("And now?")]},
    ],
    "low": [{"role": "user", "content": [A, said("What is this?")]}],
    "text": [{"role": "user", "content": [said("No image.")]}],
}


def processor_of(name, image, tok):
    """Return the processor that transformers has for the model's class."""
    import transformers
    import tiny_vision

    class_name = tiny_vision.MODELS[name][3]
    given = {
        "Idefics3Processor": dict(image_seq_len=4),
        "LlavaProcessor": dict(
            patch_size=8, num_additional_image_tokens=1, vision_feature_select_strategy="default"
        ),
        "Gemma3Processor": dict(image_seq_length=4),
        "InternVLProcessor": dict(image_seq_length=4),
        "PixtralProcessor": dict(patch_size=4, spatial_merge_size=2),
    }.get(class_name, {})
    if class_name.startswith(("Qwen", "InternVL")):
        video = "InternVLVideoProcessor" if class_name[0] == "I" else "Qwen2VLVideoProcessor"
        given["video_processor"] = getattr(transformers, video)()
    template = tiny_vision.template_of(name)
    return getattr(transformers, class_name)(image, tok, chat_template=template, **given)


def chats_of(name, folder, chats, new):
    import tiny_vision
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageTextToText
    from transformers import PreTrainedTokenizerFast

    tiny_vision.build(folder, name=name)
    tok = PreTrainedTokenizerFast.from_pretrained(folder)
    mark = tok.convert_tokens_to_ids(tiny_vision.MODELS[name][0][0])
    model = AutoModelForImageTextToText.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    out = {}
    for key in chats:
        image = AutoImageProcessor.from_pretrained(folder)
        if key == "low":
            image.do_image_splitting = False
        p = processor_of(name, image, tok)
        text = p.apply_chat_template(CHATS[key], add_generation_prompt=True)
        files = [
            Image.open(tiny_vision.IMAGES[c.get("file", 0)])
            for m in CHATS[key]
            for c in m["content"]
            if c["type"] == "image"
        ]
        given = p(text=text, images=files or None, return_tensors="pt")
        ids = given.pop("input_ids")[0].tolist()
        given.pop("attention_mask")
        tokens, gap = list(ids), 1e9
        with torch.no_grad():
            for _ in range(new):
                now = torch.tensor([tokens])
                for kind in {"mm_token_type_ids", "token_type_ids"} & set(given):
                    given[kind] = (now == mark).long()
                got = model(input_ids=now, use_cache=False, **given)
                best = got.logits[0, -1].topk(2)
                gap = min(gap, float(best.values[0] - best.values[1]))
                tokens.append(int(best.indices[0]))
        assert mark not in tokens[len(ids) :]
        out[key] = dict(messages=CHATS[key], ids=ids, new=tokens[len(ids) :], gap=gap)
        print(f"{name} {key:20} {len(ids)} tokens, gap {gap:.3f}", flush=True)
    return out


def make_chats(new=8):
    """Write chats.json: conversations with images, their prompts, and greedy answers. Processors
    and models of transformers make them from the folders of tests/serve/tiny_vision.py. "low":
    images are not cut into tiles."""
    sys.path.insert(0, os.path.join(W.HERE, "..", "serve"))
    import tiny_vision
    from PIL import Image

    y, x = np.mgrid[0:50, 0:30]
    pixels = np.stack([255 - x * 8, x * 3 + y * 2, y * 5], -1).astype(np.uint8)
    Image.fromarray(pixels).save(tiny_vision.IMAGES[1])
    out = {}
    for name in tiny_vision.MODELS:
        chats = CHATS if name.startswith("smolvlm") else ("two", "turns")
        with tempfile.TemporaryDirectory() as d:
            out[name] = chats_of(name, d, chats, new)
    with open(os.path.join(W.VISION, "chats.json"), "w") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")


FEATURES = {"pixel_values", "pixel_attention_mask", "image_grid_thw", "image_sizes"}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or CASES:
        make(wanted, CASES[wanted])
        if wanted in RUNS:
            make_run(wanted)
    make_chats()
