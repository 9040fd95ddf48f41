"""docs/serving.md says what is so: its examples are run, its options are those of the command."""
import os
import re
import shutil
import subprocess
import sys

import pytest

GUIDE = open(os.path.join(os.path.dirname(__file__), "..", "..", "docs", "serving.md")).read()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", GUIDE, re.S)
CURL = [b for kind, b in BLOCKS if kind == "sh" and b.startswith("curl")]
PYTHON = [b for kind, b in BLOCKS if kind == "python"]


def fitted(text, server):
    return text.replace("http://127.0.0.1:8000", server.url).replace("MODEL", "tiny")


@pytest.mark.parametrize("i", range(len(CURL)))
def test_curl_examples(tiny, i):
    p = subprocess.run(["sh", "-c", fitted(CURL[i], tiny).replace("curl ", "curl -sS -f -m 20 ")], capture_output=True, text=True)
    assert p.returncode == 0 and p.stdout, p.stderr
    assert '"error' not in p.stdout


@pytest.mark.parametrize("i", range(len(PYTHON)))
def test_python_examples(tiny, i):
    p = subprocess.run([sys.executable, "-c", fitted(PYTHON[i], tiny)], capture_output=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert p.returncode == 0 and p.stdout.strip(), p.stderr


def test_every_option_and_route_is_told(llmc_binary):
    text = subprocess.run([llmc_binary, "serve", "--help"], capture_output=True, text=True).stdout
    options = re.findall(r"--([a-z-]+)", text.split("examples:")[0])
    assert len(options) > 40 and [o for o in options if f"`--{o}" not in GUIDE] == []
    told = set(re.findall(r"--([a-z][a-z-]+)", GUIDE))
    assert sorted(told - set(options)) == []
    routes = re.findall(r'ROUTE\("(GET|POST)", +"([^"]+)"', open("serve/routes.def").read())
    assert [p for _, p in routes if p not in ("/page/", "/detokenize") and p.rstrip("/") not in GUIDE] == []


def test_the_yaml_example_is_taken(llmc_binary, tiny_folder, tmp_path):
    example = next(b for kind, b in BLOCKS if kind == "yaml" and "model:" in b)
    (tmp_path / "serve.yaml").write_text(example.replace("SmolLM2-135M-Instruct.Q4_1.gguf", "no-such-model.gguf"))
    p = subprocess.run([llmc_binary, "serve", "--config", tmp_path / "serve.yaml"], capture_output=True, text=True)
    assert p.returncode == 1 and "no-such-model.gguf" in p.stderr and "no such setting" not in p.stderr


@pytest.mark.skipif(not shutil.which("nginx"), reason="no nginx")
def test_replicas_behind_nginx(fake, tmp_path):
    """The guide's configuration, with two replicas of which one is stopped."""
    import http.client
    import json
    import socket
    with fake(step_ms=1) as a, fake(step_ms=1) as b:
        front = str(tmp_path / "front")
        conf = next(x for kind, x in BLOCKS if kind == "nginx")
        conf = conf.replace("127.0.0.1:8001", f"127.0.0.1:{a.port}").replace("127.0.0.1:8002", f"127.0.0.1:{b.port}").replace("listen 80", f"listen unix:{front}")
        temp = "".join(f"{k}_temp_path {tmp_path}/{k};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (tmp_path / "nginx.conf").write_text(f"daemon off; master_process off; pid {tmp_path}/pid; error_log {tmp_path}/error.log; events {{}} http {{ access_log off; {temp} {conf} }}")
        nginx = subprocess.Popen(["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "error.log")])
        try:
            def ask():
                c = http.client.HTTPConnection("localhost", timeout=20)
                c.sock = socket.socket(socket.AF_UNIX)
                c.sock.settimeout(20)
                c.sock.connect(front)
                c.request("POST", "/v1/completions", json.dumps({"model": "fake", "prompt": "hello", "max_tokens": 3, "stream": True}), {"Content-Type": "application/json"})
                r = c.getresponse()
                out = r.status, r.read().decode()
                c.close()
                return out

            a.until(lambda: os.path.exists(front))
            for _ in range(6):
                status, text = ask()
                assert status == 200 and text.endswith("data: [DONE]\n\n")
            assert a.status()["requests"]["success"] > 0 and b.status()["requests"]["success"] > 0
            assert a.stop()[0] == 0
            for _ in range(6):
                assert ask()[0] == 200
        finally:
            nginx.terminate()
            nginx.wait()
