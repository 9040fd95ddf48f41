"""Token masks compared with llguidance, in one process on one thread, alternating: time to compile,
and time per mask along outputs of the test corpus.

    PYTHONPATH=bindings/python VENV/bin/python tests/bench/grammar.py MODEL.gguf [VOCAB.gguf=EOS ...] [--out tests/bench/results/grammar-HOST.csv]

With --suite FOLDER (drafts of the JSON Schema test suite): all schemas that both compile, over the
valid instances that both accept.

The first run of an output has no cached mask. The second run is that of a server that sees a schema
again. llguidance computes every mask anew. Times are of one call from Python, whose overhead both
have."""

import argparse
import csv
import ctypes
import json
import os
import pathlib
import statistics
import sys
import time

import numpy
from llguidance import LLMatcher

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "text"), str(ROOT / "bindings" / "python")]
import llmc  # noqa: E402
from grammar_cases import CASES, LIST, RECORD, closed  # noqa: E402
from test_grammar import EOS, Vocabulary  # noqa: E402

DEEP = {
    "a": [1, 2.5, {"b": ["x" * 20, None, True]}] * 8,
    "c": {"d": {"e": {"f": {"g": [[[[1]]]]}}}},
    "t": "The quick brown fox jumps over the lazy dog. " * 20,
}
TOOLS = {
    "anyOf": [
        closed(
            {
                "name": {"const": f"tool_{i}"},
                "arguments": closed(
                    {
                        f"p{k}": {
                            "type": ["string", "integer", "boolean"][k % 3],
                            "description": "x" * 100,
                        }
                        for k in range(8)
                    }
                ),
            }
        )
        for i in range(60)
    ]
}
CALL = {
    "name": "tool_37",
    "arguments": {f"p{k}": ["some words here", 17, True][k % 3] for k in range(8)},
}
BENCH = [
    ("record", RECORD, [next(c for c in CASES if c[0] == "record")[2][0]]),
    ("enum of 3000", *next(c for c in CASES if c[0] == "long enum")[1:]),
    ("any object, deep", {"type": "object"}, [DEEP]),
    ("recursive list", LIST, [{"v": 1, "next": {"v": 2, "next": {"v": 3, "next": None}}}]),
    ("60 tools", TOOLS, [CALL]),
    (
        "maxLength 2000",
        {"type": "string", "maxLength": 2000},
        ['"' + "hello world, and so on " * 40 + '"'],
    ),
]


def timed(fn):
    start = time.perf_counter_ns()
    fn()
    return (time.perf_counter_ns() - start) / 1000


def tokens_of(v, grammar, text):
    """Tokenize the output greedily into the longest allowed tokens."""
    data, at, ids = text.encode(), 0, []
    with grammar.matcher() as m:
        while at < len(data):
            mask = v.bits(numpy.frombuffer(m.mask(), dtype=numpy.uint8))
            ids.append(
                next(
                    i for i in v.by_first[data[at]] if mask[i] and data.startswith(v.tokens[i], at)
                )
            )
            m.accept(ids[-1])
            at += len(v.tokens[ids[-1]])
    return ids


def ours(grammar, ids, words):
    out, err = [], llmc._ffi.Error()
    bits = (ctypes.c_uint32 * words)()
    with grammar.matcher() as m:
        for i in [*ids, None]:
            out.append(
                timed(lambda: llmc._ffi.lib.llmc_matcher_mask(m._h, bits, words, ctypes.byref(err)))
            )
            if i is not None:
                m.accept(i)
    return out


def theirs(judge, rules, ids, words):
    out, bits = [], numpy.zeros(words, dtype=numpy.uint32)
    m = LLMatcher(judge, rules)
    at = bits.ctypes.data
    for i in [*ids, None]:
        out.append(timed(lambda: m.unsafe_compute_mask_ptr(at, words * 4)))
        if i is not None:
            m.consume_token(i)
    return out


def rules_of(schema):
    return LLMatcher.grammar_from_json_schema(
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


def p99(x):
    return sorted(x)[min(len(x) - 1, len(x) * 99 // 100)]


def least(runs):  # per mask, the least time of all runs
    return [min(r[k] for r in runs) for k in range(len(runs[0]))]


def suite(v, folder):
    """Return (schemas, instances, times to compile and per mask: llmc, llguidance)."""
    words, n, texts, compiles, judged, first, judge = (
        (len(v.tokens) + 31) // 32,
        0,
        0,
        [],
        [],
        [],
        [],
    )
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        for group in json.loads(path.read_text()):
            schema = group["schema"]
            try:
                rules, text = rules_of(schema), json.dumps(schema)
                mine = min(
                    timed(
                        lambda: llmc.Grammar(
                            v.tokenizer,
                            "json_schema",
                            text,
                            compact=True,
                            standard=True,
                            strict=True,
                        ).close()
                    )
                    for _ in range(3)
                )
                g = llmc.Grammar(
                    v.tokenizer, "json_schema", text, compact=True, standard=True, strict=True
                )
            except (TypeError, ValueError, llmc.Error):
                continue
            if LLMatcher.validate_grammar(rules, v.judge):
                continue
            judged.append(min(timed(lambda: LLMatcher(v.judge, rules)) for _ in range(3)))
            compiles.append(mine)
            n += 1
            for test in group["tests"]:
                try:
                    ids = (
                        tokens_of(
                            v,
                            g,
                            json.dumps(test["data"], separators=(",", ":"), ensure_ascii=False),
                        )
                        if test["valid"]
                        else None
                    )
                except (StopIteration, KeyError):
                    continue
                m = LLMatcher(v.judge, rules)
                if not ids or m.validate_tokens(ids) != len(ids):
                    continue
                texts += 1
                mine, other = [], []
                for _ in range(5):
                    with llmc.Grammar(
                        v.tokenizer,
                        "json_schema",
                        json.dumps(schema),
                        compact=True,
                        standard=True,
                        strict=True,
                    ) as fresh:
                        mine.append(ours(fresh, ids, words))
                    other.append(theirs(v.judge, rules, ids, words))
                first += least(mine)
                judge += least(other)
            g.close()
    return n, texts, compiles, judged, first, judge


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("vocabularies", nargs="+")
    p.add_argument("--suite")
    p.add_argument("--out")
    args = p.parse_args()
    rows = [
        (
            "vocabulary",
            "tokens",
            "case",
            "masks",
            "compile_us",
            "llguidance_compile_us",
            "mean_first_us",
            "mean_again_us",
            "llguidance_mean_us",
            "p99_first_us",
            "llguidance_p99_us",
        )
    ]
    for arg in args.vocabularies:
        path, _, eos = arg.partition("=")
        v = Vocabulary(
            path,
            (eos or next((e.decode() for n, e in EOS.items() if n in path), "<|im_end|>")).encode(),
        )
        words = (len(v.tokens) + 31) // 32
        llmc.Grammar(
            v.tokenizer,
            "json_schema",
            "true",
            # the first grammar builds the tries of the vocabulary; those of llguidance have been
            # built by Vocabulary
        ).close()
        if args.suite:
            n, texts, compiles, judged, first, judge = suite(v, args.suite)
            rows[0] = (
                "vocabulary",
                "tokens",
                "suite",
                "schemas",
                "texts",
                "masks",
                *(
                    f"{who}{what}"
                    for what in ("compile_mean_us", "mask_mean_us", "mask_p50_us", "mask_p99_us")
                    for who in ("", "llguidance_")
                ),
            )
            rows.append(
                (
                    os.path.basename(path),
                    len(v.tokens),
                    os.path.basename(os.path.normpath(args.suite)),
                    n,
                    texts,
                    len(first),
                    *(
                        round(f(x), 1)
                        for f, x in (
                            (statistics.mean, compiles),
                            (statistics.mean, judged),
                            (statistics.mean, first),
                            (statistics.mean, judge),
                            (statistics.median, first),
                            (statistics.median, judge),
                            (p99, first),
                            (p99, judge),
                        )
                    ),
                )
            )
            print(*rows[0], sep=", ")
            print(*rows[-1], sep=", ", flush=True)
            continue
        for name, schema, texts in BENCH:
            text = (
                texts[0]
                if isinstance(texts[0], str)
                else json.dumps(texts[0], separators=(",", ":"), ensure_ascii=False)
            )
            rules = rules_of(schema)
            data, options = json.dumps(schema), {"compact": True, "standard": True}
            ids = tokens_of(v, llmc.Grammar(v.tokenizer, "json_schema", data, **options), text)
            compiles, judged, first, again, judge = [], [], [], [], []
            for _ in range(5):
                g = None
                start = time.perf_counter_ns()
                g = llmc.Grammar(v.tokenizer, "json_schema", data, **options)
                compiles.append((time.perf_counter_ns() - start) / 1000)
                start = time.perf_counter_ns()
                LLMatcher(v.judge, rules)
                judged.append((time.perf_counter_ns() - start) / 1000)
                first.append(ours(g, ids, words))
                judge.append(theirs(v.judge, rules, ids, words))
                again.append(ours(g, ids, words))
                g.close()

            f, a, j = least(first), least(again), least(judge)

            rows.append(
                (
                    os.path.basename(path),
                    len(v.tokens),
                    name,
                    len(f),
                    *(
                        round(x, 1)
                        for x in (
                            min(compiles),
                            min(judged),
                            statistics.mean(f),
                            statistics.mean(a),
                            statistics.mean(j),
                            p99(f),
                            p99(j),
                        )
                    ),
                )
            )
            print(*rows[-1], sep=", ", flush=True)
    if args.out:
        with open(args.out, "w", newline="") as f:
            csv.writer(f, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
