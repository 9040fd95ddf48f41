"""/v1/embeddings, /v1/rerank and /api/embed of an encoder: vectors against transformers' rows
(tests/golden/make_encoders.py)."""

import pathlib
import sys

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "golden"))
import weights  # noqa: E402


@pytest.fixture(scope="module")
def case():
    return weights.Encoder("bert-plain")


@pytest.fixture(scope="module")
def server(serve, case, tmp_path_factory):
    folder = case.build_served(str(tmp_path_factory.mktemp("encoder")), normalize=True)
    with serve(
        folder, "--arch", "generic", "-t", "1", "--set", "kv.dtype=f32", "--model-name", "bert"
    ) as s:
        yield s
        s.idle()


@pytest.fixture(scope="module")
def want(case):
    mean = np.array([r.astype(np.float64).mean(0) for r in case.rows()])
    return mean / np.linalg.norm(mean, axis=1, keepdims=True)


def test_vectors(server, case, want):
    inputs = case.texts() * 20
    r = server.post("/v1/embeddings", {"model": "bert", "input": inputs}).json()
    got = np.array([d["embedding"] for d in r["data"]])
    assert np.abs(got - np.tile(want, (20, 1))).max() < 1e-5
    assert r["usage"]["prompt_tokens"] == 20 * sum(len(t) for t in case.inputs)
    r = server.post("/api/embed", {"model": "bert", "input": case.texts()}).json()
    assert np.abs(np.array(r["embeddings"]) - want).max() < 1e-5


def test_rerank(server, case, want):
    query, *documents = case.texts()
    r = server.post("/v1/rerank", {"model": "bert", "query": query, "documents": documents}).json()
    scores = {x["index"]: x["relevance_score"] for x in r["results"]}
    assert [scores[i] for i in range(3)] == pytest.approx(list(want[1:] @ want[0]), abs=1e-5)


def test_pairs_have_two_token_types(serve, tmp_path):
    """A cross-encoder of one label: tokens of the document have the second token type."""
    case = weights.Encoder("bert-pairs")
    folder = case.build_served(str(tmp_path), "cls_token")
    (tmp_path / "modules.json").unlink()
    (tmp_path / "1_Pooling" / "config.json").unlink()
    texts = [t.split() for t in case.texts() if len(t.split()) > 2]
    want = [1 / (1 + np.exp(-r[0])) for r, t in zip(case.typed, case.inputs) if len(t) > 2]
    with serve(folder, "--arch", "generic", "-t", "1", "--set", "kv.dtype=f32") as s:
        for words, x in zip(texts, want):
            cut = len(words) // 3
            r = s.post(
                "/v1/score", {"text_1": " ".join(words[:cut]), "text_2": " ".join(words[cut:])}
            )
            assert r.json()["data"][0]["score"] == pytest.approx(x, abs=1e-5)
        s.idle()


def test_what_an_encoder_does_not_answer(server, case):
    for path, body in (
        ("/v1/completions", {"prompt": "w1"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}]}),
    ):
        assert server.post(path, {"model": "bert", **body}).status == 400
    r = server.post("/v1/embeddings", {"model": "bert", "input": "w1 " * 65})
    assert r.status == 400 and "64 tokens" in r.json()["error"]["message"]
