"""Ten minutes (or so many seconds as the first argument says) of every kind of client against one server on a tiny
model: whole answers, streams, n, TGI, clients that leave, nonsense. At the end nothing may be left in the engine and
memory must be where it was after the first tenth.

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


def rss(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def client(server, seed, stop, counts):
    r = random.Random(seed)
    while not stop.is_set():
        prompt = "".join(r.choice("hello world abc \n\u00e9\u4e2d") for _ in range(r.randrange(1, 60)))
        if r.random() < 0.5:
            prompt = "a shared beginning that the prefix cache knows, " + prompt
        body = {"model": "tiny", "prompt": prompt, "max_tokens": r.randrange(1, 60), "n": r.choice([1, 1, 1, 2, 4]), "stream": r.random() < 0.5,
                "temperature": r.choice([0, 1]), "stop": r.choice([None, ["lo"]]), "logprobs": r.choice([None, 2]), "echo": r.random() < 0.2}
        kind = r.random()
        try:
            if kind < 0.6:
                a = server.post("/v1/completions", body)
            elif kind < 0.75:
                a = server.post(r.choice(["/generate", "/generate_stream"]), {"inputs": prompt, "parameters": {"max_new_tokens": 20, "details": True}})
            elif kind < 0.8:
                a = server.post("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": prompt}], "max_tokens": 10})
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
            status = a.status if a else "left"
        except OSError as e:
            status = type(e).__name__
        with counts["lock"]:
            counts[status] = counts.get(status, 0) + 1


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 12
    with tempfile.TemporaryDirectory() as tmp:
        folder = tiny_model.build(os.path.join(tmp, "tiny"))
        with Server([os.path.join(BUILD, "llmc"), "serve", folder, "--port", "0", "--arch", "generic", "-t", "1", "--seqs", "8", "--kv-tokens", "512",
                     "--body-timeout", "2", "--quiet"], log=os.path.join(tmp, "log")) as s:
            stop, counts = threading.Event(), {"lock": threading.Lock()}
            threads = [threading.Thread(target=client, args=(s, i, stop, counts)) for i in range(n)]
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
    if bad or code != 0 or counts.get(200, 0) == 0 or late > early * 1.1 + (4 << 20):
        print(f"soak: FAILED: exit {code}, unexpected {bad}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
