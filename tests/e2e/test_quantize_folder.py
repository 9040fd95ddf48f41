"""llmc quantize of a folder: safetensors in the layout of compressed-tensors, read here by the
definition of its packing, and by llmc."""

import json
import os
import sys

import numpy as np
import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
import tiny_model  # noqa: E402
import weights  # noqa: E402

WIDER = {72: 288, 100: 512, 24: 96}  # 288 columns: a multiple of 32, not of 128
SMALL = ["--window", "64", "--windows", "12", "-t", "2", "-q"]


@pytest.fixture(scope="module", params=["f32", "bf16"])
def model(request, tmp_path_factory):
    """llama-smol (nine heads, three kv heads, tied embedding) with larger matrices."""
    folder = str(tmp_path_factory.mktemp("folder") / "model16")
    tiny_model.build(folder)
    g = weights.Golden("llama-smol")
    config = json.load(open(f"{folder}/config.json"))
    config.update(hidden_size=288, intermediate_size=512)
    json.dump(config, open(f"{folder}/config.json", "w"))
    shapes = {
        n: [config["vocab_size"] if "embed" in n else WIDER.get(s[0], s[0])]
        + [WIDER[k] for k in s[1:]]
        for n, s in g.tensors.items()
    }
    weights.write_safetensors(
        f"{folder}/model.safetensors",
        {n: weights.tensor(g.seed, n, s) for n, s in shapes.items()},
        request.param,
    )
    return folder


def tensors(folder):
    data = open(f"{folder}/model.safetensors", "rb").read()
    n = int.from_bytes(data[:8], "little")
    head, data = json.loads(data[8 : 8 + n]), data[8 + n :]
    kinds = {
        "F32": "<f4",
        "F16": "<f2",
        "BF16": "<u2",
        "I32": "<i4",
        "I64": "<i8",
        "F8_E4M3": "u1",
        "U8": "u1",
    }
    out, end = {}, 0
    for name, t in head.items():
        if name == "__metadata__":
            continue
        assert t["data_offsets"][0] == end
        end = t["data_offsets"][1]
        x = np.frombuffer(data[slice(*t["data_offsets"])], kinds[t["dtype"]]).reshape(t["shape"])
        out[name] = (x.astype(np.uint32) << 16).view(np.float32) if t["dtype"] == "BF16" else x
    assert end == len(data)
    return out


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6] + [-0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.array(
    [
        (-1 if b >> 7 else 1)
        * (2.0 ** ((b >> 3 & 15) - 7) * (1 + (b & 7) / 8) if b >> 3 & 15 else (b & 7) / 8 * 2.0**-6)
        for b in range(256)
    ]
)


def matrix(t, name, kind):
    """Decode a matrix: codes from the low bits of each word up, offset by half of their range; or
    e4m3."""
    scale = t[f"{name}_scale"].astype(np.float64)
    if kind == "mxfp4":
        packed = t[f"{name}_packed"]
        codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
        return E2M1[codes] * np.repeat(2 ** (scale - 127), 32, 1)
    if kind == "fp8":
        return E4M3[t[name]] * scale
    bits = 4 if kind == "int4" else 8
    words = t[f"{name}_packed"].view(np.uint32)
    codes = (words[..., None] >> np.arange(0, 32, bits, dtype=np.uint32) & (2**bits - 1)).reshape(
        len(words), -1
    ).astype(np.int64) - 2 ** (bits - 1)
    assert list(t[f"{name}_shape"]) == list(codes.shape)
    return codes * np.repeat(scale, codes.shape[1] // scale.shape[1], 1)


KINDS = ["int4", "int8", "fp8", "mxfp4"]
FORMATS = {"fp8": "float-quantized", "mxfp4": "mxfp4-pack-quantized"}


def limit(x, kind):
    """Return the squared error of even steps over the range of each group with unrounded scales
    (bf16 has 8 bits); e4m3: half of the last of three mantissa bits."""
    if kind == "fp8":
        return (2.0**-4 * np.abs(x) + np.abs(x).max(1, keepdims=True) * 2.0**-18) ** 2
    if (
        kind == "mxfp4"
    ):  # rule of the format: the exponent of the largest value, less two; beyond 6 values saturate
        g = x.reshape(-1, 32)
        scale = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(g).max(1, keepdims=True), 1e-30))) - 2)
        return (np.min(np.abs(np.abs(g / scale)[..., None] - E2M1[:8]), -1) * scale) ** 2
    top, g = (7, x.reshape(-1, 32)) if kind == "int4" else (127, x)
    step = np.abs(g).max(1, keepdims=True) / top
    return (1 if kind == "int4" else 1.03) * (np.round(g / step) * step - g) ** 2


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_follow_the_layout(llmc, model, tmp_path, kind):
    out = tmp_path / "out"
    llmc("quantize", model, f"{out}/", "--type", kind, "--method", "nearest", "-t", "2", "-q")
    before, after = tensors(model), tensors(out)
    q = json.load(open(out / "config.json"))["quantization_config"]
    w = q["config_groups"]["group_0"]["weights"]
    assert q["quant_method"] == "compressed-tensors" and q["format"] == FORMATS.get(
        kind, "pack-quantized"
    )
    assert (w["num_bits"], w.get("group_size"), w["strategy"]) == (
        (4, 32, "group") if kind in ("int4", "mxfp4") else (8, None, "channel")
    )
    assert (
        "lm_head" in q["ignore"] and "model.embed_tokens" in q["ignore"] and len(q["ignore"]) == 2
    )
    for name, x in before.items():
        if "_proj" not in name:
            assert (after[name] == x).all()
            continue
        got, x = matrix(after, name, kind), x.astype(np.float64)
        assert ((got - x) ** 2).sum() < limit(x, kind).sum(), name
    assert sorted(os.listdir(out)) == sorted(os.listdir(model)) and sorted(
        os.listdir(tmp_path)
    ) == ["out"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_llmc_reads_the_same_values(llmc, model, tmp_path, kind):
    """A folder with the dequantised values gives the same logits."""
    out, plain = tmp_path / "out", tmp_path / "plain"
    if kind == "mxfp4" and b'"F32"' in open(f"{model}/model.safetensors", "rb").read(4096):
        pytest.skip("scales of mxfp4 have no type that the matrix could decide")
    llmc("quantize", model, out, "--type", kind, "--method", "weighted", *SMALL)
    t, names = tensors(out), tensors(model)
    plain.mkdir()
    for f in os.listdir(model):
        if f != "model.safetensors":
            (plain / f).write_bytes(open(f"{model}/{f}", "rb").read())
    weights.write_safetensors(
        plain / "model.safetensors",
        {n: matrix(t, n, kind).astype(np.float32) if "_proj" in n else t[n] for n in names},
        "f32",
    )
    r = llmc.json(
        "eval", out, "--reference", plain, "--window", "64", "--windows", "2", "--arch", "generic"
    )
    assert r["kl"]["mean"] < 1e-4, (
        r
        # this model has large logits, and kernels round activations to 16-bit integers; wrong codes
        # give more than 1
    )


@pytest.mark.sample(1)
def test_compensation_is_nearer(llmc, model, tmp_path):
    kl = {}
    for method in ("nearest", "awq", "gptq"):
        llmc("quantize", model, tmp_path / method, "--method", method, *SMALL)
        kl[method] = llmc.json(
            "eval",
            tmp_path / method,
            "--reference",
            model,
            "--text",
            "configs/texts/calibration.txt",
            "--window",
            "64",
            "--windows",
            "6",
        )["kl"]["mean"]
    assert kl["gptq"] < 0.8 * kl["nearest"] and kl["awq"] < kl["nearest"], kl
    llmc("quantize", model, tmp_path / "again", *SMALL[:-3], "-t", "1")
    assert (tmp_path / "again/model.safetensors").read_bytes() == (
        tmp_path / "gptq/model.safetensors"
    ).read_bytes()


def test_mistakes_are_sentences(llmc, model, tmp_path):
    out = tmp_path / "out"
    llmc("quantize", model, out, "--type", "q4_k", code=1)
    assert "int4 int8 fp8 mxfp4" in llmc.err
    llmc("quantize", model, out, "--group", "48", code=1)
    assert "32 or 128" in llmc.err
    llmc("quantize", model, model, code=1)
    assert "not overwritten" in llmc.err
    llmc("quantize", model, tmp_path / "once", "--method", "nearest", "-q")
    llmc("quantize", tmp_path / "once", out, "--method", "nearest", code=1)
    assert "quantised already" in llmc.err and not out.exists()
