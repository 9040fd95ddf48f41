"""Models that a server was not started with: those of --models-dir and of the download cache."""

import datetime
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import tiny_model
from test_models import OPTIONS, ask, need, states
from waiting import HANG, wait_for


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three models with different weights."""
    root = tmp_path_factory.mktemp("models")
    return [
        str(tiny_model.build(root / name, padding=n))
        for name, n in zip("abc", (0, 8, 2000), strict=True)
    ]


@pytest.fixture(scope="module")
def wanted(serve, folders):
    """Answers of each model by a server that was started with it."""
    a, b, c = folders
    with serve(f"--model=a={a}", "--model", f"b={b}", "--model", f"c={c}", *OPTIONS) as s:
        return {n: ask(s, n).json()["choices"] for n in "abc"}


def test_names_of_a_folder(serve, folders, tmp_path):
    """Files and folders become names; parts, projectors and hidden files do not."""
    for name in (
        "one.gguf",
        "two-00001-of-00002.gguf",
        "two-00002-of-00002.gguf",
        "two/config.json",
        "three.flm",
        "mmproj-one.gguf",
        ".hidden.gguf",
        "notes.txt",
        "in-a-folder/x-Q4_K_M.gguf",
        "in-a-folder/mmproj-F16.gguf",
        "org/four.gguf",
        "org/five/config.json",
        "six:latest.gguf",
        "org/seven:latest/config.json",
        "org/deep/er/config.json",
        "empty/README.md",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    with serve(f"--model=a={folders[0]}", "--models-dir", tmp_path, *OPTIONS) as s:
        names = ["in-a-folder", "one", "org/five", "org/four", "org/seven", "six", "three", "two"]
        assert list(states(s)) == ["a", *names]
        assert s.get("/v1/models").json()["data"] == s.get("/models").json()["data"]
        assert sorted(m["name"] for m in s.get("/api/tags").json()["models"]) == ["a", *names]
        found = s.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
        assert [m["id"] for m in found["data"]] == ["a", *names] and found["last_id"] == "two"
        assert s.get("/v1/models/org/four").json()["status"] == {"value": "unloaded"}
        shown = s.post("/api/show", {"model": "org/four:latest"}).json()
        assert shown["details"] == s.get("/api/tags").json()["models"][-1]["details"]
        assert shown["capabilities"] == ["completion"] and shown["model_info"] == {}
        assert s.post("/api/show", {"model": "org/none"}).status == 404
        for name in ("six", "six:latest", "org/seven", "org/seven:latest"):
            assert s.post("/api/show", {"model": name}).status == 200, name
        # not a model: the reason is in the answer, and nothing else is affected
        r = ask(s, "one")
        assert r.status == 503 and r.json()["error"]["code"] == "model_not_loaded", r.text
        assert ask(s, "a").status == 200 and ask(s, "nothing").status == 404
        # models of the folder may read images, so bodies are as large as for them
        assert ask(s, "a", prompt="x" * (3 << 20)).status == 400
        assert states(s)["one"] == "unloaded"


def test_a_request_opens_a_model(serve, folders, wanted, tmp_path):
    home = tmp_path / "models"
    shutil.copytree(folders[1], home / "b")
    with serve(f"--model=a={folders[0]}", "--models-dir", home, *OPTIONS) as s:
        assert states(s) == {"a": "loaded", "b": "unloaded"}
        assert ask(s, "b").json()["choices"] == wanted["b"]
        assert states(s) == {"a": "loaded", "b": "loaded"}
        assert s.get("/v1/models/b").json()["max_model_len"] == 128
        assert 'model_name="b"' in s.get("/metrics").text
        # a folder that is copied there later
        assert ask(s, "c").status == 404
        shutil.copytree(folders[2], tmp_path / "c")
        os.rename(tmp_path / "c", home / "c")
        r = s.post("/api/generate", {"model": "c:latest", "prompt": "x", "stream": False})
        assert r.status == 200 and r.json()["model"] == "c"
        assert ask(s, "c").json()["choices"] == wanted["c"]
        assert ask(s, "a").json()["choices"] == wanted["a"]
        # a broken one gets the reason, until it is repaired
        shutil.copytree(folders[1], home / "d")
        config = (home / "d" / "config.json").read_text()
        (home / "d" / "config.json").write_text("{")
        r = ask(s, "d")
        assert r.status == 503 and "config.json" in r.json()["error"]["message"], r.text
        assert ask(s, "b").status == 200 and states(s)["d"] == "unloaded"
        (home / "d" / "config.json").write_text(config)
        assert ask(s, "d").json()["choices"] == wanted["b"]


def test_load_unload_and_delete(serve, folders, wanted, tmp_path):
    home = tmp_path / "models"
    shutil.copytree(folders[1], home / "b")
    keys = tmp_path / "keys"
    keys.write_text("client client-key\n")
    own = {"Authorization": "Bearer own"}
    with serve(
        f"--model=a={folders[0]}", "--models-dir", home, *OPTIONS, "--api-key=own", "--keys", keys
    ) as s:

        def call(method, path, name, headers):
            return s.request(method, path, {"model": name} if name else {}, headers=headers)

        for method, path, name in (
            ("POST", "/v1/models/load", "b"),
            ("POST", "/models/unload", "b"),
            ("DELETE", "/v1/models/b", None),
        ):
            assert call(method, path, name, {"Authorization": "Bearer wrong"}).status == 401
            assert call(method, path, name, {"Authorization": "Bearer client-key"}).status == 403
        r = call("POST", "/models/load", "b", own)
        assert r.json() == {"success": True, "model": "b", "status": "loaded"}, r.text

        def listed():
            models = s.request("GET", "/v1/models", headers=own).json()["data"]
            return {m["id"]: m["status"]["value"] for m in models}

        assert listed() == {"a": "loaded", "b": "loaded"}
        assert call("POST", "/v1/models/unload", "b", own).json()["status"] == "unloaded"
        assert listed() == {"a": "loaded", "b": "unloaded"}
        assert call("POST", "/v1/models/load", "b", own).status == 200
        r = call("DELETE", "/v1/models/b", None, own)
        assert r.json() == {"id": "b", "object": "model", "deleted": True}, r.text
        assert listed() == {"a": "loaded", "b": "unloaded"}
        # its description is read again: other weights under the same name
        shutil.rmtree(home / "b")
        shutil.copytree(folders[2], home / "b")
        body = {"model": "b", "prompt": "hello world", "max_tokens": 8, "temperature": 0}
        r = s.request(
            "POST", "/v1/completions", body, headers={"Authorization": "Bearer client-key"}
        )
        assert r.json()["choices"] == wanted["c"], r.text
        # models of the command line keep their names
        r = call("DELETE", "/v1/models/a", None, own)
        assert r.status == 400 and "/models/unload" in r.json()["error"]["message"]
        assert call("DELETE", "/v1/models/x", None, own).status == 404
        assert call("POST", "/models/load", "x", own).status == 404
        assert call("POST", "/models/load", None, own).status == 400
        assert call("POST", "/models/unload", "a", own).status == 200
        assert listed()["a"] == "unloaded"


def test_the_least_recently_used_gives_way(serve, folders, wanted, tmp_path):
    home = tmp_path / "models"
    for name, path in zip("bc", folders[1:], strict=True):
        shutil.copytree(path, home / name)
    with serve(f"--model=a={folders[0]}", "--models-dir", home, *OPTIONS) as s:
        ask(s, "b"), ask(s, "c")
        sizes = {n: need(s, n) for n in "abc"}
    with serve(
        f"--model=a={folders[0]}",
        "--models-dir",
        home,
        *OPTIONS,
        "--memory",
        sum(sizes.values()) - 1000,
    ) as s:
        assert ask(s, "b").status == 200 and states(s)["a"] == "loaded"
        assert ask(s, "a").status == 200
        assert ask(s, "c").json()["choices"] == wanted["c"]
        assert states(s) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        # many clients want all three: no request is lost
        with ThreadPoolExecutor(12) as pool:
            got = pool.map(lambda n: (n, ask(s, n)), "abc" * 4, timeout=HANG)
            for name, r in got:
                assert r.status == 200 and r.json()["choices"] == wanted[name], r.text
    with serve(
        f"--model=a={folders[0]}", "--models-dir", home, *OPTIONS, "--memory", sizes["a"] + 10
    ) as s:
        r = ask(s, "c")
        assert r.status == 503 and "--memory allows" in r.json()["error"]["message"], r.text
        assert r.json()["error"]["code"] == "model_too_large"
        assert ask(s, "a").json()["choices"] == wanted["a"]


def test_loading_is_visible(serve, folders, tmp_path):
    """While kernels are built for a model, its status is loading, and others answer."""
    home = tmp_path / "models"
    shutil.copytree(folders[1], home / "b")
    with serve(
        f"--model=a={folders[0]}",
        "--models-dir",
        home,
        *OPTIONS,
        env={"LLMC_CACHE": str(tmp_path / "cache")},
    ) as s:
        seen = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(s.post, "/v1/models/load", {"model": "b"})
            while not load.done():
                b = next(m for m in s.get("/v1/models").json()["data"] if m["id"] == "b")
                seen.append(b["status"])
                assert ask(s, "a", n=1).status == 200
            assert load.result().status == 200, load.result().text
        loading = [x for x in seen if x["value"] == "loading"]
        assert loading and all(x["progress"] for x in loading), seen
        assert states(s)["b"] == "loaded"


def test_models_of_the_download_cache(serve, folders, wanted, tmp_path):
    """The names of llmc list, with and without hf:."""
    repo = tmp_path / "hub" / "models--org--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(folders[1], repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    env = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    with serve(f"--model=a={folders[0]}", "--models-pulled", *OPTIONS, env=env) as s:
        assert states(s) == {"a": "loaded", "org/tiny": "unloaded"}
        assert ask(s, "org/tiny").json()["choices"] == wanted["b"]
        assert ask(s, "hf:org/tiny").json()["choices"] == wanted["b"]
        assert ask(s, "hf:org/other").status == 404
    with serve("--quiet", *OPTIONS, env=env) as s:  # without a model
        assert states(s) == {"org/tiny": "unloaded"}
        assert ask(s, "org/tiny").json()["choices"] == wanted["b"]
    with serve(f"--model=a={folders[0]}", *OPTIONS, env=env) as s:  # not without the option
        assert ask(s, "org/tiny").status in (200, 404) and list(states(s)) == ["a"]


def test_keep_alive_of_ollama(serve, folders, tmp_path):
    """0 unloads, a negative number keeps the model open, and /api/ps has the time."""
    ollama = pytest.importorskip("ollama")
    home = tmp_path / "models"
    shutil.copytree(folders[1], home / "b")
    with serve(
        f"--model=a={folders[0]}", "--models-dir", home, *OPTIONS, "--sleep-after", "3600"
    ) as s:
        client = ollama.Client(host=s.url)

        def left():
            now = datetime.datetime.now(datetime.timezone.utc)
            return {m.model: (m.expires_at - now).total_seconds() for m in client.ps().models}

        assert list(left()) == ["a"]
        assert client.generate(model="b").done_reason == "load"
        assert 1000 < left()["b"] <= 3601
        for value, low, high in (("5m", 0, 301), ("1h30m", 3601, 5401), (600, 0, 601)):
            messages = [{"role": "user", "content": "x"}]
            client.chat(model="b", messages=messages, keep_alive=value, options={"num_predict": 2})
            assert low < left()["b"] <= high, value
        client.generate(model="b", keep_alive=-1)
        assert left()["b"] > 1e9
        assert client.generate(model="b", keep_alive=0).done_reason == "unload"
        wait_for(lambda: list(left()) == ["a"], what="b is unloaded")
        assert states(s)["b"] == "unloaded"
        with pytest.raises(ollama.ResponseError, match="keep_alive"):
            client.generate(model="a", prompt="x", keep_alive="soon")


def test_a_server_without_a_model_of_its_own(serve, folders, wanted, tmp_path):
    """It starts with an empty folder, and serves what appears there."""
    home = tmp_path / "models"
    home.mkdir()
    adapters = tmp_path / "adapters"
    adapters.mkdir()
    with serve(f"--models-dir={home}", "--lora-dir", adapters, *OPTIONS) as s:

        def text(**kw):
            body = {"prompt": "hello world", "max_tokens": 8, "temperature": 0, **kw}
            return s.post("/v1/completions", body)

        assert s.get("/health").status == 200 and s.get("/v1/models").json()["data"] == []
        for path in ("/props", "/info", "/model_info", "/status.json", "/metrics", "/slots"):
            assert s.get(path).status == 200, path
        info = s.get("/info").json()
        assert info["model_id"] == "" and info["model_device_type"] is None
        for body in ({}, {"model": None}, {"name": None}):
            assert s.post("/api/show", body).status == 400, body
        r = text()
        assert r.status == 503 and str(home) in r.json()["error"]["message"], r.text
        r = text(model="b")
        assert r.status == 404 and "GET /v1/models lists" in r.json()["error"]["message"], r.text
        shutil.copytree(folders[1], tmp_path / "b")
        os.rename(tmp_path / "b", home / "b")
        for name in ({}, {"model": "b"}, {"model": "tgi"}):  # the only one needs no name
            r = text(**name)
            assert r.status == 200 and r.json()["choices"] == wanted["b"], r.text
        info = s.get("/info").json()
        assert info["model_id"] == "b" and info["max_total_tokens"] == 128
        assert info["model_device_type"] == "cpu" and s.status()["model"] == "b"
        assert s.get("/props").json()["model_alias"] == "b"
        assert s.get("/model_info").json()["served_model_name"] == "b"
        shutil.copytree(folders[2], tmp_path / "c")
        os.rename(tmp_path / "c", home / "c")
        r = text()
        assert r.status == 400 and "'b', 'c'" in r.json()["error"]["message"], r.text
        assert text(model="c").json()["choices"] == wanted["c"]
        assert states(s) == {"b": "loaded", "c": "loaded"}
        assert [m["name"] for m in s.status()["models"]] == ["b", "c"]
        for path in ("/wake_up", "/reload"):
            r = s.request("POST", path)
            assert r.status == 400 and "several models" in r.json()["error"]["message"], path
        r = s.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "x"})
        assert r.status == 400 and "base_model_name" in r.text
        for base in (None, 5, []):
            load = {"lora_name": "x", "lora_path": "x", "base_model_name": base}
            r = s.post("/v1/load_lora_adapter", load)
            assert r.status == 400 and "base_model_name" in r.text, r.text
        assert s.request("POST", "/sleep").status == 200
        assert states(s) == {"b": "unloaded", "c": "unloaded"}
        assert s.request("DELETE", "/v1/models/b").status == 200
        assert text(model="b").json()["choices"] == wanted["b"]


def test_the_cache_is_served_without_a_model(serve, llmc_binary, tmp_path):
    """Without a folder either, the downloaded models are served; without any, that is an error."""
    env = {"LLMC_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf")}
    p = subprocess.run(
        [llmc_binary, "serve", "--port", "0"], capture_output=True, text=True, env=os.environ | env
    )
    assert p.returncode == 1 and "`llmc pull` has downloaded none" in p.stderr, p.stderr
    for more in (["--model-name", "x"], ["--lora", "n=dir"]):
        p = subprocess.run(
            [llmc_binary, "serve", "--models-dir", tmp_path, *more], capture_output=True, text=True
        )
        assert p.returncode == 1 and "name a model" in p.stderr, p.stderr


def test_the_time_limit_covers_the_load_of_a_model(serve, folders, tmp_path):
    """A request gets its answer in time, although the model is still being built."""
    gate, compiler = tmp_path / "gate", tmp_path / "cc"
    gate.write_text("")
    compiler.write_text(f'#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\nexec cc "$@"\n')
    compiler.chmod(0o755)
    home = tmp_path / "models"
    shutil.copytree(folders[1], home / "b")
    env = {"LLMC_CACHE": str(tmp_path / "cache"), "LLMC_CC": str(compiler)}
    options = ("--models-dir", home, "--request-timeout", "1", *OPTIONS)
    with serve(f"--model=a={folders[0]}", *options, env=env) as s:
        gate.unlink()
        r = ask(s, "b")
        assert r.status == 503 and "--request-timeout" in r.text
        assert ask(s, "b\0").status == 404
        assert ask(s, "a").status == 200
        gate.write_text("")
        s.until(lambda: states(s)["b"] == "loaded")
        assert s.stop()[0] == 0
