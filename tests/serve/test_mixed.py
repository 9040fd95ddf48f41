"""Many concurrent requests of all kinds over HTTP, on a server with everything enabled: each gets
the answer that it gets alone.
"""

import itertools
import json
import random
import threading

import tiny_model
from tiny_model import NAMES, SCHEMA, TOOLS

N = 64
CHANGES = {
    "id",
    "created",
    "created_at",
    "completed_at",
    "call_id",
    "usage",
    "timings",
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
    "prompt_eval_count",
}


def requests():
    """Return 64 (path, body): every kind with and without a temperature, for every name."""
    r, names, hot = random.Random(64), itertools.cycle(NAMES), itertools.cycle([0, 0, 1, 0.8, 1.3])
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    tool = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}
    anthropic = {"tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}}

    def prompt():
        return r.choice(["", "a beginning that many of them share, and so its pages, "]) + "".join(
            r.choice("hello world abc \n\u00e9") for _ in range(r.randrange(1, 50))
        )

    def say():
        return [{"role": "user", "content": prompt()}]

    kinds = [
        lambda c: (
            "/v1/completions",
            {**c, "prompt": prompt(), "max_tokens": 60, "ignore_eos": True},
        ),
        lambda c: (
            "/v1/completions",
            {**c, "prompt": [prompt(), prompt()], "max_tokens": 20, "n": 3, "logprobs": 2},
        ),
        lambda c: (
            "/v1/completions",
            {
                **c,
                "prompt": prompt(),
                "max_tokens": 80,
                "stop": ["a", "\u00e9", "lo"],
                "stream": True,
            },
        ),
        lambda c: (
            "/v1/completions",
            {
                **c,
                "prompt": prompt(),
                "max_tokens": 200,
                "guided_regex": "(one two three, )*",
                "ignore_eos": True,
            },
        ),  # draft tokens are accepted when measured step times favour them
        lambda c: (
            "/v1/chat/completions",
            {**c, "messages": say(), "max_tokens": 50, "repetition_penalty": 1.2},
        ),
        lambda c: (
            "/v1/chat/completions",
            {**c, "messages": say(), "max_tokens": 90, "response_format": schema, "n": 2},
        ),
        lambda c: ("/v1/chat/completions", {**c, "messages": say(), "max_tokens": 90, **tool}),
        lambda c: (
            "/v1/chat/completions",
            {**c, "messages": say(), "max_tokens": 90, **tool, "stream": True},
        ),
        lambda c: (
            "/v1/responses",
            {
                **c,
                "input": prompt(),
                "max_output_tokens": 90,
                "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            },
        ),
        lambda c: ("/v1/responses", {**c, "input": prompt(), "max_output_tokens": 40}),
        lambda c: (
            "/v1/messages",
            {**c, "temperature": 0, "messages": say(), "max_tokens": 90, **anthropic},
        ),
        lambda c: (
            "/v1/messages",
            {**c, "temperature": 0, "messages": say(), "max_tokens": 40, "stop_sequences": ["b"]},
        ),
        lambda c: (
            "/api/chat",
            {
                "model": c["model"],
                "messages": say(),
                "format": SCHEMA,
                "stream": False,
                "options": {"num_predict": 90, "temperature": c["temperature"], "seed": c["seed"]},
            },
        ),
        lambda c: (
            "/api/generate",
            {
                "model": c["model"],
                "prompt": prompt(),
                "stream": False,
                "options": {"num_predict": 40, "temperature": c["temperature"], "seed": c["seed"]},
            },
        ),
        lambda c: (
            "/generate",
            {
                "inputs": prompt(),
                "parameters": {
                    "max_new_tokens": 40,
                    "seed": c["seed"],
                    "do_sample": c["temperature"] > 0,
                    "details": True,
                },
            },
        ),
    ]
    return [
        kind(
            {
                "model": next(names),
                "temperature": next(hot),
                "seed": i,
                "speculate": r.choice([0, 4, 15]),
            }
        )
        for i, kind in zip(range(N), itertools.cycle(kinds))
    ]


def lasting(value):
    """Return the part of an answer that is equal in each run."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in CHANGES}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def merged(frames):
    """Merge the chunks of each choice of a stream: accepted draft tokens may arrive together."""
    out = {}
    for frame in frames[:-1]:
        for c in json.loads(frame)["choices"]:
            call = next(iter(c.get("delta", {}).get("tool_calls", [])), {}).get("function", {})
            had = out.setdefault(c["index"], {})
            for key, piece in (
                ("text", c.get("text") or c.get("delta", {}).get("content")),
                ("name", call.get("name")),
                ("arguments", call.get("arguments")),
                ("finish", c["finish_reason"]),
            ):
                had[key] = had.get(key, "") + (piece or "")
    assert frames[-1] == "[DONE]"
    return out


def ask(server, path, body):
    a = server.post(path, body)
    assert a.status == 200, a.text
    return merged(a.frames()) if body.get("stream") else lasting(a.json())


def test_many_requests_at_once_are_answered_as_alone(serve, tmp_path):
    """Fewer sequences, adapter slots and pages than requested, so that requests wait and some
    are preempted.
    """
    asked, folder = requests(), tiny_model.build(tmp_path / "tiny", context=1024)
    with serve(
        folder,
        "--arch",
        "generic",
        "-t",
        "2",
        "--seqs",
        "8",
        "--kv-tokens",
        "1024",
        *tiny_model.everything(tmp_path, folder),
    ) as s:
        alone, together = [ask(s, *a) for a in asked], [None] * N
        assert len({json.dumps(a) for a in alone}) > N * 3 / 4, "they are different"

        def client(i):
            together[i] = ask(s, *asked[i])

        order = random.Random(0).sample(range(N), N)
        threads = [threading.Thread(target=client, args=(i,)) for i in order]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        wrong = [(*asked[i], alone[i], together[i]) for i in range(N) if alone[i] != together[i]]
        assert not wrong, f"{len(wrong)} of {N}: {wrong[0]}"
        s.idle()
        assert s.stop()[0] == 0
