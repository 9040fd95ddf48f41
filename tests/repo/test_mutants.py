"""The table of `make mutants` (tests/mutants/mutants.toml) matches the tree, and the runner rejects
a table that does not."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))
import run as mutants  # noqa: E402

ROW = dict(
    name="n",
    file="Makefile",
    old="PREFIX    ?= /usr/local\n",
    new="",
    tests=["tests/repo/test_mutants.py::test_the_table_fits_the_tree"],
)


def toml(**changes):
    row = ROW | changes
    return "[[mutant]]\n" + "".join(
        f"{k} = {v!r}\n" if isinstance(v, (int, list)) else f"{k} = '''{v}'''\n"
        for k, v in row.items()
        if v is not None
    )


def test_the_table_fits_the_tree():
    rows = mutants.table()
    mutants.check(rows)
    assert len(rows) >= 40
    assert {9, 10, 11, 12, 13, 14} <= {m.get("hole") for m in rows}


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(old="no such text"), "0 times"),
        (dict(old="the"), "times"),
        (dict(file="no/such/file.c"), "is not there"),
        (dict(tests=["tests/no_such_test.py::test_x"]), "is not there"),
        (dict(tests=["tests/repo/test_mutants.py::test_x"]), "has no test test_x"),
        (dict(tests=["unit:test_none"]), "is not there"),
        (dict(tests=["unit:test_kv::no_case"]), "has no test no_case"),
        (dict(new=ROW["old"]), "changes nothing"),
        (dict(tests=[]), "names no test"),
        (dict(name=None), "lacks"),
        (dict(because="x"), "unknown fields"),
        (dict(count=2), "1 times, expected 2"),
    ],
)
def test_a_stale_row_is_refused(changes, message):
    assert mutants.table(toml())
    mutants.check(mutants.table(toml()))
    with pytest.raises(mutants.Stale, match=message):
        mutants.check(mutants.table(toml(**changes)))


def test_two_mutants_of_one_name_are_refused():
    with pytest.raises(mutants.Stale, match="two mutants"):
        mutants.table(toml() + toml())


def test_a_mistake_replaces_its_text():
    assert mutants.planted(ROW) == (ROOT / "Makefile").read_text().replace(ROW["old"], "")


@pytest.mark.parametrize(
    "test, parts",
    [
        ("unit:test_kv", ("test_kv", "", False)),
        ("unit:check:test_kv::case", ("test_kv", "case", True)),
        ("tests/repo/test_repo.py::test_x[a-b]", None),
    ],
)
def test_names_of_tests(test, parts):
    assert mutants.unit(test) == parts
