"""Compiled modules: processes use all of them or none, and none that are older than their sources."""

import sys
from pathlib import Path

import pytest

from lightrail import native


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one module, and what was compiled of it."""
    (tmp_path / "setup.py").touch()
    (tmp_path / "apart.py").write_text("ONE = 1\n")
    folder = tmp_path / "compiled"
    folder.mkdir()
    (folder / "modules").write_text("apart.py\n")
    (folder / "digest").write_text(native.digest_of(tmp_path, ["apart.py"]))
    monkeypatch.setattr(native, "ROOT", tmp_path)
    monkeypatch.setattr(native, "BUILT", folder)
    monkeypatch.delenv("LIGHTRAIL_INTERPRETED", raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return folder


def test_an_installed_finder_knows_the_compiled_modules_and_their_library(built: Path) -> None:
    assert native.install()
    finder = sys.meta_path[0]
    assert isinstance(finder, native.Finder)
    found = finder.find_spec("apart")
    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).parent == built
    assert finder.find_spec(native.LIBRARY) is not None
    assert finder.find_spec("apart.further") is None


def test_nothing_is_installed_where_nothing_was_compiled(built: Path) -> None:
    (built / "digest").unlink()
    before = list(sys.meta_path)
    assert not native.install()
    assert sys.meta_path == before


def test_sources_that_have_changed_are_interpreted_and_it_is_logged(
    built: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (built.parent / "apart.py").write_text("ONE = 2\n")
    before = list(sys.meta_path)
    assert not native.install()
    assert sys.meta_path == before
    assert "make compiled" in caplog.text


@pytest.mark.parametrize("variable", ["LIGHTRAIL_INTERPRETED", "TRACE_SOCKETS"])
def test_debuggers_and_traces_see_the_sources(
    built: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert not native.install()


def test_a_module_that_was_imported_before_is_an_error(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apart", native)
    with pytest.raises(RuntimeError, match="found apart"):
        native.install()
