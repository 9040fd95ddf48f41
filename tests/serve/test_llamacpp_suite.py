"""llama.cpp's own server tests, unmodified, against llmc serve with SmolLM2. Those that do not pass
are listed in llamacpp_expected.toml, each with a reason; `make check-all` runs them.

LLMC_LLAMACPP_TESTS names their folder (tools/server/tests); without it tools/llamacpp_tests.sh
fetches the version that the list belongs to.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import xml.etree.ElementTree

import pytest
from waiting import HANG, reserved_port

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def results(report):
    """{id: passed}; tests that skip themselves are left out."""
    out = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        name = case.get("classname").replace(".", "/") + ".py::" + case.get("name")
        if case.find("skipped") is None:
            out[name] = case.find("failure") is None and case.find("error") is None
    return out


def run(sources, folder, model, skipped):
    """Run the tests in a copy of their folder, which they write to. They find chat templates by a
    path from there."""
    top = folder
    folder = top / "tools" / "server" / "tests"
    shutil.copytree(sources, folder)
    templates = os.path.join(sources, *[".."] * 3, "models", "templates")
    if os.path.isdir(templates):
        shutil.copytree(templates, top / "models" / "templates")
    (folder / "wget.py").write_text("")  # they import it for models that are not downloaded here
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "llamacpp_plugin"]
    command += ["-o", "addopts=", f"--junitxml={report}"]
    command += [f"--ignore={file}" for file in skipped]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([HERE, str(folder)]),
        "LLAMA_SERVER_BIN_PATH": os.path.join(HERE, "llama_server.py"),
        "LLMC_SUITE_MODEL": model,
    }
    log = (folder / "log").open("wb")
    with reserved_port() as port:
        env["PORT"] = str(port)
        subprocess.run(
            [*command, "unit"], cwd=folder, env=env, stdout=log, stderr=log, timeout=2 * HANG
        )
    return results(report)


def test_llamacpps_server_tests(tmp_path, capsys):
    model = os.environ.get("LLMC_SMOLLM2")
    if "LLMC_CHECK_ALL" not in os.environ and "LLMC_LLAMACPP_TESTS" not in os.environ:
        pytest.skip("make check-all runs these")
    if not model or not os.path.exists(model):
        pytest.skip("LLMC_SMOLLM2 names no file (make smollm2 fetches it)")
    sources = subprocess.run(
        [os.path.join(ROOT, "tools/llamacpp_tests.sh")],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()
    with open(os.path.join(HERE, "llamacpp_expected.toml"), "rb") as f:
        expected = tomllib.load(f)
    listed = expected["tests"]
    assert set(listed.values()) | set(expected["files"].values()) == set(expected["reasons"])
    found = run(sources, tmp_path / "suite", model, expected["files"])
    failed = sorted(name for name, passed in found.items() if not passed)
    with capsys.disabled():
        print(f"\nllama.cpp's server tests: {len(found) - len(failed)} of {len(found)} pass")
        for name in sorted(set(listed) & {n for n, passed in found.items() if passed}):
            print(f"passes, although listed: {name}")
    assert len(found) > 200 and not set(failed) - set(listed), set(failed) - set(listed)
