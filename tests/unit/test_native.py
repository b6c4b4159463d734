"""Compiled modules: processes use all of them or none, and none that are older than their sources."""

import sys
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


@pytest.mark.parametrize("changed", ["apart", "other"])
def test_after_a_change_of_any_source_modules_are_interpreted_and_it_is_logged(
    built: Path, caplog: pytest.LogCaptureFixture, changed: str
) -> None:
    """Constants of modules that are not compiled are in the code of those that are."""
    (built.parent / f"lightrail/{changed}.py").write_text("ONE = 3\n")
    before = list(sys.meta_path)
    assert not native.install(built)
    assert sys.meta_path == before
    assert "make compiled" in caplog.text


def test_code_for_another_python_is_not_used_and_it_is_logged(
    built: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (built / f"{native.LIBRARY}{native.SUFFIX}").rename(built / f"{native.LIBRARY}.cpython-1-other.so")
    assert not native.install(built)
    assert "another Python" in caplog.text


@pytest.mark.parametrize("variable", ["LIGHTRAIL_INTERPRETED", "TRACE_SOCKETS"])
def test_debuggers_and_traces_see_the_sources(
    built: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert not native.install(built)


def test_a_module_that_was_imported_before_is_an_error(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightrail.apart", native)
    with pytest.raises(RuntimeError, match=r"found lightrail\.apart"):
        native.install(built)
