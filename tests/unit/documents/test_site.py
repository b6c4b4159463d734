"""The documents as a site: every page, link and anchor is there, and nothing is loaded from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker import ROOT

LOADED = re.compile(r"""<(?:script|img|iframe)[^>]*\ssrc=["']([^"']+)|<link[^>]*\shref=["']([^"']+)""")


def build(site: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    return subprocess.run([*command, "--site-dir", str(site)], cwd=ROOT, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("documents") / "site"
    done = build(site)
    assert done.returncode == 0, done.stderr
    return site


def test_every_document_is_a_page(site: Path) -> None:
    pages = {page.relative_to(site).with_suffix(".md").as_posix() for page in site.rglob("*.html")}
    for document in (ROOT / "docs").rglob("*.md"):
        name = document.relative_to(ROOT / "docs").as_posix()
        assert name.replace("README.md", "index.md") in pages
    assert {"readme.md", "architecture.md", "changelog.md", "contributing.md"} <= pages


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    loaded = {one or two for page in site.rglob("*.html") for one, two in LOADED.findall(page.read_text())}
    assert any(each.endswith(".css") for each in loaded)
    assert [each for each in loaded if re.match(r"([a-z]+:)?//", each)] == []


def test_every_block_of_code_is_one_on_the_site(site: Path) -> None:
    """Python-Markdown knows none in an item of a list."""
    assert [page.name for page in site.rglob("*.html") if "```" in page.read_text()] == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[gone](nowhere.md)", "expected a file at nowhere.md, found none"),
        ("[gone](../lightrail/nowhere.py)", "expected a file at ../lightrail/nowhere.py, found none"),
        ("[gone](../README.md#nowhere)", "nowhere"),
    ],
)
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path, text: str, problem: str) -> None:
    """A copy of the documents with one more page; links of all others are right."""
    for name in ("docs", "scripts", "lightrail", "tests", "examples", "deploy", "Makefile", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").unlink()
    (tmp_path / "docs").mkdir()
    for entry in (ROOT / "docs").iterdir():
        (tmp_path / "docs" / entry.name).symlink_to(entry)
    (tmp_path / "docs" / "wrong.md").write_text(f"# Wrong\n\n{text}\n")
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text())
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert problem in done.stderr
