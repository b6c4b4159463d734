"""Objects of the compiled modules: what has not changed is not compiled again, and what has is."""

import shutil
from pathlib import Path

import pytest

from scripts.compiling import Compiler, CompilingError, on_all_processors, renumbered


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "build").mkdir(parents=True)
    (folder / "first.h").write_text("#define FIRST 1\n")
    (folder / "build/own.h").write_text("#define OWN 2\n")
    (folder / "build/one.c").write_text('#include "own.h"\nint one = FIRST + OWN;\n')
    return folder


def compiled(work: Path, *flags: str, further: str = "mypy 1") -> int:
    """How many objects a new build compiles."""
    compiler = Compiler(work, further)
    assert (work / compiler.object_of("build/one.c", *flags)).exists()
    return compiler.compiled


def test_an_object_whose_c_headers_and_flags_are_the_same_is_used_again(work: Path) -> None:
    assert compiled(work) == 1
    assert compiled(work) == 0
    assert compiled(work, "-O1") == 1
    assert compiled(work, "-O1") == 0
    assert compiled(work, "-O1", further="mypy 2") == 1


@pytest.mark.parametrize("changed", ["first.h", "build/own.h", "build/one.c"])
def test_one_whose_c_or_header_has_changed_is_compiled_again(work: Path, changed: str) -> None:
    compiled(work)
    with (work / changed).open("a") as file:
        file.write("\nextern int more;\n")
    assert compiled(work) == 1
    assert compiled(work) == 0


def test_one_whose_object_or_header_has_gone_is_compiled_again(work: Path) -> None:
    compiled(work)
    (work / "build/one.c.o").unlink()
    assert compiled(work) == 1
    (work / "build/own.h").unlink()
    with pytest.raises(CompilingError, match=r"own\.h"):
        compiled(work)


def test_a_copy_of_the_folder_has_the_same_objects(work: Path, tmp_path: Path) -> None:
    compiled(work)
    shutil.move(work, tmp_path / "elsewhere")
    assert compiled(tmp_path / "elsewhere") == 0


def test_a_compiler_that_is_not_there_is_one_line(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", str(work / "no-compiler"))
    with pytest.raises(CompilingError, match=r"expected a C compiler, found that .*no-compiler"):
        Compiler(work, "")


def test_labels_and_temporary_variables_are_counted_in_each_file() -> None:
    text = "goto __LL8355; x = __tmp8356; __LL8355: __tmp8357 = __tmp8356; CPyL3: not__tmp4;"
    assert renumbered(text) == "goto __LL0; x = __tmp1; __LL0: __tmp2 = __tmp1; CPyL3: not__tmp4;"


def test_what_can_not_be_compiled_ends_the_build_with_the_words_of_the_compiler(work: Path) -> None:
    (work / "build/two.c").write_text("int two = ;\n")
    compiler = Compiler(work, "")
    with pytest.raises(CompilingError, match=r"two\.c:1"):
        on_all_processors(compiler.object_of, ["build/one.c", "build/two.c"])
