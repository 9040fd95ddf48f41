"""Servers for the tests of this folder: the real one on a tiny model and on SmolLM2, and the HTTP part alone over a
false engine. Ports are chosen by the kernel."""
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "tests", "serve")
BUILD = os.path.join(ROOT, os.environ.get("LLMC_TEST_BUILD", "build"))
sys.path.insert(0, HERE)
import tiny_model  # noqa: E402

HANG = 300  # seconds after which something hangs: no answer of a slow machine takes as long


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode()

    def json(self):
        return json.loads(self.body)

    def frames(self):
        """What the data: lines of an event stream hold."""
        return [line[5:].strip() for line in self.text.split("\n") if line.startswith("data:")]


class Server:
    """A process that prints its URL."""
    everything = False  # adapters, guesses, files of prompts: see tiny_model.everything

    def __init__(self, command, env=None, log=None, limit=None):
        self.log = log
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=open(log, "wb") if log else subprocess.DEVNULL, cwd=ROOT,
                                        env={**os.environ, **(env or {})}, text=True, preexec_fn=limit)
        self.head = ""
        for line in self.process.stdout:
            self.head += line
            m = re.search(r"http://(?:[0-9.]+|localhost):\d+", line)
            if m:
                self.url = m.group(0)
                self.host, port = self.url[len("http://"):].rsplit(":", 1)
                self.port = int(port)
                return
        self.process.wait()
        raise RuntimeError(f"the server did not start: {command}\n{open(log).read() if log else ''}")

    def connect(self, timeout=HANG):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=HANG):
        """One request over a connection of its own."""
        c = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            h = {"Content-Type": "application/json"} if data is not None else {}
            c.request(method, path, data, {**h, **(headers or {})})
            r = c.getresponse()
            return Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
        finally:
            c.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def status(self):
        return self.get("/status.json").json()

    def until(self, condition, seconds=HANG):
        """What becomes true sooner or later; the bound is only against hanging."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not come true"
            time.sleep(0.01)

    def idle(self):
        """Nothing runs, no page is held. The status request itself is active."""
        def quiet():
            try:
                s = self.status()
            except (OSError, http.client.HTTPException):
                return False  # timeouts of a fraction of a second, on a slow machine
            return s["requests"]["active"] == 1 and s["batch"]["running"] == 0 and s["queue"]["waiting"] == 0 and s["kv"]["pages_used"] == 0
        self.until(quiet)

    def stop(self, sig=signal.SIGTERM, timeout=HANG):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        rest = self.process.stdout.read()
        code = self.process.wait(timeout)
        self.process.stdout.close()
        return code, rest

    def __enter__(self):
        return self

    def __exit__(self, *a):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


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
    """serve(model, *options): a running llmc serve; use with `with`."""
    def start(model, *options, env=None, limit=None):
        log = str(tmp_path_factory.mktemp("log") / "log")
        return Server([llmc_binary, "serve", str(model), "--port", "0", *map(str, options)], env, log, limit)
    return start


@pytest.fixture(scope="session")
def tiny(serve, tiny_folder):
    with serve(tiny_folder, "--arch", "generic", "-t", "1", "--seqs", "8", "--model-name", "tiny") as s:
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
    """The false engine's server, built against the library as it is."""
    out = os.path.join(BUILD, "serve", "fake_server")
    os.makedirs(os.path.dirname(out), exist_ok=True)
    packages = subprocess.run(["pkg-config", "--libs", "yaml-0.1", "jansson", "libpcre2-8", "libutf8proc"], check=True,
                              capture_output=True, text=True).stdout.split()
    flags = os.environ.get("LLMC_TEST_SAN", "").split()
    subprocess.run([os.environ.get("CC", "cc"), "-I.", "-Iinclude", "-D_GNU_SOURCE", "-std=gnu11", "-O1", "-g", *flags, "tests/serve/fake_server.c",
                    "-o", f"{out}.{os.getpid()}", os.path.join(BUILD, "libllmc.a"), *packages, "-lm", "-lpthread", "-ldl"], check=True, cwd=ROOT)
    os.replace(f"{out}.{os.getpid()}", out)  # tests may run side by side
    return out


@pytest.fixture(scope="session")
def fake(fake_binary, tiny_folder, tmp_path_factory):
    """fake(step_ms=2, ...): a running server over a false engine that repeats its prompts."""
    @contextlib.contextmanager
    def start(limit=None, **options):
        log = str(tmp_path_factory.mktemp("log") / "log")
        options = {"tokenizer": tiny_folder, **options}
        with Server([fake_binary, *(f"{k}={v}" for k, v in options.items())], log=log, limit=limit) as s:
            yield s
    return start


@pytest.fixture(scope="session")
def everything(serve, tmp_path_factory):
    """everything(header_timeout_s=2, ...): the real engine with all on that a server may have, by the options of `fake` and the same name."""
    model = tiny_model.build(tmp_path_factory.mktemp("everything") / "tiny", context=1 << 15)
    theirs = {"max_live": "max-concurrent-requests", "drain_ms": "drain-timeout"}

    @contextlib.contextmanager
    def start(limit=None, **options):
        said = [a for k, v in {"context": 1024, **options}.items() if k != "step_ms"
                for a in ("--" + theirs.get(k, k.removesuffix("_s").replace("_", "-")), v / 1000 if k == "drain_ms" else v)]
        with serve(model, "--arch", "generic", "-t", "1", "--seqs", "8", *tiny_model.everything(tmp_path_factory.mktemp("below"), model, "fake"), *said, limit=limit) as s:
            s.everything = True
            yield s
    return start


@pytest.fixture(scope="module", params=["fake", "everything"])
def engine(request):
    return request.getfixturevalue(request.param)
