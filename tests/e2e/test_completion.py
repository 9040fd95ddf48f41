"""Completions of bash, zsh and fish, and man pages: each has every option of --help, and each shell completes a real line."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from waiting import HANG  # noqa: E402

LLMC = os.path.abspath(os.path.join(os.environ.get("BUILD", "build"), "llmc"))
SHELLS = ("bash", "zsh", "fish")


def call(*args, **more):
    return subprocess.run(
        args, capture_output=True, text=True, check=True, timeout=HANG, **more
    ).stdout


@pytest.fixture(scope="module")
def commands():
    names = re.findall(r"^  (\w+) +\w", call(LLMC, "--help").split("\n\nA model")[0], re.M)
    return [*names, "bench serve", "bench mla"]


@pytest.fixture(scope="module")
def options(commands):
    """Options of each command: (letter or None, name), from --help."""
    return {
        c: re.findall(r"^  (?:-(\w), |    )--([\w-]+)", call(LLMC, *c.split(), "--help"), re.M)
        for c in commands
    }


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("man1")
    call(LLMC, "man", "--out", folder)
    return {p.name: p for p in folder.iterdir()}


def script(shell, folder):
    path = folder / shell
    path.write_text(call(LLMC, "completion", shell))
    return path


def needs(tool):
    if not shutil.which(tool):
        pytest.skip(f"{tool} is not installed")


def test_every_option_has_an_entry_in_its_man_page(pages, options):
    for command, rows in options.items():
        text = pages[f"llmc-{command.replace(' ', '-')}.1"].read_text().replace("\\-", "-")
        for letter, name in rows:
            short = f"\\fB-{letter}\\fR, " if letter else ""
            assert f".TP\n{short}\\fB--{name}\\fR" in text, (command, name)
        assert text.count("\n.TP\n") == len(rows) + 1  # --help


def test_pages_list_each_other(pages, commands):
    listed = re.findall(
        r"^\.BR (\S+) \(1\)$", pages["llmc.1"].read_text().replace("\\-", "-"), re.M
    )
    assert listed == sorted(listed, key=listed.index) and set(listed) == {
        f"llmc-{c.replace(' ', '-')}" for c in commands
    }
    assert set(pages) == {"llmc.1", *(f"{name}.1" for name in listed)}


def test_man_writes_one_page_to_standard_output(pages):
    assert call(LLMC, "man", "run") == pages["llmc-run.1"].read_text()
    assert call(LLMC, "man", "bench", "serve") == pages["llmc-bench-serve.1"].read_text()
    assert call(LLMC, "man") == pages["llmc.1"].read_text()


@pytest.mark.parametrize(
    "checker", (["man", "--warnings", "-l", "-E", "UTF-8"], ["mandoc", "-Tlint", "-Wwarning"])
)
def test_man_pages_are_without_warnings(pages, checker):
    needs(checker[0])
    for page in pages.values():
        r = subprocess.run(
            [*checker, page], capture_output=True, text=True, env={**os.environ, "MANPAGER": "cat"}
        )
        said = r.stderr + (r.stdout if checker[0] == "mandoc" else "")
        lines = [s for s in said.splitlines() if s and "missing date" not in s]
        assert not lines, (page.name, lines)


@pytest.mark.parametrize(
    "args, message",
    (
        (("completion",), "name a shell: bash, zsh or fish"),
        (("completion", "tcsh"), "tcsh: expected bash, zsh or fish"),
        (("man", "walk"), "walk: no such command"),
        (("man", "run", "--out", "x"), "--out writes all pages; name no command"),
    ),
)
def test_mistakes_are_named(args, message):
    r = subprocess.run([LLMC, *args], capture_output=True, text=True)
    assert r.returncode == 1 and message in r.stderr


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    r = subprocess.run([LLMC, "man", "--out", tmp_path / "no"], capture_output=True, text=True)
    assert r.returncode == 2 and "no/llmc.1: cannot write: No such file" in r.stderr


def test_settings_of_serve_do_not_change_its_page(pages):
    env = {**os.environ, "LLMC_SERVE_PORT": "many", "LLMC_SERVE_CONFIG": "/no/such/file"}
    assert call(LLMC, "man", "serve", env=env) == pages["llmc-serve.1"].read_text()


def bash(line, folder):
    """Candidates of bash for the end of a line, split as readline does."""
    words = re.findall(r"[^\s=]+|=", line) + ([""] if line.endswith(" ") else [])
    code = f"""
source {script("bash", folder)}
compopt() {{ :; }}
COMP_WORDS=({" ".join(f"'{w}'" for w in words)})
COMP_CWORD={len(words) - 1}
_llmc
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return call("bash", "--norc", "-c", code, cwd=folder).split()


def fish(line, folder):
    code = f"source {script('fish', folder)}; complete -C '{line}'"
    env = {**os.environ, "HOME": str(folder)}
    out = call("fish", "--no-config", "-c", code, cwd=folder, env=env)
    return [s.split("\t")[0] for s in out.splitlines()]


CASES = (
    ("llmc ba", [], {"run", "chat"}),
    ("llmc ver", ["verify"], {"run"}),
    ("llmc run --dev", ["--device"], {"--prompt"}),
    ("llmc run --device ", ["cpu", "cuda", "ref"], {"model.gguf", "--prompt"}),
    ("llmc run --device=c", ["cpu", "cuda"], {"ref"}),
    ("llmc run -w mo", ["model.gguf"], {"--prompt"}),
    ("llmc run --temperature ", [], {"model.gguf", "--prompt"}),
    ("llmc run mo", ["model.gguf"], {"--prompt"}),
    ("llmc model.gguf --pro", ["--prompt"], {"run"}),
    ("llmc bench m", ["mla", "model.gguf"], {"serve"}),
    ("llmc bench serve --ra", ["--rate"], {"--runs"}),
    ("llmc man qu", ["quantize"], {"run"}),
    ("llmc completion ", ["bash", "fish", "zsh"], {"model.gguf"}),
)


@pytest.mark.parametrize("shell", (bash, fish), ids=("bash", "fish"))
@pytest.mark.parametrize("line, wanted, absent", CASES, ids=[c[0] for c in CASES])
def test_a_shell_offers_what_can_follow(shell, line, wanted, absent, tmp_path):
    needs(shell.__name__)
    (tmp_path / "model.gguf").write_text("")
    found = [w.split("=")[-1] for w in shell(line, tmp_path)]
    assert set(wanted) <= set(found) and not absent & set(found), found


@pytest.mark.parametrize("shell", (bash, fish), ids=("bash", "fish"))
def test_a_shell_offers_every_option_of_a_command(shell, options, tmp_path):
    needs(shell.__name__)
    for command in ("run", "serve", "bench serve"):
        found = set(shell(f"llmc {command} --", tmp_path))
        assert found >= {f"--{name}" for _, name in options[command]}


def test_the_script_of_zsh_has_every_option(options, tmp_path):
    text = script("zsh", tmp_path).read_text()
    for command, rows in options.items():
        body = text.split(f"\n\t'{command}')\n")[1].split("\n\t\t;;\n")[0]
        for letter, name in rows:
            assert re.search(rf"[\s,}}']--{name}[=}}']", body), (command, name)
            assert not letter or f"{{-{letter}" in body


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_free_of_syntax_errors(shell, tmp_path):
    needs(shell)
    call(shell, "-n", script(shell, tmp_path))


@pytest.mark.parametrize("shell, start", (("bash", ["--norc", "-i"]), ("zsh", ["-f", "-i"])))
def test_a_key_completes_a_line_on_a_terminal(shell, start, tmp_path):
    """The shell itself completes a command, an option and its value; a function prints the line."""
    needs(shell)
    path = script(shell, tmp_path)
    setup = "autoload -U compinit; compinit -D -u; " if shell == "zsh" else ""
    setup += f"source {path}; llmc() {{ printf '<%s>' \"$@\"; echo; }}; echo re''ady\n"
    for line, wanted in (
        ("llmc ver\tx.gguf --th\t3\n", ("<verify><x.gguf><--threads><3>",)),
        ("llmc run x.gguf --dev\tcu\t\n", ("<run><x.gguf><--device><cuda>",)),
        ("llmc bench serve --ra\t2\n", ("<bench><serve><--rate><2>",)),
    ):
        out = interact([shell, *start], setup, line, tmp_path).replace("=", "><")
        assert any(w in out for w in wanted), out


def interact(argv, setup, line, folder):
    """Run a shell on a terminal: a line once it is ready. Return what it printed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ.update(TERM="dumb", HOME=str(folder), HISTFILE="")
        os.execvp(argv[0], argv)
    out, todo = b"", [(b"ready\r\n", line + "exit\n")]
    os.write(fd, setup.encode())
    while select.select([fd], [], [], HANG)[0]:
        try:
            chunk = os.read(fd, 65536)
        except OSError:  # the shell has ended
            break
        out += chunk
        if todo and todo[0][0] in out:
            os.write(fd, todo.pop(0)[1].encode())
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return out.decode(errors="replace")
