"""Adapters in slots, selected per sequence, against PEFT (tests/golden/make_lora.py).

It is one file because its models are built once per module.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import llmc
from cuda_emu import environment
from golden_run import LLMC
from planted import loose
from processor import RUNS
from test_adapters import LORA, config, read_safetensors, weights
from test_quantised_checkpoints import MIXTURES, desc_act_experts

DENSE = [
    "llama-all",
    "llama-some",
    "qv-rslora",
    "phi3-stacks",
    "gpt2-stack",
    "deepseek-lite",
    "deepseek-latents",
]
ON = [("ref", None)] + [("cpu", a) for a in ("v4", "generic", "amx") if RUNS.get(a)]
SLOTS = ["adapters.slots=3", "adapters.rank=8", "kv.dtype=f32"]
BASE = "llama-modern"
EXPERTS = [
    "phimoe-experts",
    "qwen2-moe-experts",
    "mixtral-experts",
    "qwen3-moe-experts",
]  # experts, chosen: 5, 2; 6, 2 and a shared one; 5, 1; 8, 3
OF_EXPERTS = [*SLOTS, "adapters.expert_rank=5"]
BEST = [a for a in ("generic", "v3", "v4") if RUNS.get(a)][-1]


def logits(session, chunks):
    """Return the logits of every token: one chunk per sequence, all in one step."""
    made = np.array(session.forward([(q, ids, len(ids)) for q, ids in chunks]))
    return np.split(made, np.cumsum([len(ids) for _, ids in chunks])[:-1])


def peft(case):
    return np.load(os.path.join(LORA, case, "logits.npy"))


def model(folder, *, device="cpu", arch=None, extra=()):
    return llmc.Model(folder, device=device, arch=arch, set=[*SLOTS, *extra])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    g = weights.Golden(BASE)
    g.build(folder)
    return folder, g


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    g = weights.Golden("qwen2_moe-plain")
    g.build(folder)
    return folder, g


@pytest.mark.parametrize(
    "case,device,arch",
    [(c, "ref", None) for c in DENSE]
    + [(c, "cpu", "v4") for c in DENSE[:3] if RUNS["v4"]]
    + [(c, "cpu", "generic") for c in DENSE[-2:]],
)
def test_logits_are_pefts(case, device, arch, tmp_path):
    agrees_with_peft(case, tmp_path, device=device, arch=arch)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "case,parallel",
    [
        ("llama-all", "tp=3"),
        ("gpt2-stack", "tp=3"),
        ("phi3-stacks", "tp=2"),
        ("deepseek-latents", "tp=2"),
        ("deepseek-lite", "pp=2"),
        ("llama-some", "pp=3"),
    ],
)
def test_ranks_have_parts_of_adapters(case, parallel, tmp_path):
    """Ranks have uneven shares: 7 heads on 3 ranks."""
    agrees_with_peft(case, tmp_path, device="cpu", arch="generic", extra=[f"parallel.{parallel}"])


def agrees_with_peft(case, tmp_path, **kw):
    g = weights.Golden(config(case)["base_model_name_or_path"])
    g.build(tmp_path)
    m = model(tmp_path, **kw)
    a = m.load_adapter(f"{LORA}/{case}")
    want, n = peft(case), len(g.prompt)
    with m.session(context=n, chunk=3 * n, n_out=3 * n, seqs=3) as s:
        got, none, again = logits(
            s, [(s.seq(adapter=a), g.prompt), (s.seq(), g.prompt), (s.seq(adapter=a), g.prompt)]
        )
    near = 3e-3 * np.abs(want).max()
    assert np.abs(want - g.logits).max() > 1 and np.abs(got - want).max() < near, np.abs(
        got - want
    ).max()
    assert np.abs(none - g.logits).max() < near and np.array_equal(got, again)


@pytest.mark.parametrize(
    "case,device,arch",
    [(c, "ref", None) for c in EXPERTS]
    + [("qwen2-moe-experts", "cpu", BEST)]
    + [("phimoe-experts", "cpu", "generic")] * ("LLMC_CHECK_ALL" in os.environ),
)
def test_logits_of_experts_are_pefts(case, device, arch, tmp_path):
    agrees_with_peft(case, tmp_path, device=device, arch=arch, extra=["adapters.expert_rank=5"])


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "case,parallel",
    [
        ("phimoe-experts", ["tp=2"]),
        ("qwen2-moe-experts", ["tp=3", "experts=whole"]),
        ("qwen2-moe-experts", ["tp=3"]),
        ("qwen3-moe-experts", ["pp=2"]),
        ("phimoe-experts", ["tp=3", "experts=whole"]),
    ],
)
def test_ranks_have_parts_of_experts_adapters(case, parallel, tmp_path):
    """Ranks have rows and columns of each expert, or whole experts: 5 experts on 3 ranks."""
    agrees_with_peft(
        case,
        tmp_path,
        device="ref",
        extra=["adapters.expert_rank=5", *(f"parallel.{p}" for p in parallel)],
    )


def split_experts(case, folder):
    """Split an adapter of stacked experts into one module pair per expert, as PEFT writes experts
    that are modules."""
    made, of = {}, config(case)
    tensors = read_safetensors(os.path.join(LORA, case, "adapter_model.safetensors"))
    for name, a in tensors.items():
        if not name.endswith("lora_A.weight"):
            continue
        b, stem = tensors[name.replace("lora_A", "lora_B")], name.removesuffix(".lora_A.weight")
        if ".experts" not in stem:
            made |= {name: a, stem + ".lora_B.weight": b}
            continue
        stem, n = stem.removesuffix(".base_layer"), a.shape[0] // of["r"]
        for e in range(n):
            right, left = (
                a[e * of["r"] : (e + 1) * of["r"]],
                b.reshape(b.shape[0], of["r"], n)[:, :, e],
            )
            halves = (
                dict(down_proj=left)
                if a.shape[1] == 28
                else dict(gate_proj=left[:28], up_proj=left[28:])
            )
            for part, rows in halves.items():
                made |= {
                    f"{stem}.{e}.{part}.lora_A.weight": right,
                    f"{stem}.{e}.{part}.lora_B.weight": np.ascontiguousarray(rows),
                }
    folder.mkdir()
    weights.write_safetensors(folder / "adapter_model.safetensors", made, "f32")
    (folder / "adapter_config.json").write_text(
        json.dumps({k: v for k, v in of.items() if k != "target_parameters"})
    )


def test_experts_may_be_modules(experts, tmp_path):
    folder, g = experts
    split_experts("qwen2-moe-experts", tmp_path / "pairs")
    m = llmc.Model(folder, device="ref", set=OF_EXPERTS)
    with m.session(context=64, chunk=64, n_out=64, seqs=2) as s:
        pairs, stacked = (
            logits(s, [(s.seq(adapter=m.load_adapter(a)), g.prompt)])[0]
            for a in (tmp_path / "pairs", f"{LORA}/qwen2-moe-experts")
        )
    assert (
        np.array_equal(pairs, stacked)
        and np.abs(pairs - peft("qwen2-moe-experts")).max() < 3e-3 * np.abs(pairs).max()
    )


def test_experts_without_gates(tmp_path):
    """The model has 7 experts, 3 per token. PEFT's name "model" is "backbone" in the checkpoint."""
    g = weights.Golden(config("nemotron-experts")["base_model_name_or_path"])
    g.build(tmp_path / "model")
    (tmp_path / "a").mkdir()
    shutil.copy(os.path.join(LORA, "nemotron-experts", "adapter_config.json"), tmp_path / "a")
    tensors = read_safetensors(os.path.join(LORA, "nemotron-experts", "adapter_model.safetensors"))
    weights.write_safetensors(
        tmp_path / "a" / "adapter_model.safetensors",
        {n.replace("model.model.layers", "model.backbone.layers"): x for n, x in tensors.items()},
        "f32",
    )
    m = llmc.Model(tmp_path / "model", device="ref", set=OF_EXPERTS)
    with m.session(context=64, chunk=128, n_out=128, seqs=2) as s:
        got, none = logits(
            s, [(s.seq(adapter=m.load_adapter(tmp_path / "a")), g.prompt), (s.seq(), g.prompt)]
        )
    want = peft("nemotron-experts")
    assert (
        np.abs(want - g.logits).max() > 1
        and max(np.abs(got - want).max(), np.abs(none - g.logits).max()) < 3e-3 * np.abs(want).max()
    )


def test_bytes_of_expert_slots(experts):
    """Bytes per slot: rank x (inputs + outputs of gate, up and down) per expert, plus the other
    projections."""
    folder, _ = experts
    sizes = []
    for settings in (SLOTS, OF_EXPERTS):
        plan = llmc.Model(folder, device="ref", no_weights=True, set=settings).plan
        sizes.append(sum(t["rows"] for t in plan["tensor"] if "factor" in t))
    layers, hidden, width, n, slots, rank = 3, 56, 28, 6, 3, 5
    assert sizes[1] - sizes[0] == layers * slots * n * rank * 3 * (hidden + width)


def test_adapters_of_experts_are_refused(experts, tmp_path):
    folder, g = experts
    m = llmc.Model(folder, device="ref", set=SLOTS)
    with pytest.raises(llmc.Error, match="model.layers.*experts.*adapters.expert_rank"):
        m.load_adapter(f"{LORA}/qwen2-moe-experts")
    m = llmc.Model(folder, device="ref", set=[*SLOTS, "adapters.expert_rank=2"])
    with pytest.raises(llmc.Error, match="experts.*rank 3.*adapters.expert_rank=3"):
        m.load_adapter(f"{LORA}/qwen2-moe-experts")
    with pytest.raises(llmc.Error, match="another model|has no slot"):
        m.load_adapter(f"{LORA}/phimoe-experts")
    assert m.load_adapter(f"{LORA}/qwen2-moe-down")  # the slot is still free


@pytest.mark.parametrize("name", ["llama-smol", "gpt_oss-plain"])
def test_a_rank_for_experts_that_have_no_slots_is_refused(name, tmp_path):
    """A model without experts, and one with interleaved experts."""
    weights.Golden(name).build(tmp_path)
    with pytest.raises(llmc.Error, match="adapters.expert_rank: this model has no experts"):
        llmc.Model(tmp_path, device="ref", no_weights=True, set=OF_EXPERTS)


def test_a_rank_for_experts_in_orders_of_their_own_is_refused(tmp_path):
    packed, _, _ = desc_act_experts("mixtral-plain", MIXTURES["mixtral-plain"], tmp_path)
    with pytest.raises(llmc.Error, match="adapters.expert_rank: .*desc_act"):
        llmc.Model(packed, device="ref", no_weights=True, set=OF_EXPERTS)


@pytest.mark.parametrize("device,arch", [("ref", None), ("cpu", BEST)])
def test_an_engine_serves_adapters_of_experts(experts, device, arch):
    """A request gets the tokens that it gets alone. Prompts find only cached pages of their own
    adapter; adapters are loaded and unloaded meanwhile."""
    folder, g = experts
    m = llmc.Model(
        folder,
        device=device,
        arch=arch,
        set=["adapters.slots=2", "adapters.rank=8", "adapters.expert_rank=3", "kv.dtype=f16"],
    )
    number = [
        0,
        m.load_adapter(f"{LORA}/qwen2-moe-experts"),
        m.load_adapter(f"{LORA}/qwen2-moe-down"),
    ]
    prompt = (g.prompt * 8)[:40]
    with m.engine(context=128, seqs=4, speculate=-1, no_prefix_cache=True) as e:
        alone = [
            e.submit(prompt, adapter=a, max_tokens=20, ignore_eos=True).wait()["tokens"]
            for a in number
        ]
    assert len({tuple(t) for t in alone}) == 3
    with m.engine(context=128, seqs=6, kv_tokens=512) as e:
        found = [
            e.submit(prompt, adapter=a, max_tokens=1, ignore_eos=True).wait()["n_cached"]
            for a in number + number[::-1]
        ]
        assert found == [0, 0, 0, 32, 32, 32]
        together = [
            e.submit(prompt, adapter=number[i % 3], max_tokens=20, ignore_eos=True)
            for i in range(9)
        ]
        m.unload_adapter(number[1])
        assert [r.wait()["tokens"] for r in together] == [alone[i % 3] for i in range(9)]
        again = m.load_adapter(f"{LORA}/qwen2-moe-experts")
        assert (
            e.submit(prompt, adapter=again, max_tokens=20, ignore_eos=True).wait()["tokens"]
            == alone[1]
        )


@pytest.mark.parametrize("device,arch", ON[:2])
def test_bits_of_experts_are_those_of_a_sequence_alone(experts, device, arch):
    folder, g = experts
    alone_and_beside(
        llmc.Model(folder, device=device, arch=arch, set=OF_EXPERTS),
        g,
        "qwen2-moe-experts",
        "qwen2-moe-down",
    )


@pytest.mark.sample(2)
@pytest.mark.parametrize("device,arch", ON)
def test_bits_are_those_of_a_sequence_alone(base, device, arch):
    folder, g = base
    alone_and_beside(model(folder, device=device, arch=arch), g, "llama-all", "llama-some")


def alone_and_beside(m, g, first, second):
    """Compare prompts with several adapters and with none in one step, then decode rows of all,
    forks and reloaded sequences, with each alone."""
    number = [
        0,
        m.load_adapter(f"{LORA}/{first}"),
        m.load_adapter(f"{LORA}/{second}"),
        m.load_adapter(f"{LORA}/{first}", 0.5),
    ]
    which, ids = [1, 2, 0, 1, 3, 2], g.prompt
    cut = [len(ids) - 1 - 2 * i for i in range(len(which))]
    alone = []
    with m.session(context=64, chunk=256, n_out=256, seqs=8, threads=1) as s:
        for i, w in zip(cut, which):
            q = s.seq(adapter=number[w])
            alone.append([logits(s, [(q, ids[:i])])[0], logits(s, [(q, ids[i : i + 1])])[0]])
            s.free(q)
    assert all(np.abs(alone[0][0][:5] - alone[k][0][:5]).max() > 0.1 for k in (1, 2, 4))
    with m.session(context=64, chunk=256, n_out=256, seqs=14, threads=2) as s:
        seqs = [s.seq(adapter=number[w]) for w in which]
        for got, want in zip(logits(s, [(q, ids[:i]) for q, i in zip(seqs, cut)]), alone):
            assert np.array_equal(got, want[0])
        forks = [s.fork(q) for q in seqs]
        saved = s.save(seqs[1])
        back = s.load(saved)
        with pytest.raises(llmc.Error, match="positions already"):
            s.adapt(back, 0)
        for of in (seqs, forks):
            for got, want in zip(logits(s, [(q, ids[i : i + 1]) for q, i in zip(of, cut)]), alone):
                assert np.array_equal(got, want[1])
        assert np.array_equal(logits(s, [(back, ids[cut[1] : cut[1] + 1])])[0], alone[1][1])


def test_over_a_gguf_file(tmp_path):
    """A GGUF stores rows of q and k in another order than Hugging Face, whose names the modules
    have. Slots must give the logits of the merged weights."""
    source = os.path.join(weights.HERE, "gguf", "llama-f16.gguf")
    ids = [3 + 7 * i % 200 for i in range(40)]
    with llmc.Model(source, device="ref", no_weights=True) as m:
        hidden, heads, kv_heads = (
            int(m["hidden"]),
            int(m["attention.n_heads"]),
            int(m["attention.n_kv_heads"]),
        )
    adapter, dim = {}, hidden // heads
    for layer in range(2):
        for module, rows in (("q_proj", hidden), ("k_proj", kv_heads * dim)):
            stem = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            adapter |= {
                stem + ".lora_A.weight": weights.noise(stem + "a", 3 * hidden)
                .astype(np.float32)
                .reshape(3, -1)
                * 0.05,
                stem + ".lora_B.weight": weights.noise(stem + "b", 3 * rows)
                .astype(np.float32)
                .reshape(-1, 3)
                * 0.05,
            }
    weights.write_safetensors(tmp_path / "adapter_model.safetensors", adapter, "f32")
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6})
    )
    made = []
    for settings in (["lora.path=" + str(tmp_path), "kv.dtype=f32"], SLOTS):
        m = llmc.Model(source, device="ref", set=settings)
        with m.session(context=64, chunk=64, n_out=64, seqs=2) as s:
            made.append(
                logits(
                    s, [(s.seq(adapter=m.load_adapter(tmp_path) if settings is SLOTS else 0), ids)]
                )[0]
            )
            made.append(logits(s, [(s.seq(), ids)])[0])
    merged, _, got, none = made
    assert (
        np.abs(merged - none).max() > 0.05 * np.abs(merged).max()
        and np.abs(got - merged).max() < 1e-2 * np.abs(merged).max()
    )


def test_an_engine_serves_adapters_in_one_batch(base):
    """A request gets the tokens that it gets alone. Only requests of the same adapter share prompt
    pages; a preempted request keeps its adapter."""
    folder, g = base
    m = model(folder, extra=["kv.dtype=f16"])
    number = [0, m.load_adapter(f"{LORA}/llama-all"), m.load_adapter(f"{LORA}/llama-some")]
    prompt = (g.prompt * 8)[:40]
    with m.engine(context=128, seqs=4, speculate=-1, no_prefix_cache=True) as e:
        alone = [
            e.submit(prompt, adapter=a, max_tokens=70, ignore_eos=True).wait()["tokens"]
            for a in number
        ]
    assert len({tuple(t) for t in alone}) == 3
    for options in (
        dict(kv_tokens=512),
        dict(kv_tokens=512, swap_bytes=1 << 26),
        dict(kv_tokens=224),
        dict(kv_tokens=224, swap_bytes=1 << 26),
    ):
        with m.engine(context=128, seqs=6, **options) as e:
            found = [
                e.submit(prompt, adapter=a, max_tokens=1, ignore_eos=True).wait()["n_cached"]
                for a in number + number[::-1]
            ]
            assert found[:3] == [0, 0, 0] and found[3] == 32
            together = [
                e.submit(prompt, adapter=number[i % 3], max_tokens=70, ignore_eos=True)
                for i in range(9)
            ]
            for i, r in enumerate(together):
                assert r.wait()["tokens"] == alone[i % 3], options
            assert options["kv_tokens"] > 300 or e.stats()["preemptions"] > 0


def test_pages_on_disk_belong_to_the_adapter(base, tmp_path):
    folder, g = base
    prompt = (g.prompt * 8)[:70]
    tmp_path.chmod(0o700)
    for first in (True, False):
        m = model(folder)
        other = m.load_adapter(f"{LORA}/llama-some") if not first else 0
        a = m.load_adapter(f"{LORA}/llama-all")
        with m.engine(context=128, seqs=2, prefix_dir=str(tmp_path / "pages")) as e:
            assert e.submit(prompt, adapter=other, max_tokens=1).wait()["n_cached"] == 0
            got = e.submit(prompt, adapter=a, max_tokens=4, ignore_eos=True).wait()
            assert got["n_cached"] == (0 if first else 64)
            want = got["tokens"] if first else want  # noqa: F821
            assert got["tokens"] == want


def test_slots_are_free_when_no_sequence_uses_the_adapter(base):
    folder, g = base
    m = llmc.Model(
        folder, device="ref", set=["adapters.slots=1", "adapters.rank=8", "kv.dtype=f32"]
    )
    a = m.load_adapter(f"{LORA}/llama-all")
    with m.session(context=64, chunk=64, n_out=64, seqs=3) as s:
        q = s.seq(adapter=a)
        other = s.fork(q)
        with pytest.raises(llmc.Error, match="all 1 adapter slots are in use"):
            m.load_adapter(f"{LORA}/llama-some")
        m.unload_adapter(a)
        with pytest.raises(llmc.Error, match="all 1 adapter slots are in use"):
            m.load_adapter(f"{LORA}/llama-some")
        with pytest.raises(llmc.Error, match="no adapter"):
            m.unload_adapter(a)
        got = logits(s, [(q, g.prompt)])[0]
        assert np.abs(got - peft("llama-all")).max() < 3e-3 * np.abs(got).max()
        s.free(q)
        s.free(other)
        b = m.load_adapter(f"{LORA}/llama-some")
        assert b != a
        with pytest.raises(llmc.Error, match="no adapter"):
            s.seq(adapter=a)
        got = logits(s, [(s.seq(adapter=b), g.prompt)])[0]
        assert np.abs(got - peft("llama-some")).max() < 3e-3 * np.abs(got).max()
        m.unload_adapter(b)
    # closing a session releases its adapter
    assert m.load_adapter(f"{LORA}/llama-all") not in (a, b)


def test_a_slot_is_written_when_all_stages_are_done_with_it(tmp_path):
    """The host does not wait for logits, so the second stage is still busy when the first one has
    finished."""
    g = weights.Golden(BASE)
    g.build(tmp_path)
    m = llmc.Model(
        tmp_path,
        device="ref",
        set=["adapters.slots=1", "adapters.rank=8", "kv.dtype=f32", "parallel.pp=2"],
    )
    with m.session(context=256, chunk=128, n_out=64, seqs=2) as s:
        for case in ["llama-all", "llama-some"] * 3:
            a = m.load_adapter(f"{LORA}/{case}")
            q = s.seq(adapter=a)
            got = logits(s, [(q, g.prompt)])[0]
            assert np.abs(got - peft(case)).max() < 3e-3 * np.abs(got).max()
            s.forward([(q, (g.prompt * 8)[:96], 0)])
            m.unload_adapter(a)
            s.free(q)


def test_what_has_no_slot_is_refused(base, tmp_path):
    folder, _ = base
    with pytest.raises(llmc.Error, match="no slots for adapters"):
        llmc.Model(folder, device="ref").load_adapter(f"{LORA}/llama-all")
    m = llmc.Model(folder, device="ref", set=["adapters.slots=1", "adapters.rank=4"])
    for case, output in (
        ("llama-some", "adapters.rank=5"),
        ("embed-head", "has no slot"),
        ("gpt2-stack", "transformer.h.0"),
        ("qv-rslora", "another model"),
        ("nothing", "adapter_config.json"),
    ):
        with pytest.raises(llmc.Error, match=output):
            m.load_adapter(f"{LORA}/{case}")
    assert m.load_adapter(f"{LORA}/llama-all")  # the slot is still free
    for settings, output in (
        (["adapters.slots=2000"], "adapters.slots"),
        (["adapters.slots=1", "adapters.rank=0"], "adapters.rank"),
    ):
        with pytest.raises(llmc.Error, match=output):
            llmc.Model(folder, device="cpu", set=settings)
    weights.Golden("mixtral-window").build(tmp_path / "mixtral")
    m = llmc.Model(tmp_path / "mixtral", device="ref", set=["adapters.slots=1"])
    with pytest.raises(llmc.Error, match="experts.*has no slot|has no slot"):
        m.load_adapter(f"{LORA}/mixtral-experts")
    weights.Golden("mamba-plain").build(tmp_path / "states")
    with pytest.raises(llmc.Error, match="no matrix for adapter slots"):
        llmc.Model(tmp_path / "states", device="ref", set=["adapters.slots=1"])


ON_GPU = """
import json, sys, llmc
import numpy as np
folder, out, arch, first, second, ids, more = *sys.argv[1:6], *map(json.loads, sys.argv[6:])
with llmc.open(folder, device="cuda", arch=arch, set={"deterministic": "true", "adapters.slots": 2, "adapters.rank": 8, "kv.dtype": "f32", **more}) as m:
    number = [m.load_adapter(first), 0, m.load_adapter(second)]
    def step(s, chunks):
        made = np.array(s.forward([(q, t, len(t)) for q, t in chunks]))
        return np.split(made, np.cumsum([len(t) for _, t in chunks])[:-1])
    with m.session(context=64, chunk=128, n_out=128, seqs=4) as s:
        seqs = [s.seq(adapter=a) for a in number]
        np.savez(out, *step(s, [(q, ids) for q in seqs]))
        last = step(s, [(q, [5]) for q in seqs])[2]
        q = s.seq(adapter=number[2])
        step(s, [(q, ids)])
        assert np.array_equal(step(s, [(q, [5])])[0], last)
    with m.engine(context=64, seqs=3, chunk=64) as e: # decode steps as graphs, tokens picked on the device
        alone = [e.submit(ids, adapter=a, max_tokens=3, ignore_eos=True).wait()["tokens"] for a in number]
        crowd = [e.submit(ids, adapter=a, max_tokens=3, ignore_eos=True) for a in number]
        assert [r.wait()["tokens"] for r in crowd] == alone and len({str(t) for t in alone}) > 1, alone
        m.unload_adapter(number[0])
        again = m.load_adapter(second)
        assert e.submit(ids, adapter=again, max_tokens=3, ignore_eos=True).wait()["tokens"] == alone[2]
"""


def on_a_gpu(model, arch, first, second, tmp_path, **more):
    """Run on an emulated GPU: mixed steps, decode steps, and engine steps that sample on the
    device."""
    folder, g = model
    out = tmp_path / "logits.npz"
    p = subprocess.run(
        [
            sys.executable,
            "-c",
            ON_GPU,
            str(folder),
            str(out),
            arch,
            f"{LORA}/{first}",
            f"{LORA}/{second}",
            json.dumps(g.prompt),
            json.dumps(more),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **environment(arch)},
    )
    assert p.returncode == 0, p.stderr[-3000:]
    got = np.load(out)
    for i, want in enumerate((peft(first), g.logits, peft(second))):
        assert np.abs(got[f"arr_{i}"] - want).max() < 5e-3 * np.abs(want).max(), (
            i,
            np.abs(got[f"arr_{i}"] - want).max(),
        )


def test_on_a_gpu(base, tmp_path):
    on_a_gpu(base, "sm_75", "llama-all", "llama-some", tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a"])
def test_experts_on_a_gpu(experts, arch, tmp_path):
    """Run kernels for any shape, and kernels for one GPU generation."""
    on_a_gpu(
        experts,
        arch,
        "qwen2-moe-experts",
        "qwen2-moe-down",
        tmp_path,
        **{"adapters.expert_rank": 3},
    )


def shown(folder, where, command, *args):
    p = subprocess.run(
        [
            LLMC,
            command,
            str(folder),
            *where,
            *args,
            "--set",
            "adapters.slots=2",
            "--set",
            "adapters.rank=8",
            "--json",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_75")},
    )
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


@pytest.mark.parametrize(
    "where", [["--arch", BEST], ["--device", "cuda", "--arch", "sm_75"]], ids=["cpu", "gpu"]
)
def test_skipped_ops_take_no_time(base, where):
    """If no sequence has an adapter, its ops do not run and have no times. verify still compares
    their results."""
    for row in shown(base[0], where, "bench", "-p", "3", "-n", "2", "-r", "1", "--ops")["results"]:
        ops = [o["op"] for o in row["ops"]]
        assert ops and not [o for o in ops if o.startswith("lora")], ops
    values = {
        v["value"]
        for v in shown(base[0], where, "verify", "--tokens", "3,4,5")["rows"]
        if v["op"] == "lora_up"
    }
    assert values, where


LATENT_ON_GPU = """
import json, sys, llmc
import numpy as np
folder, out, adapter, ids = *sys.argv[1:4], json.loads(sys.argv[4])
with llmc.open(folder, device="cuda", arch="sm_80", set={"deterministic": "true", "adapters.slots": 2, "adapters.rank": 4, "kv.dtype": "f32"}) as m:
    with m.session(context=64, chunk=128, n_out=128, seqs=2) as s:
        a, none = s.seq(adapter=m.load_adapter(adapter)), s.seq()
        head, tail = [(q, ids[:-1], len(ids) - 1) for q in (a, none)], [(q, ids[-1:], 1) for q in (a, none)]
        prompt, last = np.array(s.forward(head)), np.array(s.forward(tail))
np.savez(out, *(np.concatenate([p, l[None]]) for p, l in zip(np.split(prompt, 2), last)))
"""


def test_latent_attention_on_a_gpu(tmp_path):
    """Apply adapters of all projections, in prefill and in a decode step."""
    g = weights.Golden(config("deepseek-latents")["base_model_name_or_path"])
    g.build(tmp_path / "model")
    out = tmp_path / "logits.npz"
    p = subprocess.run(
        [
            sys.executable,
            "-c",
            LATENT_ON_GPU,
            str(tmp_path / "model"),
            str(out),
            f"{LORA}/deepseek-latents",
            json.dumps(g.prompt),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_80")},
    )
    assert p.returncode == 0, p.stderr[-3000:]
    got = np.load(out)
    for i, want in enumerate((peft("deepseek-latents"), g.logits)):
        assert np.abs(got[f"arr_{i}"] - want).max() < 5e-3 * np.abs(want).max(), (
            i,
            np.abs(got[f"arr_{i}"] - want).max(),
        )


TWO_GPUS = """
import json, sys, llmc
import numpy as np
folder, out, adapter, ids = *sys.argv[1:4], json.loads(sys.argv[4])
with llmc.open(folder, device="cuda", arch="sm_80", set={"parallel.tp": 2, "adapters.slots": 2, "adapters.rank": 8, "kv.dtype": "f32"}) as m:
    with m.session(context=64, chunk=128, n_out=128, seqs=2) as s:
        a, none = s.seq(adapter=m.load_adapter(adapter)), s.seq()
        prompt = np.array(s.forward([(q, ids[:-1], len(ids) - 1) for q in (a, none)]))
        plain = np.array(s.forward([(none, ids[-1:], 1)]))
        last = np.array(s.forward([(a, ids[-1:], 1)]))
np.savez(out, *(np.concatenate([p, x]) for p, x in zip(np.split(prompt, 2), (last, plain))))
"""


@pytest.mark.skipif("LLMC_CHECK_ALL" not in os.environ, reason="every case")
def test_two_gpus_have_parts_of_adapters(tmp_path):
    """Decode steps of sequences with and without an adapter; each kind has its own graph."""
    g = weights.Golden(config("phi3-stacks")["base_model_name_or_path"])
    g.build(tmp_path / "model")
    out = tmp_path / "logits.npz"
    p = subprocess.run(
        [
            sys.executable,
            "-c",
            TWO_GPUS,
            str(tmp_path / "model"),
            str(out),
            f"{LORA}/phi3-stacks",
            json.dumps(g.prompt),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **environment("sm_80", LLMC_EMU_DEVICES=2)},
    )
    assert p.returncode == 0, p.stderr[-3000:]
    got = np.load(out)
    for i, want in enumerate((peft("phi3-stacks"), g.logits)):
        assert np.abs(got[f"arr_{i}"] - want).max() < 5e-3 * np.abs(want).max(), (
            i,
            np.abs(got[f"arr_{i}"] - want).max(),
        )


def test_shared_experts_have_slots(tmp_path):
    """Recent PEFT writes no such adapter for transformers 5, but other tools do. Slots must give
    the logits of the merged weights."""
    g = weights.Golden("deepseek_v3-plain")
    g.build(tmp_path / "model")
    adapter = {}
    for name, rows, cols in (("gate", 40, 55), ("up", 40, 55), ("down", 55, 40)):
        stem = f"base_model.model.model.layers.1.mlp.shared_experts.{name}_proj"
        adapter |= {
            stem + ".lora_A.weight": weights.noise(stem + "a", 3 * cols)
            .astype(np.float32)
            .reshape(3, -1)
            * 0.1,
            stem + ".lora_B.weight": weights.noise(stem + "b", 3 * rows)
            .astype(np.float32)
            .reshape(-1, 3)
            * 0.1,
        }
    (tmp_path / "a").mkdir()
    weights.write_safetensors(tmp_path / "a" / "adapter_model.safetensors", adapter, "f32")
    (tmp_path / "a" / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 3, "lora_alpha": 6})
    )
    made = []
    for settings in ([f"lora.path={tmp_path}/a", "kv.dtype=f32", "attention.form=absorbed"], SLOTS):
        m = llmc.Model(tmp_path / "model", device="cpu", arch="generic", set=settings)
        with m.session(context=64, chunk=64, n_out=64, seqs=2) as s:
            made += [
                logits(s, [(s.seq(adapter=a), g.prompt)])[0]
                for a in ([m.load_adapter(tmp_path / "a"), 0] if settings is SLOTS else [0])
            ]
    merged, got, none = made
    assert (
        np.abs(merged - none).max() > 0.05 * np.abs(merged).max()
        and np.abs(got - merged).max() < 3e-3 * np.abs(merged).max()
    )


# op, code in its kernel, replacement
MUTATIONS = [
    ("lora_down", r"\(int64_t\)slot \* N", "(int64_t)0 * N"),
    ("lora_up", r"slot \* RANK", "0 * RANK"),
    ("lora_up", r"\+ \d+ \* RANK, \*in", "+ 0 * RANK, *in"),
    ("lora_up", r"lora_add\(e, RANK", "lora_add(e, 2"),
    ("lora_down", "lora_slot\\(s, t\\)", "lora_slot(s, 0)"),
]


EXPERT_MUTATIONS = [
    ("lora_experts_down", r"\d \? i : i / TOP_K", "i / TOP_K"),
    ("lora_experts_up", r"\+ m % COUNT\)", ")"),
    ("lora_experts_add", r"ARG_weight\[k\]", "1"),
    ("cpu/lora", r"slot \* n_experts", "0 * n_experts"),
    ("cpu/lora", r"n_experts \+ id\[i\]", "n_experts + id[i - i % top_k]"),
    ("norm_moe_glu", r"share_get\(add\[t\] \+ width \+ row", "share_get(add[t] + row"),
    ("norm_moe_glu", r"lora_slot\(s, tok\) >= 0", "lora_slot(s, 0) >= 0"),
]


def compiled(folder, out, settings):
    subprocess.run(
        [
            LLMC,
            "compile",
            str(folder),
            "-o",
            str(out),
            "--arch",
            "generic",
            "-q",
            *(a for s in settings for a in ("--set", s)),
        ],
        check=True,
    )
    return out


@pytest.fixture(scope="module")
def artifact(base, tmp_path_factory):
    return compiled(base[0], tmp_path_factory.mktemp("slots") / "artifact", SLOTS)


@pytest.fixture(scope="module")
def expert_artifact(experts, tmp_path_factory):
    return compiled(experts[0], tmp_path_factory.mktemp("slots") / "artifact", OF_EXPERTS)


def test_a_plan_whose_slots_differ_is_refused(base, artifact, tmp_path):
    """A plan with another order of slots, but equal size, is refused: the last slot would end
    beyond the tensor."""
    copy = tmp_path / "artifact"
    shutil.copytree(artifact, copy)
    plan = copy / "plan-cpu-generic.json"
    text = plan.read_text()
    for op, was, put in (
        ("lora_down", '"rank":8,"count":3,"slots":3', '"rank":3,"count":3,"slots":8'),
        (
            "lora_up",
            '"rank":8,"count":1,"first":0,"slots":3',
            '"rank":3,"count":1,"first":0,"slots":8',
        ),
    ):
        assert was in text
        plan.write_text(text.replace(was, put))
        messages = []
        llmc.Model(
            copy, weights=base[0], arch="generic", log=lambda level, line: messages.append(line)
        )
        assert any(
            op in line and "is not a factor with the op's slots and rank" in line
            for line in messages
        ), messages


def test_a_plan_whose_experts_lie_beyond_their_own_is_refused(experts, expert_artifact, tmp_path):
    """Strided rows: in a stacked factor the rows of the last expert would end beyond it."""
    copy = tmp_path / "artifact"
    shutil.copytree(expert_artifact, copy)
    path = copy / "plan-cpu-generic.json"
    plan, changed = json.loads(path.read_text()), 0
    for t in plan["tensor"]:
        for source in t["src"] if "experts" in t else []:
            source |= dict(lora_block=1, lora_stride=1 << 24)
            changed += 1
    assert changed
    path.write_text(json.dumps(plan, separators=(",", ":")))
    messages = []
    llmc.Model(
        copy, weights=experts[0], arch="generic", log=lambda level, line: messages.append(line)
    )
    assert any("does not map rows of an expert" in line for line in messages), messages


@pytest.mark.sample(2)
@pytest.mark.parametrize("name,was,bug", MUTATIONS)
def test_a_mistake_in_a_kernel_shows(name, was, bug, base, artifact, tmp_path):
    """Mutations: another slot, part of another matrix, only part of the rank, the adapter of the
    step's first row."""
    shows(*base, artifact, tmp_path, name, was, bug, "llama-some", "llama-all")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name,was,bug", EXPERT_MUTATIONS)
def test_a_mistake_in_a_kernel_of_experts_shows(name, was, bug, experts, expert_artifact, tmp_path):
    """Mutations: row of another choice, gate's factor for up, no weights, another slot, expert of
    the first choice, gate's addition for up, adapter of the step's first row."""
    shows(
        *experts, expert_artifact, tmp_path, name, was, bug, "qwen2-moe-down", "qwen2-moe-experts"
    )


def shows(folder, g, artifact, tmp_path, name, was, bug, other, case):
    def wrong(artifact):
        m = llmc.Model(artifact, weights=folder, arch="generic", trust_artifact=True)
        m.load_adapter(f"{LORA}/{other}", 0.5)
        a, n = m.load_adapter(f"{LORA}/{case}"), len(g.prompt)
        with m.session(context=n, chunk=2 * n, n_out=2 * n, seqs=2) as s:
            want, none = peft(case), s.seq()
            return (
                np.abs(logits(s, [(none, g.prompt), (s.seq(adapter=a), g.prompt)])[1] - want).max()
                > 3e-3 * np.abs(want).max()
            )

    assert not wrong(artifact)
    copy, changed = tmp_path / "artifact", 0
    shutil.copytree(artifact, copy)
    for f in (copy / "kernels").rglob("*.[ch]"):
        text = f.read_text()
        if name in str(f) and (new := re.sub(loose(was), bug, text)) != text:
            f.write_text(new)
            changed += 1
    assert changed and wrong(copy)
