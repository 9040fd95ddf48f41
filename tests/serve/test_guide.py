"""The pages on serving are correct: each of their blocks is run, or listed here as one that is
not; options and routes are those of the command.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest
import tiny_model
from server_process import ROOT, Server
from waiting import HANG


def page(name):
    with open(os.path.join(ROOT, "docs", name + ".md")) as f:
        return f.read()


SERVING = (
    "serving",
    "serving-dialects",
    "serving-models",
    "serving-batches",
    "serving-speculation",
    "serving-operations",
)
PAGES = {name: page(name) for name in (*SERVING, "tools", "constrained")}
GUIDE = "".join(PAGES[name] for name in SERVING)
BLOCKS = [
    (name, kind, text)
    for name, p in PAGES.items()
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", p, re.S | re.M)
]
QUIET = ["--arch", "generic", "-t", "1", "--port", "0"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the files that the pages name."""
    home = tmp_path_factory.mktemp("guide")
    model = tiny_model.build(home / "model-folder", context=1024, words=("yes", "no"))
    for name in ("model.gguf", "model-1b.gguf", "model-8b.gguf", "Qwen3-8B", "step-20"):
        os.symlink(model, home / name)
    for i, name in enumerate(("adapter-a", "adapter-b")):
        tiny_model.adapter(home / name, model, i)
    return home


@pytest.fixture(scope="module")
def server(serve, home):
    with serve(
        home / "model-folder",
        "--arch",
        "generic",
        "-t",
        "1",
        "--model-name",
        "tiny",
        "--batch-dir",
        home / "batches",
    ) as s:
        yield s


def fitted(text, server):
    return (
        text.replace("http://127.0.0.1:8000", server.url)
        .replace("MODEL", "tiny")
        .replace("sleep(5)", "sleep(0.1)")
    )


def curl(text, server, **_):
    p = subprocess.run(
        ["sh", "-ec", fitted(text, server).replace("curl ", f"curl -sS -f -m {HANG} ")],
        capture_output=True,
        text=True,
    )
    assert p.returncode == 0 and p.stdout, p.stderr
    assert '"error' not in p.stdout


def python(text, server, home, tmp_path, **_):
    os.symlink(home / "model-folder", tmp_path / "model.gguf")
    p = subprocess.run(
        [sys.executable, "-c", fitted(text, server)],
        capture_output=True,
        timeout=HANG,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.path.join(ROOT, "bindings", "python"),
            "PYTHONIOENCODING": "utf-8",
        },
    )
    assert p.returncode == 0 and p.stdout.strip(), p.stderr


def command(text, home, binary, **_):
    """Run the server of the first line with the models that it names, and send it the
    following lines.
    """
    line, calls = text.split("\n", 1)
    line = re.sub(r"(?<=[ =])(model-folder|model[\w-]*\.gguf|adapter-[ab])\b", rf"{home}/\1", line)
    for folder in ("/srv/adapters", "~/models", "/dev/shm/run"):
        line = line.replace(folder, str(home))
    with Server([binary, *shlex.split(line)[1:], *QUIET], log=str(home / "log")) as s:
        told = [m["id"] for m in s.get("/v1/models").json()["data"]]
        assert told and set(re.findall(r"--(?:model|lora) (\w+)=", line)) <= set(told)
        if calls:
            curl(calls, s)


def shape(text):
    """Return the output of a starting server without names and numbers."""
    text = re.sub(r"^\S+ on \S+$", "MODEL on TARGET", text.strip(), flags=re.M)
    return [
        " ".join(line.split())
        for line in re.sub(r"\d+", "N", re.sub(r"[\d.]+ (?:[KMG]i)?B\b", "SIZE", text)).split("\n")
    ]


def first_lines(text, server, **_):
    assert shape(text) == shape(server.head)


def keys(text, home, serve, tmp_path, **_):
    (tmp_path / "keys").write_text(text)
    names = [line.split()[1] for line in text.splitlines() if not line.startswith("#")]
    with serve(
        home / "model-folder", "--arch", "generic", "-t", "1", "--keys", tmp_path / "keys"
    ) as s:
        for key, status in [*((k, 200) for k in names), ("sk-another", 401)]:
            assert (
                s.post(
                    "/v1/completions",
                    {"prompt": "a", "max_tokens": 1},
                    headers={"Authorization": f"Bearer {key}"},
                ).status
                == status
            )


def settings(text, binary, tmp_path, **_):
    (tmp_path / "serve.yaml").write_text(
        text.replace("SmolLM2-135M-Instruct.Q4_1.gguf", "no-such-model.gguf")
    )
    p = subprocess.run(
        [binary, "serve", "--config", tmp_path / "serve.yaml"], capture_output=True, text=True
    )
    assert (
        p.returncode == 1 and "no-such-model.gguf" in p.stderr and "no such setting" not in p.stderr
    )


HOW = [  # kind, start of the block, how to run it
    ("sh", "curl ", curl),
    ("sh", "llmc serve ", command),
    ("python", "", python),
    ("", "context 8192, the model's", first_lines),
    ("", "# name ", keys),
    ("yaml", "model:", settings),
]
NOT_RUN = [  # kind, start of the block, reason
    ("yaml", "scrape_configs:", "a file of Prometheus, which the tests do not have")
]


def ways(kind, text):
    return [way for k, begin, way in (*HOW, *NOT_RUN) if k == kind and text.startswith(begin)]


def test_no_block_escapes():
    for name, p in PAGES.items():
        assert len(re.findall(r"^ *(?:```|~~~)", p, re.M)) == 2 * sum(b[0] == name for b in BLOCKS)
    assert [(kind, text) for _, kind, text in BLOCKS if len(ways(kind, text)) != 1] == []
    assert [
        row[:2]
        for row in (*HOW, *NOT_RUN)
        if not any(k == row[0] and t.startswith(row[1]) for _, k, t in BLOCKS)
    ] == []


RUN = [b for b in BLOCKS if any(callable(way) for way in ways(*b[1:]))]


@pytest.mark.parametrize(
    "text, way",
    [(t, ways(k, t)[0]) for _, k, t in RUN],
    ids=[f"{n}-{i}" for i, (n, _, _) in enumerate(RUN)],
)
def test_block(text, way, server, serve, home, llmc_binary, tmp_path):
    way(text=text, server=server, serve=serve, home=home, binary=llmc_binary, tmp_path=tmp_path)


def test_every_option_and_route_is_documented(llmc_binary):
    text = subprocess.run([llmc_binary, "serve", "--help"], capture_output=True, text=True).stdout
    options = [*re.findall(r"--([a-z-]+)", text.split("examples:")[0]), "help"]
    assert len(options) > 40 and [o for o in options[:-1] if f"`--{o}" not in GUIDE] == []
    told = set(re.findall(r"--([a-z][a-z-]+)", GUIDE))
    assert sorted(told - set(options)) == []
    with open(os.path.join(ROOT, "serve", "http", "routes.def")) as f:
        routes = re.findall(r'ROUTE\("(GET|POST|DELETE)", +"([^"]+)"', f.read())
    assert [p for _, p in routes if p != "/page/" and p.rstrip("/") not in GUIDE] == []


def test_tables_of_the_guide_are_current(llmc_binary):
    p = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "serving_doc.py"), "--check"],
        env={**os.environ, "LLMC": str(llmc_binary)},
        capture_output=True,
        text=True,
    )
    assert p.returncode == 0, p.stderr
