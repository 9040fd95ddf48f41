"""Ten minutes (or so many seconds as the first argument says) of every kind of client against one server on a tiny
model, three adapters in two slots, which are read again and come and go meanwhile, guesses ahead and batches of requests behind all others: whole answers, streams, n, TGI, the other dialects, constraints,
calls of tools, clients that leave, nonsense. At the end nothing may be left in the engine and memory must be where it was
after the first tenth (not under TSan, which remembers); what a constraint holds must fit it.

    venv/bin/python tests/serve/soak.py [SECONDS] [CLIENTS]
"""
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tiny_model  # noqa: E402
from conftest import BUILD, Server  # noqa: E402
from tiny_model import NAMES, SCHEMA, TOOLS  # noqa: E402


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fits(text):
    v = json.loads(text)
    return set(v) == {"a", "b"} and len(v["a"]) <= 6 and 1 <= v["b"] <= 9


def held(server, r, prompt):
    """A request whose answer a grammar holds, in one of the dialects; its status, or what is wrong with it"""
    messages = [{"role": "user", "content": prompt}]
    model = r.choice(NAMES)
    common = {"model": model, "temperature": r.choice([0, 1]), "stream": r.random() < 0.3, "speculate": r.choice([0, 15])}
    kind = r.randrange(6)
    if kind == 0:
        a = server.post("/v1/chat/completions", {**common, "messages": messages, "max_tokens": 100, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}})
        texts = [c["message"]["content"] for c in a.json()["choices"] if c["finish_reason"] == "stop"] if a.status == 200 and not common["stream"] else []
        return a.status if all(map(fits, texts)) else f"not of its schema: {texts}"
    if kind == 1:
        a = server.post("/v1/chat/completions", {**common, "messages": messages, "max_tokens": 120, "tools": TOOLS, "tool_choice": r.choice(["auto", "required", {"type": "function", "function": {"name": "f"}}])})
        calls = [t["function"] for c in a.json()["choices"] if c["finish_reason"] == "tool_calls" for t in c["message"]["tool_calls"]] if a.status == 200 and not common["stream"] else []
        return a.status if all(c["name"] == "g" or fits(c["arguments"]) for c in calls) else f"not of its tool: {calls}"
    if kind == 2:  # a schema that is new each time: it is compiled, and the oldest is dropped
        a = server.post("/v1/completions", {**common, "prompt": prompt, "max_tokens": 20, "guided_json": {"const": prompt}})
    elif kind == 3:
        a = server.post("/v1/responses", {"model": model, "input": prompt, "max_output_tokens": 60, "stream": common["stream"], "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}})
    elif kind == 4:
        a = server.post("/v1/messages", {"model": model, "max_tokens": 60, "stream": common["stream"], "messages": messages, "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "any"}})
    else:
        a = server.post("/api/chat", {"model": model, "messages": messages, "format": SCHEMA, "stream": common["stream"], "options": {"num_predict": 40}})
    return a.status


def client(server, seed, stop, counts):
    r = random.Random(seed)
    while not stop.is_set():
        prompt = "".join(r.choice("hello world abc \n\u00e9\u4e2d") for _ in range(r.randrange(1, 60)))
        if r.random() < 0.5:
            prompt = "a shared beginning that the prefix cache knows, " + prompt
        body = {"model": r.choice(NAMES), "prompt": prompt, "max_tokens": r.randrange(1, 60), "n": r.choice([1, 1, 1, 2, 4]), "stream": r.random() < 0.5,
                "temperature": r.choice([0, 1]), "stop": r.choice([None, ["lo"]]), "logprobs": r.choice([None, 2]), "echo": r.random() < 0.2}
        kind = r.random()
        try:
            status = None
            if kind < 0.25:
                a, status = None, held(server, r, prompt)
            elif kind < 0.6:
                a = server.post("/v1/completions", body)
            elif kind < 0.75:
                a = server.post(r.choice(["/generate", "/generate_stream"]), {"inputs": prompt, "parameters": {"max_new_tokens": 20, "details": True}})
            elif kind < 0.8:
                a = server.post("/v1/chat/completions", {"model": r.choice(NAMES), "messages": [{"role": "user", "content": prompt}], "max_tokens": 10})
            elif kind < 0.85:
                a = server.get(r.choice(["/metrics", "/status.json", "/health", "/chat"]))
            elif kind < 0.9:
                a = server.post("/v1/completions", bytes(r.randrange(256) for _ in range(200)))
            else:
                data = json.dumps({**body, "max_tokens": 150, "stream": True}).encode()
                with server.connect() as c:
                    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data))
                    c.sendall(data[:r.randrange(len(data) + 1)] if r.random() < 0.3 else data)
                    if r.random() < 0.7:
                        c.settimeout(0.1)
                        try:
                            c.recv(500)
                        except TimeoutError:
                            pass
                status = "left"
                a = None
            status = status or (a.status if a else "left")
        except OSError as e:
            status = type(e).__name__
        with counts["lock"]:
            counts[status] = counts.get(status, 0) + 1


def changes(server, stop, counts):
    """Names are read again, and one more adapter comes and goes"""
    r = random.Random(7)
    while not stop.wait(0.2):
        kind = r.randrange(6)
        if kind < 3:
            status = server.post(f"/reload?model={r.choice(NAMES)}", {}).status
        else:
            status = server.post("/v1/load_lora_adapter", {"lora_name": "extra", "lora_path": "low"}).status
            status = server.post("/v1/completions", {"model": "extra", "prompt": "a", "max_tokens": 5}).status if status == 200 else status
            status = server.post("/v1/unload_lora_adapter", {"lora_name": "extra"}).status if status == 200 else status
        with counts["lock"]:
            status = 200 if status == 200 else f"a change was refused: {status}"
            counts[status] = counts.get(status, 0) + 1


def batches(server, stop, counts):
    """Files of requests behind all the others: run to their end or cancelled, their files deleted"""
    r = random.Random(0)
    while not stop.is_set():
        lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"model": r.choice(NAMES), "prompt": "a b c", "max_tokens": r.randrange(1, 60),
                                                                                                 "temperature": r.choice([0, 1, 9])}}) for i in range(r.randrange(1, 9))]
        form = "".join(f'--m\r\nContent-Disposition: form-data; name={name}\r\n\r\n{value}\r\n' for name, value in (("purpose", "batch"), ("file; filename=x", "\n".join(lines)))) + "--m--\r\n"
        file = server.request("POST", "/v1/files", form.encode(), {"Content-Type": "multipart/form-data; boundary=m"}).json()["id"]
        batch = server.post("/v1/batches", {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}).json()
        cancel = r.random() < 0.2
        while batch["status"] not in ("completed", "failed", "cancelled") and not stop.wait(0.05):
            batch = server.request("POST", f"/v1/batches/{batch['id']}/cancel", b"").json() if cancel else server.get(f"/v1/batches/{batch['id']}").json()
            if "error" in batch:  # it had ended
                cancel, batch = False, {"id": server.get("/v1/batches?limit=1").json()["data"][0]["id"], "status": ""}
        if batch["status"]:
            told = [batch[k] for k in ("output_file_id", "error_file_id") if batch.get(k)]
            made = sum(len(server.get(f"/v1/files/{f}/content").text.splitlines()) for f in told)
            right = batch["status"] != "failed" and (batch["status"] == "cancelled" or made == len(lines)) if batch["status"] in ("completed", "failed", "cancelled") else True
            for f in [*told, file]:
                server.request("DELETE", f"/v1/files/{f}")
            with counts["lock"]:
                status = 200 if right else f"a batch is wrong: {batch}"
                counts[status] = counts.get(status, 0) + 1


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    with tempfile.TemporaryDirectory() as tmp:
        folder = tiny_model.build(os.path.join(tmp, "tiny"), context=1024)
        with Server([os.path.join(BUILD, "llmc"), "serve", folder, "--port", "0", "--arch", "generic", "-t", "1", "--seqs", "8", "--kv-tokens", "1536",
                     "--body-timeout", "2", "--quiet", *tiny_model.everything(tmp, folder)], log=os.path.join(tmp, "log")) as s:
            stop, counts = threading.Event(), {"lock": threading.Lock()}
            threads = [threading.Thread(target=client, args=(s, i, stop, counts)) for i in range(n)] + [threading.Thread(target=t, args=(s, stop, counts)) for t in (batches, changes)]
            start = time.monotonic()
            for t in threads:
                t.start()
            time.sleep(seconds / 10)
            early = rss(s.process.pid)
            stop.wait(max(0, start + seconds - time.monotonic()))
            stop.set()
            for t in threads:
                t.join()
            late = rss(s.process.pid)
            s.idle()
            code, _ = s.stop(signal.SIGTERM)
    counts.pop("lock")
    print(f"{sum(counts.values())} requests: {counts}; memory {early / 2**20:.1f} MiB after a tenth, {late / 2**20:.1f} MiB at the end")
    bad = [k for k in counts if k not in (200, 400, 422, 429, "left")]
    if bad or code != 0 or counts.get(200, 0) == 0 or (late > early * 1.1 + (4 << 20) and "tsan" not in BUILD):
        print(f"soak: FAILED: exit {code}, unexpected {bad}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
