"""/v1/embeddings by the openai client and /api/embed, compared with llmc_embed, which
tests/e2e/test_vectors.py compares with transformers.
"""

import json
import math
import pathlib
import shutil
import subprocess

import pytest

import tiny_model
from waiting import HANG

TEXTS = [
    "hello world",
    "hello",
    "An older text, of more words than a page of the cache has places for tokens, so that pieces meet.",
]
PROMPTS = {"query": "search: ", "passage": "an answer: ", "Clustering": "group "}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    folder = pathlib.Path(tiny_model.build(tmp_path_factory.mktemp("embed") / "tiny"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    (folder / "modules.json").write_text(
        json.dumps(
            [
                {"type": f"sentence_transformers.models.{t}", "path": p}
                for t, p in (
                    ("Transformer", ""),
                    ("Pooling", "1_Pooling"),
                    ("Normalize", "2_Normalize"),
                )
            ]
        )
    )
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": PROMPTS, "default_prompt_name": None})
    )
    return folder


@pytest.fixture(scope="module")
def server(serve, vectors):
    with serve(
        vectors, "--arch", "generic", "-t", "1", "--seqs", "4", "--model-name", "vectors"
    ) as s:
        yield s
        s.idle()


@pytest.fixture(scope="module")
def want(vectors):
    import llmc

    s = llmc.Model(vectors, arch="generic").session(context=256)
    return {pool: [s.embed(t, pool) for t in TEXTS] for pool in ("last", "mean", "cls")}


def test_the_openai_client(server, want):
    import openai

    c = openai.OpenAI(
        base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=HANG
    ).embeddings
    whole = c.create(model="vectors", input=TEXTS)  # the client requests base64
    assert (
        [d.index for d in whole.data] == [0, 1, 2]
        and whole.model == "vectors"
        and whole.usage.prompt_tokens == whole.usage.total_tokens > 20
    )
    assert [d.embedding for d in whole.data] == want["mean"]
    floats = c.create(model="vectors", input=TEXTS[0], encoding_format="float").data[0].embedding
    assert floats == pytest.approx(want["mean"][0], rel=1e-6) and math.hypot(
        *floats
    ) == pytest.approx(1)
    short = c.create(model="vectors", input=TEXTS[0], dimensions=5).data[0].embedding
    length = math.hypot(*floats[:5])
    assert short == pytest.approx([x / length for x in floats[:5]], rel=1e-5)
    ids = server.post("/v1/tokenize", {"prompt": TEXTS[0]}).json()["tokens"]
    assert [d.embedding for d in c.create(model="vectors", input=[ids, ids]).data] == 2 * [
        want["mean"][0]
    ]
    assert c.create(model="vectors", input=ids).data[0].embedding == want["mean"][0]
    for pool in ("last", "cls"):
        assert (
            c.create(model="vectors", input=TEXTS[2], extra_body={"pooling": pool})
            .data[0]
            .embedding
            == want[pool][2]
        )


def test_ollama(server, want):
    r = server.post("/api/embed", {"model": "vectors:latest", "input": TEXTS}).json()
    assert (
        r["model"] == "vectors"
        and r["prompt_eval_count"] > 20
        and [len(v) for v in r["embeddings"]] == 3 * [len(want["mean"][0])]
    )
    assert r["embeddings"][0] == pytest.approx(want["mean"][0], rel=1e-6)
    assert server.post("/api/embed", {"input": "x" * 5000, "truncate": False}).status == 400
    assert len(server.post("/api/embed", {"input": "x" * 5000}).json()["embeddings"]) == 1


def test_what_is_cut_keeps_its_end(serve, vectors, tmp_path):
    """Truncate as the tokenizers library does: the tokens that the template adds stay, pooled
    or not.
    """
    tokenizers = pytest.importorskip("tokenizers")
    folder = shutil.copytree(vectors, tmp_path / "ends")
    description = json.loads((folder / "tokenizer.json").read_text())
    ids = {name: tiny_model.vocabulary().index(name) for name in ("<s>", "</s>")}
    description["post_processor"] = {
        "type": "TemplateProcessing",
        "pair": [],
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "</s>", "type_id": 0}},
        ],
        "special_tokens": {
            name: {"id": name, "ids": [i], "tokens": [name]} for name, i in ids.items()
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with serve(folder, "--arch", "generic", "-t", "1", "--model-name", "ends") as s:
        theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        theirs.enable_truncation(s.get("/info").json()["max_total_tokens"])
        for text in ("hello", " a text of words" * 200):
            want = s.post(
                "/v1/embeddings", {"input": theirs.encode(text).ids, "pooling": "last"}
            ).json()["data"]
            assert (
                s.post(
                    "/v1/embeddings",
                    {"input": text, "pooling": "last", "truncate_prompt_tokens": -1},
                ).json()["data"]
                == want
            )


@pytest.mark.parametrize(
    "body,said",
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "empty"),
        ({"input": 3}, "input"),
        ({"input": [3.5]}, "input[0]"),
        ({"input": [[99999]]}, "token id"),
        ({"input": [1, "a"]}, "token id"),
        ({"input": [[]]}, "empty"),
        ({"input": "x" * 5000}, "context length"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 1000}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": ["a"] * 3000}, "at most"),
        ({"input": "a", "normalize": 3}, "normalize"),
    ],
)
def test_refusals(server, body, said):
    r = server.post("/v1/embeddings", body)
    assert r.status == 400 and said in r.json()["error"]["message"]


def test_each_model_has_its_own_routes(server, tiny):
    assert server.get("/health").status == 200
    r = server.post("/v1/completions", {"prompt": "a"})
    assert r.status == 400 and "vectors" in r.json()["error"]["message"]
    r = tiny.post("/v1/embeddings", {"input": "a"})
    assert r.status == 400 and "head.kind=hidden" in r.json()["error"]["message"]
    assert server.post("/v1/embeddings", {"model": "other", "input": "a"}).status == 404


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)


def test_scores(server, want):
    """The score is the cosine of the vectors, of one string with many or pairwise."""
    v = want["mean"]
    r = server.post("/v1/score", {"model": "vectors", "text_1": TEXTS[0], "text_2": TEXTS}).json()
    assert (
        [d["index"] for d in r["data"]] == [0, 1, 2]
        and r["object"] == "list"
        and r["model"] == "vectors"
        and r["usage"]["total_tokens"] > 20
    )
    assert [d["score"] for d in r["data"]] == pytest.approx([cosine(v[0], x) for x in v], abs=1e-6)
    r = server.post("/score", {"text_1": TEXTS, "text_2": TEXTS[::-1]}).json()
    assert [d["score"] for d in r["data"]] == pytest.approx(
        [cosine(x, y) for x, y in zip(v, v[::-1])], abs=1e-6
    )
    last = want["last"]
    r = server.post("/v1/score", {"text_1": TEXTS[1], "text_2": TEXTS[2], "pooling": "last"}).json()
    assert [d["score"] for d in r["data"]] == pytest.approx([cosine(last[1], last[2])], abs=1e-6)


def test_rerank(server, want):
    v = want["mean"]
    order = sorted(range(3), key=lambda i: -cosine(v[1], v[i]))
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        r = server.post(path, {"model": "vectors", "query": TEXTS[1], "documents": TEXTS}).json()
        assert [x["index"] for x in r["results"]] == order == [1, *order[1:]]
        assert [x["relevance_score"] for x in r["results"]] == pytest.approx(
            [cosine(v[1], v[i]) for i in order], abs=1e-6
        )
        assert [x["document"]["text"] for x in r["results"]] == [TEXTS[i] for i in order]
    r = server.post(
        "/v1/rerank",
        {
            "query": TEXTS[1],
            "documents": [{"text": t} for t in TEXTS],
            "top_n": 1,
            "return_documents": False,
        },
    ).json()
    assert [set(x) for x in r["results"]] == [{"index", "relevance_score"}]


def test_rerank_as_tei(server):
    """The body of Text Embeddings Inference is answered by a list, and its errors have its form."""
    want = server.post("/rerank", {"query": TEXTS[1], "documents": TEXTS}).json()
    assert want["usage"]["prompt_tokens"] == want["usage"]["total_tokens"] > 0
    want = [(x["index"], x["relevance_score"]) for x in want["results"]]
    for more in (
        {},
        {"raw_scores": True},
        {"return_text": True},
        {"truncation_direction": "Right"},
    ):
        r = server.post("/rerank", {"query": TEXTS[1], "texts": TEXTS, **more}).json()
        assert [(x["index"], x["score"]) for x in r] == want
        if "return_text" in more:
            assert [x["text"] for x in r] == [TEXTS[i] for i, _ in want]
        else:
            assert all(set(x) == {"index", "score"} for x in r)
    long = {"query": "a", "texts": ["x" * 5000]}
    assert len(server.post("/rerank", {**long, "truncate": True}).json()) == 1
    for bad, status in (
        (long, 413),
        ({"query": "a", "texts": []}, 422),
        ({"query": "a", "texts": [3]}, 422),
        ({"query": "a", "texts": TEXTS, "truncate": 3}, 422),
        ({"query": "a", "texts": TEXTS, "truncation_direction": "left"}, 422),
    ):
        r = server.post("/rerank", bad)
        assert r.status == status and set(r.json()) == {"error", "error_type"}, r.text
        assert r.json()["error_type"] == "Validation"


def test_scores_that_cannot_be(server, tiny):
    for path, body in (
        ("/v1/score", {"text_1": TEXTS[:2], "text_2": TEXTS}),
        ("/v1/score", {"text_1": "a"}),
        ("/v1/score", {"text_1": "a", "text_2": []}),
        ("/v1/score", {"text_1": "a", "text_2": [3]}),
        ("/v1/score", {"text_1": "a", "text_2": ""}),
        ("/v1/score", {"text_1": "a", "text_2": "x" * 5000}),
        ("/v1/rerank", {"query": ["a", "b"], "documents": ["a"]}),
        ("/v1/rerank", {"query": "a", "documents": "a"}),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 200}),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": -1}),
    ):
        r = server.post(path, body)
        assert r.status == 400 and r.json()["error"]["param"], (path, body, r.text)
    assert (
        server.post(
            "/v1/score", {"text_1": "a", "text_2": "x" * 5000, "truncate_prompt_tokens": -1}
        ).status
        == 200
    )
    assert server.post("/v1/score", {"model": "other", "text_1": "a", "text_2": "b"}).status == 404
    assert tiny.post("/v1/score", {"text_1": "a", "text_2": "b"}).status == 400


def test_prompts_of_sentence_transformers(server, serve, vectors, want, tmp_path, llmc_binary):
    """A prompt is a prefix of the text. Kinds of input find the prompts that encode_query and
    encode_document of sentence-transformers find."""
    import llmc

    def served(at, **fields):
        r = at.post("/v1/embeddings", {"input": TEXTS[0], **fields})
        assert r.status == 200, r.json()
        return r.json()["data"][0]["embedding"]

    model = llmc.Model(vectors, arch="generic")
    assert model.prompts == PROMPTS
    session = model.session(context=256)
    own = {name: session.embed(text + TEXTS[0], "mean") for name, text in PROMPTS.items()}
    plain = pytest.approx(want["mean"][0], rel=1e-5)
    assert served(server) == served(server, prompt_name=None) == plain
    for field, value, name in (
        ("prompt_name", "query", "query"),
        ("prompt_name", "Clustering", "Clustering"),
        ("input_type", "query", "query"),
        ("input_type", "search_query", "query"),
        ("input_type", "document", "passage"),
        ("input_type", "search_document", "passage"),
        ("input_type", "clustering", "Clustering"),
    ):
        assert served(server, **{field: value}) == pytest.approx(own[name], rel=1e-5), value
    # a string with NUL is not cut there
    r = [
        server.post("/v1/embeddings", {"input": a + t, **b}).json()
        for t in ("a\0b", "a")
        for a, b in (("", {"prompt_name": "query"}), (PROMPTS["query"], {}))
    ]
    assert r[0] == r[1] != r[2] == r[3]
    for body, said in (
        ({"prompt_name": "document"}, "'query', 'passage', 'Clustering'"),
        ({"input_type": "classification"}, "no prompt 'classification'"),
        ({"prompt_name": "clustering"}, "no prompt 'clustering'"),
        ({"prompt_name": 3}, "an integer"),
        ({"prompt_name": "query\0"}, "NUL"),
        ({"input_type": "query\0"}, "NUL"),
        ({"prompt_name": "query", "input": [1, 2]}, "token ids"),
    ):
        r = server.post("/v1/embeddings", {"input": "a", **body})
        assert r.status == 400 and said in r.json()["error"]["message"], r.json()

    (tmp_path / "ids").write_text("[1, 2]\n")
    for name, said in (("query", "token ids have no prompt"), ("clustering", "prompts are: query")):
        run = [llmc_binary, "embed", vectors, tmp_path / "ids", "--prompt-name", name]
        r = subprocess.run([*run, "--arch", "generic"], capture_output=True, text=True)
        assert r.returncode == 1 and said in r.stderr, r.stderr

    usual = tmp_path / "usual"
    shutil.copytree(vectors, usual)
    (usual / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": PROMPTS, "default_prompt_name": "query"})
    )
    with serve(usual, "--arch", "generic", "-t", "1", "--seqs", "2") as s:
        assert served(s) == pytest.approx(own["query"], rel=1e-5)
        assert served(s, prompt_name="passage") == pytest.approx(own["passage"], rel=1e-5)
        ids = s.post("/v1/tokenize", {"prompt": TEXTS[0]}).json()["tokens"]
        assert served(s, input=ids) == plain
    # prompts that the pooling excludes are not supported
    (usual / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True, "include_prompt": False})
    )
    assert llmc.Model(usual, arch="generic").prompts == {}


def test_llama_cpps_form(server, want):
    vectors = server.post("/v1/embeddings", {"input": TEXTS}).json()["data"]
    for path in ("/embedding", "/embeddings"):
        for body in ({"content": TEXTS}, {"input": TEXTS}):
            r = server.post(path, body).json()
            assert [a["index"] for a in r] == [0, 1, 2]
            assert [a["embedding"] for a in r] == [[v["embedding"]] for v in vectors]
        one = server.post(path, {"content": TEXTS[0]}).json()
        assert one == [{"index": 0, "embedding": [vectors[0]["embedding"]]}]
    plain = server.post("/embedding", {"content": TEXTS, "embd_normalize": -1}).json()
    raw = server.post("/v1/embeddings", {"input": TEXTS, "normalize": False}).json()["data"]
    assert [a["embedding"] for a in plain] == [[v["embedding"]] for v in raw]
    top = server.post("/embedding", {"content": TEXTS, "embd_normalize": 0}).json()
    assert [max(map(abs, a["embedding"][0])) for a in top] == pytest.approx([32760] * 3)
    for p in (1, 3, 2**31 - 1):
        for a, b in zip(
            plain, server.post("/embedding", {"content": TEXTS, "embd_normalize": p}).json()
        ):
            a, b = a["embedding"][0], b["embedding"][0]
            most = max(map(abs, a))
            norm = most * sum((abs(x) / most) ** p for x in a) ** (1 / p)
            assert b == pytest.approx([x / norm for x in a], rel=1e-5)
    for body in (
        {"content": 5},
        {"content": []},
        {"content": [{}]},
        {"content": [[10**9]]},
        {"input": None, "content": []},
    ):
        error = server.post("/embedding", body).json()["error"]
        assert error["param"].startswith("content") and "content" in error["message"], body
    for body in (
        {},
        {"content": None},
        {"content": []},
        {"content": {"a": 1}},
        {"content": [[10**9]]},
        {"content": "a", "embd_normalize": -2},
        {"content": "a", "embd_normalize": "x"},
    ):
        r = server.post("/embedding", body)
        assert r.status == r.json()["error"]["code"] == 400, body
