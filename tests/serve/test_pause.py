"""/pause and /resume: requests at every stage when the call comes, several names, and clients that
leave while a model is paused. The order of a training loop is in test_weights.py.
"""

import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import tiny_model
import tiny_vision
import weights
from test_images import FILES, OPTIONS as IMAGE_OPTIONS
from test_models import LORA, ask
from waiting import wait_for

OPTIONS = ("-t", "1", "--seqs", "4", "--context", "4096", "--arch=generic")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("pause") / "b")


def long(s, model, n=3000):
    return ask(s, model, n=n, ignore_eos=True)


def pause(s, query=""):
    return s.request("POST", "/pause?" + query)


def resume(s, query=""):
    return s.request("POST", "/resume?" + query)


def is_paused(s, query=""):
    return s.get("/is_paused?" + query).json()["is_paused"]


def waiting(s):
    return sum(m["waiting"] for m in s.status()["models"])


def cancelled(r):
    return r.status == 503 and "the model is paused" in r.json()["error"]["message"]


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_requests_that_have_not_reached_the_engine(serve, tmp_path, mode):
    """After the answer nothing runs: not those in the queue for images, nor those whose images are
    being read. Requests that the model did not have yet wait.
    """
    folder = tiny_vision.build(tmp_path / "vision")
    options = ["--arch", "generic", "-t", "1", "--seqs", "8", "--no-image-cache", *IMAGE_OPTIONS]
    with serve(folder, *options) as s:
        image = {"type": "image_url", "image_url": {"url": tiny_vision.data_url(FILES[0])}}

        def see(i):
            content = [image] * 8 + [{"type": "text", "text": f"{i}?"}]
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
            return s.post("/v1/chat/completions", body)

        assert see(9).status == 200
        with ThreadPoolExecutor(24) as pool:
            sent = [pool.submit(see, i) for i in range(24)]
            s.until(lambda: s.status()["requests"]["active"] >= 6 or sent[-1].done())
            assert pause(s, f"mode={mode}").status == 200
            before = s.status()
            assert before["batch"]["running"] == 0
            s.until(lambda: s.status()["requests"]["active"] == 1 + waiting(s))
            after = s.status()
            assert after["tokens"]["prompt"] == before["tokens"]["prompt"]
            assert after["steps"] == before["steps"]
            done = [f.result() for f in sent if f.done()]
            assert resume(s).status == 200
            answers = [f.result() for f in sent]
        assert all(r.status == 200 or cancelled(r) for r in done), [
            (r.status, r.text[-200:]) for r in done if not (r.status == 200 or cancelled(r))
        ]
        assert mode == "abort" or all(r.status == 200 for r in answers)
        assert see(10).status == 200
        assert s.stop()[0] == 0


@pytest.mark.parametrize("mode", ["abort", "wait"])
def test_requests_of_an_engine_that_was_replaced(serve, folder, mode):
    """/reload leaves them to the old engine; they count for the pause all the same."""
    with serve(f"--model=b={folder}", *OPTIONS) as s, ThreadPoolExecutor(1) as pool:
        first = pool.submit(long, s, "b", 3000 if mode == "abort" else 300)
        s.until(lambda: s.status()["batch"]["running"] or first.done())
        assert s.request("POST", "/reload?model=b").status == 200
        assert pause(s, f"mode={mode}").status == 200
        # the pause has awaited its end
        r = first.result()
        if mode == "abort" and r.status != 200:  # a fast machine may finish it before the call
            assert cancelled(r), r.text
        else:
            assert r.status == 200, r.text
        assert resume(s).status == 200 and ask(s, "b").status == 200
        assert s.stop()[0] == 0


def test_names_that_share_an_engine(serve, tmp_path):
    """Each adapter slot is paused by its own name; one that is unloaded refuses what waits."""
    weights.Golden("llama-modern").build(tmp_path / "base")
    home = tmp_path / "adapters"
    shutil.copytree(os.path.join(LORA, "llama-all"), home / "all")
    options = (*OPTIONS[:4], "--arch=generic", "--model-name", "base", "--lora-slots", "2")
    prompt = [5, 6]

    def request(name, n=4):
        return ask(s, name, prompt=prompt, n=n, ignore_eos=True)

    with serve(tmp_path / "base", *options, "--lora-rank", "5", "--lora-dir", home) as s:
        load = {"lora_name": "x", "lora_path": "all"}
        assert s.post("/v1/load_lora_adapter", load).status == 200
        most = s.get("/v1/models").json()["data"][0]["max_model_len"] - 8
        with ThreadPoolExecutor(4) as pool:
            runs = pool.submit(request, "x", most)
            s.until(lambda: s.status()["batch"]["running"] or runs.done())
            # requests of the adapter do not delay the answer, and are not cancelled
            r = pause(s, "model=base&mode=abort")
            assert r.status == 200 and r.json()["model"] == "base", r.text
            assert is_paused(s, "model=base") and not is_paused(s, "model=x")
            assert not is_paused(s)
            assert request("x").status == 200 and runs.result().status == 200
            assert pause(s, "model=x&mode=keep").json() == {
                "success": True,
                "model": "x",
                "status": "paused",
            }
            assert is_paused(s)
            later = [pool.submit(request, name) for name in ("x", "base")]
            s.until(lambda: waiting(s) == 2)
            assert s.post("/v1/unload_lora_adapter", {"lora_name": "x"}).status == 200
            assert later[0].result().status == 404, later[0].result().text
            assert not later[1].done() and is_paused(s)
            assert resume(s, "model=base").status == 200
            assert later[1].result().status == 200
        # a new adapter of the same name is not paused, unless all models are
        assert s.post("/v1/load_lora_adapter", load).status == 200
        assert not is_paused(s) and request("x").status == 200
        assert pause(s).json() == {"success": True, "status": "paused"}
        assert s.post("/v1/load_lora_adapter", {**load, "lora_name": "y"}).status == 200
        assert is_paused(s, "model=y")
        assert resume(s).json() == {"success": True, "status": "resumed"}
        assert not is_paused(s, "model=y") and request("y").status == 200
        assert s.stop()[0] == 0


def test_a_server_without_a_model_of_its_own(serve, folder, tmp_path):
    """Its empty first name, and models that were deleted, count for nothing."""
    for name in "bcd":
        shutil.copytree(folder, tmp_path / name)
    with serve(f"--models-dir={tmp_path}", *OPTIONS) as s, ThreadPoolExecutor(4) as pool:
        assert not is_paused(s)
        assert pause(s, "model=b").json()["model"] == "b"
        assert is_paused(s) and is_paused(s, "model=b")
        assert resume(s).status == 200 and not is_paused(s)
        # models of the catalogue that get their first request after the call wait too
        assert ask(s, "b").status == 200 and ask(s, "c").status == 200
        assert pause(s).status == 200 and is_paused(s)
        later = pool.submit(ask, s, "d")
        s.until(lambda: waiting(s) == 1)
        gone = pool.submit(ask, s, "c")
        s.until(lambda: waiting(s) == 2)
        assert s.request("DELETE", "/v1/models/c").status == 200
        assert gone.result().status == 404, gone.result().text
        assert is_paused(s) and not later.done()
        assert resume(s, "model=d").status == 200 and later.result().status == 200
        assert not is_paused(s) and is_paused(s, "model=b")
        # its name is still in the folder: it is a new model
        assert is_paused(s, "model=c")
        assert resume(s).status == 200 and ask(s, "c").status == 200
        assert s.stop()[0] == 0


def test_clients_that_leave_do_not_count(engine):
    with engine(max_live=4) as s, ThreadPoolExecutor(1) as pool:
        assert pause(s, "mode=keep").status == 200
        data = json.dumps({"prompt": "hello", "max_tokens": 2}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        ).encode()
        for _ in range(3):
            clients = [s.connect() for _ in range(4)]
            for c in clients:
                c.sendall(head + data)
            s.until(lambda: waiting(s) == 4)
            r = s.post("/v1/completions", data)
            assert r.status == 429, r.text
            for c in clients:
                c.close()
            s.until(lambda: waiting(s) == 0)
        last = pool.submit(s.post, "/v1/completions", data)
        s.until(lambda: waiting(s) == 1)
        assert resume(s).status == 200 and last.result().status == 200


def test_the_time_limit_runs_while_a_model_is_paused(everything):
    with everything(request_timeout_s=0.3) as s:
        body = {"prompt": "hello", "max_tokens": 2}
        assert pause(s, "mode=keep").status == 200
        r = s.post("/v1/completions", body)
        assert r.status == 503 and "--request-timeout" in r.json()["error"]["message"], r.text
        wait_for(lambda: waiting(s) == 0)


def test_a_paused_server_is_healthy_and_stops(fake):
    with fake() as s, ThreadPoolExecutor(2) as pool:
        assert pause(s).status == 200
        assert s.get("/health").status == 200
        body = {"prompt": "hello", "max_tokens": 2}
        r = [pool.submit(s.post, "/v1/completions", body) for _ in range(2)]
        s.until(lambda: waiting(s) == 2)
        assert s.stop()[0] == 0
        for f in r:
            assert f.result().status == 503


@pytest.mark.parametrize("path", ["/pause", "/pause_generation", "/resume", "/continue_generation"])
def test_fields_of_a_wrong_type_have_no_effect(fake, path):
    with fake() as s:
        for value in 5, True, [], {}, ["abort"], "a\0b", "other":
            for key in "model", "mode":
                r = s.post(path, {key: value})
                if key == "model":
                    assert r.status == (404 if value == "other" else 400), (value, r.text)
                else:
                    assert r.status == 400 or "/pause" not in path, (value, r.text)
                assert not is_paused(s)
        assert s.post(path, {"model": None, "mode": None}).status == 200
        assert is_paused(s) == ("/pause" in path)
