"""The JSON Schema test suite, beside llguidance: what both make of its schemas, and which instances they let be written.

The suite comes with the source archive of the package jsonschema, which `make check-all` fetches; SCHEMA_SUITE names a folder that has it (with draft7/, draft2020-12/ in it)."""
import collections
import glob
import json
import os
import subprocess
import sys
import tarfile

import pytest
from llguidance import LLMatcher

import llmc
from test_grammar import Vocabulary

PACKAGE = "jsonschema==4.26.0"
PASSED, REFUSED = "passed", "not compiled"


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    if "SCHEMA_SUITE" in os.environ:
        return os.environ["SCHEMA_SUITE"]
    if "LLMC_CHECK_ALL" not in os.environ:
        pytest.skip("make check-all runs it")
    folder = tmp_path_factory.mktemp("suite")
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--dest", folder, PACKAGE], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, [m for m in tar.getmembers() if "/json/tests/draft" in m.name], filter="data")
    return next(folder.glob("*/json/tests"))


def groups(suite, draft):
    """(file, description, schema, [(instance, valid)])"""
    for path in sorted(glob.glob(os.path.join(suite, draft, "*.json"))):
        for g in json.load(open(path)):
            yield os.path.basename(path), g["description"], g["schema"], [(json.dumps(t["data"], separators=(",", ":"), ensure_ascii=False), t["valid"]) for t in g["tests"]]


def ours(v, single, schema, instances):
    """Each: passed, not compiled, or wrong"""
    try:
        grammar = llmc.Grammar(v.tokenizer, "json_schema", schema, standard=True, strict=True)
    except llmc.Error:
        return None
    out = []
    with grammar:
        for text, valid in instances:
            with grammar.matcher() as m:
                took = True
                for b in text.encode():
                    if not m.allows(single[b]):
                        took = False
                        break
                    m.accept(single[b])
                out.append((took and m.may_end) == valid)
    return out


def theirs(v, single, schema, instances):
    try:
        rules = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    except Exception:  # noqa: BLE001 whatever it raises is a refusal
        return None
    if LLMatcher.validate_grammar(rules, v.judge):
        return None
    out = []
    for text, valid in instances:
        m = LLMatcher(v.judge, rules)
        ids = [single[b] for b in text.encode()]
        took = not m.is_error() and m.validate_tokens(ids) == len(ids)
        if took:
            m.consume_tokens(ids)
        out.append((took and m.is_accepting()) == valid)
    return out


@pytest.mark.parametrize("draft", ["draft7", "draft2020-12"])
def test_the_suite(suite, smollm2, draft, capsys):
    v = Vocabulary(smollm2, b"<|im_end|>")
    single = {t[0]: i for i, t in enumerate(v.tokens) if len(t) == 1}
    count = {"llmc": collections.Counter(), "llguidance": collections.Counter()}
    behind, wrong = [], []
    for file, about, schema, instances in groups(suite, draft):
        results = {"llmc": ours(v, single, schema, instances), "llguidance": theirs(v, single, schema, instances)}
        for who, r in results.items():
            for i, (text, valid) in enumerate(instances):
                count[who][REFUSED if r is None else PASSED if r[i] else "wrongly taken" if not valid else "wrongly refused"] += 1
        for i, (text, valid) in enumerate(instances):
            if results["llguidance"] and results["llguidance"][i] and not (results["llmc"] and results["llmc"][i]):
                behind.append(f"{file}: {about}: {text[:60]} {'valid' if valid else 'not valid'}{'' if results['llmc'] else ' (not compiled)'}")
            if results["llmc"] and not results["llmc"][i] and not valid:
                wrong.append(f"{file}: {about}: {text[:60]}")
    with capsys.disabled():
        print(f"\n{draft}: " + "; ".join(f"{who}: " + ", ".join(f"{n} {what}" for what, n in sorted(c.items())) for who, c in count.items()))
        if os.environ.get("SCHEMA_SUITE_LIST"):
            print(*behind, "WRONGLY TAKEN", *wrong, sep="\n")
    assert count["llmc"][PASSED] >= count["llguidance"][PASSED], behind
