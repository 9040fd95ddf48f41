"""Prompts with a missing middle: `suffix` of completions and of Ollama's generate, and /infill. The
expected prompts are written as the model cards document them; an engine that gets their tokens must
generate the same text."""

import json

import pytest
import tiny_model
import tokenizers

import llmc

PREFIX, SUFFIX = "def hello(world):\n    return ", "\n\nprint(hello(1))"
# marks of the vocabulary, prompt as in the model card, tokens that end the middle
CARDS = {
    "qwen2.5-coder": (
        [
            "<|fim_prefix|>",
            "<|fim_middle|>",
            "<|fim_suffix|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ],
        ["<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"],
        [
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
            "<|fim_prefix|>",
            "<|fim_middle|>",
            "<|fim_suffix|>",
        ],
    ),
    "codegemma": (
        ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|file_separator|>"],
        ["<|fim_prefix|>", PREFIX, "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"],
        ["<|file_separator|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ),
    "starcoder2": (
        ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>", "<repo_name>", "<file_sep>"],
        ["<fim_prefix>", PREFIX, "<fim_suffix>", SUFFIX, "<fim_middle>"],
        ["<fim_pad>", "<file_sep>", "<repo_name>", "<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ),
    "santacoder": (
        ["<fim-prefix>", "<fim-middle>", "<fim-suffix>", "<fim-pad>"],
        ["<fim-prefix>", PREFIX, "<fim-suffix>", SUFFIX, "<fim-middle>"],
        ["<fim-pad>", "<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ),
    "deepseek-coder": (
        ["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<|EOT|>"],
        ["<｜fim▁begin｜>", PREFIX, "<｜fim▁hole｜>", SUFFIX, "<｜fim▁end｜>"],
        ["<|EOT|>", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ),
    "codellama": (
        ["▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"],
        ["▁<PRE>", PREFIX, "▁<SUF>", SUFFIX, "▁<MID>"],
        ["▁<EOT>", "▁<PRE>", "▁<SUF>", "▁<MID>"],
    ),
    "glm-4.5": (
        ["<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"],
        ["<|code_prefix|>", PREFIX, "<|code_suffix|>", SUFFIX, "<|code_middle|>"],
        ["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"],
    ),
    "seed-coder": (
        ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
        ["<[fim-suffix]>", SUFFIX, "<[fim-prefix]>", PREFIX, "<[fim-middle]>"],
        ["<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"],
    ),
    "codestral": (
        ["[PREFIX]", "[MIDDLE]", "[SUFFIX]"],
        ["[SUFFIX]", SUFFIX, "[PREFIX]", PREFIX],
        ["[MIDDLE]", "[PREFIX]", "[SUFFIX]"],
    ),
}
SAMPLING = {"max_tokens": 24, "temperature": 0.8, "seed": 3}


class Coder:
    def __init__(self, server, engine, marks):
        self.server, self.engine, self.marks = server, engine, marks
        self.vocabulary = tiny_model.vocabulary(marks)

    def ids(self, parts):
        """Tokens of marks and of text without special tokens."""
        t = self.engine.model.tokenizer
        return [
            i for p in parts for i in ([self.token(p)] if p in self.marks else t.encode(p, False))
        ]

    def token(self, mark):
        return self.vocabulary.index(mark)

    def want(self, parts, stop, **settings):
        stop = [self.token(s) for s in stop]
        ids = self.ids(parts)
        r = self.engine.submit(ids, stop_tokens=stop, **{**SAMPLING, **settings}).wait()
        return r["text"], len(ids)


@pytest.fixture(scope="module")
def coder(request, serve, tmp_path_factory):
    marks = CARDS[request.param][0]
    folder = tiny_model.build(tmp_path_factory.mktemp(request.param) / "tiny", marks=marks)
    options = ["--arch", "generic", "-t", "1", "--seqs", "2", "--model-name", "tiny"]
    with serve(folder, *options) as s:
        with llmc.open(folder, arch="generic") as m, m.engine(context=256, seqs=2) as e:
            yield Coder(s, e, marks)


every = pytest.mark.parametrize("coder", CARDS, indirect=True)
one = pytest.mark.parametrize("coder", ["qwen2.5-coder"], indirect=True)


@every
def test_the_prompt_is_that_of_the_card(coder, request):
    _, parts, stop = CARDS[request.node.callspec.params["coder"]]
    want, n = coder.want(parts, stop)
    r = coder.server.post("/v1/completions", {"prompt": PREFIX, "suffix": SUFFIX, **SAMPLING})
    assert r.status == 200, r.text
    assert r.json()["choices"][0]["text"] == want and r.json()["usage"]["prompt_tokens"] == n
    r = coder.server.post(
        "/infill",
        {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 24, "seed": 3}
        | {"temperature": 0.8, "top_k": 0, "top_p": 1, "min_p": 0},
    ).json()
    assert r["content"] == want and r["tokens_evaluated"] == n and r["stop"] is True
    r = coder.server.post(
        "/api/generate",
        {"prompt": PREFIX, "suffix": SUFFIX, "stream": False}
        | {"options": {"num_predict": 24, "seed": 3, "temperature": 0.8, "top_k": 0, "top_p": 1}},
    ).json()
    assert r["response"] == want and r["prompt_eval_count"] == n
    marks = coder.engine.model.tokenizer.fim()
    assert sorted(marks["stop"]) == sorted(coder.token(s) for s in stop)


@every
def test_marks_end_the_middle_and_are_text_in_it(coder, request):
    marks, _, stop = CARDS[request.node.callspec.params["coder"]]
    body = {"prompt": "a", "suffix": "b", "max_tokens": 9, "temperature": 0}
    for mark in stop:
        bias = {str(coder.token(mark)): 100}
        r = coder.server.post("/v1/completions", {**body, "logit_bias": bias}).json()
        choice = r["choices"][0]
        assert choice["finish_reason"] == "stop" and choice["text"] == "", (mark, r)
    # the client's text cannot contain marks
    text = f"x{marks[0]}y"
    t = coder.engine.model.tokenizer
    r = coder.server.post("/v1/completions", {**body, "prompt": text, "suffix": text}).json()
    n_marks = 2 if "[PREFIX]" in marks else 3
    assert r["usage"]["prompt_tokens"] == 2 * len(t.encode(text, False)) + n_marks


@one
def test_other_files_come_first(coder, request):
    stop = CARDS["qwen2.5-coder"][2]
    extra = [{"filename": "a.py", "text": "x = 1\n"}, {"text": "hello"}]
    body = {"input_prefix": PREFIX, "prompt": "world", "input_suffix": SUFFIX, "input_extra": extra}
    sampling = {"n_predict": 24, "seed": 3, "temperature": 0.8, "top_k": 0, "top_p": 1, "min_p": 0}
    want, n = coder.want(
        ["<|repo_name|>", "myproject\n", "<|file_sep|>", "a.py\n", "x = 1\n"]
        + ["<|file_sep|>", "tmp\n", "hello", "<|file_sep|>", "filename\n"]
        + ["<|fim_prefix|>", PREFIX, "world", "<|fim_suffix|>", SUFFIX, "<|fim_middle|>"],
        stop,
    )
    # fields that llama.vim sends, of which none changes this answer
    more = {
        "samplers": ["top_k", "top_p", "temperature"],
        "cache_prompt": True,
        "n_indent": 0,
        "t_max_prompt_ms": 500,
        "t_max_predict_ms": 600000,
    }
    fields = ["content", "timings/prompt_n"]
    r = coder.server.post("/infill", {**body, **sampling, "response_fields": fields}).json()
    assert set(r) == set(fields) and r["content"] == want and r["timings/prompt_n"] <= n
    r = coder.server.post("/infill", {**body, **sampling, **more}).json()
    assert r["content"] == want and r["tokens_evaluated"] == n and r["stop_type"] == "limit"
    assert r["timings"]["predicted_n"] == r["tokens_predicted"] == 24
    streamed = coder.server.post("/infill", {**body, **sampling, "stream": True})
    frames = [json.loads(f) for f in streamed.frames()]
    assert "".join(f["content"] for f in frames) == want
    assert [f["stop"] for f in frames] == [False] * (len(frames) - 1) + [True]
    assert frames[-1]["timings"]["predicted_n"] == 24
    stopped = coder.server.post("/infill", {**body, **sampling, "stop": [want[3]]}).json()
    assert stopped["stop_type"] == "word" and stopped["stopping_word"] == want[3]
    assert stopped["content"] == want[: want.index(want[3])]


@one
def test_long_parts_are_cut(coder):
    """Long prompts are cut to the context: other files first, then prefix and suffix; three
    quarters of the rest are the end of the prefix.
    """
    room = 256 - 24 - 4
    body = {"input_prefix": "p" * 1000, "input_suffix": "s" * 1000, "n_predict": 24, "seed": 3}
    body |= {"temperature": 0.8, "top_k": 0, "top_p": 1, "min_p": 0}
    body["input_extra"] = [{"text": "e" * 300}]
    stop = CARDS["qwen2.5-coder"][2]
    for before, after in ((1000, 1000), (1000, 9), (9, 1000), (100, 20)):
        n_after = min(after, max(room // 4, room - before))
        n_before = min(before, room - n_after)
        rest = room - n_before - n_after
        tail = ["e" * 300, "<|file_sep|>", "filename\n"]
        extra = coder.ids(tail)[-rest:] if rest else []
        marks = {k: coder.token(f"<|fim_{k}|>") for k in ("prefix", "suffix", "middle")}
        ids = [
            *extra,
            marks["prefix"],
            *coder.ids(["p" * n_before]),
            marks["suffix"],
            *coder.ids(["s" * n_after]),
            marks["middle"],
        ]
        want = coder.engine.submit(ids, stop_tokens=[coder.token(s) for s in stop], **SAMPLING)
        parts = {"input_prefix": "p" * before, "input_suffix": "s" * after}
        r = coder.server.post("/infill", {**body, **parts}).json()
        assert r["tokens_evaluated"] == len(ids) and r["content"] == want.wait()["text"]
    r = coder.server.post("/v1/completions", {"prompt": "p" * 200, "suffix": "s" * 100})
    assert r.status == 400 and r.json()["error"]["code"] == "context_length_exceeded"


@one
def test_several_prompts_and_ids(coder):
    t = coder.engine.model.tokenizer
    body = {"suffix": SUFFIX, **SAMPLING}
    texts = coder.server.post("/v1/completions", {**body, "prompt": ["ab", PREFIX]}).json()
    ids = coder.server.post("/v1/completions", {**body, "prompt": t.encode(PREFIX, False)}).json()
    want, _ = coder.want(*CARDS["qwen2.5-coder"][1:])
    assert texts["choices"][1]["text"] == want == ids["choices"][0]["text"]
    empty = coder.server.post("/v1/completions", {**SAMPLING, "prompt": "ab", "suffix": ""}).json()
    assert empty["usage"]["prompt_tokens"] == len(t.encode("ab"))


@one
@pytest.mark.parametrize(
    "path,body,param",
    [
        ("/v1/completions", {"prompt": "a", "suffix": 3}, "suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": "b", "echo": True}, "echo"),
        ("/infill", {"input_suffix": "b"}, "input_prefix"),
        ("/infill", {"input_prefix": "b"}, "input_suffix"),
        ("/infill", {"input_prefix": "b", "input_suffix": 1}, "input_suffix"),
        ("/infill", {"input_prefix": "b", "input_suffix": "c", "input_extra": "x"}, "input_extra"),
        ("/infill", {"input_prefix": "b", "input_suffix": "c", "input_extra": [{}]}, "input_extra"),
        ("/infill", {"input_prefix": "b", "input_suffix": "c", "prompt": [1]}, "prompt"),
        ("/infill", {"input_prefix": "b", "input_suffix": "c", "n": 2}, "n"),
        ("/infill", {"input_prefix": "b", "input_suffix": "c", "lora": [{"id": 0}]}, "lora"),
        ("/infill", {"input_prefix": "b", "input_suffix": "c", "n_predict": "x"}, "n_predict"),
    ],
)
def test_refusals(coder, path, body, param):
    r = coder.server.post(path, body)
    assert r.status == 400 and r.json()["error"]["param"] == param, r.text


def test_a_tokenizer_that_begins_inputs_with_a_space(serve, tmp_path):
    """Code Llama and Codestral do: the prefix has that space, the suffix has none, and the beginning
    of the sequence comes first. The `tokenizers` library is the oracle of the parts."""
    marks = CARDS["codestral"][0]
    folder = tiny_model.build(tmp_path / "tiny", marks=marks)
    data = json.load(open(folder + "/tokenizer.json"))
    pieces = [*tiny_model.SPECIAL, "▁", "☺", *map(chr, range(33, 127)), "\n", "he", "▁he", *marks]
    data["model"]["vocab"] = {p: i for i, p in enumerate(pieces)}
    data["model"]["merges"] = ["h e", "▁ he"]
    for a in data["added_tokens"]:
        a["id"] = pieces.index(a["content"])
    space = {"replacement": "▁", "prepend_scheme": "always"}
    data["pre_tokenizer"] = {"type": "Metaspace", **space, "split": False}
    data["decoder"] = {"type": "Metaspace", **space, "split": True}
    data["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    json.dump(data, open(folder + "/tokenizer.json", "w"))
    oracle = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")

    def ids(text):
        return oracle.encode(text, add_special_tokens=False).ids

    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "2", "--model-name", "tiny") as s:
        with llmc.open(folder, arch="generic") as m, m.engine(context=256, seqs=2) as e:
            stop = [pieces.index(p) for p in marks]
            for suffix in ("hello\n", " hello", "\nhe", "(1)"):
                assert ids("x" + suffix)[0] == pieces.index("▁")
                want = [1, pieces.index("[SUFFIX]"), *ids("x" + suffix)[2:]]
                want += [pieces.index("[PREFIX]"), *ids("hello he")]
                r = s.post("/v1/completions", {"prompt": "hello he", "suffix": suffix, **SAMPLING})
                assert r.json()["usage"]["prompt_tokens"] == len(want), suffix
                got = e.submit(want, stop_tokens=stop, **SAMPLING).wait()["text"]
                assert r.json()["choices"][0]["text"] == got


def test_a_model_without_marks(tiny):
    for path, body, param in (
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/infill", {"input_prefix": "a", "input_suffix": "b"}, "input_suffix"),
    ):
        e = tiny.post(path, body)
        assert e.status == 400 and e.json()["error"]["param"] == param
        assert "no tokens for fill-in-the-middle" in e.json()["error"]["message"]
