"""Prebuilt kernels: a folder of kernels by key lets a model run without a compiler. Damaged, partial and untrusted folders are named."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_artifacts import CC, MODEL, NO_COMPILER, RUN

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "tools", "release"))

LLMC = os.path.abspath(
    os.environ.get("LLMC", os.path.join(os.environ.get("BUILD", "build"), "llmc"))
)


def run(*args, llmc=LLMC, **env):
    return subprocess.run(
        [llmc, *map(str, args)], capture_output=True, text=True, env={**os.environ, **env}
    )


def store(model, arch, folder):
    """Compile a model ahead of time and name its kernels by key."""
    out = folder.parent / f"aot-{arch}"
    r = run("compile", model, "-o", out, "--arch", arch, "--aot", "-q")
    assert r.returncode == 0, r.stderr
    folder.mkdir(exist_ok=True)
    for manifest in out.glob("aot/*/manifest.json"):
        for source, key in json.loads(manifest.read_text())["source"].items():
            shutil.copy(manifest.parent / (Path(source).stem + ".so"), folder / f"{key}.so")
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    top = tmp_path_factory.mktemp("prebuilt")
    old = os.environ.get("LLMC_KERNEL_CFLAGS")
    os.environ["LLMC_KERNEL_CFLAGS"] = "-O1"
    (top / "m.yaml").write_text(MODEL)
    r = run("run", top / "m.yaml", *RUN, "-q", "--json", LLMC_CACHE=str(top / "own"))
    yield top / "m.yaml", store(top / "m.yaml", "generic", top / "kernels"), tokens(r)
    os.environ.pop("LLMC_KERNEL_CFLAGS")
    if old is not None:
        os.environ["LLMC_KERNEL_CFLAGS"] = old


def tokens(r):
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)["tokens"]


def call(made, kernels, tmp_path, *more, llmc=LLMC, **env):
    args = ["run", made[0], *RUN, "-q", "--json", *more]
    env = {"LLMC_KERNELS": str(kernels), "LLMC_CACHE": str(tmp_path / "cache")} | NO_COMPILER | env
    return run(*args, llmc=llmc, **env)


def test_a_model_runs_without_a_compiler(made, tmp_path):
    r = call(made, made[1], tmp_path)
    assert tokens(r) == made[2] and "compil" not in r.stderr
    assert not list(tmp_path.glob("cache/kernels/*.so"))


def test_doctor_reports_them(made, tmp_path):
    env = NO_COMPILER | {"LLMC_CACHE": str(tmp_path)}
    r = run("doctor", LLMC_KERNELS=str(made[1]), **env)
    n = len(list(made[1].glob("*.so")))
    assert f"prebuilt    {made[1]}: {n} kernels of common models\n" in r.stdout
    assert r.returncode == 0 and r.stdout.splitlines()[-1].startswith("ready for models with")
    r = run("doctor", "--json", LLMC_KERNELS="", **env)
    assert r.returncode == 2 and json.loads(r.stdout)["prebuilt"]["found"] is False


def test_an_empty_name_disables_them(made, tmp_path):
    r = call(made, "", tmp_path)
    assert r.returncode == 2 and "prebuilt" not in r.stderr and "LLMC_CC" in r.stderr


def test_a_kernel_that_is_lacking_is_counted(made, tmp_path):
    part = shutil.copytree(made[1], tmp_path / "part")
    next(part.glob("*.so")).unlink()
    r = call(made, part, tmp_path)
    n = len(list(made[1].glob("*.so")))
    assert r.returncode == 2
    assert f"; 1 of this model's {n} kernels for cpu-generic are not among the prebuilt" in r.stderr
    r = call(made, part, tmp_path, LLMC_CC=CC)  # a compiler makes the one
    assert tokens(r) == made[2] and len(list(tmp_path.glob("cache/kernels/*.so"))) == 1


def test_a_damaged_kernel_is_named_and_compiled(made, tmp_path):
    bad = shutil.copytree(made[1], tmp_path / "bad")
    for path in bad.glob("*.so"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    r = call(made, bad, tmp_path, LLMC_CC=CC)
    assert tokens(r) == made[2] and r.stderr.count("prebuilt kernels are not used") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have a folder of another user")
def test_a_folder_of_another_user_is_not_used(made, tmp_path):
    other = shutil.copytree(made[1], tmp_path / "other")
    os.chown(other, 65534, 65534)
    r = call(made, other, tmp_path)
    assert r.returncode == 2 and "prebuilt kernels are not used" in r.stderr


def test_other_sizes_do_not_use_them(made, tmp_path):
    r = call(made, made[1], tmp_path, "--set", "hidden=64")
    assert r.returncode == 2 and "are not among the prebuilt" in r.stderr


def test_a_command_finds_the_folder_of_its_prefix(made, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/llmc").mkdir(parents=True)
    llmc = shutil.copy(LLMC, tmp_path / "bin/llmc")
    shutil.copytree(made[1], tmp_path / "lib/llmc/kernels")
    env = {k: v for k, v in os.environ.items() if k != "LLMC_KERNELS"} | NO_COMPILER
    env |= {"LLMC_CACHE": str(tmp_path / "cache"), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    for name in (llmc, "llmc"):  # also by PATH
        args = [name, "run", str(made[0]), *RUN, "-q", "--json"]
        assert tokens(subprocess.run(args, capture_output=True, text=True, env=env)) == made[2]


def test_an_older_target_is_used_if_its_kernels_fit(made, tmp_path):
    if "x86_64" != os.uname().machine or " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("generic is the best target here")
    args = [a for a in RUN if a not in ("--arch", "generic")]
    r = run(
        *("run", made[0], *args, "--json"),
        LLMC_KERNELS=str(made[1]),
        LLMC_CACHE=str(tmp_path / "cache"),
        **NO_COMPILER,
    )
    assert tokens(r) == made[2]
    assert (
        "no C compiler was found" in r.stderr and "using cpu-generic, which is slower" in r.stderr
    )


def test_headers_of_a_release_give_the_demo_s_kernels(smollm2, tmp_path):
    """A header without data, from tools/release/models.toml, compiles to the kernels of the file."""
    import kernels

    kernels.write_header(tmp_path / "m.gguf", kernels.models()["smollm2-135m"], "q4_1")
    names = []
    for i, model in enumerate((tmp_path / "m.gguf", smollm2)):
        r = run("compile", model, "-o", tmp_path / f"out{i}", "--arch", "v3,neon", "-q")
        assert r.returncode == 0, r.stderr
        names.append({p.name for p in (tmp_path / f"out{i}/kernels").glob("*.c")})
    assert names[0] == names[1] and len(names[0]) >= 18


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ("llama3.2-1b", "llama3.1-8b", "qwen2.5-7b", "qwen3-8b"))
def test_headers_of_all_families_compile(name, tmp_path):
    import kernels

    for mix in ("q4_k_m", "q8_0"):
        kernels.write_header(tmp_path / "m.gguf", kernels.models()[name], mix)
        r = run("compile", tmp_path / "m.gguf", "-o", tmp_path / mix, "--arch", "generic", "-q")
        assert r.returncode == 0, r.stderr
    gemm = {p.name.split(".")[0] for p in (tmp_path / "q4_k_m/kernels").glob("gemm_*")}
    assert {"gemm_q4_k", "gemm_q6_k"} <= gemm
