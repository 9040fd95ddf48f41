"""Weights replaced in place: POST /v1/weights, and SGLang's name for it. Answers are those of a
server that was started with the new checkpoint.
"""

import os
import pathlib
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import quant_format_values as safetensors
import tiny_model

OPTIONS = ("-t", "1", "--seqs", "4", "--context", "128")
# options, and the golden model
KINDS = {
    "generic": (("--arch", "generic"), "llama-smol"),
    "packed": ((), "llama-smol"),
    "quantised": (("--quantize", "q8_0"), "gpt_oss-wide"),
}


def file_of(folder):
    (path,) = pathlib.Path(folder).glob("*.safetensors")
    return path


def rolled(old, new):
    """Copy a checkpoint with the rows of each matrix moved by one: other values, same shapes."""
    shutil.copytree(old, new)
    tensors = safetensors.read(file_of(new)).items()
    moved = {n: (t, np.roll(x, -1, 0) if x.ndim > 1 else x) for n, (t, x) in tensors}
    safetensors.write(file_of(new), moved)
    return new


def checkpoints(root, **kw):
    """A model, and the folder of new weights, which holds step-1 and step-2."""
    a = tiny_model.build(root / "a", **kw)
    rolled(a, root / "run" / "step-1")
    rolled(root / "run" / "step-1", root / "run" / "step-2")
    return a, root / "run"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return checkpoints(tmp_path_factory.mktemp("weights"))


PROMPT = "hello world, a prompt of more than one page of the cache: " + "x" * 40


def ask(s, n=8, **kw):
    body = {"prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True, **kw}
    return s.post("/v1/completions", body)


def all_logprobs(s):
    """Log probabilities of all prompt tokens and of some new ones."""
    r = ask(s, echo=True, logprobs=5)
    assert r.status == 200, r.text
    return r.json()["choices"]


def version(s):
    return s.get("/v1/models").json()["data"][0]["weights"]


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_a_new_server(serve, kind, tmp_path):
    own, base = KINDS[kind]
    a, run = checkpoints(tmp_path / "new", base=base)
    options = (*OPTIONS, *own, "--model-name", "m")
    want = []
    for folder in (a, run / "step-1", run / "step-2"):
        with serve(folder, *options) as s:
            want.append(all_logprobs(s))
    assert want[0] != want[1] != want[2]
    home = tmp_path / "run"
    shutil.copytree(run, home)
    with serve(a, *options, "--weights-dir", home) as s:
        assert version(s) == {"version": 0, "name": None}
        # twice, so that the prompt is in the prefix cache
        assert all_logprobs(s) == all_logprobs(s) == want[0]
        assert ask(s).json()["choices"][0]["text"] == ask(s).json()["choices"][0]["text"]
        r = s.post("/v1/weights", {"path": "step-1", "name": "first"})
        assert r.status == 200 and r.json()["version"] == 1, r.text
        assert version(s) == {"version": 1, "name": "first"}
        shutil.rmtree(home / "step-1")  # the checkpoint was copied
        fresh = ask(s).json()
        assert not (fresh["usage"].get("prompt_tokens_details") or {}).get("cached_tokens")
        assert all_logprobs(s) == want[1]
        again = ask(s).json()
        assert again["choices"] == fresh["choices"]
        # a file instead of a folder, by SGLang's names
        path = file_of(home / "step-2")
        r = s.post(
            "/update_weights_from_disk", {"model_path": str(path), "weight_version": "second"}
        )
        assert r.status == 200 and r.json()["success"] is True, r.text
        assert all_logprobs(s) == want[2] and version(s) == {"version": 2, "name": "second"}
        assert s.request("POST", "/reload").status == 200
        assert all_logprobs(s) == want[0] and version(s)["version"] == 0


def test_mistakes_leave_the_old_weights(serve, folders, tmp_path):
    a, run = folders
    path = file_of(run / "step-1")
    tensors = safetensors.read(path)
    home = tmp_path / "run"
    home.mkdir()
    first = next(n for n in tensors if "q_proj" in n)
    less = {n: t for n, t in tensors.items() if n != first}
    safetensors.write(home / "missing.safetensors", less)
    kind, x = tensors[first]
    turned = {**tensors, first: (kind, x.reshape(2 * len(x), -1))}
    safetensors.write(home / "shape.safetensors", turned)
    raw = path.read_bytes()
    (home / "cut.safetensors").write_bytes(raw[: len(raw) // 2])
    (home / "text.safetensors").write_text("no weights")
    os.mkfifo(home / "fifo.safetensors")
    os.symlink(path, home / "outside.safetensors")
    keys = tmp_path / "keys"
    keys.write_text("client client-key\n")
    with serve(
        a, *OPTIONS, "--arch=generic", "--weights-dir", home, "--api-key=own", "--keys", keys
    ) as s:

        def post(body, key="own", path="/v1/weights"):
            return s.request("POST", path, body, headers={"Authorization": "Bearer " + key})

        def text():
            r = post({"prompt": "hello", "max_tokens": 8, "temperature": 0}, path="/v1/completions")
            return r.json()["choices"][0]["text"]

        before = text()
        for name, word in (
            ("missing", first),
            ("shape", first),
            ("cut", "cut.safetensors"),
            ("text", "text.safetensors"),
            ("fifo", "not a regular file"),
        ):
            r = post({"path": name + ".safetensors"})
            assert r.status == 400, r.text
            message = r.json()["error"]["message"]
            assert word in message and "stay in force" in message, message
            r = post({"model_path": name + ".safetensors"}, path="/update_weights_from_disk")
            assert r.status == 400 and r.json()["success"] is False and word in r.json()["message"]
        for name in ("outside.safetensors", "nothing", "../a", str(path)):
            assert post({"path": name}).status == 404, name
        assert post({"path": "cut.safetensors"}, "client-key").status == 403
        assert post({"path": "cut.safetensors"}, "wrong").status == 401
        for body in (
            {},
            {"path": 5},
            {"path": "cut.safetensors", "in_flight": "keep"},
            {"path": "cut.safetensors", "name": "n" * 200},
        ):
            assert post(body).status == 400, body
        assert post({"path": "cut.safetensors", "model": "other"}).status == 404
        assert text() == before
    with serve(a, *OPTIONS, "--arch=generic") as s:
        r = s.post("/v1/weights", {"path": "x"})
        assert r.status == 403 and "--weights-dir" in r.json()["error"]["message"]


@pytest.mark.parametrize("in_flight", ["wait", "abort"])
def test_an_answer_comes_from_one_version(serve, folders, in_flight):
    a, run = folders
    with serve(a, *OPTIONS, "--arch=generic", "--weights-dir", run) as s:
        want = [ask(s, n=24).json()["choices"][0]["text"]]
        assert s.post("/v1/weights", {"path": "step-1"}).status == 200
        want.append(ask(s, n=24).json()["choices"][0]["text"])
        assert want[0] != want[1] and s.request("POST", "/reload").status == 200
        got, stop = [], threading.Event()

        def client():
            while not stop.is_set():
                got.append(ask(s, n=24))

        clients = [threading.Thread(target=client) for _ in range(6)]
        for t in clients:
            t.start()
        for step in ("step-1", "step-2", "step-1"):
            r = s.post("/v1/weights", {"path": step, "in_flight": in_flight})
            assert r.status == 200, r.text
            if step == "step-2":
                want.append(ask(s, n=24).json()["choices"][0]["text"])
        stop.set()
        for t in clients:
            t.join()
        assert len(got) >= 6
        for r in got:
            if r.status == 200:
                assert r.json()["choices"][0]["text"] in want, r.text
            else:
                assert in_flight == "abort" and r.status == 503, r.text
                assert "new weights" in r.json()["error"]["message"]
        assert any(r.status == 200 for r in got)
        assert ask(s, n=24).json()["choices"][0]["text"] == want[1]


def test_new_weights_are_not_evicted(serve, folders, tmp_path):
    """They are in memory only: they stay when another model needs memory; /sleep gives them up."""
    a, run = folders
    b = tiny_model.build(tmp_path / "b", padding=8)
    options = (*OPTIONS, "--arch=generic", "--weights-dir", run)

    def text(s, name):
        return ask(s, model=name)

    with serve(f"--model=a={a}", "--model", f"b={b}", *options) as s:
        before = text(s, "a").json()["choices"]
        assert text(s, "b").status == 200
        need = max(m["bytes"] for m in s.status()["models"])
    with serve(f"--model=a={a}", "--model", f"b={b}", *options, "--memory", need + 1000) as s:
        assert s.post("/v1/weights", {"path": "step-1", "model": "a"}).status == 200
        after = text(s, "a").json()["choices"]
        r = text(s, "b")
        assert r.status == 503 and r.json()["error"]["code"] == "model_too_large", r.text
        assert text(s, "a").json()["choices"] == after != before
        assert s.request("POST", "/sleep?model=a").status == 200
        assert text(s, "b").status == 200
        assert text(s, "a").json()["choices"] == before


class SglangTrainer:
    """Calls of an RL loop to SGLang's server in slime's order, when it syncs weights by disk."""

    def __init__(self, s, folder):
        self.s, self.folder, self.version = s, folder, 0
        assert s.get("/health_generate").status == 200
        assert s.get("/flush_cache").status == 200

    def sync(self, save):
        self.version += 1
        path = self.folder / f"weight_v{self.version:06d}"
        assert self.s.post("/pause_generation", {}).status == 200
        assert self.s.get("/flush_cache").status == 200
        save(path)
        r = self.s.post(
            "/update_weights_from_disk",
            {"model_path": str(path), "weight_version": str(self.version)},
        )
        shutil.rmtree(path)
        assert self.s.post("/continue_generation", {}).status == 200
        return r


class VllmTrainer:
    """TRL's order for vLLM's server, with a checkpoint instead of a broadcast."""

    def __init__(self, s, folder):
        self.s, self.folder, self.version = s, folder, 0
        assert s.get("/health").status == 200
        self.model = s.get("/v1/models").json()["data"][0]["id"]
        # its transport is refused by a sentence that names the one of this server
        for path in ("init_weight_transfer_engine", "start_weight_update", "update_weights"):
            r = s.post("/" + path, {"init_info": {}})
            assert r.status == 400 and "/v1/weights" in r.json()["error"]["message"], r.text

    def generate(self, prompts, n):
        """Send what TRL's client sends: token ids in and out, with log probabilities."""
        body = {
            "model": self.model,
            "prompt": prompts,
            "n": n,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "max_tokens": 6,
            "logprobs": 0,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "seed": 5,
        }
        r = self.s.post("/v1/completions", body)
        assert r.status == 200, r.text
        choices = r.json()["choices"]
        assert [c["prompt_token_ids"] for c in choices[::n]] == prompts
        for c in choices:
            assert c["logprobs"]["tokens"] == [f"token_id:{t}" for t in c["token_ids"]]
            assert all(x <= 0 for x in c["logprobs"]["token_logprobs"])
        return [(c["token_ids"], c["logprobs"]["token_logprobs"]) for c in choices]

    def sync(self, save):
        self.version += 1
        path = self.folder / f"step-{self.version}"
        assert self.s.request("POST", "/pause?mode=keep").status == 200
        assert self.s.get("/is_paused").json() == {"is_paused": True}
        save(path)
        body = {"path": path.name, "name": path.name, "model": self.model}
        r = self.s.post("/v1/weights", body)
        shutil.rmtree(path)
        assert self.s.request("POST", "/resume").status == 200
        assert self.s.get("/is_paused").json() == {"is_paused": False}
        return r


def cut(path):
    """A save that ends in the middle: the second half of the file is missing."""
    file = file_of(path)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("trainer", [SglangTrainer, VllmTrainer])
def test_a_training_loop(serve, folders, trainer, tmp_path):
    """Rollouts, a sync, a sync that fails, rollouts with the weights of the first, another sync."""
    a, run = folders
    want = []
    for step in (a, run / "step-1", run / "step-2"):
        with serve(step, *OPTIONS, "--arch=generic", "--model-name", "m") as s:
            want.append(all_logprobs(s))
            if trainer is VllmTrainer:
                want[-1] = want[-1], trainer(s, tmp_path).generate([[5, 9, 7], [11, 4]], 2)
    home = tmp_path / "run"
    home.mkdir()
    options = (*OPTIONS, "--arch=generic", "--model-name", "m", "--weights-dir", home)
    with serve(a, *options) as s:
        t = trainer(s, home)

        def rollout():
            got = all_logprobs(s)
            return (got, t.generate([[5, 9, 7], [11, 4]], 2)) if trainer is VllmTrainer else got

        def damaged(path):
            shutil.copytree(run / "step-2", path)
            cut(path)

        assert rollout() == want[0]
        assert t.sync(lambda path: shutil.copytree(run / "step-1", path)).status == 200
        assert rollout() == want[1]
        r = t.sync(damaged)
        assert r.status == 400 and "safetensors" in r.text, r.text
        assert rollout() == want[1] and version(s)["version"] == 1
        assert t.sync(lambda path: shutil.copytree(run / "step-2", path)).status == 200
        assert rollout() == want[2] and version(s)["version"] == 2


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_requests_of_a_paused_model_wait(serve, folders, mode):
    """They begin after the resume, with the weights of that time; running ones end by the mode."""
    a, run = folders
    options = ("-t", "1", "--seqs", "4", "--context", "4096", "--arch=generic")
    with serve(a, *options, "--weights-dir", run) as s:
        before = ask(s).json()["choices"][0]["text"]
        long = 60 if mode == "wait" else 3000
        with ThreadPoolExecutor(8) as pool:
            first = pool.submit(ask, s, long)
            s.until(lambda: s.status()["batch"]["running"] or first.done())
            assert s.request("POST", f"/pause?mode={mode}").status == 200
            assert s.get("/is_paused").json() == {"is_paused": True}
            if mode != "keep":
                assert s.status()["batch"]["running"] == 0
            later = [pool.submit(ask, s) for _ in range(3)]
            s.until(lambda: sum(m["waiting"] for m in s.status()["models"]) == 3)
            assert s.post("/v1/tokenize", {"text": "hello", "model": ""}).status != 503
            body = {"path": "step-1", "in_flight": "abort"}
            assert s.post("/v1/weights", body).status == 200
            assert not any(f.done() for f in later)
            assert s.request("POST", "/resume").status == 200
            texts = {f.result().json()["choices"][0]["text"] for f in later}
            r = first.result()
            # a fast machine may finish it before the call
            finished = r.status == 200 and r.json()["usage"]["completion_tokens"] == long
            assert finished or (mode != "wait" and r.status == 503), r.text
            if mode == "abort" and not finished:
                assert "the model is paused" in r.json()["error"]["message"]
        assert texts == {ask(s).json()["choices"][0]["text"]} != {before}
        assert s.request("POST", "/pause?mode=later").status == 400
        assert s.request("POST", "/pause?model=other").status == 404
