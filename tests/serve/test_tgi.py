"""TGI's interface: its Python client, Hugging Face's client, its messages."""

import asyncio
import json

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError as ClientValidationError
from waiting import HANG

PROMPT = "hello world"


@pytest.fixture(scope="module")
def client(tiny):
    return Client(tiny.url, timeout=HANG)


@pytest.fixture(scope="module")
def hub(tiny):
    return InferenceClient(tiny.url)


def generate(tiny, **parameters):
    return tiny.post("/generate", {"inputs": PROMPT, "parameters": parameters})


def test_its_own_client(client):
    r = client.generate(PROMPT, max_new_tokens=6, decoder_input_details=True)
    d = r.details
    assert (
        d.generated_tokens == 6 == len(d.tokens)
        and d.finish_reason.value == "length"
        and d.seed is None
    )
    assert (
        [p.id for p in d.prefill] == [264, 269]
        and d.prefill[0].logprob is None
        and d.prefill[1].logprob < 0
    )
    assert "".join(t.text for t in d.tokens) == r.generated_text
    frames = list(client.generate_stream(PROMPT, max_new_tokens=6))
    assert [f.token.id for f in frames] == [t.id for t in d.tokens] and [
        f.generated_text for f in frames[:-1]
    ] == [None] * 5
    assert (
        frames[-1].generated_text == r.generated_text and frames[-1].details.generated_tokens == 6
    )


def test_its_client_best_of(client):
    r = client.generate(PROMPT, max_new_tokens=5, do_sample=True, best_of=2)
    assert (
        len(r.details.best_of_sequences) == 1
        and r.details.seed != r.details.best_of_sequences[0].seed
    )
    mean = [
        sum(t.logprob for t in x.tokens) / len(x.tokens)
        for x in (r.details, r.details.best_of_sequences[0])
    ]
    assert mean[0] >= mean[1]


def test_its_client_raises(tiny, client):
    with pytest.raises(ClientValidationError, match="Given: 400 `inputs` tokens"):
        client.generate("z" * 400, max_new_tokens=1)


def test_its_async_client(tiny):
    async def main():
        c = AsyncClient(tiny.url, timeout=HANG)
        a = await c.generate(PROMPT, max_new_tokens=4)
        b = [f.token.text async for f in c.generate_stream(PROMPT, max_new_tokens=4)]
        return a.generated_text, "".join(b)

    a, b = asyncio.run(main())
    assert a == b


def test_hugging_face_client(hub, tiny):
    text = hub.text_generation(PROMPT, max_new_tokens=6)
    full = hub.text_generation(PROMPT, max_new_tokens=6, return_full_text=True)
    assert full == PROMPT + text
    d = hub.text_generation(
        PROMPT, max_new_tokens=6, details=True, decoder_input_details=True, top_n_tokens=3
    )
    assert (
        d.generated_text == text and d.details.generated_tokens == 6 and len(d.details.prefill) == 2
    )
    assert "".join(hub.text_generation(PROMPT, max_new_tokens=6, stream=True)) == text
    frames = list(hub.text_generation(PROMPT, max_new_tokens=6, stream=True, details=True))
    assert frames[-1].generated_text == text and frames[-1].details.finish_reason == "length"
    assert hub.text_generation(
        PROMPT, max_new_tokens=6, do_sample=True, seed=4
    ) == hub.text_generation(PROMPT, max_new_tokens=6, do_sample=True, seed=4)


def test_hugging_face_chat(hub):
    args = dict(
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=5,
        temperature=0,
        logprobs=True,
        top_logprobs=1,
    )
    whole = hub.chat_completion(**args)
    parts = list(hub.chat_completion(**args, stream=True))
    assert (
        "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
        == whole.choices[0].message.content
    )
    assert len(whole.choices[0].logprobs.content) == 5


def test_hugging_face_async(tiny):
    async def main():
        async with AsyncInferenceClient(tiny.url) as c:
            return await asyncio.gather(
                *(c.text_generation(PROMPT, max_new_tokens=5) for _ in range(8))
            )

    assert len(set(asyncio.run(main()))) == 1


def test_fields_and_headers(tiny):
    r = generate(tiny, max_new_tokens=3)
    assert list(r.json()) == ["generated_text"]
    for h in (
        "x-compute-type",
        "x-compute-time",
        "x-compute-characters",
        "x-total-time",
        "x-validation-time",
        "x-queue-time",
        "x-inference-time",
        "x-time-per-token",
    ):
        assert h in r.headers, h
    assert r.headers["x-compute-characters"] == "11"
    d = generate(tiny, max_new_tokens=3, details=True, top_n_tokens=2).json()["details"]
    assert (
        set(d) == {"finish_reason", "generated_tokens", "seed", "prefill", "tokens", "top_tokens"}
        and d["prefill"] == []
        and d["seed"] is None
    )
    assert [set(t) for t in d["tokens"]] == [{"id", "text", "logprob", "special"}] * 3 and [
        len(t) for t in d["top_tokens"]
    ] == [2] * 3
    for t, top in zip(d["tokens"], d["top_tokens"]):
        assert top[0]["id"] == t["id"] and top[0]["logprob"] == pytest.approx(t["logprob"])


def test_defaults(tiny):
    assert generate(tiny, details=True).json()["details"]["generated_tokens"] <= 20
    bare = [tiny.post("/generate", {"inputs": PROMPT}).json()["generated_text"] for _ in range(4)]
    assert len(set(bare)) > 1, "without parameters it samples"
    assert generate(tiny).json() == generate(tiny).json(), "with empty ones it does not"


def test_seed_is_reported_when_sampling(tiny):
    big = 2**64 - 1
    d = generate(tiny, do_sample=True, seed=big, details=True, max_new_tokens=8)
    assert (
        d.json()["details"]["seed"] == big
        and d.json()
        == generate(tiny, do_sample=True, seed=big, details=True, max_new_tokens=8).json()
    )
    assert isinstance(generate(tiny, temperature=0.7, details=True).json()["details"]["seed"], int)


def test_stop_sequences_stay_in_the_text(tiny):
    text = generate(tiny, max_new_tokens=20).json()["generated_text"]
    stop = text[3:5]
    d = generate(tiny, max_new_tokens=20, stop=[stop], details=True).json()
    end = text.index(stop) + len(stop)
    assert (
        d["generated_text"].startswith(text[:end])
        and d["details"]["finish_reason"] == "stop_sequence"
    )
    frames = [
        json.loads(f)
        for f in tiny.post(
            "/generate_stream",
            {"inputs": PROMPT, "parameters": {"max_new_tokens": 20, "stop": [stop]}},
        ).frames()
    ]
    assert (
        frames[-1]["generated_text"] == d["generated_text"]
        and frames[-1]["details"]["finish_reason"] == "stop_sequence"
    )
    assert len(frames) == d["details"]["generated_tokens"]
    # length is checked first: the last allowed token reports it even if it completes a stop
    # sequence
    n = d["details"]["generated_tokens"]
    assert (
        generate(tiny, max_new_tokens=n, stop=[stop], details=True).json()["details"][
            "finish_reason"
        ]
        == "length"
    )


def test_truncate_keeps_the_right_end(tiny):
    d = tiny.post(
        "/generate",
        {
            "inputs": "z" * 300 + PROMPT,
            "parameters": {"truncate": 2, "decoder_input_details": True, "max_new_tokens": 2},
        },
    ).json()
    assert [p["id"] for p in d["details"]["prefill"]] == [264, 269]


def test_stream_frames(tiny):
    r = tiny.post("/generate_stream", {"inputs": PROMPT, "parameters": {"max_new_tokens": 4}})
    assert (
        r.status == 200
        and r.headers["content-type"] == "text/event-stream"
        and r.headers["x-accel-buffering"] == "no"
    )
    frames = [json.loads(f) for f in r.frames()]
    assert len(frames) == 4 and "[DONE]" not in r.text
    for f in frames[:-1]:
        assert (
            f["generated_text"] is None
            and f["details"] is None
            and set(f["token"]) == {"id", "text", "logprob", "special"}
        )
    assert set(frames[-1]["details"]) >= {"finish_reason", "generated_tokens", "seed"}


def test_compatible_route(tiny):
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 3}}
    one = tiny.post("/generate", body).json()
    assert tiny.post("/", body).json() == [one] and tiny.post("/invocations", body).json() == [one]
    streamed = tiny.post("/", {**body, "stream": True})
    assert (
        streamed.headers["content-type"] == "text/event-stream"
        and json.loads(streamed.frames()[-1])["generated_text"] == one["generated_text"]
    )


@pytest.mark.parametrize(
    "parameters,sentence",
    [
        (dict(best_of=0), "`best_of` must be > 0 and <= 2. Given: 0"),
        (dict(best_of=3), "`best_of` must be > 0 and <= 2. Given: 3"),
        (dict(best_of=2), "you must use sampling when `best_of` is > 1"),
        (dict(best_of=2, do_sample=True, seed=1), "`seed` must not be set when `best_of` > 1"),
        (dict(temperature=0), "`temperature` must be strictly positive"),
        (dict(temperature=-1), "`temperature` must be strictly positive"),
        (dict(repetition_penalty=0), "`repetition_penalty` must be strictly positive"),
        (dict(top_k=0), "`top_k` must be strictly positive"),
        (dict(top_p=1.0), "`top_p` must be > 0.0 and < 1.0"),
        (dict(top_p=0.0), "`top_p` must be > 0.0 and < 1.0"),
        (dict(typical_p=1.0), "`typical_p` must be > 0.0 and < 1.0"),
        (dict(max_new_tokens=0), "`max_new_tokens` must be strictly positive"),
        (dict(stop=["a"] * 5), "`stop` supports up to 4 stop sequences. Given: 5"),
        (dict(truncate=0), "`truncate` must be strictly positive and less than 255. Given: 0"),
        (dict(truncate=256), "`truncate` must be strictly positive and less than 255. Given: 256"),
        (dict(top_n_tokens=6), "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        (
            dict(max_new_tokens=255),
            "`inputs` tokens + `max_new_tokens` must be <= 256. Given: 2 `inputs` tokens and 255 `max_new_tokens`",
        ),
    ],
)
def test_validation_sentences(tiny, parameters, sentence):
    r = generate(tiny, **parameters)
    assert r.status == 422 and r.json() == {
        "error": "Input validation error: " + sentence,
        "error_type": "validation",
    }
    r = tiny.post("/generate_stream", {"inputs": PROMPT, "parameters": parameters})
    frame = json.loads(r.frames()[0])
    assert r.status == 200 and frame["error_type"] == "validation" and len(r.frames()) == 1


@pytest.mark.parametrize(
    "parameters,sentence",
    [
        (dict(best_of=2, do_sample=True), "`best_of` != 1 is not supported when streaming tokens"),
        (
            dict(decoder_input_details=True),
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
def test_what_streams_refuse(tiny, parameters, sentence):
    r = tiny.post("/generate_stream", {"inputs": PROMPT, "parameters": parameters})
    assert json.loads(r.frames()[0])["error"] == "Input validation error: " + sentence


def test_refusals_of_the_engine(tiny):
    parameters = dict(do_sample=True, repetition_penalty=1e7)
    a = generate(tiny, **parameters)
    assert (
        a.status == 422
        and a.json()["error_type"] == "validation"
        and a.json()["error"].startswith("Input validation error: repetition_penalty")
    )
    s = tiny.post("/generate_stream", {"inputs": PROMPT, "parameters": parameters})
    assert s.status == 200 and [json.loads(f) for f in s.frames()] == [a.json()]


@pytest.mark.parametrize("seed", [0, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1])
def test_seeds_have_64_bits(tiny, seed):
    assert (
        generate(tiny, do_sample=True, seed=seed, max_new_tokens=1, details=True).json()["details"][
            "seed"
        ]
        == seed
    )
    assert generate(tiny, do_sample=True, seed={"$u64": "5"}, max_new_tokens=1).status == 422
    assert (
        generate(tiny, do_sample=True, seed=2**64).status == 422
        and generate(tiny, do_sample=True, seed=2.0**63).status == 422
    )


def test_the_seed_is_its_own_field(tiny):
    """Both integers round to 2**64: the one of the schema is data."""
    schema = {"type": "object", "title": "x", "default": {"seed": 2**64 - 2}}
    a = generate(
        tiny,
        grammar={"type": "json", "value": schema},
        do_sample=True,
        seed=2**64 - 1,
        max_new_tokens=1,
        details=True,
    )
    assert a.status == 200 and a.json()["details"]["seed"] == 2**64 - 1


def test_top_k_beyond_31_bits_is_off(tiny):
    assert generate(tiny, top_k=4294967295, max_new_tokens=2, seed=1).status == 200


def test_inputs(tiny):
    def post(inputs, **p):
        return tiny.post("/generate", {"inputs": inputs, "parameters": p})

    assert post("").json()["error"] == "Input validation error: `inputs` cannot be empty"
    assert post("z" * 255, max_new_tokens=1).status == 200
    assert (
        post("z" * 256, max_new_tokens=1)
        .json()["error"]
        .startswith(
            "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 256. Given: 256"
        )
    )


def test_refusals_of_the_framework_are_plain_text(tiny):
    for path in ("/generate", "/generate_stream", "/", "/tokenize"):
        for body in (b"{}", b'{"inputs": 5}', b'{"inputs": ["a"]}'):
            r = tiny.post(path, body)
            assert r.status == 422 and r.headers["content-type"].startswith("text/plain"), (
                path,
                body,
                r.text,
            )
    for body in (
        b'{"inputs": "a", "parameters": {"top_k": 1.5}}',
        b'{"inputs": "a", "parameters": {"seed": -1}}',
        b'{"inputs": "a", "parameters": {"stop": "x"}}',
    ):
        r = tiny.post("/generate", body)
        assert r.status == 422 and r.headers["content-type"].startswith("text/plain"), (
            body,
            r.text,
        )
    r = tiny.post("/generate", b"{not json")
    assert r.status == 400 and r.headers["content-type"].startswith("text/plain")
    assert (
        tiny.post("/generate", b'{"inputs": "a"}', headers={"Content-Type": "text/plain"}).status
        == 415
    )
    r = tiny.post("/generate", b'{"inputs": "' + b"a" * (3 << 20) + b'"}')
    assert r.status == 413 and r.text == "length limit exceeded"


def test_info_and_health(tiny):
    info = tiny.get("/info").json()
    for k in (
        "model_id",
        "model_sha",
        "model_dtype",
        "model_device_type",
        "model_pipeline_tag",
        "max_concurrent_requests",
        "max_best_of",
        "max_stop_sequences",
        "max_input_length",
        "max_total_tokens",
        "waiting_served_ratio",
        "max_batch_total_tokens",
        "max_waiting_tokens",
        "validation_workers",
        "version",
        "sha",
        "docker_label",
    ):
        assert k in info, k
    assert (
        info["model_id"] == "tiny"
        and info["max_total_tokens"] == 256
        and info["max_input_length"] == 255
        and info["max_concurrent_requests"] == 128
    )
    for path in ("/ping", "/"):
        r = tiny.get(path)
        assert r.status == 200 and r.body == b"", path


def test_tokenize(tiny):
    r = tiny.post("/tokenize", {"inputs": "hello world é"}).json()
    assert r[0] == {"id": 264, "text": "hello", "start": 0, "stop": 5} and r[1] == {
        "id": 269,
        "text": " world",
        "start": 5,
        "stop": 11,
    }
    assert r[-1]["stop"] == len("hello world é".encode())


def test_adapter_id_is_a_model(tiny):
    def ask(adapter, path="/generate"):
        return tiny.post(
            path, {"inputs": "a b", "parameters": {"adapter_id": adapter, "max_new_tokens": 1}}
        )

    for name in ("tiny", None):
        assert ask(name).status == 200
    r = ask("poems")
    assert (
        r.status == 404
        and "'poems' does not exist" in r.json()["error"]
        and r.json()["error_type"] == "validation"
    )
    assert ask(3).status == 422 and "'poems'" in ask("poems", "/generate_stream").text
