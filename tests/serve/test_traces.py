"""Spans for a collector: their content and parent, no span if the client did not sample it, and no
harm from an absent collector.
"""

import http.server
import json
import subprocess
import threading

import pytest

from server_process import BUILD
from waiting import HANG, reserved_port

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.got.append(
            (self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        )
        self.send_response(self.server.status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *a):
        pass


@pytest.fixture
def collector():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as c:
        c.got, c.status = [], 200
        t = threading.Thread(target=c.serve_forever)
        t.start()
        yield c
        c.shutdown()
        t.join()


def spans(collector):
    return [
        s
        for path, body in collector.got
        for r in body["resourceSpans"]
        for scope in r["scopeSpans"]
        for s in scope["spans"]
    ]


def attributes(span):
    return {a["key"]: list(a["value"].values())[0] for a in span["attributes"]}


def ask(s, **headers):
    return s.post(
        "/v1/completions",
        {"model": "tiny", "prompt": "a b c", "max_tokens": 5, "ignore_eos": True},
        headers=headers,
    ).status


def test_spans(serve, tiny_folder, collector):
    with serve(
        tiny_folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--model-name",
        "tiny",
        "--otlp",
        f"http://127.0.0.1:{collector.server_port}",
    ) as s:
        assert ask(s, traceparent=f"00-{TRACE}-{PARENT}-01") == 200
        assert ask(s, traceparent=f"00-{'1' * 32}-{PARENT}-00") == 200  # not sampled
        assert (
            ask(s, traceparent=f"00-{'0' * 32}-{PARENT}-01") == 200
        )  # invalid trace id: a new one
        assert (
            s.get("/v1/nothing").status == 404 and s.get("/version").status == 200
        )  # no request in flight
        s.stop()  # remaining spans are sent
    assert {path for path, _ in collector.got} == {"/v1/traces"}
    all = spans(collector)
    ours = [s for s in all if s["traceId"] == TRACE]
    assert not [s for s in all if s["traceId"] == "1" * 32]
    root = next(s for s in ours if s.get("parentSpanId") == PARENT)
    a = attributes(root)
    assert (
        root["kind"] == 2
        and root["name"] == a["url.path"] == "/v1/completions"
        and a["http.response.status_code"] == "200"
        and a["http.request.method"] == "POST"
    )
    assert (
        a["gen_ai.usage.output_tokens"] == "5"
        and a["gen_ai.request.model"] == "tiny"
        and a["llmc.finish"] == "length"
    )
    below = [s for s in ours if s.get("parentSpanId") == root["spanId"]]
    assert [s["name"] for s in below] == ["queue", "prefill", "decode"] and len(ours) == 4
    for s in below:
        assert (
            int(root["startTimeUnixNano"])
            <= int(s["startTimeUnixNano"])
            <= int(s["endTimeUnixNano"])
        )
    roots = [s for s in all if s["kind"] == 2]
    assert [attributes(s)["http.response.status_code"] for s in roots] == ["200", "200"]
    assert len({s["spanId"] for s in all}) == len(all) and all_hex(all)


def all_hex(spans):
    return all(
        len(s["traceId"]) == 32
        and len(s["spanId"]) == 16
        and set(s["traceId"] + s["spanId"]) <= set("0123456789abcdef")
        and int(s["traceId"], 16)
        for s in spans
    )


def test_no_collector(serve, tiny_folder, collector):
    collector.status = 500
    with reserved_port() as nobody:
        for port in (collector.server_port, nobody):
            with serve(
                tiny_folder,
                "--arch",
                "generic",
                "-t",
                "1",
                "--model-name",
                "tiny",
                "--otlp",
                f"http://127.0.0.1:{port}/some/path",
            ) as s:
                assert ask(s) == 200
                assert s.stop()[0] == 0
    assert {path for path, _ in collector.got} == {"/some/path"}


@pytest.mark.parametrize(
    "url",
    ["https://a", "127.0.0.1:4318", "http://", "http://a:b", "http://a:123456", "http://a/b c"],
)
def test_urls(tiny_folder, url):
    p = subprocess.run(
        [BUILD + "/llmc", "serve", tiny_folder, "--arch", "generic", "-p", "0", "--otlp", url],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert p.returncode == 1 and "http://127.0.0.1:4318, found" in p.stderr
