"""Models by name: llmc pull, list and rm against a local server; huggingface_hub reads and writes the same cache."""

import json
import os
import re
import subprocess
import sys
import urllib.request

import pytest
from waiting import HANG
from hub_pull import BIG, GGUF, SHA, env, files, hub, model, pull  # noqa: F401
from hub_server import Repo, sha256


# ---- the files that are needed ----

FOLDERS = {
    "safetensors before pickled weights": (
        [
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "README.md",
            "x/model.safetensors",
        ],
        ["config.json", "model.safetensors"],
    ),
    "shards with their index, not the same weights again": (
        ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        + ["model.safetensors.index.json", "consolidated.safetensors", "onnx/model.onnx"],
        ["config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        + ["model.safetensors.index.json"],
    ),
    "the only file of weights": (
        ["config.json", "quantize_config.json", "gptq_model-4bit-128g.safetensors", "a.py"],
        ["config.json", "gptq_model-4bit-128g.safetensors", "quantize_config.json"],
    ),
    "pickled weights": (
        [
            "config.json",
            "pytorch_model.bin",
            "training_args.bin",
            "optimizer.pt",
            "flax_model.msgpack",
        ],
        ["config.json", "pytorch_model.bin"],
    ),
    "tokenizers and templates": (
        ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"]
        + [
            "tokenizer.model",
            "qwen.tiktoken",
            "chat_template.jinja",
            "generation_config.json",
            "logo.png",
            "preprocessor_config.json",
        ],
        ["chat_template.jinja", "config.json", "generation_config.json", "model.safetensors"]
        + [
            "preprocessor_config.json",
            "qwen.tiktoken",
            "tokenizer.json",
            "tokenizer.model",
            "tokenizer_config.json",
            "vocab.txt",
        ],
    ),
    "an embedding model": (
        ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json"]
        + [
            "3_Normalize/config.json",
            "x_y/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "onnx/model.onnx",
        ],
        ["1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"]
        + ["3_Normalize/config.json", "config.json", "model.safetensors", "modules.json"],
    ),
    "Meta's shards": (
        [
            "params.json",
            "consolidated.00.pth",
            "consolidated.01.pth",
            "tokenizer.model",
            "checklist.chk",
        ],
        ["consolidated.00.pth", "consolidated.01.pth", "params.json", "tokenizer.model"],
    ),
    "an adapter": (
        ["adapter_config.json", "adapter_model.safetensors", "optimizer.pt"],
        ["adapter_config.json", "adapter_model.safetensors"],
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_folder_has_the_files_that_are_needed(llmc, hub, env, case):
    there, want = FOLDERS[case]
    hub.repos["org/m"] = Repo({f: f"content of {f}" for f in there})
    assert files(pull(llmc, "hf:org/m")) == sorted(want)


QUANTS = ["m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", "imatrix.gguf"]
QUANTS += ["mmproj-BF16.gguf"]
TOWER = "mmproj-F16.gguf"
QUANTS += ["BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf", "m-old.gguf"]


@pytest.mark.parametrize(
    "want, found",
    [
        ("", ["m-Q4_K_M.gguf", TOWER]),  # with the vision tower in its folder
        (":Q8_0", ["m-Q8_0.gguf", TOWER]),
        (":q8_0", ["m-Q8_0.gguf", TOWER]),
        (":UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf", TOWER]),
        (":Q4_K_XL", ["m-UD-Q4_K_XL.gguf", TOWER]),
        (":bf16", [*QUANTS[6:8], TOWER]),  # a folder per quantisation
        (":BF16/m-BF16-00002-of-00002.gguf", [*QUANTS[6:8], TOWER]),
        (":mmproj-F16.gguf", ["mmproj-F16.gguf"]),
        (":old", ["m-old.gguf", TOWER]),
        ("/m-old.gguf", ["m-old.gguf", TOWER]),
        ("@v1:Q8_0", ["m-Q8_0.gguf", TOWER]),
        (f"@{SHA}:Q8_0", ["m-Q8_0.gguf", TOWER]),
    ],
)
def test_one_quantisation_with_all_its_parts(llmc, hub, env, want, found):
    hub.repos["org/g"] = Repo({f: "GGUF" + f for f in [*QUANTS, "README.md"]}, tags=["v1"])
    path = pull(llmc, "hf:org/g" + want)
    assert files(path) == found and path.endswith("/" + found[0])


@pytest.mark.parametrize(
    "there, name, text",
    [
        (
            QUANTS,
            "hf:org/g:Q9_0",
            "no file and no quantisation Q9_0, did you mean Q8_0?; there are BF16 (70 B), Q4_K_M (17 B), Q8_0",
        ),
        (
            ["a-Q8_0.gguf", "b-Q8_0.gguf"],
            "hf:org/g:Q8_0",
            "several models of Q8_0; name one by its file",
        ),
        (
            ["a-Q8_0.gguf", "a-F16.gguf"],
            "hf:org/g",
            "several GGUF models and no Q4_K_M; name one as hf:org/g:QUANT: F16 (14 B), Q8_0",
        ),
        (QUANTS[:7], "hf:org/g:BF16", "BF16/m-BF16 has 1 of its 2 parts in the repository"),
        (
            ["config.json", "model.safetensors"],
            "hf:org/g:Q4_K_M",
            "no GGUF file; hf:org/g loads its weights",
        ),
        (["README.md"], "hf:org/g", "no model that llmc reads"),
        (
            ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"],
            "hf:org/g",
            "lacks some of the model's weights",
        ),
    ],
)
def test_what_is_not_there_is_named(llmc, hub, env, there, name, text):
    hub.repos["org/g"] = Repo({f: "GGUF" + f for f in there})
    pull(llmc, name, code=1)
    assert text in llmc.err and llmc.err.count("\n") == 1, llmc.err
    assert not hub.paths("cdn")


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:a/b/",
        "hf:../x",
        "hf:a/..",
        "hf:-a/b",
        "hf:a/b@../c",
        "hf:a/b:../../c",
        "hf:a b/c",
        "hf:a/b--c",
        "https://",
        "https://x.invalid/a.zip",
        "https://x.invalid/%2e%2e.gguf",
        "ftp://x/a.gguf",
        "x",
    ],
)
def test_what_is_no_name(llmc, env, name):
    pull(llmc, name, code=1)
    assert llmc.err.count("\n") == 1 and not env.exists()


def test_an_address_of_the_hub_is_a_name(llmc, hub, env):
    hub.repos["org/g"] = Repo({f: "GGUF" + f for f in QUANTS})
    want = pull(llmc, "hf:org/g:m-Q8_0.gguf")
    for page in ("blob/main/m-Q8_0.gguf", "resolve/main/m-Q8_0.gguf?download=true"):
        assert pull(llmc, f"{hub.url}/org/g/{page}") == want
    assert pull(llmc, f"{hub.url}/org/g") == want.replace("Q8_0", "Q4_K_M")
    assert pull(llmc, "hf://org/g:Q8_0") == want
    for host in ("hf.co", "huggingface.co", "HF.co"):  # spelling of other programs
        assert pull(llmc, f"{host}/org/g:q8_0") == want
        assert pull(llmc, f"{host}/org/g/blob/main/m-Q8_0.gguf") == want
    assert pull(llmc, "https://hf.co/org/g/blob/main/m-Q8_0.gguf") == want


# ---- one cache with huggingface_hub ----


def oracle(code, env):
    """Run huggingface_hub in a process of its own: it reads its variables on import."""
    p = subprocess.run(
        [sys.executable, "-c", f"import huggingface_hub as h, json\nprint(json.dumps({code}))"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
    )
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


def test_huggingface_hub_finds_what_llmc_has_pulled(llmc, hub, env):
    hub.repos["org/m"] = model()
    folder = pull(llmc, "hf:org/m")
    n = len(hub.requests)
    at = "['org/m', 'model.safetensors']"
    assert (
        oracle(f"h.hf_hub_download(*{at}, local_files_only=True)", env)
        == folder + "/model.safetensors"
    )
    assert oracle(f"h.try_to_load_from_cache(*{at})", env) == folder + "/model.safetensors"
    wanted = "['config.json', '*.safetensors', 'tokenizer.json']"
    assert (
        oracle(f"h.snapshot_download('org/m', local_files_only=True, allow_patterns={wanted})", env)
        == folder
    )
    found = oracle(
        "[[str(w) for w in h.scan_cache_dir().warnings], [[r.repo_id, r.size_on_disk, r.nb_files] for r in h.scan_cache_dir().repos]]",
        env,
    )
    assert found == [[], [["org/m", len(BIG) + 5, 3]]]
    assert len(hub.requests) == n
    # with the network it finds every blob by its id, and downloads none again
    assert oracle(f"h.snapshot_download('org/m', allow_patterns={wanted})", env) == folder
    assert len(hub.paths("cdn")) == 1


def test_llmc_finds_what_huggingface_hub_has_downloaded(llmc, hub, env):
    hub.repos["org/m"] = model(**{"README.md": None})
    hub.repos["org/g"] = Repo({"m-Q4_0.gguf": GGUF, "m-Q8_0.gguf": GGUF + b"8"})
    folder = oracle("h.snapshot_download('org/m')", env)
    file = oracle("h.hf_hub_download('org/g', 'm-Q8_0.gguf')", env)
    n = len(hub.paths("cdn"))
    off = {"HF_HUB_OFFLINE": "1"}
    asked = len(hub.requests)
    assert (
        pull(llmc, "hf:org/m", env=off) == folder and pull(llmc, "hf:org/g:Q8_0", env=off) == file
    )
    assert len(hub.requests) == asked
    pull(llmc, "hf:org/g:Q4_0", env=off, code=1)
    assert "HF_HUB_OFFLINE forbids" in llmc.err
    assert pull(llmc, "hf:org/m") == folder and len(hub.paths("cdn")) == n
    assert {r["name"] for r in llmc.json("list")} == {"hf:org/m", "hf:org/g:Q8_0"}


def test_a_snapshot_that_lacks_a_file_is_completed(llmc, hub, env):
    hub.repos["org/m"] = model()
    oracle("[h.hf_hub_download('org/m', f) for f in ('config.json', 'model.safetensors')]", env)
    n = len(hub.paths("cdn"))
    assert llmc("plan", "hf:org/m", code=1) and len(hub.paths("cdn")) == n  # config.json is {}
    assert os.path.exists(env / f"models--org--m/snapshots/{SHA}/tokenizer.json")


@pytest.mark.parametrize(
    "name, value",
    [
        ("HF_HUB_CACHE", "cache"),
        ("HF_HOME", ""),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
def test_the_folder_is_that_of_huggingface_hub(llmc, hub, env, tmp_path, monkeypatch, name, value):
    hub.repos["org/m"] = model()
    for v in ("HF_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(v, raising=False)
    monkeypatch.setenv(name, str(tmp_path / "own"))
    folder = pull(llmc, "hf:org/m")
    assert folder.startswith(str(tmp_path / "own"))
    assert (
        oracle("h.hf_hub_download('org/m', 'config.json', local_files_only=True)", env)
        == folder + "/config.json"
    )


# ---- revisions ----


def test_pull_updates_and_other_commands_do_not(llmc, hub, env):
    hub.repos["org/g"] = Repo({"m-Q4_0.gguf": GGUF})
    old = pull(llmc, "hf:org/g")
    hub.repos["org/g"] = Repo({"m-Q4_0.gguf": GGUF + b"new"}, sha="b" * 40)
    n = len(hub.requests)
    llmc("tokenize", "hf:org/g", "--ids", "1", code=0)
    assert len(hub.requests) == n
    hub.faults[".gguf"] = [("status", 404)]
    pull(llmc, "hf:org/g", code=1)
    assert pull(llmc, "hf:org/g", env={"HF_HUB_OFFLINE": "1"}) == old  # the ref moves at the end
    new = pull(llmc, "hf:org/g")
    assert "b" * 40 in new and open(new, "rb").read() == GGUF + b"new"


def test_a_misspelt_branch_gets_its_neighbour(llmc, hub, env):
    hub.repos["org/m"] = Repo({"config.json": "{}"}, branches=["main", "refs/pr/1"], tags=["v1.0"])
    pull(llmc, "hf:org/m@v1.1", code=1)
    assert (
        "no branch, tag or commit v1.1, did you mean v1.0?; there are main, refs/pr/1, v1.0"
        in llmc.err
    )


# ---- list, rm, and where names are taken ----


def test_list_and_rm(llmc, hub, env):
    assert llmc.json("list") == []
    shared = b"GGUF" + b"s" * 1000
    hub.repos["org/g"] = Repo(
        {"m-Q4_0.gguf": GGUF, "m-Q8_0.gguf": shared, "copy/m-F16.gguf": shared}
    )
    hub.repos["org/m"] = model()
    four, eight = pull(llmc, "hf:org/g:Q4_0"), pull(llmc, "hf:org/g:Q8_0")
    pull(llmc, "hf:org/g:F16")
    folder = pull(llmc, "hf:org/m")
    rows = {r["name"]: r for r in llmc.json("list")}
    assert {k: r["path"] for k, r in rows.items() if "F16" not in k} == {
        "hf:org/g:Q4_0": four,
        "hf:org/g:Q8_0": eight,
        "hf:org/m": folder,
    }
    assert rows["hf:org/g:Q4_0"]["bytes"] == len(GGUF) and all(r["complete"] for r in rows.values())
    llmc("list")
    assert re.search(r"^hf:org/g:Q4_0 +115 KiB  \d{4}-\d\d-\d\d$", llmc.out, re.M)
    llmc("rm", "hf:org/g:Q8_0")
    assert "removed, 0 B" in llmc.out  # another path has the same content
    llmc("rm", "hf:org/g:F16")
    assert "removed, 1004 B" in llmc.out and os.path.exists(four)
    llmc("rm", "hf:org/g:Q8_0", code=1)
    assert "not in the cache" in llmc.err
    llmc("rm", "hf:org/g:Q4_0", "hf:org/m")
    assert llmc.json("list") == [] and not os.path.exists(env / "models--org--g")
    llmc("rm", "x", code=1)


def test_a_tower_stays_until_the_last_model_is_removed(llmc, hub, env):
    hub.repos["org/g"] = Repo({f: "GGUF" + f for f in QUANTS})
    folder = os.path.dirname(pull(llmc, "hf:org/g:Q4_K_M"))
    pull(llmc, "hf:org/g:Q8_0")
    llmc("rm", "hf:org/g:Q8_0")
    assert sorted(os.listdir(folder)) == ["m-Q4_K_M.gguf", TOWER]
    llmc("rm", "hf:org/g:Q4_K_M")
    assert not os.path.exists(env / "models--org--g")


def test_towers_are_counted_and_go_with_the_last_model(llmc, hub, env):
    hub.repos["org/g"] = Repo({f: "GGUF" + f for f in QUANTS})
    names = "Q8_0", "bf16", "mmproj-BF16.gguf"
    folder = os.path.dirname(pull(llmc, "hf:org/g:Q8_0"))
    for want in names:
        pull(llmc, f"hf:org/g:{want}")
    total = sum(len("GGUF" + f) for f in os.listdir(folder) if f.endswith("gguf"))
    total += sum(len("GGUF" + f) for f in QUANTS[6:8])
    assert sum(r["bytes"] for r in llmc.json("list")) == total
    llmc("rm", "hf:org/g:Q8_0")
    assert os.path.exists(os.path.join(folder, TOWER))
    llmc("rm", "hf:org/g:BF16")
    assert f"removed, {total - len('GGUFm-Q8_0.gguf')} B" in llmc.out
    assert not os.path.exists(env / "models--org--g")


def test_a_model_without_its_tower_is_complete(llmc, hub, env, monkeypatch):
    """Only llmc pull brings a tower that the cache lacks."""
    gguf = open("tests/golden/gguf/llama-f32.gguf", "rb").read()
    hub.repos["org/g"] = Repo({"m-F32.gguf": gguf, TOWER: "GGUF"})
    tower = os.path.join(os.path.dirname(pull(llmc, "hf:org/g")), TOWER)
    os.unlink(tower)
    n = len(hub.requests)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    llmc("plan", "hf:org/g")
    pull(llmc, "hf:org/g")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    llmc("plan", "hf:org/g")
    assert len(hub.requests) == n and not os.path.exists(tower)
    pull(llmc, "hf:org/g")
    assert os.path.exists(tower)


def test_every_command_takes_a_name(llmc, hub, env, tmp_path):
    hub.repos["org/g"] = Repo(
        {"m-Q4_0.gguf": GGUF, "m-F32.gguf": open("tests/golden/gguf/llama-f32.gguf", "rb").read()}
    )
    name, tokens = "hf:org/g:Q4_0", ["--tokens", "1,2,3", "-n", "2", "--arch", "generic"]
    file = "tests/golden/gguf/llama-q4_0.gguf"
    want = llmc.json("run", file, *tokens)["tokens"]
    assert llmc.json("run", name, *tokens)["tokens"] == want
    assert llmc.json(name, *tokens)["tokens"] == want
    assert llmc.json("run", "-hf", "org/g:Q4_0", *tokens)["tokens"] == want
    assert llmc.json("plan", name)["plan"]["target"]
    assert llmc.json("import", name)["yaml"]
    assert llmc.json("compile", name, "--arch", "generic", "-o", tmp_path / "out")
    assert llmc.json("tokenize", name, "--ids", "1")
    assert llmc.json(
        "quantize", "hf:org/g:F32", tmp_path / "q.gguf", "--type", "q8_0", "--method", "nearest"
    )
    assert llmc.json("run", "configs/tiny.yaml", "--random-weights", *tokens)
    assert len(hub.paths("cdn")) == 2


@pytest.mark.parametrize("prefix", ("hf:", "hf.co/"))
def test_a_server_has_the_name_of_the_model(llmc, hub, env, prefix):
    hub.repos["org/g"] = Repo({"m-Q4_0.gguf": GGUF})
    p = subprocess.Popen(
        [llmc.path, "serve", prefix + "org/g:Q4_0", "--port", "0", "--arch", "generic", "-t", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = next(m[0] for line in p.stdout if (m := re.search(r"http://127\.0\.0\.1:\d+", line)))
    with urllib.request.urlopen(url + "/v1/models", timeout=HANG) as r:
        assert [m["id"] for m in json.load(r)["data"]] == ["org/g:Q4_0"]
    p.terminate()
    p.communicate(timeout=HANG)


def test_an_imported_folder_has_the_name_of_its_repository(llmc, tmp_path):
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1)
    config = dict(sizes, model_type="llama", architectures=["LlamaForCausalLM"])
    config.update(num_attention_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
    for repo, name in (("models--org--tiny-llama", "tiny-llama"), ("models--gpt2", "gpt2")):
        folder = tmp_path / repo / "snapshots" / SHA
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        llmc("import", folder)
        assert re.search(rf"^name: \"?{name}\"?$", llmc.out, re.M), llmc.out


def test_a_split_model_opens_by_its_name(llmc, hub, env, tmp_path):
    """The parts are links in the snapshot; the blobs that they lead to have no part numbers."""
    a, b = split_gguf(GGUF)
    hub.repos["org/g"] = Repo({"m-Q4_0-00001-of-00002.gguf": a, "m-Q4_0-00002-of-00002.gguf": b})
    tokens = ["--tokens", "1,2,3", "-n", "4", "--arch", "generic"]
    want = llmc.json("run", "tests/golden/gguf/llama-q4_0.gguf", *tokens)["tokens"]
    assert llmc.json("run", "hf:org/g:Q4_0", *tokens)["tokens"] == want


def split_gguf(data):
    """Write a GGUF in two parts with the gguf package, as llama-gguf-split does."""
    import tempfile

    import gguf

    with tempfile.TemporaryDirectory() as folder:
        whole = os.path.join(folder, "m.gguf")
        open(whole, "wb").write(data)
        r = gguf.GGUFReader(whole)
        half, out = len(r.tensors) // 2, []
        for i, tensors in enumerate((r.tensors[:half], r.tensors[half:])):
            part = os.path.join(folder, f"{i}.gguf")
            w = gguf.GGUFWriter(part, r.fields["general.architecture"].contents())
            for key, f in r.fields.items():
                if i == 0 and not key.startswith("GGUF.") and key != "general.architecture":
                    kind = f.types[0]
                    w.add_key_value(
                        key, f.contents(), kind, f.types[-1] if len(f.types) > 1 else None
                    )
            w.add_key_value("split.no", i, gguf.GGUFValueType.UINT16)
            w.add_key_value("split.count", 2, gguf.GGUFValueType.UINT16)
            w.add_key_value("split.tensors.count", len(r.tensors), gguf.GGUFValueType.INT32)
            for t in tensors:
                w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
            w.write_header_to_file()
            w.write_kv_data_to_file()
            w.write_tensors_to_file()
            w.close()
            out.append(open(part, "rb").read())
    return out


def test_python_loads_by_name(hub, env):
    import llmc

    hub.repos["org/g"] = Repo({"m-Q4_0.gguf": GGUF, "m-Q8_0.gguf": b"GGUF" + BIG})
    seen = []
    with llmc.load("hf:org/g:Q4_0", progress=seen.append, arch="generic", threads=1) as m:
        assert m.info["vocab"] > 0
    assert [s["file"] for s in seen if s["file"]] == ["m-Q4_0.gguf"]
    assert seen[-1]["bytes"] == seen[-1]["total_bytes"] == len(GGUF)
    assert [r["name"] for r in llmc.pulled()] == ["hf:org/g:Q4_0"]
    assert llmc.pull("hf:org/g:Q4_0", offline=True) == llmc.pulled()[0]["path"]
    with pytest.raises(llmc.Error, match="no file and no quantisation Q9"):
        llmc.pull("hf:org/g:Q9")
    hub.faults[sha256(b"GGUF" + BIG)] = [("hold", 5000)]

    def stop(state):
        if state["bytes"] >= 5000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llmc.pull("hf:org/g:Q8_0", progress=stop)
    hub.released.set()
    llmc.pull("hf:org/g:Q8_0")
    assert hub.headers("cdn", "Range")[-1].startswith("bytes=")
    with pytest.raises(llmc.Error, match="llmc_open does not download"):
        llmc.open("hf:org/g:Q4_0")


# ---- addresses of files ----


def test_a_file_of_another_server(llmc, hub, env, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_ENDPOINT", "http://models.invalid")
    url = hub.url + "/plain/a%20b.gguf"
    hub.blobs["/plain/a%20b.gguf"] = GGUF
    hub.faults["a%20b.gguf"] = [("cut", 5000)]
    path = pull(llmc, url + "?sig=1")
    assert path.endswith("/a b.gguf") and open(path, "rb").read() == GGUF
    etag = f'"{sha256(GGUF)[:16]}"'
    assert (
        hub.headers("hub", "If-Range") == [None, etag]
        and hub.headers("hub", "Range")[1] == "bytes=5000-"
    )
    assert set(hub.headers("hub", "Authorization")) == {None}
    n = len(hub.requests)
    llmc("tokenize", url, "--ids", "1")
    assert len(hub.requests) == n  # it is here
    assert pull(llmc, url) == path and hub.headers("hub", "If-None-Match")[-1] == etag
    hub.blobs["/plain/a%20b.gguf"] = GGUF + b"new"
    pull(llmc, url)
    assert open(path, "rb").read() == GGUF + b"new"
    assert [(r["name"], r["path"]) for r in llmc.json("list")] == [(url, path)]
    llmc("rm", url)
    assert llmc.json("list") == []


def test_the_rest_of_another_file_is_not_appended(llmc, hub, env, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    hub.blobs["/plain/a.gguf"] = GGUF
    hub.faults["a.gguf"] = [("cut", 5000)] + [("status", 404)]
    pull(llmc, hub.cdn.url + "/plain/a.gguf", code=1)
    hub.blobs["/plain/a.gguf"] = b"GGUF" + BIG
    assert open(pull(llmc, hub.cdn.url + "/plain/a.gguf"), "rb").read() == b"GGUF" + BIG
    hub.etags = False  # nothing shows whether the rest belongs to the part
    hub.faults["b.gguf"] = [("cut", 5000)]
    hub.blobs["/plain/b.gguf"] = GGUF
    assert open(pull(llmc, hub.cdn.url + "/plain/b.gguf"), "rb").read() == GGUF
    assert hub.headers("cdn", "Range")[-1] is None


def test_a_page_in_place_of_a_file_is_refused(llmc, hub, env, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    hub.blobs["/plain/a.gguf"] = b"<!DOCTYPE html><html>"
    pull(llmc, hub.cdn.url + "/plain/a.gguf", code=1)
    hub.blobs["/plain/a.gguf"] = b"other"
    pull(llmc, hub.cdn.url + "/plain/a.gguf", code=3)
    assert "no GGUF file; check the address" in llmc.err and llmc.json("list") == []


def test_all_parts_of_a_split_file(llmc, hub, env, monkeypatch, tmp_path):
    monkeypatch.setenv("LLMC_CACHE", str(tmp_path / "cache"))
    for i in (1, 2, 3):
        hub.blobs[f"/plain/m-0000{i}-of-00003.gguf"] = b"GGUF%d" % i
    path = pull(llmc, hub.cdn.url + "/plain/m-00001-of-00003.gguf")
    assert sorted(f for f in os.listdir(os.path.dirname(path)) if f[0] != ".") == [
        f"m-0000{i}-of-00003.gguf" for i in (1, 2, 3)
    ]
    pull(llmc, hub.cdn.url + "/plain/m-00002-of-00003.gguf", code=1)
    assert "name the first part" in llmc.err
