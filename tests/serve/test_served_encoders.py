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
    folder = case.build_served(str(tmp_path), pooling=None)
    texts = [t.split() for t in case.texts() if len(t.split()) > 2]
    want = [1 / (1 + np.exp(-r[0])) for r, t in zip(case.typed, case.inputs) if len(t) > 2]
    with serve(folder, "--arch", "generic", "-t", "1", "--set", "kv.dtype=f32") as s:
        for words, x in zip(texts, want):
            cut = len(words) // 3
            r = s.post(
                "/v1/score", {"text_1": " ".join(words[:cut]), "text_2": " ".join(words[cut:])}
            )
            assert r.json()["data"][0]["score"] == pytest.approx(x, abs=1e-5)
        pairs = [[" ".join(t[: len(t) // 3]), " ".join(t[len(t) // 3 :])] for t in texts]
        r = s.post("/predict", {"inputs": pairs[0]}).json()
        assert r == [{"score": pytest.approx(want[0], abs=1e-5), "label": "LABEL_0"}]
        r = s.post("/predict", {"inputs": pairs}).json()
        assert [x[0]["score"] for x in r] == pytest.approx(want, abs=1e-5)
        s.idle()


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


NAMES = ["sad", 'so "so"', "glad"]


@pytest.mark.parametrize("several", [False, True])
def test_labels(serve, tmp_path, several):
    """vLLM's /classify and TEI's /predict: names from id2label, probabilities by the softmax, or the
    sigmoid if labels are independent."""
    case = weights.Encoder("bert-labels")
    case.config["id2label"] = {str(i): n for i, n in enumerate(NAMES)}
    if several:
        case.config["problem_type"] = "multi_label_classification"
    folder = case.build_served(str(tmp_path), pooling=None)
    logits, texts = case.logits.astype(np.float64), case.texts()
    want = 1 / (1 + np.exp(-logits)) if several else softmax(logits)
    with serve(folder, "--arch", "generic", "-t", "1", "--set", "kv.dtype=f32") as s:
        r = s.post("/classify", {"input": texts}).json()
        assert (r["object"], r["usage"]["completion_tokens"]) == ("list", 0)
        assert r["usage"]["prompt_tokens"] == sum(map(len, case.inputs))
        for i, (x, row) in enumerate(zip(r["data"], want)):
            assert (x["index"], x["num_classes"], x["label"]) == (i, 3, NAMES[row.argmax()])
            assert x["probs"] == pytest.approx(list(row), abs=1e-5)
        r = s.post("/classify", {"input": case.inputs[1], "use_activation": False}).json()
        assert r["data"][0]["probs"] == pytest.approx(list(logits[1]), abs=1e-4)
        one = s.post("/predict", {"inputs": texts[1]}).json()
        order = np.argsort(-want[1])
        assert [x["label"] for x in one] == [NAMES[i] for i in order]
        assert [x["score"] for x in one] == pytest.approx(list(want[1][order]), abs=1e-5)
        raw = s.post("/predict", {"inputs": [[t] for t in texts], "raw_scores": True}).json()
        for got, row in zip(raw, logits):
            assert [x["score"] for x in got] == pytest.approx(sorted(row)[::-1], abs=1e-4)
        for path, body in (
            ("/classify", {}),
            ("/classify", {"input": []}),
            ("/classify", {"input": ""}),
            ("/classify", {"input": "w1 " * 65}),
            ("/classify", {"input": "w1", "truncate_prompt_tokens": 7.5}),
            ("/classify", {"input": {"a": 1}}),
        ):
            r = s.post(path, body)
            assert r.status == 400 and r.json()["error"]["message"], (path, body)
        for inputs, status in ((None, 422), ([], 422), ([["a", "b", "c"]], 422), ([1], 422)):
            r = s.post("/predict", {"inputs": inputs})
            assert (r.status, set(r.json())) == (status, {"error", "error_type"}), inputs
        r = s.post("/predict", {"inputs": "w1 " * 65})
        assert (r.status, r.json()["error_type"]) == (413, "Validation")
        assert len(s.post("/predict", {"inputs": "w1 " * 65, "truncate": True}).json()) == 3
        s.idle()


def test_what_an_encoder_does_not_answer(server, case):
    for path, body in (
        ("/v1/completions", {"prompt": "w1"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "w1"}]}),
    ):
        assert server.post(path, {"model": "bert", **body}).status == 400
    for path, key in (("/classify", "input"), ("/predict", "inputs")):
        assert "not a classifier" in server.post(path, {key: "w1"}).text
    r = server.post("/v1/embeddings", {"model": "bert", "input": "w1 " * 65})
    assert r.status == 400 and "64 tokens" in r.json()["error"]["message"]
