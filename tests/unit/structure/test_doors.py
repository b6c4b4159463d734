"""Places that reach past a door, and names that mean several things."""

from pathlib import Path
from textwrap import dedent

from scripts.counts import doors
from tests.unit.structure.made_up import product


def test_the_contents_of_a_machine_are_counted_outside_of_its_package(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        shard__queue__inside="machine.contents",
        shard__user="machine.contents.ready\nqueue.machine.contents = other.contents\nmachine.state",
        gateway__user="self.machine.contents",
    )
    assert doors.reaching_contents(made) == [
        "made/gateway/user.py:1",
        "made/shard/user.py:1",
        "made/shard/user.py:2",
    ]


def test_marks_are_counted_that_others_than_the_owner_of_the_table_set(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        owner="self.touched[queue] = None",
        user="""
            self.performer.touched[queue] = None
            touched[queue] = None
            if queue in performer.touched: del performer.touched[queue]
            self._touched[queue] = None
        """,
    )
    assert doors.marking_touched(made) == ["made/user.py:2", "made/user.py:3"]


def test_class_names_are_shared_wherever_the_classes_are(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        a="class Sender: ...\nclass A: ...",
        p__b="class Sender:\n    class State: ...",
        c="class State: ...",
    )
    assert doors.shared_class_names(made) == {"Sender": 2, "State": 2}


def test_contracts_are_the_tables_of_import_linter_without_blank_lines() -> None:
    configuration = """\
        [tool.ruff]
        line-length = 110

        [tool.importlinter]
        root_package = "made"

        # Why.
        [[tool.importlinter.contracts]]
        layers = [
            "a",
        ]

        [tool.other]
        x = 1
    """
    assert doors.contract_lines(dedent(configuration)) == 7
