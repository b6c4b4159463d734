"""What is a line of code, of a comment, of a joint."""

from pathlib import Path

from scripts.counts import lines
from scripts.counts.lines import Joints
from tests.unit.structure.made_up import product


def test_comments_blanks_and_docstrings_are_no_code(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        a='''
            """A file.

            Of one class.
            """

            # Why.
            LIMIT = 3  # of something
            """What the limit is."""


            class A:
                """A class."""

                def method(self):
                    """A method."""
                    return """
                        a text
                    """
        ''',
    )
    assert lines.code_lines(made) == 7


def test_joints_are_counted_with_all_of_their_lines(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        a='''
            import asyncio
            from typing import (
                Protocol,
            )

            class Port(Protocol):
                """A port."""

                def open(self): ...

            class Generic(Port, Protocol[T]):
                x: int

            class Socket(asyncio.Protocol):
                """No port."""

            class A:
                __slots__ = (
                    "x",
                )

                def __init__(self, x):
                    """An A."""

                    self.x = x

                def method(self):
                    import json
        ''',
    )
    assert lines.joints(made) == Joints(imports=5, constructors=4, slots=3, protocols=6)
    assert lines.joints_percent(made) == 100 * 18 / made.length


def test_files_above_the_bound_are_long(tmp_path: Path) -> None:
    made = product(tmp_path, at="#\n" * lines.FILE_MAX, above="#\n" * (lines.FILE_MAX + 1))
    assert lines.long_files(made) == ["made.above"]


def test_a_comment_beside_code_is_no_line_of_comment(tmp_path: Path) -> None:
    made = product(tmp_path, amqp__a="# one\nx = 1  # two\n    # three\ny = 2\n", other="x = 1\n")
    assert lines.comment_percent([*made.below("amqp")]) == 50
