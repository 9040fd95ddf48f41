"""Servers for the tests of this folder: the real one on a tiny model and on SmolLM2, and the HTTP
layer over a fake engine. The kernel chooses the ports.
"""

import contextlib
import os
import shlex
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_model  # noqa: E402
from server_process import BUILD, ROOT, Server  # noqa: E402


@pytest.fixture(scope="session")
def llmc_binary():
    path = os.path.join(BUILD, "llmc")
    assert os.path.exists(path), "make all first"
    return path


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    return tiny_model.build(tmp_path_factory.mktemp("serve") / "tiny")


@pytest.fixture(scope="session")
def serve(llmc_binary, tmp_path_factory):
    """serve(model, *options) starts llmc serve; call it in a `with` statement."""

    def start(model, *options, env=None, limit=None):
        log = str(tmp_path_factory.mktemp("log") / "log")
        return Server(
            [llmc_binary, "serve", str(model), "--port", "0", *map(str, options)], env, log, limit
        )

    return start


@pytest.fixture(scope="session")
def tiny(serve, tiny_folder):
    with serve(
        tiny_folder, "--arch", "generic", "-t", "1", "--seqs", "8", "--model-name", "tiny"
    ) as s:
        yield s
        s.idle()
        assert s.stop()[0] == 0


@pytest.fixture(scope="session")
def smol(serve):
    path = os.environ.get("LLMC_SMOLLM2")
    if not path or not os.path.exists(path):
        pytest.skip("LLMC_SMOLLM2 names no file (make smollm2 fetches it)")
    with serve(path, "--context", "1024", "--seqs", "4", "--model-name", "smollm2") as s:
        yield s


@pytest.fixture(scope="session")
def fake_binary():
    """The server with the fake engine, built against the current library."""
    out = os.path.join(BUILD, "serve", "fake_server")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    names = ["yaml-0.1", "jansson", "libpcre2-8", "libutf8proc"]
    decoders = ["libjpeg", "libpng", "libwebp"]  # the image decoders are optional
    names += [p for p in decoders if subprocess.run(["pkg-config", "--exists", p]).returncode == 0]
    packages = subprocess.run(
        ["pkg-config", "--libs", *names], check=True, capture_output=True, text=True
    ).stdout.split()
    flags = os.environ.get("LLMC_TEST_SAN", "").split()
    subprocess.run(
        [
            *shlex.split(os.environ.get("CC") or "cc"),
            "-I.",
            "-Iinclude",
            "-D_GNU_SOURCE",
            "-std=gnu11",
            "-O1",
            "-g",
            *flags,
            "tests/serve/fake_server.c",
            "-o",
            f"{out}.{os.getpid()}",
            os.path.join(BUILD, "libllmc.a"),
            *packages,
            "-lm",
            "-lpthread",
            "-ldl",
        ],
        check=True,
        cwd=ROOT,
    )
    os.replace(f"{out}.{os.getpid()}", out)  # another test process may build the same program
    return out


@pytest.fixture(scope="session")
def fake(fake_binary, tiny_folder, tmp_path_factory):
    """fake(step_ms=2, ...) starts a server over a fake engine that repeats its prompts."""

    @contextlib.contextmanager
    def start(limit=None, **options):
        log = str(tmp_path_factory.mktemp("log") / "log")
        options = {"tokenizer": tiny_folder, **options}
        with Server(
            [fake_binary, *(f"{k}={v}" for k, v in options.items())], log=log, limit=limit
        ) as s:
            yield s

    return start


@pytest.fixture(scope="session")
def everything(serve, tmp_path_factory):
    """everything(header_timeout_s=2, ...) starts a server with the real engine and all features; it
    takes the options of `fake`.
    """
    model = tiny_model.build(tmp_path_factory.mktemp("everything") / "tiny", context=1 << 15)
    theirs = {"max_live": "max-concurrent-requests", "drain_ms": "drain-timeout"}

    @contextlib.contextmanager
    def start(limit=None, **options):
        said = [
            a
            for k, v in {"context": 1024, **options}.items()
            if k != "step_ms"
            for a in (
                "--" + theirs.get(k, k.removesuffix("_s").replace("_", "-")),
                v / 1000 if k == "drain_ms" else v,
            )
        ]
        with serve(
            model,
            "--arch",
            "generic",
            "-t",
            "1",
            "--seqs",
            "8",
            *tiny_model.everything(tmp_path_factory.mktemp("below"), model, "fake"),
            *said,
            limit=limit,
        ) as s:
            s.everything = True
            yield s

    return start


@pytest.fixture(scope="module", params=["fake", "everything"])
def engine(request):
    return request.getfixturevalue(request.param)
