"""The ratchets: no row gets worse, and better values are kept."""

import json

import pytest

from scripts import structure
from scripts.counts.rows import ROWS, Found, Row


def found(**values: float) -> dict[str, Found]:
    return {key: Found(value, []) for key, value in values.items()}


@pytest.mark.parametrize(
    ("row", "value", "ratchet", "is_worse"),
    [
        (Row("a", "", 0), 5, 5, False),
        (Row("a", "", 0), 6, 5, True),
        (Row("a", "", 0), 4, 5, False),
        (Row("a", "", 0, slack=0.1), 15.3, 15.2, False),
        (Row("a", "", 0, slack=0.1), 15.4, 15.2, True),
        (Row("a", "", None, rises=True), 1.0, 1.1, True),
        (Row("a", "", None, rises=True), 1.2, 1.1, False),
    ],
)
def test_a_row_is_worse_beyond_its_slack(row: Row, value: float, ratchet: float, is_worse: bool) -> None:
    assert row.is_worse(value, ratchet) is is_worse


def test_a_worse_row_is_named_with_what_was_expected_and_found() -> None:
    (line,) = structure.judge(found(long_files=13, circles=0), {"long_files": 12, "circles": 0})
    assert line.startswith("long_files: expected at most 12, found 13")


def test_a_row_without_a_ratchet_is_an_error() -> None:
    assert structure.judge(found(circles=0), {}) == [
        "circles: expected a ratchet in structure.json, found none; run --write"
    ]


def test_writing_keeps_the_better_value_and_rows_that_were_not_counted() -> None:
    ratchets = {"long_files": 12, "circles": 0, "comment_percent": 1.1, "move_files": 100, "former_row": 1}
    values = found(long_files=13, chain=40, comment_percent=1.3)
    assert structure.tightened(values, ratchets) == {
        "long_files": 12,
        "circles": 0,
        "comment_percent": 1.3,
        "move_files": 100,
        "chain": 40,
    }


def test_table_and_json_have_the_same_figures() -> None:
    values = found(chain=40, comment_percent=1.1)
    lines = structure.table(values, {"chain": 41}).splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["chain", "40", "24", "41"],
        ["comment_percent", "1.1", "-", "-"],
    ]
    assert json.loads(structure.as_json(values, {"chain": 41})) == {
        "chain": {"now": 40, "target": 24, "ratchet": 41},
        "comment_percent": {"now": 1.1, "target": None, "ratchet": None},
    }


def test_every_row_has_a_ratchet_and_a_key_of_its_own() -> None:
    ratchets = json.loads(structure.RATCHETS.read_text())
    keys = [row.key for row in structure.ALL]
    assert sorted(ratchets) == sorted(set(keys)) == sorted(keys)
    assert len(ROWS) < len(keys)
