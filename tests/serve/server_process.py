"""A server process for the tests of this folder, and its answers. They are not in conftest.py,
because other folders have a module of that name.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HERE = os.path.join(ROOT, "tests", "serve")
BUILD = os.path.join(ROOT, os.environ.get("LLMC_TEST_BUILD", "build"))
sys.path[:0] = [HERE, os.path.join(ROOT, "tests")]
from waiting import HANG, wait_for  # noqa: E402


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def text(self):
        return self.body.decode()

    def json(self):
        return json.loads(self.body)

    def frames(self):
        """Return the data of an event stream."""
        return [line[5:].strip() for line in self.text.split("\n") if line.startswith("data:")]


class Server:
    """A process that prints its URL."""

    everything = False  # True: with adapters, speculation and prefix files (tiny_model.everything)

    def __init__(self, command, env=None, log=None, limit=None):
        self.log = log
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=open(log, "wb") if log else subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            text=True,
            preexec_fn=limit,
        )
        self.head = ""
        for line in self.process.stdout:
            self.head += line
            m = re.search(r"http://(?:[0-9.]+|localhost):\d+", line)
            if m:
                self.url = m.group(0)
                self.host, port = self.url[len("http://") :].rsplit(":", 1)
                self.port = int(port)
                return
        self.process.wait()
        raise RuntimeError(
            f"the server did not start: {command}\n{open(log).read() if log else ''}"
        )

    def connect(self, timeout=HANG):
        return socket.create_connection((self.host, self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=HANG):
        """Send one request over a new connection."""
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

    def until(self, condition):
        """Wait for a condition; fail at once when the server has ended."""

        def holds():
            value = condition()
            assert value or self.process.poll() is None, (
                f"the server has ended with {self.process.poll()}"
            )
            return value

        wait_for(holds)

    def idle(self):
        """Wait until nothing runs and no page is held. The status request itself is
        active.
        """

        def quiet():
            try:
                s = self.status()
            except (OSError, http.client.HTTPException):
                return False  # some tests set timeouts of a fraction of a second, which a slow machine exceeds
            return (
                s["requests"]["active"] == 1
                and s["batch"]["running"] == 0
                and s["queue"]["waiting"] == 0
                and s["kv"]["pages_used"] == 0
            )

        self.until(quiet)

    def stop(self, sig=signal.SIGTERM, timeout=HANG):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        # wait without reading: the remaining output fits into the pipe
        code = self.process.wait(timeout)
        rest = self.process.stdout.read()
        self.process.stdout.close()
        return code, rest

    def __enter__(self):
        return self

    def __exit__(self, *a):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
