"""Several models in one server: selected by name, loaded on request, unloaded for others within a
budget, put to sleep, reloaded.
"""

import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tiny_model
import weights
from waiting import HANG

OPTIONS = ("--arch", "generic", "-t", "1", "--seqs", "4", "--context", "128")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models with one vocabulary and different sizes, and one with truncated weights."""
    root = tmp_path_factory.mktemp("models")
    a = tiny_model.build(root / "a", context=256)
    b = tiny_model.build(root / "b", context=128, padding=8)
    return str(a), str(b)


def ask(s, model, prompt="hello world", n=8, **kw):
    return s.post(
        "/v1/completions",
        {"model": model, "prompt": prompt, "max_tokens": n, "temperature": 0, **kw},
    )


def states(s):
    return {m["id"]: m["status"]["value"] for m in s.get("/v1/models").json()["data"]}


def need(s, name):
    return next(m["bytes"] for m in s.status()["models"] if m["name"] == name)


@pytest.fixture(scope="module")
def both(serve, folders):
    with serve(f"--model=a={folders[0]}", "--model", f"b={folders[1]}", *OPTIONS) as s:
        yield s
        assert s.stop()[0] == 0


def test_names_choose_and_the_first_is_the_default(both):
    assert list(states(both)) == ["a", "b"] and states(both)["a"] == "loaded"
    a, b = ask(both, "a").json(), ask(both, "b").json()
    assert a["model"] == "a" and b["model"] == "b"
    assert states(both) == {"a": "loaded", "b": "loaded"}
    no_name = both.post(
        "/v1/completions", {"prompt": "hello world", "max_tokens": 8, "temperature": 0}
    ).json()
    assert no_name["model"] == "a" and no_name["choices"] == a["choices"]
    assert both.get("/v1/models/b").json()["max_model_len"] == 128
    # other dialects select models alike
    assert (
        both.post(
            "/api/generate",
            {
                "model": "b:latest",
                "prompt": "hello",
                "stream": False,
                "options": {"num_predict": 2},
            },
        ).json()["model"]
        == "b"
    )
    assert (
        both.post(
            "/v1/messages",
            {"model": "b", "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]},
        ).json()["model"]
        == "b"
    )
    assert [m["name"] for m in both.get("/api/tags").json()["models"]] == ["a", "b"]


def test_unknown_names_get_the_list_of_models(both):
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
    ):
        r = both.post(path, {"model": "c", **body})
        assert r.status == 404 and "'a', 'b'" in r.text, (path, r.text)
    assert (
        both.post("/v1/completions", {"model": "c", "prompt": "x"}).json()["error"]["code"]
        == "model_not_found"
    )
    assert both.get("/v1/models/c").status == 404
    assert both.post("/v1/completions", {"model": 3, "prompt": "x"}).status == 400


def test_with_the_openai_client(both):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=both.url + "/v1", api_key="none", max_retries=0)
    assert [m.id for m in client.models.list()] == ["a", "b"]
    for name in ("b", "a"):
        assert client.completions.create(model=name, prompt="hello", max_tokens=2).model == name
        text = [
            c.choices[0].delta.content
            for c in client.chat.completions.create(
                model=name, messages=[{"role": "user", "content": "x"}], max_tokens=3, stream=True
            )
            if c.choices
        ]
        assert text
    with pytest.raises(openai.NotFoundError, match="'a', 'b'"):
        client.chat.completions.create(model="gpt-4o", messages=[{"role": "user", "content": "x"}])


def metrics(s):
    """Parse /metrics: each family occurs once, with its samples after its head."""
    lines, at = s.get("/metrics").text.split("\n"), None
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    for line in lines:
        if line.startswith("# TYPE"):
            at = line.split()[2]
        elif line and not line.startswith("#"):
            assert line.startswith(at), (at, line)
    return lines


def test_metrics_have_the_model_as_a_label(both):
    ask(both, "a"), ask(both, "b")
    lines = metrics(both)
    for name in ("a", "b"):
        assert any(line.startswith(f'tgi_request_count{{model_name="{name}"}}') for line in lines)
        assert any(
            line.startswith(f'vllm:generation_tokens_total{{engine="0",model_name="{name}"}}')
            for line in lines
        )
        assert f'tgi_request_failure{{model_name="{name}",err="dropped"}} 0' in lines


def test_sleep_and_wake(both):
    first = ask(both, "b").json()["choices"]
    assert both.get("/is_sleeping?model=b").json() == {"is_sleeping": False}
    assert both.request("POST", "/sleep?level=1&model=b").json() == {
        "model": "b",
        "status": "unloaded",
    }
    assert states(both) == {"a": "loaded", "b": "unloaded"}
    assert both.get("/is_sleeping?model=b").json() == {"is_sleeping": True}
    assert both.get("/is_sleeping").json() == {"is_sleeping": False}
    assert both.get("/health").status == 200
    assert (
        'vllm:engine_sleep_state{engine="0",model_name="b",sleep_state="awake"} 0'
        in both.get("/metrics").text
    )
    assert both.request("POST", "/wake_up?model=b").status == 200 and states(both)["b"] == "loaded"
    assert both.request("POST", "/wake_up?model=b").status == 200  # again: no effect
    both.request("POST", "/sleep?model=b")
    # a request wakes it, and its answers are unchanged
    assert ask(both, "b").json()["choices"] == first
    assert both.request("POST", "/sleep").status == 200  # all models
    assert both.get("/is_sleeping").json() == {"is_sleeping": True}
    assert (
        both.get("/health").status == 200
        and both.get("/info").status == 200
        and both.get("/status.json").status == 200
    )
    assert ask(both, "a").status == 200
    assert both.request("POST", "/wake_up").status == 400  # no model named
    assert both.request("POST", "/wake_up?model=c").status == 404
    assert both.request("POST", "/sleep?level=7").status == 400
    # refused for web pages of other origins
    assert (
        both.request("POST", "/sleep?model=a", headers={"Origin": "http://evil.example"}).status
        == 403
    )
    assert states(both)["a"] == "loaded"


def test_what_runs_ends_before_its_model_sleeps(both):
    """The stream completes though its model has been put to sleep; later requests load it
    again.
    """
    whole = ask(both, "b", n=100, ignore_eos=True).json()["choices"][0]["text"]
    got = {}

    def run():
        got["text"] = ask(both, "b", n=100, ignore_eos=True).json()["choices"][0]["text"]

    threads = [threading.Thread(target=run) for _ in range(3)]
    for t in threads:
        t.start()
    answers = [both.request("POST", "/sleep?model=b").status for _ in range(3)]
    for t in threads:
        t.join()
    assert answers == [200] * 3 and got["text"] == whole
    assert ask(both, "b", n=100, ignore_eos=True).json()["choices"][0]["text"] == whole


def test_reload(serve, folders, tmp_path):
    """A model is reloaded under its name; if its file is broken, the old one stays in service."""
    home = tmp_path / "m"
    shutil.copytree(folders[0], home)
    weights = next(p for p in home.iterdir() if p.suffix == ".safetensors")
    with serve(f"--model=m={home}", *OPTIONS) as s:
        before = ask(s, "m").json()["choices"]
        good = weights.read_bytes()
        fresh = tmp_path / "fresh"
        fresh.write_bytes(good[: len(good) // 2])
        os.replace(fresh, weights)
        r = s.request("POST", "/reload")
        assert r.status == 400 and "stays" in r.json()["error"]["message"], r.text
        assert ask(s, "m").json()["choices"] == before and states(s) == {"m": "loaded"}
        # other weights: the same values in another order
        n = int.from_bytes(good[:8], "little")
        changed = bytearray(good)
        head = json.loads(good[8 : 8 + n])
        name = next(k for k in head if "embed" in k)
        lo, hi = (8 + n + x for x in head[name]["data_offsets"])
        half = (hi - lo) // 2
        changed[lo : lo + half], changed[lo + half : lo + 2 * half] = (
            good[lo + half : lo + 2 * half],
            good[lo : lo + half],
        )
        fresh.write_bytes(changed)
        os.replace(fresh, weights)
        assert s.request("POST", "/reload?model=m").json() == {"model": "m", "status": "reloaded"}
        after = ask(s, "m").json()["choices"]
        fresh.write_bytes(good)
        os.replace(fresh, weights)
        assert s.request("POST", "/reload").status == 200
        assert ask(s, "m").json()["choices"] == before != after


def test_a_budget_for_one_of_two(serve, both, folders):
    """Both are answered though only one fits at a time; no request is lost when many want both
    at once.
    """
    budget = max(need(both, "a"), need(both, "b")) + 1000
    want = {name: ask(both, name, n=16).json()["choices"] for name in "ab"}
    with serve(
        f"--model=a={folders[0]}", "--model", f"b={folders[1]}", *OPTIONS, "--memory", budget
    ) as s:
        assert states(s) == {"a": "loaded", "b": "unloaded"}
        assert ask(s, "b", n=16).json()["choices"] == want["b"] and states(s) == {
            "a": "unloaded",
            "b": "loaded",
        }
        got = []

        def run(name):
            got.append((name, ask(s, name, n=16)))

        threads = [threading.Thread(target=run, args=("ab"[i % 2],)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(got) == 12
        for name, r in got:
            assert r.status == 200 and r.json()["choices"] == want[name], r.text
        # no memory for a second copy next to the first
        name = next(k for k, v in states(s).items() if v == "loaded")
        r = s.request("POST", f"/reload?model={name}")
        assert r.status == 503 and "--memory" in r.text and "stays" in r.text
        assert ask(s, name, n=16).json()["choices"] == want[name]


def fails(llmc_binary, *args):
    r = subprocess.run(
        [llmc_binary, "serve", "--port", "0", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert r.returncode == 1 or r.returncode == 2, (r.returncode, r.stderr)
    return r.stderr


def test_mistakes_at_the_start(llmc_binary, folders, tmp_path):
    a, b = folders
    assert "name a model" in fails(llmc_binary, "--model-name", "x")
    assert "two models are named x" in fails(
        llmc_binary, "--model", f"x={a}", "--model", f"x={b}", *OPTIONS
    )
    assert "no/where" in fails(llmc_binary, "--model", f"a={a}", "--model", "b=no/where", *OPTIONS)
    assert "--memory allows" in fails(llmc_binary, "--model", f"a={a}", "--memory", "1K", *OPTIONS)
    assert "--model-name" in fails(
        llmc_binary, "--model", f"a={a}", "--model", f"b={b}", "--model-name", "c", *OPTIONS
    )
    assert "--draft" in fails(
        llmc_binary, "--model", f"a={a}", "--model", f"b={b}", "--draft", a, *OPTIONS
    )
    broken = tmp_path / "broken"
    shutil.copytree(b, broken)
    (broken / "config.json").write_text("{")
    assert "broken" in fails(llmc_binary, "--model", f"a={a}", "--model", f"b={broken}", *OPTIONS)


def test_a_model_that_breaks_later(serve, folders, tmp_path):
    """Requests for it get the reason, other models continue; it works again when the file is
    back.
    """
    home = tmp_path / "m"
    shutil.copytree(folders[1], home)
    weights = next(p for p in home.iterdir() if p.suffix == ".safetensors")
    with serve(f"--model=a={folders[0]}", "--model", f"m={home}", *OPTIONS) as s:
        os.rename(weights, tmp_path / "away")
        r = ask(s, "m")
        assert r.status == 503 and r.json()["error"]["code"] == "model_not_loaded", r.text
        assert s.request("POST", "/wake_up?model=m").status == 503
        assert (
            ask(s, "a").status == 200
            and s.get("/health").status == 200
            and states(s)["m"] == "unloaded"
        )
        os.rename(tmp_path / "away", weights)
        assert ask(s, "m").status == 200


def test_settings_file_names_several(serve, folders, tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text(
        f"model: [a={folders[0]}, b={folders[1]}]\narch: generic\nthreads: 1\nseqs: 2\n"
    )
    with serve(folders[0], "--config", config, "--model-name", "only") as s:
        assert list(states(s)) == ["only"]  # models of the command line replace those of the file
    with serve(f"--config={config}") as s:
        assert list(states(s)) == ["a", "b"]


def test_idle_models_fall_asleep(serve, folders):
    with serve(f"--model=a={folders[0]}", *OPTIONS, "--sleep-after", "0.2") as s:
        s.until(lambda: states(s) == {"a": "unloaded"})
        assert ask(s, "a").status == 200
        s.until(lambda: states(s) == {"a": "unloaded"})


LORA = os.path.join(weights.HERE, "lora")


def agrees(s, model, prompt, logits):
    """Compare the sum of the prompt's log probabilities with PEFT's logits."""
    r = s.post(
        "/v1/completions",
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0,
            "echo": True,
            "logprobs": 0,
        },
    )
    assert r.status == 200, r.text
    got = r.json()["choices"][0]["logprobs"]["token_logprobs"][1 : len(prompt)]
    x = logits.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    x = x - np.log(np.exp(x).sum(-1, keepdims=True))
    want = [x[i, prompt[i + 1]] for i in range(len(prompt) - 1)]
    return np.abs(np.array(got) - want).max()


def test_adapters_by_name(serve, tmp_path):
    """--lora NAME=DIR and /v1/load_lora_adapter: each name answers as PEFT's model does, the
    base as without adapters.
    """
    g = weights.Golden("llama-modern")
    g.build(tmp_path / "base")
    home = tmp_path / "adapters"
    shutil.copytree(os.path.join(LORA, "embed-head"), home / "head")
    shutil.copytree(os.path.join(LORA, "qv-rslora"), home / "other")  # an adapter of another model
    outside = tmp_path / "outside"
    shutil.copytree(os.path.join(LORA, "embed-head"), outside)
    os.symlink(outside, home / "link")
    logits = {c: np.load(os.path.join(LORA, c, "logits.npy")) for c in ("llama-all", "embed-head")}
    with serve(
        tmp_path / "base",
        "--model-name",
        "base",
        "--lora",
        f"all={LORA}/llama-all",
        "--lora-dir",
        home,
        "--set",
        "kv.dtype=f32",
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "2",
    ) as s:

        def load(name, path, **kw):
            return s.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, **kw})

        assert {m["id"]: m["parent"] for m in s.get("/v1/models").json()["data"]} == {
            "base": None,
            "all": "base",
        }
        r = load("head", "head")
        assert r.status == 200 and "'head'" in r.text, r.text
        scale = np.abs(logits["llama-all"]).max()
        for model, want in (
            ("base", g.logits),
            ("all", logits["llama-all"]),
            ("head", logits["embed-head"]),
        ):
            assert agrees(s, model, g.prompt, want) < 6e-3 * scale, model
        assert agrees(s, "all", g.prompt, g.logits) > 0.1
        assert (
            s.post("/generate", {"inputs": "a", "parameters": {"adapter_id": "none"}}).status == 404
        )  # found like "model"
        told = [line for line in metrics(s) if line.startswith("vllm:lora_requests_info{")]
        assert (
            len(told) == 1
            and 'model_name="base",max_lora="2",running_lora_adapters="",waiting_lora_adapters=""'
            in told[0]
        )  # only for the base
        # mistakes
        assert load("head", "head").status == 400 and load("base", "head").status == 400
        for path in ("link", "../outside", str(outside), "/etc", "none"):
            assert load("x", path).status == 404, path
        assert (
            load("x", "other").status == 400
            and load("x", "head", base_model_name="none").status == 404
            and load("x", "head", base_model_name="all").status == 400
        )
        assert s.post("/v1/load_lora_adapter", {"lora_name": "x"}).status == 400
        assert s.post("/v1/unload_lora_adapter", {"lora_name": "base"}).status == 404
        # unloaded and loaded again
        assert s.post("/v1/unload_lora_adapter", {"lora_name": "head"}).status == 200
        assert s.post("/v1/unload_lora_adapter", {"lora_name": "head"}).status == 404
        assert ask(s, "head", prompt=[5, 6]).status == 404 and "head" not in states(s)
        assert load("head", str(home / "head")).status == 200
        assert agrees(s, "head", g.prompt, logits["embed-head"]) < 6e-3 * scale
        assert s.stop()[0] == 0


def test_adapters_in_slots(serve, tmp_path):
    """--lora-slots: names that share one engine, whose batches mix their requests; loaded,
    unloaded, asleep and loaded again.
    """
    g = weights.Golden("llama-modern")
    g.build(tmp_path / "base")
    home = tmp_path / "adapters"
    for case in ("llama-all", "embed-head"):
        shutil.copytree(os.path.join(LORA, case), home / case)
    logits = {"base": g.logits} | {
        n: np.load(os.path.join(LORA, c, "logits.npy"))
        for n, c in (("all", "llama-all"), ("some", "llama-some"))
    }
    scale = np.abs(logits["all"]).max()
    options = (
        "--model-name",
        "base",
        "--lora-slots",
        "2",
        "--lora-rank",
        "5",
        "--set",
        "kv.dtype=f32",
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "6",
        "--speculate",
        "0",
    )
    with serve(
        tmp_path / "base", *options, "--lora", f"some={LORA}/llama-some", "--lora-dir", home
    ) as s:

        def load(name, path):
            return s.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path})

        def answer(model):
            r = s.post(
                "/v1/completions",
                {
                    "model": model,
                    "prompt": g.prompt,
                    "max_tokens": 12,
                    "temperature": 0,
                    "ignore_eos": True,
                    "logprobs": 1,
                },
            )
            assert r.status == 200 and r.json()["model"] == model, r.text
            return r.json()["choices"][0]["logprobs"]["token_logprobs"]

        assert load("all", "llama-all").status == 200
        assert {m["id"]: m["parent"] for m in s.get("/v1/models").json()["data"]} == {
            "base": None,
            "all": "base",
            "some": "base",
        }
        for model, want in logits.items():
            assert agrees(s, model, g.prompt, want) < 6e-3 * scale, model
        alone = {n: answer(n) for n in logits}
        assert len({str(a) for a in alone.values()}) == 3
        with ThreadPoolExecutor(6) as pool:
            for _ in range(2):
                for name, got in zip([*logits] * 4, pool.map(answer, [*logits] * 4)):
                    assert got == alone[name], name
        # more names than slots: the least recently used is evicted, also with concurrent requests
        # and reloads
        assert load("third", "llama-all").status == 200 and answer("third") == alone["all"]
        assert 'max_lora="2"' in s.get("/metrics").text
        turns = ["third", "some", "all", "base"] * 3
        with ThreadPoolExecutor(6) as pool:
            for name, got in zip(turns, pool.map(answer, turns)):
                assert got == alone["all" if name == "third" else name], name
        for name in ("some", "third", "all"):
            assert s.post(f"/reload?model={name}", {}).status == 200
        assert (
            answer("some") == alone["some"]
            and s.post("/v1/unload_lora_adapter", {"lora_name": "third"}).status == 200
        )
        assert s.post("/v1/unload_lora_adapter", {"lora_name": "all"}).status == 200
        assert ask(s, "all", prompt=[5, 6]).status == 404
        refused = load("head", "embed-head")
        assert refused.status == 400 and "has no slot" in refused.text
        assert load("third", "llama-all").status == 200 and answer("third") == alone["all"]
        # the engine sleeps with the names that borrow it, and is loaded by the first request for
        # any of them
        assert s.post("/sleep?model=base", {}).status == 200
        assert set(states(s).values()) == {"unloaded"}
        assert answer("third") == alone["all"] and answer("base") == alone["base"]
        assert s.post("/reload?model=base", {}).status == 200
        assert answer("some") == alone["some"] and answer("third") == alone["all"]
        assert s.post("/sleep", {}).status == 200 and answer("some") == alone["some"]
        assert s.stop()[0] == 0


def test_adapters_are_not_loaded_unasked(both):
    assert both.post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"}).status == 403


def test_a_mapped_file_that_is_truncated_is_a_lost_model(serve, folders, tmp_path):
    """The model of the file fails; the other goes on. The next request packs the lost one again."""
    args = (f"--model=a={folders[0]}", f"--model=b={folders[1]}", *OPTIONS, "--cache-packed")
    with serve(*args, env={"LLMC_CACHE": str(tmp_path)}) as s:
        want = ask(s, "a").json()["choices"][0]["text"]
        (packed,) = tmp_path.rglob("packed")
        other = ask(s, "b").json()["choices"][0]["text"]
        os.truncate(packed, 0)
        r = ask(s, "a")
        assert r.status >= 500 and "a file of its weights was truncated" in r.text
        assert states(s) == {"a": "failed", "b": "loaded"}
        assert re.search(r'^llmc:model_failed\{.*"a".*\} 1$', s.get("/metrics").text, re.M)
        assert ask(s, "b").json()["choices"][0]["text"] == other
        with ThreadPoolExecutor(4) as pool:  # requests wait while it is opened
            for r in pool.map(lambda _: ask(s, "a"), range(4)):
                assert r.status == 200 and r.json()["choices"][0]["text"] == want, r.text
        assert states(s) == {"a": "loaded", "b": "loaded"} and s.get("/health").status == 200
        assert re.search(r'^llmc:model_failed\{.*"a".*\} 0$', s.get("/metrics").text, re.M)
        assert s.stop()[0] == 0


def test_a_health_check_opens_a_lost_model(serve, folders, tmp_path):
    """A load balancer sends no request to a server whose /health fails."""
    options = (*OPTIONS, "--cache-packed")
    with serve(f"--model=a={folders[0]}", *options, env={"LLMC_CACHE": str(tmp_path)}) as s:
        want = ask(s, "a").json()["choices"]
        for packed in (tmp_path / "weights").rglob("packed"):
            os.truncate(packed, 0)
        assert ask(s, "a").status >= 500
        assert s.get("/health").status == 503
        s.until(lambda: s.get("/health").status == 200)
        assert states(s) == {"a": "loaded"}
        assert ask(s, "a").json()["choices"] == want
        assert s.stop()[0] == 0


def test_a_checkpoint_that_is_truncated_while_it_is_read(serve, folders, tmp_path):
    """Its model gets an error or its old weights; the server and the other model live on."""
    path = tiny_model.build(tmp_path / "b", context=128, padding=20000)
    file = next(pathlib.Path(path).glob("*.safetensors"))
    good = file.read_bytes()
    with serve(f"--model=a={folders[0]}", f"--model=b={path}", *OPTIONS) as s:
        pick = random.Random(3)
        for _ in range(25):
            file.write_bytes(good)
            assert s.request("POST", "/sleep?model=b").status == 200
            with ThreadPoolExecutor(1) as pool:
                woken = pool.submit(s.request, "POST", "/wake_up?model=b")
                time.sleep(pick.uniform(0, 0.05))
                os.truncate(file, pick.randrange(len(good)))
                assert woken.result().status in (200, 503)
            assert ask(s, "a").status == 200
        file.write_bytes(good)
        assert s.request("POST", "/sleep?model=b").status == 200
        assert ask(s, "b").status == 200
        assert s.stop()[0] == 0


def test_files_that_are_written_into_while_a_model_is_open(serve, folders, tmp_path):
    """Weights in memory do not change with the checkpoint. A packed file gives other answers, no
    crash, and is refused at the next start."""
    path = tiny_model.build(tmp_path / "b", context=128, padding=8)
    file = next(pathlib.Path(path).glob("*.safetensors"))
    good = file.read_bytes()
    noise = random.Random(4)
    cache = {"LLMC_CACHE": str(tmp_path / "cache")}
    models = (f"--model=a={folders[0]}", f"--model=b={path}", *OPTIONS)
    with serve(*models, env=cache) as s:
        want, other = ask(s, "b").json()["choices"], ask(s, "a").json()["choices"]
        with open(file, "r+b") as f:
            f.write(noise.randbytes(len(good)))
        assert ask(s, "b").json()["choices"] == want
        assert s.stop()[0] == 0
    file.write_bytes(good)
    with serve(*models, "--cache-packed", env=cache) as s:
        assert ask(s, "b").json()["choices"] == want
        for packed in (tmp_path / "cache/weights").rglob("packed"):
            with open(packed, "r+b") as f:
                f.seek(4096)
                f.write(noise.randbytes(packed.stat().st_size - 4096))
        for _ in range(3):
            assert ask(s, "b").status in (200, 500)
        assert s.get("/v1/models").status == 200
        assert s.stop()[0] == 0
    with serve(*models, "--cache-packed", env=cache) as s:
        assert ask(s, "b").json()["choices"] == want
        assert ask(s, "a").json()["choices"] == other
        assert s.stop()[0] == 0
    # while it is read: the values of a moment, or a refusal
    with serve(*models, env=cache) as s:
        for _ in range(25):
            assert s.request("POST", "/sleep?model=b").status == 200
            with ThreadPoolExecutor(1) as pool:
                woken = pool.submit(s.request, "POST", "/wake_up?model=b")
                with open(file, "r+b") as f:
                    for _ in range(100):
                        f.seek(noise.randrange(len(good) - 8))
                        f.write(noise.randbytes(8))
                assert woken.result().status in (200, 503)
            file.write_bytes(good)
            assert ask(s, "a").json()["choices"] == other
        assert s.stop()[0] == 0
