"""The first minute: habits from other engines, misspelt words, help, progress lines."""

import os
import pty
import re
import subprocess

import pytest

TINY = "configs/tiny.yaml"
RUN = ["--random-weights", "--arch", "generic", "--tokens", "1,2,3", "--ignore-eos"]


def ids(llmc, *args):
    return llmc.json(*args)["tokens"]


@pytest.mark.parametrize(
    "args",
    [
        ["run", "-m", TINY, *RUN, "-n", "4"],
        ["run", "--model", TINY, *RUN, "--n-predict", "4"],
        ["run", TINY, *RUN, "-n4"],
        ["run", TINY, *RUN, "-n=4", "-t=1"],
        ["run", TINY, *RUN, "--max_tokens", "4"],
        ["run", TINY, *RUN, "--max_tokens=4", "-np", "2", "-c", "64"],
        ["run", TINY, *RUN, "--predict", "4", "--temp", "0", "--ctx-size", "64"],
        ["run", TINY, *RUN, "-n", "4", "--target", "cpu"],
        [TINY, *RUN, "-n", "4"],
        ["-m", TINY, *RUN, "-n", "4"],
    ],
)
def test_habits_work(llmc, args):
    assert ids(llmc, *args) == ids(llmc, "run", TINY, *RUN, "--max-tokens", "4")


def test_an_option_of_another_engine_has_the_value_of_its_own_name(llmc):
    hot = ["run", TINY, *RUN, "-n", "12"]
    want = ids(llmc, *hot, "--temperature", "5", "--seed", "3", "--repetition-penalty", "1.5")
    assert ids(llmc, *hot, "--temp", "5", "-s", "3", "--repeat-penalty", "1.5") == want
    assert ids(llmc, *hot) != want


@pytest.mark.parametrize(
    "args, text",
    [
        (["run", TINY, "-ngl", "many"], "--offload many: unknown; expected auto alone"),
        (["chat", TINY, "--n-gpu-layers", "many"], "--offload many"),
        (["serve", TINY, "-ngl", "many"], "--offload many"),
        (["run", TINY, "-ngl=many"], "--offload many"),
        (["run", "-hff", "a.gguf"], "append the file to the name of the model: hf:ORG/REPO:FILE"),
        (["serve", TINY, "--temp", "1"], "set temperature in the request"),
        (["serve", TINY, "-ctk", "q8_0"], "use --kv"),
        (["run", TINY, "-nx"], "-nx: no such option"),
        (["run", TINY, "-tb", "4"], "-tb: no such option"),
        (["run", TINY, "--promt", "x"], "no such option; did you mean --prompt?"),
        (["run", TINY, "--max-tokns=4"], "did you mean --max-tokens?"),
        (["run", TINY, "--quant", "q4_k"], "did you mean --quantize?"),
        (["serve", TINY, "--prot", "80"], "did you mean --port?"),
        (["rum", TINY], "no such command; did you mean llmc run?"),
        (["server", TINY], "did you mean llmc serve?"),
        (["help", "chta"], "did you mean llmc chat?"),
        (["pull", "x"], "x: not the name of a model"),
        (["pull", "ORG/REPO"], "did you mean hf:ORG/REPO?"),
        (["pull"], "name a model"),
        (["ls"], "run `llmc list`"),
        (["frobnicate"], "no such command, and no such model file or folder; llmc --help lists"),
        (["run"], "run: name a model: a GGUF file, a folder, a description, or hf:ORG/REPO"),
        (["run", TINY, "--hlep"], "did you mean --help?"),
        (["run", TINY, "--tempp", "1"], "did you mean --temp?"),
        (["run", TINY, "--n-predit", "1"], "did you mean --n-predict?"),
        (["run", TINY, "-prompt", "x"], "did you mean --prompt?"),
        (["run", TINY, "-temperature", "1"], "did you mean --temperature?"),
        (["run", "configs/tiny.yml"], "did you mean configs/tiny.yaml?"),
        (["configs/tyni.yaml"], "did you mean configs/tiny.yaml?"),
        (["run", "smollm2-135m"], "did you mean configs/smollm2-135m.yaml?"),
        (["run", "ORG/REPO"], "no such file or folder; did you mean hf:ORG/REPO?"),
        (["run", "hf:ORG/../x"], "not the name of a repository"),
        (["https://example.org/a.zip"], "must end in the name of a .gguf or .flm file"),
        (["run", "ftp://example.org/a.gguf"], "downloads from https:// and http:// addresses only"),
        (["run", "-m", TINY, "-m", TINY], "the model is named twice"),
        (["run", "-m"], "needs a value"),
    ],
)
def test_other_habits_and_misspelt_words_get_the_way_out(llmc, args, text):
    llmc(*args, code=1)
    assert text in llmc.err and llmc.err.count("\n") == 1


def test_device_and_target_are_the_same(llmc, tmp_path):
    for name in ("--device", "--target"):
        llmc("compile", TINY, name, "ref", "-o", tmp_path / name)
        assert (tmp_path / name / "plan-ref.json").exists()
        plan = llmc.json("plan", TINY, name, "ref")["plan"]
        assert plan["target"] == "ref"


def test_a_misspelt_setting_of_a_file_gets_its_neighbour(llmc, tmp_path):
    (tmp_path / "s.yaml").write_text("prot: 80\n")
    llmc("serve", TINY, "--config", tmp_path / "s.yaml", code=1)
    assert "s.yaml:1: prot: no such setting; did you mean port?" in llmc.err


def test_help_and_version_as_words(llmc):
    llmc("run", "--help")
    want = llmc.out
    llmc("help", "run")
    assert llmc.out == want
    llmc("--version")
    want = llmc.out
    llmc("version")
    assert llmc.out == want


def test_help_gives_the_default_of_each_number(llmc):
    """Options of run, chat, bench and serve that take a number show the value that applies without them."""
    for c in ("run", "chat", "bench", "serve"):
        llmc(c, "--help")
        for line in llmc.out.splitlines():
            if re.match(r"  (-\w, |    )--[a-z-]+ (N|X|SECONDS) ", line):
                assert re.search(r"\[.*\]", line), line
    llmc("chat", "--help")
    assert re.search(r"--temperature X .*\[0\.7\]", llmc.out)
    assert re.search(r"--top-p X .*\[0\.95\]", llmc.out)
    llmc("run", "--help")
    assert re.search(r"--temperature X .*\[0\]", llmc.out)


def test_what_few_need_is_not_on_the_first_screen_of_help(llmc):
    for c in ([], ["run"], ["serve"], ["import"]):
        llmc(*c, "--help")
        first = "\n".join(llmc.out.splitlines()[:60])
        assert not re.search(r"FastLLM|\.flm|TGI's routes|waiting-served|validation-wo", first)


def test_progress_only_on_a_terminal(llmc, tmp_path):
    run = [llmc.path, "run", TINY, *RUN, "-n", "1"]
    env = {**os.environ, "TERM": "xterm"}
    p = subprocess.run(
        run, capture_output=True, text=True, env={**env, "LLMC_CACHE": tmp_path / "a"}
    )
    assert p.returncode == 0 and re.search(r"^compiling \d+ kernels for cpu-generic", p.stderr)
    assert not re.search("compiled|\r|\033", p.stderr)
    at, side = pty.openpty()
    p = subprocess.run(
        run, stdout=subprocess.PIPE, stderr=side, env={**env, "LLMC_CACHE": tmp_path / "b"}
    )
    os.close(side)
    shown = b""
    while True:
        try:
            shown += os.read(at, 65536)
        except OSError:  # the other side is closed
            break
    os.close(at)
    assert p.returncode == 0 and re.search(rb"compiled \d+ of \d+ kernels\r\033\[K", shown)
