"""Write small models as the packages quantise and save them to tests/golden/quant_formats/<case>: config.json, model.safetensors, logits.npz.

    make_quant_formats.py [case ...]

Needs torch, transformers 5.23 and, for the cases named after them, compressed-tensors 0.20, gptqmodel 7.7, autoawq 0.2.9, bitsandbytes 0.50,
nvidia-modelopt 0.47, amd-quark 0.13, torchao 0.18, hqq 0.2.8, optimum-quanto 0.2.7, mlx 0.32.4 with mlx-lm 0.32.2. The logits
are those of transformers in fp32 with the values that quant_format_values.py reads. These values are first compared with those that the package itself loads.
"""

import copy
import json
import os
import shutil
import sys
import tempfile
from types import SimpleNamespace

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,  # noqa: E402
    PreTrainedTokenizerFast,
)

import quant_format_values as S  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "quant_formats")
VOCAB = 96


def ids(n, seed):
    return torch.randint(3, VOCAB, (1, n), generator=torch.Generator().manual_seed(seed))


PROMPT = ids(20, 7)


def base(path, intermediate=96):
    """Build the base model. Its columns have unequal magnitudes like those of real models; with
    equal ones, column orders and channel scales would have no effect."""
    torch.manual_seed(3)
    m = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64,
            intermediate_size=intermediate,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            vocab_size=VOCAB,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            rope_theta=500.0,
        )
    )
    with torch.no_grad():
        for p in m.parameters():
            if p.ndim == 2:
                p.mul_(3 + 4 * torch.rand(p.shape[-1]))
    m.eval().to(torch.bfloat16).save_pretrained(path)
    t = Tokenizer(
        models.WordLevel(
            {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"t{i}": i for i in range(3, VOCAB)}},
            unk_token="<unk>",
        )
    )
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=t, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    ).save_pretrained(path)


def deepseek(path):
    """Build a model with experts and latent attention, whose kv_b is split by rows per head."""
    torch.manual_seed(4)
    m = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            hidden_size=96,
            intermediate_size=64,
            moe_intermediate_size=32,
            num_hidden_layers=2,
            first_k_dense_replace=1,
            num_attention_heads=3,
            num_key_value_heads=3,
            q_lora_rank=64,
            kv_lora_rank=32,
            qk_nope_head_dim=32,
            qk_rope_head_dim=16,
            v_head_dim=64,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=1,
            n_group=2,
            topk_group=1,
            vocab_size=VOCAB,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            rope_theta=500.0,
        )
    )
    with torch.no_grad():
        for n, p in m.named_parameters():
            if p.ndim >= 2:
                p.mul_(3 + 4 * torch.rand(p.shape[-1]))
    m.eval().to(torch.bfloat16).save_pretrained(path)


def save_as(folder, tensors, src, config):
    save_file(
        {k: v.contiguous() for k, v in tensors.items()},
        os.path.join(folder, "model.safetensors"),
        {"format": "pt"},
    )
    with open(os.path.join(src, "config.json")) as f:
        c = json.load(f)
    c["quantization_config"] = config
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f, indent=1)


def compressed(name, group=32, channel=False):
    def make(src, folder):
        from compressed_tensors.compressors import BaseCompressor
        from compressed_tensors.compressors.format import infer_module_format
        from compressed_tensors.quantization import QuantizationConfig, preset_name_to_scheme
        from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

        quant_format = preset_name_to_scheme(name, ["Linear"])
        a = quant_format.weights
        if channel:
            a.strategy, a.group_size = "channel", None
        elif a.group_size and a.num_bits > 2 and a.type == "int":
            a.group_size = group
        quant_format.format = infer_module_format(torch.nn.Linear, quant_format)
        comp = BaseCompressor.get_value_from_registry(
            getattr(quant_format.format, "value", quant_format.format)
        )
        out = {}
        for k, w in load_file(os.path.join(src, "model.safetensors")).items():
            if "_proj" not in k:
                out[k] = w
                continue
            w = w.float()
            x = (
                w.view(len(w), -1, a.group_size)
                if a.strategy in ("group", "tensor_group")
                else w[:, None]
            )
            lo, hi = (
                (x.amin(-1), x.amax(-1))
                if a.strategy in ("group", "tensor_group", "channel")
                else (w.amin().view(1), w.amax().view(1))
            )
            parts = {"weight": w}
            whole = (
                generate_gparam(w.amin(), w.amax()).view(1)
                if a.strategy == "tensor_group"
                else None
            )
            if whole is not None:
                parts["weight_global_scale"] = whole
            parts["weight_scale"], z = calculate_qparams(lo, hi, a, global_scale=whole)
            if not a.symmetric:
                parts["weight_zero_point"] = z
            for s, v in comp.compress(parts, quant_format).items():
                out[k.removesuffix("weight") + s] = (
                    v.to(torch.bfloat16) if s == "weight_scale" and v.dtype == torch.float32 else v
                )
        q = QuantizationConfig(
            config_groups={"group_0": quant_format},
            format=quant_format.format,
            ignore=["lm_head"],
            quantization_status="compressed",
        )
        save_as(folder, out, src, json.loads(q.model_dump_json()))
        from transformers import CompressedTensorsConfig

        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            quantization_config=CompressedTensorsConfig(run_compressed=False),
        ).float(), 2e-2

    return make


def gptq(bits, sym, form, method="gptq"):
    def make(src, folder):
        from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
        from gptqmodel.quantization.config import AWQConfig

        kw = dict(
            bits=bits, group_size=32, sym=sym, format=form, device="cpu", offload_to_disk=False
        )
        m = GPTQModel.load(
            src, QuantizeConfig(desc_act=False, **kw) if method == "gptq" else AWQConfig(**kw)
        )
        m.quantize(
            [
                {"input_ids": ids(48, 100 + i)[0].tolist(), "attention_mask": [1] * 48}
                for i in range(12)
            ],
            batch_size=1,
        )
        m.save(folder)
        return GPTQModel.load(
            folder, device="cpu", backend=BACKEND.TORCH, dtype=torch.float16
        ).model.float(), 1e-6 if method == "gptq" else 2e-3  # AWQ's layer multiplies in f16

    return make


def awq_gemv(src, folder):
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer

    m = AutoAWQForCausalLM.from_pretrained(src, device_map="cpu")
    m.quantize(
        AutoTokenizer.from_pretrained(src),
        quant_config={"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "gemv"},
        calib_data=[ids(63, i)[0].tolist() for i in range(16)],
        max_calib_samples=8,
        max_calib_seq_len=64,
    )
    m.save_quantized(folder)
    return None, 0  # the package cannot run the model without a GPU


def fp8(src, folder):
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    op = Fp8Quantize(
        SimpleNamespace(
            quantization_config=SimpleNamespace(weight_block_size=(32, 32), scale_fmt="float")
        )
    )
    out = {}
    for k, v in load_file(os.path.join(src, "model.safetensors")).items():
        out.update(op._quantize_one(k, v) if "_proj" in k else {k: v})
    save_as(
        folder,
        out,
        src,
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [32, 32],
        },
    )
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).float(), 2e-2


def four_bits(kind, nested):
    def make(src, folder):
        from transformers import BitsAndBytesConfig

        m = AutoModelForCausalLM.from_pretrained(
            src,
            quantization_config=BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type=kind,
                bnb_4bit_use_double_quant=nested,
                bnb_4bit_compute_dtype="float32",
                bnb_4bit_quant_storage="bfloat16" if nested else "uint8",
            ),
            dtype=torch.float32,
            device_map="cpu",
        )
        m.save_pretrained(folder)
        import bitsandbytes.functional as F
        from bitsandbytes.backends.default.ops import (
            _dequantize_4bit_compute as values,
        )  # on all devices except CPUs the layout starts a block at each row

        ours = S.dense(folder)
        for name, layer in m.named_modules():
            if name.endswith("_proj"):
                s = layer.weight.quant_state
                peak = (
                    F.dequantize_blockwise(s.absmax, s.state2) + s.offset if s.nested else s.absmax
                )
                theirs = values(
                    layer.weight.data.reshape(-1).view(torch.uint8),
                    peak,
                    s.code,
                    s.blocksize,
                    s.shape,
                    torch.float32,
                )
                assert (theirs.numpy() == ours[name + ".weight"]).all(), name
        # not compared: on a processor with bf16 multiplication the package computes in bf16
        return None, 0

    return make


def modelopt(config):
    def make(src, folder):
        import modelopt.torch.quantization as mtq
        from modelopt.torch.export import export_hf_checkpoint

        m = AutoModelForCausalLM.from_pretrained(src, dtype=torch.bfloat16)
        c = copy.deepcopy(getattr(mtq, config))
        for rule in c["quant_cfg"] if config.startswith("INT4") else []:
            if "block_sizes" in (rule.get("cfg") or {}):
                rule["cfg"]["block_sizes"][-1] = 32
        mtq.quantize(m, c, lambda q: [q(ids(64, i)) for i in range(4)])
        export_hf_checkpoint(m, export_dir=folder)
        return None, 0  # not compared, because the package also quantises activations

    return make


def torchao(kind):
    def make(src, folder):
        import torchao.quantization as Q
        from torchao.quantization.granularity import PerGroup
        from transformers import TorchAoConfig

        c = (
            Q.Int8WeightOnlyConfig()
            if kind == "int8"
            else Q.IntxWeightOnlyConfig(
                weight_dtype=torch.int4,
                granularity=PerGroup(32),
                mapping_type=Q.MappingType.ASYMMETRIC,
            )
        )
        m = AutoModelForCausalLM.from_pretrained(
            src, quantization_config=TorchAoConfig(c), dtype=torch.float32, device_map="cpu"
        )
        m.save_pretrained(folder)
        ours = S.dense(folder)
        for name, layer in m.named_modules():
            if name.endswith("_proj"):
                assert np.allclose(
                    layer.weight.dequantize().float().numpy(),
                    ours[name + ".weight"],
                    rtol=1e-6,
                    atol=0,
                ), name
        return None, 0

    return make


def three_and_six(name, layer):
    return (
        {"bits": 6, "group_size": 32}
        if "down_proj" in name or "embed" in name
        else hasattr(layer, "to_quantized")
    )


def mlx(**how):
    def make(src, folder):
        import mlx.core as mx
        from mlx_lm import convert, load

        os.rmdir(folder)
        with open(os.path.join(src, "config.json")) as f:
            c = json.load(f)
        with open(os.path.join(src, "config.json"), "w") as f:
            json.dump({**c, "rope_theta": 500.0}, f)  # the package reads rope_theta from this key
        mx.set_default_device(mx.cpu)
        convert(src, mlx_path=folder, quantize=True, **how)
        m, _ = load(folder)
        m.set_dtype(mx.float32)
        got = np.array(m(mx.array(PROMPT.numpy())).astype(mx.float32))
        return (lambda _: SimpleNamespace(logits=torch.from_numpy(got))), 1e-5

    return make


def hqq(bits):
    return lambda src, folder: hqq_folder(src, folder, bits)


def hqq_folder(src, folder, bits):
    from hqq.core.quantize import BaseQuantizeConfig
    from hqq.models.hf.base import AutoHQQHFModel

    m = AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32)
    AutoHQQHFModel.quantize_model(
        m,
        quant_config=BaseQuantizeConfig(nbits=bits, group_size=64, axis=1),
        compute_dtype=torch.float32,
        device="cpu",
    )
    AutoHQQHFModel.save_to_safetensors(m, folder)
    with open(os.path.join(folder, "config.json")) as f:
        c = json.load(f)
    # the package normally stores this key in a torch file
    c["quantization_config"] = {"quant_method": "hqq"}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(c, f)
    ours = S.dense(folder)
    for name, layer in m.named_modules():
        if name.endswith("_proj"):
            assert (layer.dequantize().numpy() == ours[name + ".weight"]).all(), name
    return None, 0


def quanto(kind):
    def make(src, folder):
        import optimum.quanto as Q

        m = Q.QuantizedModelForCausalLM.quantize(
            AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32),
            weights=getattr(Q, kind),
            exclude="lm_head",
        )
        m.save_pretrained(folder)
        ours = S.dense(folder)
        for name, layer in m._wrapped.named_modules():
            if name.endswith("_proj"):
                assert np.allclose(
                    layer.weight.dequantize().detach().float().numpy(),
                    ours[name + ".weight"],
                    rtol=1e-6,
                    atol=1e-7,
                ), name
        return m._wrapped, 1e-5

    return make


def quark(spec, **kw):
    """Export with AMD Quark, and compare with Quark's own import of the folder."""

    def make(src, folder):
        from quark.torch import ModelQuantizer, export_safetensors
        from quark.torch.quantization import config as Q

        m = AutoModelForCausalLM.from_pretrained(src, dtype=torch.float32)
        c = Q.config.QConfig(
            global_quant_config=Q.config.QLayerConfig(
                weight=getattr(Q.config, spec)(**kw).to_quantization_spec()
            ),
            exclude=["lm_head"],
        )
        q = ModelQuantizer(c)
        m = q.freeze(q.quantize_model(m, [ids(48, i) for i in range(4)]))
        with torch.no_grad():
            got = m(PROMPT).logits
        export_safetensors(m, folder)
        return (lambda _: SimpleNamespace(logits=got)), 1e-5

    return make


def fp8_powers(src, folder):
    """scale_fmt ue8m0: block factors are powers of two."""
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    op = Fp8Quantize(
        SimpleNamespace(
            quantization_config=SimpleNamespace(weight_block_size=(32, 32), scale_fmt="ue8m0")
        )
    )
    out = {}
    for k, v in load_file(os.path.join(src, "model.safetensors")).items():
        out.update(op._quantize_one(k, v) if "_proj" in k else {k: v})
    save_as(
        folder,
        out,
        src,
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
        },
    )
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).float(), 2e-2


def metal(src, folder):
    """Write transformers' own affine form. Its kernels need a Mac, but its dequantiser runs in
    torch."""
    from transformers.integrations import metal_quantization as M

    out = {}
    for k, v in load_file(os.path.join(src, "model.safetensors")).items():
        if "_proj" not in k:
            out[k] = v
            continue
        packed = M._affine_quantize_tensor(v, 32, 4)
        for s, x in zip(("weight", "scales", "qbiases"), packed):
            out[k.removesuffix("weight") + s] = x
    save_as(folder, out, src, {"quant_method": "metal", "bits": 4, "group_size": 32})
    ours = S.dense(folder)
    for k in [k for k in out if k.endswith(".scales")]:
        m = k.removesuffix(".scales")
        theirs = M._affine_dequantize_tensor(
            *(out[f"{m}.{s}"] for s in ("weight", "scales", "qbiases")), 32, 4
        )
        assert np.allclose(theirs.float().numpy(), ours[m + ".weight"], rtol=1e-6, atol=1e-6), m
    return None, 0


def bitnet(src, folder):
    """Pack by transformers, whose layer also rounds activations."""
    from transformers.integrations.bitnet import pack_weights, unpack_weights

    out = {}
    for k, v in load_file(os.path.join(src, "model.safetensors")).items():
        if "_proj" not in k:
            out[k] = v
            continue
        scale = 1 / v.float().abs().mean().clamp(min=1e-5)
        q = (v.float() * scale).round().clamp(-1, 1).to(torch.int8)
        out[k] = pack_weights(q.clone())
        out[k + "_scale"] = scale.to(torch.bfloat16).view(1)
        assert torch.equal(unpack_weights(out[k], torch.float32), q.float())
    save_as(
        folder,
        out,
        src,
        {"quant_method": "bitnet", "linear_class": "bitlinear", "quantization_mode": "offline"},
    )
    ours = S.dense(folder)
    for k in [k for k in out if k.endswith(".weight_scale")]:
        m = k.removesuffix("_scale")
        assert (
            ours[m] == (unpack_weights(out[m], torch.float32) / out[k].float()).numpy()
        ).all(), m
    return None, 0


def int8(src, folder):
    from transformers import BitsAndBytesConfig

    m = AutoModelForCausalLM.from_pretrained(
        src,
        quantization_config=BitsAndBytesConfig(load_in_8bit=True),
        dtype=torch.float32,
        device_map="cpu",
    )
    m.save_pretrained(folder)
    return m, 8e-2  # the tolerance is large because the package also rounds activations to int8


CASES = {
    "ct-w4a16": compressed("W4A16"),
    "ct-w4a16-asym": compressed("W4A16_ASYM"),
    "ct-w3a16": compressed("W3A16"),
    "ct-w8a16": compressed("W8A16"),
    "ct-int8": compressed("INT8"),
    "ct-fp8": compressed("FP8"),
    "ct-w4a16-channel": compressed("W4A16", channel=True),
    "gptq-4": gptq(4, True, "gptq"),
    "gptq-4-asym-v2": gptq(4, False, "gptq_v2"),
    "gptq-3": gptq(3, True, "gptq"),
    "gptq-2-asym": gptq(2, False, "gptq_v2"),
    "fp8-deepseek": fp8,
    "gptq-8": gptq(8, True, "gptq"),
    "awq-gemm": gptq(4, False, "gemm", "awq"),
    "awq-gemv": awq_gemv,
    "fp8-blocks": fp8,
    "bnb-int8": int8,
    "ct-nvfp4": compressed("NVFP4A16"),
    "ct-mxfp4": compressed("MXFP4A16"),
    "ct-mxfp8": compressed("MXFP8A16"),
    "modelopt-nvfp4": modelopt("NVFP4_DEFAULT_CFG"),
    "modelopt-fp8": modelopt("FP8_DEFAULT_CFG"),
    "modelopt-int4-awq": modelopt("INT4_AWQ_CFG"),
    "torchao-int8": torchao("int8"),
    "torchao-int4": torchao("int4"),
    "hqq-4": hqq(4),
    "hqq-3": hqq(3),
    "mlx-4": mlx(q_bits=4, q_group_size=64),
    "mlx-mixed": mlx(q_bits=3, q_group_size=32, quant_predicate=three_and_six),
    "mlx-mxfp4": mlx(q_mode="mxfp4"),
    "mlx-nvfp4": mlx(q_mode="nvfp4"),
    "mlx-mxfp8": mlx(q_mode="mxfp8"),
    "quanto-int4": quanto("qint4"),
    "quanto-int2": quanto("qint2"),
    "quanto-int8": quanto("qint8"),
    "quark-int4": quark("Int4PerGroupSpec", ch_axis=1, group_size=32),
    "quark-uint4": quark("Uint4PerGroupSpec", ch_axis=1, group_size=32),
    "quark-fp8": quark("FP8E4M3PerTensorSpec", observer_method="min_max", is_dynamic=False),
    "quark-int8": quark("Int8PerChannelSpec", ch_axis=0, is_dynamic=False),
    "quark-mxfp4": quark("OCP_MXFP4Spec", ch_axis=-1, is_dynamic=False),
    "fp8-powers": fp8_powers,
    "metal-4": metal,
    "bitnet": bitnet,
    "bnb-nf4": four_bits("nf4", True),
    "bnb-fp4": four_bits("fp4", False),
}


def round_inputs(model, config):
    """Round the inputs of linear layers as compressed-tensors does per token."""
    from compressed_tensors.quantization import QuantizationArgs
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**config["config_groups"]["group_0"]["input_activations"])

    def hook(_, inputs):
        x = inputs[0].reshape(-1, inputs[0].shape[-1])
        scale, zero = calculate_qparams(x.amin(-1, keepdim=True), x.amax(-1, keepdim=True), args)
        return (fake_quantize(x, scale, zero, args).reshape(inputs[0].shape),)

    for name, layer in model.named_modules():
        if name.endswith("_proj"):
            layer.register_forward_pre_hook(hook)


def logits(folder):
    """Compute logits by transformers in fp32 with the dequantised values of the folder. "declared":
    with activations rounded as the folder declares, if it declares rounding per token."""
    plain = folder + "-plain"
    os.makedirs(plain)
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config.pop("quantization", None)
    quant = config.pop("quantization_config", None) or {}
    with open(os.path.join(plain, "config.json"), "w") as f:
        json.dump(config, f)
    save_file(
        {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in S.dense(folder).items()},
        os.path.join(plain, "model.safetensors"),
        {"format": "pt"},
    )
    m, left = AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, output_loading_info=True
    )
    assert not left["missing_keys"] and not left["unexpected_keys"], left
    m = m.float().eval()
    with torch.no_grad():
        out = {"logits": m(PROMPT).logits[0].numpy()}
        groups = quant.get("config_groups", {}).get("group_0", {})
        if (groups.get("input_activations") or {}).get("strategy") == "token":
            round_inputs(m, quant)
            out["declared"] = m(PROMPT).logits[0].numpy()
    return out


def main(names):
    with tempfile.TemporaryDirectory() as tmp:
        # run in a temporary directory, because packages write logs to the working directory
        os.chdir(tmp)
        for name in names or CASES:
            src = os.path.join(tmp, f"base-{name}")
            if name == "fp8-deepseek":
                deepseek(src)
            else:
                base(
                    src, 128 if name.startswith(("awq", "mlx-4")) else 96
                )  # AutoAWQ processes 64 rows at a time; MLX does not quantise incomplete groups
            folder = os.path.join(tmp, name)
            os.makedirs(folder, exist_ok=True)
            library, within = CASES[name](src, folder)
            ours = logits(folder)
            if library is not None:
                theirs = library(PROMPT).logits[0].detach().float().numpy()
                off = np.linalg.norm(ours["logits"] - theirs) / np.linalg.norm(theirs)
                assert off <= within, f"{name}: {off:.2e} from the package's own logits"
                print(f"{name}: {off:.1e} from the package's own logits")
            to = os.path.join(OUT, name)
            shutil.rmtree(to, ignore_errors=True)
            os.makedirs(to)
            for f in os.listdir(folder):
                if f == "config.json" or f.endswith(".safetensors"):
                    shutil.copy(
                        os.path.join(folder, f),
                        os.path.join(
                            to, "config.json" if f == "config.json" else "model.safetensors"
                        ),
                    )
            np.savez(os.path.join(to, "logits.npz"), prompt=PROMPT[0].numpy(), **ours)


if __name__ == "__main__":
    main(sys.argv[1:])
