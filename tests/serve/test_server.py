"""Metrics, pages, keys, settings, logs: everything outside of OpenAI's and TGI's interfaces.

It is one file because its servers start once per module.
"""

import json
import os
import re
import signal
import subprocess
import urllib.parse

import pytest
import tiny_model
from openapi_spec_validator import validate
from prometheus_client.parser import text_string_to_metric_families
from waiting import HANG

TGI = """tgi_request_count tgi_request_success tgi_request_failure tgi_batch_inference_count tgi_batch_inference_success
tgi_batch_inference_failure tgi_batch_concat tgi_queue_size tgi_batch_current_size tgi_batch_current_max_tokens tgi_request_duration
tgi_request_validation_duration tgi_request_queue_duration tgi_request_inference_duration tgi_request_mean_time_per_token_duration
tgi_request_input_length tgi_request_max_new_tokens tgi_request_generated_tokens tgi_batch_next_size tgi_batch_inference_duration""".split()
VLLM = """num_requests_running num_requests_waiting kv_cache_usage_perc lora_requests_info cache_config_info prompt_tokens
generation_tokens request_success num_preemptions prefix_cache_queries prefix_cache_hits spec_decode_num_drafts spec_decode_num_draft_tokens
spec_decode_num_accepted_tokens spec_decode_num_accepted_tokens_per_pos time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds
request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
request_generation_tokens request_max_num_generation_tokens request_params_n request_params_max_tokens iteration_tokens kv_block_lifetime_seconds
kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds""".split()


def metrics(server):
    r = server.get("/metrics")
    assert r.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {f.name: f for f in text_string_to_metric_families(r.text)}


def value(families, name, suffix="", **labels):
    # the parser adds the suffix that OpenMetrics requires to counters
    return sum(
        s.value
        for f in families.values()
        for s in f.samples
        if s.name in (name + suffix, name + "_total" if f.type == "counter" else "")
        and labels.items() <= s.labels.items()
    )


def test_metrics_have_the_names_of_dashboards(tiny):
    m = metrics(tiny)
    assert [n for n in TGI if n not in m] == []
    missing = [n for n in VLLM if "vllm:" + n not in m and "vllm:" + n + "_total" not in m]
    assert missing == []
    for f in m.values():
        if f.name.startswith("vllm:"):
            assert all(
                s.labels["model_name"] == "tiny" and s.labels["engine"] == "0" for s in f.samples
            ), f.name
        if f.type == "histogram":
            series = {}
            for s in f.samples:
                if s.name.endswith("_bucket"):
                    series.setdefault(
                        tuple(sorted((k, v) for k, v in s.labels.items() if k != "le")), []
                    ).append((float(s.labels["le"]), s.value))
            for k, buckets in series.items():
                assert [b for b, _ in buckets] == sorted(b for b, _ in buckets) and buckets[-1][
                    0
                ] == float("inf"), f.name
                assert [n for _, n in buckets] == sorted(n for _, n in buckets), f.name
    bounds = [
        float(s.labels["le"])
        for s in m["tgi_request_duration"].samples
        if s.name.endswith("_bucket")
    ][:-1]
    assert bounds == pytest.approx([0.0001 * 1.5**k for k in range(1, 36)])


def test_metrics_count(tiny):
    tiny.idle()  # requests left by other tests
    before = metrics(tiny)
    tiny.post("/generate", {"inputs": "hello world", "parameters": {"max_new_tokens": 7}})
    tiny.post(
        "/v1/completions",
        {"model": "tiny", "prompt": "hello", "max_tokens": 5, "ignore_eos": True, "n": 2},
    )
    tiny.post("/generate", {"inputs": "", "parameters": {}})
    after = metrics(tiny)

    def grown(*a, **k):
        return value(after, *a, **k) - value(before, *a, **k)

    assert (
        grown("tgi_request_count") == 3
        and grown("tgi_request_success") == 2
        and grown("tgi_request_failure", err="validation") == 1
    )
    assert grown("tgi_request_duration", "_count") == 2 and grown("vllm:prompt_tokens_total") == 3
    assert (
        grown("tgi_request_input_length", "_sum") == 3
        and 10 <= grown("tgi_request_generated_tokens", "_sum") <= 17
    )
    assert grown("vllm:request_success_total") == 3 and grown("vllm:generation_tokens_total") >= 10
    assert grown("tgi_batch_inference_count", method="prefill") >= 2
    assert value(after, "vllm:kv_cache_usage_perc") == 0 and value(after, "tgi_queue_size") == 0


@pytest.mark.parametrize("base", ["qwen3_5-plain", "step3p5-plain"])
def test_a_draft_head_is_used_and_counted(serve, base, tmp_path):
    """serve --draft mtp: the outputs without it, and consistent counts. The number of draft
    tokens depends on timing.
    """
    folder = tiny_model.build(tmp_path / "m", base=base, golden=tiny_model.weights.Mtp)
    asks = [
        {"inputs": "hello world, hello w", "parameters": {"max_new_tokens": 40, **more}}
        for more in (
            {},
            {"do_sample": True, "temperature": 0.7, "seed": 3},
            {"repetition_penalty": 1.2, "stop": ["zz"]},
        )
    ]
    said = []
    for extra in ["--speculate", "0"], ["--draft", "mtp"]:
        with serve(
            folder, "--device", "ref", "-t", "1", "--seqs", "4", "--set", "kv.dtype=f32", *extra
        ) as s:
            said.append([s.post("/generate", ask).json()["generated_text"] for ask in asks])
            m = metrics(s)
    assert said[0] == said[1] and len(said[0][0]) > 0
    drafts, proposed, accepted, places = (
        value(m, "vllm:spec_decode_num_" + n)
        for n in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    )
    assert accepted <= proposed and drafts <= proposed and places == accepted


def test_the_openapi_document_is_valid_and_complete(tiny):
    doc = tiny.get("/openapi.json").json()
    validate(doc)
    assert (
        tiny.get("/docs").json() == doc
        and "text/html"
        in tiny.get("/docs", headers={"Accept": "text/html"}).headers["content-type"]
    )
    source = open("serve/http/routes.def").read()
    pages = {"/chat", "/status", "/docs", "/openapi.json", "/page/"}
    routes = {
        (m, p)
        for m, p in re.findall(r'ROUTE\("(GET|POST|DELETE)", +"([^"]+)"', source)
        if p not in pages
    }
    described = {(m.upper(), re.sub(r"{\w+}", "", p)) for p, ms in doc["paths"].items() for m in ms}
    assert routes == described
    assert doc["info"]["version"] == tiny.get("/version").json()["version"]


def test_answers_have_the_form_of_the_document(tiny):
    from openapi_schema_validator import OAS31Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012

    doc = tiny.get("/openapi.json").json()
    registry = Registry().with_resource(
        "urn:doc", Resource(contents=doc, specification=DRAFT202012)
    )

    def check(name, answer):
        OAS31Validator({"$ref": f"urn:doc#/components/schemas/{name}"}, registry=registry).validate(
            answer
        )

    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
        "logprobs": True,
    }
    check("Chat", tiny.post("/v1/chat/completions", chat).json())
    check(
        "Completion",
        tiny.post(
            "/v1/completions",
            {"model": "tiny", "prompt": "a", "max_tokens": 2, "logprobs": 1, "echo": True},
        ).json(),
    )
    check("Error", tiny.post("/v1/completions", {}).json())
    check("TgiError", tiny.post("/generate", {"inputs": ""}).json())
    p = {"max_new_tokens": 2, "details": True, "decoder_input_details": True, "top_n_tokens": 1}
    check("GenerateResponse", tiny.post("/generate", {"inputs": "a", "parameters": p}).json())
    for f in tiny.post("/generate_stream", {"inputs": "a"}).frames():
        check("StreamResponse", json.loads(f))
    check("Models", tiny.get("/v1/models").json())
    check("Info", tiny.get("/info").json())
    check("TgiTokens", tiny.post("/tokenize", {"inputs": "a"}).json())
    check("TokenizeResponse", tiny.post("/v1/tokenize", {"prompt": "a"}).json())


TALK = [{"role": "user", "content": "hi"}]
ANTHROPIC = {"anthropic-version": "2023-06-01"}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    "method, path, body, headers",
    [
        ("GET", "/api/ps", None, {}),
        ("GET", "/api/tags", None, {}),
        ("POST", "/api/show", {"model": "tiny"}, {}),
        ("POST", "/api/chat", {"model": "tiny"}, {}),
        (
            "POST",
            "/api/chat",
            {
                "messages": TALK,
                "think": "low",
                "logprobs": True,
                "top_logprobs": 1,
                "stream": False,
                "options": {
                    "num_predict": 2,
                    "stop": ["x"],
                    "typical_p": 0.5,
                    "repeat_last_n": 8,
                    "mirostat": 2,
                    "mirostat_tau": 3,
                    "mirostat_eta": 0.2,
                },
            },
            {},
        ),
        (
            "POST",
            "/api/generate",
            {
                "prompt": "hi",
                "format": "json",
                "logprobs": True,
                "stream": False,
                "options": {"num_predict": 2},
            },
            {},
        ),
        ("GET", "/v1/models", None, {}),
        ("GET", "/v1/models", None, ANTHROPIC),
        ("GET", "/v1/models/tiny", None, ANTHROPIC),
        ("POST", "/v1/messages", {"messages": TALK, "max_tokens": 2, "stop_sequences": ["x"]}, {}),
        (
            "POST",
            "/v1/responses",
            {
                "input": "hi",
                "max_output_tokens": 2,
                "include": ["message.output_text.logprobs"],
                "tools": [{"type": "custom", "name": "c"}],
                "seed": 1,
                "top_k": 3,
                "min_p": 0.1,
                "priority": 1,
                "cache_salt": "a",
                "speculate": 0,
                "metadata": {"a": "b"},
                "guided_choice": ["a"],
            },
            {},
        ),
        (
            "POST",
            "/v1/chat/completions",
            {
                "messages": [
                    *TALK,
                    {"role": "assistant", "content": "x", "reasoning_content": "y"},
                ],
                "max_tokens": 2,
                "typical_p": 0.5,
                "repeat_penalty": 1.1,
                "repeat_last_n": 8,
                "dry_multiplier": 0.8,
                "dry_base": 2,
                "dry_allowed_length": 3,
                "dry_penalty_last_n": 64,
                "dry_sequence_breakers": ["\n"],
                "xtc_probability": 0.2,
                "xtc_threshold": 0.1,
                "top_n_sigma": 2,
                "dynatemp_range": 0.3,
                "dynatemp_exponent": 1,
                "mirostat": 0,
                "mirostat_tau": 5,
                "mirostat_eta": 0.1,
                "reasoning_effort": "low",
                "add_special_tokens": False,
                "tools": [{"type": "function", "function": TOOL}],
                "guided_choice": ["a"],
            },
            {},
        ),
        (
            "POST",
            "/generate",
            {"inputs": "a", "parameters": {"max_new_tokens": 2, "adapter_id": "tiny"}},
            {},
        ),
        (
            "POST",
            "/tokenize",
            {"content": "a", "add_special": False, "parse_special": True, "with_pieces": True},
            {},
        ),
        ("POST", "/detokenize", {"tokens": [50]}, {}),
        ("GET", "/status/history.json", None, {}),
    ],
)
def test_the_document_lists_the_fields(tiny, method, path, body, headers):
    """The document has every key of requests and answers for which it lists keys at all."""
    doc = tiny.get("/openapi.json").json()

    def missing(value, schemas, where=""):
        all_of = []
        while schemas:
            s = schemas.pop()
            if "$ref" in s:
                schemas.append(doc["components"]["schemas"][s["$ref"].split("/")[-1]])
            all_of.append(s)
            schemas += s.get("anyOf", []) + s.get("oneOf", [])
        if isinstance(value, list):
            items = [s["items"] for s in all_of if "items" in s]
            return (
                [m for v in value for m in missing(v, list(items), where + "[]")] if items else []
            )
        tells = [s["properties"] for s in all_of if "properties" in s]
        if not isinstance(value, dict) or not tells:
            return []
        here = {k: [t[k] for t in tells if k in t] for k in value}
        return [f"{where}.{k}" for k in value if not here[k]] + [
            m for k in value for m in missing(value[k], here[k], f"{where}.{k}")
        ]

    of = doc["paths"][path.replace("/tiny", "/{model}")][method.lower()]
    assert (
        body is None
        or missing(body, [of["requestBody"]["content"]["application/json"]["schema"]]) == []
    )
    r = tiny.request(method, path, body, headers=headers)
    assert r.status == 200, r.text
    answer = json.loads(r.text.splitlines()[0])
    assert missing(answer, [of["responses"]["200"]["content"]["application/json"]["schema"]]) == []


def test_pages_are_served_under_a_strict_policy(tiny):
    for path in ("/chat", "/status", "/"):
        r = tiny.get(path, headers={"Accept": "text/html,*/*"})
        policy = r.headers["content-security-policy"]
        assert (
            r.status == 200
            and r.text.lstrip().lower().startswith("<!doctype html")
            and "default-src 'none'" in policy
            and "script-src 'self'" in policy
        )
        assert "unsafe" not in policy and r.headers["x-content-type-options"] == "nosniff"
        for link in re.findall(r'(?:src|href)="(/page/[^"]+)"', r.text):
            assert tiny.get(link).status == 200, link
        assert (
            not re.search(r'(?:src|href)="https?://', r.text)
            and "<style" not in r.text
            and not re.search(r"\son\w+=", r.text)
        )
    for path in (
        "/page/",
        "/page/../serve.h",
        "/page/..%2fserve.h",
        "/page/nothing.js",
        "/page/chat.html/x",
    ):
        assert tiny.get(path).status == 404, path
    h = tiny.get("/status/history.json").json()
    assert h["seconds"] == 10 and all(
        {
            "ago",
            "running",
            "waiting",
            "pages",
            "prefill_tokens_per_s",
            "decode_tokens_per_s",
            "prefix_hit_rate",
            "drafted",
            "accepted",
            "acceptance_rate",
            "step_p50_ms",
            "step_p99_ms",
        }
        <= set(x)
        for x in h["samples"]
    )
    s = tiny.get("/status.json").json()
    assert (
        {"queue", "batch", "kv", "tokens", "speculation"} <= set(s)
        and s["speculation"]["drafted"] >= s["speculation"]["accepted"]
        and s["kv"]["pages_total"] > 0
    )


def test_unknown_paths_and_methods(tiny):
    r = tiny.get("/nothing")
    assert r.status == 404 and r.json()["error"]["code"] == "unknown_url"
    assert (
        tiny.request("DELETE", "/v1/models").status == 405
        and tiny.get("/v1/completions").status == 405
    )
    assert tiny.request("HEAD", "/health").status == 200
    assert tiny.request("OPTIONS", "/v1/models").status == 405


def test_request_ids(tiny):
    a, b = tiny.get("/version"), tiny.get("/version")
    assert a.headers["x-request-id"] != b.headers["x-request-id"]
    assert (
        tiny.get("/version", headers={"X-Request-Id": "mine-42"}).headers["x-request-id"]
        == "mine-42"
    )
    assert (
        tiny.get("/version", headers={"X-Request-Id": "a b\tc"}).headers["x-request-id"] != "a b\tc"
    )


def test_key(fake):
    with fake(api_key="sesame") as s:
        body = {"model": "fake", "prompt": "a", "max_tokens": 1}
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer sesam"},
            {"Authorization": "Bearer sesame1"},
            {"Authorization": "sesame"},
            {"Authorization": "Bearer "},
        ):
            r = s.post("/v1/completions", body, headers=headers)
            assert r.status == 401 and r.json()["error"]["code"] == "invalid_api_key", headers
            assert (
                s.get("/metrics", headers=headers).status == 401
                and s.get("/status.json", headers=headers).status == 401
            )
        assert (
            s.post("/v1/completions", body, headers={"Authorization": "Bearer sesame"}).status
            == 200
        )
        for path in ("/health", "/chat", "/openapi.json"):
            assert s.get(path).status == 200, "open"


def test_web_pages_of_other_origins(fake):
    with fake(allow_origin="https://a.example") as s:
        r = s.get("/version", headers={"Origin": "https://a.example"})
        assert r.headers["access-control-allow-origin"] == "https://a.example"
        assert (
            "access-control-allow-origin"
            not in s.get("/version", headers={"Origin": "https://b.example"}).headers
        )
        # sent by OpenAI's client in a browser
        asked = "authorization,content-type,openai-beta,x-api-key,x-stainless-arch,x-stainless-retry-count"
        r = s.request(
            "OPTIONS",
            "/v1/chat/completions",
            headers={
                "Origin": "https://a.example",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": asked,
            },
        )
        assert r.status == 204 and set(asked.split(",")) <= {
            h.strip().lower() for h in r.headers["access-control-allow-headers"].split(",")
        }
        exposed = s.get("/version", headers={"Origin": "https://a.example"}).headers[
            "access-control-expose-headers"
        ]
        assert "x-request-id" in exposed.lower()
    with fake() as s:
        assert (
            "access-control-allow-origin"
            not in s.get("/version", headers={"Origin": "https://a.example"}).headers
        )
        # requests that a foreign page can send without a preflight are not JSON
        assert (
            s.post(
                "/v1/completions",
                b'{"model":"fake","prompt":"a"}',
                headers={"Content-Type": "text/plain"},
            ).status
            == 415
        )


def run(binary, *args, env=None):
    p = subprocess.run(
        [binary, "serve", *map(str, args)],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=HANG,
    )
    return p.returncode, p.stderr


def test_settings_that_do_not_fit(llmc_binary, tiny_folder, tmp_path):
    def bad(*args, code=1, **kw):
        got, text = run(llmc_binary, *args, **kw)
        assert got == code, text
        return text

    small = ("--arch", "generic", "--quiet")
    assert "--api-key" in bad(tiny_folder, *small, "--host", "0.0.0.0", "--port", 0)
    assert "port 70000" in bad(tiny_folder, *small, "--port", 70000)
    assert "max_total_tokens 999" in bad(
        tiny_folder, *small, "--port", 0, "--max-total-tokens", 999
    )
    assert "max_input_length" in bad(
        tiny_folder, *small, "--port", 0, "--max-total-tokens", 100, "--max-input-length", 100
    )
    assert "name a model" in bad("--model-name", "x")
    assert "--seqs: expected at least 1" in bad(tiny_folder, *small, "--port", 0, "--seqs", 0)
    assert "--seqs: expected at least 1" in bad(
        tiny_folder, *small, "--port", 0, env={"LLMC_SERVE_SEQS": "-1"}
    )
    (tmp_path / "a.yaml").write_text("port: 8000\nprot: 1\n")
    assert f"{tmp_path}/a.yaml:2: prot: no such setting" in bad(
        "--config", tmp_path / "a.yaml", tiny_folder
    )
    (tmp_path / "b.yaml").write_text("allow-remote: maybe\n")
    assert "expected true or false" in bad("--config", tmp_path / "b.yaml", tiny_folder)
    (tmp_path / "c.yaml").write_text("port: {a: 1}\n")
    assert "flat" in bad("--config", tmp_path / "c.yaml", tiny_folder)
    (tmp_path / "d.yaml").write_text('quiet: true\nhost: "x\n')
    assert re.search(r"d.yaml:\d+:\d+: ", bad("--config", tmp_path / "d.yaml", tiny_folder))
    assert "an integer" in bad(tiny_folder, env={"LLMC_SERVE_PORT": "http"})
    assert "no/such" in bad(tiny_folder, "--log-file", "no/such/log")
    (tmp_path / "key").write_text("\n")
    assert "empty" in bad(tiny_folder, "--api-key-file", tmp_path / "key")


def test_the_port_is_taken(llmc_binary, tiny, tiny_folder):
    code, text = run(llmc_binary, tiny_folder, "--arch", "generic", "--quiet", "--port", tiny.port)
    assert code == 2 and "in use" in text and "--port" in text


def test_file_environment_and_flags_are_equivalent(serve, tiny_folder, tmp_path):
    (tmp_path / "s.yaml").write_text(
        f"# comment\nmodel: {tiny_folder}\nmodel-name: from-file\narch: generic\nquiet: true\nmax_best_of: 7\n"
        "max-total-tokens: 100\nset: [kv.dtype=f32]\nallow-remote: false\n"
    )
    config = ("--config", tmp_path / "s.yaml")

    def told(s):
        i = s.get("/info").json()
        return i["model_id"], i["max_best_of"], i["max_total_tokens"]

    with serve(tiny_folder, *config) as s:
        assert told(s) == ("from-file", 7, 100)
    with serve(
        tiny_folder,
        *config,
        env={"LLMC_SERVE_MODEL_NAME": "from-env", "LLMC_SERVE_MAX_TOTAL_TOKENS": "90"},
    ) as s:
        assert told(s) == ("from-env", 7, 90)
    with serve(
        tiny_folder, *config, "--model-name", "from-flag", env={"LLMC_SERVE_MODEL_NAME": "from-env"}
    ) as s:
        assert told(s) == ("from-flag", 7, 100)


def test_start_shows_memory_and_url_and_sigterm_ends_it(serve, tiny_folder):
    with serve(tiny_folder, "--arch", "generic", "--host", "localhost") as s:
        for word in (
            "weights",
            "KV",
            "scratch",
            "state",
            "total",
            "listening on http://localhost:",
        ):
            assert word in s.head, s.head
        assert s.get("/health").status == 200
        assert s.stop(signal.SIGINT)[0] == 0


def test_json_start_and_json_log(serve, tiny_folder, tmp_path):
    log = tmp_path / "requests.log"
    with serve(
        tiny_folder, "--arch", "generic", "--json", "--quiet", "--log-json", "--log-file", log
    ) as s:
        head = json.loads(s.head)
        assert (
            head["url"] == s.url
            and head["memory"]["total"] > head["memory"]["weights"] > 0
            and head["limits"]["context"] == 256
        )
        s.post(
            "/v1/completions",
            {"model": "tiny", "prompt": "hello", "max_tokens": 3, "ignore_eos": True},
            headers={"X-Request-Id": "abc"},
        )
        s.get("/no%C3%A9where%0a%22")
        assert s.stop()[0] == 0
    lines = [json.loads(x) for x in log.read_text().splitlines()]
    assert (
        len(lines) == 2
        and lines[0]["id"] == "abc"
        and lines[0]["status"] == 200
        and lines[0]["new_tokens"] == 3
        and lines[0]["finish"] == "length"
    )
    assert lines[1]["status"] == 404


UNSAFE = (
    [*range(1, 33), *range(0x7F, 0xA1)]
    + [0xAD, 0x61C, 0x1680, 0x180E, *range(0x2000, 0x2010), *range(0x2028, 0x2030)]
    + [0x205F, *range(0x2060, 0x2070), 0x3000, 0xFEFF, *range(0xFFF9, 0xFFFC), 0xE0041]
)


def test_a_path_cannot_forge_the_log(serve, tiny_folder, tmp_path):
    """Control, separator and bidirectional characters of a path are escaped, so that the line
    has its usual fields and steers no terminal.
    """
    with serve(tiny_folder, "--log-file", tmp_path / "log") as s:
        for cp in UNSAFE:
            path = urllib.parse.quote(f"/x{chr(cp)}200{chr(cp)}key=admin")
            assert s.get(path).status == 404
        assert s.get("/x%5Cu0020%C3%A4").status == 404
        assert s.stop()[0] == 0
    text = (tmp_path / "log").read_bytes().decode()
    lines = [line.split(" ") for line in text.split("\n") if " GET /x" in line]
    paths = [line[4] for line in lines]
    assert [len(line) for line in lines] == [8] * (len(UNSAFE) + 1), lines
    escaped = [f"\\u{cp:04x}" if cp < 1 << 16 else f"\\U{cp:08x}" for cp in UNSAFE]
    assert paths == [f"/x{e}200{e}key=admin" for e in escaped] + ["/x\\u005cu0020ä"]


def test_a_full_disk_for_the_log_does_not_matter(serve, tiny_folder):
    with serve(tiny_folder, "--arch", "generic", "--log-file", "/dev/full") as s:
        for _ in range(3):
            assert s.post(
                "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3}
            ).status in (200, 404)
        code, _ = s.stop()
        assert code == 0 and open(s.log).read().count("cannot write the log") == 1


def test_sighup_opens_the_log_again(serve, tiny_folder, tmp_path):
    """logrotate moves the file away. On a full disk lines are lost until there is space again;
    both are reported.
    """
    log, old = tmp_path / "log", tmp_path / "old"
    with serve(tiny_folder, "--arch", "generic", "--log-file", log) as s:

        def ask(name, written):
            s.get("/version", headers={"X-Request-Id": name})
            s.until(written)

        def again():
            was = os.readlink(fd)
            s.process.send_signal(signal.SIGHUP)
            s.until(lambda: os.readlink(fd) != was)

        fd = next(
            f"/proc/{s.process.pid}/fd/{n}"
            for n in os.listdir(f"/proc/{s.process.pid}/fd")
            if os.path.realpath(f"/proc/{s.process.pid}/fd/{n}") == str(log)
        )
        ask("first", lambda: "first" in log.read_text())
        log.rename(old)
        ask("second", lambda: "second" in old.read_text())
        again()
        ask("third", lambda: "third" in log.read_text())
        assert "third" not in old.read_text() and "first" not in log.read_text()
        log.unlink()
        log.symlink_to("/dev/full")
        again()
        ask("lost", lambda: "cannot write the log" in open(s.log).read())
        ask("lost too", lambda: True)
        log.unlink()
        again()
        ask("found", lambda: "found" in log.read_text())
        assert s.stop()[0] == 0
        said = open(s.log).read()
        assert said.count("cannot write the log") == 1
        # a log line appears after its answer: the second may be in the reopened log
        assert (
            int(re.search(r"the log is written again; (\d+) lines? (?:is|are) lost", said)[1])
            + ("lost too" in log.read_text())
            == 2
        )


def test_help_is_grouped(llmc_binary):
    p = subprocess.run([llmc_binary, "serve", "--help"], capture_output=True, text=True)
    for group in ("Address", "Requests", "Batching", "Connections", "Log", "Model", "Limits"):
        assert f"\n{group}:\n" in p.stdout
    assert "examples:\n  llmc serve" in p.stdout


def test_curl(tiny):
    def curl(*args):
        return subprocess.run(
            ["curl", "-sS", "-m", str(HANG), *args], capture_output=True, text=True, check=True
        ).stdout

    body = json.dumps({"model": "tiny", "prompt": "hello world", "max_tokens": 4, "temperature": 0})
    one = json.loads(
        curl(tiny.url + "/v1/completions", "-H", "Content-Type: application/json", "-d", body)
    )
    again = json.loads(
        curl(
            "--http1.0",
            tiny.url + "/v1/completions",
            "-H",
            "Content-Type: application/json",
            "-d",
            body,
        )
    )
    assert one["choices"] == again["choices"]
    stream = curl(
        "-N",
        "--http1.0",
        tiny.url + "/v1/completions",
        "-H",
        "Content-Type: application/json",
        "-d",
        body[:-1] + ', "stream": true}',
    )
    assert stream.endswith("data: [DONE]\n\n")
    chunked = curl(
        tiny.url + "/v1/completions",
        "-H",
        "Content-Type: application/json",
        "-H",
        "Transfer-Encoding: chunked",
        "-d",
        body,
    )
    assert json.loads(chunked)["choices"] == one["choices"]


def test_prompts_of_different_salts_share_no_pages(serve, tiny_folder, tmp_path):
    """cache_salt as in vLLM: in memory, and in files after a restart."""
    prompt = "a beginning that is long enough for several pages of positions, word by word, " * 2

    def cached(server, salt, text=prompt, **more):
        r = server.post(
            "/v1/completions",
            {
                "model": "tiny",
                "prompt": text,
                "max_tokens": 3,
                **({"cache_salt": salt} if salt else {}),
                **more,
            },
        )
        assert r.status == 200, r.text
        return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"], r.json()["choices"][0][
            "text"
        ]

    options = [
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "4",
        "--model-name",
        "tiny",
        "--kv-tokens",
        "2048",
        "--prefix-dir",
        tmp_path / "pages",
    ]
    with serve(tiny_folder, *options) as s:
        none, text = cached(s, None, temperature=0)
        assert none == 0 and cached(s, None, temperature=0)[0] > 64
        for salt in "a", "b":
            assert cached(s, salt, temperature=0) == (0, text)
            assert cached(s, salt, temperature=0)[0] > 64
        r = s.post(
            "/v1/responses",
            {"model": "tiny", "input": prompt, "cache_salt": "c", "max_output_tokens": 2},
        )
        assert r.status == 200 and r.json()["usage"]["input_tokens_details"]["cached_tokens"] == 0
        for bad in "", 5, ["a"]:
            r = s.post("/v1/completions", {"model": "tiny", "prompt": "a", "cache_salt": bad})
            assert r.status == 400 and "cache_salt" in r.json()["error"]["message"]
        s.idle()
        assert s.stop()[0] == 0
    with serve(tiny_folder, *options) as s:
        assert cached(s, "d")[0] == 0 and cached(s, "a")[0] > 64 and cached(s, None)[0] > 64
