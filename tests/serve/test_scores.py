"""/v1/score and /v1/rerank of models that read query and document as one input: a classifier with
one label, and a generative model that answers yes or no.
"""

import json
import math
import pathlib
import sys

import pytest

import tiny_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "golden"))
import weights  # noqa: E402

QUERY, DOCS = "hello", ["hello world", "a world of or", "", "well, hello there"]
# template of Qwen3-Reranker's tokenizer, for messages without tools
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def pairs_template(single, pair):
    ids = {n: tiny_model.vocabulary().index(n) for n in ("<s>", "</s>")}

    def parts(text):
        return [
            {"Sequence": {"id": x, "type_id": 0}}
            if len(x) == 1
            else {"SpecialToken": {"id": x, "type_id": 0}}
            for x in text.split()
        ]

    return {
        "type": "TemplateProcessing",
        "single": parts(single),
        "pair": parts(pair),
        "special_tokens": {n: {"id": n, "ids": [i], "tokens": [n]} for n, i in ids.items()},
    }


def build_classifier(folder, n_labels):
    """A decoder with score.weight; its tokenizer adds special tokens around the parts of a
    pair.
    """
    with pytest.MonkeyPatch.context() as patch:

        class Classifier(weights.Golden):
            def __init__(self, name):
                super().__init__(name)
                self.config["architectures"] = ["Qwen3ForSequenceClassification"]
                self.tensors = {k: v for k, v in self.tensors.items() if k != "lm_head.weight"} | {
                    "score.weight": [n_labels, self.config["hidden_size"]]
                }

        patch.setattr(weights, "Golden", Classifier)
        tiny_model.build(folder, base="qwen3-plain", template=None)
    t = json.loads((folder / "tokenizer.json").read_text())
    t["post_processor"] = pairs_template("<s> A", "<s> A </s> <s> B </s>")
    (folder / "tokenizer.json").write_text(json.dumps(t))
    return folder


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_a_classifier_reads_pairs(serve, tmp_path):
    """tests/e2e/test_vectors.py compares its scores of ids with transformers; here pairs are
    compared with the tokenizers library.
    """
    import llmc

    tokenizers = pytest.importorskip("tokenizers")
    classifier = build_classifier(tmp_path / "judge", 1)
    theirs = tokenizers.Tokenizer.from_file(str(classifier / "tokenizer.json"))
    session = llmc.Model(classifier, arch="generic").session(context=256)

    def want(a, b):
        return sigmoid(session.embed(theirs.encode(a, b).ids)[0])

    with serve(
        classifier, "--arch", "generic", "-t", "1", "--seqs", "4", "--model-name", "judge"
    ) as s:
        r = s.post("/v1/score", {"model": "judge", "text_1": QUERY, "text_2": DOCS}).json()
        assert [d["score"] for d in r["data"]] == pytest.approx(
            [want(QUERY, d) for d in DOCS], abs=1e-6
        )
        assert r["usage"]["prompt_tokens"] == sum(len(theirs.encode(QUERY, d).ids) for d in DOCS)
        r = s.post("/v1/score", {"text_1": DOCS, "text_2": DOCS[::-1]}).json()
        assert [d["score"] for d in r["data"]] == pytest.approx(
            [want(a, b) for a, b in zip(DOCS, DOCS[::-1])], abs=1e-6
        )
        r = s.post("/v1/rerank", {"query": QUERY, "documents": DOCS, "top_n": 3}).json()["results"]
        order = sorted(range(len(DOCS)), key=lambda i: -want(QUERY, DOCS[i]))[:3]
        assert [x["index"] for x in r] == order and [x["document"]["text"] for x in r] == [
            DOCS[i] for i in order
        ]
        assert [x["relevance_score"] for x in r] == pytest.approx(
            [want(QUERY, DOCS[i]) for i in order], abs=1e-6
        )
        assert s.post("/v1/score", {"text_1": QUERY, "text_2": "x" * 3000}).status == 400
        raw = s.post("/rerank", {"query": QUERY, "texts": DOCS, "raw_scores": True}).json()
        logits = [session.embed(theirs.encode(QUERY, d).ids)[0] for d in DOCS]
        assert [x["score"] for x in raw] == pytest.approx(
            [logits[x["index"]] for x in raw], abs=1e-5
        )
        cut = s.post(
            "/v1/score", {"text_1": QUERY, "text_2": "x" * 3000, "truncate_prompt_tokens": -1}
        ).json()
        most = s.get("/info").json()["max_total_tokens"]
        theirs.enable_truncation(most, strategy="only_second")  # the tokens after both inputs stay
        assert theirs.encode(QUERY, "x" * 3000).ids[-1] == theirs.token_to_id("</s>")
        assert cut["usage"]["prompt_tokens"] == most and cut["data"][0]["score"] == pytest.approx(
            want(QUERY, "x" * 3000), abs=1e-6
        )
        r = s.post("/v1/score", {"text_1": "a", "text_2": "b", "instruction": "judge"})
        assert r.status == 400 and r.json()["error"]["param"] == "instruction"
        assert s.stop()[0] == 0


def test_more_labels_are_no_score(serve, tmp_path):
    with serve(
        build_classifier(tmp_path / "more", 3),
        "--arch",
        "generic",
        "-t",
        "1",
        "--model-name",
        "judge",
    ) as s:
        r = s.post("/v1/score", {"text_1": "a", "text_2": "b"})
        assert r.status == 400 and "3 labels" in r.json()["error"]["message"]


def test_yes_or_no(serve, tmp_path):
    """The prompt is that of Qwen3-Reranker's page. The score is the softmax over the
    next-token logits of no and yes, computed here from log probabilities of prompts that
    end in either.
    """
    folder = tiny_model.build(
        tmp_path / "asked", context=1024, template=TEMPLATE, words=("yes", "no")
    )
    n = len(tiny_model.vocabulary())
    prefix = (
        '<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n"
    )
    suffix = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    usual = "Given a web search query, retrieve relevant passages that answer the query"
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "4", "--model-name", "asked") as s:

        def logprob(ids):
            r = s.post(
                "/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1}
            )
            assert r.status == 200, r.text
            return r.json()["choices"][0]["logprobs"]["token_logprobs"][-1]

        def want(query, doc, task=usual):
            text = f"{prefix}<Instruct>: {task}\n<Query>: {query}\n<Document>: {doc}{suffix}"
            ids = s.post("/v1/tokenize", {"prompt": text, "add_special_tokens": False}).json()[
                "tokens"
            ]
            return sigmoid(logprob([*ids, n]) - logprob([*ids, n + 1]))

        scores = [want(QUERY, d) for d in DOCS]
        assert max(scores) - min(scores) > 1e-3
        r = s.post("/v1/score", {"text_1": QUERY, "text_2": DOCS}).json()
        assert [d["score"] for d in r["data"]] == pytest.approx(scores, abs=1e-5)
        r = s.post("/rerank", {"query": QUERY, "documents": DOCS}).json()["results"]
        assert [x["index"] for x in r] == sorted(range(len(DOCS)), key=lambda i: -scores[i])
        task = "Find greetings"
        r = s.post("/v1/score", {"text_1": QUERY, "text_2": DOCS[0], "instruction": task}).json()
        assert r["data"][0]["score"] == pytest.approx(want(QUERY, DOCS[0], task), abs=1e-5)
        assert s.post("/v1/score", {"text_1": QUERY, "text_2": "x" * 3000}).status == 400
        assert s.post("/v1/score", {"text_1": QUERY, "text_2": "x", "instruction": 3}).status == 400
        assert s.stop()[0] == 0
