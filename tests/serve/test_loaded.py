"""A server whose cores are used by other processes all the time: it decodes, answers and ends.
Deadlines detect hangs only; tests/bench/loaded.py measures speed.
"""

import json
import os
import signal
import sys

import pytest
from server_process import ROOT

sys.path.append(os.path.join(ROOT, "tests", "bench"))
from loaded import Busy  # noqa: E402

CORES = len(os.sched_getaffinity(0))
ENDLESS = {"model": "tiny", "prompt": "hello", "ignore_eos": True, "stream": True}


def body(n):
    data = json.dumps(dict(ENDLESS, max_tokens=n)).encode()
    return (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


def read_until(c, what):
    """Read from a connection until the received text contains `what`; return all of it."""
    text = b""
    while what not in text:
        got = c.recv(65536)
        assert got, text[-500:]
        text += got
    return text


def pinned_threads(pid):
    """Return the threads bound to one core: the workers of an idle pool as large as the
    machine.
    """
    found = []
    for tid in os.listdir(f"/proc/{pid}/task"):
        if len(os.sched_getaffinity(int(tid))) == 1:
            found.append(int(tid))
    return found


@pytest.fixture
def busy():
    with Busy([0] * CORES):
        yield


def test_requests_in_work_are_drained(serve, tiny_folder, busy):
    with (
        serve(
            tiny_folder,
            "--arch",
            "generic",
            "-t",
            CORES,
            "--drain-timeout",
            "600",
            "--model-name",
            "tiny",
        ) as s,
        s.connect() as c,
    ):
        c.sendall(body(100))
        text = read_until(c, b"data:")
        for _ in range(10):
            assert s.get("/health").status == 200
        s.process.send_signal(signal.SIGTERM)
        if b"[DONE]" not in text:
            text += read_until(c, b"[DONE]")
        assert b'"finish_reason":"length"' in text.replace(b": ", b":"), "all of its tokens"
        assert s.stop(sig=0)[0] == 0


def test_the_drain_timeout_cuts_a_request(serve, tiny_folder, busy):
    """29,000 tokens take seconds on an idle machine."""
    with (
        serve(
            tiny_folder,
            "--arch",
            "generic",
            "-t",
            CORES,
            "--context",
            "30000",
            "--drain-timeout",
            "0.2",
            "--model-name",
            "tiny",
        ) as s,
        s.connect() as c,
    ):
        c.sendall(body(29000))
        text = read_until(c, b"data:")
        assert s.get("/health").status == 200
        assert s.stop()[0] == 0
        while got := c.recv(65536):
            text += got
        assert b'"finish_reason":"length"' not in text.replace(b": ", b":"), "it was cut"


@pytest.mark.skipif(CORES < 2, reason="a pool of one thread waits for no other")
def test_workers_that_hardly_run_hold_nothing_up(serve, tiny_folder, busy):
    """With the idle policy and a busy process on its core, a worker has 0.3 % of the core."""
    with serve(tiny_folder, "--arch", "generic", "-t", CORES, "--model-name", "tiny") as s:
        workers = pinned_threads(s.process.pid)
        assert len(workers) >= CORES - 1, "workers of the pool"
        for tid in workers:
            os.sched_setscheduler(tid, os.SCHED_IDLE, os.sched_param(0))
        r = s.post(
            "/v1/completions",
            {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True},
        )
        assert r.status == 200 and r.json()["usage"]["completion_tokens"] == 200
        assert s.get("/health").status == 200
        assert s.stop()[0] == 0
