"""Hooks of MkDocs: pages from the root of the repository, links to its files, and the list of decisions.

Links in documents are relative to where the documents are in the repository, so that they work there. On the
site a link to a page leads to the page; of a link to another file its text stays. A link to a file that does
not exist ends the build.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"
ROOT_PAGES: Final = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
"""Name in the root of the repository, and on the site."""
DECISIONS: Final = "Decisions"
LINK: Final = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE: Final = re.compile(r"(?m)(^```.*?^```$)", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List every decision in the navigation, by its number."""
    assert isinstance(config.nav, list)
    pages = sorted(f"adr/{page.name}" for page in (DOCS / "adr").glob("*.md"))
    config.nav = [{DECISIONS: pages} if DECISIONS in entry else entry for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from the root of the repository."""
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links of the repository links of the site; text in fences stays."""
    uri = page.file.src_uri
    names = [name for name, found in ROOT_PAGES.items() if found == uri]
    source = ROOT / names[0] if names else DOCS / uri
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda found: _link(found, source, uri), part) for part in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], source: Path, uri: str) -> str:
    text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return found.group()
    file = (source.parent / path).resolve()
    if not file.exists():
        raise PluginError(f"{source.relative_to(ROOT)}: expected a file at {path}, found none")
    name = file.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        name = ROOT_PAGES[name]
    elif file.suffix == ".md" and file.is_relative_to(DOCS):
        name = file.relative_to(DOCS).as_posix()
    else:
        return str(text)
    relative = posixpath.relpath(name, posixpath.dirname(uri) or ".")
    return f"[{text}]({relative}{mark}{anchor})"
