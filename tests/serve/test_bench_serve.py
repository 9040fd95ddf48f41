"""llmc bench serve: against llmc itself, and against servers that answer in every valid way, or
invalidly.
"""

import contextlib
import json
import socket
import subprocess
import threading

import pytest
from waiting import HANG, reserved_port


def bench(llmc_binary, url, *args, code=0):
    p = subprocess.run(
        [llmc_binary, "bench", "serve", "--url", url, "--json", "-q", *args],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == code, p.stderr
    return json.loads(p.stdout) if p.stdout else None, p.stderr


def test_closed_loop(llmc_binary, tiny):
    r, _ = bench(llmc_binary, tiny.url, "-n", "12", "-c", "4", "-i", "4..9", "-o", "5")
    assert r["requests"] == r["completed"] == r["good"] == 12
    assert r["output_tokens"] == 60
    assert r["prompt_tokens"] > 12 * 4
    for k in ("ttft", "itl", "e2e"):
        assert 0 <= r[k]["p50"] <= r[k]["p90"] <= r[k]["p99"] <= r[k]["max"]
    assert r["ttft"]["p50"] <= r["e2e"]["p50"]


def test_open_loop_and_prefix(llmc_binary, tiny):
    r, _ = bench(
        llmc_binary,
        tiny.url + "/v1",
        "-n",
        "10",
        "-r",
        "200",
        "-i",
        "exp:4",
        "-o",
        "1..4",
        "--prefix",
        "3",
        "--ttft",
        "1e-9",
    )
    assert r["completed"] == 10 and r["good"] == 0


def test_text_report(llmc_binary, tiny):
    p = subprocess.run(
        [
            llmc_binary,
            "bench",
            "serve",
            "--url",
            tiny.url,
            "-n",
            "6",
            "-c",
            "2",
            "-i",
            "3",
            "-o",
            "4",
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert (
        p.returncode == 0
        and "6 of 6 requests answered" in p.stdout
        and "p99" in p.stdout
        and "###" in p.stdout
    )


@pytest.mark.parametrize(
    "args",
    [
        ("--url", "ftp://x"),
        ("-i", "0"),
        ("-o", "5..2"),
        ("-n", "0"),
        ("--url", "http://"),
        ("-m", 'a"b'),
        ("extra",),
    ],
)
def test_bad_arguments(llmc_binary, args):
    p = subprocess.run(
        [llmc_binary, "bench", "serve", *args], capture_output=True, text=True, timeout=HANG
    )
    assert p.returncode == 1 and p.stderr


PIECE = b'data: {"choices":[{"text":" a"}]}\r\n\r\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\ndata: [DONE]\n\n'
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def chunked(data, size):
    return (
        b"".join(
            b"%x\r\n%s\r\n" % (len(data[i : i + size]), data[i : i + size])
            for i in range(0, len(data), size)
        )
        + b"0\r\n\r\n"
    )


GOOD = {
    "until the end": HEAD + b"\r\n" + PIECE * 2 + USAGE,
    "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(PIECE * 2 + USAGE) + PIECE * 2 + USAGE,
    "chunks of 1": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(PIECE * 2 + USAGE, 1),
    "chunks of 50": HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(PIECE * 2 + USAGE, 50),
    "chunks with extensions": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"%x;name=abc\r\n%s\r\n0\r\n\r\n" % (len(PIECE * 2 + USAGE), PIECE * 2 + USAGE),
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"\r\n" + PIECE * 2 + USAGE,
    "not streamed": b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"choices":[{"text":"aa"}],"usage":{"completion_tokens":2}}',
}
BAD = {
    "500": b"HTTP/1.1 500 Broken\r\nContent-Length: 2\r\n\r\n{}",
    "400": b'HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\n\r\n{"error":{"message":"no such thing"}}',
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "cut": HEAD + b"Content-Length: 1000\r\n\r\n" + PIECE,
    "endless line": HEAD + b"\r\n" + b"x" * (3 << 20),
    "empty": HEAD + b"Content-Length: 0\r\n\r\n",
    "error in the stream": HEAD
    + b"\r\n"
    + PIECE
    + b'data: {"error":{"message":"device lost"}}\n\n',
}


@pytest.fixture
def fixed():
    """Serve every connection the same bytes; GETs (only /metrics is requested) get the other
    answers in turn.
    """
    sockets = []

    def start(answer, *told):
        s = socket.create_server(("127.0.0.1", 0))
        sockets.append(s)
        gets = iter(told)

        def loop():
            while True:
                try:
                    c, _ = s.accept()
                except OSError:
                    return
                with c:
                    try:
                        data = b""
                        while b"\r\n\r\n" not in data or not (
                            data.startswith(b"GET") or data.rstrip().endswith(b"}")
                        ):
                            data += c.recv(65536)
                        c.sendall(next(gets, answer) if data.startswith(b"GET") else answer)
                    except OSError:
                        pass

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{s.getsockname()[1]}"

    yield start
    for s in sockets:
        s.close()


@pytest.mark.parametrize("how", GOOD)
def test_ways_of_http(llmc_binary, fixed, how):
    r, _ = bench(llmc_binary, fixed(GOOD[how]), "-m", "x", "-n", "3", "-c", "2")
    assert r["completed"] == 3 and r["output_tokens"] == 6


@pytest.mark.parametrize("how", BAD)
def test_bad_answers(llmc_binary, fixed, how):
    r, err = bench(llmc_binary, fixed(BAD[how]), "-m", "x", "-n", "2", "-c", "2", code=2)
    assert r["completed"] == 0
    assert "no request was answered: " in err and len(err.strip()) > 30


@pytest.mark.parametrize(
    "told,drafts", [((0, 1), None), ((1, 0), None), ((1, 1), 5), ((0, 0), None)]
)
def test_draft_tokens_are_counted_between_two_reads(llmc_binary, fixed, told, drafts):
    """Counters cover the lifetime of the server: unless they are read twice, draft tokens are
    not reported.
    """
    names = (b"drafts", b"draft_tokens", b"accepted_tokens")
    counts = [
        HEAD
        + b"\r\n# counts\n"
        + b"".join(b'vllm:spec_decode_num_%s_total{model="x"} %d\n' % (k, n) for k in names)
        if read
        else BAD["500"]
        for read, n in zip(told, (100, 105))
    ]
    r, _ = bench(
        llmc_binary, fixed(GOOD["until the end"], *counts), "-m", "x", "-n", "2", "-c", "1"
    )
    assert r["completed"] == 2 and r.get("drafts") == drafts


def test_a_server_that_trickles_its_list_of_models(llmc_binary):
    """A byte now and then would otherwise keep the command waiting for ever; the words of the
    server do not steer a terminal."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        over = threading.Event()

        def trickle():
            c, _ = s.accept()
            with c, contextlib.suppress(OSError):
                while not over.wait(0.05):
                    c.sendall(b"\x1b")

        t = threading.Thread(target=trickle)
        t.start()
        url = f"http://127.0.0.1:{s.getsockname()[1]}"
        _, err = bench(llmc_binary, url, "--timeout", "0.5", code=2)
        over.set()
        t.join()
    assert "not complete" in err and "\x1b" not in err


def test_a_port_without_a_server(llmc_binary):
    with reserved_port() as port:
        _, err = bench(llmc_binary, f"http://127.0.0.1:{port}", code=2)
    assert "refused" in err
