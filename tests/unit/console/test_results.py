"""Results: what a person and what a script gets to read."""

import json
from datetime import UTC, datetime

import pytest

from lightrail.console.results import pairs, show_json, table

Output = pytest.CaptureFixture[str]


def test_numbers_of_a_table_are_to_the_right_and_what_is_not_there_is_a_dash(capsys: Output) -> None:
    table([{"queue": "a", "rows": 1200}, {"queue": None, "rows": 3}], ("queue", "rows"))
    assert capsys.readouterr().out == "QUEUE   ROWS\na      1,200\n-          3\n"


def test_a_table_without_rows_is_its_headings(capsys: Output) -> None:
    table([], ("queue", "dead_letters"))
    assert capsys.readouterr().out == "QUEUE  DEAD LETTERS\n"


def test_pairs_show_each_kind_of_value_as_a_person_reads_it(capsys: Output) -> None:
    pairs({"a": True, "name": 0.5, "list": ["ü", 1], "empty": "", "many": 1_000_000})
    assert capsys.readouterr().out == (
        'a      yes\nname   0.50\nlist   ["ü", 1]\nempty  -\nmany   1,000,000\n'
    )


def test_a_name_does_not_move_the_terminal(capsys: Output) -> None:
    table([{"queue": "\x1b[2Jq\n"}], ("queue",))
    pairs({"queue": "\x1b[2Jq\n"})
    assert (
        capsys.readouterr().out
        == r"""QUEUE
\x1b[2Jq\n
queue  \x1b[2Jq\n
"""
    )


def test_json_is_one_document_with_times_as_text(capsys: Output) -> None:
    show_json({"rows": 1, "name": "ü\x1b", "first": datetime(2026, 11, 22, tzinfo=UTC)})
    out = capsys.readouterr().out
    assert json.loads(out) == {"rows": 1, "name": "ü\x1b", "first": "2026-11-22 00:00:00+00:00"}
    assert "\x1b" not in out
