"""Quantised safetensors folders as their packages write them (tests/golden/quant_formats/), against
transformers on the values that these packages read. Inconsistent folders are refused. Expected
logits: tests/golden/make_quant_formats.py.
It is one file because all tests change the same fixtures.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from golden_run import LLMC, ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import quant_format_values as S  # noqa: E402
import weights  # noqa: E402
from waiting import HANG  # noqa: E402

FOLDER = os.path.join(ROOT, "tests", "golden", "quant_formats")
CASES = sorted(os.listdir(FOLDER))
TUNED = [
    "gptq-4",
    "fp8-blocks",
    "ct-w8a16",
    "ct-w4a16-asym",
    "ct-mxfp4",
    "modelopt-nvfp4",
    "bnb-nf4",
    "gptq-3",
    "mlx-4",
    "quark-uint4",
    "bitnet",
]  # cases on kernels: one per type, since compiling takes time
# relative to the range of the logits: exact values; int16 activations with integer weights
REFERENCE, KERNELS = 1e-5, 1e-3


def run(folder, tmp, prompt, *args):
    out = str(tmp / "out.npy")
    p = subprocess.run(
        [
            LLMC,
            "run",
            str(folder),
            "--tokens",
            ",".join(map(str, prompt)),
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            "2",
            "--threads",
            "2",
            "--artifact",
            str(tmp / "artifact"),
            "--set",
            "kv.dtype=f32",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    return (np.load(out) if p.returncode == 0 else None), p.stderr


def error(got, want):
    assert got.shape == want.shape and np.isfinite(got).all()
    return float(np.abs(got - want).max() / np.ptp(want))


@pytest.mark.sample(9)
@pytest.mark.parametrize("name", CASES)
def test_a_folder_equals_transformers_on_its_values(name, tmp_path):
    g = np.load(os.path.join(FOLDER, name, "logits.npz"))
    runs = (
        [(["--device", "ref"], REFERENCE)]
        + [([], KERNELS)] * (name in TUNED)
        + [(["--arch", "generic"], KERNELS)] * (name in TUNED[:2])
    )
    for args, within in runs:
        got, err = run(os.path.join(FOLDER, name), tmp_path, g["prompt"], *args)
        assert got is not None, err
        e = error(got, g["logits"])
        assert e <= within, f"{args}: off by {e:.2e} of the range"
        assert "warning" not in err, err


@pytest.mark.parametrize("arch", [[], ["--arch", "generic"]])
def test_declared_activations_run_in_bytes(arch, tmp_path):
    """int8 activations per token (W8A8): a scale per block of 32, so the error is below that of
    compressed-tensors' own rounding per token. activations: i16 switches it off."""
    g = np.load(os.path.join(FOLDER, "ct-int8", "logits.npz"))
    folder = os.path.join(FOLDER, "ct-int8")
    got, err = run(folder, tmp_path, g["prompt"], *arch)
    assert got is not None, err

    def rms(y):
        return np.sqrt(((y - g["logits"]).astype(np.float64) ** 2).mean())

    assert 0.1 * rms(g["declared"]) < rms(got) < rms(g["declared"])
    if not arch:
        got, _ = run(folder, tmp_path, g["prompt"], "--set", "activations=i16")
        assert error(got, g["logits"]) <= KERNELS


DECLARED = {
    "ct-int8": "i8",
    "ct-fp8": "f8",
    "fp8-blocks": "f8",
    "fp8-deepseek": "f8",
    "modelopt-fp8": "f8",
    "ct-w8a16": "none",
    "ct-mxfp8": "none",
    "quark-int8": "none",
    "torchao-int8": "none",
    "modelopt-nvfp4": "none",
    "bnb-int8": "none",
}


def imported(folder):
    p = subprocess.run(
        [LLMC, "import", str(folder)], capture_output=True, text=True, timeout=HANG, check=True
    )
    m = re.search(r"^activations_declared: (\w+)", p.stdout, re.M)
    return m[1] if m else "none"


@pytest.mark.parametrize("name", DECLARED)
def test_the_import_reads_what_a_checkpoint_declares(name):
    assert imported(os.path.join(FOLDER, name)) == DECLARED[name]


@pytest.mark.parametrize(
    "name, path, value, want",
    [
        ("quark-int8", "global_quant_config.input_tensors", {"dtype": "int8"}, "i8"),
        ("quark-fp8", "global_quant_config.input_tensors", {"dtype": "fp8_e4m3"}, "f8"),
        ("torchao-int8", "quant_type.default._type", "Int8DynamicActivationInt8WeightConfig", "i8"),
        ("ct-int8", "config_groups.group_0.input_activations", None, "none"),
        ("ct-int8", "config_groups.group_0.input_activations.num_bits", 4, "none"),
        ("ct-int8", "config_groups.group_0.input_activations.dynamic", False, "i8"),
        ("fp8-blocks", "activation_scheme", "static", "f8"),
    ],
)
def test_other_declarations(name, path, value, want, tmp_path):
    folder = shutil.copytree(os.path.join(FOLDER, name), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    at = config["quantization_config"]
    *parents, last = path.split(".")
    for key in parents:
        at = at[key]
    at[last] = value
    (folder / "config.json").write_text(json.dumps(config))
    assert imported(folder) == want


@pytest.mark.parametrize(
    "name, args, want",
    [
        ("ct-int8", [], "i8 (declared by the checkpoint), in all steps"),
        ("ct-int8", ["--arch", "sm_89"], "i8 .*, in 4 of 4 matmuls .* more than 64 rows"),
        ("ct-int8", ["--arch", "sm_75"], "i8 .*; 16 bits on sm_75"),
        ("ct-int8", ["--set", "activations=i16"], None),
        ("ct-int8", ["--quantize", "q8_0"], None),
        ("ct-int8", ["--quantize", "q8_0", "--set", "activations=i8"], "i8, in all steps"),
        ("ct-int8", ["--set", "storage.default=q8_0", "--set", "storage.rules=[]"], None),
        ("fp8-blocks", [], "f8 .*; CPUs use i16 instead"),
        ("fp8-blocks", ["--arch", "sm_89"], "f8 .*, in 4 of 4 matmuls"),
        ("fp8-blocks", ["--arch", "sm_80"], "f8 .*; 16 bits on sm_80"),
    ],
)
def test_the_plan_shows_which_activations_run(name, args, want):
    if "--arch" in args:
        args = ["--device", "cuda", *args]
    p = subprocess.run(
        [LLMC, "plan", os.path.join(FOLDER, name), *args],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    m = re.search(r"^activations: (.*)", p.stdout, re.M)
    assert re.match(want.replace("(", r"\(").replace(")", r"\)"), m[1]) if want else m is None, (
        p.stdout
    )


# formats whose blocks span all columns of a head's share of o; they are never split
WHOLE = {
    "bnb-int8",
    "ct-fp8",
    "ct-int8",
    "ct-w4a16-channel",
    "modelopt-fp8",
    "torchao-int8",
    "fp8-deepseek",
    "quanto-int8",
}


@pytest.mark.parametrize(
    "name",
    CASES
    if os.environ.get("LLMC_CHECK_ALL")
    else ["awq-gemm", "awq-gemv", "gptq-4", "fp8-blocks", "ct-w4a16-channel"],
)
def test_groups_and_blocks_are_dealt_to_ranks(name, tmp_path):
    g = np.load(os.path.join(FOLDER, name, "logits.npz"))
    got, err = run(
        os.path.join(FOLDER, name), tmp_path, g["prompt"], "--device", "ref", "--tp", "2"
    )
    if name in WHOLE:
        assert got is None and re.search(
            r"blocks of 128 columns of o .* which gives shares for only 1 of 2 ranks|s_down has 1 block of 32 columns",
            err,
        ), err
    else:
        assert got is not None and error(got, g["logits"]) <= REFERENCE, err


def eetq(q):
    """Convert int8 [out, in] to [in, out] as EETQ stores it for sm_75 to sm_89.

    Each 16 inputs are in the order 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15. Tiles of 64 inputs
    alternate between two outputs. Values are offset by 128, and bytes 1 and 2 of each four are
    swapped."""
    n, k = q.shape
    v = q.reshape(n, k // 16, 16)[..., [0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]]
    v = v.reshape(n // 2, 2, k // 64, 64).transpose(0, 2, 1, 3).reshape(-1, 4)[:, [0, 2, 1, 3]]
    return (v.astype(np.int32) + 128).astype(np.uint8).view(np.int8).reshape(k, n)


def test_eetq_is_int8_in_another_order(tmp_path):
    """EETQ's own kernels need a GPU. The formula undoes its order here, and the oracle is the same
    codes stored in plain order."""
    g = np.load(os.path.join(FOLDER, "bnb-int8", "logits.npz"))
    t, logits = S.read(os.path.join(FOLDER, "bnb-int8", "model.safetensors")), []
    with open(os.path.join(FOLDER, "bnb-int8", "config.json")) as f:
        config = json.load(f)
    for stored in (False, True):
        folder = tmp_path / str(stored)
        folder.mkdir()
        out = dict(t)
        for k in t:
            if k.endswith(".SCB") and t[k[:-3] + "weight"][1].shape[1] % 64 == 0:
                m = k[:-3]
                scale = (t[k][1] / 127).astype(np.float16)
                del out[k]
                if stored:
                    out[m + "weight"], out[m + "weight_scales"] = (
                        ("I8", eetq(t[m + "weight"][1])),
                        ("F16", scale),
                    )
                else:
                    out[m + "weight_scale"] = ("F16", scale[:, None])
        config["quantization_config"] = (
            {"quant_method": "eetq", "weights": "int8"}
            if stored
            else {"quant_method": "compressed-tensors"}
        )
        (folder / "config.json").write_text(json.dumps(config))
        S.write(
            str(folder / "model.safetensors"),
            {k: v for k, v in out.items() if not k.endswith("weight_format")},
        )
        got, err = run(folder, folder, g["prompt"], "--device", "ref")
        assert got is not None, err
        logits.append(got)
    assert (logits[0] == logits[1]).all() and error(logits[0], g["logits"]) < 1e-2


def swapped_nibbles(x):
    b = x.view(np.uint8)
    return (b << 4 | b >> 4).view(x.dtype).reshape(x.shape)


# one change in a well-formed folder: the result must change, or the test above is blind to it
MISTAKES = [
    ("gptq-4", "qweight", swapped_nibbles),
    ("gptq-4", "scales", lambda x: x[::-1]),
    ("gptq-4-asym-v2", "qzeros", lambda x: x ^ 1),
    ("ct-w4a16-asym", "weight_zero_point", lambda x: x ^ 1),
    ("ct-w4a16", "weight_packed", swapped_nibbles),
    ("awq-gemm", "qzeros", lambda x: x ^ 1),
    ("awq-gemm", "qweight", lambda x: x[::-1]),
    ("fp8-blocks", "weight_scale_inv", lambda x: x.T.reshape(x.shape)),
    ("bnb-int8", "SCB", lambda x: x[::-1]),
    ("ct-mxfp4", "weight_packed", swapped_nibbles),
    ("ct-mxfp4", "weight_scale", lambda x: x.T.reshape(x.shape)),
    ("ct-nvfp4", "weight_scale", lambda x: x[::-1]),
    ("modelopt-nvfp4", "weight_scale_2", lambda x: x * 2),
    ("bnb-nf4", "weight", swapped_nibbles),
    ("bnb-nf4", "weight.absmax", lambda x: x[::-1]),
    ("bnb-nf4", "weight.quant_map", lambda x: x[::-1]),
    ("bnb-nf4", "weight.nested_quant_map", lambda x: x[::-1]),
    ("bnb-fp4", "weight.absmax", lambda x: x[::-1]),
    ("modelopt-int4-awq", "weight", swapped_nibbles),
    ("modelopt-int4-awq", "pre_quant_scale", lambda x: x[::-1]),
    ("torchao-int4", "_weight_zero_point", lambda x: x + 1),
    ("torchao-int8", "_weight_scale", lambda x: x[::-1]),
    ("hqq-4", "W_q", swapped_nibbles),
    ("hqq-4", "zero", lambda x: x + 1),
    ("modelopt-fp8", "weight_scale", lambda x: x * 2),
    ("mlx-4", "weight", swapped_nibbles),
    ("mlx-4", "scales", lambda x: x[::-1]),
    ("mlx-4", "biases", lambda x: x.T.reshape(x.shape)),
    ("mlx-mixed", "biases", lambda x: x[::-1]),
    ("gptq-4", "g_idx", lambda x: x[::-1]),
    ("gptq-4", "scales", lambda x: x.T.reshape(x.shape)),
    ("awq-gemm", "scales", lambda x: x.T.reshape(x.shape)),
    ("awq-gemv", "qzeros", lambda x: x ^ 1),
    ("ct-w4a16", "weight_scale", lambda x: x.T.reshape(x.shape)),
    ("ct-w8a16", "weight_packed", lambda x: x[::-1]),
    ("ct-int8", "weight_scale", lambda x: x[::-1]),
    ("ct-fp8", "weight_scale", lambda x: x * 2),
    ("mlx-mxfp4", "scales", lambda x: x.T.reshape(x.shape)),
    ("mlx-nvfp4", "weight", swapped_nibbles),
    ("mlx-nvfp4", "scales", lambda x: x.T.reshape(x.shape)),
    ("mlx-mxfp8", "scales", lambda x: x[::-1]),
    ("hqq-3", "W_q", lambda x: x[::-1]),
    ("gptq-3", "qweight", lambda x: x[::-1]),
    ("gptq-3", "scales", lambda x: x.T.reshape(x.shape)),
    ("gptq-2-asym", "qzeros", lambda x: x ^ 1),
    ("quanto-int4", "weight._data._data", swapped_nibbles),
    ("quanto-int4", "weight._shift", lambda x: x[::-1]),
    ("quanto-int2", "weight._scale", lambda x: x[::-1]),
    ("quanto-int8", "weight._scale", lambda x: x[::-1]),
]


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    "name,part,change", MISTAKES, ids=[f"{n}-{p}-{i}" for i, (n, p, _) in enumerate(MISTAKES)]
)
def test_each_part_counts(name, part, change, tmp_path):
    g = np.load(os.path.join(FOLDER, name, "logits.npz"))
    t = S.read(os.path.join(FOLDER, name, "model.safetensors"))
    for k in t:
        if k.endswith("down_proj." + part):
            t[k] = (t[k][0], np.ascontiguousarray(change(t[k][1].copy())))
    shutil.copy(os.path.join(FOLDER, name, "config.json"), tmp_path)
    S.write(str(tmp_path / "model.safetensors"), t)
    got, err = run(tmp_path, tmp_path, g["prompt"], "--device", "ref")
    assert got is not None, err
    assert error(got, g["logits"]) > 10 * REFERENCE
    # ... and it must be the result that the package's formula gives for the changed numbers
    assert "down_proj" in "".join(t)


def module_of(t, part):
    return next(k for k in t if k.endswith("down_proj." + part))


def without(part):
    def change(t, config):
        del t[module_of(t, part)]

    return change


def cut(part, axis=0):
    def change(t, config):
        k = module_of(t, part)
        t[k] = (
            t[k][0],
            np.ascontiguousarray(np.take(t[k][1], range(t[k][1].shape[axis] - 1), axis)),
        )

    return change


def one(part, value):
    """Change the first number of a part."""

    def change(t, config):
        k = module_of(t, part)
        x = t[k][1].copy()
        x.reshape(-1)[0] = value
        t[k] = (t[k][0], x)

    return change


def order(values):
    def change(t, config):
        k = module_of(t, "g_idx")
        x = t[k][1].copy()
        values(x)
        t[k] = (t[k][0], x)

    return change


def dense_twin(folder, config, tmp):
    """Return the same model with its values dequantised."""
    tmp.mkdir()
    S.write(
        str(tmp / "model.safetensors"),
        {k: ("F32", v.astype(np.float32)) for k, v in S.dense(str(folder)).items()},
    )
    (tmp / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k != "quantization_config"})
    )
    return tmp


@pytest.mark.parametrize(
    "name,index",
    [("gptq-4-asym-v2", "g_idx"), ("gptq-8", "g_idx"), ("ct-w4a16-asym", "weight_g_idx")],
)
def test_columns_in_any_order(name, index, tmp_path):
    """desc_act, actorder: g_idx holds the group of each column. Packages quantise q, k and v (and
    gate and up) together, so these share an order. Here k has its own, and down has groups of
    uneven size, which no block type supports. The oracle is the model with dequantised values."""
    t = S.read(os.path.join(FOLDER, name, "model.safetensors"))
    with open(os.path.join(FOLDER, name, "config.json")) as f:
        config = json.load(f)
    rng, orders = np.random.default_rng(1), {}
    for k in sorted(k for k in t if k.endswith(("qweight", "weight_packed"))):
        module = k.rsplit(".", 1)[0]
        columns = {"down_proj": 96, "o_proj": 128}.get(module.rsplit(".", 1)[1], 64)
        order = orders.setdefault(
            module.replace("v_proj", "q_proj").replace("gate_proj", "up_proj"),
            rng.permutation(columns) // 32,
        )
        if "down" in module:
            order = rng.integers(0, columns // 32, columns)
        t[module + "." + index] = ("I32", order.astype(np.int32))
    S.write(str(tmp_path / "model.safetensors"), t)
    (tmp_path / "config.json").write_text(json.dumps(config))
    want, err = run(
        dense_twin(tmp_path, config, tmp_path / "dense"),
        tmp_path / "dense",
        [3, 4, 5, 6],
        "--device",
        "ref",
    )
    assert want is not None, err
    # two ranks split the order of o's columns
    for args, within in [
        (["--device", "ref"], REFERENCE),
        (["--device", "ref", "--tp", "2"], REFERENCE),
    ] + [([], KERNELS)] * (name == "gptq-4-asym-v2"):
        got, err = run(tmp_path, tmp_path, [3, 4, 5, 6], *args)
        assert got is not None and "warning" not in err, err
        assert error(got, want) <= within, args
    description = subprocess.run(
        [LLMC, "import", str(tmp_path)], capture_output=True, text=True
    ).stdout
    for role, order in {
        "q": "q",
        "k": "k",
        "v": "q",
        "gate": "gate",
        "up": "gate",
        "o": "o",
    }.items():
        assert re.search(
            r"tensor: %s, type: u[48]_32\w*, order: %s}" % (role, order), description
        ), description
    assert "{tensor: down, type: f32}" in description, description


def gptq_v2(q, scale, zero, groups):
    """Pack 4-bit codes [out, in], scales and zero points [out, groups] and group indices as GPTQ
    does."""
    words = (
        lambda a: (
            a.reshape(a.shape[0], -1, 8).astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)
        )
        .sum(-1, dtype=np.uint32)
        .view(np.int32)
    )  # noqa: E731
    return {
        "qweight": ("I32", np.ascontiguousarray(words(q).T)),
        "scales": ("F16", np.ascontiguousarray(scale.T)),
        "qzeros": ("I32", words(zero.T)),
        "g_idx": ("I32", groups.astype(np.int32)),
    }


def desc_act_experts(name, widths, tmp, alike=True):
    """A golden MoE model whose experts GPTQ made with desc_act, in groups of 32 columns and with a
    column order per expert. gate and up share one unless `alike` is false; one expert's columns
    are in order. Returns that folder, and the model with dequantised values."""
    g = weights.Golden(name)
    g.config.update(
        {
            k: widths.get(v, v)
            for k, v in g.config.items()
            if isinstance(v, int) and not isinstance(v, bool)
        }
    )
    rng, packed, plain, orders = np.random.default_rng(5), {}, {}, {}
    for key, shape in g.tensors.items():
        x = weights.tensor(g.seed, key, [widths.get(s, s) for s in shape])
        if "expert" not in key or x.ndim != 2 or key.endswith("gate.weight"):
            plain[key] = packed[key] = ("F32", x)
            continue
        rows, cols = x.shape
        base, own = (
            key[: -len("weight")],
            key.replace("up_proj", "gate_proj").replace("w3", "w1") if alike else key,
        )
        groups = orders.setdefault(
            own,
            (np.arange(cols) if ".1." in key.split("experts")[-1] else rng.permutation(cols)) // 32,
        )
        lo, hi = (
            np.stack([f(x[:, groups == i], 1) for i in range(cols // 32)], 1)
            for f in (np.min, np.max)
        )
        scale = ((hi - lo) / 15).astype(np.float16)
        zero = np.clip(np.round(-lo / scale.astype(np.float32)), 0, 15)
        s, z = scale.astype(np.float32)[:, groups], zero[:, groups]
        q = np.clip(np.round(x / s) + z, 0, 15)
        plain[key] = ("F32", ((q - z) * s).astype(np.float32))
        packed.update({base + k: v for k, v in gptq_v2(q, scale, zero, groups).items()})
    quant = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": True,
        "sym": False,
        "checkpoint_format": "gptq_v2",
    }
    for kind, tensors, more in (
        ("packed", packed, {"quantization_config": quant}),
        ("plain", plain, {}),
    ):
        (tmp / kind).mkdir()
        (tmp / kind / "config.json").write_text(json.dumps(g.config | more))
        S.write(str(tmp / kind / "model.safetensors"), tensors)
    values = S.dense(str(tmp / "packed"))
    assert all(np.array_equal(values[k], v) for k, (_, v) in plain.items()), (
        "not what GPTQ's formula says"
    )
    return tmp / "packed", tmp / "plain", g.prompt


MIXTURES = {"mixtral-plain": {44: 64, 36: 96}, "deepseek_v2-lite": {55: 64, 20: 96, 40: 192}}


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_columns_of_experts_in_orders_of_their_own(name, tmp_path):
    """desc_act of experts: codes stay 4 bits. x is permuted into the order of each chosen expert,
    and rows of gate and up are stored in the column order of down. The oracle is the model with
    dequantised values; a shared expert is an ordinary matrix."""
    packed, plain, prompt = desc_act_experts(name, MIXTURES[name], tmp_path)
    want, err = run(plain, plain, prompt, "--device", "ref")
    assert want is not None, err
    for args, within in (
        (["--device", "ref"], REFERENCE),
        (["--device", "ref", "--tp", "2"], REFERENCE),
        ([], KERNELS),
        (["--threads", "1", "--set", "parallel.experts=whole", "--tp", "2"], KERNELS),
    ):
        got, err = run(packed, packed, prompt, *args)
        assert got is not None and "warning" not in err, err
        assert error(got, want) <= within, args
    description = subprocess.run(
        [LLMC, "import", str(packed)], capture_output=True, text=True
    ).stdout
    for role, order in {"e_gate": "e_gate", "e_up": "e_gate", "e_down": "e_down"}.items():
        assert re.search(
            r"tensor: %s(, layers: [^{}]*)?, type: u4_32, order: %s}" % (role, order), description
        ), description
    plan = subprocess.run([LLMC, "plan", str(packed)], capture_output=True, text=True).stdout
    assert "permute_expert_cols" in plan and "norm_moe_glu" in plan and "moe_ffn" not in plan, plan
    layers, experts, chosen = (3, 4, 2) if name == "mixtral-plain" else (2, 8, 3)  # 64 columns each
    assert (
        f"orders     {layers * experts * 64 * 4 / 1024:.1f} KiB of the weights" in plan
        and f"{chosen * 64 * 4} bytes per row" in plan
    ), plan


def test_experts_whose_gate_and_up_have_two_orders_are_f32(tmp_path):
    packed, plain, prompt = desc_act_experts(
        "mixtral-plain", MIXTURES["mixtral-plain"], tmp_path, alike=False
    )
    want, err = run(plain, plain, prompt, "--device", "ref")
    got, err = run(packed, packed, prompt, "--device", "ref")
    assert got is not None and error(got, want) <= REFERENCE, err
    description = subprocess.run(
        [LLMC, "import", str(packed)], capture_output=True, text=True
    ).stdout
    assert (
        re.search(r"tensor: e_down, type: u4_32, order: e_down}", description)
        and "order: e_gate" not in description
    ), description


@pytest.mark.parametrize(
    "name,packing",
    [
        ("awq-gemm", "auto_round:auto_awq"),
        ("gptq-4", "auto_round:auto_gptq"),
        ("gptq-4-asym-v2", "auto_round"),
        ("gptq-4-asym-v2", "auto_round:gptqmodel"),
    ],
)
def test_packings_of_auto_round(name, packing, tmp_path):
    """auto-round stores in the formats of other packages and names the package."""
    g = np.load(os.path.join(FOLDER, name, "logits.npz"))
    with open(os.path.join(FOLDER, name, "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {
        "quant_method": "auto-round",
        "packing_format": packing,
        "bits": 4,
        "group_size": config["quantization_config"]["group_size"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(os.path.join(FOLDER, name, "model.safetensors"), tmp_path)
    got, err = run(tmp_path, tmp_path, g["prompt"], "--device", "ref")
    assert got is not None and error(got, g["logits"]) <= REFERENCE, err


@pytest.mark.parametrize("block", [None, 32])
def test_experts_in_one_tensor_of_e4m3(block, tmp_path):
    """`gate_up_proj` and `down_proj` of all experts with `_scale_inv`, one scale per expert
    (Mistral Small 4) or per block. The oracle is the model with dequantised values."""
    g, widths = weights.Golden("mistral4-plain"), {55: 64, 20: 32, 40: 64}
    g.config.update(hidden_size=64, moe_intermediate_size=32)
    rng, plain, packed = np.random.default_rng(6), {}, {}
    for key, shape in g.tensors.items():
        x = weights.tensor(
            g.seed, key, [widths.get(s, s) if "experts" in key or s == 55 else s for s in shape]
        )
        plain[key] = packed[key] = ("F32", x)
        if ".experts." in key:
            q = (rng.integers(0x28, 0x50, x.shape) | rng.integers(0, 2, x.shape) << 7).astype(
                np.uint8
            )
            s = rng.uniform(
                0.02, 0.05, (len(x), *(n // block if block else 1 for n in x.shape[1:]))
            ).astype(np.float32)
            each = np.repeat(np.repeat(s, x.shape[1] // s.shape[1], 1), x.shape[2] // s.shape[2], 2)
            plain[key], packed[key], packed[key + "_scale_inv"] = (
                ("F32", S.floats("F8_E4M3", q) * each),
                ("F8_E4M3", q),
                ("F32", s),
            )
            if not block:
                packed[key + "_activation_scale"] = ("F32", np.ones(len(x), np.float32))
    got = []
    for kind, tensors in ("plain", plain), ("packed", packed):
        (tmp_path / kind).mkdir()
        quant = (
            {
                "quantization_config": {
                    "quant_method": "fp8",
                    "weight_block_size": block and [block, block],
                }
            }
            if kind == "packed"
            else {}
        )
        (tmp_path / kind / "config.json").write_text(json.dumps(g.config | quant))
        S.write(str(tmp_path / kind / "model.safetensors"), tensors)
        logits, err = run(tmp_path / kind, tmp_path / kind, g.prompt, "--device", "ref")
        assert logits is not None and "warning" not in err, err
        got.append(logits)
    assert error(got[1], got[0]) <= REFERENCE
    description = subprocess.run(
        [LLMC, "import", str(tmp_path / "packed")], capture_output=True, text=True
    ).stdout
    assert re.search(r"f8_32", description), description


def test_factors_of_columns_stay_out_of_blocks(tmp_path):
    """pre_quant_scale multiplies x; weights stay 4 bits."""
    g = np.load(os.path.join(FOLDER, "modelopt-int4-awq", "logits.npz"))
    got, err = run(os.path.join(FOLDER, "modelopt-int4-awq"), tmp_path, g["prompt"])
    assert got is not None and "warning" not in err, err
    assert error(got, g["logits"]) <= KERNELS
    plan = subprocess.run(
        [LLMC, "plan", os.path.join(FOLDER, "modelopt-int4-awq")], capture_output=True, text=True
    ).stdout
    assert "permute_cols" in plan and "u4_32_f32" in plan, plan


def test_factors_of_fp4_stay_out_of_blocks(tmp_path):
    """pre_quant_scale of modelopt's NVFP4_AWQ, for o alone and for q, k and v together. The oracle
    is the model with dequantised values."""
    t = S.read(os.path.join(FOLDER, "modelopt-nvfp4", "model.safetensors"))
    with open(os.path.join(FOLDER, "modelopt-nvfp4", "config.json")) as f:
        config = json.load(f)
    (tmp_path / "dense").mkdir()
    values = {
        k: v.astype(np.float32) for k, v in S.dense(os.path.join(FOLDER, "modelopt-nvfp4")).items()
    }
    rng, by = np.random.default_rng(2), {}
    for k in [k for k in t if k.endswith("weight_scale_2")]:
        module, cols = (
            k[: -len("weight_scale_2")],
            values[k.replace("weight_scale_2", "weight")].shape[1],
        )
        name = module.replace("k_proj", "q_proj").replace("v_proj", "q_proj")
        if "o_proj" in name or "q_proj" in name:
            scale = by.setdefault(name, rng.uniform(0.5, 2, cols).astype(np.float32))
            t[module + "pre_quant_scale"] = ("F32", scale)
            values[module + "weight"] = values[module + "weight"] * scale
    S.write(str(tmp_path / "model.safetensors"), t)
    (tmp_path / "config.json").write_text(json.dumps(config))
    S.write(
        str(tmp_path / "dense" / "model.safetensors"), {k: ("F32", v) for k, v in values.items()}
    )
    (tmp_path / "dense" / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k != "quantization_config"})
    )
    want, err = run(tmp_path / "dense", tmp_path / "dense", [3, 4, 5, 6], "--device", "ref")
    assert want is not None, err
    for args, within in ((["--device", "ref"], REFERENCE), ([], KERNELS)):
        got, err = run(tmp_path, tmp_path, [3, 4, 5, 6], *args)
        assert got is not None and "warning" not in err, err
        assert error(got, want) <= within
    description = subprocess.run(
        [LLMC, "import", str(tmp_path)], capture_output=True, text=True
    ).stdout
    for role, factor in {"q": "q", "k": "q", "v": "q", "o": "o"}.items():
        assert re.search(r"tensor: %s, type: nvfp4, factor: %s}" % (role, factor), description), (
            description
        )


@pytest.mark.parametrize("version", ["gemm", "gemv"])
def test_scaled_activation(version, tmp_path):
    """AutoAWQ's ScaledActivation, y = act(x) / scales, for models without a gate: c_proj is in 4
    bits, the rest is plain. The oracle is the model with c_proj's values divided by scales."""
    g = weights.Golden("starcoder2-plain")
    g.config.update(intermediate_size=96)
    rng, plain, packed = np.random.default_rng(3), {}, {}
    for name, shape in g.tensors.items():
        x = weights.tensor(g.seed, name, [96 if s == 100 else s for s in shape])
        plain[name] = packed[name] = ("F32", x)
        if not name.endswith("mlp.c_proj.weight"):
            continue
        rows, cols = x.shape
        q, z = (
            rng.integers(0, 16, (rows, cols), np.uint32),
            rng.integers(0, 16, (rows, 3), np.uint32),
        )
        s, by = (
            rng.uniform(0.01, 0.03, (rows, 3)).astype(np.float16),
            rng.uniform(0.25, 4, cols).astype(np.float16),
        )
        each = (q.astype(np.float32) - np.repeat(z, 32, 1)) * np.repeat(s.astype(np.float32), 32, 1)
        plain[name] = ("F32", (each / by.astype(np.float32)).astype(np.float32))
        base, words = (
            name[: -len("weight")],
            lambda a, order: (
                a.reshape(len(a), -1, 8)[..., order] << np.arange(0, 32, 4, dtype=np.uint32)
            )
            .sum(-1, dtype=np.uint32)
            .view(np.int32),
        )  # noqa: E731
        del packed[name]
        packed[name.replace("c_proj.weight", "act.scales")] = ("F16", by)
        if version == "gemm":
            order = [0, 2, 4, 6, 1, 3, 5, 7]
            packed.update(
                {
                    base + "qweight": ("I32", words(q.T, order)),
                    base + "qzeros": ("I32", words(z.T, order)),
                    base + "scales": ("F16", s.T),
                }
            )
        else:  # zero points and scales as full words of groups, or padded to four of them
            pad = lambda a: np.concatenate([a, np.zeros((rows, 32 - a.shape[1]), a.dtype)], 1)  # noqa: E731
            packed.update(
                {
                    base + "qweight": ("I32", words(q, range(8))),
                    base + "qzeros": ("I32", words(pad(z), range(8))),
                    base + "scales": ("F16", pad(s)),
                }
            )
    got = []
    for kind, tensors in (("plain", plain), ("packed", packed)):
        folder = tmp_path / kind
        folder.mkdir()
        quant = (
            {
                "quantization_config": {
                    "quant_method": "awq",
                    "bits": 4,
                    "group_size": 32,
                    "zero_point": True,
                    "version": version,
                }
            }
            if kind == "packed"
            else {}
        )
        (folder / "config.json").write_text(json.dumps(dict(g.config, **quant)))
        S.write(str(folder / "model.safetensors"), tensors)
        logits, err = run(folder, folder, g.prompt, "--device", "ref")
        assert logits is not None and "warning" not in err, err
        got.append(logits)
    assert error(got[1], got[0]) <= REFERENCE
    if version == "gemm":  # on kernels: both versions have the same op in the plan
        logits, err = run(tmp_path / "packed", tmp_path, g.prompt)
        assert logits is not None, err
        assert error(logits, got[0]) <= KERNELS
    plan = subprocess.run(
        [LLMC, "plan", str(tmp_path / "packed")], capture_output=True, text=True
    ).stdout
    assert "permute_cols" in plan and "u4_32" in plan, plan


@pytest.mark.parametrize("value", [0, 1])
def test_biases_of_zeros_are_left_out(value, tmp_path):
    """GPTQ stores a bias for every layer. A nonzero bias would change the result, so it is
    refused."""
    g = np.load(os.path.join(FOLDER, "gptq-4", "logits.npz"))
    t = S.read(os.path.join(FOLDER, "gptq-4", "model.safetensors"))
    for k in [k for k in t if k.endswith("qweight")]:
        t[k.replace("qweight", "bias")] = ("F16", np.full(t[k][1].shape[1], value, np.float16))
    shutil.copy(os.path.join(FOLDER, "gptq-4", "config.json"), tmp_path)
    S.write(str(tmp_path / "model.safetensors"), t)
    got, err = run(tmp_path, tmp_path, g["prompt"], "--device", "ref")
    if value:
        assert got is None and "bias is not used by this description" in err, err
    else:
        assert got is not None and "7 biases of zeros are ignored" in err, err
        assert error(got, g["logits"]) <= REFERENCE


def unknown(t, config):
    """A quantisation method that llmc does not know, so none of its tensors is found."""
    config["quantization_config"] = {"quant_method": "aqlm"}
    for k in [k for k in t if k.endswith("qweight")]:
        t[k.replace("qweight", "codes")] = t.pop(k)


@pytest.mark.parametrize(
    "method",
    ["aqlm", "vptq", "spqr", "higgs", "fp_quant", "sinq", "fouroversix", "nvfp4", "gemma", "exl9"],
)
def test_methods_that_are_refused(method, tmp_path):
    """A method that transformers supports and llmc does not is refused with its reason, an unknown
    method with the list of supported ones."""
    t = {
        k.replace("qweight", "codes"): v
        for k, v in S.read(os.path.join(FOLDER, "gptq-4", "model.safetensors")).items()
    }
    with open(os.path.join(FOLDER, "gptq-4", "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": method}
    (tmp_path / "config.json").write_text(json.dumps(config))
    S.write(str(tmp_path / "model.safetensors"), t)
    got, err = run(tmp_path, tmp_path, [3, 4, 5], "--device", "ref")
    assert (
        got is None
        and f"quantised by {method}, which llmc does not " in err
        and "one of these: gptq, awq, quark, bitnet" in err
    ), err


def setting(**more):
    def change(t, config):
        config["quantization_config"].update(more)

    return change


def width(hidden):
    def change(t, config):
        config["hidden_size"] = hidden

    return change


@pytest.mark.parametrize(
    "name,change,says",
    [
        ("gptq-4", without("qzeros"), "down_proj.qzeros is missing"),
        ("gptq-4", without("scales"), "down_proj"),
        ("gptq-4", cut("scales", 1), "down_proj.scales has the shape"),
        ("gptq-4", cut("qzeros", 1), "down_proj.qzeros has the shape"),
        ("gptq-4", cut("qweight"), "down_proj"),
        ("gptq-4", cut("g_idx"), "down_proj"),
        ("gptq-4", order(lambda x: x.fill(99)), "there are 3 groups"),
        ("gptq-4", setting(checkpoint_format="marlin"), "repacked"),
        ("awq-gemm", setting(version="gemv_fast"), "interleaved"),
        ("ct-w4a16", without("weight_shape"), "down_proj"),
        ("ct-w4a16", cut("weight_scale", 1), "down_proj"),
        ("ct-w4a16-asym", cut("weight_zero_point", 1), "down_proj.weight_zero_point has the shape"),
        ("fp8-blocks", cut("weight_scale_inv"), "down_proj.weight_scale_inv has the shape"),
        ("bnb-int8", cut("SCB"), "down_proj"),
        ("ct-mxfp4", cut("weight_scale"), "down_proj.weight_scale has the shape"),
        ("ct-mxfp4", one("weight_scale", 255), "is NaN or infinite"),
        ("ct-nvfp4", without("weight_global_scale"), "down_proj.weight_global_scale is missing"),
        ("ct-nvfp4", one("weight_global_scale", 0), "is not a finite weight factor"),
        ("gptq-4", one("scales", np.float16("nan")), "is NaN or infinite"),
        ("bnb-nf4", without("weight.quant_map"), "down_proj.weight.quant_map is missing"),
        ("bnb-nf4", without("weight.quant_state.bitsandbytes__nf4"), "quant_state"),
        ("bnb-nf4", cut("weight.absmax"), "numbers of U8"),
        ("bnb-nf4", cut("weight"), "two codes per byte"),
        ("bnb-nf4", without("weight.nested_absmax"), "down_proj.weight.nested_absmax is missing"),
        ("bnb-nf4", one("weight.nested_absmax", np.inf), "is NaN or infinite"),
        (
            "modelopt-int4-awq",
            cut("pre_quant_scale"),
            "down_proj.pre_quant_scale: expected 96 numbers",
        ),
        ("modelopt-int4-awq", one("pre_quant_scale", 0x7FC0), "nan is not a finite column factor"),
        ("torchao-int4", cut("_weight_zero_point"), "down_proj._weight_zero_point has the shape"),
        ("hqq-4", without("shape"), "its shape (two numbers)"),
        ("hqq-4", without("zero"), "down_proj.zero is missing"),
        ("hqq-4", cut("scale"), "numbers of F16, BF16 or F32"),
        ("hqq-4", one("nbits", 5), "nbits (1, 2, 3, 4 or 8)"),
        ("hqq-4", one("nbits", 3), "10 per I32"),
        ("hqq-3", cut("W_q"), "10 per I32"),
        ("mlx-4", without("biases"), "down_proj.biases is missing"),
        ("mlx-4", cut("biases"), "down_proj.biases has the shape"),
        ("mlx-4", cut("scales", 1), "down_proj"),
        ("mlx-4", one("scales", 0x7FC0), "is NaN or infinite"),
        ("mlx-4", one("biases", 0xFF80), "is NaN or infinite"),
        ("mlx-4", setting(bits=9), "codes are not 2 to 8 bits"),
        ("hqq-4", one("scale", np.nan), "is NaN or infinite"),
        ("quanto-int4", without("weight._shift"), "down_proj.weight._shift is missing"),
        ("quanto-int4", cut("weight._scale"), "down_proj.weight._data._data holds 63 groups of 96"),
        ("quanto-int2", cut("weight._shift"), "numbers of F16, BF16 or F32"),
        ("quanto-int4", one("weight._scale", np.inf), "is NaN or infinite"),
        ("quanto-int4", width(60), "the hidden size 60 in config.json"),
        ("gptq-4", unknown, "one of these: gptq, awq"),
    ],
)
def test_folders_that_lie(name, change, says, tmp_path):
    t = S.read(os.path.join(FOLDER, name, "model.safetensors"))
    with open(os.path.join(FOLDER, name, "config.json")) as f:
        config = json.load(f)
    change(t, config)
    (tmp_path / "config.json").write_text(json.dumps(config))
    S.write(str(tmp_path / "model.safetensors"), t)
    got, err = run(tmp_path, tmp_path, [3, 4, 5], "--device", "ref")
    assert got is None and says in err, err
    assert "Sanitizer" not in err and "signal" not in err
