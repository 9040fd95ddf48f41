"""Constrained output against llguidance: equal masks along strings of a corpus of schemas, for several vocabularies.

Random outputs of random schemas must also be JSON that validates.
"""

import ctypes
import json
import os
import pathlib
import random
import subprocess

import llguidance
import numpy
import pytest
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask

import llmc
import text_lib
from grammar_cases import APPLY_PATCH, CASES, LARK, PATCH

DATA = os.environ.get("LLMC_TEST_DATA")
FILES = (
    [
        pathlib.Path(DATA, "tokenizers", f"ggml-vocab-{n}.gguf")
        for n in ("gpt-2", "llama-bpe", "qwen2")
    ]
    if DATA
    else []
)


def token_bytes(t):
    """Returns the bytes of each token; special tokens follow a 0xff byte, as llguidance expects."""
    out, buf, need, err = [], ctypes.create_string_buffer(2048), ctypes.c_size_t(), text_lib.Error()
    for i in range(len(t)):
        fits = (
            text_lib.LIB.llmc_token_bytes(
                t._h, i, buf, len(buf), ctypes.byref(need), ctypes.byref(err)
            )
            == 0
        )
        special = text_lib.LIB.llmc_token_is_special(t._h, i)
        out.append((b"\xff" if special else b"") + buf.raw[: need.value] if fits else b"")
    return out


class Vocabulary:
    """Builds one vocabulary for both engines."""

    def __init__(self, path, eos):
        self.tokenizer = llmc.Tokenizer(path)
        self.tokens = token_bytes(self.tokenizer)
        self.special = [i for i, b in enumerate(self.tokens) if b[:1] == b"\xff"]
        self.eos_token_id = self.tokens.index(b"\xff" + eos)
        self.bos_token_id, self.special_token_ids = None, self.special
        self.judge = LLTokenizer(llguidance.TokenizerWrapper(self))
        self.by_first = {}
        for i, b in sorted(enumerate(self.tokens), key=lambda x: (-len(x[1]), x[0])):
            if i not in self.special and b:
                self.by_first.setdefault(b[0], []).append(i)

    def __call__(self, text):
        return self.tokenizer.encode(text, special=0)

    def bits(self, mask):
        return numpy.unpackbits(mask, bitorder="little")[: len(self.tokens)]


EOS = {"gpt-2": b"<|endoftext|>", "llama-bpe": b"<|end_of_text|>", "qwen2": b"<|endoftext|>"}


@pytest.fixture(scope="module", params=["smollm2"] + FILES, ids=str)
def vocabulary(request):
    if request.param == "smollm2":
        return Vocabulary(request.getfixturevalue("smollm2"), b"<|im_end|>")
    return Vocabulary(request.param, next(e for n, e in EOS.items() if n in request.param.name))


def same(v, ours, theirs, where):
    """Compares masks except for end tokens (llguidance has one) and forced bytes (llguidance keeps only the canonical token)."""
    end = bool(theirs[v.eos_token_id])
    assert end == any(ours[i] for i in v.special), where
    ours, theirs = ours.copy(), theirs.copy()
    ours[v.special] = theirs[v.special] = 0
    diff = numpy.nonzero(ours != theirs)[0]
    if theirs.sum() == 1 and (ours >= theirs).all():
        forced = v.tokens[int(numpy.nonzero(theirs)[0][0])]
        diff = [
            i
            for i in diff
            if not (forced.startswith(v.tokens[i]) or v.tokens[i].startswith(forced))
        ]
    # llguidance accepts second 60 in any time; jsonschema's checker rejects it
    if where.startswith(("time ", "date-time ")):
        diff = [i for i in diff if not (theirs[i] and v.tokens[i].startswith(b"6"))]
    # for keys that the schema does not list, llguidance also accepts \u escapes of any character
    diff = [i for i in diff if not (theirs[i] and b"\\u" in v.tokens[i])]
    # llmc accepts the members of several schemas in any order
    if where.startswith("allOf "):
        diff = [i for i in diff if theirs[i]]
    assert not len(diff), (where, [v.tokens[i] for i in diff[:8]], len(diff))


def walk(v, name, grammar, rules, text):
    """Compares all masks along a string, split into the longest allowed tokens."""
    data, at, n = text.encode(), 0, 0
    theirs_now = numpy.zeros((1, (len(v.tokens) + 31) // 32), dtype=numpy.int32)
    with grammar.matcher() as m:
        judge = LLMatcher(v.judge, rules)
        while True:
            ours = v.bits(numpy.frombuffer(m.mask(), dtype=numpy.uint8))
            fill_next_token_bitmask(judge, theirs_now)
            same(
                v,
                ours,
                v.bits(theirs_now.view(numpy.uint8)[0]),
                f"{name} behind {text.encode()[:at][-40:]}",
            )
            n += 1
            if at == len(data):
                assert m.may_end
                return n
            token = next(
                i for i in v.by_first[data[at]] if ours[i] and data.startswith(v.tokens[i], at)
            )
            m.accept(token)
            judge.consume_token(token)
            at += len(v.tokens[token])


def test_masks_are_those_of_llguidance(vocabulary):
    v, n = vocabulary, 0
    for name, schema, texts in CASES:
        rules = LLMatcher.grammar_from_json_schema(
            json.dumps(
                {
                    **schema,
                    "x-guidance": {
                        "whitespace_flexible": False,
                        "item_separator": ",",
                        "key_separator": ":",
                    },
                }
            )
        )
        assert not LLMatcher.validate_grammar(rules, v.judge), name
        with llmc.Grammar(
            v.tokenizer, "json_schema", schema, compact=True, standard=True
        ) as grammar:
            for text in texts:
                n += walk(
                    v,
                    name,
                    grammar,
                    rules,
                    text
                    if isinstance(text, str)
                    else json.dumps(text, separators=(",", ":"), ensure_ascii=False),
                )
    assert n > 400


@pytest.mark.parametrize("name,text,texts", LARK, ids=[c[0] for c in LARK])
def test_masks_of_lark_are_those_of_llguidance(vocabulary, name, text, texts):
    rules = LLMatcher.grammar_from_lark(text)
    assert not LLMatcher.validate_grammar(rules, vocabulary.judge)
    with llmc.Grammar(vocabulary.tokenizer, "lark", text) as grammar:
        assert sum(walk(vocabulary, name, grammar, rules, t) for t in texts) > 2 * len(texts)


def test_a_patch_within_json_is_a_patch(smollm2_tokenizer):
    """Random outputs of the Codex grammar inside a JSON string match the plain grammar after JSON decoding."""
    tok, rng = smollm2_tokenizer, random.Random(2)
    tokens = token_bytes(tok)
    usable = numpy.array([t[:1] != b"\xff" and 0 < len(t) < 4 for t in tokens])
    parts = {
        "seq": [
            {"text": '"'},
            {"grammar": APPLY_PATCH, "kind": "lark", "json": True},
            {"text": '"'},
        ]
    }
    with (
        llmc.Grammar(
            tok, "parts", parts if isinstance(parts, str) else json.dumps(parts)
        ) as inside,
        llmc.Grammar(tok, "lark", APPLY_PATCH) as plain,
    ):
        with inside.matcher() as m:
            for t in tok.encode(json.dumps(PATCH, ensure_ascii=False), special=0):
                assert m.allows(t)
                m.accept(t)
            assert m.may_end
        for _ in range(20):
            out = b""
            with inside.matcher() as m:
                for step in range(300):
                    if m.may_end:
                        break
                    allowed = numpy.unpackbits(
                        numpy.frombuffer(m.mask(), dtype=numpy.uint8), bitorder="little"
                    )[: len(tokens)].astype(bool)
                    some = numpy.nonzero(allowed & usable)[0]
                    ends = (
                        [i for i in some if tokens[i] in (b"\\n", b"\\", b"n", b'"')]
                        if step % 3
                        else []
                    )
                    pick = int(rng.choice(ends if ends else some))
                    m.accept(pick)
                    out += tokens[pick]
                done = m.may_end
            text = (
                json.loads(out.decode("utf-8", "ignore") + ("" if done else '"'), strict=True)
                if done
                else None
            )
            if text is not None:
                with plain.matcher() as m:
                    for t in tok.encode(text, special=0):
                        m.accept(t)
                    assert m.may_end


def test_random_outputs_validate_against_their_schema(smollm2_tokenizer):
    tok = smollm2_tokenizer
    tokens = token_bytes(tok)
    rng = random.Random(1)
    usable = numpy.array([t[:1] != b"\xff" for t in tokens])
    closes = numpy.array([t in (b'"', b"}", b"]", b'"}', b"]}", b'"]') for t in tokens])
    for name, schema, _ in CASES:
        with llmc.Grammar(tok, "json_schema", schema) as grammar, grammar.matcher() as m:
            out = b""
            for step in range(400):
                if m.may_end and (m.ended or step > 40):
                    break
                allowed = (
                    numpy.unpackbits(
                        numpy.frombuffer(m.mask(), dtype=numpy.uint8), bitorder="little"
                    )[: len(tokens)].astype(bool)
                    & usable
                )
                # prefer closing tokens once the output is long
                closing = numpy.nonzero(allowed & closes)[0] if step > 40 else ()
                pick = int(rng.choice(closing if len(closing) else numpy.nonzero(allowed)[0]))
                m.accept(pick)
                out += tokens[pick]
            if m.may_end:
                json.loads(out.decode())


@pytest.mark.parametrize(
    "kind,text,word",
    [
        ("json_schema", {"properties": {"a": {"pattern": "(?=x)"}}}, "#/properties/a/pattern"),
        ("json_schema", {"properties": {"a": {"type": "text"}}}, "#/properties/a/type"),
        ("regex", "a{3,2}", "byte"),
        ("gbnf", "root ::= (", "line 1"),
    ],
)
def test_errors_name_the_location(smollm2_tokenizer, kind, text, word):
    with pytest.raises(llmc.Error, match=word.replace("(", "\\(")) as e:
        llmc.Grammar(smollm2_tokenizer, kind, text)
    assert e.value.name == "LLMC_E_INPUT"


def test_generation_follows_a_grammar(smollm2):
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
        },
        "required": ["name", "age"],
    }
    with llmc.open(smollm2) as model, model.session() as session:
        prompt = model.tokenizer.chat([{"role": "user", "content": "Invent a person, as JSON."}])
        for kind, text, check in [
            ("json_schema", schema, lambda s: 0 <= json.loads(s)["age"] <= 150),
            ("choice", ["red", "green"], lambda s: s in ("red", "green")),
            ("regex", "[A-C]{3}-[0-9]{2}", lambda s: len(s) == 6),
            ("gbnf", 'root ::= "<" [a-z]{3} ">"', lambda s: len(s) == 5),
        ]:
            with llmc.Grammar(model.tokenizer, kind, text) as grammar:
                for params in ({}, {"temperature": 1.0, "seed": 3}):
                    assert check(
                        "".join(session.generate(prompt, max_tokens=80, grammar=grammar, **params))
                    ), (kind, params)


def test_the_command_line(smollm2, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(
        json.dumps(
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 1}},
                "required": ["n"],
            }
        )
    )
    run = [
        os.environ.get("LLMC", str(text_lib.ROOT / "build" / "llmc")),
        "run",
        str(smollm2),
        "--prompt",
        "A number: ",
        "-n",
        "20",
        "--quiet",
    ]
    p = subprocess.run([*run, "--schema", str(schema)], capture_output=True, text=True)
    assert p.returncode == 0 and 1 <= json.loads(p.stdout)["n"] <= 9, p.stderr
    (tmp_path / "two.lark").write_text('start: WORD " " WORD\nWORD: /[a-c]{3}/')
    p = subprocess.run(
        [*run, "--grammar", str(tmp_path / "two.lark")], capture_output=True, text=True
    )
    assert (
        p.returncode == 0 and len(p.stdout.strip()) == 7 and set(p.stdout.strip()) <= set("abc ")
    ), p.stderr
    (tmp_path / "bad").write_text("root ::= x")
    p = subprocess.run([*run, "--grammar", str(tmp_path / "bad")], capture_output=True, text=True)
    assert p.returncode == 1 and "no rule 'x'" in p.stderr
