"""Draft checkpoints of EAGLE-3 (mtp.part: draft) against torch (tests/golden/make_draft.py): rows of
the model, logits and draft tokens, in all forms. An engine generates the same tokens with and
without one."""

import json
import os
import subprocess
import sys

import gguf
import numpy as np
import pytest

import llmc
from cuda_emu import environment
from golden_run import LLMC, ROOT, weights
from processor import RUNS
from test_mtp import SETTINGS, events, near

sys.path.append(os.path.join(ROOT, "tests", "kernels"))
from harness import host_library  # noqa: E402

with open(os.path.join(weights.HERE, "mtp", "drafts.json")) as f:
    WANT = {d["name"]: d for d in json.load(f)}
EVERY = "LLMC_CHECK_ALL" in os.environ
ARCH = [a for a in ("v3", "v4", "amx") if RUNS.get(a)][-1:]
ON = [(n, "ref", None) for n in WANT] + [
    (n, "cpu", a) for n in WANT if EVERY or n == "specforge" for a in ARCH
]
SET = ["kv.dtype=f32"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def of(name):
        if name not in made:
            d, at = weights.Draft(name), tmp_path_factory.mktemp("draft")
            made[name] = str(d.target.build(at / "model")), str(d.build(at / "draft"))
        return made[name]

    return of


def write_gguf(d, path, key="target_layers"):
    """The file that llama.cpp's converter makes: inputs of layers, tokens as ids, no t2d"""
    c, w = d.own, d.values()
    out = gguf.GGUFWriter(path, "eagle3")
    for name, value in dict(
        block_count=1,
        context_length=c["max_position_embeddings"],
        embedding_length=c["hidden_size"],
        feed_forward_length=c["intermediate_size"],
        vocab_size=c["vocab_size"],
        target_hidden_size=d.target.config["hidden_size"],
    ).items():
        out.add_uint32(f"eagle3.{name}", value)
    out.add_uint32("eagle3.attention.head_count", c["num_attention_heads"])
    out.add_uint32("eagle3.attention.head_count_kv", c["num_key_value_heads"])
    for part in "key", "value":
        out.add_uint32(f"eagle3.attention.{part}_length", c["head_dim"])
    out.add_uint32("eagle3.rope.dimension_count", c["head_dim"])
    out.add_float32("eagle3.rope.freq_base", c["rope_theta"])
    out.add_float32("eagle3.attention.layer_norm_rms_epsilon", c["rms_norm_eps"])
    out.add_bool("eagle3.norm_before_residual", False)
    out.add_array(f"eagle3.{key}", d.reads)
    names = dict(
        input_layernorm="attn_norm",
        hidden_norm="attn_norm_2",
        post_attention_layernorm="ffn_norm",
        **{f"self_attn.{r}_proj": f"attn_{r}" for r in "qkv"},
        **{"self_attn.o_proj": "attn_output"},
        **{f"mlp.{r}_proj": f"ffn_{r}" for r in ("gate", "up", "down")},
    )
    for name, x in w.items():
        if name == "d2t":
            out.add_tensor("d2t", d.tokens())
        elif name != "t2d":
            inner = name.removeprefix("midlayer.").removesuffix(".weight")
            heads = {"self_attn.q_proj": "num_attention_heads"} | {
                "self_attn.k_proj": "num_key_value_heads"
            }
            x = weights.halves_to_pairs(x, c[heads[inner]]) if inner in heads else x
            own = {"norm": "output_norm", "lm_head": "output", "fc": "fc"}
            out.add_tensor((own[inner] if inner in own else "blk.0." + names[inner]) + ".weight", x)
    weights.finish_gguf(out)
    return str(path)


def joined(info, rows, own=False):
    """Input rows of a draft: rows of the model, or its own"""
    x = np.zeros((len(rows), info["row_in"]), np.float32)
    x[:, info["own_at"] if own else 0 :][:, : rows.shape[1]] = rows
    return x


def check(model, draft, want, **kw):
    """Compare the rows, the logits and a chain of draft tokens with torch's."""
    n = len(want["text"]) - 1
    with (
        llmc.Model(model, set=SET, draft=draft, **kw) as m,
        llmc.Model(draft, set=SET, draft_of=m, **kw) as d,
    ):
        with m.session(context=64, chunk=64) as s:
            logits, rows = (np.array(x) for x in s.forward_rows([(s.seq(), want["text"][:-1], 1)]))
        assert int(logits[-1].argmax()) == want["text"][-1]
        near(rows[-1], want["row"])
        token, i = d.draft_tokens or range(d.info["out_width"]), d.info
        came, tokens = joined(i, rows), want["text"][1:]
        with d.session(context=64, chunk=64, seqs=3, n_out=8) as s:
            whole, chunks = s.seq(), s.seq()
            said, own = (np.array(x) for x in s.forward_rows([(whole, tokens, 3)], came))
            near(said, want["logits"])
            s.forward_rows([(chunks, tokens[:5], 0)], came[:5])
            again, _ = s.forward_rows([(chunks, tokens[5:], 3)], came[5:])
            assert np.array_equal(np.array(again), said)
            drafted = []
            for _ in want["guesses"]:
                drafted.append(token[int(said[-1].argmax())])
                said, own = (
                    np.array(x)
                    for x in s.forward_rows(
                        [(whole, drafted[-1:], 1)], joined(i, own[-1:], own=True)
                    )
                )
            assert drafted == want["guesses"]
            near(said[-1], want["behind"])
            s.trim(whole, n)
            with pytest.raises(llmc.Error, match="needs rows of the model with its tokens"):
                s.forward_rows([(whole, [1], 1)])


@pytest.mark.parametrize("name,device,arch", ON)
def test_a_draft_checkpoint_drafts_as_torch_does(folders, name, device, arch):
    check(*folders(name), WANT[name], device=device, arch=arch)


@pytest.mark.parametrize("key", ["target_layers"] + ["extract_layers"] * EVERY)
def test_a_gguf_drafts_as_torch_does(folders, tmp_path, key):
    model, _ = folders("specforge")
    path = write_gguf(weights.Draft("specforge"), tmp_path / "draft.gguf", key)
    check(model, path, WANT["specforge"], device="ref")


def agreeing(folder):
    """A model that continues a cycle of all its tokens, and a draft that has learned it.

    A token is a unit vector of 16 elements. The model's blocks add nothing, and its output matrix
    has the vector of a token in the row of the next one. The draft's attention sees only the
    position itself and makes its stream that vector, whatever the stream was before."""
    d, n, width = weights.Draft("specforge"), 131, 16
    e = weights.noise("agreeing", n * width).reshape(n, width)
    e /= np.linalg.norm(e, axis=1, keepdims=True)
    hidden, rms = d.own["hidden_size"], 1 / np.sqrt(d.own["hidden_size"])
    after = (np.arange(n) + 50) % n
    w = d.target.values()
    for name in w:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            w[name] *= 0
    table, head = np.zeros((2, n, hidden), np.float32)
    table[:, :width], head[after, :width] = e, e
    w |= {"model.embed_tokens.weight": table, "lm_head.weight": head}
    w["model.norm.weight"] = np.ones(hidden, np.float32)
    model = d.target.build(folder / "model")
    weights.write_safetensors(os.path.join(model, "model.safetensors"), w, "f32")
    d.config |= dict(draft_vocab_size=n, rms_norm_eps=1e-12)
    w = {k: 0 * v for k, v in d.values().items()}
    for name in w:
        if "norm" in name:
            w[name] = w[name] + 1
    eye = np.eye(width, dtype=np.float32)
    for head_at in range(d.own["num_attention_heads"]):
        w["midlayer.self_attn.q_proj.weight"][head_at * width :][:width, :width] = 6 * eye
    for head_at in range(d.own["num_key_value_heads"]):
        w["midlayer.self_attn.k_proj.weight"][head_at * width :][:width, :width] = 6 * eye
    v = w["midlayer.self_attn.v_proj.weight"]
    v[:width, :width], v[:width, hidden:][:, :width] = rms * eye, -rms * eye
    w["midlayer.self_attn.o_proj.weight"][:width, :width] = eye
    w["d2t"] = n - 1 - 2 * np.arange(n, dtype=np.int64)  # columns in the opposite order
    w["t2d"] = np.ones(n, bool)
    w["lm_head.weight"] = head[::-1]
    return model, d.build(folder / "draft", w)


def draft_in_each_step(engine):
    """Set the engine's flag for tests, so that drafting depends on no measured time."""
    lib = host_library(["tests/e2e/eager.c"], ["-D_GNU_SOURCE"], [os.path.join(ROOT, "include")])
    with engine._use() as h:
        lib.draft_in_each_step(h)


def test_a_draft_that_agrees_is_accepted(tmp_path):
    model, draft = agreeing(tmp_path)
    with (
        llmc.Model(model, set=SET, draft=draft) as m,
        llmc.Model(draft, set=SET, draft_of=m) as d,
        m.engine(context=128, seqs=2, chunk=32, threads=1, draft=d) as e,
    ):
        draft_in_each_step(e)
        ids = [(7 + 50 * i) % 131 for i in range(90)]
        said = [v.token for v in e.submit(ids[:20], max_tokens=70, ignore_eos=True).events()]
        s = e.stats()
        assert [t for t in said if t is not None and t >= 0][:70] == ids[20:]
        assert s["accepted"] == s["drafted"] > 0


@pytest.mark.parametrize("name,device", [("specforge", "cpu"), ("speculators", "ref")])
def test_an_engine_generates_the_same_tokens(folders, name, device):
    (model, draft), text = folders(name), WANT[name]["text"]
    options = dict(context=128, seqs=6, chunk=32, threads=1)
    with (
        llmc.Model(model, set=SET, device=device) as m,
        llmc.Model(model, set=SET, device=device, draft=draft) as rows,
        llmc.Model(draft, device=device, draft_of=rows) as d,
        m.engine(speculate=-1, **options) as plain,
        rows.engine(draft=d, **options) as own,
    ):
        draft_in_each_step(own)
        for settings in SETTINGS:
            said = [
                events(e.submit(text, max_tokens=60, ignore_eos=True, logprobs=True, **settings))
                for e in (plain, own)
            ]
            assert said[0] == said[1]
        said = []
        for e in (plain, own):
            requests = [
                e.submit(text[:k], max_tokens=40, ignore_eos=True, seed=i, temperature=0.5)
                for i, k in enumerate((37, 3, 34, 20, 36))
            ]
            said.append([events(r) for r in requests])
        assert said[0] == said[1]
        s = own.stats()
        assert 0 < s["drafted"] >= s["accepted"] and s["running"] == 0


def test_the_command_generates_the_same_tokens(folders):
    model, draft = folders("specforge")
    said = []
    for extra in [], ["--draft", draft], ["--draft", draft, "--temperature", "0.7"]:
        p = subprocess.run(
            [LLMC, "run", model, "--tokens", ",".join(map(str, WANT["specforge"]["text"]))]
            + ["-n", "30", "--ignore-eos", "--json", "-t", "1", "--seed", "4", *extra],
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, p.stderr
        said.append(json.loads(p.stdout)["tokens"])
    assert said[0] == said[1] != said[2]
    p = subprocess.run([LLMC, "plan", model, "--draft", draft], capture_output=True, text=True)
    assert p.returncode == 0 and "mtp_fc" in p.stdout, p.stderr


def changed(folder, to, config=None, **tensors):
    """A copy of a draft with other keys or tensors"""
    d = weights.Draft("specforge")
    d.config |= config or {}
    w = d.values()
    return str(d.build(to, {k: v for k, v in (w | tensors).items() if v is not None}))


def test_a_draft_of_another_model_is_refused(folders, tmp_path):
    model, draft = folders("specforge")
    other = folders("whole")[0]
    w = weights.Draft("specforge").values()
    far = w["d2t"].copy()
    far[-1] = 131
    with llmc.Model(model, device="ref") as m:
        for n, (bad, path, message) in enumerate(
            [
                (draft, other, r"for a model with 131 tokens, model has 139"),
                (changed(draft, tmp_path / "fc", **{"fc.weight": w["fc.weight"][:, :120]}), model)
                + (
                    r"reads rows of 120 elements, and the hidden states of 3 layers of model have 180",
                ),
                (
                    changed(
                        draft,
                        tmp_path / "layers",
                        dict(eagle_config=dict(eagle_aux_hidden_state_layer_ids=[0, 1, 3])),
                    ),
                    model,
                    "reads the hidden states at the input of layer 4, and model has 3 layers",
                ),
                (changed(draft, tmp_path / "short", d2t=w["d2t"][:-1]), model)
                + ("d2t must hold 53 integers",),
                (changed(draft, tmp_path / "none", d2t=None), model)
                + ("mtp.tokens is none, so nothing maps these rows to tokens",),
                *(
                    (changed(draft, tmp_path / f"window{i}", windows), model)
                    + ("windowed draft checkpoints are not supported",)
                    for i, windows in enumerate(
                        [
                            dict(use_sliding_window=True, sliding_window=8),
                            dict(layer_types=["sliding_attention"], sliding_window=8),
                        ]
                    )
                ),
                (changed(draft, tmp_path / "deep", dict(num_hidden_layers=2)), model)
                + ("a draft checkpoint with midlayer has one layer",),
            ]
        ):
            with pytest.raises(llmc.Error, match=message):
                llmc.Model(path, device="ref", draft=bad)
        with pytest.raises(llmc.Error, match="no embedding of its own"):
            llmc.Model(draft, device="ref")
        bad = changed(draft, tmp_path / "far", d2t=far)
        with (
            llmc.Model(model, device="ref", draft=bad) as rows,
            pytest.raises(llmc.Error, match="entry 52 is 131, which gives no token of the 131"),
        ):
            llmc.Model(bad, device="ref", draft_of=rows)
        with llmc.Model(draft, device="ref", draft_of=m) as d:
            with pytest.raises(llmc.Error, match="does not output the rows that the draft"):
                m.engine(draft=d)
            with pytest.raises(llmc.Error, match="is a draft checkpoint, which cannot generate"):
                d.engine()


def test_an_mtp_head_does_not_read_the_rows_of_a_draft_checkpoint(tmp_path):
    """A model opened for an EAGLE-3 draft sets mtp.from: its rows are those of its own layers."""
    path = str(weights.Mtp("glm4_moe-qk-norm").build(tmp_path / "model"))
    for layers in "[0, 1]", "[1]":
        rows = ["mtp.part=rows", f"mtp.from={layers}"]
        with (
            llmc.Model(path, device="ref", set=rows) as m,
            llmc.Model(path, device="ref", set=["mtp.part=head"]) as head,
            pytest.raises(llmc.Error, match="opened for a draft checkpoint: its rows have"),
        ):
            m.engine(draft=head)


def test_a_block_draft_is_refused_by_name(folders, tmp_path):
    model, draft = folders("specforge")
    block = changed(draft, tmp_path / "block", dict(dflash_config=dict(mask_token_id=3)))
    with pytest.raises(llmc.Error, match="block drafts .DFlash, DSpark. are not supported"):
        llmc.Model(model, device="ref", draft=block)


ON_GPU = """
import json, sys
sys.path[:0] = json.loads(sys.argv[4])
import llmc
from test_draft_checkpoints import check
model, draft, want = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
kw = dict(device="cuda", arch="sm_75")
check(model, draft, want, **kw)
SET = ["kv.dtype=f32", "deterministic=true"]
with llmc.Model(model, set=SET, draft=draft, **kw) as m, llmc.Model(draft, set=SET, draft_of=m, **kw) as d:
    with m.engine(context=128, seqs=3, chunk=32, speculate=-1) as plain, m.engine(context=128, seqs=3, chunk=32, draft=d) as own:
        said = [[[v.token for v in e.submit(want["text"], max_tokens=12, ignore_eos=True, **p).events() if v.kind == "token"]
                 for p in ({}, dict(temperature=0.7, seed=3))] for e in (plain, own)]
assert said[0] == said[1], said
"""


def test_on_a_gpu(folders):
    """Emulated GPU: rows and logits equal torch's, and an engine generates the same tokens."""
    p = subprocess.run(
        [sys.executable, "-c", ON_GPU, *folders("specforge"), json.dumps(WANT["specforge"])]
        + [json.dumps(sys.path)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_75")},
    )
    assert p.returncode == 0, p.stderr[-3000:]
