"""MTP head of a checkpoint (mtp.part) against torch (tests/golden/make_mtp.py): its rows, logits
and draft tokens, in any chunks. An engine generates the same tokens with and without it. Whether
it drafts depends on timing, so no test requires that."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import llmc
from cuda_emu import environment
from golden_run import LLMC
from processor import RUNS

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "golden")
)
import weights  # noqa: E402

with open(os.path.join(weights.HERE, "mtp", "heads.json")) as f:
    HEADS = {h["model"]: h for h in json.load(f)}
EVERY = "LLMC_CHECK_ALL" in os.environ
ARCH = [a for a in ("v3", "v4", "amx") if RUNS.get(a)]
ON = [(m, "ref", None) for m in HEADS] + [
    (m, "cpu", a)
    for m in ("glm4_moe-qk-norm", "deepseek_v3-yarn", "step3p5-plain")
    for a in ARCH
    if EVERY or (m, a) == ("glm4_moe-qk-norm", ARCH[-1])
]
SET = ["kv.dtype=f32"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def of(name):
        if name not in made:
            made[name] = str(weights.Mtp(name).build(tmp_path_factory.mktemp("mtp") / name))
        return made[name]

    return of


def near(a, b):
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape and np.abs(a - b).max() <= 1e-3 * np.abs(b).max(), (
        np.abs(a - b).max() / np.abs(b).max()
    )


def rows_of(model, ids):
    with model.session(context=64, chunk=64) as s:
        logits, rows = s.forward_rows([(s.seq(), ids, 1)])
        return np.array(logits), np.array(rows)


@pytest.mark.parametrize("name,device,arch", ON)
def test_a_head_drafts_as_torch_does(folders, name, device, arch):
    want, path = HEADS[name], folders(name)
    n = len(want["text"]) - 1
    kw = dict(device=device, arch=arch)
    with (
        llmc.Model(path, set=SET + ["mtp.part=rows"], **kw) as m,
        llmc.Model(path, set=SET + ["mtp.part=head"], **kw) as head,
    ):
        logits, rows = rows_of(m, want["text"][:-1])
        assert int(logits[-1].argmax()) == want["text"][-1]
        near(rows[-1], want["row"])
        with head.session(context=64, chunk=64, seqs=3, n_out=8) as s:
            tokens = want["text"][1:]
            whole, chunks, neighbour = s.seq(), s.seq(), s.seq()
            said, own = (np.array(x) for x in s.forward_rows([(whole, tokens, 3)], rows))
            near(said, want["logits"])
            # in chunks, two sequences in a step: the same bits
            s.forward_rows([(chunks, tokens[:5], 0)], rows[:5])
            two, _ = s.forward_rows(
                [(neighbour, tokens[:7], 1), (chunks, tokens[5:], 3)],
                np.concatenate([rows[:7], rows[5:]]),
            )
            assert np.array_equal(np.array(two)[1:], said)
            draft_tokens = []
            for _ in want["guesses"]:
                draft_tokens.append(int(said[-1].argmax()))
                said, own = (
                    np.array(x) for x in s.forward_rows([(whole, draft_tokens[-1:], 1)], own[-1:])
                )
            assert draft_tokens == want["guesses"]
            near(said[-1], want["behind"])
            s.trim(whole, n)  # drop draft tokens
            again, _ = s.forward_rows([(whole, draft_tokens[:1], 1)], rows[-1:])
            assert np.isfinite(np.array(again)).all()
            with pytest.raises(llmc.Error, match="needs rows of the model with its tokens"):
                s.forward_rows([(neighbour, [1], 1)])
            with pytest.raises(llmc.Error, match="pass rows of the model with its tokens"):
                s.forward([(neighbour, [1], 1)])


def test_a_head_that_differs_from_its_model(folders):
    """The head of Step 3.5 reads rows before the norm, has a window, a limit and its own output
    matrix. Changing any of these changes the head."""
    want, path = HEADS["step3p5-plain"], folders("step3p5-plain")

    def said(*change):
        kw = dict(device="ref")
        with (
            llmc.Model(path, set=[*SET, *change, "mtp.part=rows"], **kw) as m,
            llmc.Model(path, set=[*SET, *change, "mtp.part=head"], **kw) as head,
        ):
            _, rows = rows_of(m, want["text"][:-1])
            with head.session(context=64, chunk=64, n_out=8) as s:
                return np.array(s.forward_rows([(s.seq(), want["text"][1:], 3)], rows)[0])

    near(said(), want["logits"])
    for wrong in "mtp.limit=0", "mtp.normed=true", "mtp.output=false":
        assert np.abs(said(wrong) - want["logits"]).max() > 1e-2 * np.abs(want["logits"]).max(), (
            wrong
        )
    with pytest.raises(
        llmc.Error, match=r"q_proj.weight.: plan wants shape \[72, 60\], file holds \[108, 60\]"
    ):
        said("mtp.window=false")  # full-attention layers have fewer heads


@pytest.mark.parametrize(
    "name,device",
    [("glm4_moe-qk-norm", "cpu"), ("step3p5-plain", "ref")] + [("step3p5-plain", "cpu")] * EVERY,
)
def test_a_head_is_dropped_unless_requested(folders, name, device, tmp_path):
    """Without the option the plan equals that of a checkpoint without such a layer. With it the
    model's logits have the same bits."""
    path, want = folders(name), HEADS[name]
    bare = str(weights.Golden(name).build(tmp_path / "bare"))
    ids = want["text"][:-1]
    logits, plans = [], []
    for folder, part in ((bare, None), (path, None), (path, "rows")):
        with (
            llmc.Model(
                folder, device=device, set=SET + ([f"mtp.part={part}"] if part else [])
            ) as m,
            m.session(context=64, chunk=64) as s,
        ):
            logits.append(bytes(s.forward([(s.seq(), ids, 1)])))
            plan = m.plan
            plans.append(plan)
            assert ("rows" in plan) == (part == "rows")
    assert logits[0] == logits[1] == logits[2]
    assert plans[0]["tensor"] == plans[1]["tensor"] == plans[2]["tensor"]
    with llmc.Model(path, device=device, set=SET + ["mtp.part=head"]) as head:
        plan = head.plan
        assert plan["takes_rows"] and plan["n_params"] < plans[0]["n_params"]
        names = {src["name"] for t in plan["tensor"] for src in t["src"]}
        assert (
            f"model.layers.{weights.Golden(name).config['num_hidden_layers']}.eh_proj.weight"
            in names
            and not any(n.startswith("model.layers.0.") for n in names)
        )


def events(request):
    said = {}
    for e in request.events():
        said.setdefault(e.index, []).append(
            (e.kind, e.token, e.logprob, getattr(e, "finish", None))
        )
    return said


SETTINGS = [
    dict(),
    dict(temperature=0.8, seed=1),
    dict(repetition_penalty=1.2, temperature=0.4, seed=2),
    dict(n=3, temperature=0.9, seed=3),
    dict(top_k=9, temperature=1.1, seed=4),
]


@pytest.mark.parametrize(
    "name,device",
    [
        ("glm4_moe-qk-norm", "cpu"),
        ("deepseek_v3-yarn", "ref"),
        ("mimo_v2-plain", "ref"),
        ("qwen3_5-plain", "ref"),
        ("step3p5-plain", "ref"),
    ]
    + [("ernie4_5_moe-plain", "ref")] * EVERY,
)
def test_an_engine_generates_the_same_tokens(folders, name, device):
    path, want = folders(name), HEADS[name]
    options = dict(context=128, seqs=6, chunk=32, threads=1)
    with (
        llmc.Model(path, set=SET, device=device) as m,
        llmc.Model(path, set=SET + ["mtp.part=rows"], device=device) as rows,
        llmc.Model(path, set=SET + ["mtp.part=head"], device=device) as head,
    ):
        with m.engine(speculate=-1, **options) as plain, rows.engine(draft=head, **options) as own:
            for settings in SETTINGS:
                said = [
                    events(
                        e.submit(
                            want["text"], max_tokens=60, ignore_eos=True, logprobs=True, **settings
                        )
                    )
                    for e in (plain, own)
                ]
                assert said[0] == said[1]
            # several at once, some with a shared prefix
            prompts = [want["text"][:k] for k in (38, 3, 34, 20, 37)]
            said = []
            for e in (plain, own):
                requests = [
                    e.submit(p, max_tokens=40, ignore_eos=True, seed=i, temperature=0.5)
                    for i, p in enumerate(prompts)
                ]
                said.append([events(r) for r in requests])
            assert said[0] == said[1]
            s = own.stats()
            assert (
                s["accepted"] <= s["drafted"]
                and sum(s["accepted_at"]) == s["accepted"]
                and s["running"] == 0
            )


def test_the_command_generates_the_same_tokens(folders):
    """llmc run, with and without the head."""
    name = "glm4_moe-qk-norm"
    said = []
    for extra in (
        [],
        ["--draft", "mtp"],
        ["--draft", "mtp", "--speculate", "3", "--temperature", "0.8", "--seed", "4"],
        ["--temperature", "0.8", "--seed", "4"],
    ):
        p = subprocess.run(
            [
                LLMC,
                "run",
                folders(name),
                "--tokens",
                ",".join(map(str, HEADS[name]["text"])),
                "-n",
                "40",
                "--ignore-eos",
                "--json",
                "--set",
                "kv.dtype=f32",
                "-t",
                "1",
                *extra,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(json.loads(p.stdout))
        assert len(said[-1]["tokens"]) == 40 and said[-1]["finish_reason"] == "length"
    assert said[0]["tokens"] == said[1]["tokens"] != said[2]["tokens"] == said[3]["tokens"]


def test_the_command_with_an_adapter(folders, tmp_path):
    """An adapter reaches the head through the model's rows; the output equals that without a
    head."""
    name = "glm4_moe-qk-norm"
    shapes, adapter = weights.Mtp(name).tensors, {}
    for module in ("model.layers.0.self_attn.q_proj", "model.layers.2.self_attn.o_proj"):
        (rows, cols), stem = shapes[module + ".weight"], "base_model.model." + module
        adapter |= {
            stem + ".lora_A.weight": 0.3
            * weights.noise(stem + "a", 3 * cols).astype(np.float32).reshape(3, cols),
            stem + ".lora_B.weight": 0.3
            * weights.noise(stem + "b", 3 * rows).astype(np.float32).reshape(rows, 3),
        }
    weights.write_safetensors(tmp_path / "adapter_model.safetensors", adapter, "f32")
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6})
    )
    said = []
    for extra in ([], ["--lora", str(tmp_path)], ["--lora", str(tmp_path), "--draft", "mtp"]):
        p = subprocess.run(
            [
                LLMC,
                "run",
                folders(name),
                "--tokens",
                ",".join(map(str, HEADS[name]["text"])),
                "-n",
                "20",
                "--ignore-eos",
                "--json",
                "--set",
                "kv.dtype=f32",
                "-t",
                "1",
                *extra,
            ],
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, p.stderr
        said.append(json.loads(p.stdout)["tokens"])
    assert said[0] != said[1] == said[2]


def test_a_head_has_no_pages_in_host_memory(folders):
    """kv.host pins host memory once, for the model."""
    for part, has in (("rows", True), ("head", False)):
        p = subprocess.run(
            [
                LLMC,
                "plan",
                folders("glm4_moe-qk-norm"),
                "--device",
                "cuda",
                "--arch",
                "sm_80",
                "--set",
                "kv.host=1G",
                "--set",
                f"mtp.part={part}",
            ],
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0 and ("of pinned memory" in p.stdout) == has, p.stderr


ON_GPU = """
import json, sys, llmc
import numpy as np
path, text = sys.argv[1], json.loads(sys.argv[2])
kw = dict(device="cuda", arch="sm_75")
SET = ["kv.dtype=f32", "deterministic=true"]
with llmc.Model(path, set=SET + ["mtp.part=rows"], **kw) as m, llmc.Model(path, set=SET + ["mtp.part=head"], **kw) as head:
    with m.session(context=64, chunk=64) as s, head.session(context=64, chunk=64, n_out=8) as h:
        logits, rows = s.forward_rows([(s.seq(), text[:-1], 1)])
        said, own = h.forward_rows([(h.seq(), text[1:], 3)], np.array(rows))
    with m.engine(context=128, seqs=3, chunk=32, speculate=-1) as plain, m.engine(context=128, seqs=3, chunk=32, draft=head) as own:
        answers = [[[(v.token, repr(v.logprob)) for v in e.submit(text, max_tokens=12, ignore_eos=True, logprobs=lp, **p).events() if v.kind == "token"]
                    for lp, p in ((True, {}), (False, {}), (False, dict(temperature=0.7, seed=3)))] for e in (plain, own)]
        drafts = own.stats()["drafts"]
print(json.dumps([np.array(rows)[-1].tolist(), np.array(said).tolist(), answers, drafts]))
"""


@pytest.mark.parametrize("name", ["glm4_moe-qk-norm"] + ["step3p5-plain"] * EVERY)
def test_on_a_gpu(folders, name):
    """Emulated GPU: rows and logits of the head equal torch's, and an engine generates the same
    tokens with and without it."""
    want = HEADS[name]
    p = subprocess.run(
        [sys.executable, "-c", ON_GPU, folders(name), json.dumps(want["text"])],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_75")},
    )
    assert p.returncode == 0, p.stderr[-3000:]
    row, said, answers, drafts = json.loads(p.stdout.splitlines()[-1])
    near(row, want["row"])
    near(said, want["logits"])
    assert answers[0] == answers[1]


def test_a_head_is_of_its_model(folders):
    path, other = folders("glm4_moe-qk-norm"), folders("glm4_moe-plain")
    with (
        llmc.Model(path, device="ref") as m,
        llmc.Model(path, set=["mtp.part=rows"], device="ref") as rows,
        llmc.Model(other, set=["mtp.part=head"], device="ref") as alien,
        llmc.Model(path, set=["mtp.part=head"], device="ref") as head,
    ):
        with pytest.raises(llmc.Error, match="without mtp.part=rows"):
            m.engine(draft=head)
        with pytest.raises(llmc.Error, match="is the MTP head .mtp.part. of another model"):
            rows.engine(draft=alien)
        with pytest.raises(llmc.Error, match="cannot generate alone"):
            head.engine()
        with m.session() as s, pytest.raises(llmc.Error, match="returns no rows"):
            s.forward_rows([(s.seq(), [1], 1)])
    with pytest.raises(llmc.Error, match="this model has no draft head"):
        llmc.Model("configs/tiny.yaml", random_weights=True, set=["mtp.part=head"])
    with pytest.raises(llmc.Error, match="mtp.part = rows: a draft head runs on one rank"):
        llmc.Model(path, set=["mtp.part=rows", "parallel.tp=2"])
