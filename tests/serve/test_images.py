"""Images through every interface of the server, on a tiny model (tiny_vision.py): prompts and
answers against transformers, the real clients, limits, the prefix cache, and hostile input.
"""

import base64
import concurrent.futures
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading

import anthropic
import ollama
import openai
import pytest

import tiny_vision
from test_batches import ENDED, form
from waiting import HANG, reserved_port

from tiny_vision import IMAGES, MARKS, data_url, png, png_of, text_part, url_part, weights

ROOT = pathlib.Path(__file__).resolve().parents[2]
with open(os.path.join(weights.VISION, "chats.json")) as f:
    MODELS = json.load(f)
CHATS = MODELS["smolvlm-plain"]
FILES = [open(path, "rb").read() for path in IMAGES]
IMAGE = tiny_vision.tiny_model.vocabulary(MARKS).index("<image>")
GREEDY = {"max_tokens": 8, "temperature": 0, "ignore_eos": True}
OPTIONS = ["--set", "kv.dtype=f32", "--context", "1024", "--model-name", "v"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_vision.build(tmp_path_factory.mktemp("images") / "vision")


@pytest.fixture(scope="module")
def server(serve, folder, tmp_path_factory):
    home = tmp_path_factory.mktemp("batches")
    with serve(
        folder, "--arch", "generic", "-t", "1", "--seqs", "4", "--batch-dir", home, *OPTIONS
    ) as s:
        yield s
        s.idle()
        assert s.stop()[0] == 0


def chat(messages, **more):
    """Messages of CHATS with their files as data: URLs"""
    return [
        {
            **m,
            "content": [
                url_part(FILES[p.get("file", 0)], **more) if p["type"] == "image" else p
                for p in m["content"]
            ],
        }
        for m in messages
    ]


def ask(s, content, **more):
    messages = content if isinstance(content[0], dict) and "role" in content[0] else None
    messages = messages or [{"role": "user", "content": content}]
    return s.post("/v1/chat/completions", {"messages": messages, **GREEDY, **more})


def answer(s, content, **more):
    r = ask(s, content, **more)
    assert r.status == 200, r.text
    return r.json()


@pytest.mark.parametrize("name", CHATS)
def test_prompts_and_answers_are_those_of_transformers(server, name):
    want = CHATS[name]
    low = {"detail": "low"} if name == "low" else {}
    got = answer(server, chat(want["messages"], **low), return_token_ids=True)
    assert got["prompt_token_ids"] == want["ids"]
    assert got["choices"][0]["token_ids"] == want["new"]
    details = got["usage"]["prompt_tokens_details"]
    images = want["ids"].count(IMAGE)
    assert got["usage"]["prompt_tokens"] == len(want["ids"])
    assert details.get("image_tokens", 0) == images and (images > 0) == (name != "text")


@pytest.mark.parametrize("name", [m for m in MODELS if MODELS[m] is not CHATS])
def test_other_models(serve, name, tmp_path):
    """Prompts and answers of a model per kind of tower, in steps that are shorter than a prompt, and
    again with a cached prefix."""
    folder = tiny_vision.build(tmp_path / "model", name=name)
    small = "--chunk", "24", "--max-batch-prefill-tokens", "3"
    with serve(folder, "--arch", "generic", "-t", "1", "--seqs", "2", *small, *OPTIONS) as s:
        for want in [*MODELS[name].values()] * 2:
            got = answer(s, chat(want["messages"]), return_token_ids=True)
            assert got["prompt_token_ids"] == want["ids"]
            assert got["choices"][0]["token_ids"] == want["new"]
            details = got["usage"]["prompt_tokens_details"]
            assert details["image_tokens"] > 0
        assert details["cached_tokens"] > 0


@pytest.mark.parametrize("name", ["smolvlm-plain", "qwen3_vl-plain"])
def test_gguf_models(serve, name, tmp_path):
    """The vision tower is found in the file next to the model."""
    model = tiny_vision.build_gguf(tmp_path / "model", name)
    with serve(model, "--arch", "generic", "-t", "1", *OPTIONS) as s:
        want = MODELS[name]["turns"]
        got = answer(s, chat(want["messages"]), return_token_ids=True)
        assert got["prompt_token_ids"] == want["ids"]
        assert got["choices"][0]["token_ids"] == want["new"]


def test_the_reference_gives_the_same(serve, folder):
    with serve(folder, "--device", "ref", *OPTIONS) as s:
        got = answer(s, chat(CHATS["turns"]["messages"]), return_token_ids=True)
        assert got["choices"][0]["token_ids"] == CHATS["turns"]["new"]


def test_openai_client(server):
    want = answer(server, chat(CHATS["turns"]["messages"]))["choices"][0]["message"]["content"]
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    stream = client.chat.completions.create(
        model="v",
        messages=chat(CHATS["turns"]["messages"]),
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == want
    assert chunks[-1].usage.prompt_tokens == len(CHATS["turns"]["ids"])


def input_items(messages):
    kinds = {"user": "input_text", "assistant": "output_text"}
    return [
        {
            "role": m["role"],
            "content": [
                {"type": "input_image", "image_url": data_url(FILES[p.get("file", 0)])}
                if p["type"] == "image"
                else {"type": kinds[m["role"]], "text": p["text"]}
                for p in m["content"]
            ],
        }
        for m in messages
    ]


def test_responses(server):
    want = answer(server, chat(CHATS["turns"]["messages"]))["choices"][0]["message"]["content"]
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
    items = input_items(CHATS["turns"]["messages"])
    got = client.responses.create(
        model="v", input=items, max_output_tokens=8, temperature=0, extra_body={"ignore_eos": True}
    )
    assert got.output_text == want and got.usage.input_tokens == len(CHATS["turns"]["ids"])
    n = server.post("/v1/responses/input_tokens", {"input": items}).json()["input_tokens"]
    assert n == len(CHATS["turns"]["ids"])


def block(data, media="image/png"):
    text = base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": media, "data": text}}


def blocks(messages):
    return [
        {
            "role": m["role"],
            "content": [
                block(FILES[p.get("file", 0)]) if p["type"] == "image" else p for p in m["content"]
            ],
        }
        for m in messages
    ]


def test_anthropic(server):
    want = answer(server, chat(CHATS["turns"]["messages"]))["choices"][0]["message"]["content"]
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    messages = blocks(CHATS["turns"]["messages"])
    more = {"extra_body": {"temperature": 0}}
    got = client.messages.create(model="v", max_tokens=8, messages=messages, **more)
    text = "".join(b.text for b in got.content)
    assert text and want.startswith(text)  # it may end at an end of sequence
    n = client.messages.count_tokens(model="v", messages=messages).input_tokens
    assert n == len(CHATS["turns"]["ids"])
    used = got.usage.input_tokens + got.usage.cache_read_input_tokens
    assert used == n


def test_images_in_tool_results(server):
    """They come before the rest of the message that has the results."""
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block(FILES[1])]}
    messages = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, text_part("Well?")]},
    ]
    body = {"model": "v", "messages": messages, "max_tokens": 8}
    assert server.post("/v1/messages", body).status == 200
    n = server.post("/v1/messages/count_tokens", body).json()["input_tokens"]
    image = answer(server, [url_part(FILES[1])], return_token_ids=True)["prompt_token_ids"]
    assert image.count(IMAGE) > 0
    messages[2]["content"] = [{**result, "content": []}, text_part("Well?")]
    empty = server.post("/v1/messages/count_tokens", body).json()["input_tokens"]
    assert n - empty >= image.count(IMAGE)
    output = [{"type": "input_image", "image_url": data_url(FILES[1])}]
    items = [
        {"role": "user", "content": "Go."},
        {"type": "function_call", "call_id": "t", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t", "output": output},
        {"role": "user", "content": "Well?"},
    ]
    r = server.post("/v1/responses", {"input": items, "max_output_tokens": 4})
    assert r.status == 200, r.text
    counted = server.post("/v1/responses/input_tokens", {"input": items}).json()["input_tokens"]
    items[2] = {**items[2], "output": ""}
    empty = server.post("/v1/responses/input_tokens", {"input": items}).json()["input_tokens"]
    assert counted - empty >= image.count(IMAGE)
    bad = {**result, "content": [text_part("x"), block(b"none")]}
    messages[2]["content"] = [bad]
    r = server.post("/v1/messages", body)
    assert r.status == 400 and "messages.2.content.0.content.1" in r.text


def test_ollama(server):
    """Images come before the text of a message."""
    client = ollama.Client(host=server.url)
    options = {"num_predict": 8, "temperature": 0, "repeat_last_n": 0, "ignore_eos": True}
    parts = [url_part(FILES[0]), url_part(FILES[1]), text_part("Well?")]
    want = answer(server, parts)["choices"][0]["message"]["content"]
    message = {"role": "user", "content": "Well?", "images": [IMAGES[0], FILES[1]]}
    got = client.chat("v", messages=[message], options=options)
    assert got.message.content == want
    got = client.generate("v", prompt="Well?", images=FILES, options=options)
    assert got.response == want
    assert got.prompt_eval_count == answer(server, parts)["usage"]["prompt_tokens"]
    assert client.show("v").capabilities == ["completion", "tools", "vision"]


def test_counting_and_tokenizing(server):
    messages = chat(CHATS["two"]["messages"])
    for path in "/tokenize", "/v1/tokenize":
        assert server.post(path, {"messages": messages}).json()["tokens"] == CHATS["two"]["ids"]
    r = server.post("/chat_tokenize", {"messages": messages}).json()
    assert r["templated_text"].count("<image>") == CHATS["two"]["ids"].count(IMAGE)


def test_batches(server):
    body = {"messages": chat(CHATS["one"]["messages"]), **GREEDY, "return_token_ids": True}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    data, headers = form(json.dumps(line).encode())
    name = server.post("/v1/files", data, headers=headers).json()["id"]
    made = {"input_file_id": name, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = server.post("/v1/batches", made).json()["id"]
    server.until(lambda: server.get(f"/v1/batches/{batch}").json()["status"] in ENDED)
    out = server.get(f"/v1/batches/{batch}").json()["output_file_id"]
    got = json.loads(server.get(f"/v1/files/{out}/content").text)["response"]["body"]
    assert got["choices"][0]["token_ids"] == CHATS["one"]["new"]


# ---- templates ----

STRINGS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BOTH = tiny_vision.TEMPLATE.replace(
    "{% for part", "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part"
).replace("{% endfor %}<|im_end|>", "{% endfor %}{% endif %}<|im_end|>")


def test_templates_that_read_strings_lists_or_both(server):
    """Strings have placeholders on lines of their own; lists keep the parts as they are."""
    two = [url_part(FILES[0]), text_part("Look"), url_part(FILES[1])]
    lines = [url_part(FILES[0]), text_part("\nLook\n"), url_part(FILES[1])]

    def prompt(parts, **more):
        return answer(server, parts, return_token_ids=True, **more)["prompt_token_ids"]

    assert prompt(two, chat_template=BOTH) == prompt(two)
    assert prompt(two, chat_template=STRINGS) == prompt(lines)
    hello = [text_part("Hello")]
    assert prompt(hello) == prompt(hello, chat_template=BOTH)
    assert prompt(hello) == prompt(hello, chat_template=STRINGS)


# ---- the prefix cache ----


def cached(s, content, headers=None):
    body = {"messages": [{"role": "user", "content": content}], **GREEDY, "max_tokens": 1}
    r = s.post("/v1/chat/completions", body, headers=headers)
    assert r.status == 200, r.text
    usage = r.json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]


def test_equal_images_share_pages_and_others_do_not(server):
    text = text_part("the same text after it, longer than a page: " + "x" * 40)
    a, b = png(40, 28, 1), png(40, 28, 2)
    assert cached(server, [url_part(a), text])[0] == 0
    n, total = cached(server, [url_part(a), text])
    assert n == total // 32 * 32 - (32 if total % 32 == 0 else 0)
    assert cached(server, [url_part(b), text])[0] == 0
    # the same image in another request: the text differs after it
    assert 0 < cached(server, [url_part(a), text_part("y" * 60)])[0] < n
    # the same file, prepared in another way
    assert cached(server, [url_part(a, detail="low"), text])[0] == 0


def test_keys_have_their_own_pages_and_images(serve, folder, tmp_path):
    (tmp_path / "keys").write_text("alice sk-a\nbob sk-b\n")
    part = [url_part(png(40, 28, 3)), text_part("z" * 60)]
    with serve(folder, "--arch", "generic", "-t", "1", "--keys", tmp_path / "keys", *OPTIONS) as s:
        keys = [{"Authorization": f"Bearer sk-{k}"} for k in "ab"]
        assert cached(s, part, keys[0])[0] == 0 and cached(s, part, keys[0])[0] > 0
        assert cached(s, part, keys[1])[0] == 0


def test_images_that_are_not_kept_are_read_again(serve, folder):
    with serve(folder, "--arch", "generic", "-t", "1", "--no-image-cache", *OPTIONS) as s:
        for _ in range(2):
            got = answer(s, chat(CHATS["turns"]["messages"]), return_token_ids=True)
            assert got["choices"][0]["token_ids"] == CHATS["turns"]["new"]


# ---- refusals and limits ----


def everywhere(s, data, model="v", media="image/png"):
    """The answers of all dialects to one image"""
    text = base64.b64encode(data).decode()
    yield ask(s, [url_part(data), text_part("?")])
    part = {"type": "input_image", "image_url": data_url(data, media)}
    yield s.post("/v1/responses", {"input": [{"role": "user", "content": [part]}]})
    messages = [{"role": "user", "content": [block(data), text_part("?")]}]
    yield s.post("/v1/messages", {"messages": messages, "max_tokens": 4})
    messages = [{"role": "user", "content": "?", "images": [text]}]
    yield s.post("/api/chat", {"model": model, "messages": messages})
    yield s.post("/api/generate", {"model": model, "prompt": "?", "images": [text]})


HOSTILE = {
    "truncated": (FILES[0][:-40], "truncated|damaged|PNG"),
    "text": (b"<html>no image</html>", "no image that llmc reads"),
    "empty": (b"", "empty"),
    "pdf": (b"%PDF-1.7 ", "PDF"),
    "bomb": (png_of(60000, 60000, b"\0" * (1 << 20)), "60000 x 60000 pixels; at most 67108864"),
    "short": (png_of(900, 900, b"\0" * 1000), "PNG"),
    "jpeg": (b"\xff\xd8\xff\xe0" + b"\0" * 40, "JPEG"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_images_are_a_400_in_each_dialect(server, name):
    data, why = HOSTILE[name]
    for r in everywhere(server, data):
        assert r.status == 400 and re.search(why, r.text), (r.status, r.text)
    assert answer(server, [text_part("still here")])


@pytest.mark.parametrize(
    "url,why",
    [
        ("data:image/png;base64,iVBO*", "character 4 of the data is no base64"),
        ("data:image/png;base64,iVBORw0KG", "base64 data is truncated"),
        ("data:image/png;base64,", "the image is empty"),
        ("data:image/png,abc", "expected 'data:image/...;base64,'"),
        ("data:text/plain;base64,aGk=", "of type 'text/plain' is no image"),
        ("data:", "expected 'data:image"),
        ("file:///etc/passwd", "begins with 'data:image/', got 'file:///etc/passwd'"),
        ("https://example.com/a.png", "fetches no images"),
        (7, "expected an 'image_url'"),
        (None, "expected an 'image_url'"),
    ],
)
def test_wrong_urls(server, url, why):
    r = ask(server, [{"type": "image_url", "image_url": {"url": url}}, text_part("?")])
    assert r.status == 400 and why in r.json()["error"]["message"], r.text
    assert r.json()["error"]["param"] == "messages[0].content[0]"


def test_wrong_parts(server):
    for part, why in (
        ({"type": "image_url"}, "expected an 'image_url'"),
        ({"type": "image", "image_url": []}, "expected an 'image_url'"),
        (url_part(FILES[0], detail="most"), "Invalid 'detail'"),
        ({"type": "input_audio", "input_audio": {}}, "'input_audio' is not supported"),
    ):
        r = ask(server, [part, text_part("?")])
        assert r.status == 400 and why in r.text, r.text
    for role in "system", "assistant":
        r = ask(server, [{"role": role, "content": [url_part(FILES[0])]}])
        assert r.status == 400 and f"not '{role}'" in r.text
    bad = {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": ""}}
    r = server.post(
        "/v1/messages", {"messages": [{"role": "user", "content": [bad]}], "max_tokens": 1}
    )
    assert r.status == 400 and "media_type: expected 'image/jpeg'" in r.text
    bad = {"type": "input_image", "file_id": "file-1"}
    r = server.post("/v1/responses", {"input": [{"role": "user", "content": [bad]}]})
    assert r.status == 400 and "images of files are not supported" in r.text
    r = ask(server, [url_part(FILES[0])], truncate_prompt_tokens=10)
    assert r.status == 400 and "cannot be truncated" in r.text


def test_a_wrong_media_type_does_not_matter(server):
    a = answer(server, [url_part(FILES[0])])
    part = {"type": "image_url", "image_url": data_url(FILES[0], "image/jpeg")}
    assert answer(server, [part])["choices"] == a["choices"]


@pytest.mark.parametrize("size", [(1, 1), (1, 3000), (3000, 1), (257, 3)])
def test_odd_sizes(server, size):
    assert answer(server, [url_part(png(*size)), text_part("?")])


def test_the_number_of_images_and_of_pixels(serve, folder):
    fifty = [*[url_part(png(8, 8))] * 50, text_part("?")]
    options = ["--max-images", "3", "--image-pixels", "1000"]
    with serve(folder, "--arch", "generic", "-t", "1", *options, *OPTIONS) as s:
        r = ask(s, fifty)
        assert r.status == 400 and "has 50 images; at most 3 are accepted" in r.text
        assert answer(s, fifty[-4:])
        r = ask(s, [url_part(png(40, 40)), text_part("?")])
        assert r.status == 400 and "40 x 40 pixels; at most 1000 are accepted" in r.text


def test_a_prompt_that_does_not_fit_is_refused_with_its_image_tokens(server):
    r = ask(server, [*[url_part(png(64, 64))] * 15, text_part("?")], max_tokens=1000)
    assert r.status == 400 and r.json()["error"]["code"] == "context_length_exceeded"


def test_large_bodies_are_accepted_by_default(server):
    """A photo has more bytes than the 2 MiB of a body for text."""
    padded = FILES[0] + b"\0" * (3 << 20)
    assert answer(server, [url_part(padded), text_part("?")])
    r = ask(server, [url_part(FILES[0] + b"\0" * (17 << 20)), text_part("?")])
    assert r.status == 413 and "larger than 20971520 bytes" in r.text


def test_the_token_of_images_in_a_message_is_text(server):
    """Else a client's text would move or replace images."""
    quoted = text_part("the mark <image> and \ufdd0")
    got = answer(server, [url_part(FILES[0]), quoted], return_token_ids=True)
    plain = answer(server, [url_part(FILES[0])], return_token_ids=True)
    assert got["prompt_token_ids"].count(IMAGE) == plain["prompt_token_ids"].count(IMAGE) > 0
    alone = answer(server, [quoted], return_token_ids=True)["prompt_token_ids"]
    assert IMAGE not in alone


def test_what_models_read(server, tiny):
    for s, modalities in (server, ["text", "image"]), (tiny, ["text"]):
        model = s.get("/v1/models").json()["data"][0]
        assert model["architecture"]["input_modalities"] == modalities
        assert s.get("/props").json()["modalities"]["vision"] == (len(modalities) == 2)


def test_a_model_that_reads_text_only_refuses_by_name(tiny, serve, folder):
    for r in everywhere(tiny, FILES[0], "tiny"):
        assert r.status == 400, r.text
        assert "The model 'tiny' reads text only, but the request has images (1)." in r.text
    with serve(folder, "--arch", "generic", "-t", "1", "--no-images", *OPTIONS) as s:
        r = ask(s, [url_part(FILES[0])])
        assert r.status == 400 and "The model 'v' reads text only" in r.text
        got = answer(s, chat(CHATS["text"]["messages"]), return_token_ids=True)
        assert got["prompt_token_ids"] == CHATS["text"]["ids"]
        warnings = open(s.log).read()
        assert "only the language model" not in warnings


def test_the_memory_of_a_tower_counts_for_later_models(serve, folder, tiny_folder):
    """The first model is open when its memory is measured, a later one only described."""
    models, towers = [f"--model=v={folder}", f"--model=a={tiny_folder}"], []
    for order in models, models[::-1]:
        sizes = []
        for more in [], ["--no-images"]:
            with serve(*order, "--arch", "generic", "-t", "1", *OPTIONS[:4], *more) as s:
                listed = s.status()["models"]
                sizes.append(next(m["bytes"] for m in listed if m["name"] == "v"))
                content = [url_part(FILES[0])][: not more] + [text_part("?")]
                messages = [{"role": "user", "content": content}]
                r = s.post("/v1/chat/completions", {"model": "v", "messages": messages, **GREEDY})
                assert r.status == 200, r.text
        towers.append(sizes[0] - sizes[1])
    assert towers[0] == towers[1] > 0


def test_a_model_that_is_opened_at_once_leaves_memory_for_its_tower(serve, folder):
    """With --memory, its context is that of the model without images in as much less memory."""

    def opened(memory, *more):
        options = ("--arch", "generic", "-t", "1", "--set", "kv.dtype=f32", "--seqs", "1", *more)
        with serve(folder, *options, "--memory", str(memory)) as s:
            model = s.get("/v1/models").json()["data"][0]
            return s.status()["models"][0]["bytes"], model["max_model_len"]

    (whole, most), (text, _) = opened(1 << 30), opened(1 << 30, "--no-images")
    tower = whole - text
    assert tower > 0
    held = opened(whole)
    assert held[0] <= whole and opened(whole - tower, "--no-images")[1] >= held[1]
    assert held[1] < opened(whole, "--no-images")[1] <= most


def test_a_described_model_leaves_memory_for_its_tower(serve, folder, tmp_path):
    """Its context is at most that of the model without images in as much less memory."""
    shutil.copytree(folder, tmp_path / "v")

    def described(*more, free=1 << 40):
        options = ("--arch", "generic", "-t", "1", "--set", "kv.dtype=f32", "--seqs", "1", *more)
        env = {"LLMC_FREE_MEMORY": str(free)}
        with serve(f"--models-dir={tmp_path}", *options, env=env) as s:
            assert s.post("/models/load", {"model": "v"}).status == 200
            model = s.get("/v1/models").json()["data"][0]
            return s.status()["models"][0]["bytes"], model["max_model_len"]

    (whole, most), (text, _) = described(), described("--no-images")
    tower = whole - text
    assert tower > 0
    # KV takes the rest, so the tower's bytes are tokens that the context loses
    smaller = described("--no-images", free=whole - tower)[1]
    assert described(free=whole)[1] <= smaller < described("--no-images", free=whole)[1] < most


def test_a_client_that_leaves_ends_the_work(server):
    """Its images are dropped, and others are served."""
    body = json.dumps({"messages": chat(CHATS["turns"]["messages"]), **GREEDY}).encode()
    for _ in range(4):
        c = server.connect()
        c.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        c.close()
    server.idle()
    assert answer(server, chat(CHATS["one"]["messages"]))


# ---- URLs ----


class Files(http.server.BaseHTTPRequestHandler):
    """/a.png: an image; /to/HOST:PORT/PATH: a redirect; /large: bytes without an end"""

    def do_GET(self):
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", "http://" + self.path[4:])
            self.end_headers()
        elif self.path == "/a.png":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(FILES[0])
        elif self.path == "/large":
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(40):
                    self.wfile.write(b"\0" * (1 << 20))
            except OSError:
                pass
        else:
            self.send_error(404)

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def files():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{s.server_port}"
        s.shutdown()


def test_urls(serve, folder, files):
    host, port = files.split(":")
    other = int(port) + 1 if int(port) < 65535 else 1
    hosts = f"{files},localhost:{port}"
    with serve(folder, "--arch", "generic", "-t", "1", "--allow-image-urls", hosts, *OPTIONS) as s:

        def get(url):
            return ask(s, [{"type": "image_url", "image_url": {"url": url}}, text_part("?")])

        want = answer(s, [url_part(FILES[0]), text_part("?")])["choices"]
        assert get(f"http://{files}/a.png").json()["choices"] == want
        assert get(f"http://{files}/to/{files}/a.png").json()["choices"] == want
        source = {"type": "image", "source": {"type": "url", "url": f"http://{files}/a.png"}}
        body = {"messages": [{"role": "user", "content": [source]}], "max_tokens": 1}
        assert s.post("/v1/messages", body).status == 200
        for url, why in (
            (f"http://localhost:{port}/a.png", "leads to an address that is not public"),
            (f"http://{host}:{other}/a.png", f"The host 127.0.0.1, port {other}, is not one"),
            (f"http://{files}/to/{host}:{other}/a.png", f"port {other}, is not one"),
            (f"http://{files}/to/localhost:{port}/a.png", "that is not public"),
            (f"http://{files}/to/{files}/to/{files}/to/{files}/to/{files}/x", "more than 3 times"),
            (f"http://{files}/none", "answers 404"),
            (f"http://{files}/large", "more than 33554432 bytes"),
            (f"http://{files}@example.com/", "has no valid host"),
            (f"http://example.com\\@{files}/", "must be encoded"),
            ("https://example.com/a.png", "The host example.com, port 443, is not one"),
        ):
            r = get(url)
            assert r.status == 400 and why in r.text, (url, r.text)


def test_keys_take_turns_at_the_tower(serve, folder, tmp_path):
    """The image of a key is read after the one that is being read, not after all earlier ones."""
    (tmp_path / "keys").write_text("alice sk-a\nbob sk-b\n")
    order, gate = [], threading.Event()

    class Slow(Files):
        def do_GET(self):
            order.append(self.path)
            assert gate.wait(HANG)
            self.path = "/a.png"
            super().do_GET()

    def send(key, name):
        part = {"type": "image_url", "image_url": {"url": f"http://{host}/{name}"}}
        a = s.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1},
            headers={"Authorization": f"Bearer {key}"},
        )
        assert a.status == 200, a.text

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        options = ("--keys", tmp_path / "keys", "--api-key", "sk-all", "--allow-image-urls", host)
        with serve(folder, "--arch", "generic", "-t", "1", *options, *OPTIONS) as s:
            admin = {"Authorization": "Bearer sk-all"}
            names = [("sk-a", f"a{i}") for i in range(4)] + [("sk-b", "b")]
            with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
                sent = []
                for i, one in enumerate(names):
                    sent.append(pool.submit(send, *one))
                    s.until(
                        lambda i=i: (
                            s.get("/status.json", headers=admin).json()["requests"]["active"]
                            == i + 2
                        )
                    )
                s.until(lambda: order)
                gate.set()
                for one in sent:
                    one.result(timeout=HANG)
        server.shutdown()
    assert order == ["/a0", "/b", "/a1", "/a2", "/a3"]


def test_an_unreachable_host_is_named(serve, folder):
    with reserved_port() as port:
        hosts = f"127.0.0.1:{port}"
        with serve(
            folder, "--arch", "generic", "-t", "1", "--allow-image-urls", hosts, *OPTIONS
        ) as s:
            part = {"type": "image_url", "image_url": {"url": f"http://{hosts}/a"}}
            r = ask(s, [part, text_part("?")])
            assert r.status == 400 and "cannot be fetched" in r.text


def test_a_lack_of_memory_changes_no_row(llmc_binary, tmp_path):
    """Each allocation fails in turn: a tower that makes positions returns an error or the rows."""
    program = pathlib.Path(llmc_binary).with_name("unit") / "test_memory"
    if not program.exists():
        pytest.skip(f"needs {program}")
    tiny_vision.build(tmp_path / "model", name="qwen3_vl-plain")
    env = dict(os.environ, LLMC_TEST_TOWER=str(tmp_path / "model"), LLMC_CHECK_ALL="1")
    r = subprocess.run([program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert r.returncode == 0 and "tower: " in r.stdout, r.stdout + r.stderr
