"""Encoders (attention without a mask): rows of tiny models of each family against transformers
(tests/golden/make_encoders.py), packed batches, pooling, and the memory of a session."""

import json
import subprocess

import numpy as np
import pytest

import llmc
from cuda_emu import environment
from golden_run import LLMC, weights
from processor import RUNS

CASES = weights.cases(weights.ENCODERS)
EXACT, ROUNDED = 1e-5, 5e-2  # relative to the range of the rows; ROUNDED: bf16 weights on a GPU
CPU = {
    "bert-plain": "generic v3 v4 vnni amx",
    "bert-576-bf16": "v3 v4 amx",
    "modernbert-plain": "generic v3 v4 amx",
    "gte-plain": "v3",
    "gemma3-embedding-odd-bf16": "v4",
}
GPU = {
    "bert-plain": ("sm_90a",),
    "bert-576-bf16": ("sm_75", "sm_80", "sm_90a"),
    "modernbert-bf16": ("sm_75", "sm_90a", "sm_120a"),
    "modernbert-labels": ("sm_90a",),
}


def model(path, case, device="ref", arch=None, **more):
    case.build(path)
    given = dict({"kv.dtype": "f32"} | case.set, **more.pop("set", {}))
    return llmc.Model(
        str(path), device=device, arch=arch, set=[f"{k}={v}" for k, v in given.items()], **more
    )


def rows(session, inputs):
    """Return the rows of all sequences, each computed in its own step; for a classifier only the
    first rows, which it pools."""
    out = []
    if session.model.info["output"] == 2:
        return np.array([session.embed(ids, "cls", False) for ids in inputs])
    for ids in inputs:
        seq = session.seq()
        out.append(np.asarray(session.forward([(seq, ids, len(ids))])))
        session.free(seq)
    return np.concatenate(out)


def check(case, got, tolerance=EXACT):
    want = case.logits
    assert got.shape == want.shape and np.isfinite(got).all()
    assert np.abs(got - want).max() <= tolerance * np.ptp(want), np.abs(got - want).max() / np.ptp(
        want
    )
    cosine = (got * want).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(want, axis=1)
    assert cosine.min() >= (0.9999 if tolerance == EXACT else 0.999)


@pytest.mark.parametrize("name", CASES)
def test_reference(name, tmp_path):
    case = weights.Encoder(name)
    with model(tmp_path, case).session() as s:
        check(case, rows(s, case.inputs))


@pytest.mark.parametrize(
    "name,arch", [(n, a) for n, archs in CPU.items() for a in archs.split() if RUNS[a]]
)
def test_processors(name, arch, tmp_path):
    """Each sequence in its own step, and all sequences packed into one step without padding, give
    equal bits."""
    case = weights.Encoder(name)
    with model(tmp_path, case, "cpu", arch).session(seqs=len(case.inputs)) as s:
        got = rows(s, case.inputs)
        check(case, got)
        packed = s.forward([(s.seq(), ids, len(ids)) for ids in case.inputs])
        assert np.array_equal(np.asarray(packed), got)


@pytest.mark.parametrize("name,arch", [(n, a) for n, archs in GPU.items() for a in archs])
def test_emulated_gpus(name, arch, tmp_path, monkeypatch):
    for k, v in environment(arch, seed=3).items():
        monkeypatch.setenv(k, v)
    case = weights.Encoder(name)
    m = model(tmp_path, case, "cuda", set={"kv.dtype": "f16"} if case.dtype == "bf16" else {})
    with m.session(seqs=len(case.inputs)) as s:
        seqs = [s.seq() for _ in case.inputs]
        got = np.asarray(s.forward([(q, ids, len(ids)) for q, ids in zip(seqs, case.inputs)]))
        last = np.asarray(s.forward([(q, ids, 1) for q, ids in zip(seqs, case.inputs)]))
        ends = np.cumsum([len(ids) for ids in case.inputs])
        assert np.abs(last - got[ends - 1]).max() <= 1e-5 * np.ptp(got)
        if m.info["output"] == 2:
            got = got[ends - [len(ids) for ids in case.inputs]]
        check(case, got, EXACT if case.dtype == "f32" else ROUNDED)


def test_a_step_is_a_whole_text(tmp_path):
    """A sequence is empty again after its step, so a session runs any number of them in the pages
    of one step, and no layer has pages of its own."""
    case = weights.Encoder("bert-plain")
    m = model(tmp_path, case)
    text = case.inputs[-1]
    with m.session(context=64, chunk=64, seqs=4) as s:
        one, other = s.seq(), s.seq()
        first = np.asarray(s.forward([(one, text, len(text))]))
        assert s.length(one) == 0
        s.forward([(other, text[:9], 9)])
        assert np.array_equal(np.asarray(s.forward([(one, text, len(text))])), first)
        with pytest.raises(llmc.Error, match="context"):
            s.forward([(one, text + [1], 1)])
    kv = m.memory(context=64, chunk=64, seqs=1)["kv"]
    row = 2 * 4 * case.config["hidden_size"]  # a key and a value of one layer
    assert 64 * row <= kv <= (64 + 32) * row
    assert m.memory(context=64, chunk=64, seqs=1, kv_tokens=1 << 20)["kv"] == kv
    with pytest.raises(llmc.Error, match="possible are 1 .. 64"):
        m.session(context=65)


def test_pooling(tmp_path):
    case = weights.Encoder("bert-plain")
    ids, n = case.inputs[-1], len(case.inputs[-1])
    want = case.logits[-n:].astype(np.float64)
    vectors = {"mean": want.mean(0), "cls": want[0], "last": want[-1]}
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True, "word_embedding_dimension": 72})
    )
    types = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    (tmp_path / "modules.json").write_text(
        json.dumps(
            [
                {"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{t}"}
                for i, (t, p) in enumerate(types)
            ]
        )
    )
    m = model(tmp_path, case)
    assert m.info["pool"] == 2 and m.info["normalize"]
    with m.session() as s:
        for pool, v in vectors.items():
            assert np.abs(np.asarray(s.embed(ids, pool, False)) - v).max() < 1e-5 * np.ptp(want)
        unit = vectors["mean"] / np.linalg.norm(vectors["mean"])
        assert np.abs(np.asarray(s.embed(ids)) - unit).max() < 1e-6


def test_every_family_has_a_case():
    families = [c.split("-")[0] for c in CASES]
    assert len(set(families) - {"gemma3"}) == 8
    assert all(families.count(f) >= 3 for f in set(families) - {"gemma3"})


@pytest.mark.parametrize("name", [c for c in CASES if c.endswith(("-labels", "-pairs"))])
@pytest.mark.parametrize("arch", [None, "v3"] if RUNS["v3"] else [None])
def test_classifiers(name, arch, tmp_path):
    case = weights.Encoder(name)
    m = model(tmp_path, case, "cpu" if arch else "ref", arch)
    with m.session() as s:
        check(case, rows(s, case.inputs))
    assert (m.info["output"], m.info["out_width"]) == (2, case.logits.shape[1])
    assert m.info["pool"] == 3 and not m.info["normalize"]


def test_the_mean_before_an_activation_is_refused(tmp_path):
    case = weights.Encoder("modernbert-labels")
    case.config["classifier_pooling"] = "mean"
    with pytest.raises(llmc.Error, match="the activation follows the mean"):
        model(tmp_path, case)


@pytest.mark.parametrize("act", ["Identity", "Tanh"])
def test_linear_layers_after_the_pooling(act, tmp_path):
    """EmbeddingGemma has two linear layers; an activation requires a pooling other than the
    mean."""
    case = weights.Encoder("gemma3-embedding")
    rng, pooling = np.random.default_rng(3), "mean_tokens" if act == "Identity" else "cls_token"
    case.build_served(str(tmp_path), pooling, True)
    modules = json.loads((tmp_path / "modules.json").read_text())
    want = [r.astype(np.float64).mean(0) if act == "Identity" else r[0] for r in case.rows()]
    for i, (out, into) in ((2, (40, 72)), (3, (24, 40))):
        w = rng.standard_normal((out, into)) / 8
        bias = rng.standard_normal(out) if act == "Tanh" else None
        folder = tmp_path / f"{i}_Dense"
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps(
                {
                    "in_features": into,
                    "out_features": out,
                    "bias": bias is not None,
                    "activation_function": f"torch.nn.modules.linear.{act}",
                }
            )
        )
        stored = {"linear.weight": w} | ({"linear.bias": bias} if bias is not None else {})
        weights.write_safetensors(str(folder / "model.safetensors"), stored, "f32")
        modules.insert(
            i,
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_Dense",
                "type": "sentence_transformers.models.Dense",
            },
        )
        want = [x @ w.astype(np.float32).T + (0 if bias is None else bias) for x in want]
        want = [np.tanh(x) for x in want] if act == "Tanh" else want
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    m = llmc.Model(str(tmp_path), device="ref", set=["kv.dtype=f32"])
    assert m.info["out_width"] == 24 and m.info["normalize"]
    with m.session() as s:
        for ids, x in zip(case.inputs, want):
            assert np.abs(np.asarray(s.embed(ids)) - x / np.linalg.norm(x)).max() < 1e-5


PUBLISHED = {  # configurations and names of the models' own code, as on the Hub
    "nomic_bert-plain": (
        dict(
            model_type="nomic_bert",
            vocab_size=131,
            n_embd=72,
            n_head=9,
            n_inner=100,
            n_layer=3,
            n_positions=128,
            activation_function="swiglu",
            layer_norm_epsilon=1e-3,
            rotary_emb_base=500.0,
            rotary_emb_fraction=1.0,
            rotary_emb_interleaved=False,
            qkv_proj_bias=False,
            mlp_fc1_bias=False,
            mlp_fc2_bias=False,
            prenorm=False,
            causal=False,
            type_vocab_size=2,
        ),
        [
            ("embeddings.LayerNorm", "emb_ln"),
            ("layers.", "encoder.layers."),
            ("self_attn.o_proj", "attn.out_proj"),
            ("up_proj", "fc11"),
            ("gate_proj", "fc12"),
            ("down_proj", "fc2"),
            ("post_attention_layernorm", "norm1"),
            ("post_mlp_layernorm", "norm2"),
        ],
        {"attn.Wqkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    ),
    "gte-plain": (
        dict(
            model_type="new",
            vocab_size=131,
            hidden_size=72,
            intermediate_size=100,
            num_hidden_layers=3,
            num_attention_heads=9,
            max_position_embeddings=128,
            type_vocab_size=2,
            layer_norm_eps=1e-3,
            hidden_act="gelu",
            layer_norm_type="layer_norm",
            position_embedding_type="rope",
            rope_theta=500.0,
            pack_qkv=True,
            pad_token_id=0,
        ),
        [
            ("embeddings.", "new.embeddings."),
            ("pooler.", "new.pooler."),
            ("layers.", "new.encoder.layer."),
            ("self_attn.o_proj", "attention.o_proj"),
            ("post_attention_layernorm", "attn_ln"),
            ("post_mlp_layernorm", "mlp_ln"),
        ],
        {
            "attention.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.up_gate_proj": ("mlp.up_proj", "mlp.gate_proj"),
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms(name, tmp_path):
    config, names, stacks = PUBLISHED[name]
    case = weights.Encoder(name)
    case.config = config
    values = case.values()
    for whole, parts in stacks.items():
        for first in [n for n in values if f".{parts[0]}." in n]:
            parted = [values.pop(first.replace(parts[0], p)) for p in parts]
            values[first.replace(parts[0], whole)] = np.concatenate(parted)
    for old, new in names:
        values = {n.replace(old, new, 1): v for n, v in values.items()}
    case.values = lambda: values
    with model(tmp_path, case).session() as s:
        check(case, rows(s, case.inputs))


def embed(folder, *args, code=0, **kw):
    p = subprocess.run(
        [LLMC, "embed", str(folder), *map(str, args), "--device", "ref", "--set", "kv.dtype=f32"],
        capture_output=True,
        text=True,
        **kw,
    )
    assert p.returncode == code, p.stderr
    return p.stderr if code else p.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    case = weights.Encoder("bert-plain")
    return case, case.build_served(str(tmp_path_factory.mktemp("served")))


def test_embed_a_file(served, tmp_path):
    """`llmc embed` converts strings to vectors, which equal the means of transformers' rows."""
    case, folder = served
    want = np.array([r.astype(np.float64).mean(0) for r in case.rows()])
    texts = case.texts()
    forms = [json.dumps(texts[0]), json.dumps({"text": texts[1]}), json.dumps(case.inputs[2]), ""]
    forms.append(json.dumps({"id": 7, "input": texts[3]}))
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(forms * 40))
    out = [json.loads(line) for line in embed(folder, file).splitlines()]
    assert [o["index"] for o in out] == list(range(160))
    assert [o["n_tokens"] for o in out[:4]] == [len(t) for t in case.inputs]
    got = np.array([o["embedding"] for o in out])
    assert np.abs(got - np.tile(want, (40, 1))).max() < 1e-5 * np.ptp(case.logits)
    embed(folder, "-", "-o", tmp_path / "v.npy", "--normalize", input=file.read_text())
    unit = want / np.linalg.norm(want, axis=1, keepdims=True)
    array = np.load(tmp_path / "v.npy")
    assert array.dtype == np.float32 and np.abs(array - np.tile(unit, (40, 1))).max() < 1e-5
    one = embed(folder, "--text", texts[1], "--pool", "cls", "--dimensions", 5, "--json")
    (one,) = json.loads(one)["embeddings"]
    assert np.abs(one["embedding"] - case.rows()[1][0, :5]).max() < 1e-5 * np.ptp(case.logits)


def test_embed_explains_mistakes(served, tmp_path):
    _, folder = served
    bad = tmp_path / "bad.jsonl"
    for content, message in (
        ('"w1"\nw2', "bad.jsonl:2: "),
        ('{"txt": "w1"}', 'an object with "text"'),
        ("[1, -1]", "element 1 is not a token id"),
        ('""', "input 1 is empty"),
        ('"' + "w1 " * 65 + '"', "has 65 tokens, the context holds 64; use --truncate"),
        ("[131]", "131"),
    ):
        bad.write_text(content)
        assert message in embed(folder, bad, code=1)
    assert "name a file" in embed(folder, code=1)
    assert "exclude each other" in embed(folder, bad, "--text", "w1", code=1)
    assert "expected mean, cls or last" in embed(folder, bad, "--pool", "max", code=1)
    assert "vectors have 72 elements" in embed(folder, bad, "--dimensions", 73, code=1)
    bad.write_text('"' + "w1 " * 65 + '"')
    assert json.loads(embed(folder, bad, "--truncate"))["n_tokens"] == 64


def test_layer_norms_with_the_names_of_tensorflow(tmp_path):
    """The published bert-base-uncased has gamma and beta, and names with a prefix."""
    case = weights.Encoder("bert-plain")
    values = {
        "bert."
        + n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): v
        for n, v in case.values().items()
    }
    case.values = lambda: values
    with model(tmp_path, case).session() as s:
        check(case, rows(s, case.inputs))


REFUSED = [
    (["head.kind=logits"], "predicts no next token"),
    (["attention.window=8", "attention.window_kind=chunks"], "not defined for mask none"),
    (["position=alibi"], "later tokens"),
    (["kv.dtype=int8", "kv.sinks=4"], "mask none, which attends to later tokens"),
    (["attention.mask=causal"], "token types need attention.mask = none"),
    (["linear.layers=[0]"], "earlier tokens only"),
]


@pytest.mark.parametrize("changes,message", REFUSED)
def test_what_an_encoder_excludes(changes, message, tmp_path):
    changes = dict(c.split("=", 1) for c in changes)
    with pytest.raises(llmc.Error, match=message):
        model(tmp_path, weights.Encoder("bert-plain"), set=changes, no_weights=True)


def test_an_encoder_generates_no_text(tmp_path):
    with model(tmp_path, weights.Encoder("bert-plain")).session() as s:
        with pytest.raises(llmc.Error, match="returns vectors"):
            s.run([1, 2, 3])


@pytest.mark.parametrize(
    "key,value", [("position_embedding_type", "relative_key"), ("is_decoder", True)]
)
def test_other_variants_are_refused(key, value, tmp_path):
    case = weights.Encoder("bert-plain")
    case.config[key] = value
    with pytest.raises(llmc.Error, match=key):
        model(tmp_path, case)


def test_a_head_that_is_not_supported_is_refused(tmp_path):
    """A classifier of tokens is refused, because its head would be ignored."""
    case = weights.Encoder("bert-plain")
    case.tensors["classifier.weight"] = [9, 72]
    with pytest.raises(llmc.Error, match="classifier.weight"):
        model(tmp_path, case)
