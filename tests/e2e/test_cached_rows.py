"""Quantised KV caches end to end, with every KV type. Golden models are compared with transformers
and a cache of the same rows (tests/golden/make_kv.py). Pages, prefixes, forks, swapping and
saved sequences must keep rows."""

import os

import numpy as np
import pytest

import llmc
from cuda_emu import environment
from golden_run import ROOT, run, weights
from processor import RUNS

FOLDER = os.path.join(ROOT, "tests", "golden", "kv")
GOLDEN = sorted(os.listdir(FOLDER))
ARCH = {
    "llama-smol": "v4",
    "qwen3-plain": "generic",
    "mistral-nemo": "v3",
    "gemma2-caps": "v4",
    "glm-bias": "amx",
    "qwen3_moe-renorm": "v3",
    "llama-scaled3": "generic",
    "deepseek_v3-plain": "v4",
    "deepseek_v2-lite": "generic",
    "deepseek_v3-yarn": "v3",
}


# else a sample that includes every kernel that depends on the type
ALL = "LLMC_CHECK_ALL" in os.environ


def some(names, *sample):
    return [n for n in names if ALL or n.startswith(sample)]


def golden(name):
    """Return (case, overrides, logits, greedy tokens)."""
    case, k, v, *more = name.removesuffix(".npz").split(".")
    kv = {"kv.k": k, "kv.v": v, "kv.rotate": str("turned" in more).lower()}
    for m in more:
        if m.startswith("near"):
            kv["kv.window"], kv["kv.sinks"] = m.removeprefix("near").split("-")
    with np.load(os.path.join(FOLDER, name)) as z:
        return weights.Golden(case), kv, z["logits"], z["greedy"].tolist()


def compare(name, tmp_path, *args, most=5e-3):
    g, kv, logits, greedy = golden(name)
    g.build(tmp_path)
    got, tokens = run(tmp_path, g, *args, set=kv)
    off = np.abs(got - logits).max() / np.ptp(logits)
    plain = np.abs(g.logits - logits).max() / np.ptp(logits)
    # a value halfway between two codes may round to either, which is one step in one element of one
    # row
    assert off < min(most, plain / 10), (
        f"off by {off:.1e} of the range; a cache that rounds nothing is off by {plain:.1e}"
    )
    assert tokens == greedy


@pytest.mark.parametrize("name", GOLDEN)
def test_reference(name, tmp_path):
    compare(name, tmp_path, "--device", "ref")


@pytest.mark.parametrize("name", some(GOLDEN, "qwen3-plain", "llama-smol", "deepseek_v3-plain"))
def test_cpu(name, tmp_path):
    arch = ARCH[name.split(".")[0]]
    if not RUNS[arch]:
        pytest.skip(f"this processor does not run {arch}")
    compare(name, tmp_path, "--device", "cpu", "--arch", arch, "--threads", "2")


@pytest.mark.parametrize(
    "name", some(GOLDEN, "qwen3-plain", "deepseek_v3-plain", "llama-smol.int4c")
)
def test_cuda(name, tmp_path, monkeypatch):
    """Emulated GPU: decode steps, and prefill through the portable kernel. Heads of 16 use tensor
    cores, which round queries, weights and values."""
    for k, v in environment(
        "sm_90a" if name.startswith("glm") else "sm_75",
        mode="check" if ALL and name.startswith("qwen3-plain") else "fast",
    ).items():
        monkeypatch.setenv(k, v)
    compare(
        name, tmp_path, "--device", "cuda", **({"most": 1.2e-2} if name.startswith("glm") else {})
    )


TYPES = {
    "bf16": {"dtype": "bf16"},
    "f8": {"dtype": "f8"},
    "int8": {"dtype": "int8", "rotate": "true"},
    "int6": {"dtype": "int6"},
    "int4": {"dtype": "int4"},
    "int6 and int4": {"k": "int6", "v": "int4", "rotate": "true"},
    "int4c": {"k": "int4c", "v": "int4", "rotate": "true", "window": "32"},
    "int4, near 16": {"dtype": "int4", "rotate": "true", "window": "16", "sinks": "3"},
}
PROMPTS = [[3 + (i * 7 + k * 5) % 290 for k in range(n)] for i, n in enumerate((70, 65, 40, 12))]
PROMPTS.append(PROMPTS[0][:66] + [9])


def tiny(kv):
    return llmc.open(
        "configs/tiny.yaml",
        random_weights=True,
        arch="generic",
        set={f"kv.{k}": v for k, v in kv.items()},
    )


@pytest.mark.parametrize("name", some(TYPES, "f8", "int6 and int4", "int4, near"))
def test_many_requests_answer_as_each_alone(name):
    """Too few pages for all requests: they are preempted, swapped to the host and back, found in
    the prefix cache, and forked for choices."""
    params = [dict(max_tokens=n, ignore_eos=True) for n in (12, 60, 16, 9, 8)]
    with tiny(TYPES[name]) as m:
        with m.session(context=128) as s:
            alone = [s.run(p, **k)["tokens"] for p, k in zip(PROMPTS, params)]
        with m.engine(context=128, seqs=4, chunk=48, kv_tokens=160, swap_bytes=1 << 20) as e:
            for i in (0, 4):  # requests with a shared prefix of two pages
                assert e.submit(PROMPTS[i], **params[i]).wait()["tokens"] == alone[i]
            # three choices share their start and grow beyond five pages
            three = e.submit(PROMPTS[1], n=3, **params[1])
            requests = [e.submit(p, **k) for p, k in zip(PROMPTS[2:4], params[2:4])]
            assert [r.wait()["tokens"] for r in requests] == alone[2:4]
            output = [(v.index, v.token) for v in three.events() if v.kind == "token"]
            assert [[t for i, t in output if i == k] for k in range(3)] == [alone[1]] * 3
            stats = e.stats()
    assert (
        stats["preemptions"] > 0
        and stats["prefix_hits"] > 0
        and stats["swaps_in"] == stats["swaps_out"]
    ), stats
    assert stats["kv_pages_used"] == stats["failed"] == stats["running"] == 0


@pytest.mark.parametrize("name", some(TYPES, "f8", "int6 and int4", "int4, near"))
def test_saved_rows(name):
    """A saved sequence continues with the same bits, also after a fork and a trim. Changed or
    truncated bytes are refused and use no page."""
    rng = np.random.default_rng(5)
    with tiny(TYPES[name]) as m, m.session(context=128, seqs=3, chunk=64, n_out=3) as s:
        q = s.seq()
        s.forward([(q, PROMPTS[0][:64], 0)])
        f = s.fork(q)
        s.forward([(f, [7, 8], 0)])
        s.trim(f, 65)
        saved = s.save(f)
        want = s.forward([(f, [11, 12, 13], 3)])
        with m.session(context=128, seqs=2, n_out=3) as t:
            r = t.load(saved)
            assert t.length(r) == 65
            assert np.array_equal(np.array(t.forward([(r, [11, 12, 13], 3)])), np.array(want))
            used = t.stats()["kv_pages_used"]
            for at in sorted({0, 4, 8, len(saved) - 1, *rng.integers(0, len(saved), 40).tolist()}):
                bad = bytearray(saved)
                bad[at] ^= 1 << rng.integers(8)
                with pytest.raises(llmc.Error):
                    t.load(bytes(bad))
            for n in (0, 3, 40, len(saved) // 2, len(saved) - 1):
                with pytest.raises(llmc.Error):
                    t.load(saved[:n])
            with pytest.raises(llmc.Error):
                t.load(saved + b"\0")
            assert t.stats()["kv_pages_used"] == used
    others = [k for k in TYPES.values() if k != TYPES[name]]
    with (
        tiny(others[len(name) % len(others)]) as m,
        m.session(context=128) as t,
        pytest.raises(llmc.Error, match="another model, target or type"),
    ):
        t.load(saved)


def test_exact_pages_on_ranks():
    """Three ranks share one kv head. A fork and a reloaded sequence continue with the same bits,
    close to those of one rank, which sums in another order."""
    kv = {f"kv.{k}": v for k, v in TYPES["int4c"].items()} | {"kv.sinks": "3"}
    ends = []
    for tp in ("1", "3"):
        with (
            llmc.open(
                "configs/tiny.yaml", random_weights=True, device="ref", set=kv | {"parallel.tp": tp}
            ) as m,
            m.session(context=128, seqs=3, chunk=33) as s,
        ):
            q = s.seq()
            for at in range(0, 66, 33):
                s.forward([(q, PROMPTS[0][at : at + 33], 0)])
            f, r = s.fork(q), s.load(s.save(q))
            ends.append([np.array(s.forward([(i, [9], 1)])) for i in (q, f, r)])
    for same in ends:
        assert np.array_equal(same[0], same[1]) and np.array_equal(same[0], same[2])
    assert np.abs(ends[0][0] - ends[1][0]).max() < 0.05 * np.ptp(ends[0][0])
