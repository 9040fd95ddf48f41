"""Models with recurrent state, whose sequences cannot be trimmed at will. Chunks, batches, threads
and forks change no bit; saved sequences include their states; preempted prompts resume exactly;
a prefix is reused only where a snapshot exists; impossible requests are refused with a message."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

import llmc
from bits import rows, whole
from cuda_emu import environment
from golden_run import LLMC, ROOT
from processor import cpu_archs

BEST = cpu_archs()[-1]
COMMON = """llmc: 1
name: states
vocab_size: 320
max_positions: 1024
n_layers: 4
hidden: 64
attention: {n_heads: 4, n_kv_heads: 2, head_dim: 16}
ffn: {width: 96}
text: {bos: 1, eos: [2]}
"""
# a gated delta rule in layers 0 and 3, a selective scan in layer 1; scans in all layers, so that
# there are only states and no KV cache
TEXTS = {
    "kinds": COMMON
    + """family: qwen3_5
linear: {layers: [0, 3], k_heads: 2, v_heads: 6, k_dim: 20, v_dim: 24, taps: 4}
ssm: {layers: [1], heads: 6, dim: 20, groups: 2, state: 24, taps: 3}
rope: {dims: 8}
tensors: {ssm_z+ssm_x+ssm_dt: .a, ssm_conv: .b, ssm_rate: .c, ssm_dt_bias: .d, ssm_skip: .e, ssm_norm: .f, ssm_o: .g}
""",
    "scans": COMMON
    + """family: granitemoehybrid
ssm: {layers: all, heads: 3, dim: 33, groups: 3, state: 17, taps: 3, conv_bias: true, norm_groups: 3}
""",
}
STATE = {
    "kinds": 4
    * (2 * (3 * (2 * 2 * 20 + 6 * 24) + 6 * 20 * 24) + 2 * (6 * 20 + 2 * 2 * 24) + 6 * 24 * 20),
    "scans": 4 * 4 * (2 * (99 + 2 * 3 * 17) + 99 * 17),
}
ALL = pytest.mark.skipif("LLMC_CHECK_ALL" not in os.environ, reason="LLMC_CHECK_ALL is not set")
# a decay per key channel, with latent attention without RoPE and experts
CHANNELS = """llmc: 1
name: channels
family: kimi_linear
vocab_size: 320
max_positions: 1024
n_layers: 4
hidden: 72
attention: {n_heads: 3, kv_rank: 40, nope_dim: 24, rope_dim: 16, v_dim: 20, form: absorbed}
linear: {layers: [0, 1, 3], k_heads: 3, k_dim: 40, decay_rank: 40, gate_rank: 40, taps: 3}
moe: {n_experts: 5, top_k: 2, width: 24, layers: {from: 1}, shared: {width: 24}}
ffn: {width: 96}
text: {bos: 1, eos: [2]}
"""
N = 150
TOK = [int(t) for t in np.random.default_rng(1).integers(3, 320, N)]


@pytest.fixture(scope="module", params=["kinds", pytest.param("scans", marks=ALL)])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def path(kind, tmp_path_factory):
    p = tmp_path_factory.mktemp("states") / "states.yaml"
    p.write_text(TEXTS[kind])
    return p


@pytest.fixture(scope="module")
def model(path):
    with llmc.open(path, random_weights=True, arch=BEST) as m:
        yield m


def test_a_result_depends_on_the_request_alone(model):
    want = whole(model, TOK)
    with model.session(context=N, chunk=N, n_out=N, seqs=3, threads=2) as s:
        q = s.seq()
        assert np.array_equal(np.concatenate([rows(s, [(q, [t], 1)]) for t in TOK]), want), (
            "prefill and decode differ"
        )
        s.free(q)
        q, at, got = s.seq(), 0, []
        for n in (1, 2, 7, 31, 33, 1, N):
            got.append(rows(s, [(q, TOK[at : at + n], len(TOK[at : at + n]))]))
            at += n
            if at == 41:  # a fork continues alone, and the other sequence does not change
                fork = s.fork(q)
                rows(s, [(fork, TOK[:5], 1)])
                s.free(fork)
            if at == 74:
                fork = s.fork(q)
        assert np.array_equal(np.concatenate(got), want), "chunks differ"
        assert np.array_equal(rows(s, [(fork, TOK[74:], N - 74)]), want[74:]), "after a fork"
        # from the start, in the slot of a sequence that had another state
        s.trim(q, 0)
        assert np.array_equal(rows(s, [(q, TOK, N)]), want), "after a trim to nothing"
    for threads in (3, 5):
        with model.session(context=N, chunk=64, n_out=64, threads=threads) as s:
            q = s.seq()
            got = [rows(s, [(q, TOK[i : i + 50], 50)]) for i in range(0, N, 50)]
            assert np.array_equal(np.concatenate(got), want), f"{threads} threads"


def test_batching_changes_nothing(model):
    want = whole(model, TOK)
    with model.session(context=N, chunk=64, n_out=64, seqs=3, threads=2) as s:
        q, at, got = [s.seq() for _ in range(3)], [0, 0, 0], [[], [], []]
        for step in range(400):
            part = []
            for i, n in enumerate(((1, 5, 9), (1, 1, 1), (7, 1, 1))[step % 3]):
                if step >= 2 * i and at[i] < N:
                    part.append((i, TOK[at[i] : at[i] + n]))
            if not part:
                break
            out = rows(s, [(q[i], t, len(t)) for i, t in part])
            for i, t in part:
                got[i].append(out[: len(t)])
                out = out[len(t) :]
                at[i] += len(t)
        for g in got:
            assert np.array_equal(np.concatenate(g), want)


@ALL
def test_channels_that_decay_by_themselves(tmp_path):
    p = tmp_path / "channels.yaml"
    p.write_text(CHANNELS)
    with llmc.open(p, random_weights=True, arch=BEST) as m:
        test_a_result_depends_on_the_request_alone(m)
        test_batching_changes_nothing(m)


def test_saved_and_loaded(model, kind):
    want = whole(model, TOK)
    with model.session(context=N, chunk=N, n_out=N, seqs=2) as s:
        other, q = s.seq(), s.seq()
        rows(s, [(other, TOK[9:20], 1), (q, TOK[:70], 1)])
        data = s.save(q)
        assert len(data) > STATE[kind]
        with model.session(context=N, chunk=N, n_out=N) as t:
            r = t.load(data)
            assert t.length(r) == 70 and np.array_equal(rows(t, [(r, TOK[70:], N - 70)]), want[70:])
        for damaged in (data[:-1], data[:-3] + bytes([data[-3] ^ 1]) + data[-2:]):
            with pytest.raises(llmc.Error, match="damaged or cut short"):
                s.load(damaged)


def test_a_state_cannot_be_cut(model):
    with model.session(context=N, seqs=1) as s:
        q = s.seq()
        rows(s, [(q, TOK[:40], 1)])
        for n in (1, 39):
            with pytest.raises(llmc.Error, match="has a recurrent state"):
                s.trim(q, n)
        s.trim(q, 40)
        assert s.length(q) == 40


def goes_back(s, want):
    """Rejected draft tokens after a mark leave no trace, and another sequence is not affected."""
    q, other = s.seq(), s.seq()
    rows(s, [(q, TOK[:40], 1), (other, TOK[:3], 1)])
    s.mark(q)
    for wrong in ([5, 6, 7], [9]):
        rows(s, [(other, TOK[s.length(other) :][:2], 1), (q, TOK[40:41] + wrong, 1)])
        with pytest.raises(llmc.Error, match="to 0 or to its mark"):
            s.trim(q, 41)
        s.trim(q, 40)
    with pytest.raises(llmc.Error, match="all 1 marks"):
        s.mark(other)
    assert np.array_equal(rows(s, [(q, TOK[40:44], 4)]), want[40:44])
    s.mark(q)  # mark here; the earlier mark is gone
    with pytest.raises(llmc.Error, match="has a recurrent state"):
        s.trim(q, 40)
    fork = s.fork(q)
    rows(s, [(q, [8], 1), (fork, [8], 1)])
    with pytest.raises(llmc.Error, match="has a recurrent state"):
        s.trim(fork, 44)  # a fork does not inherit the mark
    s.trim(q, 44)
    assert np.array_equal(
        rows(s, [(q, TOK[44:50], 6), (other, TOK[7:9], 2)]),
        np.concatenate([want[44:50], want[7:9]]),
    )
    s.unmark(q)
    s.mark(other)
    for x in (q, fork, other):
        s.free(x)


def test_a_sequence_goes_back_to_its_mark(model):
    want = whole(model, TOK)
    with model.session(context=N, chunk=64, n_out=64, seqs=3, marks=1) as s:
        goes_back(s, want)
    with pytest.raises(llmc.Error, match="limit marks is 4"):
        model.session(seqs=3, marks=4)


def test_memory_counts_states(model, path, kind):
    one, four, kept = (
        model.memory(context=64, seqs=n, snapshots=k) for n, k in ((1, 0), (4, 0), (4, 3))
    )
    assert (
        kept["kv_snapshots"] == 4 * 3 * STATE[kind] == kept["kv"] - four["kv"]
        and four["kv_snapshots"] == 0
    )
    assert (
        model.memory(context=64, seqs=4, snapshots=3, marks=2)["kv_snapshots"]
        == (4 * 3 + 2) * STATE[kind]
    )
    assert one["kv_per_seq"] == four["kv_per_seq"] == STATE[kind]
    assert (
        one["kv"] == 2 * 32 * one["kv_per_token"] + STATE[kind]
        and four["kv"] == 4 * one["kv"]
        and (one["kv_per_token"] == 0) == (kind == "scans")
    )
    text = subprocess.run(
        [LLMC, "plan", path, "--random-weights", "--arch", BEST],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pools = (
        (("ssm_conv", 4), ("ssm_state", 4))
        if kind == "scans"
        else (("conv", 2), ("state", 2), ("ssm_conv", 1), ("ssm_state", 1))
    )
    assert re.search(r"snapshots of recurrent states, part of kv: .*, 2 per sequence", text)
    assert re.search(r"recurrent state per sequence, part of kv: ", text) and all(
        re.search(rf"\b{id} .* per sequence: {n} layer", text) for id, n in pools
    )


@pytest.mark.parametrize("name", ["zamba2-plain", "zamba2-adapters"])
def test_layers_that_share_a_block_share_what_is_made_of_it(name, tmp_path):
    """Also stacks of q, k, v and of gate and up: no two tensors of a plan hold the same rows in the
    same order."""
    out = tmp_path / "artifact"
    subprocess.run(
        [
            LLMC,
            "compile",
            os.path.join(ROOT, "tests/golden/models", name),
            "--arch",
            BEST,
            "-o",
            out,
        ],
        check=True,
        capture_output=True,
    )
    plan = json.loads(next(out.glob("plan-*.json")).read_text())
    made = [
        json.dumps([t["layout"], t["rows"], t["cols"], t["src"]], sort_keys=True)
        for t in plan["tensor"]
    ]
    assert len(made) == len(set(made)) and any("shared" in t["id"] for t in plan["tensor"])


# device memory that an engine allocates, and the size that it reported before
TAKEN = """
import os, sys, llmc
def taken():
    with open(os.environ["LLMC_EMU_SHARED"], "rb") as f:
        return int.from_bytes(f.read(8), "little")
limits = dict(context=64, seqs=4, chunk=16, kv_tokens=256, n_out=36)
with llmc.open(sys.argv[1], random_weights=True, device="cuda") as m:
    for kept in (2, 0):
        said, before = m.memory(**limits, snapshots=kept), taken()
        try:
            with m.engine(**limits, no_prefix_cache=kept == 0) as e:
                print(taken() - before, said["kv"] + said["scratch"] + said["state"], said["kv_snapshots"], sep=",")
        except llmc.Error as e:
            print(str(e).replace("\\n", "|"))
"""


def test_an_engine_uses_the_reported_memory(tmp_path):
    """Snapshots of states need memory too: it is reported before anything is allocated, and refused
    if it does not fit."""
    path = tmp_path / "large.yaml"
    path.write_text(
        COMMON.replace("n_layers: 4", "n_layers: 1")
        + """family: mamba2
ssm: {layers: all, heads: 64, dim: 64, groups: 1, state: 128, norm_groups: 1}
"""
    )
    state = 4 * (64 * 64 * 128 + 3 * (64 * 64 + 2 * 128))

    def run(mb):
        env = environment("sm_90a", LLMC_EMU_SHARED=tmp_path / f"used{mb}", LLMC_EMU_MEM_MB=mb)
        p = subprocess.run(
            [sys.executable, "-c", TAKEN, path],
            env=os.environ | env,
            capture_output=True,
            text=True,
        )
        assert p.returncode == 0, p.stderr
        return p.stdout.splitlines()

    def check(line, n):
        took, output, snaps = (int(x) for x in line.split(","))
        assert snaps == 4 * n * state and abs(took - output) <= 0.05 * output, line

    both, few = run(16384), run(52)
    check(both[0], 2), check(both[1], 0), check(few[1], 0)
    assert re.search(
        r"does not fit GPU 0.*; 17\.2 MB of it snapshots of states, none without a prefix cache",
        few[0],
    )


@pytest.mark.parametrize("swap", [0, 1 << 24])
def test_preempted_requests_resume(model, swap):
    """Four choices of a prompt, each a fork with its own state, need more pages than exist. Some
    are preempted and recomputed or swapped back, and all generate the tokens of one alone."""
    params = dict(max_tokens=40, ignore_eos=True, temperature=0)
    with model.session(context=128) as s:
        want = s.run(TOK[:40], **params)["tokens"]
    with model.engine(context=128, seqs=4, chunk=32, kv_tokens=6 * 32, swap_bytes=swap) as e:
        for k in range(2):
            r = e.submit(TOK[:40], n=4, **params)
            output = [[] for _ in range(4)]
            for event in r.events():
                if event.kind != "prompt" and event.token >= 0:
                    output[event.index].append(event.token)
            assert output == [want] * 4
        stats = e.stats()
        assert stats["preemptions"] > 0


def test_prefixes_end_where_a_state_was_saved(model):
    """A conversation resumes after the last page boundary of the prompt or of the answer. Prompts
    that only share a prefix find only boundaries with a snapshot. The answers equal those
    without a cache."""
    params = dict(max_tokens=40, ignore_eos=True, temperature=0)

    def send_request(e, prompt):
        events = [x for x in e.submit(prompt, **params).events()]
        return [x.token for x in events if x.token >= 0], events[-1].n_cached

    with model.engine(context=1024, seqs=4, chunk=64, no_prefix_cache=True) as e:

        def alone(p):
            return send_request(e, p)[0]

        with model.engine(context=1024, seqs=4, chunk=64) as c:
            first, second = TOK[:100], TOK[50:90]
            a, found = send_request(c, first)
            assert a == alone(first) and found == 0
            # the same prompt: found up to the page boundary before its last token
            b, found = send_request(c, first)
            assert b == a and found == 96
            going_on = (
                first + a + second
            )  # 140 positions, 139 of them computed: 128 is a page boundary
            d, found = send_request(c, going_on)
            assert d == alone(going_on) and found == 128
            other = (
                first[:70] + second
            )  # 64 positions have the same pages, but no state was saved at their end
            f, found = send_request(c, other)
            assert f == alone(other) and found == 0
            g, found = send_request(c, first + second)  # like withdrawing the last answer
            assert g == alone(first + second) and found == 96
            exact = first[:96]
            h, found = send_request(c, exact)  # at least one token is computed
            assert h == alone(exact) and found <= 64


@ALL
def test_on_an_emulated_gpu(path, monkeypatch):
    """Recurrent states on a device: forks, saved sequences, snapshots."""
    for k, v in environment("sm_90a").items():
        monkeypatch.setenv(k, v)
    params = dict(max_tokens=40, ignore_eos=True, temperature=0)
    with llmc.open(
        path,
        random_weights=True,
        device="cuda",
        set={"dtype": "f32", "deterministic": "true", "storage.default": "f32"},
    ) as m:
        with m.session(context=256, seqs=3) as s:
            q = s.seq()
            rows(s, [(q, TOK[:50], 1)])
            fork = s.fork(q)
            assert np.array_equal(rows(s, [(q, TOK[50:60], 1)]), rows(s, [(fork, TOK[50:60], 1)]))
            loaded = s.load(s.save(q))
            assert np.array_equal(rows(s, [(q, TOK[60:61], 1)]), rows(s, [(loaded, TOK[60:61], 1)]))
        with m.session(context=256, seqs=3, chunk=64, n_out=64, marks=1) as s:
            q = s.seq()
            want = np.concatenate([rows(s, [(q, [t], 1)]) for t in TOK[:60]])
            s.free(q)
            goes_back(s, want)
        with (
            m.engine(context=256, seqs=4, chunk=64, no_prefix_cache=True) as plain,
            m.engine(context=256, seqs=4, chunk=64) as e,
        ):
            for prompt, found in ((TOK[:100], 0), (TOK[:100], 96), (TOK[:120], 96)):
                want, events = (
                    list(plain.submit(prompt, **params).events()),
                    list(e.submit(prompt, **params).events()),
                )
                assert [x.token for x in events] == [x.token for x in want] and events[
                    -1
                ].n_cached == found


@pytest.mark.parametrize(
    "tp,pp,order",
    [(2, 1, "grouped"), (2, 1, "tiled"), (3, 1, "tiled"), (1, 2, "grouped"), (2, 2, "tiled")],
)
def test_over_ranks(path, tp, pp, order):
    """Value heads are split with their key heads, which two ranks may share. A stage may have no
    pages or no states. Forks, saved sequences, swaps and snapshots include the states of all
    ranks."""
    heads = [
        "linear.order=" + order,
        *(["attention.n_kv_heads=1", "attention.n_heads=6"] if tp == 3 else []),
    ]
    ranks = [f"parallel.tp={tp}", f"parallel.pp={pp}"]
    params = dict(max_tokens=16, ignore_eos=True, temperature=0)
    with llmc.open(path, random_weights=True, device="ref", set=heads) as one:
        first = whole(one, TOK)
    with llmc.open(path, random_weights=True, device="ref", set=heads + ranks) as m:
        want = whole(m, TOK)
        assert (
            np.array_equal(want, first)
            if tp == 1
            else np.allclose(want.view(np.float32), first.view(np.float32), atol=2e-5)
        )
        with m.session(context=N, chunk=64, n_out=64, seqs=3, threads=2, marks=1) as s:
            goes_back(s, want)
            q, other = s.seq(), s.seq()
            rows(s, [(other, TOK[9:20], 1), (q, TOK[:41], 1)])
            fork = s.fork(q)
            rows(s, [(q, [7], 1)])
            data = s.save(fork)
            assert np.array_equal(rows(s, [(fork, TOK[41:105], 64)]), want[41:105])
            s.free(q)
            with m.session(context=N, chunk=N, n_out=N) if tp == 1 else s as t:
                r = t.load(data)
                assert np.array_equal(rows(t, [(r, TOK[41:105], 64)]), want[41:105])
        with m.engine(context=256, seqs=4, chunk=64, no_prefix_cache=True) as plain:
            alone = [
                [x.token for x in plain.submit(p, **params).events()]
                for p in (TOK[:100], TOK[:100] + TOK[3:30])
            ]
        with m.engine(context=256, seqs=4, chunk=64) as e:
            for k, found in ((0, 0), (0, 96), (1, 96)):
                events = list(e.submit((TOK[:100], TOK[:100] + TOK[3:30])[k], **params).events())
                assert [x.token for x in events] == alone[k] and events[-1].n_cached == found
        with m.engine(
            context=128,
            seqs=4,
            chunk=32,
            kv_tokens=5 * 32,
            swap_bytes=1 << 24,
            no_prefix_cache=True,
        ) as e:
            output = [[] for _ in range(4)]
            for x in e.submit(TOK[:40], n=4, **params | {"max_tokens": 30}).events():
                if x.kind != "prompt" and x.token >= 0:
                    output[x.index].append(x.token)
            assert all(t == output[0] for t in output) and e.stats()["preemptions"] > 0


REFUSED = (  # settings, and words of the message
    (["attention.mask=prefix"], "causal, mask prefix is not"),
    (["parallel.tp=4"], r"the 6 value heads of a delta rule are split by 3 \(2 key heads"),
    (["parallel.pp=2", "linear.layers=[2]", "ssm.layers=[3]"], "the first stage"),
    (["linear.v_heads=5"], "not a multiple of linear.k_heads"),
    (["linear.k_dim=0"], "linear.k_dim is missing"),
    (["ssm.layers=[0]"], "layer 0 is in ssm.layers and in linear.layers"),
    (["ssm.groups=4"], "ssm.groups = 4 does not divide ssm.heads = 6"),
    (["ssm.state=0"], "ssm.state is missing: 1 layers have a selective scan"),
    (["ssm.norm_groups=7"], "does not divide ssm.heads . ssm.dim = 120"),
    (["ssm.dt_max=0.1", "ssm.dt_min=0.2"], "is not above ssm.dt_min = 0.2"),
    (["ssm.norm=norm_first", "ssm.norm_groups=2"], "norm_first: this norm covers the whole row"),
    (["attention.layers=[2]"], "layer 0 is in linear.layers and not in attention.layers"),
    (["ffn.layers=[0, 1]", "attention.layers=[0, 1, 3]"], "layer 2 is neither in"),
    (["residual.form=parallel", "ffn.layers=[0, 1]"], "residual.form = parallel needs two"),
    (["shared.layers=[2]"], "layer 2 is in shared.layers: a shared block needs a selective scan"),
    (["shared.layers=[1]", "shared.blocks=2"], "more than the 1 layers of shared.layers"),
    (["ssm.dt_rank=4"], "ssm.heads = 6: with ssm.dt_rank there is one"),
    (
        ["ssm.dt_rank=4", "ssm.heads=1", "ssm.groups=2"],
        "ssm.groups is for scans with one rate per head",
    ),
    (
        ["linear.layers=none", "ssm.layers=none", "shared.layers=[1]"],
        "layer 1 is in shared.layers: a shared block needs a selective scan",
    ),
    (["ssm.low_norm=unit"], "ssm.low_norm needs ssm.dt_rank"),
    (
        ["linear.layers=[0]", "shared.layers=[1]", "attention.qk_norm=head"],
        "not supported in shared blocks",
    ),
    (
        [
            "attention.kv_shared=2",
            "linear.layers=[0]",
            "ssm.layers=[1]",
            "attention.layers=[0, 1, 3]",
        ],
        "no earlier layer is an attention layer",
    ),
)


def test_refused(path, kind):
    """Value heads of one key head stay together, the first stage manages the states, and the
    description is checked."""
    for arg, words in REFUSED[:1] if kind == "scans" else REFUSED:
        args = [x for a in arg for x in ("--set", a)]
        p = subprocess.run(
            [LLMC, "compile", path, "-o", path.parent / "out", *args],
            capture_output=True,
            text=True,
        )
        assert p.returncode != 0 and re.search(words, p.stderr), (
            f"{args}: {p.returncode} {p.stderr}"
        )
