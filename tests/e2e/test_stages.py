"""Pipeline stages (parallel.pp): the same bits as one rank, for every family, in any batch and chunk, by
threads and by MPI; every family against torch's logits as well. Stages that are split over ranks
(parallel.tp) have the same bits as the ranks without stages."""

import json
import os
import re

import numpy as np
import pytest

import llmc
from bits import rows, whole
from golden_run import Refused, check, run, weights
from processor import cpu_archs
from test_mpi import mpi  # noqa: F401 (a fixture)

BEST = cpu_archs()[-1]
ALL = os.environ.get("LLMC_CHECK_ALL")
CASES = weights.cases()
ONE_EACH = {}
for case in CASES:
    ONE_EACH.setdefault(case.split("-")[0], case)
MODEL = """llmc: 1
name: stages
family: gemma2
vocab_size: 323
max_positions: 1024
n_layers: 5
hidden: 96
attention: {n_heads: 6, n_kv_heads: 3, head_dim: 16, window: 23}
ffn: {width: 160}
text: {bos: 1, eos: [2]}
"""
N = 150
TOK = [int(t) for t in np.random.default_rng(1).integers(3, 323, N)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("stages") / "m.yaml"
    path.write_text(MODEL)
    return path


@pytest.mark.parametrize("name", CASES if ALL else ONE_EACH.values())
def test_every_family_over_stages(name, tmp_path):
    """One stage per layer, at most 3: torch's logits, and the same bits as one rank."""
    g = weights.Golden(name)
    g.build(tmp_path)
    one = run(tmp_path, g, "--device", "ref", "--threads", "1")
    for stages in (3, 2):
        try:
            logits, tokens = run(
                tmp_path, g, "--pp", str(stages), "--device", "ref", "--threads", "1"
            )
            break
        except Refused as e:
            if re.search(
                r"layers of this model read outputs of other layers .* run on one rank|layers that share a block",
                str(e),
            ):
                return
            assert (
                re.search("more stages than the 2 layers|another number of stages", str(e))
                and stages == 3
                or "the first stage, which manages the sequences" in str(e)
            ), e
    else:
        return
    check(g, logits, tokens)
    assert np.array_equal(logits.view(np.uint32), one[0].view(np.uint32)) and tokens == one[1]


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", CASES if ALL else ONE_EACH.values())
def test_every_family_over_split_stages(name, tmp_path):
    """Two stages of three ranks, or of two, equal as many ranks without stages, to the bit."""
    g = weights.Golden(name)
    g.build(tmp_path)
    for ranks in ("3", "2"):
        try:
            one = run(tmp_path, g, "--tp", ranks, "--device", "ref", "--threads", "1")
            logits, tokens = run(
                tmp_path, g, "--tp", ranks, "--pp", "2", "--device", "ref", "--threads", "1"
            )
        except Refused as e:
            assert re.search(r"parallel\.[tp]p( = \d|:)", str(e)), e
            continue
        assert np.array_equal(logits.view(np.uint32), one[0].view(np.uint32)) and tokens == one[1]
        return


@pytest.mark.parametrize(
    "device,tp",
    [({"device": "ref"}, 1), ({"arch": BEST}, 1), ({"device": "ref"}, 3)],
    ids=["ref", BEST, "ref-tp3"],
)
def test_stages_have_the_bits_of_one_rank(path, device, tp):
    """Prompts are prefilled in chunks, and several chunks of one sequence are in flight."""
    ranks = [f"parallel.tp={tp}"] if tp > 1 else []
    with llmc.open(path, random_weights=True, set=ranks, **device) as m:
        want = whole(m, TOK)
    with llmc.open(
        path,
        random_weights=True,
        set=["parallel.pp=3" if tp == 1 else "parallel.pp=2", *ranks],
        **device,
    ) as m:
        assert np.array_equal(whole(m, TOK), want)
        with m.session(context=N, chunk=N, n_out=N, seqs=3, threads=1) as s:
            q = s.seq()
            assert np.array_equal(
                np.concatenate([rows(s, [(q, [t], 1)]) for t in TOK[:20]]), want[:20]
            )
            rows(s, [(q, TOK[20:45], 1)])
            b = s.fork(q)
            rows(s, [(b, [9, 9, 9, 9], 1)])
            kept = s.save(q)
            # other sequences in the step, before and after, and logits of only its last rows
            other = s.seq()
            got = rows(s, [(b, [7], 1), (q, TOK[45:120], 40), (other, TOK[:50], 3)])
            assert np.array_equal(got[1:41], want[80:120]) and np.array_equal(got[41:], want[47:50])
            s.free(b)
            s.trim(q, 60)
            assert np.array_equal(rows(s, [(q, TOK[60:], N - 60)]), want[60:])
            s.free(q)
            q = s.load(kept)
            assert np.array_equal(rows(s, [(q, TOK[45:], N - 45)]), want[45:])


@pytest.mark.parametrize("layers", ["[2, 3]", "[0]"])
def test_windows_of_one_stage_alone(layers, tmp_path, llmc):
    """The first stage numbers window pages for all stages, whichever has windowed layers. Few pages
    are used, and they are reused."""
    path = tmp_path / "m.yaml"
    path.write_text(
        MODEL.replace("gemma2", "llama")
        .replace("n_layers: 5", "n_layers: 4")
        .replace("window: 23", f"window: 40, window_layers: {layers}")
    )
    limits = dict(context=300, chunk=32, n_out=32, seqs=1, threads=1)
    tok, bits, kv = TOK + TOK[:130], [], []
    for pp in (1, 2):
        with llmc_of(path, pp) as m, m.session(**limits) as s:
            q = s.seq()
            got = [rows(s, [(q, tok[i : i + 32], len(tok[i : i + 32]))]) for i in range(0, 280, 32)]
            kept = s.save(q)
            s.trim(q, 270)
            got.append(rows(s, [(q, tok[270:275], 5)]))
            s.free(q)
            got.append(rows(s, [(s.load(kept), [7], 1)]))
            bits.append(np.concatenate(got))
        llmc(
            "plan",
            path,
            "--device",
            "ref",
            "--pp",
            str(pp),
            "--json",
            "-c",
            "300",
            "--seqs",
            "1",
            "--chunk",
            "32",
        )
        output = json.loads(llmc.out)
        assert pp > 1 or output["memory"]["kv_saved"] > 0
        kv.append(sum(r["kv"] for r in output["ranks"]) if pp > 1 else output["memory"]["kv"])
    assert np.array_equal(*bits)
    assert kv[0] == kv[1]


def llmc_of(path, stages):
    return llmc.open(
        path, random_weights=True, device="ref", set=[f"parallel.pp={stages}"] if stages > 1 else []
    )


def test_requests_at_once_are_as_alone(path):
    prompts = [TOK[i : i + 5 + 9 * i] for i in range(12)]
    with llmc.open(path, random_weights=True, device="ref") as m, m.engine(seqs=1, context=N) as e:
        alone = [e.submit(p, max_tokens=12, ignore_eos=True).wait()["tokens"] for p in prompts]
    with (
        llmc.open(path, random_weights=True, device="ref", set=["parallel.pp=2"]) as m,
        m.engine(seqs=5, context=N) as e,
    ):
        requests = [e.submit(p, max_tokens=12, ignore_eos=True) for p in prompts]
        assert [r.wait()["tokens"] for r in requests] == alone


def test_what_stages_refuse(path, llmc):
    for code, args, says in [
        (1, ("--pp", "6"), "parallel.pp = 6: more stages than the 5 layers"),
        (1, ("--pp", "1024", "--tp", "3"), "with parallel.tp = 3 that is more than 1024 ranks"),
    ]:
        llmc(
            "run",
            path,
            "--random-weights",
            "--device",
            "ref",
            "--tokens",
            "5,6",
            "-n",
            "1",
            *args,
            code=code,
        )
        assert says in llmc.err, llmc.err


def test_an_artifact_has_a_plan_for_each_stage(path, tmp_path, llmc):
    llmc("compile", path, "-o", tmp_path / "out", "--arch", "v3", "--pp", "2")
    assert {f for f in os.listdir(tmp_path / "out") if f.endswith(".json")} == {
        f"plan-cpu-v3-r{k}of2.json" for k in range(2)
    }
    first, last = (
        json.loads((tmp_path / "out" / f"plan-cpu-v3-r{k}of2.json").read_text()) for k in range(2)
    )
    assert (first["stage"], last["stage"], first["stages"]) == (0, 1, 2)
    layers = [
        sorted({s["layer"] for s in p["phase"][0]["step"] if s["layer"] >= 0})
        for p in (first, last)
    ]
    assert layers == [[0, 1, 2], [3, 4]]
    # 5 layers of two alternating pools: each stage has pages of its own layers
    assert [sum(p["n_layers"] for p in plan["pool"]) for plan in (first, last)] == [3, 2]


def test_stages_that_mpirun_starts(mpi, path, tmp_path, llmc):  # noqa: F811
    args = (
        "run",
        path,
        "--random-weights",
        "--device",
        "ref",
        "--tokens",
        ",".join(map(str, TOK[:80])),
        "-n",
        "12",
        "--ignore-eos",
        "--json",
        "-q",
    )
    llmc(*args, "--logits", tmp_path / "want.npy")
    want, tokens = (tmp_path / "want.npy").read_bytes(), json.loads(llmc.out)["tokens"]
    for way in ("memory", "mpi"):
        out, _ = mpi(
            3, *args, "--pp", "3", "--logits", tmp_path / "have.npy", env={"LLMC_COMM": way}
        )
        assert json.loads(out)["tokens"] == tokens
        assert (tmp_path / "have.npy").read_bytes() == want, way
    _, err = mpi(3, *args, "--pp", "2", code=1)
    assert re.search(r"the launcher started 3 ranks, parallel\.tp x parallel\.pp is 1 x 2", err), (
        err
    )


def test_split_stages_that_mpirun_starts(mpi, path, tmp_path, llmc):  # noqa: F811
    """Two stages of two ranks; the number of processes determines the ranks per stage."""
    args = (
        "run",
        path,
        "--random-weights",
        "--device",
        "ref",
        "--tokens",
        ",".join(map(str, TOK[:80])),
        "-n",
        "12",
        "--ignore-eos",
        "--json",
        "-q",
    )
    llmc(*args, "--tp", "2", "--logits", tmp_path / "want.npy")
    want, tokens = (tmp_path / "want.npy").read_bytes(), json.loads(llmc.out)["tokens"]
    for way in ("memory", "mpi"):
        out, _ = mpi(
            4, *args, "--pp", "2", "--logits", tmp_path / "have.npy", env={"LLMC_COMM": way}
        )
        assert json.loads(out)["tokens"] == tokens
        assert (tmp_path / "have.npy").read_bytes() == want, way
    # a plan on the last rank that differs from that of its stage, or from all others
    llmc(
        "compile",
        path,
        "-o",
        tmp_path / "out",
        "--target",
        "ref",
        "--tp",
        "2",
        "--pp",
        "2",
        "--set",
        "kv.dtype=f32",
    )
    plan = tmp_path / "out" / "plan-ref-r3of4.json"
    text = plan.read_text()
    for was, lie, lead in (
        (r'("op":"all_reduce".{0,200}?"scale":)1\.0', r"\g<1>0.5", 2),
        (r'("stages":2,"window":)23(.*?"keep":)23\b', r"\g<1>24\g<2>24", 0),
    ):
        plan.write_text(re.sub(was, lie, text, count=1, flags=re.S))
        assert plan.read_text() != text
        _, err = mpi(4, "run", tmp_path / "out", *args[2:], "--pp", "2", code=1)
        assert re.search(rf"rank 3 \(host \S+\) has another plan than rank {lead} ", err), (
            was,
            err,
        )
