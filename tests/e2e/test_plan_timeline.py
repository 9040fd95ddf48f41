"""llmc plan --timeline: the table of docs/cuda.md is what the model computes and what an H100
measured, and at least six of eight models are within 10 % of the measurement."""

import json
import re
import subprocess

from golden_run import LLMC, ROOT

LAYERS = {"mixtral-8x7b": 8, "qwen3-30b-a3b": 12, "deepseek-v2-lite": 9}


def plan(*args):
    return subprocess.run([LLMC, "plan", *args], capture_output=True, text=True, cwd=ROOT)


def test_the_table_is_true(tmp_path):
    with open(f"{ROOT}/tests/gpu/results/nvidia-h100-80gb-hbm3.json") as f:
        runs = json.load(f)["figures"]["llmc"]
    measured = {
        (r["model"], r["storage"]): 1e6 / r["tps"]
        for r in runs
        if r["test"] != "pp" and r["batch"] == 1 and r["depth"] == 0
    }
    with open(f"{ROOT}/docs/cuda.md") as f:
        rows = re.findall(
            r"^\| (\S+) (\S+) \| (\d+) \| (\d+) \| ([+-][\d.]+) % \| (\d+) \|$", f.read(), re.M
        )
    assert len(rows) == len(measured) == 8
    near = 0
    for name, storage, was, model, error, after in rows:
        sets = ["--set", f"storage.default={storage}"]
        if name in LAYERS:
            sets += ["--set", f"n_layers={LAYERS[name]}"]
        page = tmp_path / "step.html"
        p = plan(
            f"configs/{name}.yaml", "--gpu", "h100", "--context", "65", *sets, "--timeline", page
        )
        assert p.returncode == 0, p.stderr
        got = re.search(r"65 positions: (\d+) us, (\d+) us", p.stdout)
        assert got.groups() == (model, after), name
        assert abs(measured[name, storage] - int(was)) <= 5
        assert abs(100 * (int(model) - int(was)) / int(was) - float(error)) < 0.06
        near += abs(float(error)) <= 10
        text = page.read_text()
        assert "<svg" in text and "idle SMs" in text and "<td>norm_" in text
    assert near >= 6


def test_bad_input(tmp_path):
    p = plan("configs/tiny.yaml", "--timeline", tmp_path / "x")
    assert p.returncode == 1 and "--timeline needs --gpu NAME" in p.stderr
    p = plan("configs/tiny.yaml", "--gpu", "h100", "--timeline", tmp_path / "no" / "x")
    assert p.returncode != 0 and "cannot write: No such file" in p.stderr
