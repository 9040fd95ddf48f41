"""Keys with limits: authorisation, limits on requests in flight, the name in the log; and
malformed key files.
"""

import json
import pathlib
import re
import signal
import subprocess
import threading

import pytest
import test_batches

from server_process import BUILD
from waiting import HANG

KEYS = """# name key limits
alice  sk-alice   requests=1 tokens=60
bob\tsk-bob\tpriority=5

carl   sk-carl    tokens=100000
"""


@pytest.fixture(scope="module")
def server(serve, tiny_folder, tmp_path_factory):
    d = tmp_path_factory.mktemp("keys")
    (d / "keys.txt").write_text(KEYS)
    with serve(
        tiny_folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "4",
        "--model-name",
        "tiny",
        "--keys",
        d / "keys.txt",
        "--api-key",
        "sk-all",
        "--log-json",
        "--log-file",
        d / "log",
    ) as s:
        s.lines = d / "log"
        yield s


def ask(s, key, tokens=8, **more):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return s.post(
        "/v1/completions",
        {"model": "tiny", "prompt": "a b c", "max_tokens": tokens, "ignore_eos": True, **more},
        headers=headers,
    )


def test_which_keys_are_accepted(server):
    for key in ("sk-alice", "sk-bob", "sk-carl", "sk-all"):
        assert ask(server, key).status == 200
    for key in (None, "", "sk-alic", "sk-alicee", "alice", "#"):
        a = ask(server, key)
        assert (a.status, a.json()["error"]["code"]) == (401, "invalid_api_key")
    assert server.post(
        "/v1/messages",
        {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]},
        headers={"x-api-key": "sk-bob"},
    ).status in (200, 400)


def test_limits_hold_and_places_come_back(server):
    for i in range(5):  # one at a time: each finds the limit free
        assert ask(server, "sk-alice", 40).status == 200
        a = ask(server, "sk-alice", 60)
        assert (a.status, a.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert "(alice) may have 60 tokens at once, 0 are in flight" in a.json()["error"]["message"]
        assert ask(server, "sk-carl", 60).status == 200
    assert ask(server, "sk-alice", 15, n=4).status == 429  # tokens of all choices count
    frames = ask(server, "sk-alice", 40, stream=True).frames()
    assert frames[-1] == "[DONE]" and ask(server, "sk-alice", 40).status == 200
    assert (
        ask(server, "sk-alice", 8, temperature=9).status == 400
        and ask(server, "sk-alice", 8).status == 200
    )


def test_priorities(server):
    texts = {
        ask(server, key, 20, seed=1, **more).json()["choices"][0]["text"]
        for key in ("sk-bob", "sk-carl")
        for more in ({}, {"priority": -3}, {"priority": 7})
    }
    assert len(texts) == 1
    assert (
        ask(server, "sk-bob", priority=1001).status == 400
        and ask(server, "sk-bob", priority="x").status == 400
    )


def test_the_log_names_the_key(server):
    ask(server, "sk-bob", 3)
    ask(server, "sk-all", 3)

    def keys():
        return {
            x.get("key")
            for x in map(
                json.loads, filter(lambda x: x.endswith("}"), server.lines.read_text().splitlines())
            )
        }

    server.until(lambda: keys() >= {"bob", None})  # a log line may appear after its answer


@pytest.mark.parametrize("file", [True, False])
def test_sighup_reads_the_file_again(serve, tiny_folder, tmp_path, file):
    keys, log = tmp_path / "keys", tmp_path / "log"
    keys.write_text("alice sk-alice\nbob sk-bob requests=1\n")
    with serve(
        tiny_folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "2",
        "--model-name",
        "tiny",
        "--keys",
        keys,
        *(("--log-file", log) if file else ()),
    ) as s:
        log = log if file else pathlib.Path(s.log)

        def again(text, said):
            n = log.read_text().count(said)
            keys.write_text(text)
            s.process.send_signal(signal.SIGHUP)
            s.until(lambda: log.read_text().count(said) > n)

        def statuses():
            return [ask(s, key).status for key in ("sk-alice", "sk-bob", "sk-bobby", "sk-carl")]

        assert statuses() == [200, 200, 401, 401]
        again("bob sk-bobby requests=2 tokens=9\ncarl sk-carl\n", "keys reloaded")
        assert (
            statuses() == [401, 401, 429, 200] and ask(s, "sk-bobby", 1).status == 200
        )  # bob has a new key, and its limit
        again(
            "bob\n",
            "expected NAME KEY and limits, found bob alone; the previous keys stay in force",
        )
        assert statuses() == [401, 401, 429, 200]
        again("alice sk-alice\nbob sk-bob\n", "keys reloaded")
        assert statuses() == [200, 200, 401, 401]
        assert s.stop()[0] == 0


@pytest.mark.parametrize(
    "text,why",
    [
        ("", "holds no key"),
        ("# a b\n", "holds no key"),
        ("alice\n", ":1: expected NAME KEY"),
        ("a x requests=0", "expected requests=N"),
        ("a x\nb x", ":2: b has a name or a key that an earlier line has"),
        ("a x\na y", ":2: a has a name"),
        ("a x priority=1001", "priority=N (-1000 .. 1000)"),
        ("a x tokens=1.5", "expected requests=N"),
        ("a x speed=9", "speed=9: expected"),
        ("a x\nb \0y\nc z\n", "byte 6 is 0"),
    ],
)
def test_wrong_files(tmp_path, tiny_folder, text, why):
    (tmp_path / "keys").write_text(text)
    p = subprocess.run(
        [
            BUILD + "/llmc",
            "serve",
            tiny_folder,
            "--arch",
            "generic",
            "-p",
            "0",
            "--keys",
            tmp_path / "keys",
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 1 and why in p.stderr


SECRET = "The code of the door is 4711. " * 6  # several pages of 32 tokens
SAY = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}
ROUTES = {
    "/v1/completions": {"prompt": SECRET, "max_tokens": 1},
    "/v1/chat/completions": SAY,
    "/v1/responses": {"input": SECRET, "max_output_tokens": 16},
    "/v1/messages": SAY,
    "/generate": {"inputs": SECRET, "parameters": {"max_new_tokens": 1}},
    "/api/chat": {**SAY, "stream": False, "options": {"num_predict": 1}},
    "/api/generate": {"prompt": SECRET, "stream": False, "options": {"num_predict": 1}},
}


def counted(value):
    """Sum the fields of an answer that report cached tokens."""
    if isinstance(value, dict):
        return sum(
            v if k in ("cached_tokens", "cache_read_input_tokens") else counted(v)
            for k, v in value.items()
            if v is not None
        )
    return sum(map(counted, value)) if isinstance(value, list) else 0


@pytest.fixture(scope="module")
def shared(serve, tiny_folder, tmp_path_factory):
    """share(*options): a server with keys for tests of the prefix cache."""

    def start(*options):
        d = tmp_path_factory.mktemp("prefix")
        (d / "keys.txt").write_text("alice sk-alice\nbob sk-bob\n")
        return serve(
            tiny_folder,
            *("--arch", "generic", "-t", "1", "--seqs", "4", "--context", "1024"),
            *("--model-name", "tiny", "--keys", d / "keys.txt", "--api-key", "sk-all"),
            *options,
        )

    return start


def hits(s, key, path, body):
    """(prefix tokens found by a request, prefix tokens that its answer reports)"""

    def total():
        text = s.get("/metrics", headers={"Authorization": "Bearer sk-all"}).text
        return float(re.search(r"^vllm:prefix_cache_hits_total\S* (\S+)", text, re.M)[1])

    before = total()
    r = s.post(path, {"model": "tiny", **body}, headers={"Authorization": f"Bearer {key}"})
    assert r.status == 200, r.text
    return total() - before, counted(r.json())


@pytest.mark.parametrize("path", ROUTES)
def test_prefix_pages_belong_to_a_key(shared, path):
    """A client cannot find out whether another one has sent a prompt."""
    with shared() as s:
        assert hits(s, "sk-alice", path, ROUTES[path]) == (0, 0)
        found, reported = hits(s, "sk-alice", path, ROUTES[path])
        assert found >= 32 and reported in (0, found)
        for other in ("sk-bob", "sk-all"):
            assert hits(s, other, path, ROUTES[path]) == (0, 0)
            assert hits(s, other, path, ROUTES[path])[0] >= 32
        assert s.stop()[0] == 0


def test_a_salt_of_another_key_is_another_salt(shared):
    with shared() as s:
        body = {"prompt": SECRET, "max_tokens": 1, "cache_salt": "x"}
        assert hits(s, "sk-alice", "/v1/completions", body) == (0, 0)
        assert hits(s, "sk-alice", "/v1/completions", body)[0] >= 32
        assert hits(s, "sk-bob", "/v1/completions", body) == (0, 0)


def test_prefix_pages_may_be_shared_by_all_keys(shared):
    with shared("--share-prefix") as s:
        assert hits(s, "sk-alice", "/v1/completions", ROUTES["/v1/completions"]) == (0, 0)
        assert hits(s, "sk-bob", "/v1/completions", ROUTES["/v1/completions"])[0] >= 32


def test_prefix_pages_on_disk_belong_to_a_key(shared, tmp_path):
    path = "/v1/completions"
    with shared("--prefix-dir", tmp_path / "prefix") as s:
        hits(s, "sk-alice", path, ROUTES[path])
        assert s.stop()[0] == 0
    with shared("--prefix-dir", tmp_path / "prefix") as s:
        assert hits(s, "sk-bob", path, ROUTES[path]) == (0, 0)
        assert hits(s, "sk-alice", path, ROUTES[path])[0] >= 32


def test_lines_of_a_batch_use_the_pages_of_its_key(shared, tmp_path):
    body = {"model": "tiny", **ROUTES["/v1/completions"]}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body})

    def cached(s, key):
        auth = {"Authorization": f"Bearer {key}"}
        b = test_batches.ended(s, test_batches.start(s, [line], headers=auth), auth)
        return counted(test_batches.lines_of(s, b["output_file_id"], auth))

    with shared("--batch-dir", tmp_path / "batches") as s:
        assert hits(s, "sk-alice", "/v1/completions", ROUTES["/v1/completions"]) == (0, 0)
        assert cached(s, "sk-bob") == 0
        assert cached(s, "sk-bob") >= 32 and cached(s, "sk-alice") >= 32
        assert hits(s, "sk-all", "/v1/completions", ROUTES["/v1/completions"]) == (0, 0)


def test_a_seed_gives_a_key_nothing_of_another(shared):
    """Sampled tokens and log probabilities depend on the request only, not on other keys."""
    body = {"prompt": "a b", "max_tokens": 8, "seed": 7, "temperature": 1, "logprobs": 2}

    def answer(s, key):
        auth = {"Authorization": f"Bearer {key}"}
        return s.post("/v1/completions", {"model": "tiny", **body}, headers=auth).json()["choices"]

    with shared() as s:
        alone = answer(s, "sk-bob")
    with shared() as s:
        assert [answer(s, k) for k in ("sk-alice", "sk-bob", "sk-alice")] == [alone] * 3


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/load_lora_adapter", {"lora_name": "mine", "lora_path": "mine"}),
        ("/v1/unload_lora_adapter", {"lora_name": "tiny"}),
        ("/sleep", {}),
        ("/wake_up", {}),
        ("/reload", {}),
        ("/v1/models/load", {"model": "tiny"}),
        ("/v1/models/unload", {"model": "tiny"}),
        ("/v1/weights", {"path": "mine"}),
        ("/update_weights_from_disk", {"model_path": "mine"}),
        ("/pause", {}),
        ("/resume", {}),
        ("/pause_generation", {}),
        ("/continue_generation", {}),
    ],
)
def test_a_key_cannot_change_the_models_of_others(shared, tmp_path, path, body):
    """Adapters and engines are the operator's, and so are their names."""
    with shared("--lora-dir", tmp_path, "--weights-dir", tmp_path) as s:

        def post(key):
            return s.post(path, body, headers={"Authorization": f"Bearer {key}"})

        assert post("sk-alice").status == post("sk-bob").status == 403
        assert post("sk-all").status != 403
        assert post("sk-wrong").status == 401


def test_probabilities_do_not_show_the_prompt_of_another_key(shared):
    """Log probabilities of a prompt are computed anew, also where another key has its pages."""
    body = {"model": "tiny", "prompt": SECRET, "max_tokens": 1, "echo": True, "logprobs": 1}
    body["temperature"] = 0

    def probabilities(s, key):
        auth = {"Authorization": f"Bearer {key}"}
        r = s.post("/v1/completions", body, headers=auth)
        assert r.status == 200, r.text
        return r.json()["choices"][0]["logprobs"]

    with shared() as s:
        alone = probabilities(s, "sk-bob")
    with shared() as s:
        assert probabilities(s, "sk-alice") == alone
        assert probabilities(s, "sk-bob") == alone
        assert (
            s.post(
                "/v1/completions",
                {**body, "model": "other"},
                headers={"Authorization": "Bearer sk-bob"},
            ).status
            == 404
        )


def admin(s):
    return s.get("/status.json", headers={"Authorization": "Bearer sk-all"}).json()


@pytest.mark.parametrize(
    "many",
    [{"prompt": ["a b c"] * 64, "max_tokens": 24}, {"n": 4, "max_tokens": 800}],
    ids=["prompts", "choices"],
)
def test_keys_take_turns(shared, many):
    """A key with thousands of tokens ahead of it gets its answer before they are done."""
    done = []

    def alice():
        done.append(ask(s, "sk-alice", many.pop("max_tokens"), **many).status)

    with shared("--max-best-of", "4") as s:
        t = threading.Thread(target=alice)
        t.start()
        s.until(lambda: admin(s)["batch"]["running"] == 4)
        assert ask(s, "sk-bob", 4).status == 200
        assert not done and admin(s)["batch"]["running"] > 0
        t.join(timeout=HANG)
        assert done == [200]
        assert s.stop()[0] == 0
