"""Which imports count, and what chains and circles they make."""

from pathlib import Path

import pytest

from scripts.counts import imports
from tests.unit.structure.made_up import product


def test_imports_count_that_loading_a_module_executes(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        a="""
            import made.b
            from made import c
            from typing import TYPE_CHECKING
            if TYPE_CHECKING:
                from made import d
            else:
                from made import e
            try:
                from made.f import name
            except ImportError:
                from . import g
            def later():
                from made import h
        """,
        **dict.fromkeys("bcdefgh", ""),
    )
    assert imports.graph(made)["made.a"] == {"made.b", "made.c", "made.e", "made.f", "made.g"}


def test_a_name_of_a_package_is_an_import_of_its_init_file(tmp_path: Path) -> None:
    made = product(tmp_path, p__face="name = 1", p__inner="", a="from made.p import name, inner")
    assert imports.graph(made)["made.a"] == {"made.p", "made.p.inner"}


@pytest.mark.parametrize(
    ("statement", "source"),
    [("from . import b", "made.p.b"), ("from .b import x", "made.p.b"), ("from ..p import b", "made.p.b")],
)
def test_relative_imports_are_resolved(tmp_path: Path, statement: str, source: str) -> None:
    made = product(tmp_path, p__a=statement, p__b="")
    assert imports.graph(made)["made.p.a"] == {source}


def test_the_longest_chain_goes_through_all_packages(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        a="import made.p.b, made.d",
        p__b="import made.c",
        c="import made.d",
        d="",
        e="import made.d",
    )
    assert imports.chain(imports.graph(made)) == ["made.a", "made.p.b", "made.c", "made.d"]


def test_a_circle_is_reported_and_is_one_link_of_a_chain() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert imports.circles(graph) == [{"b", "c"}]
    assert imports.chain(graph) == ["a", "b = c", "d"]


def test_a_subfolder_counts_once_in_the_chain_of_its_folder(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        shard__main="import made.shard.room.top",
        shard__room__top="import made.shard.room.middle",
        shard__room__middle="import made.shard.room.bottom, made.outside",
        shard__room__bottom="import made.shard.ground",
        shard__ground="",
        outside="",
    )
    rooms = imports.rooms(imports.graph(made), "made.shard")
    assert imports.chain(rooms) == ["main", "room", "ground"]


def test_loose_files_are_those_directly_in_a_folder(tmp_path: Path) -> None:
    made = product(tmp_path, shard__a="", shard__b="", shard__room__c="", other="")
    assert imports.loose(made, "shard") == ["made.shard.a", "made.shard.b"]


def test_small_files_have_one_importer_and_it_is_beside_them(tmp_path: Path) -> None:
    made = product(
        tmp_path,
        p__user="import made.p.small, made.p.shared, made.p.long",
        p__other="import made.p.shared",
        p__small="x = 1\n" * imports.SMALL_MAX,
        p__long="x = 1\n" * (imports.SMALL_MAX + 1),
        p__shared="",
        p__exported="",
        outside="import made.p.exported",
    )
    assert imports.small_with_one_importer(made, imports.graph(made)) == ["made.p.small"]
