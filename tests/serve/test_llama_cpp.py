"""llama.cpp's own form of generation, POST /completion, and its paths without a version. Tokens are
compared with those of an engine that gets the same ids, and log probabilities with those of
/v1/completions; names and forms are those of llama.cpp's description of its server."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny_model

import llmc

NEUTRAL = {"top_k": 0, "top_p": 1, "min_p": 0}
PROMPT = "hello world, hello"
SAMPLING = {"n_predict": 12, "temperature": 0.8, "seed": 7, **NEUTRAL}


@pytest.fixture(scope="module")
def engine(tiny_folder):
    with llmc.open(tiny_folder, arch="generic") as m, m.engine(context=256, seqs=2) as e:
        yield e


def complete(server, prompt=PROMPT, path="/completion", **more):
    r = server.post(path, {"prompt": prompt, **SAMPLING, **more})
    assert r.status == 200, r.text
    return r


def want(engine, ids, n=12, seed=7, **more):
    r = engine.submit(ids, max_tokens=n, temperature=0.8, seed=seed, **more).wait()
    return r["text"]


def test_the_answer_has_the_fields_of_llama_cpp(tiny, engine):
    ids = engine.model.tokenizer.encode(PROMPT)
    text = want(engine, ids)
    for path in ("/completion", "/completions"):
        r = complete(tiny, path=path).json()
        assert r["content"] == text and r["tokens"] == [] and r["stop"] is True
        assert (r["index"], r["id_slot"], r["model"]) == (0, -1, "tiny")
        assert (r["tokens_predicted"], r["tokens_evaluated"]) == (12, len(ids))
        assert (r["stop_type"], r["stopping_word"], r["truncated"]) == ("limit", "", False)
        assert r["has_new_line"] == ("\n" in text) and r["tokens_cached"] == 12 + len(ids)
        assert PROMPT in r["prompt"]
        t = r["timings"]
        assert t["prompt_n"] + t["cache_n"] == len(ids) and t["predicted_n"] == 12
        # the first token comes with the prompt
        assert t["predicted_per_second"] == pytest.approx(1e3 / t["predicted_ms"] * 11, rel=1e-6)
    one = complete(tiny, n_predict=1).json()["timings"]
    assert one["predicted_per_second"] == 0 and one["predicted_per_token_ms"] == 0


def test_prompts_are_strings_ids_both_or_lists(tiny, engine):
    t = engine.model.tokenizer
    ids = t.encode("hello world")
    mixed = [ids[0], "hello", 260, " world"]
    mixed_ids = [ids[0], *t.encode("hello", False), 260, *t.encode(" world", False)]
    first = ["hello", 7]  # only a string at the beginning gets the tokens before a prompt
    for prompt, tokens in (
        ("hello world", ids),
        (ids, ids),
        (mixed, mixed_ids),
        (first, [*t.encode("hello"), 7]),
        ({"prompt_string": "hello world"}, ids),
        ({"prompt_string": mixed}, mixed_ids),
    ):
        r = complete(tiny, prompt).json()
        assert r["tokens_evaluated"] == len(tokens) and r["content"] == want(engine, tokens), prompt
    several = ["hello world", ids, mixed, {"prompt_string": "hello"}]
    answers = complete(tiny, several).json()
    assert [a["index"] for a in answers] == [0, 1, 2, 3]
    assert [a["content"] for a in answers[:3]] == [
        want(engine, ids),
        want(engine, ids),
        want(engine, mixed_ids),
    ]
    choices = complete(tiny, ["hello", "world"], n_cmpl=2).json()
    assert [a["index"] for a in choices] == [0, 1, 2, 3]
    assert choices[1]["content"] == want(engine, t.encode("hello"), seed=8)
    assert complete(tiny, ["hello world"]).json()["content"] == want(engine, ids)


def test_a_stream_has_a_frame_per_token(tiny):
    for prompt in (PROMPT, ["hello", PROMPT]):
        r = complete(tiny, prompt, return_tokens=True).json()
        whole = r if isinstance(r, list) else [r]
        frames = [json.loads(f) for f in complete(tiny, prompt, stream=True).frames()]
        for i, answer in enumerate(whole):
            mine = [f for f in frames if f["index"] == i]
            assert [f["stop"] for f in mine] == [False] * 12 + [True]
            assert "".join(f["content"] for f in mine) == answer["content"]
            assert [t for f in mine for t in f["tokens"]] == answer["tokens"]
            assert [f["tokens_predicted"] for f in mine] == [*range(1, 13), 12]
            same = ("prompt", "stop_type", "tokens_cached", "truncated", "has_new_line", "model")
            assert {k: mine[-1][k] for k in same} == {k: answer[k] for k in same}
            assert "generation_settings" in mine[-1] and "timings" in mine[-1]
            assert all("timings" not in f for f in mine[:-1])
    frames = [json.loads(f) for f in complete(tiny, stream=True, timings_per_token=True).frames()]
    assert all("timings" in f for f in frames)


def test_probabilities_are_those_of_completions(tiny):
    r = complete(tiny, n_probs=3).json()
    probs = r["completion_probabilities"]
    body = {"prompt": PROMPT, **SAMPLING, "max_tokens": 12, "logprobs": 3, "return_token_ids": True}
    choice = tiny.post("/v1/completions", body).json()["choices"][0]
    assert [p["id"] for p in probs] == choice["token_ids"]
    assert [p["logprob"] for p in probs] == choice["logprobs"]["token_logprobs"]
    for p in probs:
        assert len(p["top_logprobs"]) == 3
        for one in (p, *p["top_logprobs"]):
            assert bytes(one["bytes"]).decode(errors="replace") == one["token"]
    assert complete(tiny, logprobs=3).json()["completion_probabilities"] == probs
    frames = [json.loads(f) for f in complete(tiny, n_probs=3, stream=True).frames()]
    assert [f["completion_probabilities"] for f in frames[:-1]] == [[p] for p in probs]
    assert "completion_probabilities" not in complete(tiny).json()


def test_lengths(tiny):
    n = len(complete(tiny, return_tokens=True, n_predict=1).json()["prompt"])
    r = complete(tiny, n_predict=0).json()
    assert (r["content"], r["tokens_predicted"], r["stop_type"]) == ("", 0, "limit")
    for value in (-1, 10**6, 2**31 - 1):
        r = complete(tiny, n_predict=value, ignore_eos=True).json()
        assert r["truncated"] is True and r["stop_type"] == "limit", value
        assert r["tokens_evaluated"] + r["tokens_predicted"] == 256
        assert r["generation_settings"]["n_predict"] == value
    # so it is on OpenAI's routes, by this name
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        r = tiny.post(path, {**body, "n_predict": 10**6, "ignore_eos": True}).json()
        assert r["usage"]["total_tokens"] == 256 and r["choices"][0]["finish_reason"] == "length"
        assert tiny.post(path, {**body, "max_tokens": 10**6}).status == 400
    # the first of its names counts
    body = {"prompt": PROMPT, "max_tokens": 3, "max_completion_tokens": 4}
    assert tiny.post("/completion", body).json()["tokens_predicted"] == 4
    assert tiny.post("/completion", {**body, "n_predict": 5}).json()["tokens_predicted"] == 5
    long = tiny.post("/completion", {"prompt": "a" * 300, "n_predict": 1})
    error = long.json()["error"]
    assert long.status == error["code"] == 400 and error["type"] == "exceed_context_size_error"
    assert "exceeds the available context size" in error["message"]
    assert error["n_prompt_tokens"] >= 256 and error["n_ctx"] == 256 and n > 0


def test_kinds_of_ends(tiny, engine):
    text = complete(tiny, n_predict=40).json()["content"]
    word = text[5:7]
    r = complete(tiny, n_predict=40, stop=["", "never there", word]).json()
    assert (r["stop_type"], r["stopping_word"]) == ("word", word)
    assert r["content"] == text[: text.index(word)]
    assert complete(tiny, n_predict=40, stop="").json()["content"] == text
    eos = engine.model.info["eos"][0]
    r = complete(tiny, logit_bias={str(eos): 100}).json()
    assert (r["stop_type"], r["content"], r["tokens_predicted"]) == ("eos", "", 1)


LINES = 'root ::= "a\\n" "    b\\n" "      c\\n" "  d" [e]{100}'


def test_indentation_ends_an_answer(tiny):
    def run(n, **more):
        return complete(tiny, grammar=LINES, n_predict=60, n_indent=n, **more)

    for n, text in ((4, "a\n    b\n      c\n  "), (5, "a\n    "), (7, "a\n    ")):
        r = run(n).json()
        assert (r["content"], r["stop_type"], r["truncated"]) == (text, "limit", False)
        frames = [json.loads(f) for f in run(n, stream=True).frames()]
        assert "".join(f["content"] for f in frames) == text and frames[-1]["stop"]
    full = run(0).json()["content"]
    assert full.startswith("a\n    b\n      c\n  deee") and run(1).json()["content"] == full
    # the last token of a limit may bring the end, too
    for n in range(1, 21):
        r = complete(tiny, grammar=LINES, n_predict=n, n_indent=4).json()
        assert "a\n    b\n      c\n  ".startswith(r["content"]), n
    # each choice has its own end
    both = run(4, n_cmpl=2).json()
    assert [r["content"] for r in both] == ["a\n    b\n      c\n  "] * 2


def test_a_time_limit_ends_an_answer_at_a_newline(tiny):
    lines = 'root ::= "ab\\n"{100}'
    r = complete(tiny, grammar=lines, n_predict=200, t_max_predict_ms=1).json()
    assert r["stop_type"] == "limit" and r["tokens_predicted"] < 200
    assert r["content"].endswith("\n") and r["content"].count("\n") >= 2
    for off in (-1, 0, 10**7):
        r = complete(tiny, grammar=lines, n_predict=200, t_max_predict_ms=off).json()
        assert r["tokens_predicted"] == 200


def test_fields_of_the_answer_are_selected(tiny):
    fields = ["content", "generation_settings/n_predict", "timings/prompt_n", "no/such", "no"]
    got = set(fields[:3])
    r = complete(tiny, response_fields=fields).json()
    assert set(r) == got and r["generation_settings/n_predict"] == 12
    assert [set(a) for a in complete(tiny, ["a", "b"], response_fields=fields).json()] == [got] * 2
    frames = [json.loads(f) for f in complete(tiny, response_fields=fields, stream=True).frames()]
    assert set(frames[-1]) == got and "tokens" in frames[0]
    assert "generation_settings" in complete(tiny, response_fields=[]).json()
    r = complete(tiny, "a\0b", response_fields=["prompt", "generation_settings/temperature"])
    assert r.json()["prompt"].endswith("a\0b") and ":0.8}" in r.text


def test_the_answer_repeats_the_settings(tiny):
    body = {
        "repeat_penalty": 1.5,
        "repeat_last_n": 9,
        "samplers": "kt",
        "stop": ["xyz"],
        "dry_sequence_breakers": [";"],
        "logit_bias": [[5, -3.5], [6, False], ["he", 1]],
        "ignore_eos": True,
    }
    s = complete(tiny, **body).json()["generation_settings"]
    assert (s["seed"], s["n_predict"], s["max_tokens"]) == (7, 12, 12)
    assert (s["temperature"], s["repeat_penalty"], s["repeat_last_n"]) == (0.8, 1.5, 9)
    assert s["samplers"] == ["top_k", "temperature"] and s["stop"] == ["xyz"]
    assert s["dry_sequence_breakers"] == [";"] and s["grammar"] == "" and s["stream"] is False
    assert {"bias": -3.5, "token": 5} in s["logit_bias"]
    assert {"bias": None, "token": 6} in s["logit_bias"] and len(s["logit_bias"]) >= 4
    # the order of samplers is that which runs: XTC with a threshold above 0.5 is off
    order = [
        complete(tiny, xtc_probability=0.5, xtc_threshold=t).json()["generation_settings"][
            "samplers"
        ]
        for t in (0.6, 0.5)
    ]
    assert "xtc" not in order[0] and order[1][-2:] == ["xtc", "temperature"]
    # samplers are called by llama.cpp's own names, not by the names that the request has
    for sent, names in (
        (["temp", "typical"], ["temperature", "typ_p"]),
        ("temperature", ["temperature"]),
        ([], []),
    ):
        s = complete(tiny, samplers=sent).json()["generation_settings"]
        assert s["samplers"] == names
    # llama.cpp's defaults
    s = tiny.post("/completion", {"prompt": "a", "n_predict": 1}).json()["generation_settings"]
    usual = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "repeat_penalty": 1}
    assert {k: s[k] for k in usual} == usual and s["logit_bias"] == [] and s["repeat_last_n"] == 64
    assert 0 <= s["seed"] < 2**32
    seeds = {
        tiny.post("/completion", {"prompt": "a", "n_predict": 1, "seed": seed}).json()[
            "generation_settings"
        ]["seed"]
        for seed in (-1, -1, 2**32 - 1, None)
    }
    assert len(seeds) == 4
    by_name = complete(tiny, logit_bias={"he": -3, "7": False}).json()["generation_settings"]
    assert {"bias": None, "token": 7} in by_name["logit_bias"]


def test_a_prompt_need_not_share_its_prefix(tiny):
    prompt = "a prompt of more than one page of the cache " * 3
    complete(tiny, prompt)
    assert complete(tiny, prompt).json()["timings"]["cache_n"] >= 32
    assert complete(tiny, prompt, cache_prompt=False).json()["timings"]["cache_n"] == 0


WRONG = [
    ({}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, None),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": True}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": {"prompt_string": {}}}, "prompt"),
    ({"prompt": {"prompt_string": "a", "multimodal_data": ["x"]}}, "prompt"),
    ({"prompt": [None]}, "prompt"),
    ({"prompt": [[None, 1]]}, "prompt"),
    ({"prompt": [1, 10**9]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": [1, 1.5]}, "prompt"),
    ({"prompt": ["a"] * 1000}, "prompt"),
    ({"n_predict": -2}, "n_predict"),
    ({"n_predict": 2**31}, "n_predict"),
    ({"n_predict": 1e300}, "n_predict"),
    ({"n_predict": "x"}, "n_predict"),
    ({"n": 10**6}, "n"),
    ({"n_probs": 21}, "n_probs"),
    ({"id_slot": 8}, "id_slot"),
    ({"id_slot": -2}, "id_slot"),
    ({"stop": "a\0b"}, "stop[0]"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": [3]}, "stop[0]"),
    ({"response_fields": "content"}, "response_fields"),
    ({"response_fields": ["a"] * 65}, "response_fields"),
    ({"response_fields": [3]}, "response_fields"),
    ({"response_fields": ["content\0"]}, "response_fields"),
    ({"t_max_predict_ms": -2}, "t_max_predict_ms"),
    ({"n_indent": -1}, "n_indent"),
    ({"cache_prompt": 1}, "cache_prompt"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"grammar": "root ::= ("}, "grammar"),
    ({"lora": [{"id": 0, "scale": 1}]}, "lora"),
    ({"post_sampling_probs": True}, "post_sampling_probs"),
    ({"model": "other"}, "model"),
]


@pytest.mark.parametrize("more,param", WRONG, ids=[json.dumps(m)[:40] for m, _ in WRONG])
def test_wrong_requests(tiny, more, param):
    for stream in (False, True):
        body = {**({} if more == {} else {"prompt": "a"}), "n_predict": 2, **more, "stream": stream}
        r = tiny.post("/completion", body)
        error = r.json()["error"]
        assert r.status == error["code"] == (404 if param == "model" else 400), r.text
        assert error["type"] == ("not_found_error" if param == "model" else "invalid_request_error")
        assert param is None or error["param"].split("[")[0] == param.split("[")[0]


def test_paths_without_a_version_are_the_same(tiny):
    chat = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 5}
    a, b = (tiny.post(p + "/chat/completions", chat).json() for p in ("", "/v1"))
    assert a["choices"] == b["choices"] and a["object"] == "chat.completion"
    a, b = (
        tiny.post(p + "/responses", {"input": "hello", "temperature": 0, "max_output_tokens": 5})
        for p in ("", "/v1")
    )
    assert a.json()["output"][0]["content"] == b.json()["output"][0]["content"]
    n = b.json()["usage"]["input_tokens"]
    for p in ("", "/v1"):
        r = tiny.post(p + "/responses/input_tokens", {"input": "hello"}).json()
        assert r["input_tokens"] == n
        r = tiny.post(p + "/chat/completions/input_tokens", chat).json()
        assert r == {"object": "response.input_tokens", "input_tokens": n}
        bad = tiny.post(p + "/chat/completions/input_tokens", {"messages": "x"})
        assert bad.status == 400 and bad.json()["error"]["param"] == "messages"
    wrong = tiny.post("/chat/completions", {"messages": []}).json()["error"]
    assert (wrong["code"], wrong["type"]) == (400, "invalid_request_error")
    rendered = tiny.post("/apply-template", {**chat, "tools": []}).json()
    assert rendered == {"prompt": "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"}
    off = tiny.post("/apply-template", {**chat, "add_generation_prompt": False}).json()
    assert off == {"prompt": "<|im_start|>user\nhello<|im_end|>\n"}
    assert tiny.post("/apply-template", {"messages": [3]}).status == 400


def test_answers_of_repeated_settings_count_as_memory(tiny):
    stop = ["x" * 30000] * 60
    r = complete(tiny, stop=stop, n_predict=1, n_cmpl=2).json()
    assert [a["generation_settings"]["stop"] for a in r] == [stop] * 2
    body = {"prompt": ["a"] * 4, "stop": stop, "n_predict": 1, "n_cmpl": 128}
    r = tiny.post("/completion", body)
    assert r.status == 503 and r.json()["error"]["type"] == "unavailable_error"
    tiny.idle()


def test_errors_within_a_stream(everything):
    """The form is that of the path: llama.cpp's without /v1, OpenAI's with it."""
    chat = {"messages": [{"role": "user", "content": "a"}]}
    own, openai = (503, "unavailable_error"), (None, "server_error")
    cases = [("/completion", {"prompt": "a"}, own), ("/chat/completions", chat, own)]
    cases += [("/v1/completions", {"prompt": "a"}, openai), ("/v1/chat/completions", chat, openai)]
    with everything(context=1 << 14) as s, ThreadPoolExecutor(1) as pool:
        for path, prompt, form in cases:
            body = {**prompt, "n_predict": -1, "ignore_eos": True, "stream": True}
            sent = pool.submit(s.post, path, body)
            s.until(lambda sent=sent: s.status()["batch"]["running"] or sent.done())
            assert s.request("POST", "/pause?mode=abort").status == 200
            error = json.loads(sent.result().frames()[-1])["error"]
            assert (error["code"], error["type"]) == form, path
            assert s.request("POST", "/resume").status == 200


def test_an_id_without_text(serve, tmp_path):
    """A model may have more rows than its tokenizer has tokens."""
    model = tiny_model.build(tmp_path / "tiny", padding=8)
    with llmc.open(model, arch="generic", no_weights=True) as m:
        size = len(m.tokenizer)
        assert size < m.info["vocab"]
    with serve(model, "--arch", "generic", "-t", "1") as s:
        for stream in (False, True):
            r = s.post("/completion", {"prompt": [5, size], "n_predict": 2, "stream": stream})
            last = json.loads(r.frames()[-1]) if stream else r.json()
            assert last["stop"] and last["tokens_evaluated"] == 2, r.text


def test_health_and_slots(tiny):
    for path in ("/health", "/v1/health"):
        assert tiny.get(path).json() == {"status": "ok"}
    tiny.idle()
    assert len(tiny.get("/slots?fail_on_no_slot=1").json()) == 8
    assert tiny.get("/lora-adapters").json() == []
    for path in ("/slots/0?action=save", "/props", "/lora-adapters"):
        error = tiny.post(path, {}).json()["error"]
        assert (error["code"], error["type"]) == (501, "not_supported_error")


def test_no_slot_is_free(fake):
    with fake(step_ms=20) as s:
        prompts = ["a" * 50] * len(s.get("/slots").json())
        body = json.dumps({"prompt": prompts, "n_predict": 400, "stream": True}).encode()
        with s.connect() as c:
            c.sendall(
                b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            s.until(lambda: s.get("/slots?fail_on_no_slot=1").status == 503)
        s.until(lambda: s.get("/slots?fail_on_no_slot=1").status == 200)


def test_the_key_is_needed(serve, tiny_folder):
    options = ["--arch", "generic", "-t", "1", "--model-name", "tiny", "--api-key", "sk-all"]
    body = {"prompt": "a", "n_predict": 2}
    with serve(tiny_folder, *options) as s:
        r = s.post("/completion", body)
        assert r.status == 401 and r.json()["error"]["type"] == "authentication_error"
        for path, value in (
            *[(p, body) for p in ("/completion", "/completions")],
            *[("/apply-template", {}), ("/embedding", {}), ("/slots/0", {}), ("/reranking", {})],
        ):
            assert s.post(path, value).status == 401, path
        for header in ({"Authorization": "Bearer sk-all"}, {"X-Api-Key": "sk-all"}):
            assert s.post("/completion", body, headers=header).status == 200
