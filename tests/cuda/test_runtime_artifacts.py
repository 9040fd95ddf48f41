"""Artifacts on the emulated GPU: kernels shipped ahead of time, kernels of other GPUs, damaged
ones, ones that do not compile, and two processes at once"""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from waiting import HANG

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LLMC_EMU_BUILD", ROOT / "build"))
# folders are used with other caches than that of the compile which made them
RUN = ["--tokens", "1,2,3,4,5", "-n", "6", "--random-weights", "--device", "cuda", "--json"]
RUN.append("--trust-artifact")


def start(args, lib=BUILD / "emu", **env):
    e = dict(os.environ, LLMC_CUDA_LIBDIR=str(lib), LLMC_EMU_QUIET="1", **env)
    return subprocess.Popen(
        [str(BUILD / "llmc"), *map(str, args)],
        env=e,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(args, code=0, **kw):
    p = start(args, **kw)
    out, err = p.communicate(timeout=HANG)
    assert p.returncode == code, f"{args}: exit {p.returncode}\n{out}\n{err}"
    return out, err


def tokens(out):
    return json.loads(out)["tokens"]


@pytest.fixture(scope="module", autouse=True)
def emulator():
    subprocess.run(
        ["make", "--no-print-directory", "-s", "-f", "emu/emu.mk", f"BUILD={BUILD}", "emu-lib"],
        cwd=ROOT,
        check=True,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def shipped(tmp_path_factory, cache):
    """Compiled with kernels for two architectures"""
    d = tmp_path_factory.mktemp("shipped") / "tiny"
    run(
        [
            "compile",
            "configs/tiny.yaml",
            "-o",
            d,
            "--target",
            "cuda",
            "--arch",
            "sm_80,sm_90a",
            "--aot",
        ],
        LLMC_CACHE=cache,
    )
    return d


@pytest.fixture(scope="module")
def driver_only(tmp_path_factory):
    d = tmp_path_factory.mktemp("driver")
    os.symlink((BUILD / "emu" / "libcuda.so.1").resolve(), d / "libcuda.so.1")
    return d


@pytest.fixture(scope="module")
def want(shipped, driver_only, tmp_path_factory):
    """Tokens of the shipped kernels, on a machine without NVRTC and with an empty cache"""
    out, err = run(
        ["run", shipped, *RUN], lib=driver_only, LLMC_CACHE=str(tmp_path_factory.mktemp("none"))
    )
    assert "compiling" not in err
    return tokens(out)


def test_shipped_on_each_architecture(shipped, driver_only, want, tmp_path):
    out, err = run(
        ["run", shipped, *RUN], lib=driver_only, LLMC_EMU_GPU="sm_80", LLMC_CACHE=str(tmp_path)
    )
    assert tokens(out) == want and "compiling" not in err


@pytest.mark.parametrize("gpu", ["sm_86", "sm_89"])
def test_shipped_for_an_earlier_minor(shipped, driver_only, want, tmp_path, gpu):
    """8.6 and 8.9 run images of sm_80. They are used with or without a compiler, and one line names
    the faster alternative."""
    files = sorted(p.name for p in shipped.iterdir())
    for lib in (driver_only, BUILD / "emu"):
        out, err = run(["run", shipped, *RUN], lib=lib, LLMC_EMU_GPU=gpu, LLMC_CACHE=str(tmp_path))
        assert tokens(out) == want and "compiling" not in err
        said = [x for x in err.splitlines() if "no plan for" in x]
        assert (
            len(said) == 1
            and f"cuda-{gpu}" in said[0]
            and "cuda-sm_80" in said[0]
            and f"--target cuda --arch {gpu} --aot" in said[0]
        )
    assert sorted(p.name for p in shipped.iterdir()) == files


def test_arch_option_selects_one_architecture(shipped, cache, want, tmp_path):
    d = tmp_path / "a"
    shutil.copytree(shipped, d)
    out, err = run(["run", d, *RUN, "--arch", "sm_89"], LLMC_EMU_GPU="sm_89", LLMC_CACHE=cache)
    assert (
        tokens(out) == want
        and "no plan for cuda-sm_89: compiling" in err
        and re.search(r"compiling \d+ kernels for sm_89 ", err)
    )


def test_tegra_shares_no_images(shipped, driver_only, tmp_path):
    """8.7 has the major version of 8.0, but images of 8.0 do not run on it."""
    d = tmp_path / "a"
    shutil.copytree(shipped, d)
    _, err = run(
        ["run", d, *RUN],
        code=2,
        lib=driver_only,
        LLMC_EMU_GPU="sm_87",
        LLMC_CACHE=str(tmp_path / "none"),
    )
    assert "No kernels built ahead of time run on sm_87" in err and "--arch" not in err


@pytest.mark.parametrize("nvrtc, arch", [("13000", "sm_121"), ("12080", "sm_120")])
def test_a_device_without_a_plan_of_its_own(want, cache, nvrtc, arch):
    """12.2 runs the plan of sm_89, compiled for 12.1; by an NVRTC without 12.1, for 12.0."""
    out, err = run(
        ["run", "configs/tiny.yaml", *RUN],
        LLMC_EMU_GPU="sm_122",
        LLMC_EMU_NVRTC=nvrtc,
        LLMC_CACHE=cache,
    )
    assert tokens(out) == want and re.search(
        rf"compiling \d+ kernels for {arch} with NVRTC {int(nvrtc) // 1000}", err
    )


def test_nothing_can_be_shipped_for_it(tmp_path, cache, driver_only, want):
    """Images of sm_89 do not run on 12.2: the error requests NVRTC there and names no command that
    would not help."""
    d = tmp_path / "a"
    run(
        ["compile", "configs/tiny.yaml", "-o", d, "--target", "cuda", "--arch", "sm_89", "--aot"],
        LLMC_CACHE=cache,
    )
    _, err = run(
        ["run", d, *RUN],
        code=2,
        lib=driver_only,
        LLMC_EMU_GPU="sm_122",
        LLMC_CACHE=str(tmp_path / "none"),
    )
    for word in (
        "sm_122",
        "ships kernels for sm_89.",
        "libnvrtc",
        "No kernels built ahead of time run on sm_122: it takes NVRTC",
    ):
        assert word in err
    assert "--arch" not in err
    out, err = run(["run", d, *RUN], LLMC_EMU_GPU="sm_122", LLMC_CACHE=cache)
    assert tokens(out) == want and "they are for sm_89, this GPU is sm_122" in err


def test_no_image_and_no_compiler(shipped, driver_only, tmp_path):
    _, err = run(
        ["run", shipped, *RUN],
        code=2,
        lib=driver_only,
        LLMC_EMU_GPU="sm_75",
        LLMC_CACHE=str(tmp_path),
    )
    for word in (
        "sm_75",
        "sm_80",
        "sm_90a",
        "libnvrtc",
        "pip install nvidia-cuda-nvrtc",
        "--aot --arch sm_75",
    ):
        assert word in err


def damaged(shipped, tmp_path, how):
    d = tmp_path / "damaged"
    shutil.copytree(shipped, d)
    image = sorted((d / "aot" / "sm_90a").glob("norm_qkv*.cubin"))[0]
    data = bytearray(image.read_bytes())
    image.write_bytes(how(data))
    return d


@pytest.mark.parametrize(
    "how",
    [lambda b: b[: len(b) // 2], lambda b: b[:100] + bytes([b[100] ^ 1]) + b[101:], lambda b: b""],
)
def test_damaged_image_heals(shipped, driver_only, cache, want, tmp_path, how):
    d = damaged(shipped, tmp_path, how)
    out, err = run(["run", d, *RUN], LLMC_CACHE=cache)
    assert tokens(out) == want
    assert (
        len(
            re.findall(
                r"built ahead of time cannot be used .*damaged or cut off.*compiled here", err
            )
        )
        == 1
    )
    _, err = run(["run", d, *RUN], code=2, lib=driver_only, LLMC_CACHE=str(tmp_path / "none"))
    assert "libnvrtc" in err


def test_damaged_cache_heals(shipped, want, tmp_path):
    d = tmp_path / "plain"
    shutil.copytree(shipped, d)
    shutil.rmtree(d / "aot")
    env = {"LLMC_CACHE": str(tmp_path / "cache")}
    assert tokens(run(["run", d, *RUN], **env)[0]) == want
    out, err = run(["run", d, *RUN], **env)
    assert tokens(out) == want and "compiling" not in err
    for image in (tmp_path / "cache" / "kernels").glob("*.cubin"):
        image.write_bytes(image.read_bytes()[:-10])
    out, err = run(["run", d, *RUN], **env)
    assert tokens(out) == want and "it is built again" in err


@pytest.mark.findings
def test_image_that_the_driver_refuses(shipped, want, tmp_path):
    """An intact image of the right source that the driver refuses: it is compiled here and kept,
    each time the artifact is opened. In the cache: compiled once more, then kept."""

    def spoil(image):
        key, mark = image.read_bytes()[-136:-72], image.read_bytes()[-8:]
        image.write_bytes(
            b"no image" * 40
            + key
            + hashlib.sha256(b"no image" * 40 + key).hexdigest().encode()
            + mark
        )

    d, env = tmp_path / "a", {"LLMC_CACHE": str(tmp_path / "cache")}
    shutil.copytree(shipped, d)
    spoil(sorted((d / "aot" / "sm_90a").glob("norm_qkv*.cubin"))[0])
    before = {p: p.read_bytes() for p in d.rglob("*") if p.is_file()}
    for turn, refused in enumerate((1, 1, 2, 1)):
        out, err = run(["run", d, *RUN], **env)
        assert tokens(out) == want
        assert len(re.findall(r"norm_qkv.* does not load .*compiled again", err)) == refused, err
        kept = [
            p
            for p in (tmp_path / "cache" / "kernels").iterdir()
            if p.is_file() and p.suffix not in (".usage", ".cc", "")
        ]
        assert len(kept) == 1 and kept[0].suffix == ".cubin"
        if turn == 1:  # not damaged before
            spoil(kept[0])
    assert {p: p.read_bytes() for p in d.rglob("*") if p.is_file()} == before


def kernel_of(folder, op):
    """Source of a kernel in the plan that runs here; other plans are in the same folder."""
    plan = (folder / "plan-cuda-sm_90a.json").read_text()
    return next(f for f in (folder / "kernels").glob(f"{op}*.cu") if f.name in plan)


def test_changed_source_is_compiled(shipped, cache, want, tmp_path):
    d = tmp_path / "changed"
    shutil.copytree(shipped, d)
    source = kernel_of(d, "embed")
    source.write_text(source.read_text() + "\n// changed\n")
    out, err = run(["run", d, *RUN], LLMC_CACHE=cache)
    assert tokens(out) == want and "another source" in err and "compiling 1 kernel" in err


def test_kernel_that_does_not_compile(shipped, cache, tmp_path):
    d = tmp_path / "broken"
    shutil.copytree(shipped, d)
    shutil.rmtree(d / "aot")
    source = kernel_of(d, "norm_glu")
    source.write_text(source.read_text() + "\nint oops = nothing_of_the_kind;\n")
    line = len(source.read_text().splitlines())
    _, err = run(["run", d, *RUN], code=2, LLMC_CACHE=cache)
    assert f"kernels/{source.name}" in err
    at = re.search(r"op norm_glu of layer 0, line (\d+) of model.yaml", err)
    assert at and (d / "model.yaml").read_text().splitlines()[int(at[1]) - 1].startswith("  width:")
    assert "nothing_of_the_kind" in err and re.search(rf"{re.escape(source.name)}:{line}\b", err)


def test_two_processes(shipped, want, cache):
    both = [start(["run", shipped, *RUN], LLMC_CACHE=cache) for _ in range(2)]
    for p in both:
        out, err = p.communicate(timeout=HANG)
        assert p.returncode == 0, err
        assert tokens(out) == want


def test_devices_by_number_and_bench(shipped, want, driver_only, tmp_path):
    """The second of two devices is selected by its number; a third does not exist; bench needs no
    checkpoint."""
    env = dict(lib=driver_only, LLMC_EMU_DEVICES="2", LLMC_CACHE=str(tmp_path))
    here = [x if x != "cuda" else "cuda:1" for x in RUN]
    out, _ = run(["run", shipped, *here], **env)
    assert tokens(out) == want
    _, err = run(["run", shipped, *[x if x != "cuda" else "cuda:2" for x in RUN]], code=1, **env)
    assert "there is no GPU 2: this machine has 2" in err
    out, _ = run(
        [
            "bench",
            shipped,
            "--random-weights",
            "--trust-artifact",
            "--device",
            "cuda:1",
            "-p",
            "20",
            "-n",
            "3",
            "-c",
            "64",
            "--json",
        ],
        **env,
    )
    assert {r["test"]: r["tps"] > 0 for r in json.loads(out)["results"]} == {
        "pp20": True,
        "tg3": True,
    }
