"""Copies of sources for the compiler: classes have the constructors that dataclass gives them."""

import ast
import importlib
import inspect
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from scripts import compiled_checks, compiled_sources, compiling

ROOT = Path(__file__).resolve().parents[3]
MODULES = compiling.modules(ROOT)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("copies")
    compiled_sources.copy(ROOT, made, MODULES)
    return made


def constructors(path: Path) -> dict[str, ast.arguments]:
    found = {}
    for each in ast.parse(path.read_text()).body:
        if isinstance(each, ast.ClassDef):
            for function in each.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    found[each.name] = function.args
    return found


def shape(arguments: ast.arguments) -> list[tuple[str, str, bool]]:
    """(name, kind, whether there is a default) of each parameter but self."""
    places = [(each.arg, "place") for each in arguments.args][1:]
    without = len(places) - len(arguments.defaults)
    return [
        *((name, kind, index >= without) for index, (name, kind) in enumerate(places)),
        *(
            (each.arg, "keyword", default is not None)
            for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ),
    ]


def shape_of(kind: type[Any]) -> list[tuple[str, str, bool]]:
    parameters = inspect.signature(kind).parameters.values()
    return [
        (
            each.name,
            "keyword" if each.kind is inspect.Parameter.KEYWORD_ONLY else "place",
            each.default is not inspect.Parameter.empty,
        )
        for each in parameters
    ]


def test_every_plain_dataclass_keeps_the_parameters_of_its_constructor(copies: Path) -> None:
    compared = 0
    for path in MODULES:
        of_source = constructors(ROOT / path)
        for name, arguments in constructors(copies / path).items():
            if name not in of_source:
                module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
                assert shape(arguments) == shape_of(getattr(module, name)), f"{path}: {name}"
                compared += 1
    assert compared > 100


def test_functions_keep_their_lines_but_for_imports_ahead_of_them(copies: Path) -> None:
    for path in MODULES:
        former, copied = (
            [
                each.lineno
                for each in ast.walk(ast.parse((folder / path).read_text()))
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                and each.name not in ("__init__", "__bool__")
            ]
            for folder in (ROOT, copies)
        )
        differences = {there - here for here, there in zip(former, copied, strict=True)}
        assert len(differences) <= 1, path
        assert differences <= {0, 1, 2}, path


def test_a_constructor_stores_defaults_makes_new_ones_and_passes_the_rest_on(tmp_path: Path) -> None:
    source = tmp_path / "lightrail/made.py"
    source.parent.mkdir()
    source.write_text(
        dedent('''
            """Made up."""

            from dataclasses import KW_ONLY, InitVar, dataclass, field


            @dataclass(slots=True, eq=False, repr=False)
            class Base:
                first: int
                """A text behind it."""
                given: InitVar[int]
                several: list[int] = field(default_factory=list)
                _: KW_ONLY
                last: str = "end"

                def __post_init__(self, given: int) -> None:
                    self.first += given


            @dataclass(slots=True, eq=False, repr=False)
            class Further(Base):
                kept: int = field(init=False, default=7)

                def name(self) -> str:
                    return self.last
        ''').lstrip()
    )
    compiled_sources.copy(tmp_path, tmp_path / "to", ["lightrail/made.py"])
    names: dict[str, Any] = {}
    exec((tmp_path / "to/lightrail/made.py").read_text(), names)
    one, other = names["Further"](1, 2), names["Further"](1, 2, [3], last="other")
    assert (one.first, one.several, one.last, one.kept) == (3, [], "end", 7)
    assert (other.several, other.name()) == ([3], "other")
    assert one.several is not names["Further"](1, 2).several
    assert (
        "dataclass"
        not in (tmp_path / "to/lightrail/made.py").read_text().split("import", 1)[1].split("\n", 1)[1]
    )


def test_a_cast_of_an_attribute_to_none_is_found_and_that_of_a_result_is_not(tmp_path: Path) -> None:
    """As mypyc writes both: the first raises TypeError where Python compares, the second never does."""
    attribute, result = (
        "((server___ServerObject *)cpy_r_self)->__commit",
        "CPyDef_server___Server___turn(cpy_r_self)",
    )
    for number, value in enumerate((attribute, result)):
        (tmp_path / f"__native_{number}.c").write_text(
            f"    cpy_r_r8 = {value};\n"
            "    if (unlikely(cpy_r_r8 != Py_None)) {\n"
            '        CPy_TypeError("None", cpy_r_r8); cpy_r_r9 = 2;\n'
            "    }\n"
            f'        CPy_AddTraceback("made/{number}.py", "end", 12, CPyStatic_globals);\n'
        )
    assert compiled_checks.narrowed(tmp_path) == ["made/0.py:12 (end)"]


def copied(tmp_path: Path, source: str, **options: bool) -> str:
    """What the compiler reads of a module."""
    path = tmp_path / "lightrail/made.py"
    path.parent.mkdir()
    path.write_text(dedent(source).lstrip())
    compiled_sources.copy(tmp_path, tmp_path / "to", ["lightrail/made.py"], **options)
    return (tmp_path / "to/lightrail/made.py").read_text()


def test_a_class_with_a_length_says_that_an_empty_object_is_false(tmp_path: Path) -> None:
    """mypyc would only compare `Line | None` with None, where Python asks for the length, too."""
    text = copied(
        tmp_path,
        '''
        """Made up."""


        class Line:
            def __len__(self) -> int:
                return 0


        class Other:
            def __len__(self) -> int:
                return 0

            def __bool__(self) -> bool:
                return True
        ''',
    )
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["Line"].__bool__(names["Line"]()) is False
    assert bool(names["Other"]())
    assert text.count("__bool__") == 2


def test_for_tests_interpreted_classes_may_derive_from_all_but_those_of_python(tmp_path: Path) -> None:
    text = copied(
        tmp_path,
        '''
        """Made up."""

        from dataclasses import dataclass
        from enum import Enum
        from typing import NamedTuple


        class Own:
            pass


        # A comment.
        @dataclass(slots=True)
        class Kept:
            number: int


        class Base:
            pass


        class Both(Own, Base):
            pass


        class Pair(NamedTuple):
            first: int


        class Kind(Enum):
            ONE = 1


        class MadeUpError(Exception):
            pass
        ''',
        for_tests=True,
    )
    marked = {}
    for each in ast.parse(text).body:
        if isinstance(each, ast.ClassDef):
            marked[each.name] = [ast.unparse(decorator) for decorator in each.decorator_list]
    derivable = compiled_sources.DERIVABLE.removeprefix("@")
    assert marked == {
        "Own": [derivable],
        "Kept": [derivable, "dataclass(slots=True)"],
        "Base": ["trait", derivable],
        "Both": [derivable],
        "Pair": [],
        "Kind": [],
        "MadeUpError": [],
        "DerivableBase": [derivable],
    }


def test_identity_of_a_tuple_that_was_made_for_it_is_found_and_that_of_an_object_is_not(
    tmp_path: Path,
) -> None:
    """As mypyc compiles `key is not MISSING`, where keys are tuples of a known length, and `run is END`."""
    (tmp_path / "__native_keys.c").write_text(
        "    cpy_r_r43 = PyTuple_New(2);\n"
        "    cpy_r_r45 = cpy_r_r43 == cpy_r_r44;\n"
        '        CPy_AddTraceback("made/keys.py", "key_of", 68, CPyStatic_globals);\n'
        "}\n"
        "    cpy_r_r43 = CPyStatic_runs___END;\n"
        "    cpy_r_r45 = cpy_r_run == cpy_r_r43;\n"
    )
    assert compiled_checks.identified(tmp_path) == ["made/keys.py:68 (key_of)"]


def test_one_name_for_several_errors_and_a_generator_for_later_are_found(tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text(
        dedent("""
            def caught() -> None:
                try:
                    pass
                except KeyError as error:
                    raise ValueError from error
                except TypeError as error:
                    raise ValueError from error
                except OSError as other:
                    raise ValueError from other


            def lazy(found: list[int]) -> Iterator[int]:
                later = (each for each in found)
                yield from (each for each in found)
                yield sum(each for each in later)
                yield from [*(each for each in found)]
                found += (each for each in found)
                yield next(each for each in found)
        """).lstrip()
    )
    assert compiled_checks.traps(tmp_path, ["made.py"]) == [
        "made.py:6 (error)",
        "made.py:13 (generator)",
        "made.py:14 (generator)",
    ]


def test_the_compiled_modules_have_neither(copies: Path) -> None:
    assert not compiled_checks.traps(copies, MODULES)


def test_fields_of_composites_may_be_none(copies: Path) -> None:
    """A source that was decoded has `dynamic`, and one that the broker has made may have None there."""
    names = {}
    for each in ast.parse((copies / "lightrail/amqp/performatives.py").read_text()).body:
        if isinstance(each, ast.ClassDef) and each.name == "Source":
            names = {
                ast.unparse(it.target): ast.unparse(it.annotation) for it in compiled_sources.own_fields(each)
            }
    assert names["dynamic"] == names["durable"] == "Any"
    assert names["address"] == "str | Described | None"
