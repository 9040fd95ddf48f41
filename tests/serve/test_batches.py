"""Files and batches: with OpenAI's unmodified client, and with faulty forms, ids and lines, full
disks and restarts.

It is one file because its servers start once per module.
"""

import http.client
import json
import os
import resource
import shutil
import signal
import threading

import openai
import pytest
from waiting import HANG

ENDED = ("completed", "failed", "expired", "cancelled")
BOUNDARY = "some-mark"


def line(name, text="a b c", url="/v1/completions", **body):
    return json.dumps(
        {
            "custom_id": name,
            "method": "POST",
            "url": url,
            "body": {"model": "fake", "prompt": text, "max_tokens": 3, **body},
        }
    )


def form(content, purpose=b"batch", name="in.jsonl", mark=BOUNDARY):
    """Return (body, headers) of an upload."""
    parts = (
        [b'Content-Disposition: form-data; name="purpose"\r\n\r\n' + purpose]
        if purpose is not None
        else []
    )
    if content is not None:
        parts.append(
            f'Content-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: application/octet-stream\r\n\r\n'.encode()
            + content
        )
    body = (
        b"".join(b"--" + mark.encode() + b"\r\n" + p + b"\r\n" for p in parts)
        + b"--"
        + mark.encode()
        + b"--\r\n"
    )
    return body, {"Content-Type": f"multipart/form-data; boundary={mark}"}


def upload(s, content, **kw):
    headers = kw.pop("headers", {})
    body, h = form(
        content if content is None or isinstance(content, bytes) else content.encode(), **kw
    )
    return s.request("POST", "/v1/files", body, {**h, **headers})


def start(s, lines, endpoint="/v1/completions", headers=None, **more):
    f = upload(s, "\n".join(lines), headers=headers or {})
    assert f.status == 200, f.text
    r = s.request(
        "POST",
        "/v1/batches",
        {"input_file_id": f.json()["id"], "endpoint": endpoint, "completion_window": "24h", **more},
        headers,
    )
    assert r.status == 200, r.text
    return r.json()


def ended(s, batch, headers=None):
    out = {}

    def over():
        out.update(s.request("GET", f"/v1/batches/{batch['id']}", headers=headers).json())
        return out["status"] in ENDED

    s.until(over)
    return out


def lines_of(s, file, headers=None):
    return (
        [
            json.loads(x)
            for x in s.request(
                "GET", f"/v1/files/{file}/content", headers=headers
            ).text.splitlines()
        ]
        if file
        else []
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("batches") / "store"


@pytest.fixture(scope="module")
def server(fake, store):
    with fake(step_ms=1, batch_dir=store, batch_dir_bytes=200000, max_body_bytes=20000) as s:
        yield s


def test_openais_client(tiny_folder, serve, tmp_path):
    requests = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "tiny",
                "messages": [{"role": "user", "content": f"Say {i}."}],
                "max_tokens": 4,
                "seed": i,
                "temperature": 1,
            },
        }
        for i in range(12)
    ]
    requests[5]["body"]["temperature"] = 9
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in requests))
    with serve(
        tiny_folder,
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "4",
        "--model-name",
        "tiny",
        "--batch-dir",
        tmp_path / "store",
    ) as s:
        client = openai.OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
        with open(tmp_path / "in.jsonl", "rb") as f:
            file = client.files.create(file=f, purpose="batch")
        assert (file.object, file.purpose, file.filename, file.bytes) == (
            "file",
            "batch",
            "in.jsonl",
            os.path.getsize(tmp_path / "in.jsonl"),
        )
        assert (
            client.files.wait_for_processing(file.id).status == "processed"
            and client.files.retrieve(file.id).model_dump() == file.model_dump()
        )
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"for": "a test"},
        )
        assert batch.object == "batch" and batch.metadata == {"for": "a test"}
        s.until(lambda: client.batches.retrieve(batch.id).status in ENDED)
        batch = client.batches.retrieve(batch.id)
        assert batch.status == "completed" and (
            batch.request_counts.total,
            batch.request_counts.completed,
            batch.request_counts.failed,
        ) == (12, 11, 1)
        assert (
            batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at
            and batch.errors is None
        )
        answers = {
            a["custom_id"]: a
            for a in map(json.loads, client.files.content(batch.output_file_id).text.splitlines())
        }
        assert sorted(answers) == sorted(r["custom_id"] for r in requests if r["custom_id"] != "r5")
        for r in requests:
            if r["custom_id"] == "r5":
                continue
            alone = client.chat.completions.create(**r["body"])
            got = answers[r["custom_id"]]["response"]
            assert (
                got["status_code"] == 200
                and got["body"]["choices"][0]["message"]["content"]
                == alone.choices[0].message.content
            )
            assert got["body"]["usage"]["completion_tokens"] == alone.usage.completion_tokens
        (error,) = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
        assert (
            error["custom_id"] == "r5"
            and error["response"]["status_code"] == 400
            and error["response"]["body"]["error"]["param"] == "temperature"
        )
        assert {f.purpose for f in client.files.list()} == {"batch", "batch_output"} and [
            b.id for b in client.batches.list(limit=1)
        ] == [batch.id]
        with pytest.raises(openai.ConflictError):
            client.batches.cancel(batch.id)
        assert client.files.delete(batch.output_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.content(batch.output_file_id)
        assert client.batches.retrieve(batch.id).output_file_id is None
        assert s.stop()[0] == 0


def test_completions_and_responses(server):
    batch = ended(server, start(server, [line("a", "/v1/chat"), line("b", n=2)]))
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert {
        a["custom_id"]: len(a["response"]["body"]["choices"])
        for a in lines_of(server, batch["output_file_id"])
    } == {"a": 1, "b": 2}
    one = json.dumps(
        {
            "custom_id": "x",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"input": "a b", "max_output_tokens": 3, "seed": 18446744073709551615},
        }
    )
    batch = ended(server, start(server, [one], "/v1/responses"))
    assert batch["status"] == "completed" and sum(batch["request_counts"].values()) == 2


@pytest.mark.parametrize(
    "lines,code,number",
    [
        (["{"], "invalid_json_line", 1),
        (["[1]"], "invalid_json_line", 1),
        ([line("a"), "nonsense"], "invalid_json_line", 2),
        ([line("a"), line("b"), line("a")], "duplicate_custom_id", 3),
        ([line("")], "missing_required_parameter", 1),
        ([json.dumps({"method": "POST"})], "missing_required_parameter", 1),
        ([line("x" * 600)], "invalid_value", 1),
        ([line("a").replace("POST", "GET")], "invalid_method", 1),
        ([line("a", url="/v1/embeddings")], "mismatched_url", 1),
        ([line("a", url="/v1/completions/../files")], "mismatched_url", 1),
        ([line("a", stream=True)], "invalid_value", 1),
        ([line("a", prompt="x" * 30000)], "invalid_value", 1),
        ([""], "empty_file", None),
        (["\r", ""], "empty_file", None),
        (['{"custom_id":"a","method":"POST","url":"/v1/completions","body":7}'], "invalid_type", 1),
        ([line("a") + line("b")], "invalid_json_line", 1),
        ([line("a\0b")], "invalid_value", 1),
        (["[" * 5000], "invalid_json_line", 1),
        ([line("a" + "é" * 40)] * 2, "duplicate_custom_id", 2),
        # a key that equals an earlier one after parsing; more bytes next to the body than a line may
        # have
        ([line("a", stream=True)[:-1] + r',"\u0062ody":{}}'], "invalid_type", 1),
        ([line("a")[:-1] + ',"x":"' + "y" * 40000 + '"}'], "invalid_value", 1),
    ],
)
def test_lines_that_are_wrong(server, lines, code, number):
    batch = ended(server, start(server, lines))
    assert batch["status"] == "failed" and batch["output_file_id"] is None and batch["failed_at"]
    assert (batch["errors"]["data"][0]["code"], batch["errors"]["data"][0]["line"]) == (
        code,
        number,
    )
    assert batch["request_counts"]["completed"] == 0


def test_many_wrong_lines_are_reported_up_to_a_limit(server):
    errors = ended(server, start(server, ["{"] * 300))["errors"]["data"]
    assert len(errors) == 100 and [e["line"] for e in errors] == list(range(1, 101))
    assert (
        errors[98]["code"] == "invalid_json_line"
        and errors[99]["code"] == "too_many_errors"
        and errors[99]["message"].startswith("201 more")
    )


def test_files_and_their_paths(server):
    f = upload(server, line("a"), name="../../etc/passwd").json()
    assert f["filename"] == "../../etc/passwd" and server.get(f"/v1/files/{f['id']}").json() == f
    assert server.get(f"/v1/files/{f['id']}/content").text == line("a")
    for bad in (
        "..",
        "../lock",
        "%2e%2e%2flock",
        "lock",
        f["id"] + ".json",
        f["id"] + "/",
        f["id"] + "/content/",
        f["id"] + "/../lock/content",
        "x" * 300,
        f["id"] + "%00",
        "file-" + "0" * 24,
    ):
        for method in ("GET", "DELETE"):
            assert server.request(method, "/v1/files/" + bad).status in (400, 404), bad
    for bad in ("..", "../lock", f["id"], "batch_" + "0" * 24, "x" * 300, "x/y", "x/cancel"):
        assert (
            server.get("/v1/batches/" + bad).status == 404
            and server.request("POST", f"/v1/batches/{bad}/cancel", b"").status == 404
        ), bad
    assert server.request("DELETE", f"/v1/files/{f['id']}").json() == {
        "id": f["id"],
        "object": "file",
        "deleted": True,
    }
    assert server.get(f"/v1/files/{f['id']}").status == 404
    assert (
        server.request("DELETE", "/v1/batches/x").status == 405
        and server.request("DELETE", "/v1/files").status == 405
    )


def test_lists_come_in_pages(server):
    ids = [upload(server, line(str(i))).json()["id"] for i in range(5)]
    first = server.get("/v1/files?limit=2&purpose=batch").json()
    assert first["has_more"] and [f["id"] for f in first["data"]] == [
        first["first_id"],
        first["last_id"],
    ]
    seen, after = [], ""
    while True:
        page = server.get(f"/v1/files?limit=2{after}").json()
        seen += [f["id"] for f in page["data"]]
        if not page["has_more"]:
            break
        after = "&after=" + page["last_id"]
    assert len(seen) == len(set(seen)) and set(ids) <= set(seen)
    assert [f["id"] for f in server.get("/v1/files?order=asc").json()["data"]] == seen[::-1]
    assert (
        server.get("/v1/files?limit=0").status == 400
        and server.get("/v1/batches?limit=101").status == 400
        and server.get("/v1/batches?limit=x").status == 400
    )
    assert server.get("/v1/files?purpose=vision").json()["data"] == []
    for i in ids:
        server.request("DELETE", f"/v1/files/{i}")
    made = [start(server, [line("a")])["id"] for _ in range(3)]
    page = server.get("/v1/batches?limit=2").json()
    assert [b["id"] for b in page["data"]] == made[:0:-1] and page["has_more"]
    assert (
        server.get(f"/v1/batches?limit=1&after={page['last_id']}").json()["data"][0]["id"]
        == made[0]
    )


@pytest.mark.parametrize(
    "body,type,status",
    [
        (form(b"x")[0][:-6], None, 400),
        (form(b"x")[0].replace(b"--some-mark", b"--other-mark"), None, 400),
        (b"", None, 400),
        (form(None)[0], None, 400),
        (form(b"x", purpose=None)[0], None, 400),
        (form(b"x", purpose=b"fine-tune")[0], None, 400),
        (form(b"x")[0], "multipart/form-data", 400),
        (form(b"x")[0], 'multipart/form-data; boundary="some-mark', 400),
        (form(b"x")[0], "application/json", 400),
        (form(b"x")[0].replace(b"\r\n", b"\n"), None, 400),
        (form(b"x", name='a"; name="b')[0], None, 200),
        (form(b"x", name="a\rb")[0], None, 400),
        (form(b"x")[0] + form(b"x")[0], None, 200),
        (form(b"x")[0].replace(b'name="file"', b'name="file'), None, 400),
        (form(b"")[0], None, 200),
        (form(b"x" * 8)[0].replace(b"Content-Type", b"X" * 9000), None, 400),
        (b"{}", "application/json", 400),
        (form(b"\r\n--some-mar\r\n--some")[0], None, 200),
    ],
)
def test_forms(server, body, type, status):
    r = server.request(
        "POST",
        "/v1/files",
        body,
        {"Content-Type": type or f"multipart/form-data; boundary={BOUNDARY}"},
    )
    assert r.status == status, r.text
    assert r.json()["object"] == "file" if status == 200 else r.json()["error"]["message"]


def test_requests_that_are_wrong(server):
    page = {"Origin": "https://elsewhere.example"}  # browsers send forms without a preflight
    assert (
        upload(server, line("a"), headers=page).status == 403
        and server.request("POST", "/v1/batches/x/cancel", b"", page).status == 403
    )
    f = upload(server, line("a"), headers={"Origin": server.url}).json()["id"]
    good = {"input_file_id": f, "endpoint": "/v1/completions", "completion_window": "24h"}
    for change, status, param in (
        ({"endpoint": "/v1/files"}, 400, "endpoint"),
        ({"endpoint": None}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"input_file_id": "file-x"}, 404, "input_file_id"),
        ({"input_file_id": 7}, 400, "input_file_id"),
        ({"input_file_id": "../lock"}, 404, "input_file_id"),
        ({"metadata": "x"}, 400, "metadata"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, 400, "metadata"),
    ):
        r = server.post("/v1/batches", {**good, **change})
        assert (r.status, r.json()["error"]["param"]) == (status, param), change
    assert (
        server.post("/v1/batches", b"{").status == 400
        and server.request("POST", "/v1/batches", b"{}", {"Content-Type": "text/plain"}).status
        == 415
    )
    batch = ended(server, server.post("/v1/batches", {**good, "metadata": {"k": "v"}}).json())
    assert batch["metadata"] == {"k": "v"} and batch["input_file_id"] == f
    assert (
        server.post("/v1/batches", {**good, "input_file_id": batch["output_file_id"]}).status == 404
    )  # output files are not requests


def test_sizes(server):
    for f in server.get("/v1/files").json()["data"]:
        assert server.request("DELETE", f"/v1/files/{f['id']}").status == 200
    assert upload(server, "x" * 30000).status == 200  # more than the limit of a body
    assert upload(server, "x" * 250000).status == 413
    big = [upload(server, "x" * 90000) for _ in range(2)]
    assert (
        big[0].status == 200
        and big[1].status == 507
        and big[1].json()["error"]["code"] == "storage_full"
    )
    # the space left does not hold all answers: the batch reports that and keeps the answers it has
    batch = ended(server, start(server, [line(f"{i}", n=4, max_tokens=40) for i in range(120)]))
    assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_full"
    kept = lines_of(server, batch["output_file_id"])
    assert 0 < len(kept) < 120 and len(kept) == batch["request_counts"]["completed"]
    for f in server.get("/v1/files").json()["data"]:
        assert server.request("DELETE", f"/v1/files/{f['id']}").status == 200
    assert upload(server, "x" * 90000).status == 200


def test_cancel_and_live_requests(fake, tmp_path):
    with fake(step_ms=1, hold=1, max_live=8, batch_dir=tmp_path / "store") as s:
        batch = start(s, [line(str(i)) for i in range(50)])
        s.until(
            lambda: s.status()["requests"]["active"] == 5
        )  # half of the requests, and the status request itself
        r = s.request("DELETE", f"/v1/files/{batch['input_file_id']}")
        assert (r.status, r.json()["error"]["code"]) == (409, "file_in_use")
        s.process.send_signal(signal.SIGUSR1)  # the engine continues
        assert s.post("/v1/completions", {"prompt": "a b", "max_tokens": 2}).status == 200
        r = s.request("POST", f"/v1/batches/{batch['id']}/cancel", b"")
        assert r.status == 409 or r.json()["status"] == "cancelling", (
            r.text
        )  # it may have completed
        last = ended(s, batch)
        assert last["status"] in ("cancelled", "completed") and last["request_counts"][
            "completed"
        ] == len(lines_of(s, last["output_file_id"]))
        code, rest = s.stop()
        assert code == 0 and "left 0" in rest


def test_a_held_batch_is_cancelled(fake, tmp_path):
    with fake(step_ms=1, hold=1, batch_dir=tmp_path / "store") as s:
        batch, other = start(s, [line(str(i)) for i in range(5)]), start(s, [line("x")])
        s.until(lambda: s.status()["requests"]["active"] == 6)
        for b in (other, batch):
            assert (
                s.request("POST", f"/v1/batches/{b['id']}/cancel", b"").json()["status"]
                == "cancelling"
            )
            # a second time
            assert s.request("POST", f"/v1/batches/{b['id']}/cancel", b"").status == 200
        for b in (batch, other):
            last = ended(s, b)
            assert (
                last["status"] == "cancelled"
                and last["cancelled_at"] >= last["cancelling_at"]
                and last["output_file_id"] is None
            )
        code, rest = s.stop()
        assert code == 0 and "left 0" in rest


def test_a_restart_goes_on(fake, tmp_path):
    with fake(step_ms=1, hold=1, drain_ms=10, batch_dir=tmp_path / "store") as s:
        batch = start(s, [line(str(i)) for i in range(20)], metadata={"for": "a\0b"})
        s.until(lambda: s.get(f"/v1/batches/{batch['id']}").json()["status"] == "in_progress")
        code, rest = s.stop()
        assert code == 0 and "left 0" in rest
    # state after a crash: some lines are answered, the last one incompletely
    state = json.loads((tmp_path / "store" / f"{batch['id']}.json").read_text())
    done = [
        json.dumps(
            {
                "id": "x",
                "custom_id": str(i),
                "response": {"status_code": 200, "body": {}},
                "error": None,
            }
        )
        for i in range(7)
    ]
    (tmp_path / "store" / f"{state['output']}.part").write_text(
        "\n".join(done) + '\n{"id": "y", "custom_id": "7", "resp'
    )
    (tmp_path / "store" / "file-000000000000000000000000.json").write_text("nonsense")
    (tmp_path / "store" / "batch_000000000000000000000000.json").write_text(
        '{"batch": {}, "output": "file-/../x"}'
    )
    with fake(step_ms=1, batch_dir=tmp_path / "store") as s:
        last = ended(s, batch)
        assert last["status"] == "completed" and last["request_counts"] == {
            "total": 20,
            "completed": 20,
            "failed": 0,
        }
        lines = lines_of(s, last["output_file_id"])
        assert (
            len(lines) == 20
            and {x["custom_id"] for x in lines} == {str(i) for i in range(20)}
            and [x["id"] for x in lines[:7]] == ["x"] * 7
        )
        assert s.stop()[0] == 0
    with fake(batch_dir=tmp_path / "store") as s:  # again: nothing runs, all files exist
        assert (
            s.get(f"/v1/batches/{batch['id']}").json() == last
            and len(lines_of(s, last["output_file_id"])) == 20
        )
        assert s.stop()[0] == 0


def test_a_restart_that_cannot_read_its_lines_keeps_the_answers(fake, tmp_path):
    with fake(step_ms=1, hold=1, drain_ms=10, batch_dir=tmp_path / "store") as s:
        batch = start(s, [line(str(i)) for i in range(3)])
        s.until(lambda: s.get(f"/v1/batches/{batch['id']}").json()["status"] == "in_progress")
        assert s.stop()[0] == 0
    state = json.loads((tmp_path / "store" / f"{batch['id']}.json").read_text())
    (tmp_path / "store" / f"{state['output']}.part").write_text(
        '{"id": "x", "custom_id": "0", "response": {}, "error": null}\n'
    )
    with fake(batch_dir=tmp_path / "store", max_body_bytes=10) as s:
        last = ended(s, batch)
        assert (
            last["status"] == "failed"
            and [x["custom_id"] for x in lines_of(s, last["output_file_id"])] == ["0"]
            and last["error_file_id"] is None
        )
        assert s.stop()[0] == 0


def test_lines_wait_while_the_engine_is_lost(fake, tmp_path):
    with fake(step_ms=1, mortal=1, batch_dir=tmp_path / "store") as s:
        s.process.send_signal(signal.SIGUSR1)
        s.until(lambda: s.get("/health").status == 503)
        batch = start(s, [line(str(i)) for i in range(5)])
        s.until(
            lambda: any(
                float(x.split()[-1])
                for x in s.get("/metrics").text.splitlines()
                if x.startswith("tgi_request_failure")
            )
        )
        assert s.get(f"/v1/batches/{batch['id']}").json()["request_counts"] == {
            "total": 5,
            "completed": 0,
            "failed": 0,
        }
        assert s.stop()[0] == 0
    with fake(step_ms=1, batch_dir=tmp_path / "store") as s:
        assert ended(s, batch)["request_counts"] == {"total": 5, "completed": 5, "failed": 0}
        assert s.stop()[0] == 0


def test_a_batch_that_only_waits_gives_up_its_turn(fake, tmp_path):
    (tmp_path / "keys").write_text("alice sk-alice\nbob sk-bob\n")
    alice, bob = ({"Authorization": f"Bearer {k}"} for k in ("sk-alice", "sk-bob"))
    with fake(step_ms=1, mortal=1, batch_dir=tmp_path / "store", keys=tmp_path / "keys") as s:
        s.process.send_signal(signal.SIGUSR1)
        s.until(lambda: s.get("/health").status == 503)
        first = start(s, [line(str(i)) for i in range(5)], headers=alice)
        s.until(
            lambda: s.request("GET", f"/v1/batches/{first['id']}", headers=alice).json()["status"]
            == "in_progress"
        )
        others = [
            start(s, [line("x")], headers=key) for key in (bob, alice)
        ]  # both begin though the first never ends
        for batch, key in zip(others, (bob, alice)):
            s.until(
                lambda: s.request("GET", f"/v1/batches/{batch['id']}", headers=key).json()["status"]
                == "in_progress"
            )
        r = s.request(
            "POST", f"/v1/batches/{first['id']}/cancel", headers=alice
        )  # also while it waits for its turn
        assert r.status == 200 and ended(s, first, alice)["status"] == "cancelled"
        assert s.stop()[0] == 0


def test_a_turn_that_was_given_up_goes_on(serve, tiny_folder, tmp_path):
    """Lines whose model cannot be opened are retried in each turn, and answered when it is
    back.
    """
    shutil.copytree(tiny_folder, tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.rename(tmp_path / "away")
    (tmp_path / "keys").write_text("alice sk-alice\nbob sk-bob\n")
    alice, bob = ({"Authorization": f"Bearer {k}"} for k in ("sk-alice", "sk-bob"))
    with serve(
        f"--model=a={tiny_folder}",
        "--model",
        f"m={tmp_path}/m",
        "--arch",
        "generic",
        "-t",
        "1",
        "--seqs",
        "1",
        "--batch-dir",
        tmp_path / "store",
        "--keys",
        tmp_path / "keys",
    ) as s:
        first = start(s, [line(str(i), model="m") for i in range(4)], headers=alice)
        other = start(s, [line("x", model="a")], headers=bob)  # runs though the first never ends
        assert ended(s, other, bob)["request_counts"] == {"total": 1, "completed": 1, "failed": 0}
        (tmp_path / "away").rename(weights)
        assert ended(s, first, alice)["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
        assert s.stop()[0] == 0


def test_what_is_too_late_expires(fake, tmp_path):
    with fake(step_ms=1, hold=1, drain_ms=10, batch_dir=tmp_path / "store") as s:
        batch = start(s, [line(str(i)) for i in range(3)])
        s.until(lambda: s.get(f"/v1/batches/{batch['id']}").json()["status"] == "in_progress")
        assert s.stop()[0] == 0
    path = tmp_path / "store" / f"{batch['id']}.json"
    path.write_text(
        path.read_text().replace(f'"expires_at":{batch["expires_at"]}', '"expires_at":1000')
    )
    with fake(step_ms=1, batch_dir=tmp_path / "store") as s:
        last = ended(s, batch)
        assert (
            last["status"] == "expired"
            and [x["error"]["code"] for x in lines_of(s, last["error_file_id"])]
            == ["batch_expired"] * 3
        )
        assert s.stop()[0] == 0


def test_keys_see_their_own(fake, tmp_path):
    (tmp_path / "keys").write_text("alice sk-alice requests=1 tokens=20\nbob sk-bob\n")
    alice, bob, all = ({"Authorization": f"Bearer {k}"} for k in ("sk-alice", "sk-bob", "sk-all"))
    with fake(
        step_ms=1, batch_dir=tmp_path / "store", keys=tmp_path / "keys", api_key="sk-all"
    ) as s:
        batch = start(s, [line(str(i)) for i in range(9)], headers=alice)
        last = ended(s, batch, alice)
        assert (
            last["status"] == "completed" and len(lines_of(s, last["output_file_id"], alice)) == 9
        )  # the key's limits do not apply
        for path in (
            f"/v1/files/{last['output_file_id']}",
            f"/v1/files/{last['output_file_id']}/content",
            f"/v1/batches/{batch['id']}",
        ):
            assert [s.request("GET", path, headers=h).status for h in (alice, bob, all, {})] == [
                200,
                404,
                200,
                401,
            ]
        assert s.request("DELETE", f"/v1/files/{last['input_file_id']}", headers=bob).status == 404
        assert (
            s.request("GET", "/v1/files", headers=bob).json()["data"]
            == []
            == s.request("GET", "/v1/batches", headers=bob).json()["data"]
        )
        assert (
            s.request(
                "POST",
                "/v1/batches",
                {
                    "input_file_id": last["input_file_id"],
                    "endpoint": "/v1/completions",
                    "completion_window": "24h",
                },
                bob,
            ).status
            == 404
        )


def test_keys_have_alike_parts_of_the_folder(fake, tmp_path):
    (tmp_path / "keys").write_text("alice sk-alice\nbob sk-bob\n")
    alice, bob, all = ({"Authorization": f"Bearer {k}"} for k in ("sk-alice", "sk-bob", "sk-all"))
    with fake(
        step_ms=1,
        batch_dir=tmp_path / "store",
        batch_dir_bytes=100000,
        keys=tmp_path / "keys",
        api_key="sk-all",
    ) as s:
        first = upload(s, "x" * 40000, headers=alice)
        assert first.status == 200 and upload(s, "x" * 15000, headers=alice).status == 507
        assert (
            upload(s, "x" * 30000, headers=bob).status == 200
            and upload(s, "x" * 25000, headers=all).status == 200
        )
        assert (
            upload(s, "x" * 20000, headers=bob).status == 507
        )  # its share has space, the folder has none
        assert s.request("DELETE", f"/v1/files/{first.json()['id']}", headers=alice).status == 200
        assert upload(s, "x" * 15000, headers=alice).status == 200
        # states of batches count; finished ones without files are evicted
        for _ in range(8):
            batch = start(
                s, [line("a")], headers=alice, metadata={str(i): "x" * 512 for i in range(16)}
            )
            last = ended(s, batch, alice)
            for f in (last["output_file_id"], last["input_file_id"]):
                assert s.request("DELETE", f"/v1/files/{f}", headers=alice).status == 200
        assert 0 < len(s.request("GET", "/v1/batches", headers=alice).json()["data"]) < 8
        assert s.stop()[0] == 0


def test_batches_of_keys_run_in_turn(fake, tmp_path):
    """A long batch yields to another key after some lines and then continues with the
    unanswered ones.
    """
    (tmp_path / "keys").write_text("alice sk-alice\nbob sk-bob\n")
    alice, bob = ({"Authorization": f"Bearer {k}"} for k in ("sk-alice", "sk-bob"))
    with fake(hold=1, batch_dir=tmp_path / "store", keys=tmp_path / "keys") as s:
        long, short = (
            start(s, [line(str(i), max_tokens=1) for i in range(450)], headers=alice),
            start(s, [line("x", max_tokens=1)], headers=bob),
        )
        s.process.send_signal(signal.SIGUSR1)
        first, second = ended(s, long, alice), ended(s, short, bob)
        assert (
            first["status"] == second["status"] == "completed"
            and second["completed_at"] <= first["completed_at"]
        )
        assert first["request_counts"] == {"total": 450, "completed": 450, "failed": 0}
        assert sorted(
            int(x["custom_id"]) for x in lines_of(s, first["output_file_id"], alice)
        ) == list(range(450))
        assert [x["custom_id"] for x in lines_of(s, second["output_file_id"], bob)] == ["x"]
        assert s.stop()[0] == 0


def test_what_a_server_that_fell_has_left(fake, tmp_path):
    store, digits = tmp_path / "store", "0123456789abcdef01234567"
    with fake(step_ms=1, batch_dir=store) as s:
        last = ended(s, start(s, [line("a")]))
        assert s.stop()[0] == 0
    before = {p.name: p.read_bytes() for p in store.iterdir()}
    left = [
        f"file-{digits}",
        f"file-{digits[::-1]}.part",
        f"file-{digits}.json.tmp.12.0",
        f"{last['id']}.json.tmp.7.3",
        f"{last['output_file_id']}.part",
    ]
    stays = ["notes.txt", "file-x", f"file-{digits[:-1]}", "notes.tmp.1.2"]
    for name in left + stays:
        (store / name).write_text("x")
    with fake(step_ms=1, batch_dir=store) as s:
        assert (
            s.get(f"/v1/batches/{last['id']}").json() == last
            and len(lines_of(s, last["output_file_id"])) == 1
        )
        assert s.stop()[0] == 0
    assert {p.name for p in store.iterdir()} == {*before, *stays} and all(
        (store / k).read_bytes() == v for k, v in before.items()
    )
    # output files stay if their batch cannot be read
    (store / f"batch_{digits}.json").write_text("nonsense")
    for name in left:
        (store / name).write_text("x")
    with fake(step_ms=1, batch_dir=store) as s:
        assert s.stop()[0] == 0
    assert {p.name for p in store.iterdir()} == {
        *before,
        *stays,
        f"batch_{digits}.json",
        *(n for n in left if ".tmp." not in n),
    }


def test_without_a_folder_and_with_a_wrong_one(fake, tmp_path):
    with fake() as s:
        for r in (
            upload(s, "x"),
            s.get("/v1/files"),
            s.get("/v1/batches"),
            s.post("/v1/batches", {}),
            s.get("/v1/files/x"),
            s.request("DELETE", "/v1/files/x"),
        ):
            assert r.status == 404 and "--batch-dir" in r.json()["error"]["message"]
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    with (
        pytest.raises(RuntimeError, match="other users may read"),
        fake(batch_dir=tmp_path / "open"),
    ):
        pass
    with fake(batch_dir=tmp_path / "one") as s:
        with pytest.raises(RuntimeError, match="another server"), fake(batch_dir=tmp_path / "one"):
            pass
        assert s.get("/v1/files").status == 200


def test_a_full_disk(fake, tmp_path):
    """The system limits the size of files."""

    def small():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

    with fake(step_ms=1, batch_dir=tmp_path / "store", limit=small) as s:
        r = upload(s, "x" * 30000)
        assert (r.status, r.json()["error"]["code"]) == (507, "storage_full")
        assert [p.name for p in (tmp_path / "store").iterdir()] == ["lock"]
        batch = ended(s, start(s, [line(str(i), n=8, max_tokens=60) for i in range(40)]))
        assert batch["status"] == "failed" and batch["errors"]["data"][0]["code"] == "storage_full"
        assert (
            0
            < len(lines_of(s, batch["output_file_id"]))
            == batch["request_counts"]["completed"]
            < 40
        )
        assert s.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status == 200


def test_a_client_that_breaks_off_and_many_at_once(server):
    body, headers = form(b"x" * 5000)
    for cut in (10, 200, len(body) - 3):
        c = http.client.HTTPConnection(server.host, server.port, timeout=HANG)
        c.putrequest("POST", "/v1/files")
        for k, v in {**headers, "Content-Length": str(len(body))}.items():
            c.putheader(k, v)
        c.endheaders()
        c.send(body[:cut])
        c.close()
    results = []
    threads = [
        threading.Thread(
            target=lambda i=i: results.append(
                ended(server, start(server, [line(f"{i}-{k}") for k in range(5)]))
            )
        )
        for i in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [b["status"] for b in results] == ["completed"] * 8 and len(
        {b["output_file_id"] for b in results}
    ) == 8
