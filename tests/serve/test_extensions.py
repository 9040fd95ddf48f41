"""Parts that vLLM and llama.cpp add to OpenAI's answers, whole and as streams, by OpenAI's client.

Log probabilities and tokens are compared with OpenAI's own fields of the same request, templates
with jinja2.
"""

import json
import os

import jinja2
import pytest
import tiny_model
from waiting import HANG

HELLO = [{"role": "user", "content": "hello world"}]
GREEDY = {"temperature": 0, "max_tokens": 6}


@pytest.fixture(scope="module")
def client(tiny):
    openai = pytest.importorskip("openai")
    return openai.OpenAI(base_url=tiny.url + "/v1", api_key="none", max_retries=0, timeout=HANG)


def chat(tiny, **fields):
    r = tiny.post("/v1/chat/completions", {"messages": HELLO, **GREEDY, **fields})
    assert r.status == 200, r.text
    return r.json() if not fields.get("stream") else frames(r)


def completion(tiny, **fields):
    r = tiny.post("/v1/completions", {"prompt": "hello world", **GREEDY, **fields})
    assert r.status == 200, r.text
    return r.json() if not fields.get("stream") else frames(r)


def frames(r):
    out = r.frames()
    assert out[-1] == "[DONE]"
    return [json.loads(f) for f in out[:-1]]


def prompt_of_chat(tiny, messages=HELLO):
    r = tiny.post("/chat_tokenize", {"messages": messages}).json()
    return [t["id"] for t in r["tokenize_response"]], r["templated_text"]


def test_token_ids(tiny):
    prompt, _ = prompt_of_chat(tiny)
    whole = chat(tiny, return_token_ids=True, logprobs=True)
    assert whole["prompt_token_ids"] == prompt
    (choice,) = whole["choices"]
    ids = choice["token_ids"]
    assert len(ids) == whole["usage"]["completion_tokens"] == 6
    said = tiny.post("/detokenize", {"tokens": ids}).json()["prompt"]
    assert said == choice["message"]["content"]
    for n in (1, 2):
        parts = chat(tiny, return_token_ids=True, stream=True, n=n)
        first = [f for f in parts if "prompt_token_ids" in f]
        assert len(first) == n and all(f["prompt_token_ids"] == prompt for f in first)
        for k in range(n):
            some = [f["choices"][0] for f in parts if f["choices"][0]["index"] == k]
            assert [t for c in some for t in c["token_ids"]] == ids
    assert "token_ids" not in json.dumps(chat(tiny))

    whole = completion(tiny, prompt=["hello", "world"], return_token_ids=True)
    want = [tiny.post("/v1/tokenize", {"prompt": p}).json()["tokens"] for p in ("hello", "world")]
    assert [c["prompt_token_ids"] for c in whole["choices"]] == want
    parts = completion(tiny, prompt=["hello", "world"], return_token_ids=True, stream=True)
    for k in range(2):
        some = [f["choices"][0] for f in parts if f["choices"][0]["index"] == k]
        assert [t for c in some for t in c["token_ids"]] == whole["choices"][k]["token_ids"]
        assert [c["prompt_token_ids"] for c in some if "prompt_token_ids" in c] == [want[k]]
    none = completion(tiny, return_token_ids=True, max_tokens=0)
    assert none["choices"][0]["token_ids"] == []


def test_the_id_of_the_end_is_among_the_ids(tiny):
    """vLLM's ids have the token that ended the answer, which the text has not."""
    ids = completion(tiny, return_token_ids=True)["choices"][0]["token_ids"]
    short = completion(tiny, return_token_ids=True, stop_token_ids=[ids[2]])
    assert short["choices"][0]["token_ids"] == ids[: ids.index(ids[2]) + 1]
    assert short["usage"]["completion_tokens"] == len(short["choices"][0]["token_ids"])


def test_tokens_as_ids(tiny):
    ids = completion(tiny, return_token_ids=True)["choices"][0]["token_ids"]
    plain = completion(tiny, logprobs=2)["choices"][0]["logprobs"]
    c = completion(tiny, logprobs=2, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]
    assert c["tokens"] == [f"token_id:{i}" for i in ids]
    assert c["token_logprobs"] == plain["token_logprobs"]
    for names, values in zip(c["top_logprobs"], plain["top_logprobs"]):
        assert sorted(names.values()) == sorted(values.values())
        assert all(n.startswith("token_id:") for n in names)
    ids = chat(tiny, return_token_ids=True)["choices"][0]["token_ids"]
    fields = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
    content = chat(tiny, **fields)["choices"][0]["logprobs"]["content"]
    assert [t["token"] for t in content] == [f"token_id:{i}" for i in ids]
    assert all(t["top_logprobs"][0]["token"].startswith("token_id:") for t in content)
    parts = chat(tiny, stream=True, **fields)
    some = [f["choices"][0]["logprobs"] for f in parts if f["choices"][0]["logprobs"]]
    assert [t for p in some for t in p["content"]] == content


def test_usage_in_every_frame(tiny, client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path in ("chat", "completion"):
        ask = {"chat": chat, "completion": completion}[path]
        parts = ask(tiny, stream=True, stream_options=options)
        counts = [f["usage"]["completion_tokens"] for f in parts]
        assert counts == sorted(counts) and counts[-1] == 6 and len(set(counts)) > 3
        for f in parts:
            u = f["usage"]
            assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
            assert u["prompt_tokens"] == parts[-1]["usage"]["prompt_tokens"]
        alone = {"continuous_usage_stats": True}
        assert all("usage" not in f for f in ask(tiny, stream=True, stream_options=alone))
    some = list(
        client.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, max_tokens=3, stream_options=options
        )
    )
    assert all(c.usage for c in some)


def all_logprobs(tiny, prompt):
    """{id: log probability} of the next token."""
    out, size, most = {}, len(tiny_model.vocabulary()), 20
    for first in range(0, size, most):
        (c,) = completion(
            tiny,
            prompt=prompt,
            max_tokens=1,
            logprobs=1,
            return_tokens_as_token_ids=True,
            logprob_token_ids=list(range(first, min(first + most, size))),
        )["choices"]
        for name, logprob in c["logprobs"]["top_logprobs"][0].items():
            out[int(name.removeprefix("token_id:"))] = logprob
    assert len(out) == size
    return out


def test_ranks_of_equal_logits(serve, tmp_path):
    """vLLM's rank is the number of tokens that are at least as likely, however many are listed."""
    folder = tiny_model.build(tmp_path / "m")
    path = os.path.join(folder, "model.safetensors")
    with open(path, "r+b") as f:
        n = int.from_bytes(f.read(8), "little")
        at, end = json.loads(f.read(n))["model.norm.weight"]["data_offsets"]
        f.seek(8 + n + at)
        f.write(bytes(end - at))
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "1") as s:
        prompt, ranks = [7, 0, 1, 2, 9], []
        for top in 0, 1, 3:
            body = {"prompt": prompt, "prompt_logprobs": top, **GREEDY}
            (c,) = s.post("/v1/completions", body).json()["choices"]
            for i, entries in enumerate(c["prompt_logprobs"][1:], 1):
                ranks.append(entries[str(prompt[i])]["rank"])
        assert set(ranks) == {len(tiny_model.vocabulary(()))}, ranks


def test_prompt_logprobs(tiny):
    echo = completion(tiny, logprobs=3, echo=True, max_tokens=0)["choices"][0]["logprobs"]
    ranks_of_prompt = {}
    for top in (0, 3):
        for own in ({}, {"logprobs": 1}, {"logprobs": 5}):
            plain = completion(tiny, **own)["choices"][0]["logprobs"]
            (c,) = completion(tiny, prompt_logprobs=top, **own)["choices"]
            assert c["logprobs"] == plain, (top, own)
            places = c["prompt_logprobs"]
            ids = tiny.post("/v1/tokenize", {"prompt": "hello world"}).json()["tokens"]
            assert len(places) == len(ids) and places[0] is None
            for i, place in enumerate(places[1:], 1):
                mine = place[str(ids[i])]
                assert mine["decoded_token"] == echo["tokens"][i]
                assert mine["logprob"] == echo["token_logprobs"][i]
                want = sorted(echo["top_logprobs"][i].values())
                if top:
                    assert sorted(v["logprob"] for v in place.values()) == want
                    ranks = {v["rank"]: v["logprob"] for v in place.values()}
                    best = [v for _, v in sorted(ranks.items())]
                    assert best == sorted(best, reverse=True) and set(ranks) >= {1, 2, 3}
                else:
                    assert len(place) == 1
                if not own:
                    ranks_of_prompt.setdefault(i, set()).add(mine["rank"])
    for i, ranks in ranks_of_prompt.items():
        after = all_logprobs(tiny, ids[:i])
        assert ranks == {sum(v >= after[ids[i]] for v in after.values())}, (i, ranks)
    prompt, _ = prompt_of_chat(tiny)
    r = chat(tiny, prompt_logprobs=1)
    assert [i and next(iter(i)) for i in r["prompt_logprobs"][1:]] == list(map(str, prompt[1:]))
    for body, status in (
        ({"prompt_logprobs": 1, "stream": True}, 400),
        ({"prompt_logprobs": 21}, 400),
    ):
        assert tiny.post("/v1/completions", {"prompt": "a", **body}).status == status
        assert tiny.post("/v1/chat/completions", {"messages": HELLO, **body}).status == status
    assert tiny.post("/v1/completions", {"prompt": "a", "prompt_logprobs": -1}).status == 400


def content_of(parts):
    return "".join(f["choices"][0]["delta"].get("content") or "" for f in parts if f["choices"])


def test_echo_in_a_chat(tiny):
    talk = [*HELLO, {"role": "assistant", "content": "I am"}]
    plain = {"messages": talk, "continue_final_message": True}
    said = chat(tiny, **plain)["choices"][0]["message"]["content"]
    for messages in (
        talk,
        [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "I am"}]}],
    ):
        fields = {**plain, "messages": messages, "echo": True}
        assert chat(tiny, **fields)["choices"][0]["message"]["content"] == "I am" + said
        parts = chat(tiny, stream=True, **fields)
        assert content_of(parts) == "I am" + said
        assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    # another role than the answer's: nothing to continue
    assert content_of(chat(tiny, stream=True, echo=True)) == content_of(chat(tiny, stream=True))


TEMPLATE = (
    "{% for d in documents or [] %}[{{ d.title }}: {{ d.text }}]{% endfor %}"
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | upper }}{% endfor %}"
    "{% if add_generation_prompt %}<{{ who }}>{% endif %}"
)


def test_a_template_of_the_request(tiny):
    documents = [{"title": "a", "text": "b"}]
    for docs in (None, documents):
        want = jinja2.Template(TEMPLATE).render(
            messages=HELLO, add_generation_prompt=True, who="me", documents=docs
        )
        fields = {
            "chat_template": TEMPLATE,
            "chat_template_kwargs": {"who": "me"},
            "documents": docs,
        }
        r = tiny.post("/chat_tokenize", {"messages": HELLO, **fields}).json()
        assert r["templated_text"] == want
        ids = [t["id"] for t in r["tokenize_response"]]
        mine = chat(tiny, return_token_ids=True, **fields)
        assert mine["prompt_token_ids"] == ids
        same = completion(tiny, prompt=ids)["choices"][0]["text"]
        assert mine["choices"][0]["message"]["content"] == same
    for bad, param in (
        ({"chat_template": "{% for %}"}, "chat_template"),
        ({"chat_template": "{{ raise_exception('no') }}"}, "chat_template"),
        ({"chat_template": 3}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        (
            {
                "chat_template": "{% for i in range(99999) %}{% for j in range(99999) %}{{ j }}{% endfor %}{% endfor %}"
            },
            "chat_template",
        ),
        ({"documents": "x"}, "documents"),
    ):
        r = tiny.post("/v1/chat/completions", {"messages": HELLO, **bad})
        assert r.status == 400 and r.json()["error"]["param"] == param, r.text
    assert chat(tiny, chat_template=None)["choices"] == chat(tiny)["choices"]


def test_timings(tiny):
    keys = {
        *("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
        *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
    }
    for ask in (chat, completion):
        r = ask(tiny, ignore_eos=True)
        t, usage = r["timings"], r["usage"]
        assert set(t) == keys and t["predicted_n"] == usage["completion_tokens"] == 6
        assert t["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"]
        assert t["cache_n"] + t["prompt_n"] == usage["prompt_tokens"]
        assert all(v >= 0 for v in t.values())
        parts = ask(tiny, stream=True, ignore_eos=True)
        assert ["timings" in f for f in parts] == [False] * (len(parts) - 1) + [True]
        assert parts[-1]["timings"]["predicted_n"] == 6
        parts = ask(tiny, stream=True, ignore_eos=True, timings_per_token=True)
        counts = [f["timings"]["predicted_n"] for f in parts]
        assert counts == sorted(counts) and counts[-1] == 6 and len(set(counts)) > 3


def test_stop_strings_that_are_kept(tiny):
    text = completion(tiny, max_tokens=12)["choices"][0]["text"]
    stop = text[4]
    cut = text[: text.index(stop)]
    for name in ("include_stop_str_in_output", "no_stop_trim"):
        for keep in (False, True):
            fields = {"stop": stop, name: keep, "max_tokens": 12}
            want = cut + (stop if keep else "")
            assert completion(tiny, **fields)["choices"][0]["text"] == want
            parts = completion(tiny, stream=True, **fields)
            assert "".join(f["choices"][0]["text"] for f in parts) == want


def test_names_of_max_tokens(tiny):
    for ask in (chat, completion):
        fields = {"ignore_eos": True, "max_tokens": None, "n_predict": 3}
        assert ask(tiny, **fields)["usage"]["completion_tokens"] == 3
        assert ask(tiny, **{**fields, "max_tokens": 2})["usage"]["completion_tokens"] == 2


def test_bad_words(tiny):
    """The answer is the same up to the last token of the word, and never has the word."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    ids = [tiny.post("/v1/tokenize", {"prompt": c}).json()["tokens"][-1] for c in letters]
    base = {"max_tokens": 12, "logit_bias": {str(i): 100 for i in ids}, "return_token_ids": True}
    for ask in (completion, chat):
        (plain,) = ask(tiny, **base)["choices"]
        said = plain["text"] if ask is completion else plain["message"]["content"]
        assert len(said) == 12 and set(said) <= set(letters)
        word = said[4:6]
        for words in ([word], ["zz\u00e9", " " + word]):
            (c,) = ask(tiny, bad_words=words, **base)["choices"]
            mine = c["text"] if ask is completion else c["message"]["content"]
            first = said.index(word)
            assert mine[: first + 1] == said[: first + 1] and word not in mine
            assert c["token_ids"][: first + 1] == plain["token_ids"][: first + 1]
        (same,) = ask(tiny, bad_words=[], **base)["choices"]
        assert same["token_ids"] == plain["token_ids"]
    # vLLM's rule: a form with a space counts only if it has as many tokens as the one without
    world = tiny.post("/v1/tokenize", {"prompt": "a world"}).json()["tokens"][-1]
    base = {"logit_bias": {str(world): 100}, "bad_words": ["world"]}
    assert completion(tiny, **base)["choices"][0]["text"] == 6 * " world"
    for bad in (3, [3], [""], [" "], ["a"] * 129):
        r = tiny.post("/v1/completions", {"prompt": "a", "bad_words": bad})
        assert r.status == 400 and r.json()["error"]["param"] == "bad_words"


def test_allowed_token_ids(tiny):
    """The tokens are those that win if all allowed ones have the same large bias."""
    ids = [tiny.post("/v1/tokenize", {"prompt": c}).json()["tokens"][-1] for c in "kqz 19"]
    for ask in (completion, chat):
        base = {"max_tokens": 9, "temperature": 0, "return_token_ids": True}
        (want,) = ask(tiny, logit_bias={str(i): 100 for i in ids}, **base)["choices"]
        (got,) = ask(tiny, allowed_token_ids=ids, **base)["choices"]
        assert got["token_ids"] == want["token_ids"] and set(got["token_ids"]) <= set(ids)
        # no end of sequence but an allowed one
        (hot,) = ask(tiny, allowed_token_ids=ids, **{**base, "temperature": 2})["choices"]
        assert len(hot["token_ids"]) == 9 and set(hot["token_ids"]) <= set(ids)
        (digits,) = ask(tiny, allowed_token_ids=ids, regex="[0-9]{3}", **base)["choices"]
        text = digits["text"] if ask is completion else digits["message"]["content"]
        assert len(text) == 3 and set(text) <= {"1", "9"} and digits["finish_reason"] == "stop"
    for bad in (3, [], ["1"], [-1], [10**6], [2**40], [1.5]):
        r = tiny.post("/v1/completions", {"prompt": "a", "allowed_token_ids": bad})
        assert r.status == 400 and r.json()["error"]["param"] == "allowed_token_ids", bad


def test_names_of_other_services(tiny):
    hot = {"temperature": 1, "max_tokens": 8, "return_token_ids": True}
    for ask in (completion, chat):
        same = [ask(tiny, **{key: 7}, **hot)["choices"] for key in ("seed", "random_seed")]
        assert same[0][0]["token_ids"] == same[1][0]["token_ids"]
        assert len(ask(tiny, n_cmpl=2, **hot)["choices"]) == 2
        assert len(ask(tiny, n_cmpl=2, n=1, **hot)["choices"]) == 1, "the own name has priority"
    (own,) = completion(tiny, logprobs=3, max_tokens=2)["choices"]
    (other,) = completion(tiny, n_probs=3, max_tokens=2)["choices"]
    assert own["logprobs"] == other["logprobs"] and len(own["logprobs"]["top_logprobs"][0]) == 3
    (own,) = chat(tiny, logprobs=True, top_logprobs=3, max_tokens=2)["choices"]
    (other,) = chat(tiny, n_probs=3, max_tokens=2)["choices"]
    assert own["logprobs"] == other["logprobs"] and own["logprobs"]["content"]
    shown = "{{ enable_thinking }} {{ reasoning_effort }} {{ kept }}"
    base = {"chat_template": shown, "return_token_ids": True, "max_tokens": 1}

    def prompt(**more):
        return chat(tiny, **more, **base)["prompt_token_ids"]

    want = prompt(chat_template_kwargs={"enable_thinking": False, "kept": 5})
    assert want != prompt(chat_template_kwargs={"enable_thinking": True, "kept": 5})
    for more in ({"enable_thinking": False}, {"reasoning": {"enabled": False}}):
        assert prompt(chat_template_kwargs={"kept": 5}, **more) == want
    assert prompt(reasoning={"effort": "low"}) == prompt(reasoning_effort="low") != prompt()


@pytest.mark.parametrize(
    "format",
    [
        {"type": "regex", "pattern": "[0-9]{3}"},
        {"type": "regex", "value": "[0-9]{3}"},
        {"type": "grammar", "grammar": "root ::= [0-9] [0-9] [0-9]"},
        {"type": "grammar", "grammar": "start: /[0-9]{3}/"},
    ],
)
def test_response_formats_of_other_services(tiny, format):
    (c,) = chat(tiny, response_format=format, max_tokens=9)["choices"]
    text = c["message"]["content"]
    assert len(text) == 3 and text.isdigit(), text
    for bad in (5, None, [], {}):
        key = "pattern" if format["type"] == "regex" else "grammar"
        r = tiny.post(
            "/v1/completions", {"prompt": "a", "response_format": {**format, key: bad, "value": 1}}
        )
        assert r.status == 400 and r.json()["error"]["param"] == "response_format"


def test_prompts_that_are_cut(tiny):
    prompt = "hello world, this is a prompt"
    ids = tiny.post("/v1/tokenize", {"prompt": prompt}).json()["tokens"]
    most = tiny.get("/info").json()["max_total_tokens"]
    for side, kept in (({}, ids[-5:]), ({"truncation_side": "right"}, ids[:5])):
        want = completion(tiny, prompt=kept, echo=True)
        for form in (prompt, ids):
            fields = {"truncate_prompt_tokens": 5, "return_token_ids": True, "echo": True, **side}
            r = completion(tiny, prompt=form, **fields)
            assert r["choices"][0]["prompt_token_ids"] == kept
            assert r["choices"][0]["text"] == want["choices"][0]["text"]
    r = completion(tiny, prompt=prompt, truncate_prompt_tokens=500, return_token_ids=True)
    assert r["choices"][0]["prompt_token_ids"] == ids
    long = "hello " * 2000
    assert tiny.post("/v1/completions", {"prompt": long}).status == 400
    r = completion(tiny, prompt=long, truncate_prompt_tokens=-1)
    assert r["usage"]["prompt_tokens"] == most - GREEDY["max_tokens"]
    whole, _ = prompt_of_chat(tiny)
    r = chat(tiny, truncate_prompt_tokens=7, return_token_ids=True)
    assert r["prompt_token_ids"] == whole[-7:]
    for bad in (
        {"truncate_prompt_tokens": 0},
        {"truncate_prompt_tokens": -2},
        {"truncation_side": 1},
    ):
        r = tiny.post("/v1/completions", {"prompt": "a", **bad})
        assert r.status == 400 and r.json()["error"]["param"] == next(iter(bad))


def test_log_probabilities_of_chosen_tokens(tiny):
    """They equal the entries among the most likely tokens of the same request, in the order of the
    request.
    """
    (whole,) = chat(tiny, logprobs=True, top_logprobs=20, return_tokens_as_token_ids=True)[
        "choices"
    ]
    places = whole["logprobs"]["content"]
    first = {int(t["token"].split(":")[1]): t["logprob"] for t in places[0]["top_logprobs"]}
    ids = list(first)[::3][::-1]
    for own in ({}, {"prompt_logprobs": 2}, {"top_logprobs": 1}):
        (some,) = chat(
            tiny, logprobs=True, logprob_token_ids=ids, return_tokens_as_token_ids=True, **own
        )["choices"]
        top = some["logprobs"]["content"][0]["top_logprobs"]
        assert [t["token"] for t in top] == [f"token_id:{i}" for i in ids]
        assert [t["logprob"] for t in top] == pytest.approx([first[i] for i in ids], abs=1e-4)
        assert some["message"] == whole["message"]
    # completions: a map from tokens to log probabilities
    both = [
        completion(tiny, logprobs=n, return_tokens_as_token_ids=True, **own)["choices"][0][
            "logprobs"
        ]
        for n, own in ((5, {}), (0, {"logprob_token_ids": ids}))
    ]
    assert both[0]["tokens"] == both[1]["tokens"]
    for all_, chosen in zip(*(b["top_logprobs"] for b in both)):
        assert {f"token_id:{i}" for i in ids} <= set(chosen)
        for k in set(all_) & set(chosen):
            assert chosen[k] == pytest.approx(all_[k], abs=1e-4)
    for bad in ([-1], [10**6], "x", list(range(21))):
        r = tiny.post(
            "/v1/chat/completions", {"messages": HELLO, "logprobs": True, "logprob_token_ids": bad}
        )
        assert r.status == 400 and r.json()["error"]["param"] == "logprob_token_ids"
    r = tiny.post("/v1/chat/completions", {"messages": HELLO, "logprob_token_ids": ids})
    assert r.status == 400 and "'logprobs' is enabled" in r.text


def test_a_chat_begins_with_given_ids(tiny):
    prompt, _ = prompt_of_chat(tiny)
    plain = chat(tiny)
    same = chat(tiny, input_ids=prompt, messages=[{"role": "user", "content": "other"}])
    assert same["choices"] == plain["choices"] and same["usage"] == plain["usage"]
    text = completion(tiny, prompt=prompt[:5])["choices"][0]["text"]
    assert chat(tiny, input_ids=prompt[:5])["choices"][0]["message"]["content"] == text
    for bad in ([], [-1], [10**6], "x", [1] * 100000):
        r = tiny.post("/v1/chat/completions", {"messages": HELLO, "input_ids": bad})
        assert r.status == 400, bad
