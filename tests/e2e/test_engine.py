"""The engine from Python and from the example: parallel streams, text held back for stop strings,
the generator and the asynchronous form, choices, logprobs, cancellation."""

import asyncio
import math
import os
import subprocess
import threading

import pytest

import llmc

TINY = "configs/tiny.yaml"
CASES = [
    ("The capital of France is", "Paris"),
    ("Two plus two is", "four"),
    ("The opposite of hot is", "cold"),
]


@pytest.fixture(scope="module")
def model(smollm2):
    with llmc.open(smollm2) as m:
        yield m


@pytest.fixture(scope="module")
def alone(model):
    """Return what each prompt yields in a session of its own."""
    with model.session(context=256) as s:
        return {p: s.run(p, max_tokens=24) for p, _ in CASES}


@pytest.fixture(scope="module")
def engine(model):
    with model.engine(context=256, seqs=4, chunk=64) as e:
        yield e
        s = e.stats()
        assert s["running"] == s["waiting"] == s["kv_pages_used"] == s["failed"] == 0


@pytest.mark.parametrize("how", ["c", "c++"])
def test_the_example_streams(tmp_path, how, smollm2):
    out = tmp_path / "streams"
    cmd = ["g++", "-x", "c++", "-std=c++17"] if how == "c++" else ["gcc", "-std=c11"]
    lib = os.path.dirname(os.path.abspath(os.environ.get("LLMC_LIBRARY", "build/libllmc.so")))
    subprocess.run(
        [
            *cmd,
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Iinclude",
            "examples/streams.c",
            "-x",
            "none",
            f"-L{lib}",
            "-lllmc",
            f"-Wl,-rpath,{lib}",
            "-o",
            out,
        ],
        check=True,
    )
    if how == "c++":
        return
    (tmp_path / "libllmc.so.0").symlink_to(os.path.join(lib, "libllmc.so"))
    p = subprocess.run(
        [out, smollm2, *[c[0] for c in CASES]],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert p.returncode == 0, p.stderr
    assert p.stdout.count("tokens, first after") == 3 and "Paris" in p.stdout
    p = subprocess.run(
        [out, "nowhere.gguf", "a", "b", "c"],
        capture_output=True,
        text=True,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert p.returncode == 1 and "no such file" in p.stderr


def test_launch_now_fetch_later(engine, alone):
    requests = {p: engine.submit(p, max_tokens=24) for p, _ in CASES}
    for p, r in reversed(requests.items()):
        got = r.wait()
        assert (
            got["text"] == alone[p]["text"]
            and got["tokens"] == alone[p]["tokens"]
            and got["finish"] == alone[p]["finish"]
        )


def test_the_generator_and_its_early_end(engine, alone):
    p = CASES[0][0]
    assert "".join(engine.generate(p, max_tokens=24)) == alone[p]["text"]
    g = engine.generate(p, max_tokens=200, ignore_eos=True)
    assert next(g)
    g.close()
    # five tokens are less than a page
    assert engine.submit(p, max_tokens=24).wait()["n_cached"] == 0


def test_prompts_of_different_salts_share_no_pages(engine):
    prompt = engine.model.tokenizer.encode("one page of tokens and a few more, " * 12)
    found = [
        engine.submit(prompt, max_tokens=1, ignore_eos=True, prefix_salt=salt).wait()["n_cached"]
        for salt in (7, 2**64 - 1, 7, 0, 2**64 - 1)
    ]
    assert found[:2] == [0, 0] and found[2] >= 64 and found[3] == 0 and found[4] == found[2]


def test_stop_strings_are_held_back_or_kept(engine, alone):
    p, word = CASES[0]
    want = alone[p]["text"]
    stop = [word[1:4] + "zzz", word[2:4], "never"]
    chunks = list(engine.generate(p, max_tokens=24, stop=stop))
    assert "".join(chunks) == want[: want.index(word[2:4])]
    events = list(engine.submit(p, max_tokens=24, stop=stop).events())
    assert events[-1].finish == "stop" and events[-1].stop == 1 and events[-1].last
    kept = "".join(
        e.text for e in engine.submit(p, max_tokens=24, stop=stop, keep_stop=True).events()
    )
    assert want.startswith(kept) and word[2:4] in kept


def test_choices_and_logprobs(engine, alone):
    p = CASES[0][0]
    by = {}
    for e in engine.submit(
        p, n=3, temperature=1.0, seed=5, max_tokens=8, n_top=3, logprobs=True
    ).events():
        by.setdefault(e.index, []).append(e)
    assert sorted(by) == [0, 1, 2]
    for i, events in by.items():
        again = engine.submit(p, temperature=1.0, seed=5 + i, max_tokens=8).wait()
        assert [e.token for e in events if e.kind == "token"] == again["tokens"]
        for e in events[:-1]:
            assert len(e.top) == 3 and e.top[0][1] >= e.logprob and all(lp <= 0 for _, lp in e.top)
        assert math.isclose(
            sum(e.logprob for e in events[:-1]), events[-1].sum_logprob, rel_tol=1e-5
        )
    prompt = [
        e
        for e in engine.submit(p, prompt_logprobs=True, max_tokens=1).events()
        if e.kind == "prompt"
    ]
    assert (
        "".join(e.text for e in prompt) == p
        and math.isnan(prompt[0].logprob)
        and all(e.logprob < 0 for e in prompt[1:])
    )


def test_settings_reach_the_sampler(engine, alone):
    p, word = CASES[0]
    first = alone[p]["tokens"][0]
    assert engine.submit(p, max_tokens=3, bad_words=[[first]]).wait()["tokens"][0] != first
    assert engine.submit(p, max_tokens=3, logit_bias={first: -100.0}).wait()["tokens"][0] != first
    r = engine.submit(p, max_tokens=24, stop_tokens=[alone[p]["tokens"][2]]).wait()
    assert r["finish"] == "token" and r["n_new"] <= 2
    with pytest.raises(llmc.Error) as e:
        engine.submit(p, typical_p=2.0)
    assert str(e.value) == "typical_p is 2, valid values are 0 to 1"


def test_many_streams_in_an_event_loop(model, alone):
    with model.engine(context=256, seqs=3) as engine:

        async def one(p):
            return "".join([piece async for piece in engine.stream(p, max_tokens=24)])

        async def stopped(p):
            async for _ in engine.stream(p, max_tokens=200, ignore_eos=True):
                break

        async def all():
            some = [c[0] for c in CASES] * 3
            got = await asyncio.gather(*map(one, some), stopped(some[0]))
            assert got[:-1] == [alone[p]["text"] for p in some]
            with pytest.raises(llmc.Error):
                await one([])

        asyncio.run(all())
        asyncio.run(all())  # another event loop, after the first
        assert engine.drain()


def test_a_full_queue_and_a_deadline():
    with (
        llmc.open(TINY, random_weights=True, arch="generic") as m,
        m.engine(context=256, max_concurrent_requests=1) as e,
    ):
        late = e.submit([1, 2, 3], max_tokens=200, ignore_eos=True, deadline=1e-9)
        assert list(late.events())[-1].finish == "deadline"
        first = e.submit([1, 2, 3], max_tokens=3, ignore_eos=True)
        assert len(first.wait()["tokens"]) == 3
        assert e.drain()
        with pytest.raises(llmc.Error) as err:
            e.submit([1])
        assert err.value.name == "LLMC_E_CANCELLED"


def test_prompts_are_kept_for_the_next_engine(tmp_path):
    prompt = [3 + k * 7 % 290 for k in range(100)]
    with llmc.open(TINY, random_weights=True, arch="generic") as m:
        output = []
        for folder in (tmp_path / "pages", str(tmp_path / "pages")):
            with m.engine(context=128, seqs=1, prefix_dir=folder) as e:
                output.append(e.submit(prompt, max_tokens=4, ignore_eos=True).wait())
        assert output[0]["tokens"] == output[1]["tokens"] and [r["n_cached"] for r in output] == [
            0,
            96,
        ]


def test_threads_share_an_engine():
    with (
        llmc.open(TINY, random_weights=True, arch="generic") as m,
        m.engine(context=128, seqs=4, threads=1) as e,
    ):
        with m.session(context=128, threads=1) as s:
            want = s.run([5, 6, 7], max_tokens=30, ignore_eos=True)["tokens"]
        got = []
        threads = [
            threading.Thread(
                target=lambda: got.append(
                    e.submit([5, 6, 7], max_tokens=30, ignore_eos=True).wait()["tokens"]
                )
            )
            for _ in range(8)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert got == [want] * 8


def test_the_session_s_own_generation_takes_the_same_settings(model, alone):
    p = CASES[0][0]
    with model.session(context=256) as s:
        ids = alone[p]["tokens"]
        r = s.run(p, max_tokens=24, stop_tokens=[ids[2]])
        assert r["finish"] == "token" and r["tokens"] == ids[: ids.index(ids[2])]
        assert s.run(p, max_tokens=24, stop_tokens=[ids[2]], min_tokens=10)["n_new"] >= 10
        assert s.run(p, max_tokens=3, bad_words=[[ids[0]]])["tokens"][0] != ids[0]


def test_a_sequence_is_saved_and_loaded():
    with (
        llmc.open(TINY, random_weights=True, arch="generic") as m,
        m.session(context=64, seqs=2, threads=1) as s,
    ):
        q = s.seq()
        s.forward([(q, list(range(3, 43)), 0)])
        data = s.save(q)
        with m.session(context=64, threads=1) as t:
            r = t.load(data)
            assert t.length(r) == 40
            assert t.forward([(r, [9], 1)]).tolist() == s.forward([(q, [9], 1)]).tolist()
        with pytest.raises(llmc.Error):
            s.load(data[:-1])
