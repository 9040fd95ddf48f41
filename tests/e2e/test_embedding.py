"""Embedding llmc in a program: the example in C and C++, in the tree and with an installed copy;
the Python binding."""

import ctypes
import os
import re
import subprocess
import threading

import pytest

ROOT = os.getcwd()
TINY = "configs/tiny.yaml"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    p = tmp_path_factory.mktemp("prefix")
    subprocess.run(["make", "-s", "install", f"PREFIX={p}"], check=True)
    return p


def run(*cmd, env=None, cwd=None, code=0):
    p = subprocess.run(
        list(map(str, cmd)),
        capture_output=True,
        text=True,
        env=dict(os.environ, **(env or {})),
        cwd=cwd,
    )
    assert p.returncode == code, (cmd, p.stdout, p.stderr)
    return p


@pytest.mark.parametrize("how", ["c", "c++", "static"])
def test_the_example_builds_outside_the_tree(prefix, tmp_path, how, smollm2):
    src = tmp_path / "host.c"
    src.write_text(open("examples/host.c").read())
    pc = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    flags = run(
        "pkg-config",
        "--cflags",
        "--libs",
        *(["--static"] if how == "static" else []),
        "llmc",
        env=pc,
    ).stdout.split()
    if how == "static":
        flags = [str(prefix / "lib" / "libllmc.a") if f == "-lllmc" else f for f in flags]
    cmd = ["g++", "-x", "c++", "-std=c++17"] if how == "c++" else ["gcc", "-std=c11"]
    run(
        *cmd,
        "-Wall",
        "-Wextra",
        "-Werror",
        "host.c",
        *(["-x", "none"] if how == "c++" else []),
        *flags,
        "-o",
        "host",
        cwd=tmp_path,
    )
    env = {"LD_LIBRARY_PATH": str(prefix / "lib")}
    out = run(tmp_path / "host", smollm2, "The capital of France is", env=env, cwd=tmp_path).stdout
    assert "Paris" in out and re.search(r"\[\d+ tokens, \d+/s\]", out)
    bad = run(tmp_path / "host", "nowhere.gguf", "x", env=env, cwd=tmp_path, code=1)
    assert "no such file" in bad.stderr


def test_only_public_names_are_exported(prefix):
    shared = run("nm", "-D", "--defined-only", prefix / "lib" / "libllmc.so").stdout
    static = run("nm", "-g", "--defined-only", prefix / "lib" / "libllmc.a").stdout
    for text in (shared, static):
        names = [line.split()[-1] for line in text.splitlines() if len(line.split()) == 3]
        assert "llmc_open" in names
        assert not [n for n in names if not n.startswith("llmc_")]
    declared = set(
        re.findall(
            r"\b(llmc_\w+)\(", re.sub(r"/\*.*?\*/", "", open("include/llmc.h").read(), flags=re.S)
        )
    ) - {"llmc_init_"}
    exported = {line.split()[-1] for line in shared.splitlines() if len(line.split()) == 3}
    assert exported == declared
    man = (
        run("man", "-l", prefix / "share" / "man" / "man1" / "llmc.1").stdout
        if os.path.exists("/usr/bin/man")
        else "llmc"
    )
    assert "llmc" in man
    share = prefix / "share"
    for page in ("llmc-run.1", "llmc-bench-serve.1"):
        assert (share / "man/man1" / page).read_text().startswith(".TH LLMC-")
    for path in (
        "bash-completion/completions/llmc",
        "zsh/site-functions/_llmc",
        "fish/vendor_completions.d/llmc.fish",
    ):
        assert "--prompt" in (share / path).read_text() or "-l prompt" in (share / path).read_text()


def test_python_binding_structs_have_the_header_s_sizes(tmp_path):
    import llmc._ffi as f

    names = {
        "llmc_error": f.Error,
        "llmc_options": f.Options,
        "llmc_limits": f.Limits,
        "llmc_pull_state": f.PullState,
        "llmc_pull_options": f.PullOptions,
        "llmc_params": f.Params,
        "llmc_result": f.Result,
        "llmc_model_info": f.Info,
        "llmc_memory": f.Memory,
        "llmc_chunk": f.Chunk,
        "llmc_stats": f.Stats,
        "llmc_engine_options": f.EngineOptions,
        "llmc_request": f.Request,
        "llmc_event": f.Event,
        "llmc_logprob": f.Logprob,
        "llmc_histogram": f.Histogram,
        "llmc_counts": f.Counts,
        "llmc_bias": f.Bias,
        "llmc_sequence": f.Sequence,
        "llmc_image_patches": f.ImagePatches,
    }
    src = tmp_path / "s.c"
    src.write_text(
        "#include <llmc.h>\n#include <stdio.h>\nint main(void){"
        + "".join(f'printf("{n} %zu\\n", sizeof({n}));' for n in names)
        + "return 0;}\n"
    )
    run("gcc", f"-I{ROOT}/include", src, "-o", tmp_path / "s")
    for line in run(tmp_path / "s").stdout.splitlines():
        name, size = line.split()
        assert ctypes.sizeof(names[name]) == int(size), name


def test_python_binding_runs_a_model():
    import llmc

    with llmc.open(TINY, random_weights=True, arch="generic") as m:
        info = m.info
        assert (
            info["target"] == "cpu-generic"
            and info["n_layers"] > 0
            and m["attention.n_heads"] == str(int(m["attention.n_heads"]))
        )
        with pytest.raises(KeyError):
            m["attention.heads"]
        with m.session(context=64, seqs=3, threads=1) as s:
            r = s.run([1, 2, 3], max_tokens=5, ignore_eos=True)
            assert len(r["tokens"]) == 5 and r["finish"] == "length"
            q = s.seq()
            rows = s.forward([(q, [1, 2, 3], 3)])
            assert rows.shape == (3, info["vocab"])
            first = max(range(info["vocab"]), key=lambda i: rows[2, i])
            assert first == r["tokens"][0]
            fork = s.fork(q)
            a, b = s.forward([(q, [first], 1), (fork, [first], 1)]).tolist()
            assert a == b and s.length(fork) == 4
            s.trim(fork, 2)
            assert s.length(fork) == 2
            s.free(q), s.free(fork)
            assert s.stats()["kv_pages_used"] == 0
            seen = []
            r = s.run(
                [1, 2, 3],
                lambda id, text: seen.append(id) or len(seen) < 2,
                max_tokens=9,
                ignore_eos=True,
            )
            assert r["finish"] == "cancel" and len(seen) == 2
            with pytest.raises(llmc.Error) as e:
                s.run([])
            assert e.value.name == "LLMC_E_INPUT"
            with pytest.raises(ZeroDivisionError):
                s.run([1], lambda id, text: 1 / 0, max_tokens=2, ignore_eos=True)


def test_sessions_of_one_model_in_threads():
    import llmc

    with llmc.open(TINY, random_weights=True, arch="generic") as m:
        want = None
        got = []

        def work():
            with m.session(context=64, threads=1) as s:
                got.append(s.run([5, 6, 7], max_tokens=12, ignore_eos=True)["tokens"])

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        want = got[0]
        assert got == [want] * 4


def test_python_generator_streams_text(smollm2):
    import llmc

    with llmc.open(smollm2) as m, m.session(context=256) as s:
        prompt = m.tokenizer.chat([{"role": "user", "content": "Say hello."}])
        ids = m.tokenizer.encode(prompt, special=llmc.PARSE_SPECIAL)
        chunks = list(s.generate(ids, max_tokens=12))
        assert "".join(chunks) == s.result["text"] and chunks
        g = s.generate(ids, max_tokens=200, ignore_eos=True)
        next(g)
        g.close()
        assert s.result["finish"] == "cancel"
