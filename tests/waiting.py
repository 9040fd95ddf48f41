"""Waits of the tests. Every deadline is a multiple of LLMC_TEST_SLOW (default 1), so that a slow machine sets one variable. A deadline only ends a hang and never judges
speed; tests/repo/test_steady.py keeps other waits out of the tests."""

import contextlib
import os
import resource
import socket
import time

SLOW = float(os.environ.get("LLMC_TEST_SLOW", "1"))
HANG = 600 * SLOW  # seconds after which a process, an answer or a condition counts as hanging


def wait_for(condition, seconds=600, every=0.01, what="the condition"):
    """Polls until condition() is true and returns its value. Fails after `seconds`, scaled."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not come true within {seconds * SLOW:g} s"
        time.sleep(every)


@contextlib.contextmanager
def reserved_port():
    """A TCP port of 127.0.0.1 without a listener, which the kernel gives to no other process because a bound socket holds it. A server that sets SO_REUSEADDR can listen on it."""
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", 0))
        yield s.getsockname()[1]


def cpu_limit(seconds):
    """preexec_fn for a process that may use this much processor time, scaled: a limit on work that does not depend on the load of the machine."""

    def limit():
        n = max(1, round(seconds * SLOW))
        resource.setrlimit(resource.RLIMIT_CPU, (n, n + 1))

    return limit
