"""GGUF files with layers that predict further tokens. Such layers count as blocks, lists with one
number per layer include them, and their tensors follow those of the model. The model must be the
same as without them."""

import json
import os
import subprocess

import gguf
import numpy as np
import pytest

import llmc
from golden_run import LLMC, TOLERANCE
from test_gguf_families import FOLDER
from waiting import HANG

# files whose layers differ in attention, experts and windows, and the layer that the added one
# copies
CASES = {
    "mimo_v2": 1,
    "exaone_moe": 3,
    "hy_v3": 1,
    "qwen3_5": 2,
    "qwen3_5_moe": 2,
    "qwen3_next": 2,
    "glm_dsa": 3,
    "deepseek_v32": 1,
    "cohere2_moe": 3,
    "glm4_moe": 1,
    "step3p5": 3,
    "ernie4_5_moe": 1,
}


def with_one_more(source, path, like, output=False):
    """Copy a file and add one block that equals block `like` plus the tensors of a predicting
    layer. output: add a matrix for its logits as well."""
    r = gguf.GGUFReader(source)
    arch = r.fields["general.architecture"].contents()
    n, width = (
        int(r.fields[f"{arch}.block_count"].contents()),
        int(r.fields[f"{arch}.embedding_length"].contents()),
    )
    w = gguf.GGUFWriter(path, arch)
    for f in r.fields.values():
        if f.name.startswith("GGUF.") or f.name == "general.architecture":
            continue
        value, kind = f.contents(), f.types[0]
        if f.name == f"{arch}.block_count":
            value = n + 1
        elif kind == gguf.GGUFValueType.ARRAY and f.name.startswith(arch) and len(value) == n:
            value = value + [value[like]]
        w.add_key_value(
            f.name, value, kind, f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    w.add_key_value(f"{arch}.nextn_predict_layers", 1, gguf.GGUFValueType.UINT32)
    for t in r.tensors:
        w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
        if t.name.startswith(f"blk.{like}."):
            w.add_tensor(
                t.name.replace(f"blk.{like}.", f"blk.{n}."), t.data, raw_dtype=t.tensor_type
            )
    ones = np.ones(width, np.float32)
    for part in "enorm", "hnorm", "shared_head_norm":
        w.add_tensor(f"blk.{n}.nextn.{part}.weight", ones)
    w.add_tensor(f"blk.{n}.nextn.eh_proj.weight", np.ones((width, 2 * width), np.float32))
    if output:
        w.add_tensor(
            f"blk.{n}.nextn.shared_head_head.weight",
            np.ones(
                (next(t.shape[1] for t in r.tensors if t.name == "token_embd.weight"), width),
                np.float32,
            ),
        )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


@pytest.mark.sample(4)
@pytest.mark.parametrize("name,like", CASES.items())
def test_the_model_is_the_same(name, like, tmp_path):
    g = np.load(os.path.join(FOLDER, name + ".npz"))
    path, out = str(tmp_path / "m.gguf"), str(tmp_path / "out.npy")
    with_one_more(os.path.join(FOLDER, name + ".gguf"), path, like)
    p = subprocess.run(
        [
            LLMC,
            "run",
            path,
            "--device",
            "ref",
            "--tokens",
            ",".join(map(str, g["prompt"])),
            "--logits",
            out,
            "--ignore-eos",
            "-n",
            "1",
            "--set",
            "kv.dtype=f32",
            "--artifact",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 0 and "of layers beyond the" in p.stderr, p.stderr
    got, want = np.load(out), g["logits"]
    assert got.shape == want.shape and np.abs(got - want).max() <= TOLERANCE * np.ptp(want)


@pytest.mark.parametrize("output", [True, False])
def test_a_head_with_an_output_of_its_own(output, tmp_path):
    """Step 3.5: the head's layer follows the last one, is dense and has a window. Generation with
    it must yield the same tokens as without."""
    path, text_out = str(tmp_path / "m.gguf"), []
    with_one_more(os.path.join(FOLDER, "step3p5.gguf"), path, 1, output)
    with llmc.Model(path, set=["mtp.part=head"], device="ref") as m:
        names = {s["name"] for t in m.plan["tensor"] for s in t["src"]}
    assert {
        "blk.4.nextn.eh_proj.weight",
        "blk.4.ffn_gate.weight",
        "blk.4.attn_gate.weight",
        "token_embd.weight",
    } <= names and not any(n.startswith("blk.") and not n.startswith("blk.4.") for n in names)
    assert ("blk.4.nextn.shared_head_head.weight" in names, "output.weight" in names) == (
        output,
        not output,
    )
    for extra in [], ["--draft", "mtp"]:
        p = subprocess.run(
            [
                LLMC,
                "run",
                path,
                "--device",
                "ref",
                "--tokens",
                "3,7,11,5,3,7",
                "--json",
                "--ignore-eos",
                "-n",
                "12",
                *extra,
            ],
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, p.stderr
        text_out.append(json.loads(p.stdout)["tokens"])
    assert text_out[0] == text_out[1]
