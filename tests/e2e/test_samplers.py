"""DRY with breakers of a tokenizer, and samplers in the engine, on SmolLM2. The oracle reads logits
of one forward pass per token, and computes the penalty from llama.cpp's definition of it."""

import numpy as np
import pytest

import llmc

REPEATS = "Roses: red. Violets: blue. Roses: red. Violets: blue. Roses: red."
USUAL = ["\n", ":", '"', "*"]


@pytest.fixture(scope="module")
def model(smollm2):
    with llmc.open(smollm2) as m:
        yield m


def breakers_of(tokenizer, strings):
    """Return token sequences: a token that holds the string, or ends with its beginning, and the
    tokens of the rest."""
    out = []
    for string in strings:
        for id in range(len(tokenizer)):
            word = tokenizer.decode([id])
            if string in word:
                out.append([id])
                continue
            for n in range(1, len(string)):
                if word.endswith(string[:n]):
                    out.append([id, *tokenizer.encode(string[n:], special=0)])
    return out


def penalise(logits, tokens, breakers, multiplier, base=1.75, allowed=2):
    limit = len(tokens)
    singles = {b[0] for b in breakers if len(b) == 1}
    longer = [b for b in breakers if len(b) > 1]
    for i in range(len(tokens)):
        at = len(tokens) - 1 - i
        found = [1] if tokens[at] in singles else []
        found += [len(b) for b in longer if tokens[at : at + len(b)] == b]
        if found:
            limit = i - (max(found) - 1)
            break
    longest = {}
    for end in range(1, len(tokens)):
        n = 0
        while n < end and tokens[end - 1 - n] == tokens[-1 - n]:
            n += 1
        n = min(n, limit)
        if limit >= allowed and n >= allowed:
            longest[tokens[end]] = max(n, longest.get(tokens[end], 0))
    for token, n in longest.items():
        if token not in singles:
            logits[token] -= multiplier * base ** (n - allowed)


def greedy(model, prompt, n_new, breakers, multiplier):
    tokens = list(prompt)
    with model.session(context=256) as s:
        q = s.seq()
        logits = np.array(s.forward([(q, tokens, 1)])).ravel()
        for _ in range(n_new):
            work = logits.astype(np.float64)
            if multiplier:
                penalise(work, tokens, breakers, multiplier)
            tokens.append(int(work.argmax()))
            logits = np.array(s.forward([(q, tokens[-1:], 1)])).ravel()
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    "strings", [None, [], ["."], ["blue. R", " red"], ["Violets: b"]], ids=lambda s: str(s)
)
def test_dry_ends_repetitions(model, strings):
    prompt = model.tokenizer.encode(REPEATS)
    breakers = breakers_of(model.tokenizer, USUAL if strings is None else strings)
    want = greedy(model, prompt, 24, breakers, 3)
    plain = greedy(model, prompt, 24, [], 0)
    with model.engine(context=256, seqs=2) as e:
        settings = dict(max_tokens=24, ignore_eos=True, dry_sequence_breakers=strings)
        assert e.submit(prompt, **settings).wait()["tokens"] == plain
        got = e.submit(prompt, dry_multiplier=3, **settings).wait()["tokens"]
        drafted = e.submit(prompt, dry_multiplier=3, speculate=8, **settings).wait()["tokens"]
    assert got == drafted == want
    if strings == []:
        assert got != plain


SETTINGS = [
    dict(mirostat=1, temperature=0.9, seed=1),
    dict(mirostat=2, mirostat_tau=3, temperature=1.1, seed=2),
    dict(dry_multiplier=0.8, temperature=0.6, seed=3),
    dict(xtc_probability=0.5, temperature=0.8, seed=4),
    dict(top_n_sigma=1.0, temperature=1.5, seed=5),
    dict(dynatemp_range=0.6, top_k=40, temperature=0.9, seed=6),
    dict(repetition_penalty=1.3, repeat_last_n=16, temperature=0),
]


def test_batches_drafts_and_grammars_change_nothing(model):
    """All settings in one batch, with too few pages for it, yield the tokens of each alone."""
    prompt = model.tokenizer.encode(REPEATS + " Violets")
    words = llmc.Grammar(model.tokenizer, "regex", r"[a-zA-Z :.,\n]*")
    alone = {}
    cases = [(i, words if i % 3 == 0 else None) for i in range(len(SETTINGS))]
    with model.engine(context=256, seqs=1, speculate=-1) as e:
        for i, g in cases:
            alone[i, g] = e.submit(prompt, max_tokens=40, grammar=g, **SETTINGS[i]).wait()
    with model.engine(context=256, seqs=8, kv_tokens=256) as e:
        requests = {
            (i, g): e.submit(prompt, max_tokens=40, grammar=g, speculate=8, **SETTINGS[i])
            for i, g in cases
        }
        for k, r in requests.items():
            got = r.wait()
            assert (got["tokens"], got["finish"]) == (alone[k]["tokens"], alone[k]["finish"]), k
        assert e.stats()["preemptions"] > 0
    assert len({tuple(a["tokens"]) for a in alone.values()}) == len(SETTINGS)


@pytest.mark.parametrize(
    "wrong,said",
    [
        (dict(mirostat=3), "mirostat is 3, valid values are 0 to 2"),
        (dict(xtc_probability=1.5), "xtc_probability is 1.5, valid values are 0 to 1"),
        (dict(repeat_last_n=-2), "repeat_last_n is -2, valid values are -1 to 2.14748e+09"),
        (dict(dry_multiplier=-1), "dry_multiplier is -1, it must be a finite number of at least 0"),
    ],
)
def test_values_out_of_range(model, wrong, said):
    with model.session(context=64) as s, pytest.raises(llmc.Error) as e:
        s.run("a", max_tokens=1, **wrong)
    assert str(e.value) == said
