"""GGUF files of MoE models and of latent attention as published, and inconsistent ones.

tests/golden/mixture_gguf.py writes the files with the `gguf` package. transformers computed the
logits from the values that this package reads (tests/golden/make_mixture_gguf.py). The reference
must be as close as for plain weights. If the blocks of k_b run along the other dimension, its
values are kept in 16 bits, and logits of such values are compared too."""

import glob
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from cuda_emu import environment
from golden_run import LLMC, ROOT
from test_goldens import RUNS

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import mixture_gguf as M  # noqa: E402
from waiting import HANG  # noqa: E402

# Largest difference relative to the range of the logits. Measured on the reference: 2e-6, 5e-4 with
# rounded k_b; on kernels 2e-4 to 7e-4. Prefill GEMMs on GPUs have 16-bit inputs: 2.4e-3.
PLAIN, ROUNDED, KERNELS, GPU = 1e-5, 6e-4, 2e-3, 1e-2
ALL = os.environ.get("LLMC_CHECK_ALL")
GOLDEN = {n: np.load(os.path.join(M.OUT, n + ".npz")) for n in M.CASES}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            made[name] = str(tmp_path_factory.mktemp("gguf") / (name + ".gguf"))
            M.write(made[name], M.CASES[name], int(GOLDEN[name]["seed"]))
        return made[name]

    return get


def run(path, g, folder, *args):
    out = os.path.join(str(folder), "out.npy")
    p = subprocess.run(
        [
            LLMC,
            "run",
            path,
            "--tokens",
            ",".join(map(str, g["prompt"])),
            "--logits",
            out,
            "--json",
            "--ignore-eos",
            "-n",
            str(len(g["greedy"])),
            "--threads",
            "2",
            "--set",
            "kv.dtype=f32",
            *args,
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0, p.stderr
    return np.load(out), json.loads(p.stdout)["tokens"], p.stderr


def error(got, want):
    assert got.shape == want.shape and np.isfinite(got).all()
    return float(np.abs(got - want).max() / np.ptp(want))


def test_the_goldens_are_those_of_the_cases():
    assert sorted(M.CASES) == sorted(
        os.path.basename(p)[:-4] for p in glob.glob(os.path.join(M.OUT, "*.npz"))
    )
    kinds = {t.name for c in M.CASES.values() for _, t in c["types"]}
    assert {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"} <= kinds


@pytest.mark.parametrize("name", M.CASES)
def test_reference(name, files, tmp_path):
    g = GOLDEN[name]
    logits, tokens, log = run(files(name), g, tmp_path, "--device", "ref")
    assert error(logits, g["rounded"]) <= PLAIN
    assert error(logits, g["logits"]) <= ROUNDED
    assert tokens == g["greedy"].tolist()
    assert ("tensors of layers beyond the 3" in log) == ("nextn" in name)


# Building kernels takes seconds per file: one file by default, all with LLMC_CHECK_ALL=1.
CPU = M.CASES if ALL else ("deepseek2-lite-q4_0",)


@pytest.mark.parametrize("name", CPU)
def test_cpu(name, files, tmp_path):
    arch = next(a for a in ("v4", "v3", "generic") if RUNS[a])
    g = GOLDEN[name]
    logits, tokens, _ = run(files(name), g, tmp_path, "--device", "cpu", "--arch", arch)
    assert error(logits, g["logits"]) <= KERNELS
    assert tokens == g["greedy"].tolist()


# Rows whose best experts are so close that 16-bit inputs choose another one (`llmc verify`:
# expert_id of layer 2 differs in one row)
OTHER_EXPERT = {"deepseek2-k-quants": 1}


@pytest.mark.skipif(not ALL, reason="LLMC_CHECK_ALL=1 has it run")
@pytest.mark.parametrize("name", M.CASES)
def test_emulated_gpu(name, files, tmp_path, monkeypatch):
    for k, v in environment("sm_90a").items():
        monkeypatch.setenv(k, v)
    g = GOLDEN[name]
    logits, tokens, _ = run(files(name), g, tmp_path, "--device", "cuda")
    rows = [
        np.abs(a - b).max() / np.ptp(g["logits"]) for a, b in zip(logits, g["logits"], strict=True)
    ]
    assert np.isfinite(logits).all() and sum(not r <= GPU for r in rows) <= OTHER_EXPERT.get(
        name, 0
    )
    assert tokens == g["greedy"].tolist()


def test_both_forms_of_the_factors_in_one_file(files, tmp_path):
    """Some files hold the combined tensor and the two factors; the combined one is used, because it
    needs no rounding."""
    name = "deepseek2-older-q8_0"
    c, g, path = M.CASES[name], GOLDEN[name], str(tmp_path / "both.gguf")

    def both(keys, raw):
        for i in range(3):
            raw[f"blk.{i}.attn_k_b.weight"] = (M.Q.F32, np.zeros((5, 32, 32), np.float32))
            raw[f"blk.{i}.attn_v_b.weight"] = (M.Q.F32, np.zeros((5, 64, 32), np.float32))

    M.write(path, c, int(g["seed"]), both)
    logits, tokens, _ = run(path, g, tmp_path, "--device", "ref")
    assert error(logits, g["logits"]) <= PLAIN and tokens == g["greedy"].tolist()


def test_experts_one_by_one(files, tmp_path):
    """One tensor per expert, as in early MoE files."""
    name = "mixtral-mixed"
    c, g, path = M.CASES[name], GOLDEN[name], str(tmp_path / "old.gguf")

    def apart(keys, raw):
        for full in [n for n in raw if "_exps" in n]:
            kind, data = raw.pop(full)
            for e in range(5):
                raw[full.replace("_exps.weight", f".{e}.weight")] = (
                    kind,
                    np.ascontiguousarray(data[e]),
                )

    M.write(path, c, int(g["seed"]), apart)
    logits, tokens, _ = run(path, g, tmp_path, "--device", "ref")
    assert error(logits, g["logits"]) <= PLAIN and tokens == g["greedy"].tolist()

    def one_missing(keys, raw):
        apart(keys, raw)
        raw.pop("blk.1.ffn_up.4.weight")
        raw["blk.0.ffn_up.5.weight"] = raw["blk.0.ffn_up.4.weight"]

    M.write(path, c, int(g["seed"]), one_missing)
    p = subprocess.run([LLMC, "import", path], capture_output=True, text=True, timeout=HANG)
    assert p.returncode == 1 and "tensor blk.1.ffn_up.4.weight is missing (role e_up)" in p.stderr


def turn(name, *axes):
    def change(keys, raw):
        kind, data = raw[name]
        shape = M.gguf.quants.dequantize(data, kind).reshape(-1).shape
        raw[name] = (M.Q.F32, np.ascontiguousarray(np.zeros(shape, np.float32).reshape(axes)))

    return change


def key(name, value):
    return lambda keys, raw: keys.__setitem__(name, value)


def drop(name):
    return lambda keys, raw: raw.pop(name)


LITE, V3, QWEN, QWEN2, MIX = (
    "deepseek2-lite-q4_0",
    "deepseek2-v3-nextn",
    "qwen3moe-q4_k_m",
    "qwen2moe-q4_0",
    "mixtral-mixed",
)
LIES = [
    # lite: 3 heads, rank 64, nope 32, v 64; 5 experts of 32 to 96
    (
        LITE,
        turn("blk.1.attn_k_b.weight", 3, 32, 64),
        "blk.1.attn_k_b.weight has the shape [3, 32, 64], [3, 64, 32] is expected",
    ),
    (
        LITE,
        turn("blk.1.attn_k_b.weight", 64, 3, 32),
        "blk.1.attn_k_b.weight has the shape [64, 3, 32], [3, 64, 32] is expected",
    ),
    (
        LITE,
        turn("blk.1.attn_v_b.weight", 64, 3, 64),
        "blk.1.attn_v_b.weight has the shape [64, 3, 64], [3, 64, 64] is expected",
    ),
    (
        LITE,
        turn("blk.1.ffn_up_exps.weight", 32, 5, 96),
        "blk.1.ffn_up_exps.weight has the shape [32, 5, 96], [5, 32, 96] is expected",
    ),
    (
        LITE,
        turn("blk.2.ffn_down_exps.weight", 5, 32, 96),
        "blk.2.ffn_down_exps.weight has the shape [5, 32, 96], [5, 96, 32] is expected",
    ),
    (LITE, drop("blk.2.attn_k_b.weight"), "blk.2.attn_k_b.weight is missing (role k_b)"),
    (
        LITE,
        key("expert_count", 4),
        "blk.1.ffn_gate_inp.weight has the shape [5, 96], [4, 96] is expected",
    ),
    (
        LITE,
        key("expert_count", 10),
        "blk.1.ffn_gate_inp.weight has the shape [5, 96], [10, 96] is expected",
    ),
    (LITE, key("expert_count", 2**31), "n_experts"),
    (LITE, key("expert_used_count", 6), "top_k"),
    (
        LITE,
        key("expert_shared_count", 1),
        "blk.1.ffn_gate_shexp.weight has the shape [64, 96], [32, 96] is expected",
    ),
    (LITE, key("expert_shared_count", 0), "shexp.weight is not used by this description"),
    (LITE, key("leading_dense_block_count", 0), "blk.0.ffn_gate_inp.weight is missing"),
    (LITE, key("leading_dense_block_count", 2), "blk.1.ffn_gate.weight is missing"),
    (LITE, key("block_count", 2), "there is a tensor blk.2."),
    (LITE, key("block_count", 4), "blk.3.attn_norm.weight is missing"),
    (LITE, key("block_count", 0), "n_layers"),
    (LITE, key("nextn_predict_layers", 1), "there is a tensor blk.2."),
    (LITE, key("nextn_predict_layers", 3), "n_layers"),
    (LITE, key("attention.key_length_mla", 64), "attn_q.weight has the shape"),
    (LITE, key("attention.key_length_mla", 8), "nope_dim"),
    (LITE, key("attention.value_length_mla", 32), "attn_output.weight has the shape"),
    (LITE, key("attention.kv_lora_rank", 32), "attn_kv_a_mqa.weight has the shape"),
    (
        LITE,
        key("expert_gating_func", 3),
        "expert_gating_func = 3: family deepseek_v2 of llmc supports null or 0 or 1 only",
    ),
    (LITE, key("expert_group_count", 2), "moe.groups"),
    (LITE, key("rope.scaling.yarn_ext_factor", 0.5), "rope.scaling.yarn_ext_factor = 0.5"),
    (LITE, key("rope.scaling.attn_factor", 0.5), "attn_factor = 0.5 and yarn_log_multiplier"),
    (LITE, key("attention.causal", False), "attention.causal = false"),
    (V3, key("expert_gating_func", 1), "expert_gating_func = 1: family deepseek_v3"),
    (
        V3,
        key("nextn_predict_layers", 0),
        "blk.3.nextn.eh_proj.weight is not used by this description",
    ),
    (V3, key("nextn_predict_layers", 2), "there is a tensor blk.2."),
    (V3, drop("blk.2.exp_probs_b.bias"), "blk.2.exp_probs_b.bias is missing"),
    (QWEN, key("expert_gating_func", 2), "expert_gating_func = 2: family qwen3_moe"),
    (QWEN, key("expert_weights_norm", False), "expert_weights_norm = false: family qwen3_moe"),
    (QWEN, key("expert_weights_scale", 2.5), "expert_weights_scale = 2.5: family qwen3_moe"),
    (QWEN, key("expert_shared_count", 1), "expert_shared_count = 1: family qwen3_moe"),
    (QWEN, key("leading_dense_block_count", 1), "leading_dense_block_count = 1: family qwen3_moe"),
    (
        QWEN,
        key("rope.scaling.yarn_log_multiplier", 0.1),
        "rope.scaling.yarn_log_multiplier = 0.1: family qwen3_moe",
    ),
    (QWEN2, key("expert_weights_norm", True), "expert_weights_norm = true: family qwen2_moe"),
    (MIX, key("interleave_moe_layer_step", 2), "interleave_moe_layer_step = 2: family mixtral"),
    (MIX, key("expert_group_count", 4), "expert_group_count = 4: family mixtral"),
]


@pytest.mark.parametrize(
    "name,change,words", LIES, ids=[f"{n.split('-')[0]}-{i}" for i, (n, _, _) in enumerate(LIES)]
)
def test_lies(name, change, words, tmp_path):
    path = str(tmp_path / "lie.gguf")
    M.write(path, M.CASES[name], 1, change)
    p = subprocess.run([LLMC, "import", path], capture_output=True, text=True, timeout=HANG)
    assert p.returncode == 1 and words in p.stderr and not p.stdout, p.stderr


def test_a_file_that_no_longer_fits_its_description(files, tmp_path):
    """The runtime checks shapes and types of the file against the plan again."""
    name = LITE
    text = subprocess.run(
        [LLMC, "import", files(name)], capture_output=True, text=True, check=True
    ).stdout
    path = str(tmp_path / "new.gguf")
    (tmp_path / "m.yaml").write_text(text.replace(files(name), path))
    for change, words in (
        (
            turn("blk.1.attn_k_b.weight", 3, 32, 64),
            "plan wants shape [192, 32], file holds [3, 32, 64]",
        ),
        (drop("blk.2.attn_v_b.weight"), "has no tensor"),
    ):
        M.write(path, M.CASES[name], 1, change)
        p = subprocess.run(
            [LLMC, "run", str(tmp_path / "m.yaml"), "--tokens", "3", "-n", "1", "--device", "ref"],
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert p.returncode and words in p.stderr, p.stderr
