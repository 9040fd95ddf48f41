"""llmc import: folders and files made here, one per supported and per refused form."""

import json
import os
import re
import struct
import subprocess
import sys

import pytest
import yaml

from golden_run import LLMC, weights

LLAMA = dict(
    model_type="llama",
    vocab_size=40,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    hidden_act="silu",
    torch_dtype="float32",
    eos_token_id=2,
    bos_token_id=1,
)


def llama_tensors(layers=2, prefix="model.", head="lm_head."):
    shapes = {f"{prefix}embed_tokens.weight": [40, 24], f"{prefix}norm.weight": [24]}
    if head:
        shapes[f"{head}weight"] = [40, 24]
    for i in range(layers):
        p = f"{prefix}layers.{i}."
        shapes |= {
            p + "input_layernorm.weight": [24],
            p + "post_attention_layernorm.weight": [24],
            p + "self_attn.q_proj.weight": [24, 24],
            p + "self_attn.k_proj.weight": [8, 24],
            p + "self_attn.v_proj.weight": [8, 24],
            p + "self_attn.o_proj.weight": [24, 24],
            p + "mlp.gate_proj.weight": [32, 24],
            p + "mlp.up_proj.weight": [32, 24],
            p + "mlp.down_proj.weight": [24, 32],
        }
    return shapes


SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F8_E4M3": 1, "I32": 4}


def folder(path, config, shapes=None, dtypes=None, generation=None):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation:
        (path / "generation_config.json").write_text(json.dumps(generation))
    if shapes is not None:
        header, at = {}, 0
        for name, shape in shapes.items():
            dtype = (dtypes or {}).get(name, "F32")
            size = SIZES[dtype]
            for d in shape:
                size *= d
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
            at += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(at))
    return path


def gguf(path, keys, tensors):
    """Write a GGUF. tensors: name -> (dims in file order, ggml type, bytes)."""

    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    for k, v in keys.items():
        out += text(k)
        if isinstance(v, str):
            out += struct.pack("<I", 8) + text(v)
        elif isinstance(v, float):
            out += struct.pack("<If", 6, v)
        else:
            out += struct.pack("<II", 4, v)
    at = 0
    for name, (dims, kind, size) in tensors.items():
        out += (
            text(name)
            + struct.pack("<I", len(dims))
            + struct.pack(f"<{len(dims)}Q", *dims)
            + struct.pack("<IQ", kind, at)
        )
        at += (size + 31) // 32 * 32
    out += bytes(-len(out) % 32)
    path.write_bytes(out + bytes(at))
    return path


GGUF_KEYS = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 64,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 16,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def gguf_tensors(down=(2, 8)):
    """Return q4_0 tensors (type 2, 18 bytes per block of 32), except norms and, per layer,
    ffn_down."""

    def matrix(cols, rows, kind=2):
        size = {2: 18, 8: 34}[kind]
        return ([cols, rows], kind, cols // 32 * size * rows)

    t = {"token_embd.weight": matrix(64, 40), "output_norm.weight": ([64], 0, 256)}
    for i, kind in enumerate(down):
        p = f"blk.{i}."
        t |= {
            p + "attn_norm.weight": ([64], 0, 256),
            p + "ffn_norm.weight": ([64], 0, 256),
            p + "attn_q.weight": matrix(64, 64),
            p + "attn_k.weight": matrix(64, 32),
            p + "attn_v.weight": matrix(64, 32),
            p + "attn_output.weight": matrix(64, 64),
            p + "ffn_gate.weight": matrix(64, 96),
            p + "ffn_up.weight": matrix(64, 96),
            p + "ffn_down.weight": matrix(96, 64, kind),
        }
    return t


def described(llmc, path):
    llmc("import", path)
    return yaml.safe_load(llmc.out)


def refused(llmc, path, *words):
    llmc("import", path, code=1)
    for w in words:
        assert w in llmc.err, llmc.err
    assert not llmc.out


def test_a_folder_with_weights(llmc, tmp_path):
    d = described(llmc, folder(tmp_path / "m", LLAMA, llama_tensors()))
    assert (
        d["family"] == "llama"
        and d["hidden"] == 24
        and d["attention"]["n_kv_heads"] == 1
        and d["text"] == {"bos": 1, "eos": [2]}
    )
    assert (
        d["weights"] == str(tmp_path / "m") and d["storage"] == {"default": "f32"} and not llmc.err
    )
    assert d["name"] == "m" and d.get("head", {}).get("tied", False) is False


def test_a_folder_with_config_only(llmc, tmp_path):
    d = described(llmc, folder(tmp_path / "m", LLAMA))
    assert "weights" not in d and d["n_layers"] == 2


def test_eos_of_the_generation_config_wins(llmc, tmp_path):
    d = described(llmc, folder(tmp_path / "m", LLAMA, generation={"eos_token_id": [3, 2]}))
    assert d["text"]["eos"] == [3, 2]


@pytest.mark.parametrize(
    "prefix,head",
    [
        ("model.", "lm_head."),
        ("language_model.model.", "language_model.lm_head."),
        ("model.language_model.", "lm_head."),
        ("", None),
    ],
)
def test_names_of_wrappers_are_recognised(llmc, tmp_path, prefix, head):
    path = folder(tmp_path / "m", LLAMA, llama_tensors(prefix=prefix, head=head))
    described(llmc, path)
    llmc("import", path, "-o", tmp_path / "m.yaml")
    llmc("compile", tmp_path / "m.yaml", "--dump", "spec")
    spec = yaml.safe_load(llmc.out)
    assert spec["tensors"]["embed"] == prefix + "embed_tokens"
    if head:
        assert spec["tensors"]["head"] == head[:-1]
    else:
        assert spec["head"]["tied"] is True


def test_a_wrapper_speaks_for_the_whole_model(llmc, tmp_path):
    """End-of-sequence ids and tied head come from the wrapper; text_config may hold only the
    defaults of a class."""
    inner = LLAMA | {"tie_word_embeddings": True, "eos_token_id": 1}
    wrapper = {
        "model_type": "wrapper",
        "text_config": inner,
        "tie_word_embeddings": False,
        "eos_token_id": [2, 7],
    }
    d = described(
        llmc,
        folder(
            tmp_path / "m",
            wrapper,
            llama_tensors(prefix="language_model.model.", head="language_model.lm_head."),
        ),
    )
    assert d.get("head", {}).get("tied", False) is False and d["text"]["eos"] == [2, 7]
    d = described(
        llmc,
        folder(
            tmp_path / "n",
            {"model_type": "wrapper", "text_config": inner},
            llama_tensors(prefix="language_model.model.", head=None),
        ),
    )
    assert d["head"]["tied"] is True and d["text"]["eos"] == [1]


def test_a_head_that_is_the_embedding_again(llmc, tmp_path):
    """A tied head that is stored nevertheless counts as tied if its bytes equal the embedding."""
    path = folder(tmp_path / "m", LLAMA | {"tie_word_embeddings": True}, llama_tensors())
    assert described(llmc, path)["head"]["tied"] is True and "warning" not in llmc.err
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    n = 8 + struct.unpack("<Q", data[:8])[0]
    data[n + json.loads(data[8:n])["lm_head.weight"]["data_offsets"][1] - 1] = 1
    file.write_bytes(data)
    assert described(llmc, path).get("head", {}).get("tied", False) is False
    assert "lm_head.weight is stored and differs from the embedding" in llmc.err
    assert (
        described(
            llmc,
            folder(
                tmp_path / "n",
                LLAMA | {"tie_word_embeddings": True},
                llama_tensors(),
                {"lm_head.weight": "BF16"},
            ),
        )
        .get("head", {})
        .get("tied", False)
        is False
    )


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "no such method"])
def test_plain_weights_that_are_declared_quantised(llmc, tmp_path, method):
    described(
        llmc,
        folder(
            tmp_path / "m",
            LLAMA | {"quantization_config": {"quant_method": method, "bits": 4}},
            llama_tensors(),
        ),
    )
    assert "but these are not quantised: they are read as stored" in llmc.err


def test_a_head_that_is_not_stored_is_the_embedding(llmc, tmp_path):
    assert (
        described(llmc, folder(tmp_path / "m", LLAMA, llama_tensors(head=None)))["head"]["tied"]
        is True
    )


def test_a_tied_head_may_be_stored_all_the_same(llmc, tmp_path):
    described(llmc, folder(tmp_path / "m", LLAMA | {"tie_word_embeddings": True}, llama_tensors()))
    assert not llmc.err


def test_mixed_types_become_rules(llmc, tmp_path):
    shapes = llama_tensors()
    dtypes = {n: "BF16" for n in shapes} | {
        "model.norm.weight": "F32",
        "model.layers.1.mlp.down_proj.weight": "F16",
    }
    d = described(llmc, folder(tmp_path / "m", LLAMA, shapes, dtypes))
    assert d["storage"]["default"] == "bf16"
    assert {"tensor": "final_norm", "type": "f32"} in d["storage"]["rules"]
    assert {"tensor": "down", "layers": "1", "type": "f16"} in d["storage"]["rules"] and len(
        d["storage"]["rules"]
    ) == 2


def test_unknown_keys_are_refused_and_null_ones_are_not(llmc, tmp_path):
    strange = LLAMA | {"secret_sauce": 3, "more_of_it": {"deep": "x"}, "nothing": None}
    refused(
        llmc,
        folder(tmp_path / "m", strange),
        "family llama does not use the keys ",
        "secret_sauce = 3",
        "more_of_it.deep = x",
        "--allow-unknown-keys",
    )
    assert "nothing" not in llmc.err
    llmc("import", tmp_path / "m", "--allow-unknown-keys")
    assert (
        yaml.safe_load(llmc.out)["family"] == "llama"
        and "warning: " in llmc.err
        and "secret_sauce = 3" in llmc.err
    )
    many = LLAMA | {f"key_{i}": i for i in range(40)}
    refused(llmc, folder(tmp_path / "n", many), "key_0 = 0", " and 28 more, which may change")
    output = (
        "unsloth_version",
        "neftune_noise_alpha",
        "temperature",
        "do_sample",
        "router_aux_loss_coef",
        "initializer_factor",
    )
    described(llmc, folder(tmp_path / "o", LLAMA | {k: 1 for k in output}))
    assert not llmc.err


@pytest.mark.parametrize("case", ["lfm2-plain", "lfm2-modern-bf16"])
def test_a_width_that_is_rounded_up(case, llmc, tmp_path):
    """LFM2 defines its feed-forward size by a rule; the tensors have the rounded size."""
    g = weights.Golden(case)
    d = described(llmc, folder(tmp_path / "m", g.config))
    assert d["ffn"]["width"] == g.tensors["model.layers.0.feed_forward.w1.weight"][0]


def test_layers_after_the_last_are_dropped(llmc, tmp_path):
    described(llmc, folder(tmp_path / "m", LLAMA, llama_tensors(layers=3)))
    assert "9 tensors of layers beyond the 2 of the model are ignored" in llmc.err


def test_tensors_of_other_parts_are_left_out(llmc, tmp_path):
    more = llama_tensors() | {"vision_tower.patch.weight": [4, 4]}
    described(llmc, folder(tmp_path / "m", {"model_type": "wrapper", "text_config": LLAMA}, more))
    assert "the first is vision_tower.patch.weight" in llmc.err
    refused(
        llmc,
        folder(tmp_path / "n", LLAMA, more),
        "does not use the tensor vision_tower.patch.weight",
        "--allow-unknown-keys",
    )
    llmc("import", tmp_path / "n", "--allow-unknown-keys")
    assert "the first is vision_tower.patch.weight" in llmc.err


def test_old_tables_are_dropped(llmc, tmp_path):
    described(
        llmc,
        folder(
            tmp_path / "m",
            LLAMA,
            llama_tensors() | {"model.layers.0.self_attn.rotary_emb.inv_freq": [4]},
        ),
    )
    assert not llmc.err


def test_a_missing_tensor(llmc, tmp_path):
    shapes = llama_tensors()
    del shapes["model.layers.1.mlp.up_proj.weight"]
    refused(
        llmc,
        folder(tmp_path / "m", LLAMA, shapes),
        "tensor model.layers.1.mlp.up_proj.weight is missing (role up)",
    )


def test_a_wrong_shape(llmc, tmp_path):
    shapes = llama_tensors() | {"model.layers.0.self_attn.k_proj.weight": [24, 8]}
    refused(
        llmc,
        folder(tmp_path / "m", LLAMA, shapes),
        "model.layers.0.self_attn.k_proj.weight has the shape [24, 8], [8, 24] is expected",
    )


def test_an_unused_bias(llmc, tmp_path):
    shapes = llama_tensors() | {"model.layers.0.self_attn.q_proj.bias": [24]}
    refused(
        llmc,
        folder(tmp_path / "m", LLAMA, shapes),
        "tensor model.layers.0.self_attn.q_proj.bias is not used by this description",
    )


def test_a_type_that_is_not_read(llmc, tmp_path):
    refused(
        llmc,
        folder(tmp_path / "m", LLAMA, llama_tensors(), {"model.norm.weight": "F8_E4M3"}),
        "model.norm.weight is stored as F8_E4M3",
    )


@pytest.mark.parametrize(
    "extra,words",
    [
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4}},
            "quantised by gptq, and the tensors that define the format are missing",
        ),
        ({"hidden_act": "mish"}, "hidden_act = mish: llmc supports silu, swish"),
        (
            {"rope_interleaved": True},
            "rope_interleaved = true: family llama of llmc supports null or false only",
        ),
        (
            {"rope_scaling": {"rope_type": "wavy", "factor": 2}},
            "rope_scaling.rope_type = wavy: llmc supports default, linear",
        ),
        ({"num_attention_heads": 5}, "n_kv_heads"),
        ({"hidden_size": "wide"}, "a number is expected, not a string"),
        ({"hidden_size": None}, "hidden is missing"),
        ({"num_hidden_layers": 0}, "n_layers = 0 is out of range"),
        ({"model_type": "rwkv"}, "no family file matches model_type = rwkv"),
    ],
)
def test_configurations_that_are_refused(llmc, tmp_path, extra, words):
    config = LLAMA | extra
    if "num_attention_heads" in extra:
        config |= {"num_key_value_heads": 2, "head_dim": 8}
    refused(llmc, folder(tmp_path / "m", config), words)


def test_not_json(llmc, tmp_path):
    refused(
        llmc,
        folder(tmp_path / "m", '{"model_type": "llama",\n "hidden_size": }'),
        "config.json:2:",
        "not JSON",
    )


def test_a_pickled_checkpoint(llmc, tmp_path):
    path = folder(tmp_path / "m", LLAMA)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    refused(llmc, path, "not a file of torch.save")


def test_no_config(llmc, tmp_path):
    (tmp_path / "m").mkdir()
    llmc("import", tmp_path / "m", code=1)
    assert "config.json" in llmc.err


def test_a_gguf_file(llmc, tmp_path):
    d = described(llmc, gguf(tmp_path / "m.gguf", GGUF_KEYS, gguf_tensors()))
    assert (
        d["checkpoint"] == "gguf"
        and d["attention"] == {"n_heads": 4, "n_kv_heads": 2, "head_dim": 16}
        and d["head"] == {"tied": True}
    )
    assert (
        d["storage"]["default"] == "q4_0"
        and {"tensor": "down", "layers": "1", "type": "q8_0"} in d["storage"]["rules"]
    )
    assert "norm" not in d  # 1e-5 as a float is the default


def test_a_gguf_with_rope_factors(llmc, tmp_path):
    path = gguf(
        tmp_path / "m.gguf", GGUF_KEYS, gguf_tensors() | {"rope_freqs.weight": ([8], 0, 32)}
    )
    assert described(llmc, path)["rope"]["factors"] is True


def test_gguf_files_that_are_refused(llmc, tmp_path):
    refused(
        llmc,
        gguf(tmp_path / "a.gguf", GGUF_KEYS | {"split.count": 3}, gguf_tensors()),
        "one of 3 parts",
        "-00001-of-00003.gguf",
    )
    refused(
        llmc,
        gguf(tmp_path / "b.gguf", GGUF_KEYS | {"general.architecture": "rwkv7"}, gguf_tensors()),
        "general.architecture = rwkv7",
    )
    refused(llmc, gguf(tmp_path / "c.gguf", GGUF_KEYS, {}), "holds no tensors")
    odd = gguf_tensors() | {"blk.0.ffn_up.weight": ([64, 96], 16, 64 * 96 // 256 * 66)}
    refused(llmc, gguf(tmp_path / "d.gguf", GGUF_KEYS, odd), "blk.0.ffn_up.weight")


def test_the_demo_model(llmc, smollm2):
    d = described(llmc, smollm2)
    assert not llmc.err
    assert (d["family"], d["vocab_size"], d["n_layers"], d["hidden"], d["ffn"]["width"]) == (
        "llama",
        49152,
        30,
        576,
        1536,
    )
    assert d["attention"] == {"n_heads": 9, "n_kv_heads": 3, "head_dim": 64} and d["head"] == {
        "tied": True
    }
    assert (
        d["storage"]["default"] == "q4_1"
        and {"tensor": "embed", "type": "q8_0"} in d["storage"]["rules"]
    )


def test_drops_of_conditions_add_up(tmp_path):
    """Two conditions of DeepSeek's family file both drop tensors, for an A.X K1 whose layers share
    the choices of an indexer."""
    g = weights.Golden("deepseek_v3-axk1")
    g.config |= {"index_topk": 32, "index_topk_freq": 2, "index_n_heads": 2, "index_head_dim": 16}
    g.build(tmp_path)
    r = subprocess.run([LLMC, "import", str(tmp_path)], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    drop = yaml.safe_load(r.stdout)["tensors"]["drop"]
    assert (
        len(drop) == 6
        and ".post_mlp_layernorm.weight" in drop
        and ".self_attn.indexer.wk.weight" in drop
    )


ONE_EACH = {c.split("-")[0]: c for c in reversed(weights.cases())}


@pytest.mark.sample(30)
@pytest.mark.parametrize("name", sorted(ONE_EACH.values()))
def test_what_is_resolved_reads_back_as_itself(name, tmp_path):
    """An artifact is opened by its model.yaml, so that must resolve to itself."""
    g = weights.Golden(name)
    g.build(tmp_path)

    def spec(model, *args):
        r = subprocess.run(
            [LLMC, "compile", str(model), *args, "--dump", "spec"], capture_output=True, text=True
        )
        assert r.returncode == 0, r.stderr
        return r.stdout

    text = spec(tmp_path, *(a for k, v in g.set.items() for a in ("--set", f"{k}={v}")))
    (tmp_path / "model.yaml").write_text(text)
    assert spec(tmp_path / "model.yaml") == text


def test_the_page_of_keys_is_current():
    subprocess.run([sys.executable, "tools/yaml_doc.py", "--check"], check=True)


def test_the_page_of_families_is_current():
    subprocess.run([sys.executable, "tools/families_doc.py", "--check"], check=True)


def test_every_family_is_listed():
    index = yaml.safe_load(open("configs/families/_index.yaml"))
    listed, page = index["families"], open("docs/families.md").read()
    assert all(f"| `{t}` |" in page for t in index["towers"])
    assert all(f"`configs/families/{t}.yaml`" in page for t in index["drafts"])
    assert sorted(listed + index["towers"] + index["drafts"]) == sorted(
        f[:-5] for f in os.listdir("configs/families") if not f.startswith("_")
    )
    assert f"\n{len(listed)} families, one YAML file each" in open("README.md").read()
    cases = weights.cases()
    assert (
        f" {len(cases)} tiny models of {len({c.split('-')[0] for c in cases})} families "
        in open("tests/golden/README.md").read()
    )


def test_architectures_that_are_not_read_are_no_family_s():
    page = open("docs/families.md").read()
    refused = page[
        page.index("| GGUF architectures that are not read") : page.index(
            "## What a family file holds"
        )
    ].split("`")[1::2]
    assert len(refused) == 57
    for f in os.listdir("configs/families"):
        match = yaml.safe_load(open(f"configs/families/{f}")).get("match", {})
        assert not set(refused) & set(re.findall(r"arch == ([\w-]+)", match.get("gguf", ""))), f


def test_a_tensor_of_a_number_that_kernels_have_as_a_constant(llmc, tmp_path):
    """Every checkpoint of Apertus has 1/2 and -1e-6 (rounded to bf16) for xIELU, which kernels use
    as constants. Another value is refused."""
    golden = os.path.join(os.path.dirname(__file__), "..", "golden", "models", "apertus-plain")
    with open(os.path.join(golden, "config.json")) as f:
        config = json.load(f)
    with open(os.path.join(golden, "case.json")) as f:
        shapes = json.load(f)["tensors"]
    number = {"beta": 0.5, "eps": -1e-6}
    for dtype, cut in ("F32", 0), ("BF16", 2):
        path = folder(
            tmp_path / dtype,
            config,
            shapes,
            {x: dtype for x in shapes if x.endswith(("beta", "eps"))},
        )
        file = path / "model.safetensors"
        data = bytearray(file.read_bytes())
        n = 8 + struct.unpack("<Q", data[:8])[0]
        at = {x: n + t["data_offsets"][0] for x, t in json.loads(data[8:n]).items()}
        for x in at:
            if x.endswith(("beta", "eps")):
                data[at[x] : at[x] + 4 - cut] = struct.pack("<f", number[x.rsplit(".", 1)[1]])[cut:]
        file.write_bytes(data)
        assert described(llmc, path)["family"] == "apertus"
        for x in "model.layers.1.mlp.act_fn.beta", "model.layers.2.mlp.act_fn.eps":
            wrong = data[:]
            wrong[at[x] : at[x] + 4 - cut] = struct.pack("<f", 0.75)[cut:]
            file.write_bytes(wrong)
            refused(llmc, path, f"tensor {x} must contain only {number[x.rsplit('.', 1)[1]]:g}")
