"""Tests do not depend on the speed or load of the machine, on other processes, or on chance: patterns that made tests fail on a correct tree are banned. Waits use tests/waiting.py
and tests/unit/waiting.h, whose deadlines LLMC_TEST_SLOW scales."""

import re

import pytest
from test_repo import files

# name: (files, pattern, replacement, example lines that it finds)
RULES = {
    "a sleep instead of a condition": (
        ".py",
        r"\btime\.sleep\(|\basyncio\.sleep\([^0)]",
        "wait_for(condition)",
        ["time.sleep(0.1)", "await asyncio.sleep(1)"],
    ),
    "elapsed time": (
        ".py",
        r"\btime\.(monotonic|perf_counter|time)(_ns)?\(",
        "a condition, cpu_limit or time.process_time()",
        ["assert time.monotonic() - start < 5"],
    ),
    "a deadline that does not scale": (
        ".py",
        r"\b(timeout|seconds) ?= ?\d(?! \* (HANG|SLOW))|\.(wait|join|communicate|poll|settimeout)\(\d+\.?\d*\)|\bcreate_connection\(.*, [1-9]\d*\)",
        "HANG, or a number of seconds * SLOW",
        ["subprocess.run(x, timeout=60)", "p.wait(300)", "c.settimeout(5)"],
    ),
    "a port that is free for a moment": (
        ".py",
        r"\.bind\(\(.*, ?0\)\)",
        "reserved_port(), or a server that reports its port",
        ['s.bind(("127.0.0.1", 0))'],
    ),
    "a fixed port": (
        ".py",
        r"""["']--port["'], ["']?[1-9]|\bport ?= ?[1-9]|(127\.0\.0\.1|localhost)["'], [1-9]|http://(127\.0\.0\.1|localhost):[1-9]""",
        "port 0, or reserved_port()",
        [
            '["serve", "--port", "8080"]',
            'create_connection(("127.0.0.1", 80))',
            'get("http://localhost:8000")',
        ],
    ),
    "a module name that occurs twice": (
        ".py",
        r"^\s*(from conftest import|import conftest)\b",
        "a module of another name",
        ["from conftest import BUILD"],
    ),
    "random numbers without a seed": (
        ".py",
        r"(?<![\w.])random\.(random|randint|randrange|choice|choices|shuffle|sample|uniform|gauss|randbytes)\(|\brandom\.Random\(\)|\bdefault_rng\(\)|"
        r"\bnp\.random\.(rand|randn|randint|normal|uniform|choice)\(",
        "random.Random(seed), np.random.default_rng(seed)",
        ["x = random.random()", "r = np.random.default_rng()", "np.random.rand(3)"],
    ),
    "a sleep of a C program": (
        ".c .h",
        r"\b(u|nano|clock_nano)?sleep\(",
        "WAIT_FOR(condition)",
        ["usleep(1000);", "nanosleep(&t, NULL);"],
    ),
    "the clock of a C program": (
        ".c .h",
        r"\b(clock_now|clock_gettime|gettimeofday|clock_after|time)\((?!z)",
        "WAIT_FOR(condition)",
        ["double t = clock_now();", "end = time(NULL) + 5;"],
    ),
    "a deadline of a C program that does not scale": (
        ".c .h",
        r"\balarm\(\d|\bpoll\([^;()]*, [1-9]\d*\)",
        "wait_scaled(seconds)",
        ["alarm(20);", "poll(&p, 1, 60000)"],
    ),
    "a wait of a script": (
        ".sh",
        r"(^|[;&|] *)(sleep|timeout) +\d",
        "a condition",
        ["sleep 5", "x; timeout 20 y"],
    ),
    "a file that other processes may use": (
        ".py .c .h .sh",
        r"""["'=]/tmp/\w""",
        "tmp_path, tempdir_open, mktemp",
        ['open("/tmp/x")'],
    ),
}

HELPERS = {"tests/waiting.py", "tests/unit/waiting.h", "tests/repo/test_steady.py"}
# benchmarks: they measure time
LEFT_OUT = ("tests/bench/", "tests/gpu/")

# (file, part of the line): reason for the exception
ALLOWED = {
    ("tests/serve/soak.py", "time."): "runs for the requested time",
    ("tests/serve/soak.py", "stop.wait("): "interval between requests",
    (
        "tests/serve/soak.py",
        "c.settimeout(0.1)",
    ): "a client that leaves before its answer; both outcomes are correct",
    ("tests/serve/test_faults.py", "c.settimeout(0.02)"): "interval between bytes of a client",
    ("tests/serve/test_bench_serve.py", "over.wait(0.05)"): "interval between bytes of a server",
    (
        "tests/serve/test_hostile.py",
        "time.time()",
    ): "a date of the server is compared with dates before and after",
    ("tests/serve/test_server.py", '"--port", 70000'): "no port has this number",
    ("tests/serve/test_traces.py", "http://127.0.0.1:4318"): "an example in a message",
    ("tests/serve/test_guide.py", "http://127.0.0.1:8000"): "replaced by the server's own",
    (
        "tests/serve/test_deploy.py",
        "start = time.monotonic()",
    ): "a request counts only while the drain delay lasts",
    (
        "tests/serve/test_deploy.py",
        "time.monotonic() - start > delay",
    ): "a request counts only while the drain delay lasts",
    ("tests/repo/test_build_cache.py", "time.sleep(0.3 + 0.3"): "writers are killed at any moment",
    ("tests/repo/test_build_cache.py", "/tmp/other cache"): "a path that is never opened",
    (
        "tests/serve/test_models.py",
        "time.sleep(pick.uniform(0, 0.05))",
    ): "the file is truncated at any moment",
    ("tests/unit/test_cache.c", "usleep("): "writers are killed at any moment",
    (
        "tests/serve/test_kills.py",
        "time.sleep(pick.uniform(",
    ): "the process is killed at any moment",
    ("tests/serve/test_kills.py", "time.monotonic()"): "bound of the random moment of a kill",
    ("tests/unit/test_grammar.c", "deadline_set(clock_now()"): "a limit that has passed",
    ("tests/unit/test_jinja.c", "deadline_set(clock_now()"): "a limit that has passed, or is far",
    ("tests/unit/test_text.c", "deadline_set(clock_now()"): "a limit that has passed, or is far",
    ("tests/unit/test_lost_ranks.c", "nanosleep("): "ranks are stopped for longer than the timeout",
    ("tests/unit/test_threads.c", "usleep(20000)"): "a slow chunk of work",
    ("tests/serve/fake_engine.h", "nanosleep("): "duration of a step",
    (
        "tests/serve/fake_engine.h",
        "clock_gettime(",
    ): "an engine that is called again after 10 ms without an event",
    ("tests/mutants/run.py", "time.monotonic()"): "the duration of a mutant is printed",
}


def lines():
    """Yield (file, number, text) of each line of the tests."""
    for path in files("tests"):
        if (
            path in HELPERS
            or path.startswith(LEFT_OUT)
            or not path.endswith((".py", ".c", ".h", ".sh"))
        ):
            continue
        with open(path, encoding="utf-8", errors="replace") as f:
            for n, text in enumerate(f, 1):
                yield path, n, text.rstrip("\n")


def found(rule):
    kinds, pattern, _, _ = RULES[rule]
    return [
        (path, n, text)
        for path, n, text in lines()
        if path.endswith(tuple(kinds.split())) and re.search(pattern, text)
    ]


def allowed(path, text):
    return [key for key in ALLOWED if path == key[0] and key[1] in text]


@pytest.mark.parametrize("rule", RULES)
def test_no_test_depends_on(rule):
    bad = [
        f"{path}:{n}: {text.strip()}" for path, n, text in found(rule) if not allowed(path, text)
    ]
    assert not bad, f"{rule}; write {RULES[rule][2]}:\n" + "\n".join(bad)


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_finds(rule):
    _, pattern, _, examples = RULES[rule]
    assert all(re.search(pattern, e) for e in examples)


def test_every_exception_is_needed():
    used = {key for rule in RULES for path, _, text in found(rule) for key in allowed(path, text)}
    assert used == set(ALLOWED)
