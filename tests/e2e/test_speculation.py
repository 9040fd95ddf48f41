"""Draft tokens change nothing. SmolLM2 generates the same tokens and logprob bits with and without
them: greedy and sampled, with penalties, stop strings, grammars and choices, alone and in a
batch. Whether tokens are drafted depends on timing, so no test requires that."""

import os

import pytest

import llmc

CODE = """def total(items, tax):
    subtotal = 0
    for item in items:
        subtotal += item["price"] * item["quantity"]
    return subtotal * (1 + tax)
"""
ASK = "Repeat this Python function with the name total changed to sum_up:\n\n" + CODE
LIST = "Name, Age\nAnna, 31\nBert, 45\nCara, 28\nDora, 52\n"
SETTINGS = [
    dict(),
    dict(temperature=0.8, seed=1),
    dict(temperature=1.2, top_p=0.9, seed=2),
    dict(temperature=0.7, top_k=20, seed=3),
    dict(repetition_penalty=1.1),
    dict(frequency_penalty=0.3, presence_penalty=0.2, temperature=0.5, seed=4),
    dict(stop=["return", "\n\n\n"]),
    dict(min_tokens=20, stop=["subtotal += "], temperature=0.3, seed=5),
    dict(n=3, temperature=0.6, seed=6),
    dict(n=2, best_of=3, temperature=0.9, seed=7),
]
if not os.environ.get("LLMC_CHECK_ALL"):
    SETTINGS = SETTINGS[::3] + SETTINGS[-2:-1]


@pytest.fixture(scope="module")
def model(smollm2):
    with llmc.open(smollm2) as m:
        yield m


@pytest.fixture(scope="module")
def engine(model):
    with model.engine(context=512, seqs=4, chunk=128, threads=1) as e:
        yield e
        s = e.stats()
        assert s["accepted"] <= s["drafted"] and sum(s["accepted_at"]) == s["accepted"]


def chat(model, text):
    return model.tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")


def events(request):
    """Return all events of a request, in order per choice."""
    output = {}
    for e in request.events():
        output.setdefault(e.index, []).append(
            (e.kind, e.token, e.logprob, e.text, e.top, getattr(e, "finish", None))
        )
    return output


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(s) or "greedy")
def test_nothing_changes(model, engine, settings):
    prompt = chat(model, ASK)
    output = [
        events(engine.submit(prompt, max_tokens=32, n_top=2, speculate=k, **settings))
        for k in (-1, 0, 5)
    ]
    assert output[0] == output[1] == output[2]


def test_grammars(model, engine):
    schema = {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
        },
    }
    with llmc.Grammar(model.tokenizer, "json_schema", schema) as g:
        prompt = chat(model, "As JSON:\n" + LIST)
        output = [
            events(
                engine.submit(prompt, max_tokens=60, grammar=g, speculate=k, temperature=t, seed=9)
            )
            for t in (0, 0.8)
            for k in (-1, 0)
        ]
    assert output[0] == output[1] and output[2] == output[3]


def test_side_by_side(model, engine):
    prompts = [chat(model, t) for t in (ASK, "Continue:\n" + LIST, "Tell a story.", ASK)]
    output = []
    for k in (-1, 0):
        requests = [
            engine.submit(p, max_tokens=40, speculate=k, seed=i, temperature=0.4)
            for i, p in enumerate(prompts)
        ]
        output.append([events(r) for r in requests])
    assert output[0] == output[1]


def test_sessions_and_bounds(model, engine):
    prompt = chat(model, ASK)
    with model.session(context=512, n_out=16, threads=1) as s:
        output = [
            s.run(prompt, max_tokens=32, seed=3, temperature=t, speculate=k)
            for t in (0, 0.7)
            for k in (-1, 0, 2)
        ]
        assert (
            len({str(r["tokens"]) for r in output[:3]}) == 1
            and len({str(r["tokens"]) for r in output[3:]}) == 1
        )
        # the last positions of a context, and prompts of one and two tokens
        for n in (1, 2, 512 - len(prompt) + 1):
            a, b = (
                s.run(prompt, max_tokens=n, speculate=k, ignore_eos=True)["tokens"] for k in (-1, 0)
            )
            assert a == b and len(a) == n
    with pytest.raises(llmc.Error, match="speculate is 16"):
        engine.submit(prompt, speculate=16)


def test_a_draft_model(model, engine):
    """The model drafts for itself: nearly all draft tokens are accepted, and the output does not
    change."""
    prompt = chat(model, "Tell a story.")
    with model.engine(context=512, seqs=4, chunk=128, threads=1, draft=model) as own:
        for settings in (dict(), dict(temperature=0.7, seed=1), dict(n=2, temperature=0.5, seed=2)):
            output = [
                events(e.submit(prompt, max_tokens=40, n_top=1, speculate=k, **settings))
                for e, k in ((engine, -1), (own, 0))
            ]
            assert output[0] == output[1]
        s = own.stats()
        assert s["drafts"] > 0 and s["running"] == 0
    with (
        llmc.open("configs/tiny.yaml", random_weights=True) as tiny,
        pytest.raises(llmc.Error, match="a draft model must have the model's vocabulary"),
    ):
        model.engine(draft=tiny)
    with (
        llmc.open("configs/tiny.yaml", random_weights=True, set=["head.kind=hidden"]) as vectors,
        pytest.raises(llmc.Error, match="cannot be a draft model"),
    ):
        model.engine(draft=vectors)
