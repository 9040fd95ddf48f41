"""llmc pull against a server that breaks off, stalls, lies or refuses, on full disks, and two at a time."""

import json
import os
import pty
import re
import resource
import signal
import ssl
import subprocess

import pytest
from small_disk import small_disk
from waiting import HANG, wait_for
from hub_pull import BIG, GGUF, SHA, env, files, hub, model, pull  # noqa: F401
from hub_server import Hub, certificates, git_oid, sha256


# ---- breaks ----


def ranges(hub):
    return [r for r in hub.headers("cdn", "Range")]


def test_a_download_that_breaks_resumes(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("cut", 300000), ("cut", 200000)]
    folder = pull(llmc, "hf:org/m")
    assert open(folder + "/model.safetensors", "rb").read() == BIG
    assert ranges(hub) == [None, "bytes=300000-", "bytes=500000-"]


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_a_download_that_is_stopped_resumes(llmc, hub, env, sig):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("hold", 300000)]
    part = env / "models--org--m/blobs" / (sha256(BIG) + ".incomplete")
    p = subprocess.Popen([llmc.path, "pull", "hf:org/m"], stderr=subprocess.PIPE, text=True)
    wait_for(lambda: part.exists() and part.stat().st_size == 300000)
    rows = llmc.json("list")
    assert [(r["name"], r["complete"]) for r in rows] == [("hf:org/m", False)]
    llmc("rm", "hf:org/m", code=2)
    assert "another process downloads it" in llmc.err
    p.send_signal(sig)
    err = p.communicate(timeout=HANG)[1]
    if sig == signal.SIGINT:
        assert p.returncode == 130 and "the next pull resumes" in err
    assert not os.path.exists(env / "models--org--m/refs/main")
    folder = pull(llmc, "hf:org/m")
    assert open(folder + "/model.safetensors", "rb").read() == BIG
    assert ranges(hub) == [None, "bytes=300000-"]


def test_a_server_without_ranges_sends_all_again(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("cut", 300000), ("whole",)]
    assert open(pull(llmc, "hf:org/m") + "/model.safetensors", "rb").read() == BIG


@pytest.mark.parametrize(
    "part",
    [b"x" * 1000, BIG + b"more", BIG[:-1] + b"x", b""],
    ids=["other bytes", "longer", "one byte", "empty"],
)
def test_a_part_that_does_not_belong_to_the_file_is_replaced(llmc, hub, env, part):
    hub.repos["org/m"] = model()
    blobs = env / "models--org--m/blobs"
    os.makedirs(blobs)
    (blobs / (sha256(BIG) + ".incomplete")).write_bytes(part)
    assert open(pull(llmc, "hf:org/m") + "/model.safetensors", "rb").read() == BIG


def test_a_server_that_stalls_is_tried_again(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("stall", 300000)]
    pull(llmc, "hf:org/m", env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
    assert ranges(hub) == [None, "bytes=300000-"]


def test_a_slow_server_is_waited_for(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("slow", 5000)]
    pull(llmc, "hf:org/m", env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
    assert ranges(hub) == [None]


def test_a_body_that_is_always_cut_is_an_error(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("cut", 1000)] + [("cut", 0)] * 8
    pull(llmc, "hf:org/m", code=2)
    assert "run the command again" in llmc.err
    assert (env / "models--org--m/blobs" / (sha256(BIG) + ".incomplete")).stat().st_size == 1000


# ---- wrong content ----


def wrong_tree(key, value, path="model.safetensors"):
    def edit(files):
        for f in files:
            if f["path"] == path:
                f.update({key: value})
        return files

    return edit


def lfs(**kw):
    return {"oid": sha256(BIG), "size": len(BIG), "pointerSize": 1, **kw}


@pytest.mark.parametrize(
    "change, text",
    [
        (
            dict(content={"model.safetensors": BIG[:-1] + b"x"}),
            "the SHA-256 of the received file is " + sha256(BIG[:-1] + b"x"),
        ),
        (
            dict(linked={"model.safetensors": "0" * 64}),
            "the server announces the SHA-256 " + "0" * 64,
        ),
        (
            dict(edit=wrong_tree("lfs", lfs(size=len(BIG) + 1))),
            f"the server has {len(BIG)} bytes, the list of files {len(BIG) + 1}",
        ),
        (dict(edit=wrong_tree("lfs", lfs(oid="1" * 64))), "announces the SHA-256 " + sha256(BIG)),
        (
            dict(edit=wrong_tree("oid", "2" * 40, "config.json")),
            "the git hash of the received file is " + git_oid(b"{}"),
        ),
        (
            dict(faults={sha256(BIG): [("cut", 5000), ("shifted",)]}),
            "answers a request from byte 5000 on with",
        ),
        (
            dict(faults={sha256(BIG): [("more",)]}, lengths=False),
            f"sends more than {len(BIG)} bytes",
        ),
    ],
)
def test_wrong_content_gets_no_name(llmc, hub, env, change, text):
    hub.repos["org/m"] = model()
    for k, v in change.items():
        setattr(hub, k, v)
    p = subprocess.run([llmc.path, "pull", "hf:org/m"], capture_output=True, text=True)
    assert p.returncode in (2, 3) and text in p.stderr, p.stderr
    wrong = "config.json" if "git hash" in text else "model.safetensors"
    assert not os.path.exists(env / f"models--org--m/snapshots/{SHA}/{wrong}")
    assert not os.path.exists(env / "models--org--m/refs/main")


@pytest.mark.parametrize(
    "path",
    [
        "../evil",
        "/evil",
        "a/../../evil",
        "a//evil",
        "./evil",
        "a\\evil",
        "a\nb",
        "a\x9b31mb",  # a control that terminals read in UTF-8
        "a\u202eb",  # right to left
        "x" * 300,
        "",
        None,
        5,
    ],
)
def test_a_path_that_leads_out_of_the_folder_is_refused(llmc, hub, env, path, tmp_path):
    hub.repos["org/m"] = model()
    hub.edit = lambda files: [*files, dict(files[0], path=path)]
    pull(llmc, "hf:org/m", code=1)
    assert "leads out of the model's folder or is not valid" in llmc.err
    assert not list(tmp_path.rglob("evil")) and not hub.paths("cdn")


@pytest.mark.parametrize(
    "key, value",
    [
        ("oid", "../../evil"),
        ("size", -1),
        ("size", "x"),
        ("size", 2**62),  # sums of sizes overflow
        ("lfs", {"oid": "../evil", "size": 1}),
        ("lfs", {"oid": "0" * 64, "size": -5}),
    ],
)
def test_an_id_or_a_size_that_is_not_valid_is_refused(llmc, hub, env, key, value):
    hub.repos["org/m"] = model()
    hub.edit = wrong_tree(key, value, "config.json")
    pull(llmc, "hf:org/m", code=1)
    assert "no valid" in llmc.err and "config.json" in llmc.err


@pytest.mark.parametrize("sha", ["../../x", "main", "A" * 40, ""])
def test_a_commit_that_is_none_is_refused(llmc, hub, env, sha):
    hub.repos["org/m"] = model()
    hub.repos["org/m"].sha = sha
    pull(llmc, "hf:org/m", code=2)
    assert "names no commit" in llmc.err


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[", b'[{"type":"file","path":"a"'])
def test_a_list_that_is_no_json_is_refused(llmc, hub, env, body):
    hub.repos["org/m"] = model()
    hub.edit = lambda files: Raw(body)
    pull(llmc, "hf:org/m", code=1)
    assert "the list of files is no JSON array" in llmc.err


class Raw(list):
    """A list of files that the server sends as these bytes"""

    def __init__(self, body):
        self.body = body

    def __getitem__(self, at):
        return self

    def encode(self):
        return self.body


def test_the_list_of_files_has_pages(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.page = 2
    assert files(pull(llmc, "hf:org/m")) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert len([p for p in hub.paths("hub") if "/tree/" in p]) == 2


def test_a_next_page_whose_address_is_cut_is_an_error(llmc, hub, env):
    """Without its end the address was no address, and the list seemed to be complete."""
    hub.repos["org/m"] = model()
    hub.page, hub.next_url = 2, hub.url + "/" + 4096 * "x"
    pull(llmc, "hf:org/m", code=2)
    assert "address of the next page of the list of files is longer" in llmc.err


def test_a_list_of_many_parts_needs_little_memory(llmc, hub, env):
    """Each name is a part of one GGUF, which grew by one list of parts per file."""
    hub.repos["org/m"] = model()
    hub.page = 1 << 20
    hub.edit = lambda files: [
        dict(files[0], path=f"m-{i:05}-of-99999.gguf") for i in range(1, 50000)
    ]
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))  # noqa: E731
    p = subprocess.run(
        [llmc.path, "pull", "hf:org/m"],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=HANG,
    )
    assert p.returncode == 1 and "has 49999 of its 99999 parts" in p.stderr


def test_two_files_with_one_path_are_refused(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.edit = lambda files: [*files, files[0]]
    pull(llmc, "hf:org/m", code=1)
    assert "contains README.md twice" in llmc.err


def test_the_list_of_files_does_not_continue_without_tls(llmc, tmp_path, monkeypatch):
    """An https server names an http address as the next page."""
    ca, cert, key = certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    safe, plain = Hub(tls), Hub()
    for h in (safe, plain):
        h.repos["org/m"] = model()
    safe.page, safe.next_url = 2, plain.url
    monkeypatch.setenv("HF_ENDPOINT", safe.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("CURL_CA_BUNDLE", str(ca))
    llmc("pull", "hf:org/m", code=2)
    assert "continues at" in llmc.err and "not https" in llmc.err
    assert not plain.requests
    safe.close()
    plain.close()


def test_strings_of_a_server_do_not_steer_the_terminal(llmc, hub, env):
    hub.repos["org/m"] = model()
    evil = "\x1b[2Jx\x9b31m\u202ey"
    hub.edit = lambda files: Raw(b"[" + evil.encode())
    pull(llmc, "hf:org/m", code=1)
    assert "no JSON array" in llmc.err
    hub.edit = lambda files: [dict(files[0], path=evil)]
    pull(llmc, "hf:org/m", code=1)
    error = llmc.err
    hub.edit = lambda files: files
    hub.faults["/main"] = [("status", 403, None, {})]
    hub.message = evil.encode().decode("latin-1")
    pull(llmc, "hf:org/m", code=1)
    assert "refuses access" in llmc.err
    folder = env / f"models--org--{evil}" / "blobs"
    os.makedirs(folder)
    (folder / "x.incomplete").write_bytes(b"x")
    llmc("list")
    assert "hf:org/" in llmc.out
    for text in (error, llmc.err, llmc.out):
        assert not set(text) & set("\x1b\x9b\u202e")


# ---- answers ----


@pytest.mark.parametrize("where", ["variable", "file", "other file"])
def test_the_token_goes_to_the_endpoint_only(llmc, hub, env, tmp_path, monkeypatch, where):
    hub.repos["org/m"] = model()
    hub.repos["org/m"].token = "hf_secret"
    path = tmp_path / "hf" / "token" if where == "file" else tmp_path / "t"
    os.makedirs(tmp_path / "hf")
    path.write_text(" hf_secret\n")
    if where == "variable":
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
    if where == "other file":
        monkeypatch.setenv("HF_TOKEN_PATH", str(path))
    pull(llmc, "hf:org/m")
    assert set(hub.headers("hub", "Authorization")) == {"Bearer hf_secret"}
    assert hub.paths("cdn") and set(hub.headers("cdn", "Authorization")) == {None}
    assert "hf_secret" not in llmc.out + llmc.err


def test_an_api_that_redirects_elsewhere_gets_no_token(llmc, hub, env, monkeypatch):
    hub.repos["org/m"] = model()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.faults["/revision/main"] = [("redirect", hub.cdn.url + "/x")]
    hub.blobs["/x"] = json.dumps({"sha": SHA}).encode()
    pull(llmc, "hf:org/m")
    assert set(hub.headers("cdn", "Authorization")) == {None}


@pytest.mark.parametrize(
    "token, gated, given, text",
    [
        (None, False, None, "has no such model, or it is private: check the name, or set HF_TOKEN"),
        ("t", False, None, "or it is private: check the name, or set HF_TOKEN"),
        ("t", False, "wrong", "does not accept the token in HF_TOKEN (401): Invalid credentials"),
        ("t", True, None, "the model is gated: accept its terms at {url}/org/m, then set HF_TOKEN"),
        (
            "t",
            True,
            "wrong",
            "the account of the token in HF_TOKEN has no access to it: accept its terms at {url}/org/m",
        ),
    ],
)
def test_no_access(llmc, hub, env, monkeypatch, token, gated, given, text):
    if token:
        hub.repos["org/m"] = model()
        hub.repos["org/m"].token, hub.repos["org/m"].gated = token, gated
    if given:
        monkeypatch.setenv("HF_TOKEN", given)
    pull(llmc, "hf:org/m", code=1)
    assert text.format(url=hub.url) in llmc.err and llmc.err.count("\n") == 1


def test_a_token_that_is_none_is_not_sent(llmc, hub, env, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a\nX-Evil: b")
    pull(llmc, "hf:org/m", code=1)
    assert "HF_TOKEN: not an access token" in llmc.err and not hub.requests


@pytest.mark.parametrize(
    "what", ["/revision/main", "config.json", "model.safetensors", sha256(BIG)]
)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_busy_server_is_tried_again(llmc, hub, env, what, status):
    hub.repos["org/m"] = model()
    hub.faults[what] = [("status", status, None, {"Retry_After": "0"})] * 2
    pull(llmc, "hf:org/m")
    asked = [p for p in hub.paths("hub") + hub.paths("cdn") if p.split("?")[0].endswith(what)]
    assert len(asked) == 3


@pytest.mark.parametrize("after", ["3600", "Fri, 01 Jan 2100 00:00:00 GMT"])
def test_a_long_wait_is_the_users_choice(llmc, hub, env, after):
    hub.repos["org/m"] = model()
    hub.faults["config.json"] = [("status", 429, None, {"Retry_After": after})]
    pull(llmc, "hf:org/m", code=2)
    assert re.search(
        r"limits the number of requests \(429\) for the next \d+ seconds; try again later, or set HF_TOKEN",
        llmc.err,
    )


def test_a_server_that_stays_down_is_an_error(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults["/revision/main"] = [("status", 502, None, {"Retry_After": "0"})] * 9
    pull(llmc, "hf:org/m", code=2)
    assert "answers 502" in llmc.err and "try again later" in llmc.err
    assert len(hub.requests) == 4


def test_a_server_that_is_not_there(llmc, hub, env):
    hub.close()
    pull(llmc, "hf:org/m", code=2)
    assert "cannot reach 127.0.0.1" in llmc.err and "check the network and the proxy" in llmc.err


def test_without_libcurl_one_sentence_and_local_models_run(llmc, hub, env):
    none = {"LLMC_CURL": "/nonexistent/libcurl.so"}
    pull(llmc, "hf:org/m", code=2, env=none)
    assert llmc.err.count("\n") == 1
    assert "need libcurl, and /nonexistent/libcurl.so cannot be opened: install it" in llmc.err
    llmc("tokenize", "tests/golden/gguf/llama-q4_0.gguf", "--ids", "1", env=none)


@pytest.mark.parametrize("variable", [None, "CURL_CA_BUNDLE", "SSL_CERT_FILE"])
def test_tls_with_a_private_ca(llmc, tmp_path, monkeypatch, variable):
    for name in ("CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    ca, chain, key = certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(chain, key)
    hub = Hub(tls)
    hub.repos["org/m"] = model()
    env = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "no_proxy": "localhost"}
    if variable:
        env[variable] = str(ca)
    pull(llmc, "hf:org/m", code=0 if variable else 2, env=env)
    if not variable:
        assert "TLS certificate cannot be verified" in llmc.err and "CURL_CA_BUNDLE" in llmc.err
    else:
        hub.repos["org/n"] = model()
        hub.faults["model.safetensors"] = [("redirect", hub.cdn.url.replace("https", "http"))]
        pull(llmc, "hf:org/n", code=2, env=env)
        assert "which is not https" in llmc.err
    hub.close()


def test_a_proxy_is_used(llmc, hub, env, monkeypatch):
    hub.repos["org/m"] = model()
    hub.cdn.url = "http://cdn.invalid/plain"
    hub.blobs["/plain/" + sha256(BIG)] = BIG
    monkeypatch.setenv("HF_ENDPOINT", "http://models.invalid")
    pull(llmc, "hf:org/m", env={"http_proxy": hub.url})
    assert "http://models.invalid/api/models/org/m/revision/main" in hub.paths("hub")
    assert any(p.startswith("http://cdn.invalid/") for p in hub.paths("hub"))


# ---- disk, locks, terminals ----


def test_two_pulls_share_one_download(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("hold", 300000)]
    run = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = subprocess.Popen([llmc.path, "pull", "hf:org/m"], **run)
    assert hub.stalled.wait(HANG)
    second = subprocess.Popen([llmc.path, "pull", "hf:org/m"], **run)
    for line in second.stderr:
        if "another process downloads this model" in line:
            break
    hub.released.set()
    a, b = first.communicate(timeout=HANG), second.communicate(timeout=HANG)
    assert first.returncode == second.returncode == 0, (a, b)
    assert a[0] == b[0] and len(hub.paths("cdn")) == 1


def test_a_download_that_was_given_up_is_taken_over(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("hold", 300000)]
    first = subprocess.Popen([llmc.path, "pull", "hf:org/m"], stderr=subprocess.DEVNULL)
    assert hub.stalled.wait(HANG)
    second = subprocess.Popen([llmc.path, "pull", "hf:org/m"], stderr=subprocess.PIPE, text=True)
    for line in second.stderr:
        if "another process downloads this model" in line:
            break
    first.kill()
    first.wait()
    second.communicate(timeout=HANG)
    assert second.returncode == 0 and len(hub.paths("cdn")) == 2


def test_too_small_a_disk_is_seen_before_the_download(llmc, hub, env, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    small = small_disk(disk, kib=512)
    if not small:
        pytest.skip("the kernel allows no mount here")
    hub.repos["org/m"] = model()
    p = subprocess.run(
        [*small, llmc.path, "pull", "hf:org/m"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HOME": str(disk)},
    )
    assert p.returncode == 2, p.stderr
    assert re.search(
        r"the download needs 1000 KiB, the disk has \d+ KiB free; .*HF_HUB_CACHE", p.stderr
    )
    assert not hub.paths("cdn")


def shown(argv):
    """Output of a command on a terminal"""
    at, side = pty.openpty()
    p = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=side, env={**os.environ, "TERM": "xterm"}
    )
    os.close(side)
    text = b""
    while True:
        try:
            text += os.read(at, 65536)
        except OSError:  # the other side is closed
            break
    os.close(at)
    assert p.returncode == 0, text
    return text.decode()


def test_one_bar_on_a_terminal_and_one_line_per_file_elsewhere(llmc, hub, env):
    hub.repos["org/m"] = model()
    hub.faults[sha256(BIG)] = [("slow", 2000)]
    text = shown([llmc.path, "pull", "hf:org/m"])
    assert re.search(r"\r\033\[K", text) and re.search(r"hf:org/m: downloaded in [\d.]+ s", text)
    llmc("rm", "hf:org/m")
    pull(llmc, "hf:org/m")
    lines = llmc.err.splitlines()
    assert len(lines) == 3 and "\r" not in llmc.err
    assert "hf:org/m: model.safetensors, 1000 KiB (" in llmc.err
    assert all(re.fullmatch(r"hf:org/m: \S+, .* \(\d of 3\)", s) for s in lines)
    llmc("rm", "hf:org/m")
    llmc("pull", "-q", "hf:org/m")
    assert llmc.err == ""
