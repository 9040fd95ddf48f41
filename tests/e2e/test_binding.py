"""The Python binding: no use of a closed object, in any order and from any thread, can crash, and
wrong arguments raise. LLMC_LIBRARY=build/san/libllmc.so runs it on a sanitized library."""

import asyncio
import copy
import inspect
import itertools
import os
import random
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

import llmc
from golden_run import LLMC, ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "serve"))
from llmc import _ffi, _params
from waiting import HANG

TINY = os.path.join(ROOT, "configs", "tiny.yaml")
EVERY = "LLMC_CHECK_ALL" in os.environ
REFUSED = (llmc.Error, TypeError, ValueError, KeyError)
IDS = [1, 2, 3]


def tokens_json(path):
    """Write a tokenizer of the 256 bytes with one merge and one special token."""
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocab["ab"] = len(vocab)
    t = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens(["<|end|>"])
    t.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    )
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tokens_json(tmp_path_factory.mktemp("tokens"))


def model():
    return llmc.open(TINY, random_weights=True, device="ref", threads=1)


class All:
    """One object of each kind, and a way to use each."""

    def __init__(self, folder):
        self.model = model()
        self.session = self.model.session(context=64, seqs=3, n_out=2)
        self.engine = self.model.engine(context=64, seqs=2)
        self.tokenizer = llmc.Tokenizer(folder)
        self.grammar = llmc.Grammar(self.tokenizer, "regex", "(ab|c)*d")
        self.matcher = self.grammar.matcher()

    NAMES = ("model", "session", "engine", "tokenizer", "grammar", "matcher")

    def close(self):
        for name in reversed(self.NAMES):
            getattr(self, name).close()

    USES = {
        "model": {
            "__getitem__": lambda m: m["name"],
            "info": lambda m: m.info,
            "plan": lambda m: m.plan,
            "plan_text": lambda m: m.plan_text,
            "yaml": lambda m: m.yaml,
            "prompts": lambda m: m.prompts,
            "draft_tokens": lambda m: m.draft_tokens,
            "labels": lambda m: m.labels,
            "tokenizer": lambda m: m.tokenizer,
            "follow": lambda m: m.follow(),
            "load_adapter": lambda m: m.load_adapter("/nonexistent"),
            "unload_adapter": lambda m: m.unload_adapter(1),
            "memory": lambda m: m.memory(context=64),
            "engine": lambda m: m.engine(context=64).close(),
            "session": lambda m: m.session(context=64).close(),
        },
        "session": {
            "seq": lambda s: s.free(s.seq()),
            "adapt": lambda s: s.adapt(0, 1),
            "fork": lambda s: s.fork(0),
            "trim": lambda s: s.trim(0, 0),
            "mark": lambda s: s.mark(0),
            "unmark": lambda s: s.unmark(0),
            "length": lambda s: s.length(0),
            "free": lambda s: s.free(0),
            "save": lambda s: s.save(0),
            "load": lambda s: s.load(b"1234"),
            "forward": lambda s: s.forward([(0, IDS, 1)]),
            "forward_rows": lambda s: s.forward_rows([(0, IDS, 1)]),
            "forward_images": lambda s: s.forward_images([(0, IDS, 1)], [{}]),
            "embed": lambda s: s.embed(IDS),
            "stats": lambda s: s.stats(),
            "run": lambda s: s.run(IDS, max_tokens=2),
            "generate": lambda s: list(s.generate(IDS, max_tokens=2)),
            "chat": lambda s: list(s.chat([{"role": "user", "content": "a"}], max_tokens=2)),
        },
        "engine": {
            "drain": lambda e: e.drain(0),
            "replace_weights": lambda e: e.replace_weights("/nonexistent"),
            "submit": lambda e: e.submit(IDS, max_tokens=2),
            "generate": lambda e: list(e.generate(IDS, max_tokens=2)),
            "stream": lambda e: asyncio.run(collect(e.stream(IDS, max_tokens=2))),
            "events": lambda e: asyncio.run(collect(e.events(IDS, max_tokens=2))),
            "stats": lambda e: e.stats(),
        },
        "tokenizer": {
            "__len__": lambda t: len(t),
            "encode": lambda t: t.encode("abc"),
            "decode": lambda t: t.decode([1, 2]),
            "break_special": lambda t: t.break_special("<|end|>"),
            "fim": lambda t: t.fim(),
            "token": lambda t: t.token(1),
            "chat": lambda t: t.chat([{"role": "user", "content": "a"}]),
        },
        "grammar": {"matcher": lambda g: g.matcher().close(), "match": lambda g: g.match("abd")},
        "matcher": {
            "mask": lambda m: m.mask(),
            "allows": lambda m: m.allows(3),
            "accept": lambda m: m.accept(0),
            "reset": lambda m: m.reset(),
            "may_end": lambda m: m.may_end,
            "ended": lambda m: m.ended,
        },
    }


async def collect(stream):
    return [x async for x in stream]


@pytest.fixture
def all_kinds(folder):
    a = All(folder)
    yield a
    a.close()


def test_each_method_is_listed():
    for kind, uses in All.USES.items():
        cls = getattr(llmc, kind.capitalize())
        names = {n for n in vars(cls) if not n.startswith("_") and not n.isupper()}
        names |= {n for n in ("__len__", "__getitem__") if n in vars(cls)}
        assert names - {"close"} == set(uses), kind


@pytest.mark.parametrize("kind,name", [(k, n) for k in All.USES for n in All.USES[k]])
def test_use_of_a_closed_object_is_an_exception(kind, name, all_kinds):
    thing = getattr(all_kinds, kind)
    thing.close()
    thing.close()
    assert thing.closed
    with pytest.raises(llmc.ClosedError, match=f"this {kind} is closed"):
        All.USES[kind][name](thing)
    with pytest.raises(llmc.ClosedError), thing:
        pass
    with pytest.raises(TypeError):
        copy.copy(thing)


@pytest.mark.parametrize("order", itertools.permutations(("model", "session", "engine")))
def test_children_keep_their_model_open(order, folder):
    a = All(folder)
    want = a.session.run(IDS, max_tokens=4, ignore_eos=True)["tokens"]
    a.tokenizer.close()
    a.grammar.close()
    assert a.grammar.closed and a.matcher.allows(a.matcher._size - 2)  # "ab"
    for i, kind in enumerate(order):
        getattr(a, kind).close()
        for other in order[i + 1 :]:
            if other == "session":
                assert a.session.run(IDS, max_tokens=4, ignore_eos=True)["tokens"] == want
            elif other == "engine":
                r = a.engine.submit(IDS, max_tokens=4, ignore_eos=True).wait()
                assert r["tokens"] == want
            else:
                assert a.model.info["vocab"] > 0
    a.close()


def test_a_borrowed_tokenizer_keeps_its_model_open(smollm2):
    m = llmc.open(smollm2, no_weights=True)
    t = m.tokenizer
    want = t.encode("Hello")
    m.close()
    assert t.encode("Hello") == want and t.decode(want) == "Hello"
    t.close()
    with pytest.raises(llmc.ClosedError):
        t.encode("Hello")


def test_requests_of_a_closed_engine_end():
    with model() as m:
        e = m.engine(context=64, seqs=1)
        requests = [e.submit(IDS, max_tokens=60, ignore_eos=True) for _ in range(4)]
        results = []
        waiting = threading.Thread(target=lambda: results.append(requests[0].wait()))
        waiting.start()
        e.close()
        waiting.join(HANG)
        results += [r.wait() for r in requests[1:]]
        assert len(results) == 4 and all(r["finish"] in ("cancel", "length") for r in results)
        assert results[3]["finish"] == "cancel"
        requests[0].cancel()
        requests[0].forget()
        with pytest.raises(llmc.ClosedError):
            e.submit(IDS)


def test_a_stream_of_a_closed_engine_ends():
    async def main(m):
        e = m.engine(context=64, seqs=1)
        events = []
        async for event in e.events(IDS, max_tokens=60, ignore_eos=True):
            events.append(event.kind)
            if len(events) == 2:
                e.close()
        assert events[-1] == "finish"

    with model() as m:
        asyncio.run(asyncio.wait_for(main(m), HANG))


def test_a_session_is_closed_by_its_own_callback():
    with model() as m:
        s = m.session(context=64)
        r = s.run(IDS, lambda id, text: s.close(), max_tokens=9, ignore_eos=True)
        assert r["finish"] == "cancel" and r["n_new"] == 1 and s.closed
        s = m.session(context=64)
        with pytest.raises(RuntimeError, match="has not returned"):
            s.run(IDS, lambda id, text: s.stats(), max_tokens=9)
        assert s.stats()["forwards"] > 0


def test_an_engine_is_not_closed_by_its_own_log(tmp_path):
    raised, engines = [], []

    def log(level, line):
        try:
            engines[0].close()
        except RuntimeError as e:
            raised.append(e)

    with model() as m:
        with pytest.raises(TypeError, match="log is a function, not str"):
            m.engine(log="x")
        with m.engine(context=64, log=log) as e:
            engines.append(e)
            e._log(None, 1, b"line")
            assert "own log function" in str(raised[0])
            assert e.submit(IDS, max_tokens=1).wait()["n_new"] == 1


def test_a_forked_process_cannot_use_a_session():
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
import llmc
m = llmc.open({TINY!r}, random_weights=True, device="ref", threads=2)
s = m.session(context=64)
if (pid := os.fork()) == 0:
    try:
        s.run([1], max_tokens=1)
    except RuntimeError as e:
        sys.exit(0 if "forked" in str(e) else 3)
    sys.exit(4)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG).returncode == 0


def test_threads_share_and_close_objects(folder):
    """Threads that use and close the same objects get results or exceptions, and no crash."""
    rounds, seconds = (20, 1.0) if EVERY else (4, 0.3)
    for k in range(rounds):
        a = All(folder)
        end = threading.Event()
        wrong = []

        def work(seed, a=a, end=end, wrong=wrong):
            r = random.Random(seed)
            while not end.is_set():
                kind = r.choice(All.NAMES)
                name = r.choice([n for n in All.USES[kind] if n not in ("stream", "events")])
                try:
                    All.USES[kind][name](getattr(a, kind))
                except (*REFUSED, TimeoutError):
                    pass
                except BaseException as e:
                    wrong.append(e)

        threads = [threading.Thread(target=work, args=(10 * k + i,)) for i in range(4)]
        for t in threads:
            t.start()
        end.wait(seconds)
        a.close()
        end.set()
        for t in threads:
            t.join(HANG)
            assert not t.is_alive()
        assert not wrong, wrong


CALLS = {
    "session": (lambda a: a.model.session, _params.LIMITS),
    "memory": (lambda a: a.model.memory, _params.LIMITS),
    "engine": (lambda a: a.model.engine, _params.ENGINE),
    "run": (lambda a: lambda **kw: a.session.run(IDS, **kw), _params.PARAMS),
    "generate": (lambda a: lambda **kw: a.session.generate(IDS, **kw), _params.PARAMS),
    "submit": (lambda a: lambda **kw: a.engine.submit(IDS, **kw), _params.PARAMS + _params.REQUEST),
    "stream": (lambda a: lambda **kw: a.engine.stream(IDS, **kw), _params.PARAMS + _params.REQUEST),
    "open": (lambda a: lambda **kw: llmc.open(TINY, **kw), ["random_weights", "device", "threads"]),
    "grammar": (
        lambda a: lambda **kw: llmc.Grammar(a.tokenizer, "json", **kw),
        ["compact", "standard", "strict"],
    ),
    "encode": (lambda a: lambda **kw: a.tokenizer.encode("a", **kw), ["special"]),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_misspelt_parameter_is_an_error_with_the_nearest_name(call, all_kinds):
    get, names = CALLS[call]
    for name in [n for n in names if len(n) > 2]:
        for typo in (name[:1] + name[2:], name + name[-1], name[:-2] + name[-1] + name[-2]):
            if typo in names:
                continue
            with pytest.raises(TypeError, match=f"has no parameter '{typo}'") as e:
                get(all_kinds)(**{typo: 1})
            if len(name) > 4 and sum(n[:4] == name[:4] for n in names) == 1:
                assert f"did you mean {name!r}?" in str(e.value)
    with pytest.raises(TypeError) as e:
        get(all_kinds)(zzzzqqqq=1)
    assert "did you mean" not in str(e.value)


WRONG = {
    "an id beyond int32": lambda a: a.session.run([2**32 + 1]),
    "an id beyond the vocabulary": lambda a: a.session.run([10**6]),
    "a negative id": lambda a: a.session.run([-1]),
    "a float as an id": lambda a: a.session.run([1.0]),
    "a bool as an id": lambda a: a.session.run([True]),
    "a number as a prompt": lambda a: a.session.run(5),
    "bytes as a prompt": lambda a: a.session.run(b"abc"),
    "no tokens": lambda a: a.session.run([]),
    "text without a tokenizer": lambda a: a.session.run("abc"),
    "a list as temperature": lambda a: a.session.run(IDS, temperature=[1]),
    "a string as temperature": lambda a: a.session.run(IDS, temperature="1"),
    "NaN as temperature": lambda a: a.session.run(IDS, temperature=float("nan")),
    "a negative temperature": lambda a: a.session.run(IDS, temperature=-1),
    "a float as top_k": lambda a: a.session.run(IDS, top_k=1.5),
    "top_k beyond int32": lambda a: a.session.run(IDS, top_k=2**32),
    "max_tokens beyond int32": lambda a: a.session.run(IDS, max_tokens=2**32 + 3),
    "a negative seed": lambda a: a.session.run(IDS, seed=-1),
    "a number as a flag": lambda a: a.session.run(IDS, ignore_eos=1),
    "one string as stop": lambda a: a.session.run(IDS, stop="abc"),
    "NUL in stop": lambda a: a.session.run(IDS, stop=["a\0b"]),
    "a number in stop": lambda a: a.session.run(IDS, stop=[1]),
    "stop_tokens as text": lambda a: a.session.run(IDS, stop_tokens="12"),
    "a stop token beyond the vocabulary": lambda a: a.session.run(IDS, stop_tokens=[2**40]),
    "a list as logit_bias": lambda a: a.session.run(IDS, logit_bias=[1]),
    "a bias beyond the vocabulary": lambda a: a.session.run(IDS, logit_bias={10**7: 1.0}),
    "a bias of NaN": lambda a: a.session.run(IDS, logit_bias={1: float("nan")}),
    "an allowed token beyond the vocabulary": lambda a: a.session.run(IDS, allowed_tokens=[10**6]),
    "a negative allowed token": lambda a: a.engine.submit(IDS, allowed_tokens=[-1]),
    "an allowed token as text": lambda a: a.session.run(IDS, allowed_tokens="5"),
    "ids as bad_words": lambda a: a.session.run(IDS, bad_words=[1, 2]),
    "a string as grammar": lambda a: a.session.run(IDS, grammar="json"),
    "three strings as stop_ignore": lambda a: a.session.run(IDS, stop_ignore=["a", "b", "c"]),
    "on_token of another type": lambda a: a.session.run(IDS, 7),
    "an unknown sequence": lambda a: a.session.fork(7),
    "a sequence beyond int32": lambda a: a.session.length(2**32),
    "a negative sequence": lambda a: a.session.free(-1),
    "a sequence twice": lambda a: [a.session.free(q) for q in [a.session.seq()] * 2],
    "rows beyond the tokens": lambda a: a.session.forward([(a.session.seq(), IDS, 4)]),
    "negative rows": lambda a: a.session.forward([(a.session.seq(), IDS, -1)]),
    "rows beyond int32": lambda a: a.session.forward([(a.session.seq(), IDS, 2**32)]),
    "a chunk without tokens": lambda a: a.session.forward([(a.session.seq(), [], 0)]),
    "one sequence twice in a step": lambda a: a.session.forward([(a.session.seq(), [1], 1)] * 2),
    "a chunk of two values": lambda a: a.session.forward([(0, IDS)]),
    "images of a model without them": lambda a: a.session.forward_images(
        [(a.session.seq(), IDS, 1)], [{}]
    ),
    "rows of a model without them": lambda a: a.session.forward_rows([(a.session.seq(), IDS, 1)]),
    "saved bytes as text": lambda a: a.session.load("abc"),
    "a number as saved bytes": lambda a: a.session.load(100),
    "no saved bytes": lambda a: a.session.load(b""),
    "an unknown pool": lambda a: a.session.embed(IDS, pool="max"),
    "a vector of a text model": lambda a: a.session.embed(IDS, pool="mean"),
    "too large a trim": lambda a: a.session.trim(a.session.seq(), 2**31),
    "a negative context": lambda a: a.model.session(context=-5),
    "a context of text": lambda a: a.model.session(context="64"),
    "a session of a session": lambda a: llmc.Session(a.session),
    "an engine of a tokenizer": lambda a: llmc.Engine(a.tokenizer),
    "a draft of another kind": lambda a: a.model.engine(draft=a.tokenizer),
    "a negative swap": lambda a: a.model.engine(swap_bytes=-(2**63) - 1),
    "a priority beyond int32": lambda a: a.engine.submit(IDS, priority=2**31),
    "n beyond its limit": lambda a: a.engine.submit(IDS, n=10**6),
    "an unknown adapter": lambda a: a.engine.submit(IDS, adapter=5),
    "a negative deadline": lambda a: a.engine.submit(IDS, deadline=-1),
    "a salt beyond 64 bits": lambda a: a.engine.submit(IDS, prefix_salt=2**64),
    "a negative drain": lambda a: a.engine.drain(-1),
    "a drain of text": lambda a: a.engine.close("1"),
    "a path of a number": lambda a: llmc.open(5),
    "NUL in a path": lambda a: llmc.open("a\0b"),
    "one string as set": lambda a: llmc.open(TINY, set="a=b"),
    "threads as text": lambda a: llmc.open(TINY, threads="2"),
    "a number as text": lambda a: a.tokenizer.encode(5),
    "unknown flags": lambda a: a.tokenizer.encode("a", special=64),
    "an id beyond the tokenizer": lambda a: a.tokenizer.decode([10**6]),
    "a negative id of a token": lambda a: a.tokenizer.token(-1),
    "an id of a token beyond int32": lambda a: a.tokenizer.token(2**32 + 1),
    "messages as text": lambda a: a.tokenizer.chat("hello"),
    "messages that JSON lacks": lambda a: a.tokenizer.chat([{"role": "user", "content": {1}}]),
    "a grammar without a tokenizer": lambda a: llmc.Grammar(a.model, "json"),
    "an unknown kind of grammar": lambda a: llmc.Grammar(a.tokenizer, "jsonschema", {}),
    "a kind that is no text": lambda a: llmc.Grammar(a.tokenizer, 1),
    "bytes as a grammar": lambda a: llmc.Grammar(a.tokenizer, "regex", b"a"),
    "a matcher of a matcher": lambda a: llmc.Matcher(a.matcher),
    "a number to match": lambda a: a.grammar.match(5),
    "a token that is not allowed": lambda a: a.matcher.accept(0),
    "a negative token": lambda a: a.matcher.allows(-1),
    "a token beyond the vocabulary": lambda a: a.matcher.accept(10**6),
    "a key of a number": lambda a: a.model[3],
}


def test_wrong_arguments_raise(all_kinds):
    for name, fn in WRONG.items():
        for q in range(3):  # sequences of earlier calls
            try:
                all_kinds.session.free(q)
            except llmc.RangeError:
                pass
        try:
            got = fn(all_kinds)
        except REFUSED as e:
            assert str(e), name
        else:
            raise AssertionError(f"{name} was accepted: {got!r}")
    all_kinds.close()


def test_a_grammar_of_another_tokenizer_is_refused(tmp_path):
    import tiny_model

    a = tiny_model.build(tmp_path / "a")
    b = tiny_model.build(tmp_path / "b", words=["another"])
    with llmc.open(a, device="ref", threads=1) as m, m.session(context=64) as s:
        # an equal vocabulary counts as the same tokenizer
        for t in (m.tokenizer, llmc.Tokenizer(a)):
            g = llmc.Grammar(t, "choice", ["ab"])
            assert s.run(IDS, grammar=g, max_tokens=9)["text"] == "ab"
        other = llmc.Grammar(llmc.Tokenizer(b), "choice", ["ab"])
        n, more = len(m.tokenizer), len(llmc.Tokenizer(b))
        assert more == n + 1
        with pytest.raises(llmc.Error, match=f"another tokenizer, of {more} tokens.* of {n}:"):
            s.run(IDS, grammar=other, max_tokens=9)
        with m.engine(context=64) as e, pytest.raises(llmc.Error, match="another tokenizer"):
            e.submit(IDS, grammar=other)


def test_numpy_goes_in_and_out(all_kinds):
    s = all_kinds.session
    q = s.seq()
    rows = np.asarray(s.forward([(np.int64(q), np.array(IDS), np.int32(2))]))
    assert rows.shape == (2, all_kinds.model.info["vocab"]) and rows.dtype == np.float32
    r = s.run(np.array(IDS, dtype=np.int32), max_tokens=1, temperature=np.float32(0))
    assert r["tokens"] == [int(rows[1].argmax())] or r["finish"] == "eos"


def test_hints_have_the_parameters_of_the_library():
    hints = lambda t: set(t.__annotations__)  # noqa: E731
    inherited = set().union(*(hints(t) for t in (_params.SamplingParams,)))
    assert hints(_params.SamplingParams) == set(_params.PARAMS)
    assert hints(_params.Limits) == set(_params.LIMITS)
    assert hints(_params.EngineOptions) | hints(_params.Limits) == set(_params.ENGINE)
    own = inspect.signature(llmc.Engine.submit).parameters
    assert hints(_params.RequestOptions) - inherited == {
        n for n in own if n not in ("self", "prompt", "params")
    }


@pytest.mark.parametrize("limit,wrong", [("context", ""), ("contxt", "Unexpected keyword")])
def test_mypy_is_clean(limit, wrong, tmp_path):
    use = tmp_path / "use.py"
    use.write_text(
        "import llmc\n\n\n"
        "def answer(path: str) -> str:\n"
        f"    with llmc.open(path) as model, model.session({limit}=64) as session:\n"
        "        return ''.join(session.generate('Hello', max_tokens=4, temperature=0.5))\n"
    )
    checked = [use] if wrong else [use, os.path.join(ROOT, "bindings/python/llmc")]
    p = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path}", *checked],
        capture_output=True,
        text=True,
        timeout=HANG,
        env=os.environ | {"MYPYPATH": os.path.join(ROOT, "bindings/python")},
    )
    assert p.returncode == bool(wrong) and wrong in p.stdout, p.stdout + p.stderr


def test_the_module_runs_the_command():
    p = subprocess.run(
        [sys.executable, "-m", "llmc", "version"], capture_output=True, text=True, timeout=HANG
    )
    want = subprocess.run([LLMC, "version"], capture_output=True, text=True, timeout=HANG)
    assert (p.returncode, p.stdout, p.stderr) == (want.returncode, want.stdout, want.stderr)


def test_the_examples_of_the_readme_run(smollm2, capsys):
    with open(os.path.join(ROOT, "bindings", "python", "README.md")) as f:
        examples = re.findall(r"```python\n(.*?)```", f.read(), re.S)
    for code in examples:
        code = code.replace("model.gguf", str(smollm2)).replace("max_tokens=200", "max_tokens=8")
        exec(code, {})
        assert len(capsys.readouterr().out) > 10
    assert len(examples) == 3


# ---- random calls ----

number = st.one_of(
    st.integers(-2, 300), st.sampled_from([2**31, 2**32 + 1, -(2**63), 2**64, 0.5, None, True, "1"])
)
value = st.one_of(number, st.floats(), st.text(max_size=4), st.binary(max_size=4), st.none())
id_list = st.one_of(st.lists(st.integers(0, 255), max_size=6), st.lists(number, max_size=3), value)
string = st.one_of(st.text(max_size=8), value)
keywords = lambda names: st.dictionaries(st.sampled_from(names), value, max_size=3)  # noqa: E731


class RandomCalls(RuleBasedStateMachine):
    """Any method, of any object, open or closed, with any arguments: a result or an exception."""

    folder = None

    @initialize()
    def start(self):
        self.all = All(RandomCalls.folder)
        self.saved = b""

    def teardown(self):
        if hasattr(self, "all"):
            self.all.close()

    def attempt(self, fn, *args, **kwargs):
        try:
            return fn(*args, **kwargs)
        except (*REFUSED, OverflowError, TimeoutError):
            return None

    @rule(kind=st.sampled_from(All.NAMES))
    def close(self, kind):
        getattr(self.all, kind).close()

    @rule(kind=st.sampled_from(All.NAMES), k=st.integers(0, 30))
    def use(self, kind, k):
        uses = list(All.USES[kind].values())
        self.attempt(uses[k % len(uses)], getattr(self.all, kind))

    @rule()
    def reopen(self):
        self.all.close()
        self.all = All(RandomCalls.folder)

    @rule(limits=keywords(_params.LIMITS))
    def session(self, limits):
        s = self.attempt(self.all.model.session, **{"context": 32, **limits})
        if s is not None:
            self.all.session = s

    @rule(
        name=st.sampled_from(["fork", "trim", "mark", "unmark", "length", "free", "save", "adapt"]),
        seq=number,
        n=number,
    )
    def sequence(self, name, seq, n):
        fn = getattr(self.all.session, name)
        got = self.attempt(fn, seq, n) if name in ("trim", "adapt") else self.attempt(fn, seq)
        if name == "save" and got:
            self.saved = got

    @rule(at=st.integers(0, 400), bit=st.integers(0, 7), cut=st.booleans())
    def load(self, at, bit, cut):
        data = bytearray(self.saved)
        if data and cut:
            data = data[: at % len(data)]
        elif data:
            data[at % len(data)] ^= 1 << bit
        self.attempt(self.all.session.load, bytes(data))

    @rule(chunks=st.one_of(st.lists(st.tuples(number, id_list, number), max_size=3), value))
    def forward(self, chunks):
        self.attempt(self.all.session.forward, chunks)

    @rule(prompt=id_list, params=keywords(_params.PARAMS))
    def run(self, prompt, params):
        self.attempt(self.all.session.run, prompt, **{"max_tokens": 3, **params})

    @rule(prompt=id_list, params=keywords(_params.PARAMS + _params.REQUEST), wait=st.booleans())
    def submit(self, prompt, params, wait):
        r = self.attempt(self.all.engine.submit, prompt, **{"max_tokens": 3, **params})
        if r is not None and wait:
            self.attempt(r.wait)
        elif r is not None:
            r.cancel()

    @rule(text=string, special=value, ids=id_list, id=number)
    def tokenize(self, text, special, ids, id):
        t = self.all.tokenizer
        self.attempt(t.encode, text, special)
        self.attempt(t.decode, ids)
        self.attempt(t.token, id)

    @rule(kind=st.sampled_from([*llmc.Grammar.KINDS, "x"]), text=string, match=string)
    def grammar(self, kind, text, match):
        g = self.attempt(llmc.Grammar, self.all.tokenizer, kind, text)
        if g is not None:
            self.attempt(g.match, match)
            self.all.grammar, self.all.matcher = g, g.matcher()

    @rule(id=number)
    def step(self, id):
        self.attempt(self.all.matcher.allows, id)
        self.attempt(self.all.matcher.accept, id)


def test_random_calls(folder):
    RandomCalls.folder = folder
    run_state_machine_as_test(
        RandomCalls,
        settings=settings(
            max_examples=300 if EVERY else 15,
            stateful_step_count=40 if EVERY else 25,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_library_is_the_one_of_the_environment():
    named = os.environ.get("LLMC_LIBRARY")
    assert not named or os.path.samefile(_ffi.lib._name, named)
