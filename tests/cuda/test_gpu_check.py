"""The check for machines with a GPU, rehearsed on the emulator: every stage with tiny shapes, and
its behaviour when a stage fails or time runs out"""

import json
import os
import subprocess
import sys

import pytest

import cuda_harness as H
from waiting import HANG

MIXTURE = "norm_route {0}, norm_moe_glu {0}, moe_down_add {0}, lm_head 1"
OPS = {  # ops of a decode step, in the order of the plan
    "rehearsal": "embed 1, norm_qkv 2, attention 2, matmul_add 4, norm_glu 2, lm_head 1",
    "rehearsal-moe": "embed 1, norm_qkv 2, attention 2, matmul_add 2, " + MIXTURE.format(2),
    "rehearsal-mla": "embed 1, norm_matmul 2, mla_query 2, mla_attend 2, mla_value 2, matmul_add 2, norm_glu 1, matmul_add 1, "
    + MIXTURE.format(1),
}


# make check covers the dense model only: kernels of the others take three times as long
MODELS = list(OPS) if H.EVERY else ["rehearsal"]


def rows_of(r, model):
    return {
        (x["test"], x["batch"], x["depth"]): x
        for x in r["figures"]["llmc"]
        if x["model"] == model and not x.get("way")
    }


@pytest.fixture(scope="module")
def check():
    H._emulator()
    H.subprocess.run(
        [
            "make",
            "--no-print-directory",
            "-s",
            "-f",
            "emu/emu.mk",
            f"BUILD={H.BUILD}",
            f"{H.BUILD}/emu/t_sm90",
        ],
        cwd=H.ROOT,
        check=True,
    )

    def run(out, *args, code=0, timeout=3 * HANG):
        p = subprocess.run(
            [
                sys.executable,
                str(H.ROOT / "tests/gpu/gpu_check.py"),
                "--rehearse",
                "--out",
                str(out),
                *map(str, args),
            ],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "BUILD": str(H.BUILD), "LLMC_CUDA_LIBDIR": str(H.BUILD / "emu")},
        )
        assert p.returncode == code, p.stdout + p.stderr
        return p.stdout, json.loads(out.read_text())

    return run


def test_every_stage(check, tmp_path):
    text, r = check(tmp_path / "r.json", *([] if H.EVERY else ["--models", ",".join(MODELS)]))
    assert {k: v["status"] for k, v in r["stages"].items()} == dict.fromkeys(
        ("machine", "conform", "models", "figures", "ranks", "kernels", "sanitize"), "passed"
    )
    assert set(r["stages"]["ranks"]["all-reduce over 2, us"]) >= {"2 KB"}
    assert r["stages"]["conform"]["sm90"] == "passed" and r["machine"]["read_gbps"] > 0
    for model, ops in [(m, OPS[m]) for m in MODELS]:
        assert [
            x["test"] for x in r["figures"]["llmc"] if x["model"] == model and x.get("way")
        ] == ["pp"]  # without cuBLASLt
        rows = rows_of(r, model)
        assert set(rows) == {("pp", 1, 0), ("tg", 1, 0), ("tg", 2, 0), ("tg", 1, 40)}
        timed = rows["tg", 1, 0]["ops"]
        assert ", ".join(f"{o['op']} {o['n']}" for o in timed) == ops
        assert (
            all(o["s"] > 0 for o in timed)
            and 0 < sum(o["weight_bytes"] for o in timed) <= rows["tg", 1, 0]["bytes"]
        )
    rows = rows_of(r, "rehearsal")
    # K and V of 40 more positions: 2 layers, 2 heads of 64, two bytes per element
    assert rows["tg", 1, 40]["bytes"] - rows["tg", 1, 0]["bytes"] == 40 * 2 * 2 * 2 * 64 * 2
    for x in rows.values():
        assert (
            x["test"] == "pp"
            or abs(x["share"] - x["bytes"] / (x["seconds"] * x["read_gbps"] * 1e9)) < 1e-9
        )
    bars = {b["bar"]: b for b in r["bars"]}
    ratio = bars["rehearsal: step of batch 2 / of batch 1"]
    assert abs(
        ratio["value"] - rows["tg", 2, 0]["seconds"] / rows["tg", 1, 0]["seconds"]
    ) < 1e-9 and ratio["reached"] == (ratio["value"] <= 1.1)
    assert (
        bars["rehearsal: prefill 16: PyTorch's time / ours"]["value"] is None
        and "not measured" in text
    )
    # a second run keeps the results that it does not repeat
    again, r2 = check(tmp_path / "r.json", "--only", "conform", "--minutes", "0.0001")
    assert (
        "no time left" in again
        and r2["figures"] == r["figures"]
        and r2["stages"]["models"] == r["stages"]["models"]
    )


def test_a_failed_stage_loses_nothing_else(check, tmp_path):
    text, r = check(
        tmp_path / "r.json", "--llmc", "/bin/false", "--only", "models,figures,kernels", code=3
    )
    assert [r["stages"][n]["status"] for n in ("models", "figures", "kernels")] == [
        "FAILED",
        "FAILED",
        "passed",
    ]
    assert "exit status 1" in r["stages"]["models"]["llama-smol"] and text.rstrip().split("\n")[
        -1
    ].startswith("failed: models figures")
