"""llmc quantize: the gguf package reads its files, errors are no larger than those of the package's
quantisers, and a resumed run and any number of threads give the same bytes."""

import os
import re
import signal
import struct
import subprocess
import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q
from gguf import GGUFReader, GGUFWriter, dequantize, quantize

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "serve"))
import tiny_model  # noqa: E402
from waiting import HANG  # noqa: E402

HIDDEN, FFN, LAYERS, HEADS, KV = 288, 512, 2, 9, 3  # 288 is not a multiple of a superblock
TYPES = {"q4_0": Q.Q4_0, "q4_1": Q.Q4_1, "q5_0": Q.Q5_0, "q5_1": Q.Q5_1, "q8_0": Q.Q8_0}
SMALL = ["--window", "64", "--windows", "12", "-t", "2", "--hessian-memory", "1M"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Llama of two layers in 16 bits, with columns of unequal magnitude."""
    path = str(tmp_path_factory.mktemp("quantize") / "tiny.gguf")
    rng = np.random.default_rng(7)
    vocab = tiny_model.vocabulary()
    w = GGUFWriter(path, "llama")
    w.add_name("tiny")
    w.add_context_length(256)
    w.add_embedding_length(HIDDEN)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(HIDDEN // HEADS)
    w.add_vocab_size(len(vocab))
    w.add_file_type(1)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(vocab)
    w.add_token_types([3 if t in tiny_model.SPECIAL else 1 for t in vocab])
    w.add_token_merges(tiny_model.MERGES)
    w.add_eos_token_id(2)
    matrix = lambda rows, cols: (
        rng.normal(0, cols**-0.5, (rows, cols)) * (1 + 3 * (rng.random(cols) > 0.9))
    ).astype(np.float16)
    w.add_tensor("token_embd.weight", matrix(len(vocab), HIDDEN) * np.float16(5))
    w.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    w.add_tensor("output.weight", matrix(len(vocab), HIDDEN))
    for i in range(LAYERS):
        for name, rows, cols in (
            ("attn_q", HIDDEN, HIDDEN),
            ("attn_k", HIDDEN // 3, HIDDEN),
            ("attn_v", HIDDEN // 3, HIDDEN),
            ("attn_output", HIDDEN, HIDDEN),
            ("ffn_gate", FFN, HIDDEN),
            ("ffn_up", FFN, HIDDEN),
            ("ffn_down", HIDDEN, FFN),
        ):
            w.add_tensor(f"blk.{i}.{name}.weight", matrix(rows, cols))
        for name in ("attn_norm", "ffn_norm"):
            w.add_tensor(
                f"blk.{i}.{name}.weight", (1 + 0.1 * rng.normal(size=HIDDEN)).astype(np.float32)
            )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def tensors(path):
    return {t.name: t for t in GGUFReader(path).tensors}


def values(t):
    return dequantize(t.data, Q(t.tensor_type)).astype(np.float64)


@pytest.mark.parametrize("name", TYPES)
def test_blocks_are_what_gguf_reads_and_better_than_its_own(llmc, model, tmp_path, name):
    out = tmp_path / "out.gguf"
    r = llmc.json(
        "quantize", model, out, "--type", name, "--head", name, "--method", "nearest", "-t", "2"
    )
    before, after = tensors(model), tensors(out)
    assert (
        list(before) == list(after)
        and r["quantized"] == 7 * LAYERS + 2
        and r["out_bytes"] == os.path.getsize(out)
    )
    for key, t in after.items():
        if "norm" in key:
            assert t.tensor_type == Q.F32 and (t.data == before[key].data).all()
            continue
        assert t.tensor_type == TYPES[name]
        x = before[key].data.astype(np.float32)
        own = dequantize(quantize(x, TYPES[name]), TYPES[name]).astype(np.float64)
        assert ((values(t) - x) ** 2).sum() <= 1.02 * ((own - x) ** 2).sum(), key
    a, b = GGUFReader(model), GGUFReader(out)
    kept = {k for k in a.fields if not k.startswith("GGUF.")} - {"general.file_type"}
    assert kept <= set(b.fields) and all(
        a.fields[k].contents() == b.fields[k].contents() for k in kept
    )


# per 256 columns: bits, elements per scale, whether there is a minimum
CODES = {
    "q2_k": (Q.Q2_K, 2, 16, True),
    "q3_k": (Q.Q3_K, 3, 16, False),
    "iq4_xs": (Q.IQ4_XS, 4, 32, False),
    "iq4_nl": (Q.IQ4_NL, 4, 32, False),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CODES)
def test_few_bits_are_better_than_the_range_of_each_group(llmc, model, tmp_path, name):
    """Compared with rounding to evenly spaced values over the range of each group, with unrounded
    scales."""
    kind, bits, group, affine = CODES[name]
    out = tmp_path / "out.gguf"
    llmc(
        "quantize",
        model,
        out,
        "--type",
        name,
        "--head",
        "q8_0",
        "--method",
        "nearest",
        "-t",
        "2",
        "-q",
    )
    before, after = tensors(model), tensors(out)
    assert after["blk.0.attn_q.weight"].tensor_type == (
        kind if name == "iq4_nl" else Q.IQ4_NL
    )  # 288 columns are not a multiple of a superblock
    t = after["blk.1.ffn_down.weight"]
    assert t.tensor_type == kind
    x = before[t.name].data.astype(np.float64)
    g = x.reshape(-1, group)
    low = np.minimum(g.min(1, keepdims=True), 0) if affine else -np.abs(g).max(1, keepdims=True)
    step = (g.max(1, keepdims=True) - low if affine else -2 * low) / (
        2**bits - (1 if affine else 2)
    )
    even = np.clip(np.round((g - low) / step), 0, 2**bits - (1 if affine else 2)) * step + low
    assert ((values(t) - x) ** 2).sum() < 0.97 * ((even - g) ** 2).sum()


def test_columns_that_are_no_superblock_take_a_type_of_32(llmc, model, tmp_path):
    llmc("quantize", model, tmp_path / "k.gguf", "--method", "nearest", "-q")
    t = tensors(tmp_path / "k.gguf")
    assert (
        t["blk.0.ffn_down.weight"].tensor_type == Q.Q4_K
        and t["blk.0.ffn_up.weight"].tensor_type == Q.Q5_0
    )
    assert t["output.weight"].tensor_type == Q.Q8_0 and t["token_embd.weight"].tensor_type == Q.Q5_0
    assert re.search(r"16 of 21 tensors at \d\.\d\d bits per weight", llmc.out)


def test_compensation_is_nearer_to_the_model_and_the_same_for_any_threads(llmc, model, tmp_path):
    text = "configs/texts/calibration.txt"
    kl = {}
    for method in ("nearest", "weighted", "gptq"):
        out = tmp_path / f"{method}.gguf"
        llmc(
            "quantize",
            model,
            out,
            "--type",
            "q4_0",
            "--head",
            "q8_0",
            "--method",
            method,
            "-q",
            *SMALL,
        )
        kl[method] = llmc.json(
            "eval",
            out,
            "--reference",
            model,
            "--text",
            text,
            "--window",
            64,
            "--windows",
            6,
            "--arch",
            "generic",
        )["kl"]["mean"]
    assert kl["gptq"] < 0.8 * kl["nearest"] and kl["weighted"] < 1.1 * kl["nearest"], kl
    again = tmp_path / "again.gguf"
    llmc(
        "quantize",
        model,
        again,
        "--type",
        "q4_0",
        "--head",
        "q8_0",
        "-q",
        *SMALL,
        "-t",
        "1",
        "--hessian-memory",
        "64M",
    )
    assert again.read_bytes() == (tmp_path / "gptq.gguf").read_bytes()


def test_what_was_stopped_goes_on_to_the_same_bytes(llmc, model, tmp_path):
    whole, out = tmp_path / "whole.gguf", tmp_path / "out.gguf"
    llmc("quantize", model, whole, "--type", "q5_1", *SMALL)
    p = subprocess.Popen(
        [llmc.path, "quantize", model, out, "--type", "q5_1", *SMALL],
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in p.stderr:
        if "%" in line:
            break
    p.send_signal(signal.SIGINT)
    err = p.communicate(timeout=HANG)[1]
    assert p.returncode in (0, 130)
    if p.returncode == 130:  # otherwise it finished before the signal
        assert "continues" in err or "stopped" in err
        assert not out.exists() and os.path.exists(f"{out}.partial")
        r = llmc.json("quantize", model, out, "--type", "q5_1", *SMALL)
        assert r["resumed"] >= 1
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["out.gguf", "whole.gguf"]


def read_dat(path):
    data, entries, at = open(path, "rb").read(), {}, 4
    for _ in range(struct.unpack_from("<i", data)[0]):
        (n,) = struct.unpack_from("<i", data, at)
        name = data[at + 4 : at + 4 + n].decode()
        calls, size = struct.unpack_from("<ii", data, at + 4 + n)
        at += 12 + n
        entries[name] = np.frombuffer(data, "<f4", size, at) / calls
        at += 4 * size
    return entries


BITS = {
    Q.Q2_K: 2.625,
    Q.Q3_K: 3.4375,
    Q.IQ4_XS: 4.25,
    Q.IQ4_NL: 4.5,
    Q.Q4_K: 4.5,
    Q.Q5_0: 5.5,
    Q.Q5_K: 5.5,
    Q.Q5_1: 6,
    Q.Q6_K: 6.5625,
    Q.Q8_0: 8.5,
}


def lost(model, out, importance):
    """Return bits per weight of all matrices and the share of output energy that each loses: values
    as gguf reads the file, columns weighted by an importance matrix."""
    before, after, bits, n, errors = tensors(model), tensors(out), 0, 0, {}
    for name, t in after.items():
        if t.tensor_type == Q.F32:
            continue
        x, w = before[name].data.astype(np.float64), importance.get(name, 1)
        errors[name] = (w * (values(t) - x) ** 2).sum() / (w * x**2).sum()
        bits, n = bits + BITS[t.tensor_type] * x.size, n + x.size
    return bits / n, errors


def test_a_budget_of_bits_is_held_and_costs_less_than_one_type_for_all(llmc, model, tmp_path):
    dat = tmp_path / "im.dat"
    llmc(
        "quantize",
        model,
        tmp_path / "q8.gguf",
        "--type",
        "q8_0",
        "--method",
        "weighted",
        "--imatrix-out",
        dat,
        "-q",
        *SMALL,
    )
    importance = read_dat(dat)
    by = ["--method", "weighted", "--imatrix", dat, "-q", *SMALL[:4]]
    fixed, free = tmp_path / "q4_k.gguf", tmp_path / "bits.gguf"
    llmc("quantize", model, fixed, "--type", "q4_k", *by)
    bits, errors = lost(model, fixed, importance)
    r = llmc.json("quantize", model, free, "--bits", bits, *by, "-t", "2")
    own_bits, own = lost(model, free, importance)
    assert own_bits <= bits and abs(r["bits"] - own_bits) < 1e-4
    assert own_bits > bits - 0.3  # the rest is less than one type step of a small matrix
    kinds = {t.name: t.tensor_type for t in GGUFReader(free).tensors}
    cost = {t["name"]: t["cost"] / t["error"] for t in r["types"]}
    assert set(cost) == set(own) and len({t["type"] for t in r["types"]}) > 1
    for t in r["types"]:  # over measured rows, with columns for inputs of norm 1
        assert (
            kinds[t["name"]] == getattr(Q, t["type"].upper())
            and t["bits"] == BITS[kinds[t["name"]]]
        )
        assert abs(t["error"] / own[t["name"]] - 1) < 0.25, t
    assert sum(cost[k] * own[k] for k in own) < sum(cost[k] * errors[k] for k in own)
    one = tmp_path / "one.gguf"
    llmc("quantize", model, one, "--bits", bits, *by, "-t", "1")
    assert one.read_bytes() == free.read_bytes()


def test_a_budget_with_a_head_of_its_own_and_compensation(llmc, model, tmp_path):
    out = tmp_path / "out.gguf"
    r = llmc.json("quantize", model, out, "--bits", "6", "--head", "q5_0", *SMALL)
    assert tensors(out)["output.weight"].tensor_type == Q.Q5_0 and r["bits"] <= 6
    llmc(
        "quantize",
        model,
        tmp_path / "again.gguf",
        "--bits",
        "6",
        "--head",
        "q5_0",
        *SMALL,
        "-t",
        "1",
    )
    assert re.search(
        r"^blk\.0\.ffn_down\.weight +q\d_\w +\S+ bits, error \S+, cost \S+$", llmc.out, re.M
    )
    assert (tmp_path / "again.gguf").read_bytes() == out.read_bytes()


def test_factors_are_folded_into_norms_and_errors_fall(llmc, model, tmp_path):
    """The model multiplies by norm times matrix. That must be closer to the original than rounding
    by importance alone, where factors were found."""
    dat = tmp_path / "im.dat"
    by = ["--type", "q4_0", "--head", "q8_0", "-q", *SMALL]
    llmc(
        "quantize",
        model,
        tmp_path / "weighted.gguf",
        "--method",
        "weighted",
        "--imatrix-out",
        dat,
        *by,
    )
    llmc("quantize", model, tmp_path / "awq.gguf", "--method", "awq", *by)
    llmc(
        "quantize",
        model,
        tmp_path / "again.gguf",
        "--method",
        "awq",
        "--imatrix",
        dat,
        *by,
        "-t",
        "1",
    )
    importance, plain = read_dat(dat), tensors(model)
    sums, changed = {}, 0
    for made in ("weighted", "awq"):
        t = tensors(tmp_path / f"{made}.gguf")
        for i in range(LAYERS):
            for norm, names in (
                ("attn_norm", ("attn_q", "attn_k", "attn_v")),
                ("ffn_norm", ("ffn_gate", "ffn_up")),
            ):
                over = plain[f"blk.{i}.{norm}.weight"].data, t[f"blk.{i}.{norm}.weight"].data
                changed += made == "awq" and bool((over[0] != over[1]).any())
                assert made == "awq" or (over[0] == over[1]).all()
                for name in (f"blk.{i}.{k}.weight" for k in names):
                    x, w = plain[name].data.astype(np.float64), importance[name]
                    e = values(t[name]) * (over[1].astype(np.float64) / over[0]) - x
                    sums[made] = sums.get(made, 0) + (w * e**2).sum() / (w * x**2).sum()
            for name in ("attn_output", "ffn_down"):
                key = f"blk.{i}.{name}.weight"
                assert (t[key].data == tensors(tmp_path / "weighted.gguf")[key].data).all()
    assert changed > 0 and sums["awq"] < 0.98 * sums["weighted"], (changed, sums)
    awq, again = tensors(tmp_path / "awq.gguf"), tensors(tmp_path / "again.gguf")
    assert all(np.allclose(awq[k].data, again[k].data, rtol=1e-4) for k in awq if "norm" in k)


def test_importance_in_both_forms_gives_the_same_file(llmc, model, tmp_path):
    files = []
    for form in ("dat", "gguf"):
        im = tmp_path / f"im.{form}"
        llmc(
            "quantize",
            model,
            tmp_path / f"made-{form}.gguf",
            "--type",
            "q4_1",
            "--method",
            "weighted",
            "--imatrix-out",
            im,
            "-q",
            *SMALL,
        )
        llmc(
            "quantize",
            model,
            tmp_path / f"from-{form}.gguf",
            "--type",
            "q4_1",
            "--method",
            "weighted",
            "--imatrix",
            im,
            "-q",
            "-t",
            "2",
        )
        files += [(tmp_path / f"{k}-{form}.gguf").read_bytes() for k in ("made", "from")]
    assert files[0] == files[2]
    dat, t = read_dat(tmp_path / "im.dat"), tensors(tmp_path / "im.gguf")
    assert set(dat) == {n[:-8] for n in t if n.endswith(".in_sum2")} and len(dat) == 7 * LAYERS + 1
    for name, mean in dat.items():
        sums, counts = t[f"{name}.in_sum2"].data.reshape(-1), t[f"{name}.counts"].data.reshape(-1)
        np.testing.assert_allclose(sums / counts[0], mean, rtol=1e-5)
        assert (mean >= 0).all() and mean.max() > 0


def test_mistakes_are_sentences(llmc, model, tmp_path):
    out = tmp_path / "out.gguf"
    llmc("quantize", model, out, "--type", "q9_k", code=1)
    assert "expected one of: q4_0" in llmc.err
    llmc("quantize", model, out, "--method", "magic", code=1)
    assert "nearest weighted gptq awq" in llmc.err
    for bits, more, says in (
        (3, [], "the smallest types need 4."),
        (17, [], "at most 16"),
        (4.5, ["--type", "q4_k"], "bits and type"),
    ):
        llmc("quantize", model, out, "--bits", bits, "--method", "nearest", *more, *SMALL, code=1)
        assert says in llmc.err
    llmc("quantize", model, model, code=1)
    assert "not overwritten" in llmc.err
    llmc("quantize", model, tmp_path / "no" / "out.gguf", "--method", "nearest", code=2)
    assert "cannot create" in llmc.err
    llmc("quantize", "configs/tiny.yaml", out, code=1)
    assert "neither a GGUF file" in llmc.err
    junk = tmp_path / "junk.dat"
    for data in (
        b"",
        b"\x01\0\0\0",
        b"\x01\0\0\0\x04\0\0\0abcd\x01\0\0\0\xff\xff\xff\x7f",
        b"\xff" * 40,
        struct.pack("<ii4siif", 1, 4, b"abcd", 1, 1, float("nan")),
    ):
        junk.write_bytes(data)
        llmc("quantize", model, out, "--method", "weighted", "--imatrix", junk, code=1)
    assert not out.exists()


def test_a_full_disk_leaves_nothing_under_the_name(llmc, model, tmp_path):
    out = tmp_path / "out.gguf"
    p = subprocess.run(
        [
            "bash",
            "-c",
            'trap "" XFSZ; ulimit -f 100; exec "$@"',
            "-",
            llmc.path,
            "quantize",
            model,
            out,
            "--method",
            "nearest",
            "-q",
        ],
        capture_output=True,
        text=True,
    )
    assert p.returncode == 2 and "partial" in p.stderr and not out.exists(), p.stderr
