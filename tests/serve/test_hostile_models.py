"""Routes that load, replace and list models, /infill and images, with values of every wrong kind, and
with calls at the same time: each answer is JSON with a status that explains it, and the server
answers as before.
"""

import json
import os
import random
import re
import shutil
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

import tiny_model
import tiny_vision
from test_models import ask, states
from waiting import HANG

OPTIONS = ("--arch", "generic", "-t", "1", "--seqs", "4", "--context", "512")
NAMES = [
    b"\xff\xfe.gguf",
    b'quote".gguf',
    b"back\\slash.gguf",
    b"two\nlines.gguf",
    b"\x1b[31m.gguf",
    b"\xe2\x80\xae.flm",
    b"hf:x.gguf",
    b"b:latest.gguf",
    b".gguf",
    b"-00001-of-00002.gguf",
    b"-.gguf",
    b"%00.gguf",
    b"a b?c#d.gguf",
    b"x" * 250 + b".flm",
]
JUNK = [
    True,
    0,
    -1,
    2**63,
    2**70,
    1e308,
    0.5,
    "",
    "\0",
    "b\0",
    "x" * 100000,
    "é" * 300,
    "../b",
    "/etc/passwd",
    "b/../b",
    "./b",
    "b/",
    "hf:",
    ":latest",
    "\ufdd0\u202e\x1b[31m",
    [],
    [None],
    ["b"],
    {},
    {"b": {"b": ["b"]}},
    [[[[[[]]]]]],
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Models, one broken; a folder of new weights; odd names, links and other kinds of files."""
    root = tmp_path_factory.mktemp("hostile")
    tiny_model.build(root / "a")
    tiny_model.build(root / "models" / "b")
    for name in NAMES:
        with open(os.path.join(os.fsencode(root / "models"), name), "wb") as f:
            f.write(b"GGUF" + bytes(60))
    os.symlink(root / "models", root / "models" / "loop")
    os.symlink("/nowhere", root / "models" / "dangling.gguf")
    os.mkfifo(root / "models" / "pipe.gguf")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(os.path.relpath(root / "models" / "socket.gguf"))
    (root / "models" / "folder.gguf").mkdir()
    (root / "models" / "empty" / "config.json").mkdir(parents=True)
    shutil.copytree(root / "a", root / "weights" / "step")
    (root / "weights" / "text.safetensors").write_text("no weights")
    (root / "loras" / "none").mkdir(parents=True)
    return root


@pytest.fixture(scope="module")
def server(serve, home):
    folders = ("models", home / "models"), ("weights", home / "weights"), ("lora", home / "loras")
    options = [x for name, path in folders for x in (f"--{name}-dir", path)]
    with serve(f"--model=a={home / 'a'}", *options, *OPTIONS) as s:
        yield s
        s.idle()
        assert s.stop()[0] == 0


@pytest.fixture(scope="module")
def vision(serve, tmp_path_factory):
    folder = tiny_vision.build(tmp_path_factory.mktemp("hostile-images") / "v")
    with serve(folder, "--arch", "generic", "-t", "1", "--model-name", "v", *OPTIONS[4:]) as s:
        yield s
        s.idle()
        assert s.stop()[0] == 0


def refusal(r):
    """An answer that is no success explains itself in JSON."""
    assert r.status in (200, 400, 403, 404, 409, 413, 429, 503), (r.status, r.text)
    body = r.json()
    if r.status != 200:
        assert not re.search("[\x00-\x08\x0b-\x1f]", r.text), r.text
        assert len(r.text) < 4000, r.text
        assert "message" in json.dumps(body) or "error" in body, r.text
    return r


PATHS = {
    "/v1/models/load": {"model": "b"},
    "/models/unload": {"model": "b"},
    "/v1/weights": {"path": "text.safetensors", "name": "n", "in_flight": "wait", "model": "a"},
    "/update_weights_from_disk": {
        "model_path": "text.safetensors",
        "weight_version": "n",
        "load_format": "auto",
        "abort_all_requests": False,
        "flush_cache": True,
    },
    "/v1/load_lora_adapter": {"lora_name": "x", "lora_path": "none", "base_model_name": "b"},
    "/v1/unload_lora_adapter": {"lora_name": "x"},
    "/pause": {"model": "b", "mode": "keep"},
    "/pause_generation": {"model": "b", "mode": "keep"},
    "/resume": {"model": "b"},
    "/continue_generation": {"model": "b"},
    "/api/show": {"model": "b"},
    "/v1/completions": {"model": "b", "prompt": "x", "max_tokens": 1},
}

PAUSES = "/pause", "/pause_generation", "/resume", "/continue_generation"  # need no body


@pytest.mark.parametrize("path", PATHS)
def test_each_field_with_every_wrong_value(server, path):
    good = PATHS[path]
    for key in good:
        for value in JUNK:
            refusal(server.post(path, {**good, key: value}))
    for body in b"", b"[]", b"null", b"{", b'{"model":"\\ud800"}', b"[" * 5000, b"\xff" * 9:
        r = refusal(server.post(path, body, headers={"Content-Type": "application/json"}))
        bodiless = not body and path in PAUSES
        assert r.status == (200 if bodiless else 400), r.text
    assert server.request("POST", "/resume").status == 200
    assert ask(server, "a").status == 200 and ask(server, "b").status == 200


def test_names_in_paths_and_queries(server):
    for name in (
        *("..", "%2e%2e", "%00", "b%00", "b%2F..%2Fb", "%ff%fe", "x" * 4000, "b/..", "%", "%2"),
        *("hf:b", "b:latest", "a%20b%3Fc%23d", "%22", "b;drop", "%1b%5B31m"),
    ):
        refusal(server.get(f"/v1/models/{name}"))
        if not name.startswith(("hf:b", "b:latest")):
            assert refusal(server.request("DELETE", f"/v1/models/{name}")).status != 200
        for call in "wake_up", "sleep", "reload":
            refusal(server.request("POST", f"/{call}?model={name}x"))
    assert ask(server, "a").status == 200 and ask(server, "b").status == 200


def test_odd_files_of_the_folder(server):
    """Lists stay valid JSON, a request for each name is answered, and no file blocks."""
    good = ("a", "b", "loop/b")
    names = [n for n in states(server) if n.removesuffix(":latest") not in good]
    assert {"two\nlines", 'quote"', "-", "folder.gguf"} & set(names) == {
        "two\nlines",
        'quote"',
        "-",
    }
    assert not {"pipe", "socket", "dangling", "empty"} & set(names)
    assert len(json.loads(server.get("/api/tags").text)["models"]) >= len(names)
    for name in names:
        r = refusal(ask(server, name))
        assert r.status in (404, 503), (name, r.text)
    assert "\x1b" not in server.get("/metrics").text
    log = open(server.log, "rb").read()
    assert b"\x1b" not in log and b"two\nlines" not in log
    assert ask(server, "b").status == 200


INFILL = {
    "input_prefix": "a",
    "input_suffix": "b",
    "prompt": "c",
    "input_extra": [{"filename": "f", "text": "t"}],
    "n_predict": 1,
    "stream": False,
    "stop": ["x"],
    "samplers": ["top_k"],
    "temperature": 0,
    "id_slot": 0,
}


@pytest.mark.parametrize("key", INFILL)
def test_infill(server, key):
    values = [*JUNK, [{"text": 1}], [{"filename": [], "text": "t"}], [{"text": "t" * 99}] * 999]
    for value in values:
        refusal(server.post("/infill", {**INFILL, key: value}))
    assert ask(server, "a").status == 200


IMAGE_PARTS = [
    {"type": "image_url"},
    *({"type": "image_url", "image_url": x} for x in JUNK),
    *({"type": "image_url", "image_url": {"url": x}} for x in JUNK),
    *(
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + x}}
        for x in ("=", "A")
    ),
    *({"type": x, "image_url": {"url": ""}} for x in JUNK),
    *({"type": "image", "image": x} for x in JUNK),
    {"type": "image_url", "image_url": {"url": "data:" + "image/png;" * 9999}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "\n" * 99999}},
]


def test_image_parts(vision):
    image = tiny_vision.url_part(tiny_vision.png(8, 8))
    for part in IMAGE_PARTS:
        for parts in [part], [image, part, image]:
            body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
            assert refusal(vision.post("/v1/chat/completions", body)).status in (400, 413)
        source = part.get("image_url", part.get("image"))
        block = {"type": "image", "source": source}
        body = {"messages": [{"role": "user", "content": [block]}], "max_tokens": 1}
        assert refusal(vision.post("/v1/messages", body)).status in (400, 413)
        item = {"type": "input_image", "image_url": source}
        body = {"input": [{"role": "user", "content": [item]}], "max_output_tokens": 16}
        assert refusal(vision.post("/v1/responses", body)).status in (400, 413)
    for value in JUNK:
        for images in value, [value]:
            message = {"role": "user", "content": "x", "images": images}
            more = {"model": "v", "stream": False, "options": {"num_predict": 1}}
            refusal(vision.post("/api/chat", {"messages": [message], **more}))
            refusal(vision.post("/api/generate", {"prompt": "x", "images": images, **more}))
    body = {"messages": [{"role": "user", "content": [image]}], "max_tokens": 1}
    assert vision.post("/v1/chat/completions", body).status == 200


def test_calls_at_the_same_time(server):
    """Loads, unloads, deletions, adapters, new weights and requests, of one model and in any order."""
    rng = random.Random(7)
    calls = [
        lambda: server.post("/v1/models/load", {"model": "b"}),
        lambda: server.post("/models/unload", {"model": rng.choice("ab")}),
        lambda: server.request("DELETE", "/v1/models/b"),
        lambda: server.request("POST", "/reload?model=b"),
        lambda: server.request("POST", "/sleep?level=1&model=b"),
        lambda: server.post("/v1/load_lora_adapter", PATHS["/v1/load_lora_adapter"]),
        lambda: server.post("/v1/weights", {"model": "a", "path": "step"}),
        lambda: server.post("/v1/weights", {"model": "b", "path": "step", "in_flight": "abort"}),
        lambda: ask(server, "b", n=3),
        lambda: ask(server, "a", n=3),
        lambda: server.get("/v1/models/b"),
        lambda: server.post("/api/show", {"model": "b"}),
        lambda: server.get("/metrics"),
    ]
    with ThreadPoolExecutor(6) as pool:
        for r in pool.map(lambda _: rng.choice(calls)(), range(120), timeout=HANG):
            assert r.status in (200, 400, 404, 409, 503), (r.status, r.text)
    assert ask(server, "a").status == 200 and ask(server, "b").status == 200
