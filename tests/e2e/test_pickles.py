"""Folders of pickled weights, as published in 2023. Golden models in this form give the logits of
their safetensors. Inconsistent files, and files that need more than tensors, are refused. The
contents of torch.save files are tested in tests/unit/test_formats_torch.c, against torch."""

import json
import os
import sys
import zipfile

import numpy as np
import pytest

from golden_run import ROOT, Refused, check, run, weights

sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
import torch_file as T  # noqa: E402


def arrays(g):
    return {n: weights.tensor(g.seed, n, s, g.plus_one) for n, s in g.tensors.items()}


def stored(g):
    """Return tensors as the golden's safetensors hold them: fp32, or the bits of bf16."""
    return {n: weights.to_bf16(x) if g.dtype == "bf16" else x for n, x in arrays(g).items()}


@pytest.fixture
def glm(tmp_path):
    g = weights.Golden("chatglm1-plain")
    (tmp_path / "config.json").write_text(json.dumps(g.config))
    return g


@pytest.mark.parametrize(
    "name,how",
    [
        ("chatglm1-plain", "shards"),
        ("chatglm2-groups", "whole"),
        ("baichuan-alibi-six-heads-bf16", "shards"),
        ("baichuan-rope", "old"),
    ],
)
def test_a_model_equals_its_safetensors(name, how, tmp_path):
    g = weights.Golden(name)
    (tmp_path / "config.json").write_text(json.dumps(g.config))
    if how == "shards":
        T.write_shards(str(tmp_path), stored(g), 3)
    else:
        (T.write if how == "whole" else T.write_old)(str(tmp_path / "pytorch_model.bin"), stored(g))
    check(g, *run(tmp_path, g, "--device", "ref"))


@pytest.mark.parametrize(
    "name,bits", [("chatglm1-plain", 4), ("chatglm1-plain", 8), ("chatglm2-groups", 4)]
)
def test_chatglm_in_int4_and_int8(name, bits, tmp_path):
    """quantization_bit: codes with one scale per row. The oracle is the same values in fp32, which
    differ from the golden's."""
    g = weights.Golden(name)
    most = 2 ** (bits - 1) - 1
    codes, values = {}, {}
    for n, x in arrays(g).items():
        codes[n] = values[n] = x
        if x.ndim == 2 and x.shape[1] % 2 == 0 and ("dense" in n or "query_key_value" in n):
            scale = (np.abs(x).max(1) / most).astype(np.float16)
            q = np.clip(np.round(x / scale[:, None].astype(np.float32)), -most - 1, most).astype(
                np.int8
            )
            values[n] = q.astype(np.float32) * scale[:, None].astype(np.float32)
            codes[n] = q if bits == 8 else (q[:, 0::2] << 4 | q[:, 1::2] & 15).astype(np.int8)
            codes[n + "_scale"] = scale
    assert len(codes) > len(values)
    for folder, tensors, config in (
        ("plain", values, {}),
        ("codes", codes, {"quantization_bit": bits, "quantization_embeddings": False}),
    ):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(g.config | config))
        T.write_shards(str(tmp_path / folder), tensors, 2)
    want, _ = run(tmp_path / "plain", g, "--device", "ref")
    got, _ = run(tmp_path / "codes", g, "--device", "ref")
    assert np.abs(got - want).max() <= 1e-5 * np.ptp(want)
    assert np.abs(want - g.logits).max() > 1e-3 * np.ptp(want)


def test_moss_as_published(tmp_path):
    """CodeGen's golden under MOSS's own model_type, with the attention masks that its checkpoints
    store."""
    g = weights.Golden("moss-plain")
    (tmp_path / "config.json").write_text(
        json.dumps(g.config | {"model_type": "moss", "wbits": 32, "groupsize": 128})
    )
    masks = {
        f"transformer.h.{i}.attn.causal_mask": np.tril(np.ones((1, 1, 8, 8), np.uint8))
        for i in range(g.config["n_layer"])
    }
    T.write_shards(str(tmp_path), stored(g) | masks, 2)
    check(g, *run(tmp_path, g, "--device", "ref"))
    (tmp_path / "config.json").write_text(
        json.dumps(g.config | {"model_type": "moss", "wbits": 4, "groupsize": 128})
    )
    refused(g, tmp_path, "wbits")


def test_kernels_read_unaligned_elements(glm, tmp_path):
    T.write_shards(str(tmp_path), stored(glm), 2, T.write_old)
    check(glm, *run(tmp_path, glm, "--arch", "generic"))


def test_safetensors_go_first(glm, tmp_path):
    glm.build(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"nothing of use")
    check(glm, *run(tmp_path, glm, "--device", "ref"))


def refused(g, folder, *says):
    with pytest.raises(Refused) as e:
        run(folder, g, "--device", "ref")
    assert "exit 1:" in str(e.value)
    for s in says:
        assert s in str(e.value), e.value


def test_a_shard_that_is_missing(glm, tmp_path):
    T.write_shards(str(tmp_path), stored(glm), 3)
    (tmp_path / "pytorch_model-00002-of-00003.bin").unlink()
    refused(glm, tmp_path, "pytorch_model-00002-of-00003.bin of the index is missing")


def test_an_index_that_lies(glm, tmp_path):
    where = T.write_shards(str(tmp_path), stored(glm), 2)
    for change, says in (
        (dict(where, extra="pytorch_model-00001-of-00002.bin"), "tensor extra is not in"),
        (dict(where, extra="../pytorch_model-00001-of-00002.bin"), "plain name of a file"),
        (
            {k: v.replace("00001-of", "00002-of") for k, v in where.items()},
            "the shard that the index names",
        ),
    ):
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": change}))
        refused(glm, tmp_path, says)
    (tmp_path / "pytorch_model.bin.index.json").unlink()
    refused(glm, tmp_path, "several pickled files", "pytorch_model.bin.index.json")


def test_other_pickles_of_the_folder_are_no_weights(glm, tmp_path):
    T.write(str(tmp_path / "pytorch_model.bin"), stored(glm))
    for other in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        (tmp_path / other).write_bytes(b"\x80\x02cos\nsystem\n.")
    check(glm, *run(tmp_path, glm, "--device", "ref"))


def test_nothing_of_a_pickle_runs(glm, tmp_path):
    proof = tmp_path / "ran"
    call = b"X\x01\0\0\0x" + b"cos\nsystem\n(" + T.text(f"touch {proof}") + b"tR"
    t = stored(glm)
    T.archive(
        str(tmp_path / "pytorch_model.bin"),
        T.entries(t, call),
        {str(i): x.tobytes() for i, x in enumerate(t.values())},
    )
    refused(glm, tmp_path, "references os.system", "llmc rejects the file")
    assert not proof.exists()


def test_archives_that_lie(glm, tmp_path):
    t, path = stored(glm), str(tmp_path / "pytorch_model.bin")
    blobs = {str(i): x.tobytes() for i, x in enumerate(t.values())}
    T.archive(path, T.entries(t), blobs, method=zipfile.ZIP_DEFLATED)
    refused(glm, tmp_path, "is compressed, which torch.save does not do")
    T.archive(path, T.entries(t), blobs, byteorder=b"big")
    refused(glm, tmp_path, "big endian")
    T.archive(path, T.entries(t), {k: v for k, v in blobs.items() if k != "3"})
    refused(glm, tmp_path, "the data of tensor", "archive/data/3) is not in it")
    T.archive(path, T.entries(t), dict(blobs, **{"2": blobs["2"][:-4]}))
    refused(glm, tmp_path, "bytes;", "are expected")
    x = next(iter(t.values()))
    beyond = T.text("beyond") + T.tensor("0", x, offset=1)
    T.archive(path, T.entries(t, beyond), blobs)
    refused(glm, tmp_path, "tensor beyond reaches beyond its data")
    wide = T.text("wide") + T.tensor(
        "0", np.broadcast_to(x[:1, :1], (1 << 14, 1 << 14)), elems=x.size
    )
    T.archive(path, T.entries(t, wide), blobs)
    refused(glm, tmp_path, "tensor wide is a view that repeats its elements")
    T.archive(path, b"\x80\x02}X\x01\0\0\0aK\x01s.", {})
    refused(glm, tmp_path, "holds no dict of tensors")
