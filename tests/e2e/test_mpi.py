"""Ranks started by mpirun, with both MPI libraries: the same bits as with threads, over shared
memory and over MPI; refusals at start; a rank that dies or hangs."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest

from cuda_emu import environment
from test_adapters import LORA, config, weights
from test_ranks import ALL, MODELS
from waiting import HANG, SLOW, wait_for

LLMC = os.environ.get("LLMC", "build/llmc")
STILL = max(5, round(5 * SLOW))  # seconds after which ranks report a stopped rank as lost
TOK = ",".join(str(5 + 11 * i % 300) for i in range(40))


class Mpi:
    def __init__(self, kind, folder):
        self.kind, self.run = kind, os.path.join(folder, "bin", "mpirun")
        self.env = dict(
            os.environ,
            LD_LIBRARY_PATH=os.path.join(folder, "lib"),
            LLMC_PIN="0",
            LLMC_COMM_TIMEOUT=f"{HANG:.0f}",
        )
        # containers run it as root; it is not installed where it was built for
        if kind == "openmpi":
            self.env |= dict(
                OMPI_ALLOW_RUN_AS_ROOT="1",
                OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OPAL_PREFIX=folder,
                OMPI_MCA_osc="sm",
            )
        self.options = ["--oversubscribe", "--bind-to", "none"] if kind == "openmpi" else []

    def start(self, ranks, *args, env=(), **more):
        cmd = [self.run, *self.options, "-n", str(ranks), LLMC, *map(str, args)]
        return subprocess.Popen(
            cmd,
            env=self.env | dict(env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def __call__(self, ranks, *args, code=0, env=(), timeout=HANG):
        p = self.start(ranks, *args, env=env)
        try:
            out, err = p.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            p.kill()
            pytest.fail(f"{self.kind}: nothing for {timeout} s: {p.communicate()}")
        assert code is None or (p.returncode == 0) == (code == 0), (p.returncode, out, err)
        return out, err


@pytest.fixture(scope="module", params=["mpich", "openmpi"])
def mpi(request):
    p = subprocess.run(["tools/mpi.sh", request.param], capture_output=True, text=True)
    if p.returncode:
        pytest.skip(f"no {request.param}: {p.stderr.strip()[-200:]}")
    return Mpi(request.param, p.stdout.strip())


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("mpi") / "m.yaml"
    path.write_text(MODELS["llama"])
    return str(path)


def common(model):
    return (
        "run",
        model,
        "--random-weights",
        "--device",
        "ref",
        "--tokens",
        TOK,
        "-n",
        "12",
        "--ignore-eos",
        "--json",
        "-q",
    )


def test_bits_are_those_of_threads(mpi, model, llmc, tmp_path):
    for ranks in (2, 3):
        llmc(*common(model), "--tp", ranks, "--logits", tmp_path / "want.npy")
        want, tokens = (tmp_path / "want.npy").read_bytes(), json.loads(llmc.out)["tokens"]
        for way in ("memory", "mpi"):
            out, _ = mpi(
                ranks,
                *common(model),
                "--logits",
                tmp_path / "have.npy",
                "--chunk",
                "7",
                env={"LLMC_COMM": way},
            )
            assert json.loads(out)["tokens"] == tokens  # one document, from rank 0
            assert (tmp_path / "have.npy").read_bytes() == want, (ranks, way)


def test_start_up_compares_ranks(mpi, model, llmc, tmp_path):
    _, err = mpi(2, *common(model), "--tp", "3", code=1)
    assert "the launcher started 2 ranks, parallel.tp is 3" in err
    _, err = mpi(1, *common(model), ":", "-n", "1", LLMC, *common(model), "--kv", "f16", code=1)
    assert "rank 1" in err and "has another description than rank 0" in err
    llmc(
        "compile",
        model,
        "-o",
        tmp_path / "out",
        "--target",
        "ref",
        "--tp",
        "2",
        "--set",
        "kv.dtype=f32",
    )
    plan = tmp_path / "out" / "plan-ref-r1of2.json"
    plan.write_text(re.sub(r'("keep":)23\b', r"\g<1>24", text := plan.read_text()))
    assert plan.read_text() != text
    _, err = mpi(2, *common(tmp_path / "out"), code=1)
    assert "rank 1" in err and "has another plan than rank 0" in err
    _, err = mpi(2, *common(model), code=1, env={"LLMC_MPI": "/nowhere/libmpi.so"})
    assert "/nowhere/libmpi.so cannot be opened" in err


def on_gpus(model):
    return (
        "run",
        model,
        "--random-weights",
        "--device",
        "cuda",
        "--arch",
        "sm_75",
        "--tokens",
        TOK,
        "-n",
        "4",
        "--ignore-eos",
        "--json",
        "-q",
        "--set",
        "deterministic=true",
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("ranks, args", [(3, ()), (2, ("--pp", "2")), (4, ("--pp", "2"))])
def test_processes_have_a_gpu_each(mpi, model, ranks, args, tmp_path):
    """One GPU per process, connected by NCCL, host memory or MPI: the same bits as threads with one GPU
    each, in mixed steps and in graphs."""
    env = environment(mode="check" if ALL else "fast", seed=ranks, LLMC_EMU_DEVICES=ranks)
    team = ("--tp", str(ranks // 2 if args else ranks))
    p = subprocess.run(
        [LLMC, *on_gpus(model), *team, *args, "--logits", tmp_path / "want.npy"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert p.returncode == 0, p.stderr
    for way, nccl in ("memory", "always"), ("memory", "never"), ("mpi", "never"):
        if args and ranks == 2 and nccl == "always":
            continue  # stages of one rank
        out, err = mpi(
            ranks,
            *on_gpus(model),
            *args,
            "--logits",
            tmp_path / "have.npy",
            "--chunk",
            "7",
            env=env | {"LLMC_COMM": way, "LLMC_NCCL": nccl},
        )
        assert json.loads(out)["tokens"] == json.loads(p.stdout)["tokens"] and "NCCL" not in err
        assert (tmp_path / "have.npy").read_bytes() == (tmp_path / "want.npy").read_bytes(), way


@pytest.mark.sample(1)
def test_processes_without_nccl(mpi, model):
    """One process lacks NCCL, or NCCL cannot connect: all use host memory and report that once. If
    NCCL is required, it is an error."""
    env = environment(LLMC_EMU_DEVICES=2, LLMC_NCCL="auto")
    args = [a for a in on_gpus(model) if a != "-q"]
    fails = {"LLMC_EMU_FAIL": "ncclCommInitRankConfig@1:2"}

    def refusal(*second, **kw):
        return mpi(1, *args, ":", "-n", "1", "env", *second, LLMC, *args, **kw)[1]

    err = refusal(env=env | fails)
    assert (
        len(
            re.findall(
                r"communicate through host memory, without NCCL: (?:rank 1 \(host \S+\): )?connecting ranks: NCCL",
                err,
            )
        )
        == 1
    ), err
    assert re.search(
        r'without NCCL: rank 1 \(host \S+\): LLMC_NCCL is "never"',
        err := refusal("LLMC_NCCL=never", env=env),
    ), err
    assert "connecting ranks: NCCL" in refusal("LLMC_NCCL=always", env=env | fails, code=1)
    if ALL:  # the other rank waits for it as for any other
        err = refusal(
            "LLMC_EMU_FAIL=ncclCommInitRankConfig@1:2",
            env=env | {"LLMC_COMM_TIMEOUT": f"{20 * SLOW:.0f}"},
        )
        assert "without NCCL: connecting ranks: NCCL" in err, err


@pytest.mark.sample(1)
@pytest.mark.parametrize("nccl", ["never", "always"])
def test_a_gpu_of_a_process_that_fails_ends_the_job(mpi, model, nccl):
    """The other ranks wait for it in host functions of their GPUs, or in an NCCL all-gather."""
    env = environment(LLMC_EMU_DEVICES=3, LLMC_NCCL=nccl)
    mpi(
        1,
        *on_gpus(model),
        ":",
        "-n",
        "1",
        "env",
        "LLMC_EMU_FAIL=cuGraphLaunch@2:719",
        LLMC,
        *on_gpus(model),
        ":",
        "-n",
        "1",
        LLMC,
        *on_gpus(model),
        code=1,
        env=env,
    )
    if nccl == "never":
        mpi(
            2,
            *on_gpus(model),
            "--pp",
            "2",
            code=1,
            env=env | {"LLMC_EMU_FAIL": "cuGraphLaunch@2:719"},
        )  # stages have no all-reduces between them


def send_request(port, path, body=None, timeout=HANG):
    data = json.dumps(body).encode() if body else None
    r = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(r, timeout=timeout).read().decode()


def serve(mpi, model, *args, ranks=3, env=()):
    p = mpi.start(
        ranks,
        "serve",
        model,
        "--random-weights",
        "--device",
        "ref",
        "--port",
        "0",
        "--seqs",
        "4",
        *args,
        env=env,
        start_new_session=True,
    )
    p.model = model
    for line in p.stdout:
        url = re.search(r"http://[0-9.]+:(\d+)", line)
        if url:
            assert send_request(url[1], "/health") is not None
            return p, url[1]
    pytest.fail(f"the server does not start: {p.communicate()}")


def processes_of(p):
    """Return the ranks: processes below mpirun that run llmc."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            cmd = open(f"/proc/{pid}/cmdline").read().split("\0")
            env = open(f"/proc/{pid}/environ").read()
        except OSError:
            continue
        rank = re.search(r"\0(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", "\0" + env)
        if rank and cmd[0].endswith("llmc") and "serve" in cmd and p.model in cmd:
            found.append((int(rank[1]), int(pid)))
    return dict(found)


def end(p):
    """Kill the processes that are left."""
    for pid in processes_of(p).values():
        with contextlib.suppress(ProcessLookupError):  # its launcher may have killed it first
            os.kill(pid, signal.SIGKILL)
    if p.poll() is None:
        os.killpg(p.pid, signal.SIGKILL)
    p.wait()


def begin_request(port, when):
    """Open a connection whose request is in prefill, or has a short prompt and decodes
    (approximately); idle: no request."""
    if when == "idle":
        return None
    c = http.client.HTTPConnection("127.0.0.1", int(port), timeout=HANG)
    body = {
        "prompt": [5 + i % 300 for i in range(900 if when == "prompt" else 3)],
        "max_tokens": 900 if when == "decode" else 1,
        "ignore_eos": True,
    }
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    while (
        json.loads(send_request(port, "/status.json"))["batch"]["running"] == 0
        and not select.select([c.sock], [], [], 0.01)[0]
    ):
        pass
    return c


def fails_until_it_ends(port):
    """Check that /health of a server that has lost a rank turns to 503 and stays so until the
    server ends."""
    health = []

    def ended():
        try:
            health.append(send_request(port, "/health") is not None)
        except urllib.error.HTTPError as e:
            assert e.code == 503
            health.append(False)
        except (OSError, http.client.HTTPException):
            return True
        return False

    wait_for(ended, every=0.05, what="the end of a server that has lost a rank")
    assert health == sorted(health, reverse=True), "well again"


def names_the_lost(log, rank, ranks, host):
    """True if the log names the lost rank and its operation."""
    return re.search(
        rf"rank {rank} of {ranks} \(host {host}\) is lost: no answer for {STILL} s (in step \d+, (layer \d+, )?\w+|after step \d+|before the first step)\n",
        log.read_text(),
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize("way", ["memory", "mpi"])
@pytest.mark.parametrize("sig", ["KILL", "STOP"])
@pytest.mark.parametrize("when", ["decode", "prompt", "idle"])
@pytest.mark.parametrize("stages, lost", [(1, 2), (2, 3), (2, 1), (2, 0)])
def test_a_lost_rank_ends_all(mpi, model, tmp_path, stages, lost, when, sig, way):
    """A killed rank: the launcher ends the job. A stopped one, as on a host that hangs: the others
    miss it after LLMC_COMM_TIMEOUT, even when idle. Running requests and /health fail, rank 0
    names the rank and its operation, and the job ends. Ranks of one stage, and two stages of
    two; over shared memory and over MPI. The progress of the request is not checked, as it
    depends on the machine."""
    ranks, log = stages * 2 if stages > 1 else 3, tmp_path / "log"
    p, port = serve(
        mpi,
        model,
        "--pp",
        stages,
        "--log-file",
        log,
        ranks=ranks,
        env={"LLMC_COMM_TIMEOUT": str(STILL), "LLMC_COMM": way},
    )
    try:
        pids = processes_of(p)
        assert set(pids) == set(range(ranks))
        assert "choices" in send_request(
            port, "/v1/completions", {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
        )
        c = begin_request(port, when)
        os.kill(pids[lost], getattr(signal, f"SIG{sig}"))
        if lost:
            fails_until_it_ends(port)
        p.communicate(timeout=HANG)
        assert p.returncode != 0
        if c:
            c.close()
        # Open MPI's launcher takes a stopped process for a dead one and ends the job before the
        # timeout
        if sig == "STOP" and mpi.kind == "mpich" and lost:
            assert names_the_lost(log, lost, ranks, r"\S+")
    finally:
        end(p)


def test_a_rank_that_dies_while_it_loads(mpi, model):
    """It dies before it has connected to the others, so they do not wait for it."""
    p = mpi.start(
        3,
        "serve",
        model,
        "--random-weights",
        "--device",
        "ref",
        "--port",
        "0",
        start_new_session=True,
    )
    p.model = model
    try:

        def pid():
            assert p.poll() is None
            return processes_of(p).get(1)

        os.kill(wait_for(pid, every=0.001), signal.SIGKILL)
        out, _ = p.communicate(timeout=HANG)
        assert p.returncode != 0 and "http://" not in out
    finally:
        end(p)


def test_many_clients_of_a_server_over_ranks(mpi, model):
    """64 clients, more than sequences: each gets the answer that it gets alone."""
    bodies = [
        {
            "prompt": [5 + (7 * i + k) % 300 for k in range(1 + i % 40)],
            "max_tokens": 4,
            "ignore_eos": True,
            "temperature": i % 2,
            "seed": i,
            "logprobs": 1,
        }
        for i in range(64)
    ]
    p, port = serve(mpi, model)
    try:

        def answer(body):
            return json.loads(send_request(port, "/v1/completions", body))["choices"][0][
                "logprobs"
            ]["token_logprobs"]

        alone = [answer(b) for b in bodies[::4]]
        with concurrent.futures.ThreadPoolExecutor(64) as clients:
            together = list(clients.map(answer, bodies))
        assert together[::4] == alone and len(set(map(tuple, together))) > 16
    finally:
        end(p)


def test_a_server_over_ranks_ends_in_order(mpi, model):
    p, port = serve(mpi, model)
    try:
        ranks = processes_of(p)
        want = send_request(port, "/v1/completions", {"prompt": [9, 8, 7, 6], "max_tokens": 8})
        assert json.loads(want)["usage"]["completion_tokens"] >= 1
        os.kill(ranks[0], signal.SIGTERM)
        p.communicate(timeout=HANG)
        assert p.returncode == 0
    finally:
        end(p)


ADAPTERS = """
import json, sys, llmc
import numpy as np
folder, out, first, second, ids, settings = *sys.argv[1:5], json.loads(sys.argv[5]), json.loads(sys.argv[6])
with llmc.Model(folder, device="ref", set=["adapters.slots=2", "adapters.rank=8", "kv.dtype=f32", *settings]) as m:
    if m.info["rank"]:
        m.follow()
        sys.exit()
    made = []
    for again in range(2):  # what slots hold outlives a session
        a, b = (m.load_adapter(x) for x in (first, second)) if not again else (a, b)
        with m.session(context=64, chunk=128, n_out=128, seqs=4) as s:
            seqs = [s.seq(adapter=x) for x in (a, 0, b)]
            made += [s.forward([(q, ids[:-1], len(ids) - 1) for q in seqs]), s.forward([(q, ids[-1:], 1) for q in seqs])]
            if again:  # another adapter in the first one's slot, while the other sequences stay
                s.free(seqs[0])
                m.unload_adapter(a)
                try:
                    m.load_adapter(sys.argv[7])
                except llmc.Error as e:
                    assert "another model" in str(e) or "has no slot" in str(e), e
                made.append(s.forward([(s.seq(adapter=m.load_adapter(second)), ids, len(ids)), (seqs[2], ids[:1], 1)]))
    np.savez(out, *map(np.array, made))
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "case,other,settings",
    [
        ("qwen2-moe-experts", "qwen2-moe-down", ["adapters.expert_rank=3", "parallel.tp=3"]),
        ("llama-all", "llama-some", ["parallel.pp=2"]),
        (
            "qwen2-moe-experts",
            "qwen2-moe-down",
            ["adapters.expert_rank=3", "parallel.tp=4", "parallel.experts=whole"],
        ),
        ("llama-all", "llama-some", ["parallel.tp=2", "parallel.pp=2"]),
    ],
)
def test_adapters_in_slots(mpi, case, other, settings, tmp_path):
    """The bits equal those of ranks that are threads, and PEFT's logits. Only rank 0 can read the
    files."""
    g = weights.Golden(config(case)["base_model_name_or_path"])
    g.build(tmp_path / "model")
    ranks = int(
        np.prod([int(s.split("=")[1]) for s in settings if re.fullmatch(r"parallel\.[tp]p=\d", s)])
    )
    made = []
    for launcher in ([], [mpi.run, *mpi.options, "-n", str(ranks)]):
        out = tmp_path / f"{len(made)}.npz"
        p = subprocess.run(
            [
                *launcher,
                sys.executable,
                "-c",
                ADAPTERS,
                str(tmp_path / "model"),
                str(out),
                f"{LORA}/{case}",
                f"{LORA}/{other}",
                json.dumps(g.prompt),
                json.dumps(settings),
                f"{LORA}/phi3-stacks",
            ],
            env=mpi.env if launcher else os.environ,
            capture_output=True,
            text=True,
            timeout=HANG,
        )
        assert p.returncode == 0, p.stderr[-3000:]
        made.append(list(np.load(out).values()))
    assert len(made[0]) == 5
    for x, y in zip(*made):
        assert np.array_equal(x, y)
    prompt, last = made[1][0].reshape(3, len(g.prompt) - 1, -1), made[1][1]
    for k, want in enumerate(
        (np.load(f"{LORA}/{case}/logits.npy"), g.logits, np.load(f"{LORA}/{other}/logits.npy"))
    ):
        assert (
            np.abs(np.concatenate([prompt[k], last[k : k + 1]]) - want).max()
            < 3e-3 * np.abs(want).max()
        )
