"""The engine on an emulated GPU. Under deterministic: true: tokens picked on the device and on the host, preemption with KV
copied to the host and back, prefix hits, a cancel: each request says what it says alone. A GPU that fails."""
import json
import os
import subprocess
import sys

SCRIPT = """
import json, llmc
with llmc.open("configs/tiny.yaml", random_weights=True, device="cuda", arch="sm_75", set={"deterministic": "true"}) as m:
    prompts = [[3 + (i * 7 + k * 5) % 290 for k in range(n)] for i, n in enumerate((36, 31, 12, 3))]
    prompts.append(prompts[0][:33] + [9])
    params = [dict(max_tokens=n, ignore_eos=True) for n in (2, 5, 4, 3, 2)]
    params[2].update(temperature=0.9, seed=4, top_p=0.9)
    params[3].update(repetition_penalty=1.3, min_tokens=2)  # which the device leaves to the host
    with m.session(context=96) as s:
        alone = [s.run(p, **k)["tokens"] for p, k in zip(prompts, params)]
    with m.engine(context=96, seqs=3, chunk=40, kv_tokens=96, swap_bytes=1 << 20) as e:
        first = e.submit(prompts[0], **params[0]).wait()["tokens"]
        requests = [e.submit(p, **k) for p, k in zip(prompts[:1:-1], params[:1:-1])]
        two = e.submit(prompts[1], n=2, n_top=2, **params[1])  # which need four pages of three
        gone = e.submit(prompts[0], max_tokens=50, ignore_eos=True)
        gone.cancel()
        crowd = [r.wait()["tokens"] for r in requests]
        two = [(v.index, v.token) for v in two.events() if v.kind == "token"]
        crowd += [[t for i, t in two if i == 1], [t for i, t in two if i == 0]]
        stats = e.stats()
print(json.dumps([alone, first, crowd, {k: stats[k] for k in (
    "kv_pages_used", "preemptions", "swaps_in", "swaps_out", "prefix_hits", "failed", "running")}]))
"""


def test_a_crowd_on_a_gpu_answers_as_each_alone():
    build = os.environ.get("LLMC_EMU_BUILD", "build")
    subprocess.run(["make", "-s", "-f", "tests/emu/emu.mk", f"BUILD={build}", "emu-lib"], check=True)
    p = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True,
                       env={**os.environ, "LLMC_CUDA_LIBDIR": os.path.abspath(f"{build}/emu")})
    assert p.returncode == 0, p.stderr
    alone, first, crowd, stats = json.loads(p.stdout.splitlines()[-1])
    assert first == alone[0] and crowd == alone[:1:-1] + [alone[1], alone[1]]
    assert stats["preemptions"] > 0 and stats["swaps_in"] == stats["swaps_out"] > 0 and stats["prefix_hits"] > 0
    assert stats["kv_pages_used"] == stats["failed"] == stats["running"] == 0


FAILING = """
import json, llmc
with llmc.open("configs/tiny.yaml", random_weights=True, device="cuda", arch="sm_75") as m, m.engine(context=96, seqs=3) as e:
    said = []
    requests = [e.submit([3, 4, 5, 6], max_tokens=20, ignore_eos=True) for _ in range(4)]
    for work in [r.wait for r in requests] + [lambda: e.submit([1])]:
        try:
            work()
            said.append("LLMC_OK")
        except llmc.Error as x:
            said.append(x.name)
    stats = e.stats()
print(json.dumps([said, stats["failed"], stats["running"], stats["waiting"], stats["kv_pages_used"]]))
"""


def test_a_failing_gpu_fails_the_requests_and_nothing_hangs():
    build = os.environ.get("LLMC_EMU_BUILD", "build")
    p = subprocess.run([sys.executable, "-c", FAILING], capture_output=True, text=True,
                       env={**os.environ, "LLMC_CUDA_LIBDIR": os.path.abspath(f"{build}/emu"), "LLMC_EMU_FAIL": "cuGraphLaunch@4:719"})
    assert p.returncode == 0, p.stderr
    assert json.loads(p.stdout.splitlines()[-1]) == [["LLMC_E_DEVICE"] * 5, 4, 0, 0, 0]
