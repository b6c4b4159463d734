"""Which classes implement a protocol."""

from pathlib import Path

from scripts.counts import protocols
from tests.unit.structure.made_up import product

PORT = """\
from typing import Protocol
class Port(Protocol):
    name: str
    def open(self, how, *, late): ...
"""


def implementers(folder: Path, **files: str) -> list[list[str]]:
    """Of each protocol, by their names without the package."""
    found = protocols.implementers(product(folder, **files))
    return [[each.name.removeprefix("made.") for each in classes] for _, classes in found]


def test_a_class_implements_a_protocol_by_its_members(tmp_path: Path) -> None:
    text = """
        class Whole:
            def __init__(self):
                self.name = ""
            def open(self, how, late=None, more=None): ...
        class Nameless:
            def open(self, how, *, late): ...
        class Narrow:
            name = ""
            def open(self): ...
        class Demanding:
            name = ""
            def open(self, how, more, *, late): ...
        class Static:
            name: str
            @staticmethod
            def open(how, *, late): ...
        class Wide:
            @property
            def name(self): ...
            def open(self, *arguments, **keywords): ...
    """
    assert implementers(tmp_path, port=PORT, a=text) == [["a.Whole", "a.Static", "a.Wide"]]


def test_members_of_bases_in_other_files_count(tmp_path: Path) -> None:
    files = {
        "port": PORT,
        "p__face": "from made.base import Base as Foundation",
        "base": "class Base:\n    name = ''",
        "a": "from made import p\nclass A(p.Foundation):\n    def open(self, how, *, late): ...",
        "b": "class Base: ...\nclass B(Base):\n    def open(self, how, *, late): ...",
    }
    assert implementers(tmp_path, **files) == [["a.A"]]


def test_inheriting_from_a_protocol_implements_it(tmp_path: Path) -> None:
    assert implementers(tmp_path, port=PORT, a="from made.port import Port\nclass A(Port): ...") == [["a.A"]]


def test_a_protocol_that_functions_implement_is_left_out(tmp_path: Path) -> None:
    text = "from typing import Protocol\nclass Port(Protocol):\n    def __call__(self): ..."
    assert implementers(tmp_path, port=text) == []


def test_protocols_are_no_implementers_and_one_is_counted(tmp_path: Path) -> None:
    text = PORT + "class Larger(Port, Protocol):\n    def close(self): ...\n"
    one = "class A:\n    name = ''\n    def open(self, how, *, late): ...\n    def close(self): ...\n"
    made = product(tmp_path, port=text, a=one, b=one.replace("def close", "def shut"))
    assert protocols.with_one_implementer(made) == [("made.port.Larger", "made.a.A")]
