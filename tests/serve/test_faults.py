"""Faults of clients and machines: each request gets the right status, the server stays healthy,
and the engine ends empty. Mostly over the fake engine, whose speed is a parameter, and over the
real one with adapters, speculation and constrained requests (`engine` is first the one, then
the other).
It is one file because its servers start once per module.
"""

import http.client
import json
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading

import pytest

import tiny_model
from waiting import HANG

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "e2e"))
from cuda_emu import environment

COMPLETION = {"model": "fake", "prompt": "hello world", "max_tokens": 4}
LONG = {"type": "string", "minLength": 30000}  # longer than any answer here


def raw(server, data):
    """Send bytes and read to the end."""
    with server.connect() as c:
        c.sendall(data)
        out = b""
        while True:
            try:
                part = c.recv(65536)
            except ConnectionResetError:
                return out
            if not part:
                return out
            out += part


def head(path, n, extra=""):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {n}\r\n{extra}\r\n".encode()


def held(server, body):
    """Return the request. On a server with everything enabled it uses an adapter, a constraint
    and speculation.
    """
    if not server.everything:
        return body
    if "inputs" in body:
        return {
            "inputs": body["inputs"],
            "parameters": {
                **body.get("parameters", {}),
                "grammar": {"type": "json", "value": LONG},
            },
        }
    return {**body, "model": "low", "guided_json": LONG, "speculate": 15, "ignore_eos": True}


def well(server, model="fake"):
    for body in [{**COMPLETION, "model": model}, held(server, COMPLETION)][: 1 + server.everything]:
        r = server.post("/v1/completions", {**body, "ignore_eos": True})
        assert r.status == 200 and r.json()["usage"]["completion_tokens"] == 4, r.text
    if server.everything:
        ask = {
            "model": "mid",
            "messages": [{"role": "user", "content": "a"}],
            "tools": tiny_model.TOOLS,
            "tool_choice": "required",
            "max_tokens": 100,
        }
        r = server.post("/v1/chat/completions", ask)
        assert r.status == 200 and r.json()["choices"][0]["finish_reason"] in (
            "tool_calls",
            "length",
        ), r.text
    assert server.get("/health").status == 200


def well_soon(server):
    """Retry: with timeouts of a fraction of a second a slow machine may miss one."""

    def try_it():
        try:
            well(server)
            return True
        except (OSError, http.client.HTTPException):
            return False

    server.until(try_it)


def ends(server):
    """Stop by SIGTERM and check that the engine is empty: the fake one reports it, the
    sanitizers check the real one.
    """
    code, rest = server.stop()
    return code == 0 and (server.everything or "left 0" in rest)


@pytest.fixture(scope="module")
def quick(engine):
    with engine(step_ms=0) as s:
        yield s
        s.idle()
        assert ends(s)


def leave(connection, reset=False):
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_clients_that_leave_are_cancelled(engine, path, stream, reset):
    """At one token per 20 ms the answers would take minutes."""
    with engine(step_ms=20, context=20000) as s:
        if path == "/generate":
            path, body = (
                ("/generate_stream" if stream else path),
                {"inputs": "hello", "parameters": {"max_new_tokens": 19000}},
            )
        else:
            body = {
                "model": "fake",
                "prompt": ["hello", "a"],
                "max_tokens": 19000,
                "stream": stream,
            }
        data = json.dumps(held(s, body)).encode()
        connections = []
        for _ in range(3):
            c = s.connect()
            c.sendall(head(path, len(data)) + data)
            connections.append(c)
        s.until(lambda: s.status()["batch"]["running"] == (3 if "inputs" in body else 6))
        if stream:
            assert b"200 OK" in connections[0].recv(1000)
        for c in connections:
            leave(c, reset)
        s.idle()
        well(s)
        assert ends(s) and open(s.log).read().count("client-gone") == 3


def test_leaving_while_waiting_in_the_queue(fake):
    with fake(hold=1) as s:
        data = json.dumps({**COMPLETION, "stream": True}).encode()
        with s.connect() as c:
            c.sendall(head("/v1/completions", len(data)) + data)
            s.until(lambda: s.status()["batch"]["running"] == 1)
        s.until(lambda: s.status()["batch"]["running"] == 0)
        assert s.stop()[0] == 0


def test_reading_a_byte_at_a_time(quick):
    """The answer waits in memory; the engine and other clients do not."""
    data = json.dumps(held(quick, {**COMPLETION, "max_tokens": 200, "stream": True})).encode()
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    c.settimeout(HANG)
    c.connect(("127.0.0.1", quick.port))
    with c:
        c.sendall(head("/v1/completions", len(data), "Connection: close\r\n") + data)
        out = c.recv(1)
        for _ in range(10 if quick.everything else 50):
            well(quick)
            out += c.recv(1)
        assert quick.status()["batch"]["running"] == 0
        while True:
            part = c.recv(4096)
            if not part:
                break
            out += part
    assert out.startswith(b"HTTP/1.1 200 OK") and b"data: [DONE]" in out


def test_heads_that_never_end(engine):
    """Bytes keep arriving, so an idle timeout would not help."""
    with engine(header_timeout_s=0.3, body_timeout_s=0.3, idle_timeout_s=1) as s:

        def drip(first, more):
            with s.connect() as c:
                c.sendall(first)
                try:
                    while True:
                        c.settimeout(0.02)
                        try:
                            if not c.recv(1000):
                                return True
                        except TimeoutError:
                            c.sendall(more)
                except (ConnectionResetError, BrokenPipeError):
                    return True

        results = []
        cases = [
            (b"G", b"E"),
            (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", b"X-A: b\r\n"),
            (head("/v1/completions", 100000), b" "),
            (
                head("/generate", 10, "Transfer-Encoding: chunked\r\n").replace(
                    b"Content-Length: 10\r\n", b""
                ),
                b"1\r\n{\r\n",
            ),
            (b"", b""),
        ]
        threads = [threading.Thread(target=lambda a=a: results.append(drip(*a))) for a in cases]
        for t in threads:
            t.start()
        for _ in range(5):
            well_soon(s)
        for t in threads:
            t.join(HANG)
        assert results == [True] * len(cases)
        s.idle()


def test_as_many_connections_as_there_may_be(engine):
    """Idle connections use no thread; at the limit the next one waits until one closes."""
    with engine(max_connections=30, header_timeout_s=0.2) as s:
        idle = [s.connect() for _ in range(60)]
        well_soon(s)
        for c in idle:
            c.close()
        well_soon(s)
        assert s.stop()[0] == 0


def test_out_of_descriptors(engine):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))

    with engine(limit=limit, header_timeout_s=0.2) as s:
        idle = [s.connect() for _ in range(100)]
        well_soon(s)
        for c in idle:
            c.close()
        well_soon(s)
        assert "limit of 48 open files" in open(s.log).read()
        assert s.stop()[0] == 0


@pytest.mark.parametrize("path,status", [("/v1/completions", b"413"), ("/generate", b"413")])
def test_a_hundred_megabytes(quick, path, status):
    n = 100 << 20
    block = b'"' + b"a" * (1 << 20)
    assert status in raw(quick, head(path, n, "Expect: 100-continue\r\n"))[:60], (
        "said before it is sent"
    )
    with quick.connect() as c:
        c.sendall(head(path, n, "Connection: close\r\n"))
        sent = 0
        try:
            while sent < n:
                sent += c.send(block[: min(len(block), n - sent)])
        except (ConnectionResetError, BrokenPipeError):
            pytest.fail("cut off while sending")
        assert status in c.recv(100)
    chunked = head(path, 0, "Transfer-Encoding: chunked\r\nConnection: close\r\n").replace(
        b"Content-Length: 0\r\n", b""
    )
    assert (
        status
        in raw(
            quick,
            chunked
            + b"".join(b"%x\r\n%s\r\n" % (len(block), block) for _ in range(5))
            + b"0\r\n\r\n",
        )[:60]
    )
    huge = raw(quick, head(path, 1 << 50))
    assert status in huge[:60]
    well(quick)


BAD_BODIES = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"5",
    b'"text"',
    b"{]",
    b"{'a': 1}",
    b'{"model": "fake", "prompt": "a"',
    b'{"model": "fake", "prompt": "a"} x',
    b'{"model": "fake", "prompt": "\xff\xfe"}',
    b'{"model": "fake", "prompt": "\xc3"}',
    b'{"model": "fake", "prompt": "\xed\xa0\x80"}',
    b'{"model": "fake", "prompt": "\\ud800"}',
    b'{"model": "fake", "prompt": "\\x41"}',
    b"\x00" * 100,
    b"\xef\xbb\xbf{}",
    b"[" * 100000,
    b'{"a":' * 50000,
    b'{"model": "fake", "prompt": ' + b"[" * 90 + b"]" * 90 + b"}",
    b'{"model": "fake", "prompt": "a", "n": 1e400}',
    b'{"model": "fake", "prompt": "a", "n": 99999999999999999999999999}',
    b'{"prompt": NaN, "model": "fake"}',
    b'{"model": "fake", "prompt": "a", "max_tokens": -9223372036854775808}',
    b'{"model": "fake", "prompt": "a", "seed": 18446744073709551616}',
    b'{"model": "fake", "prompt": {"$u64": "5"}}',
    b'{"model": "fake", "prompt": [{"$u64": "5"}]}',
    b'{"model": "fake", "prompt": "a", "stop": "\\u0000"}',
    b'{"model": "fake", "prompt": "a", "n": true}',
    b'{"model": "fake", "prompt": "a", "logit_bias": [5]}',
    b'{"model": "fake", "prompt": "a", "n": 1000000}',
]


@pytest.mark.sample(len(BAD_BODIES) * 3 // 2)
@pytest.mark.parametrize("i", range(len(BAD_BODIES)))
def test_bad_bodies(quick, i):
    body = BAD_BODIES[i]
    r = quick.post("/v1/completions", body)
    assert r.status == 400 and set(r.json()["error"]) == {"message", "type", "param", "code"}, (
        r.text
    )
    for path in (
        "/v1/chat/completions",
        "/infill",
        "/completion",
        "/completions",
        "/chat/completions",
        "/chat/completions/input_tokens",
        "/apply-template",
        "/embedding",
        "/reranking",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/api/embed",
        "/api/chat",
        "/api/generate",
        "/api/show",
    ):
        assert quick.post(path, body).status in (200, 400), "fields of other routes are passed over"
    for path in (
        "/v1/models/load",
        "/models/unload",
        "/v1/weights",
        "/update_weights_from_disk",
        "/pause?mode=keep",
        "/pause_generation",
        "/continue_generation",
    ):
        assert quick.post(path, body).status in (200, 400, 403, 404), path
    for path in ("/generate", "/", "/tokenize", "/chat_tokenize", "/generate_stream"):
        assert quick.post(path, body).status in (200, 400, 422), path


def test_nul_in_a_prompt_is_a_character(quick):
    r = quick.post(
        "/v1/completions",
        b'{"model": "fake", "prompt": "a\\u0000b", "max_tokens": 3, "echo": true}',
    )
    assert r.json()["choices"][0]["text"].startswith("a\0b" if quick.everything else "a\0ba\0b")


def test_bad_requests_of_http(engine):
    with engine(header_timeout_s=0.2, body_timeout_s=0.2) as s:
        nonsense(s)


def nonsense(quick):
    for data in (
        b"\r\n\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -5\r\n\r\n",
        random.Random(5).randbytes(1000),
    ):
        with quick.connect() as c:
            try:
                c.sendall(data)
                c.shutdown(socket.SHUT_WR)
                while c.recv(65536):
                    pass
            except TimeoutError:
                raise
            except OSError:
                pass  # the server may close at any point
    well_soon(quick)


def test_a_template_that_loops_is_stopped(quick):
    r = quick.post(
        "/v1/chat/completions",
        {"model": "fake", "messages": [{"role": "user", "content": "loop for ever"}]},
    )
    assert r.status == 400 and "template" in r.json()["error"]["message"]
    well(quick)


def test_a_full_queue(fake):
    with fake(hold=1, max_live=4) as s:
        data = json.dumps({"inputs": "a"}).encode()
        waiting = [s.connect() for _ in range(4)]
        for c in waiting:
            c.sendall(head("/generate", len(data)) + data)
        s.until(lambda: s.status()["batch"]["running"] == 4)
        r = s.post("/v1/completions", COMPLETION)
        assert (
            r.status == 429
            and r.json()["error"]["type"] == "rate_limit_error"
            and r.headers["retry-after"] == "1"
        )
        r = s.post("/generate", {"inputs": "a"})
        assert r.status == 429 and r.json() == {
            "error": "Model is overloaded",
            "error_type": "overloaded",
        }
        r = s.post("/generate_stream", {"inputs": "a"})
        assert r.status == 200 and json.loads(r.frames()[0]) == {
            "error": "Model is overloaded",
            "error_type": "overloaded",
        }
        assert s.get("/health").status == 200, "busy is not ill"
        # with several prompts the last is refused for lack of capacity: none of them continues
        waiting.pop().close()
        s.until(lambda: s.status()["batch"]["running"] == 3)
        assert s.post("/v1/completions", {**COMPLETION, "prompt": ["a", "b"]}).status == 429
        s.until(lambda: s.status()["batch"]["running"] == 3)
        for c in waiting:
            c.close()
        s.until(lambda: s.status()["batch"]["running"] == 0)
        text = s.get("/metrics").text
        assert (
            'tgi_request_failure{err="overloaded"} 4' in text
            and 'tgi_request_failure{err="dropped"} 4' in text
        )
        assert s.stop()[0] == 0


def test_the_model_fails_midway(fake):
    with fake(step_ms=5, fail_at=4) as s:
        r = s.post("/v1/completions", {**COMPLETION, "max_tokens": 50, "stream": True})
        frames = r.frames()
        assert (
            r.status == 200
            and "[DONE]" not in frames
            and json.loads(frames[-1])["error"]["message"] == "the model gave NaN"
        )
        assert json.loads(frames[0])["choices"][0]["text"] == "hello"
        assert s.get("/health").status == 200
        well(s)
    with fake(step_ms=5, fail_at=4) as s:
        r = s.post("/generate", {"inputs": "hello", "parameters": {"max_new_tokens": 50}})
        assert r.status == 424 and r.json() == {
            "error": "Request failed during generation: the model gave NaN",
            "error_type": "generation",
        }
        well(s)
    with fake(step_ms=5, fail_at=1) as s:
        r = s.post("/v1/completions", COMPLETION)
        assert r.status == 500 and r.json()["error"]["type"] == "server_error"
    with fake(step_ms=5, fail_at=1) as s:
        r = s.get("/health")
        assert r.status == 503 and r.json() == {"error": "unhealthy", "error_type": "healthcheck"}
        assert s.get("/health").status == 200


def test_an_engine_that_is_lost_while_nothing_runs(fake):
    with fake(mortal=1) as s:
        well(s)
        s.process.send_signal(signal.SIGUSR1)
        s.until(lambda: s.get("/health").status == 503)
        r = s.post("/v1/completions", COMPLETION)
        assert r.status == 500 and r.json()["error"]["message"] == "rank 1 of 2 is lost"
        assert s.get("/health").status == 503
        assert s.stop()[0] == 0


def test_sigterm_lets_requests_finish(fake):
    with fake(hold=1, drain_ms=600000) as s:
        answers = []
        body = {**COMPLETION, "max_tokens": 20}
        threads = [
            threading.Thread(
                target=lambda x=x: answers.append(s.post("/v1/completions", {**body, "stream": x}))
            )
            for x in (True, False)
        ]
        for t in threads:
            t.start()
        s.until(lambda: s.status()["batch"]["running"] == 2)
        keep, probe = s.connect(), s.connect()
        for c in (keep, probe):
            c.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in c.recv(1000)
        s.process.send_signal(signal.SIGTERM)
        s.until(lambda: not reachable(s))
        # an open connection may still send requests and is answered
        data = json.dumps(COMPLETION).encode()
        keep.sendall(head("/v1/completions", len(data)) + data)
        assert b" 503 " in keep.recv(1000)
        keep.close()
        probe.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        said = probe.makefile("rb").read()  # until the server closes
        assert b" 503 " in said and b'{"error":"unhealthy","error_type":"healthcheck"}' in said
        probe.close()
        s.process.send_signal(signal.SIGUSR1)  # the engine continues
        for t in threads:
            t.join()
        code, rest = s.stop(sig=0)
        assert code == 0 and "left 0" in rest
        assert sorted(a.status for a in answers) == [200, 200] and any(
            "[DONE]" in a.text for a in answers
        )
        assert all("length" in a.text for a in answers)


def reachable(server):
    try:
        server.connect().close()
        return True
    except OSError:
        return False


def test_what_is_not_done_in_time_is_cut_short(engine):
    with engine(step_ms=20, drain_ms=200, context=20000) as s:
        answers = []
        body = {**COMPLETION, "max_tokens": 10000}
        threads = [
            threading.Thread(
                target=lambda x=x: answers.append(
                    s.post("/v1/completions", held(s, {**body, "stream": x}))
                )
            )
            for x in (True, False)
        ]
        for t in threads:
            t.start()
        s.until(lambda: s.status()["batch"]["running"] == 2)
        ended = ends(s)
        for t in threads:
            t.join()
        assert ended
        whole = [a for a in answers if a.status == 503]
        streamed = [a for a in answers if a.status == 200]
        assert len(whole) == 1 and "shutting down" in whole[0].text
        assert (
            len(streamed) == 1
            and "shutting down" in json.loads(streamed[0].frames()[-1])["error"]["message"]
        )


def test_many_at_once(quick):
    answers, lock = [], threading.Lock()

    def client(i):
        for k in range(5):
            r = quick.post(
                "/v1/completions",
                held(
                    quick,
                    {
                        **COMPLETION,
                        "prompt": f"{i} {k}",
                        "max_tokens": 9,
                        "stream": bool(i % 2),
                        "n": 1 + k % 3,
                    },
                ),
            )
            with lock:
                answers.append(r.status)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert answers == [200] * 80


# the same on the real engine: clients that disconnect, and a page pool too small for all


def test_real_engine_clients_that_leave(tiny):
    data = json.dumps(
        {
            "model": "tiny",
            "prompt": "hello world",
            "max_tokens": 200,
            "ignore_eos": True,
            "stream": True,
            "n": 4,
        }
    ).encode()
    for i in range(12):
        with tiny.connect() as c:
            c.sendall(head("/v1/completions", len(data)) + data)
            if i % 3 == 0:
                c.recv(100)
            if i % 3 == 1:
                leave(c, reset=True)
    tiny.idle()
    well(tiny, "tiny")


def test_real_engine_pages_run_out(serve, tiny_folder):
    """Two of the requests fit at a time: the others wait or are preempted, and all get equal
    answers.
    """
    with serve(
        tiny_folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "8",
        "--kv-tokens",
        "288",
        "--no-prefix-cache",
        "--model-name",
        "tiny",
    ) as s:
        body = {
            "model": "tiny",
            "prompt": "hello world",
            "max_tokens": 120,
            "temperature": 0,
            "ignore_eos": True,
        }
        alone = s.post("/v1/completions", body).json()["choices"][0]["text"]
        answers = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(
                    s.post("/v1/completions", body).json()["choices"][0]["text"]
                )
            )
            for _ in range(12)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert answers == [alone] * 12
        s.idle()
        assert s.stop()[0] == 0


def test_real_engine_sigterm_under_load(serve, tiny_folder):
    with serve(
        tiny_folder, "--arch", "generic", "-t", "1", "--seqs", "8", "--model-name", "tiny"
    ) as s:
        answers = []
        body = {
            "model": "tiny",
            "prompt": "hello world",
            "max_tokens": 240,
            "temperature": 0,
            "ignore_eos": True,
        }

        def client(stream):
            """Send requests continuously, so that one is in flight whenever the signal
            comes.
            """
            try:
                while True:
                    answers.append(s.post("/v1/completions", {**body, "stream": stream}))
            except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                pass  # too late

        threads = [threading.Thread(target=client, args=(i % 2 == 0,)) for i in range(8)]
        for t in threads:
            t.start()
        s.until(lambda: s.status()["batch"]["running"] > 0)
        code, _ = s.stop()
        for t in threads:
            t.join()
        assert code == 0
        assert answers and all(a.status == 503 or "length" in a.text for a in answers)


def test_a_deadline(serve, tiny_folder):
    with serve(
        tiny_folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--request-timeout",
        "0.000001",
        "--model-name",
        "tiny",
    ) as s:
        r = s.post(
            "/v1/completions",
            {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True},
        )
        assert r.status == 503 and "--request-timeout" in r.json()["error"]["message"]
        r = s.post("/generate_stream", {"inputs": "hello", "parameters": {"max_new_tokens": 200}})
        assert "--request-timeout" in json.loads(r.frames()[-1])["error"]
        s.idle()
        assert s.stop()[0] == 0


def test_the_deadline_covers_the_chat_template(serve, tmp_path):
    """The template loops until it has taken 20 million steps, which is a refusal with status 400
    without a time limit.
    """
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    model = tiny_model.build(tmp_path / "tiny", template=loop)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
    options = ["--arch", "generic", "-t", "1", "--model-name", "tiny", "--request-timeout", "0.01"]
    with serve(model, *options) as s:
        for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/tokenize"):
            r = s.post(path, {**body, "max_tokens": 4, "stream": False})
            assert r.status == 503 and "--request-timeout" in r.text, (path, r.status, r.text)
        s.idle()
        assert s.stop()[0] == 0


def test_the_second_signal_ends_at_once(serve, tiny_folder):
    """The first signal waits for a request whose body never arrives."""
    with serve(
        tiny_folder, "--arch", "generic", "--body-timeout", "600", "--drain-timeout", "600"
    ) as s:
        with s.connect() as c:
            c.sendall(head("/v1/completions", 100))
            s.until(lambda: s.status()["requests"]["active"] == 2)
            s.process.send_signal(signal.SIGTERM)
            s.until(lambda: not reachable(s))
            assert s.process.poll() is None
            assert s.stop(signal.SIGINT)[0] == 130


def test_a_gpu_that_vanishes(serve, tiny_folder):
    """From the nth driver call on nothing of the GPU works. The server names the step and ends, or
    answers with an error, reports that it has failed, and stops as usual."""
    calls = range(1, 460, 12) if os.environ.get("LLMC_CHECK_ALL") else (60, 200, 280, 350, 400)
    options = ("--device", "cuda", "-t", "1", "--seqs", "4", "--context", "128")
    body = {"prompt": "hello world", "max_tokens": 4, "n": 2, "temperature": 1, "logprobs": 2}
    ended = []
    for i, n in enumerate(calls):
        code = (46, 214, 719, 100)[i % 4]
        env = environment("sm_75", LLMC_EMU_FAIL=f"{n}:{code}+")
        try:
            s = serve(tiny_folder, *options, env=env)
        except RuntimeError as e:
            assert f", {code})" in str(e), e
            ended.append("start")
            continue
        with s:
            got = [s.post("/v1/completions", body) for _ in range(3)]
            lost = [r for r in got if r.status != 200]
            for r in lost:
                assert r.status >= 500 and f", {code})" in r.json()["error"]["message"]
            assert s.get("/health").status == (503 if lost else 200)
            assert s.get("/v1/models").status == 200
            assert s.stop()[0] == 0
            ended.append("lost" if lost else "well")
    assert {"start", "lost"} <= set(ended)


def test_a_model_whose_gpu_failed_once_is_opened_again(serve, tiny_folder):
    """It is reported as failed until the next request opens it again."""
    options = ("--device", "cuda", "-t", "1", "--seqs", "4", "--context", "128")
    body = {"prompt": "hello world", "max_tokens": 8, "temperature": 0}

    def state(s):
        return s.get("/v1/models").json()["data"][0]["status"]["value"], s.get("/health").status

    with serve(tiny_folder, *options, env=environment("sm_75")) as s:
        want = s.post("/v1/completions", body).json()["choices"]
    with serve(tiny_folder, *options, env=environment("sm_75", LLMC_EMU_FAIL="350:719")) as s:
        for _ in range(200):
            r = s.post("/v1/completions", body)
            if r.status != 200:
                break
        assert r.status == 500 and ", 719)" in r.text
        assert state(s) == ("failed", 503)
        assert s.post("/v1/completions", body).json()["choices"] == want
        assert state(s) == ("loaded", 200)
        assert s.stop()[0] == 0
