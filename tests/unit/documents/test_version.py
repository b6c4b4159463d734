"""The version: pyproject.toml has it, and each other place that needs a literal has the same one."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker import ROOT

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
VERSION: Final[str] = PROJECT["version"]
PLACES: Final = {
    "lightrail/__init__.py": r'(?m)^__version__ = "([^"]+)"$',
    "CHANGELOG.md": r"\A# Changelog\n+## ([^\s,]+)",
    "Dockerfile": r"(?m)^ARG VERSION=(.+)$",
    "deploy/analytics/Dockerfile": r"(?m)^ARG VERSION=(.+)$",
    "deploy/helm/lightrail/Chart.yaml": r'(?m)^appVersion: "([^"]+)"$',
}
"""Files that have no way to ask for it, and what finds it there, once."""
NAMES: Final = r"(?<!\w)lightrail(?:-analytics)?(?::|-(?=[\d.]+-py3))(\d+\.\d+[\w.]*)"
"""Names of images and wheels, which commands of documents have."""
OWN: Final = {"pyproject.toml", "deploy/helm/lightrail/Chart.yaml"}
"""The source, and the chart, which has a version of its own that may be the same."""
LITERAL: Final = re.compile(rf"(?<![\w.]){re.escape(VERSION)}(?!\w|\.\d)")
SUFFIXES: Final = {"", ".example", ".html", ".md", ".py", ".sh", ".toml", ".tpl", ".yaml", ".yml"}
FOLDERS: Final = ("deploy", "docs", "lightrail", "pyspark_lightrail", "scripts")


def texts() -> Iterator[tuple[str, str]]:
    """Path and text of each file that users get or read."""
    files = [*ROOT.iterdir(), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*"))]
    for file in sorted(file for file in files if file.is_file() and file.suffix in SUFFIXES):
        yield file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8", errors="replace")


@pytest.mark.parametrize("path", PLACES)
def test_every_literal_is_the_version_of_the_project(path: str) -> None:
    assert re.findall(PLACES[path], Path(ROOT / path).read_text(encoding="utf-8")) == [VERSION]


def test_images_and_wheels_are_named_by_it() -> None:
    named = {(path, version) for path, text in texts() for version in re.findall(NAMES, text)}
    assert {"docker-compose.yml", "docs/operate/spark-cluster.md"} <= {path for path, _ in named}
    assert {(path, version) for path, version in named if version != VERSION} == set()


def test_nothing_else_has_a_literal_of_it() -> None:
    for path, text in texts():
        known = len(re.findall(NAMES, text)) + (path in PLACES) + (path in OWN)
        assert len(LITERAL.findall(text)) <= known, f"{path}: ask importlib.metadata, or add it to PLACES"
