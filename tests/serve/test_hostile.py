"""Hostile clients, and clients that interpret the standard differently: each is answered at once
with the right status, and none delays others. Over the fake engine on loopback; attacks that
involve the engine also run over the real one with everything enabled.
It is one file because its servers start once per module.
"""

import http.client
import json
import os
import random
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_faults import COMPLETION, ends, head, held, raw, well
from waiting import HANG

GET = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({**COMPLETION, "ignore_eos": True}).encode()
SANITIZED = bool(os.environ.get("LLMC_TEST_SAN"))


def rss(server):
    with open(f"/proc/{server.process.pid}/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def answers(data):
    """Split the output of a connection into (status, body) pairs."""
    out = []
    while data:
        top, _, data = data.partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 "), top[:100]
        length = [
            int(x.split(b":")[1])
            for x in top.split(b"\r\n")
            if x.lower().startswith(b"content-length")
        ]
        n = length[0] if length else 0
        out.append((int(top[9:12]), data[:n]))
        data = data[n:]
    return out


@pytest.fixture(scope="module")
def patient(engine):
    """A server with long timeouts: a quick answer is not due to a timeout."""
    with engine(
        step_ms=0, header_timeout_s=6 * HANG, body_timeout_s=6 * HANG, idle_timeout_s=6 * HANG
    ) as s:
        yield s
        s.idle()
        assert ends(s)


# ---- heads and bodies that two parsers might read differently ----

REFUSED = {
    "two lengths": (
        400,
        POST + b"Content-Length: %d\r\nContent-Length: 1\r\n\r\n" % len(BODY) + BODY,
    ),
    "two lengths alike": (
        400,
        POST + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY,
    ),
    "a length and chunks": (
        400,
        POST
        + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (len(BODY), len(BODY), BODY),
    ),
    "chunks and a length": (
        400,
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ),
    "chunks twice": (
        400,
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "two hosts": (400, GET + b"Host: localhost\r\n\r\n"),
    "no host": (400, b"GET /version HTTP/1.1\r\n\r\n"),
    "a list of hosts": (400, b"GET /version HTTP/1.1\r\nHost: localhost, evil.test\r\n\r\n"),
    "an empty host": (400, b"GET /version HTTP/1.1\r\nHost:\r\n\r\n"),
    "a NUL in the path": (400, b"GET /version\0/x HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a NUL in the path, written": (400, b"GET /version%00/x HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a NUL in a field": (400, GET + b"X-A: a\0b\r\n\r\n"),
    "a percent sign alone": (400, b"GET /version% HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a byte that no address has": (400, b"GET /versi\xc3\xb6n HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "spaces in the address": (400, b"GET /ver sion HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a signed length": (400, POST + b"Content-Length: +3\r\n\r\n{}\n"),
    "a negative length": (400, POST + b"Content-Length: -3\r\n\r\n{}\n"),
    "a length that is none": (400, POST + b"Content-Length: none\r\n\r\n{}\n"),
    "an empty length": (400, POST + b"Content-Length:\r\n\r\n{}\n"),
    "a hexadecimal length": (400, POST + b"Content-Length: 0x3\r\n\r\n{}\n"),
    "a list of lengths": (400, POST + b"Content-Length: 3, 3\r\n\r\n{}\n"),
    "a length beyond 2^64": (413, POST + b"Content-Length: 18446744073709551619\r\n\r\n{}\n"),
    "a length of a thousand digits": (
        413,
        POST + b"Content-Length: " + b"9" * 1000 + b"\r\n\r\n{}\n",
    ),
    "an unknown coding": (501, POST + b"Transfer-Encoding: gzip\r\n\r\n{}\n"),
    "two codings": (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "a coding before its time": (
        400,
        POST.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    "a chunk that nobody has": (
        413,
        POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFE\r\n",
    ),
    "a chunk beyond 2^64": (413, POST + b"Transfer-Encoding: chunked\r\n\r\n1FFFFFFFFFFFFFFFE\r\n"),
    "a chunk of size +2": (400, POST + b"Transfer-Encoding: chunked\r\n\r\n+2\r\n{}\r\n0\r\n\r\n"),
    "a chunk with two sizes": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2 5\r\n{}\r\n0\r\n\r\n",
    ),
    "a chunk without a size": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n\r\n{}\r\n0\r\n\r\n",
    ),
    "a chunk longer than its size": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    ),
    "extensions of 3 MB": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2;" + b"a" * (3 << 20) + b"\r\n{}\r\n0\r\n\r\n",
    ),
    "a line feed in an extension": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2;a\n{}\r\n0\r\n\r\n",
    ),
    "trailers of 3 MB": (
        431,
        POST
        + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        + b"X-A: b\r\n" * (3 << 17)
        + b"\r\n",
    ),
    "a line feed alone in a trailer": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: b\n\r\n",
    ),
    "a return alone in a trailer": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-A: b\rX-B: c\r\n\r\n",
    ),
    "a line feed alone behind the last chunk": (
        400,
        POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\n",
    ),
    "TLS": (400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200))),
    "HTTP/2": (505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "no HTTP": (400, b"\x05\x01\x00"),
    "a line feed alone": (400, GET[:-2] + b"\n\r\n"),
    "a return alone": (400, GET + b"X-A: b\rX-C: d\r\n\r\n"),
    "a folded line": (400, GET + b"X-A: b\r\n c\r\n\r\n"),
    "a space before the colon": (400, GET + b"Content-Length : 3\r\n\r\n{}\n"),
    "a line without a colon": (400, GET + b"nothing\r\n\r\n"),
    "a field without a name": (400, GET + b": a\r\n\r\n"),
    "no version": (400, b"GET /version\r\n\r\n"),
    "a version of three digits": (400, b"GET /version HTTP/1.11\r\nHost: localhost\r\n\r\n"),
    "a hundred thousand fields": (431, GET + b"A: b\r\n" * 100000 + b"\r\n"),
    "101 fields": (431, GET + b"A: b\r\n" * 100 + b"\r\n"),
    "an address of 100 kB": (
        414,
        b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ),
    "a method of 100 kB": (400, b"G" * 100000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a method of 32 letters": (400, b"G" * 32 + b" /version HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "an expectation that cannot be met": (
        417,
        POST + b"Expect: a miracle\r\nContent-Length: 2\r\n\r\n{}",
    ),
    "a name that is not ours": (403, b"GET /version HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    "a name that is not ours in the address": (
        403,
        b"GET http://evil.test/version HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ),
}
GOES_ON = {"a name that is not ours", "a name that is not ours in the address"}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_once_and_closed(patient, case):
    """One answer, in the form of llmc; bytes after it are not read as a request, and the
    connection ends.
    """
    status, data = REFUSED[case]
    if case in GOES_ON:
        data = data.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with patient.connect() as c:
        try:
            c.sendall(data + (b"" if case in GOES_ON else GET + b"\r\n"))
        except OSError:
            pass  # the server may close early
        said = c.makefile("rb").read()
    got = answers(said)
    assert [a[0] for a in got] == [status], said[:300]
    error = json.loads(got[0][1])["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert case in GOES_ON or b"\r\nConnection: close\r\n" in said


ACCEPTED = {
    "chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "chunks of a byte": POST
    + b"Transfer-Encoding: Chunked\r\n\r\n"
    + b"".join(b"1\r\n%c\r\n" % b for b in BODY)
    + b"0\r\n\r\n",
    "an extension and a trailer": POST
    + b"Transfer-Encoding: chunked\r\n\r\n%X;a=b\r\n%s\r\n000;c\r\nX-A: b\r\nX-B: c\r\n\r\n"
    % (len(BODY), BODY),
    "empty lines before": b"\r\n\r\n" + POST + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "spaces around values": POST.replace(b"Host: localhost", b"Host: \t localhost \t ")
    + b"content-length:%d  \r\n\r\n%s" % (len(BODY), BODY),
    "the form for proxies": POST.replace(b"POST /", b"POST http://localhost/")
    + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "letters written as %XX": POST.replace(b"completions", b"%63omple%74ions?a=%00")
    + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "100 fields": POST + b"A: b\r\n" * 96 + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "an address of 8192 bytes": POST.replace(
        b" HTTP", b"?" + b"a" * (8191 - len(POST.split()[1])) + b" HTTP"
    )
    + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "HTTP/1.0": POST.replace(b"1.1", b"1.0").replace(b"Host: localhost\r\n", b"")
    + b"Content-Length: %d\r\nConnection: keep-alive\r\n\r\n%s" % (len(BODY), BODY),
}


@pytest.mark.parametrize("step", [1, 7, 100000])
@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted_in_segments_of_any_size(patient, case, step):
    """Send it twice on one connection: the end of a request is detected exactly."""
    data = (
        2 * ACCEPTED[case]
        + b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    with patient.connect() as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), step):
            c.sendall(data[i : i + step])
        got = answers(c.makefile("rb").read())
    assert [a[0] for a in got] == [200, 200, 200]
    assert [json.loads(a[1])["usage"]["completion_tokens"] for a in got[:2]] == [4, 4]


def test_a_stream_for_a_client_of_http_1_0(patient):
    data = json.dumps({**COMPLETION, "stream": True}).encode()
    said = raw(
        patient, (head("/v1/completions", len(data)) + data).replace(b"HTTP/1.1", b"HTTP/1.0")
    )
    assert (
        b"Transfer-Encoding" not in said
        and b"Connection: close" in said
        and said.endswith(b"data: [DONE]\n\n")
    )
    assert b"\r\n\r\ndata: {" in said, "no chunk sizes"


def test_expectations(patient):
    with patient.connect() as c:
        c.sendall(
            head("/v1/completions", len(BODY), "Expect: 100-continue\r\nConnection: close\r\n")
        )
        assert c.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        c.sendall(BODY)
        assert answers(c.makefile("rb").read())[0][0] == 200
    got = answers(raw(patient, head("/nowhere", len(BODY), "Expect: 100-continue\r\n")))
    assert [a[0] for a in got] == [404], "said before the body is sent"


def test_head_and_date(patient):
    import email.utils

    before = time.time()
    r = patient.request("HEAD", "/version")
    assert r.status == 200 and r.body == b"" and int(r.headers["content-length"]) > 10
    assert (
        before - 2
        < email.utils.parsedate_to_datetime(r.headers["date"]).timestamp()
        < time.time() + 2
    )


def test_names_of_this_machine(fake):
    def asked(s, host, **kw):
        return s.get("/version", headers={"Host": host, **kw}).status

    with fake() as s:
        for host in (
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "127.0.0.1",
            "127.9.9.9:8000",
            "[::1]:80",
            "a.localhost",
            "192.168.0.1",
        ):
            assert asked(s, host) == 200, host
        for host in (
            "evil.test",
            "localhost.evil.test",
            "evillocalhost",
            "127.0.0.1.evil.test",
            "evil.test:80",
            "[evil.test]",
            "[",
            "[]",
            "[:1",
            ":",
            "1",
            "*",
        ):
            assert asked(s, host) in (400, 403), host
        r = s.post("/v1/completions", COMPLETION, headers={"Host": "evil.test"})
        assert (
            r.status == 403
            and r.json()["error"]["code"] == "host_not_allowed"
            and "--allow-host" in r.json()["error"]["message"]
        )
        assert s.get("/", headers={"Host": "evil.test", "Accept": "text/html"}).status == 403
    with fake(allow_host="llm.example,Other.example") as s:
        assert [
            asked(s, h)
            for h in (
                "llm.example",
                "LLM.example:443",
                "other.example",
                "localhost",
                "m.example",
                "llm.example.evil.test",
            )
        ] == [200, 200, 200, 200, 403, 403]
    with fake(allow_host="*") as s:
        assert asked(s, "evil.test") == 200
    with fake(api_key="sesame") as s:
        assert asked(s, "evil.test", Authorization="Bearer sesame") == 200, (
            "the key is what a page does not have"
        )


# ---- connections ----


def test_the_oldest_idle_connection_is_closed_for_a_new_one(engine):
    """Idle connections stay open after one request. New clients are answered at once."""
    with engine(max_connections=20, idle_timeout_s=6 * HANG, header_timeout_s=6 * HANG) as s:
        idle = [s.connect() for _ in range(20)]
        for c in idle:
            c.sendall(GET + b"\r\n")
            assert b"200 OK" in c.recv(1000)
        for _ in range(3):
            idle.append(s.connect())
            idle[-1].sendall(GET + b"\r\n")
            assert b"200 OK" in idle[-1].recv(1000)
        assert [c.recv(1) for c in idle[:3]] == [b""] * 3, "the oldest"
        idle[-1].sendall(GET + b"\r\n")
        assert b"200 OK" in idle[-1].recv(1000), "the youngest are still there"
        # connections without a request, and connections with an incomplete one
        silent = [s.connect() for _ in range(30)]
        assert s.get("/version").status == 200
        begun = [s.connect() for _ in range(30)]
        for c in begun:
            try:
                c.sendall(POST + b"Content-Length: 100\r\n\r\n{")
            except OSError:
                pass
        assert s.get("/version").status == 200
        for c in idle + silent + begun:
            c.close()


def test_a_client_that_disconnects_within_a_request_is_forgotten(engine):
    with engine(body_timeout_s=6 * HANG, header_timeout_s=6 * HANG, drain_ms=6000 * HANG) as s:
        for data in (
            head("/v1/completions", 100) + b"0123456789",
            b"POST /v1/comp",
            head("/v1/completions", 5, "Transfer-Encoding: chunked\r\n").replace(
                b"Content-Length: 5\r\n", b""
            )
            + b"5\r\nab",
        ):
            with s.connect() as c:
                c.sendall(data)
        s.until(lambda: s.status()["requests"]["active"] == 1 and s.status()["connections"] == 1)
        with s.connect() as c:
            c.sendall(head("/v1/completions", 100) + b"0123456789")
        assert s.stop()[0] == 0, (
            "SIGTERM waits for nobody: the body and the drain have six times as long"
        )


@pytest.mark.parametrize("streams", [True, False])
def test_half_closed_connections_end(engine, streams):
    """A half-closed connection gives no further sign of leaving, so the request is cancelled."""
    with engine(step_ms=20, context=20000) as s:
        data = json.dumps(held(s, {**COMPLETION, "max_tokens": 19000, "stream": streams})).encode()
        clients = [s.connect() for _ in range(60)]
        for c in clients:
            c.sendall(head("/v1/completions", len(data)) + data)
        s.until(lambda: s.status()["batch"]["running"] == (8 if s.everything else 60))
        for c in clients:
            c.shutdown(socket.SHUT_WR)
        s.until(lambda: s.status()["connections"] == 1 and s.status()["batch"]["running"] == 0)
        for c in clients:
            c.close()


def test_too_many_of_one_client(engine):
    with engine(max_connections_per_client=5) as s:
        mine = [s.connect() for _ in range(5)]
        with s.connect() as c:
            assert c.recv(1) == b""
        for c in mine:
            c.close()
        s.until(lambda: reached(s))


def reached(s):
    try:
        return s.get("/version").status == 200
    except OSError:
        return False


def test_ten_thousand_requests_in_one_go(patient):
    """Pipelined requests are answered in order, and no other client waits for all of them."""
    n = 10000
    one = GET + b"\r\n"
    with patient.connect() as c:
        got, done = bytearray(), threading.Event()

        def read():
            while got.count(b"HTTP/1.1 200 OK") < n:
                part = c.recv(1 << 16)
                if not part:
                    return
                got.extend(part)
            done.set()

        def send():
            c.sendall(one * n)

        threads = [threading.Thread(target=f) for f in (read, send)]
        for t in threads:
            t.start()
        while not done.is_set() and threads[0].is_alive():
            assert patient.get("/version").status == 200
        for t in threads:
            t.join()
    assert done.is_set()


def test_what_is_not_read_does_not_pile_up(patient):
    """Pipelined requests whose answers are never read: the server stops reading, and its
    memory is bounded.
    """
    before = rss(patient)
    with patient.connect(1) as c:
        sent = 0
        try:
            while sent < 64 << 20:
                sent += c.send((GET.replace(b"/version", b"/openapi.json") + b"\r\n") * 1000)
        except TimeoutError:
            pass
        assert rss(patient) - before < 32 << 20
        well(patient)


def test_what_is_not_answered_does_not_pile_up(patient):
    """Short requests arrive faster than they are served: the server reads no further ahead
    than necessary, and stops if the answers are not read.
    """
    before = rss(patient)
    with patient.connect(1) as c:
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 32 << 20:
                sent += c.send((GET + b"\r\n") * 1000)
        assert SANITIZED or rss(patient) - before < 8 << 20  # a sanitizer keeps freed memory
        well(patient)


def test_an_unread_stream_ends(fake):
    """Neither memory nor time of an unread stream is unbounded."""
    with fake(step_ms=0, context=200000, body_timeout_s=1) as s:
        data = json.dumps(
            {**COMPLETION, "max_tokens": 190000, "stream": True, "logprobs": 5}
        ).encode()
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        c.connect(("127.0.0.1", s.port))
        with c:
            c.sendall(head("/v1/completions", len(data)) + data)
            s.until(lambda: s.status()["batch"]["running"] == 1)
            s.until(lambda: s.status()["batch"]["running"] == 0 and s.status()["connections"] == 1)
        assert s.stop()[0] == 0


# ---- memory and time ----


def small_ones_pass(server, until):
    """Requests of one token are answered under load."""
    while not until():
        assert server.post("/v1/completions", COMPLETION).status == 200


def flood(server, path, body, n):
    """Send the same request from n clients; return their answers."""
    said, lock = [], threading.Lock()

    def client():
        r = server.request("POST", path, body, {"Content-Type": "application/json"})
        with lock:
            said.append(r)

    threads = [threading.Thread(target=client) for _ in range(n)]
    for t in threads:
        t.start()
    return said, threads


@pytest.mark.skipif(SANITIZED, reason="memory is the sanitizer's")
def test_unread_answers_are_counted(serve, tiny_folder):
    """Clients hold answers of 100 MB each without reading them: above the limit others are
    refused, small requests pass, and once all have left, the memory returns to the system.
    """
    body = json.dumps({"inputs": "\u0301" * 900000}, ensure_ascii=False).encode()
    with serve(tiny_folder, "--arch", "generic", "-t", "1", "--model-name", "fake", "--quiet") as s:
        assert s.post("/v1/completions", COMPLETION).status == 200
        before = rss(s)
        clients = [s.connect() for _ in range(40)]
        senders = [
            threading.Thread(target=c.sendall, args=(head("/tokenize", len(body)) + body,))
            for c in clients
        ]
        for t in senders:
            t.start()
        peak, codes = 0, []

        def all_said():
            nonlocal peak
            peak = max(peak, rss(s))
            return not any(t.is_alive() for t in readers)

        readers = [threading.Thread(target=lambda c=c: codes.append(c.recv(12))) for c in clients]
        for t in readers:
            t.start()
        small_ones_pass(s, all_said)
        said = {c[9:] for c in codes}
        assert said <= {b"200", b"503", b""} and b"503" in said and b"200" in said
        assert s.status()["memory"]["held"] <= s.status()["memory"]["max"] + (1 << 20)
        assert peak - before < 800 << 20, "forty times 75 MB are 3 GB"
        for c in clients:
            c.close()
        s.until(lambda: rss(s) - before < 48 << 20 and s.status()["memory"]["held"] < 1 << 20)
        assert s.stop()[0] == 0


@pytest.mark.skipif(SANITIZED, reason="memory is the sanitizer's")
def test_what_a_body_is_read_into_is_counted(serve, tiny_folder):
    """2 MB of empty objects take 200 MB of memory; part of a flood of them is refused, and no
    memory stays in use.
    """
    body = b'{"model": "fake", "prompt": "a", "x": [' + b",".join([b"{}"] * 690000) + b"]}"
    with serve(tiny_folder, "--arch", "generic", "-t", "1", "--model-name", "fake", "--quiet") as s:
        assert s.post("/v1/completions", COMPLETION).status == 200
        before = rss(s)
        said, threads = flood(s, "/v1/completions", body, 8)
        small_ones_pass(s, lambda: not any(t.is_alive() for t in threads))
        assert {r.status for r in said} <= {200, 413, 503} and all(
            "memory" in r.text or r.status != 413 for r in said
        )
        s.until(lambda: rss(s) - before < 48 << 20)
        assert s.stop()[0] == 0


def test_prompts_that_cannot_fit_are_not_tokenized(fake):
    digits = "1234567890" * 190000
    with fake(step_ms=0) as s:
        for path, body in (
            ("/v1/completions", {**COMPLETION, "prompt": digits}),
            (
                "/v1/chat/completions",
                {"model": "fake", "messages": [{"role": "user", "content": digits}]},
            ),
            ("/generate", {"inputs": digits}),
        ):
            said, threads = flood(s, path, json.dumps(body).encode(), 12)
            small_ones_pass(s, lambda: not any(t.is_alive() for t in threads))
            assert {r.status for r in said} == {422 if path == "/generate" else 400}
            if path != "/generate":
                assert {r.json()["error"]["code"] for r in said} == {"context_length_exceeded"}
        # a request that fits works as before
        r = s.post("/v1/completions", {**COMPLETION, "prompt": "12345"})
        assert r.status == 200


def test_small_requests_have_a_worker_of_their_own(fake):
    """Large requests are accepted in sequence while small ones are served."""
    body = json.dumps({"inputs": "hello world 123 " * 100000}).encode()
    with fake(step_ms=0) as s:
        said, threads = flood(s, "/tokenize", body, 12)
        small_ones_pass(s, lambda: not any(t.is_alive() for t in threads))
        assert {r.status for r in said} <= {200, 503} and 200 in {r.status for r in said}


@pytest.mark.skipif(SANITIZED, reason="the sanitizer needs its addresses")
def test_out_of_memory_is_503(fake):
    """Neither "invalid JSON" nor 500: the client made no mistake and may retry."""
    objects = b'{"model": "fake", "prompt": "a", "x": [' + b",".join([b"{}"] * 600000) + b"]}"
    marks = json.dumps({"inputs": "\u0301" * 900000}, ensure_ascii=False).encode()
    with fake(step_ms=0) as s:
        well(s)
        with open(f"/proc/{s.process.pid}/statm") as f:
            room = int(f.read().split()[0]) * resource.getpagesize() + (32 << 20)
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (room, room))
        for path, body in (("/v1/completions", objects), ("/tokenize", marks)):
            r = s.request("POST", path, body, {"Content-Type": "application/json"})
            told = r.text[:200]
            assert (
                r.status == 503
                and r.headers["retry-after"] == "1"
                and ("memory" in told or "bytes" in told)
            ), path
            well(s)


# rounds of large bodies with little memory, per server
ROUNDS = int(os.environ.get("LLMC_MEMORY_ROUNDS", 500 if os.environ.get("LLMC_CHECK_ALL") else 60))


@pytest.mark.skipif(SANITIZED, reason="the sanitizer needs its addresses")
@pytest.mark.parametrize("spare", [2, 5, 9])
def test_large_bodies_with_little_memory(fake, spare):
    """Allocations fail anywhere in a request while others succeed; a client may fail to connect."""
    pick = random.Random(spare)
    bodies = [
        json.dumps(
            {
                "model": "fake",
                "max_tokens": 1,
                "prompt": "a",
                "x": ["é" * pick.randrange(50_000, 900_000), 1234567890123456.5e-3],
                "messages": [{"role": "user", "content": "b" * pick.randrange(10_000, 500_000)}],
            },
            ensure_ascii=pick.random() < 0.5,
        ).encode()
        for _ in range(12)
    ]
    paths = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/messages", "/api/chat"]

    def attack(server, seed):
        order = random.Random(seed)
        for _ in range(ROUNDS // 4):
            try:
                r = server.request(
                    "POST",
                    order.choice(paths),
                    order.choice(bodies),
                    {"Content-Type": "application/json"},
                )
                if r.status not in (200, 400, 413, 429, 503):
                    return r.status, r.text[:200]
            except (OSError, http.client.HTTPException):
                pass  # no memory for the connection
        return None

    with fake(step_ms=0) as s:
        well(s)
        with open(f"/proc/{s.process.pid}/statm") as f:
            limit = int(f.read().split()[0]) * resource.getpagesize() + (spare << 20)
        resource.prlimit(s.process.pid, resource.RLIMIT_AS, (limit, limit))
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda k: attack(s, k), range(4))) == [None] * 4
        assert s.process.poll() is None
        well(s)


@pytest.mark.skipif(SANITIZED, reason="it would take minutes")
def test_an_answer_that_becomes_too_large(fake):
    """100 choices of 2000 tokens with 20 alternatives each: 500 MB of JSON before the first
    byte is sent.
    """
    with fake(step_ms=0, context=4096) as s:
        r = s.post(
            "/v1/chat/completions",
            {
                "model": "fake",
                "messages": [{"role": "user", "content": "a"}],
                "n": 100,
                "max_tokens": 2000,
                "logprobs": True,
                "top_logprobs": 20,
            },
        )
        told = r.text[:300]
        assert r.status == 503 and (
            "exceeds the server's memory limit" in told or "out of memory" in told
        )
        assert rss(s) < 700 << 20
        s.idle()
        well(s)
        assert s.status()["memory"]["held"] < 1 << 20


def test_a_hundred_thousand_variables_of_a_template(fake):
    """Linear lookup of the variables once took sixteen seconds."""
    with fake(step_ms=0) as s:
        r = s.post(
            "/v1/chat/completions",
            {
                "model": "fake",
                "messages": [{"role": "user", "content": "a"}],
                "chat_template_kwargs": {f"k{i}": i for i in range(100000)},
            },
        )
        assert r.status == 400 and r.json()["error"]["param"] == "chat_template_kwargs"


def test_tiny_requests_without_end(fake):
    """New connections at full speed, each with a request or none: others are served meanwhile."""
    with fake(step_ms=0, max_connections=50) as s:
        stop = threading.Event()

        def connect(ask):
            while not stop.is_set():
                try:
                    with s.connect() as c:
                        if ask:
                            c.sendall(GET + b"\r\n")
                            c.recv(100)
                except OSError:
                    pass

        threads = [threading.Thread(target=connect, args=(i % 2 == 0,)) for i in range(6)]
        for t in threads:
            t.start()
        turns = iter(range(100))
        small_ones_pass(s, lambda: next(turns, None) is None)
        assert "tgi_request_count" in s.get("/metrics").text
        stop.set()
        for t in threads:
            t.join()
        s.idle()
        s.until(lambda: s.status()["connections"] == 1)
        assert s.stop()[0] == 0


def test_duplicate_keys_and_invalid_utf8(patient):
    """Each input has one meaning: the last duplicate key counts, as in common JSON libraries;
    invalid UTF-8 is refused.
    """
    r = patient.post(
        "/v1/completions", b'{"model": "fake", "prompt": "a", "max_tokens": 9, "max_tokens": 2}'
    )
    assert r.json()["usage"]["completion_tokens"] == 2
    for bad in (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        r = patient.post("/v1/completions", b'{"model": "fake", "prompt": "' + bad + b'"}')
        assert r.status == 400 and "not valid JSON" in r.json()["error"]["message"], bad


def test_stopping_with_every_kind_of_client(engine):
    """An incomplete head, an incomplete body, an unread stream, an idle connection: none of
    them keeps the server running.
    """
    with engine(
        step_ms=1,
        context=30000,
        drain_ms=300,
        body_timeout_s=6 * HANG,
        header_timeout_s=6 * HANG,
        idle_timeout_s=6 * HANG,
    ) as s:
        data = json.dumps(held(s, {**COMPLETION, "max_tokens": 29000, "stream": True})).encode()
        clients = [s.connect() for _ in range(4)]
        clients[0].sendall(b"GET /vers")
        clients[1].sendall(head("/v1/completions", 100) + b"{")
        clients[2].sendall(head("/v1/completions", len(data)) + data)
        clients[3].sendall(GET + b"\r\n")
        s.until(lambda: s.status()["batch"]["running"] == 1)
        assert ends(s)
        for c in clients:
            c.close()
