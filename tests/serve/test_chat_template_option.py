"""--chat-template, --chat-template-kwargs and the names of --model-name. Prompts of the library's
templates are those that llama.cpp's test of its own templates of these names expects; others are
rendered by jinja2."""

import json
import subprocess

import jinja2
import pytest
from waiting import HANG

import llmc

SAID = [
    ("system", "You are a helpful assistant"),
    ("user", "Hello"),
    ("assistant", "Hi there"),
    ("user", "Who are you"),
    ("assistant", "   I am an assistant   "),
    ("user", "Another question"),
]
MESSAGES = [{"role": r, "content": c} for r, c in SAID]


def turns(form, system, trim=False):
    """The messages by the form of a turn."""
    said = [(r, c.strip() if trim else c) for r, c in SAID]
    return (form if system is None else system).format(*said[0]) + "".join(
        form.format(*m) for m in said[1:]
    )


TURN = "<|START_OF_TURN_TOKEN|>"
OPTIONS = ["--arch", "generic", "-t", "1", "--seqs", "2"]
WANT = {
    "chatml": turns("<|im_start|>{}\n{}<|im_end|>\n", None) + "<|im_start|>assistant\n",
    "zephyr": turns("<|{}|>\n{}</s>\n", None) + "<|assistant|>\n",
    "phi3": "<s>" + turns("<|{}|>\n{}<|end|>\n", None) + "<|assistant|>\n",
    "llama3": "<s>"
    + turns("<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>", None, True)
    + "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "command-r": "<s>"
    + turns(TURN + "<|{}_TOKEN|>{}<|END_OF_TURN_TOKEN|>", None, True)
    .replace("system_", "SYSTEM_")
    .replace("user_", "USER_")
    .replace("assistant_", "CHATBOT_")
    + TURN
    + "<|CHATBOT_TOKEN|>",
    "gemma": "<s><start_of_turn>user\nYou are a helpful assistant\n\n"
    + turns("<start_of_turn>{}\n{}<end_of_turn>\n", "", True)
    .removeprefix("<start_of_turn>user\n")
    .replace("assistant\n", "model\n")
    + "<start_of_turn>model\n",
    "vicuna": "<s>You are a helpful assistant\n\nUSER: Hello\nASSISTANT: Hi there</s>\n"
    "USER: Who are you\nASSISTANT:    I am an assistant   </s>\nUSER: Another question\n"
    "ASSISTANT:",
    "llama2": "<s>[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST] Hi there "
    "</s><s>[INST] Who are you [/INST] I am an assistant </s><s>[INST] Another question [/INST]",
}


@pytest.mark.parametrize("name", WANT)
def test_templates_of_the_library(tiny_folder, name):
    with llmc.open(tiny_folder, arch="generic", no_weights=True, chat_template=name) as m:
        assert m.tokenizer.chat(MESSAGES) == WANT[name]


def test_a_file_or_a_source_replaces_the_template(serve, tiny_folder, tmp_path):
    source = (
        "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
        "{% if add_generation_prompt %}[{{ mood | default('plain') }}]{% endif %}\n"
    )
    render = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source).render
    file = tmp_path / "own.jinja"
    file.write_text(source)
    for value in (file, source):
        options = [*OPTIONS, "--chat-template", value]
        options += ["--chat-template-kwargs", '{"mood": "dark"}', "--model-name", "tiny"]
        with serve(tiny_folder, *options) as s:
            body = {"messages": MESSAGES, "max_tokens": 3, "temperature": 0}
            for kwargs in ({}, {"mood": "bright"}):
                want = render(
                    messages=MESSAGES, add_generation_prompt=True, **{"mood": "dark", **kwargs}
                )
                asked = {**body, "chat_template_kwargs": kwargs}
                assert s.post("/apply-template", asked).json() == {"prompt": want}
                r = s.post("/v1/chat/completions", {**asked, "verbose": True}).json()
                n = r["usage"]["prompt_tokens"]
                assert r["__verbose"] == {"prompt": want, "tokens_evaluated": n}
            frames = s.post(
                "/v1/chat/completions", {**body, "verbose": True, "stream": True}
            ).frames()
            shown = [json.loads(f) for f in frames[:-1]]
            assert [f["__verbose"]["prompt"] for f in shown if "__verbose" in f] == [
                render(messages=MESSAGES, add_generation_prompt=True, mood="dark")
            ]
            assert "__verbose" not in s.post("/v1/chat/completions", body).json()
            assert s.get("/props").json()["chat_template"].rstrip() == source.rstrip()


def test_a_name_is_no_file(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemma").mkdir()
    (tmp_path / "chatml").write_text("{{ messages[0].content }}")
    for value, want in (
        ("gemma", WANT["gemma"]),
        ("chatml", WANT["chatml"]),
        ("./chatml", SAID[0][1]),
    ):
        with llmc.open(tiny_folder, arch="generic", no_weights=True, chat_template=value) as m:
            assert m.tokenizer.chat(MESSAGES) == want
    (tmp_path / "plain").write_text("no marks")
    (tmp_path / "nul").write_bytes(b"{{ messages }}\0{{ 1 }}")
    for value, word in (
        ("./gemma", "no such file"),
        ("plain", "no {{ or {%"),
        ("nul", "NUL bytes"),
        ("", "no such file"),
    ):
        with pytest.raises(llmc.Error, match=word):
            llmc.open(tiny_folder, arch="generic", no_weights=True, chat_template=value)


@pytest.mark.parametrize(
    "options,word",
    [
        (["--chat-template", "no-such-name"], "chatml, command-r"),
        (["--chat-template", "{% if %}"], "chat template"),
        (["--chat-template", "{{ messages"], "chat template"),
        (["--chat-template-kwargs", "[1]"], "expected a JSON object"),
        (["--chat-template-kwargs", "{"], "chat_template_kwargs"),
        (["--chat-template-kwargs", '{"messages": []}'], "'messages' is a field of requests"),
    ],
)
def test_wrong_values_are_errors_at_start(llmc_binary, tiny_folder, options, word):
    r = subprocess.run(
        [llmc_binary, "serve", tiny_folder, "--port", "0", *OPTIONS, *options],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert r.returncode not in (0, -6, -11) and word in r.stderr, r.stderr


def test_a_chat_on_the_command_line(llmc_binary, tiny_folder):
    command = [llmc_binary, "run", tiny_folder, "--arch", "generic", "-t", "1", "--chat", "-p", "a"]
    command += ["--max-tokens", "4", "--temperature", "0", "-q"]
    said = {}
    for more in ([], ["--chat-template", "{{ messages[0].content }}"], ["--chat-template", "phi3"]):
        r = subprocess.run([*command, *more], capture_output=True, timeout=HANG)
        assert r.returncode == 0, r.stderr
        said[r.stdout] = more
    with llmc.open(tiny_folder, arch="generic") as m, m.engine(context=64, seqs=1) as e:
        want = e.submit(m.tokenizer.encode("a", False), max_tokens=4, temperature=0).wait()
    assert said[want["text"].encode() + b"\n"] == ["--chat-template", "{{ messages[0].content }}"]


def test_further_names(serve, tiny_folder):
    body = {"prompt": "a", "max_tokens": 1}
    with serve(tiny_folder, *OPTIONS, "--model-name", "one,two,org/three") as s:
        for name, status in (("one", 200), ("two", 200), ("org/three", 200), ("four", 404)):
            r = s.post("/v1/completions", {**body, "model": name})
            assert r.status == status, name
            assert status != 200 or r.json()["model"] == "one"
        (model,) = s.get("/v1/models").json()["data"]
        assert model["id"] == "one" and model["aliases"] == ["two", "org/three"]
        assert s.get("/v1/models/two").json()["id"] == "one"
    with serve(tiny_folder, *OPTIONS, "--model-name", "one,*") as s:
        r = s.post("/v1/completions", {**body, "model": "gpt-4.1"})
        assert r.status == 200 and r.json()["model"] == "one"
        (model,) = s.get("/v1/models").json()["data"]
        assert model["id"] == "one" and model["aliases"] == []


def test_any_name_needs_one_model(llmc_binary, tiny_folder):
    command = [llmc_binary, "serve", tiny_folder, "--port", "0", "--model-name", "a,*"]
    r = subprocess.run(
        [*command, "--models-dir", "."], capture_output=True, text=True, timeout=HANG
    )
    assert r.returncode != 0 and "goes with one model" in r.stderr
