"""Compiled modules: processes use all of them or none, and none that are older than their sources."""

import sys
import types
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest

from lightrail import native


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module, and what was compiled of it."""
    (tmp_path / "lightrail").mkdir()
    (tmp_path / "lightrail/apart.py").write_text("ONE = 1\n")
    (tmp_path / "lightrail/other.py").write_text("TWO = 2\n")
    folder = tmp_path / "compiled"
    folder.mkdir()
    (folder / native.MODULES).write_text("lightrail/apart.py\n")
    (folder / native.DIGEST).write_text(native.digest_of(tmp_path))
    (folder / f"{native.LIBRARY}{native.SUFFIX}").touch()
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr(native, "COMPILER", tmp_path / "scripts/compiling.py")
    monkeypatch.delenv("LIGHTRAIL_INTERPRETED", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return folder


def test_an_installed_finder_knows_the_compiled_modules_and_their_library(built: Path) -> None:
    assert native.install(built)
    finder = sys.meta_path[0]
    assert isinstance(finder, native.Finder)
    found = finder.find_spec("lightrail.apart")
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).parent == built
    assert finder.find_spec(native.LIBRARY) is not None
    assert finder.find_spec("lightrail.other") is None


def test_nothing_is_installed_where_nothing_was_compiled(built: Path) -> None:
    (built / native.DIGEST).unlink()
    before = list(sys.meta_path)
    assert not native.install(built)
    assert sys.meta_path == before
    found = native.find(built)
    assert "LIGHTRAIL_COMPILED=1 when LightRail is installed" in found.why_not
    assert not found.is_wrong


def test_in_a_checkout_it_is_the_makefile_that_compiles(built: Path) -> None:
    (built / native.DIGEST).unlink()
    native.COMPILER.parent.mkdir()
    native.COMPILER.touch()
    assert "`make compiled`" in native.find(built).why_not


@pytest.mark.parametrize("changed", ["apart", "other"])
def test_after_a_change_of_any_source_modules_are_interpreted_and_it_is_named(
    built: Path, changed: str
) -> None:
    """Constants of modules that are not compiled are in the code of those that are."""
    (built.parent / f"lightrail/{changed}.py").write_text("ONE = 3\n")
    before = list(sys.meta_path)
    assert not native.install(built)
    assert sys.meta_path == before
    assert native.find(built) == native.MachineCode(
        f"lightrail/{changed}.py has changed since they were compiled: install LightRail again", is_wrong=True
    )


def test_a_source_that_has_gone_is_a_change(built: Path) -> None:
    (built.parent / "lightrail/other.py").unlink()
    assert "lightrail/other.py has changed" in native.find(built).why_not


def test_an_installation_without_sources_uses_the_code_that_came_with_its_bytecode(built: Path) -> None:
    for name in ("apart", "other"):
        source = built.parent / f"lightrail/{name}.py"
        source.rename(source.with_suffix(".pyc"))
    assert native.install(built)
    # Compiled modules import the others: a module without its bytecode is missing.
    (built.parent / "lightrail/other.pyc").unlink()
    assert "lightrail/other.py has changed" in native.find(built).why_not


def test_files_that_came_later_do_not_matter(built: Path) -> None:
    (built.parent / "lightrail/later.py").write_text("THREE = 3\n")
    assert native.find(built).fits


def test_code_for_another_python_is_not_used_and_it_is_said(built: Path) -> None:
    (built / f"{native.LIBRARY}{native.SUFFIX}").rename(built / f"{native.LIBRARY}.cpython-1-other.so")
    assert not native.install(built)
    found = native.find(built)
    assert "another Python" in found.why_not
    assert found.is_wrong


@pytest.mark.parametrize("variable", ["LIGHTRAIL_INTERPRETED", "TRACE_SOCKETS"])
def test_debuggers_and_traces_see_the_sources(
    built: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert not native.install(built)
    assert not native.find(built).is_wrong


def test_a_module_that_was_imported_before_is_an_error(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightrail.apart", native)
    with pytest.raises(RuntimeError, match=r"found lightrail\.apart"):
        native.install(built)


def test_a_process_says_whether_the_modules_that_it_has_loaded_are_machine_code(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not native.is_used()
    assert native.install(built)
    assert not native.is_used()  # none is loaded
    loaded = types.ModuleType("lightrail.apart")
    finder = sys.meta_path[0]
    assert isinstance(finder, native.Finder)
    loaded.__spec__ = finder.find_spec("lightrail.apart")
    monkeypatch.setitem(sys.modules, "lightrail.apart", loaded)
    assert native.is_used()
    # As of a module that a compiled one has imported.
    loaded.__spec__ = ModuleSpec(
        "lightrail.apart", None, origin=str(built / f"lightrail/apart{native.SUFFIX}")
    )
    assert native.is_used()
    loaded.__spec__ = spec_from_file_location("lightrail.apart", built.parent / "lightrail/apart.py")
    assert not native.is_used()
