"""Run every kind of client for ten minutes (or the seconds of the first argument) against one
server with a tiny model and everything enabled: three adapters in two slots (reloaded, added and
removed meanwhile), speculation, prefix files, reasoning and batches. The clients send requests in
all dialects, with and without streams, with n, constraints and tool calls. Some requests are
invalid, and some clients disconnect. At the end the engine must be empty and memory must be where
it was after the first tenth (not under TSan, which keeps history). Constrained answers must match.

    venv/bin/python tests/serve/soak.py [SECONDS] [CLIENTS] [--write]
"""

import argparse
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "bench")]
import tiny_model  # noqa: E402
from server_process import BUILD, Server  # noqa: E402
from machine import machine, result_file  # noqa: E402
from tiny_model import NAMES, SCHEMA, TOOLS  # noqa: E402


THINKS = (
    tiny_model.TEMPLATE.replace(
        "{% if mood %}", "{% if enable_thinking %}<think>\n{% endif %}{% if mood %}"
    )
    + "{# </think> #}"
)


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fits(text):
    v = json.loads(text)
    return set(v) == {"a", "b"} and len(v["a"]) <= 6 and 1 <= v["b"] <= 9


def held(server, r, prompt):
    """Send a constrained request in one of the dialects; return the status of its answer, or a
    description of the error.
    """
    messages = [{"role": "user", "content": prompt}]
    model = r.choice(NAMES)
    common = {
        "model": model,
        "temperature": r.choice([0, 1]),
        "stream": r.random() < 0.3,
        "speculate": r.choice([0, 15]),
    }
    kind = r.randrange(6)
    if kind == 0:
        a = server.post(
            "/v1/chat/completions",
            {
                **common,
                "messages": messages,
                "max_tokens": 100,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": SCHEMA},
                },
            },
        )
        texts = (
            [c["message"]["content"] for c in a.json()["choices"] if c["finish_reason"] == "stop"]
            if a.status == 200 and not common["stream"]
            else []
        )
        return a.status if all(map(fits, texts)) else f"not of its schema: {texts}"
    if kind == 1:
        a = server.post(
            "/v1/chat/completions",
            {
                **common,
                "messages": messages,
                "max_tokens": 120,
                "tools": TOOLS,
                "tool_choice": r.choice(
                    ["auto", "required", {"type": "function", "function": {"name": "f"}}]
                ),
            },
        )
        calls = (
            [
                t["function"]
                for c in a.json()["choices"]
                if c["finish_reason"] == "tool_calls"
                for t in c["message"]["tool_calls"]
            ]
            if a.status == 200 and not common["stream"]
            else []
        )
        return (
            a.status
            if all(c["name"] == "g" or fits(c["arguments"]) for c in calls)
            else f"not of its tool: {calls}"
        )
    if kind == 2:  # each schema is new, so that the server compiles it and evicts the oldest one
        a = server.post(
            "/v1/completions",
            {**common, "prompt": prompt, "max_tokens": 20, "guided_json": {"const": prompt}},
        )
    elif kind == 3:
        a = server.post(
            "/v1/responses",
            {
                "model": model,
                "input": prompt,
                "max_output_tokens": 60,
                "stream": common["stream"],
                "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
            },
        )
    elif kind == 4:
        a = server.post(
            "/v1/messages",
            {
                "model": model,
                "max_tokens": 60,
                "stream": common["stream"],
                "messages": messages,
                "tools": [{"name": "f", "input_schema": SCHEMA}],
                "tool_choice": {"type": "any"},
            },
        )
    else:
        a = server.post(
            "/api/chat",
            {
                "model": model,
                "messages": messages,
                "format": SCHEMA,
                "stream": common["stream"],
                "options": {"num_predict": 40},
            },
        )
    return a.status


def client(server, seed, stop, counts):
    r = random.Random(seed)
    while not stop.is_set():
        prompt = "".join(
            r.choice("hello world abc \n\u00e9\u4e2d") for _ in range(r.randrange(1, 60))
        )
        if r.random() < 0.5:
            prompt = "a shared beginning that the prefix cache knows, " + prompt
        body = {
            "model": r.choice(NAMES),
            "prompt": prompt,
            "max_tokens": r.randrange(1, 60),
            "n": r.choice([1, 1, 1, 2, 4]),
            "stream": r.random() < 0.5,
            "temperature": r.choice([0, 1]),
            "stop": r.choice([None, ["lo"]]),
            "logprobs": r.choice([None, 2]),
            "echo": r.random() < 0.2,
        }
        kind = r.random()
        try:
            status = None
            if kind < 0.25:
                a, status = None, held(server, r, prompt)
            elif kind < 0.6:
                a = server.post("/v1/completions", body)
            elif kind < 0.75:
                a = server.post(
                    r.choice(["/generate", "/generate_stream"]),
                    {"inputs": prompt, "parameters": {"max_new_tokens": 20, "details": True}},
                )
            elif kind < 0.8:
                a = server.post(
                    "/v1/chat/completions",
                    {
                        "model": r.choice(NAMES),
                        "messages": [{"role": "user", "content": prompt}],
                        "max_tokens": 10,
                        "chat_template_kwargs": {"enable_thinking": r.random() < 0.5},
                    },
                )
            elif kind < 0.85:
                a = server.get(r.choice(["/metrics", "/status.json", "/health", "/chat"]))
            elif kind < 0.9:
                a = server.post("/v1/completions", bytes(r.randrange(256) for _ in range(200)))
            else:
                data = json.dumps({**body, "max_tokens": 150, "stream": True}).encode()
                with server.connect() as c:
                    c.sendall(
                        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                        % len(data)
                    )
                    c.sendall(data[: r.randrange(len(data) + 1)] if r.random() < 0.3 else data)
                    if r.random() < 0.7:
                        c.settimeout(0.1)
                        try:
                            c.recv(500)
                        except TimeoutError:
                            pass
                status = "left"
                a = None
            status = status or (a.status if a else "left")
        except (OSError, http.client.HTTPException) as e:
            status = type(e).__name__
        with counts["lock"]:
            counts[status] = counts.get(status, 0) + 1


def changes(server, stop, counts):
    """Reload names, and add and remove one more adapter."""
    r = random.Random(7)
    while not stop.wait(0.2):
        kind = r.randrange(6)
        if kind < 3:
            status = server.post(f"/reload?model={r.choice(NAMES)}", {}).status
        else:
            status = server.post(
                "/v1/load_lora_adapter", {"lora_name": "extra", "lora_path": "low"}
            ).status
            status = (
                server.post(
                    "/v1/completions", {"model": "extra", "prompt": "a", "max_tokens": 5}
                ).status
                if status == 200
                else status
            )
            status = (
                server.post("/v1/unload_lora_adapter", {"lora_name": "extra"}).status
                if status == 200
                else status
            )
        with counts["lock"]:
            status = 200 if status == 200 else f"a change was refused: {status}"
            counts[status] = counts.get(status, 0) + 1


def batches(server, stop, counts):
    """Run or cancel batches and delete their files."""
    r = random.Random(0)
    while not stop.is_set():
        lines = [
            json.dumps(
                {
                    "custom_id": str(i),
                    "method": "POST",
                    "url": "/v1/completions",
                    "body": {
                        "model": r.choice(NAMES),
                        "prompt": "a b c",
                        "max_tokens": r.randrange(1, 60),
                        "temperature": r.choice([0, 1, 9]),
                    },
                }
            )
            for i in range(r.randrange(1, 9))
        ]
        form = (
            "".join(
                f"--m\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n"
                for name, value in (("purpose", "batch"), ("file; filename=x", "\n".join(lines)))
            )
            + "--m--\r\n"
        )
        file = server.request(
            "POST", "/v1/files", form.encode(), {"Content-Type": "multipart/form-data; boundary=m"}
        ).json()["id"]
        batch = server.post(
            "/v1/batches",
            {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"},
        ).json()
        cancel = r.random() < 0.2
        while batch["status"] not in ("completed", "failed", "cancelled") and not stop.wait(0.05):
            batch = (
                server.request("POST", f"/v1/batches/{batch['id']}/cancel", b"").json()
                if cancel
                else server.get(f"/v1/batches/{batch['id']}").json()
            )
            if "error" in batch:  # the batch had ended before it could be cancelled
                cancel, batch = (
                    False,
                    {"id": server.get("/v1/batches?limit=1").json()["data"][0]["id"], "status": ""},
                )
        if batch["status"]:
            told = [batch[k] for k in ("output_file_id", "error_file_id") if batch.get(k)]
            made = sum(len(server.get(f"/v1/files/{f}/content").text.splitlines()) for f in told)
            right = (
                batch["status"] != "failed"
                and (batch["status"] == "cancelled" or made == len(lines))
                if batch["status"] in ("completed", "failed", "cancelled")
                else True
            )
            for f in [*told, file]:
                server.request("DELETE", f"/v1/files/{f}")
            with counts["lock"]:
                status = 200 if right else f"a batch is wrong: {batch}"
                counts[status] = counts.get(status, 0) + 1


def whole(does, server, stop, counts, *seed):
    """Count an exception that ends a thread as a wrong answer."""
    try:
        does(server, *seed, stop, counts)
    except Exception as e:
        with counts["lock"]:
            counts[f"{does.__name__}: {e!r}"] = 1


def soak(folder, seconds, n):
    """Return (counts by status, memory after a tenth and at the end, exit code)."""
    model = tiny_model.build(os.path.join(folder, "tiny"), context=1024, template=THINKS)
    with Server(
        [
            os.path.join(BUILD, "llmc"),
            "serve",
            model,
            "--port",
            "0",
            "--arch",
            "generic",
            "-t",
            "1",
            "--seqs",
            "8",
            "--kv-tokens",
            "1536",
            "--body-timeout",
            "2",
            "--quiet",
            *tiny_model.everything(folder, model),
        ],
        log=os.path.join(folder, "log"),
    ) as s:
        stop, counts = threading.Event(), {"lock": threading.Lock()}
        threads = [
            threading.Thread(target=whole, args=(client, s, stop, counts, i)) for i in range(n)
        ] + [threading.Thread(target=whole, args=(t, s, stop, counts)) for t in (batches, changes)]
        start, early, late = time.monotonic(), 0, 0
        for t in threads:
            t.start()
        while s.process.poll() is None and time.monotonic() < start + seconds:
            time.sleep(min(1, seconds / 10))
            if not early and time.monotonic() >= start + seconds / 10:
                early = rss(s.process.pid)
        stop.set()
        for t in threads:
            t.join()
        if s.process.poll() is None:
            late = rss(s.process.pid)
            s.idle()
        code, _ = s.stop(signal.SIGTERM)
    counts.pop("lock")
    return counts, early, late, code


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("seconds", type=float, nargs="?", default=600)
    p.add_argument("clients", type=int, nargs="?", default=12)
    p.add_argument(
        "--write", action="store_true", help="figures into tests/bench/results/soak-<cpu>.json"
    )
    args = p.parse_args()
    with tempfile.TemporaryDirectory() as tmp:
        try:
            counts, early, late, code = soak(tmp, args.seconds, args.clients)
            print(
                f"{sum(counts.values())} requests: {counts}; memory {early / 2**20:.1f} MiB after a tenth, {late / 2**20:.1f} MiB at the end"
            )
            bad = [k for k in counts if k not in (200, 400, 422, 429, "left")]
            assert (
                not bad
                and code == 0
                and counts.get(200, 0)
                and (late <= early * 1.1 + (4 << 20) or "san" in BUILD)
            ), f"exit {code}, unexpected {bad}"
        except BaseException as e:
            with open(os.path.join(tmp, "log"), errors="replace") as f:
                print(
                    f"soak: FAILED: {e!r}; the server's last words:\n"
                    + "".join(f.readlines()[-60:])
                )
            return 1
    if args.write:
        told = {
            "machine": machine(),
            "seconds": args.seconds,
            "clients": args.clients,
            "requests": {str(k): v for k, v in sorted(counts.items(), key=str)},
            "memory_mib": {
                "after a tenth": round(early / 2**20, 1),
                "at the end": round(late / 2**20, 1),
            },
        }
        result_file("soak").write_text(json.dumps(told, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
