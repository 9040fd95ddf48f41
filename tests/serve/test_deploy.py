"""Files of deploy/: real routers before three replicas, one of which is replaced under load
without a lost request; manifests that their own checkers accept; and the load reports that
routers read.
"""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
import yaml
from waiting import HANG, SLOW, reserved_port, wait_for

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEPLOY = os.path.join(ROOT, "deploy")


def tool(name):
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    if not path:
        pytest.skip(f"{name} is not installed")
    return path


def text(name):
    with open(os.path.join(DEPLOY, name)) as f:
        return f.read()


def with_ports(conf, ports, front):
    for k, p in enumerate(ports):
        conf = conf.replace(f"127.0.0.1:800{k + 1}", f"127.0.0.1:{p}")
    return re.sub(r"\b(127\.0\.0\.1:)8080\b", rf"\g<1>{front}", conf)


def nginx(folder, ports, front):
    conf = with_ports(text("nginx.conf"), ports, front)
    temp = "".join(
        f"{k}_temp_path {folder}/{k};\n"
        for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;\n"
        f"events {{ worker_connections 1024; }}\nhttp {{ access_log off;\n{temp}{conf}\n}}\n"
    )
    return [
        tool("nginx"),
        "-p",
        str(folder),
        "-e",
        str(folder / "early.log"),
        "-c",
        str(folder / "nginx.conf"),
    ], ["-t"]


def haproxy(folder, ports, front):
    (folder / "haproxy.cfg").write_text(with_ports(text("haproxy.cfg"), ports, front))
    return [tool("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")], ["-c"]


class Load:
    """Clients that send requests continuously, every second one as a stream, and record
    faults.
    """

    def __init__(self, port, clients):
        self.port, self.lost, self.done, self.stop = port, [], 0, False
        self.threads = [threading.Thread(target=self.client, args=(k,)) for k in range(clients)]
        for t in self.threads:
            t.start()

    def client(self, k):
        n = 0
        while not self.stop:
            n += 1
            stream = (n + k) % 2 == 0
            c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG)
            try:
                c.request(
                    "POST",
                    "/v1/completions",
                    json.dumps(
                        {
                            "prompt": [1 + k, 2, 3 + n % 50],
                            "max_tokens": 12,
                            "ignore_eos": True,
                            "stream": stream,
                        }
                    ),
                    {"Content-Type": "application/json"},
                )
                r = c.getresponse()
                body = r.read().decode()
                if r.status != 200 or (
                    not body.rstrip().endswith("data: [DONE]")
                    if stream
                    else json.loads(body)["usage"]["completion_tokens"] != 12
                ):
                    self.lost.append((r.status, body[-200:]))
                self.done += 1
            except Exception as e:  # any exception means a lost request
                self.lost.append(repr(e))
            finally:
                c.close()

    def end(self):
        self.stop = True
        for t in self.threads:
            t.join()


@pytest.mark.parametrize("router", [nginx, haproxy])
def test_a_replica_is_replaced_under_load(router, serve, tiny_folder, tmp_path):
    """The new replica has the port of the old one, which stays reserved in between."""
    delay = 5 * SLOW
    options = (
        "--arch",
        "generic",
        "--threads",
        "1",
        "--drain-delay",
        delay,
        "--drain-timeout",
        HANG,
    )
    with contextlib.ExitStack() as held:
        front, *ports = [held.enter_context(reserved_port()) for _ in range(4)]
        a, b, c = [held.enter_context(serve(tiny_folder, *options, "--port", p)) for p in ports]
        command, check = router(tmp_path, ports, front)
        p = subprocess.run([*command, *check], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        load = None
        try:

            def listens():
                assert process.poll() is None
                with (
                    contextlib.suppress(OSError),
                    socket.create_connection(("127.0.0.1", front), timeout=HANG),
                ):
                    return True

            wait_for(listens, every=0.05, what="the router's port")
            for s in (a, b, c):
                assert s.get("/health").status == 200
            load = Load(front, 6)
            a.until(lambda: load.done > 30)
            start = time.monotonic()
            b.process.send_signal(signal.SIGTERM)
            b.until(lambda: b.get("/health").status == 503)
            try:
                late = b.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 2}).status
            except OSError:
                late = None
            assert late == 200 or time.monotonic() - start > delay, "late requests are still taken"
            assert b.stop(sig=0)[0] == 0
            with serve(tiny_folder, *options, "--port", b.port) as again:
                assert again.get("/health").status == 200
                more = load.done + 30
                a.until(lambda: load.done > more and again.status()["requests"]["success"] > 3)
                load.end()
                assert load.lost == []
        finally:
            if load:
                load.end()
            process.terminate()
            process.wait(HANG)


def test_what_routers_read(serve, tiny_folder):
    with serve(tiny_folder, "--arch", "generic", "--api-key", "secret", "--open-probes") as s:
        key = {"Authorization": "Bearer secret"}
        assert s.get("/status.json").status == 401
        assert s.get("/v1/models").status == 200
        load = s.get("/get_load").json()
        assert load == [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]
        info = s.get("/model_info").json()
        assert (
            info["served_model_name"] == s.get("/v1/models").json()["data"][0]["id"]
            and info == s.get("/server_info").json()
        )
        metrics = s.get("/metrics").text
        for name in (
            "vllm:gpu_cache_usage_perc",
            "vllm:gpu_prefix_cache_hit_rate",
            "vllm:gpu_prefix_cache_hits_total",
            "vllm:gpu_prefix_cache_queries_total",
            "vllm:num_requests_waiting",
            "vllm:num_requests_running",
            "vllm:kv_cache_usage_perc",
        ):
            assert re.search(rf"^{name}{{[^}}]*}} [0-9.]+$", metrics, re.M), name
        assert re.search(
            r'^vllm:cache_config_info{[^}]*block_size="32",num_gpu_blocks="\d+"', metrics, re.M
        )
        assert re.search(
            r'^vllm:lora_requests_info{[^}]*max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} \d{10}$',
            metrics,
            re.M,
        )
        ask = {"prompt": [1, 2, 3], "max_tokens": 2}
        r = s.post("/v1/completions", ask, headers={**key, "endpoint-load-metrics-format": "TEXT"})
        assert re.fullmatch(
            r"TEXT named_metrics.kv_cache_usage_perc=[0-9.]+, named_metrics.num_requests_waiting=0",
            r.headers["endpoint-load-metrics"],
        )
        r = s.post("/v1/completions", ask, headers={**key, "endpoint-load-metrics-format": "json"})
        kind, _, value = r.headers["endpoint-load-metrics"].partition(" ")
        assert kind == "JSON" and set(json.loads(value)["named_metrics"]) == {
            "kv_cache_usage_perc",
            "num_requests_waiting",
        }
        assert "endpoint-load-metrics" not in s.post("/v1/completions", ask, headers=key).headers
    with serve(tiny_folder, "--arch", "generic", "--api-key", "secret") as s:
        assert [
            s.get(p).status
            for p in ("/metrics", "/v1/models", "/get_load", "/model_info", "/health")
        ] == [401, 401, 401, 401, 200]


def test_settings_are_options(serve, tiny_folder, tmp_path, llmc_binary):
    """Settings files name existing options only."""
    known = set(
        re.findall(
            r"--([a-z-]+)",
            subprocess.run([llmc_binary, "serve", "--help"], capture_output=True, text=True).stdout,
        )
    ) | {"model"}
    maps = [yaml.safe_load(text("serve.yaml"))]
    kube = list(yaml.safe_load_all(text("kubernetes/llmc.yaml")))
    maps.append(yaml.safe_load(kube[0]["data"]["serve.yaml"]))
    for m in maps:
        assert set(m) <= known
    pod = kube[1]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > maps[1]["drain-delay"] + maps[1]["drain-timeout"]
    assert f"TimeoutStopSec={maps[0]['drain-delay'] + maps[0]['drain-timeout'] + 5}" in text(
        "llmc.service"
    )


def test_manifests_fit_their_schemas():
    """Check against the schemas of Kubernetes, which come with the package."""
    checker = pytest.importorskip("kubernetes_validate")
    n = 0
    for d in yaml.safe_load_all(text("kubernetes/llmc.yaml")):
        checker.validate(d, checker.latest_version(), strict=True)
        n += 1
    assert n == 4


def test_the_unit_verifies(tmp_path):
    analyze = tool("systemd-analyze")
    unit = text("llmc.service").replace("/usr/local/bin/llmc", "/bin/true")
    (tmp_path / "llmc.service").write_text(unit)
    p = subprocess.run(
        [analyze, "verify", "--man=no", str(tmp_path / "llmc.service")],
        capture_output=True,
        text=True,
    )
    said = [line for line in p.stderr.splitlines() if "llmc.service" in line]
    assert said == [], said


def test_the_container_file_is_not_root_and_checks_health():
    """The image runs as a numbered user, checks a route that exists, and has the libraries of the
    program."""
    lines = text("Containerfile").replace("\\\n", " ").splitlines()
    user = [line for line in lines if line.startswith("USER ")]
    assert user == ["USER 10001"] and lines.index(user[0]) < lines.index('ENTRYPOINT ["llmc"]')
    check = next(line for line in lines if line.startswith("HEALTHCHECK "))
    assert "${LLMC_SERVE_PORT:-8000}/health" in check
    with open(os.path.join(ROOT, "serve/http/routes.def")) as f:
        assert '"/health"' in f.read()
    packages = " ".join(line for line in lines if "apt-get install" in line).split()
    assert "curl" in packages and "gcc" in packages
    binary = os.path.join(ROOT, os.environ.get("BUILD", "build"), "llmc")
    needed = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True).stdout
    for lib in re.findall(r"\(NEEDED\).*\[lib(\w[\w-]*?)[-.\d]*\.so", needed):
        stem = {"c": "gcc", "m": "gcc", "jpeg": "libjpeg62-turbo"}.get(lib, f"lib{lib}")
        assert any(p.startswith(stem) for p in packages), lib


def test_ranks_over_pods():
    """The scripts are valid sh, the files that they name are mounted, their settings equal
    those of a single pod, and Kubernetes accepts the pods.
    """
    settings, group, service = yaml.safe_load_all(text("kubernetes/ranks.yaml"))
    for name in ("lead.sh", "follow.sh"):
        subprocess.run(["sh", "-n"], input=settings["data"][name], text=True, check=True)
        for path in re.findall(r"/etc/llmc/([\w./]+)", settings["data"][name]):
            assert path in settings["data"] or path.startswith("keys/"), path
    drain = yaml.safe_load(settings["data"]["serve.yaml"])
    assert drain == yaml.safe_load(
        next(yaml.safe_load_all(text("kubernetes/llmc.yaml")))["data"]["serve.yaml"]
    )
    template = group["spec"]["leaderWorkerTemplate"]
    leader, worker = template["leaderTemplate"], template["workerTemplate"]
    assert service["spec"]["selector"].items() <= leader["metadata"]["labels"].items()
    assert (
        leader["spec"]["terminationGracePeriodSeconds"]
        > drain["drain-delay"] + drain["drain-timeout"]
    )
    checker = pytest.importorskip("kubernetes_validate")
    for d in (
        settings,
        service,
        *(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": t["spec"]}
            for t in (leader, worker)
        ),
    ):
        checker.validate(d, checker.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["nginx.conf", "haproxy.cfg", "envoy.yaml"])
def test_routers_listen_on_this_machine_alone(name):
    """They set Host to localhost, so a replica without a key takes their requests for its owner's."""
    lines = [x.split("#")[0] for x in text(name).splitlines()]
    listens = [x for x in lines if re.search(r"8080\b", x)]
    assert listens and all("127.0.0.1" in x for x in listens), listens
    assert not any("0.0.0.0" in x or "[::]" in x for x in lines)


@pytest.mark.parametrize("name", ["envoy.yaml", "litellm.yaml", "kubernetes/inferencepool.yaml"])
def test_yaml_is_yaml(name):
    assert all(yaml.safe_load_all(text(name)))
