"""The documents: every link and anchor leads somewhere, every command on a page is one that there is."""

import argparse
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest

from lightrail.bench import options
from lightrail.cli import admin, bus, main
from lightrail.cli.trace import main as trace
from lightrail.gateway import app
from lightrail.spark import main as spark_jobs
from tests.support.broker import ROOT

PAGES = sorted(
    path
    for top in ("*.md", "docs", "deploy", "examples")
    for path in ([*ROOT.glob(top)] if "*" in top else [*(ROOT / top).rglob("*.md")])
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
# What is below /opt is in an image, or on a worker of Spark.
MENTIONED = re.compile(
    r"(?<!/opt/)\b(?:docs|deploy|lightrail|tests|examples)/[\w./-]+\.(?:md|py|yml|yaml|json|bin)\b"
)
INLINE = re.compile(r"`(lightrail(?:-admin|-spark)?) ([^`\n]*)`")
CONSTANT = re.compile(r"(?<![\w.])([a-z_]+)\.([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b")
PART = re.compile(r"/(![a-z]+(?:\.json)?)")
FOREIGN = re.compile(r"[a-z]+:")
INDEX = ROOT / "docs" / "operate" / "README.md"
THROUGH_COMPOSE = re.compile(r"docker compose run --rm admin ")
SHELL = {"|", "||", "&&", "<", ">", ">>", "&", ";"}


def prose(page: Path) -> str:
    """A page without what is code."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


def anchors(page: Path) -> set[str]:
    """What may stand behind ``#`` in a link to a page: its headings, as GitHub names them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCE.sub("", page.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")
        number = 0
        while (name if not number else f"{name}-{number}") in found:
            number += 1
        found.add(name if not number else f"{name}-{number}")
    return found


def declares(module: str, name: str) -> bool:
    """Whether a file of the product with the name of the module declares the constant."""
    line = re.compile(rf"^{name}\b.* = ", re.MULTILINE)
    return any(line.search(file.read_text()) for file in (ROOT / "lightrail").rglob(f"{module}.py"))


def commands(page: Path, program: str) -> list[list[str]]:
    """The words of every command of a program in the shell blocks of a page, up to a pipe or redirection."""
    found = []
    for kind, block in FENCE.findall(page.read_text()):
        if kind != "sh":
            continue
        for line in block.replace("\\\n", " ").splitlines():
            line = THROUGH_COMPOSE.sub("lightrail-admin ", line).strip()
            if not line.startswith(f"{program} "):
                continue
            words = shlex.split(line, comments=True)[1:]
            ends = [at for at, word in enumerate(words) if word in SHELL]
            found.append(words[: ends[0]] if ends else words)
    return found


def named(page: Path) -> str:
    """A page as a test's name has it."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(prose(page)):
        if FOREIGN.match(link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_page_that_is_named_in_passing_is_there(page: Path) -> None:
    assert not [each for each in MENTIONED.findall(page.read_text()) if not (ROOT / each).exists()]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_constants_that_it_names_by_their_modules_are_there(page: Path) -> None:
    named = CONSTANT.findall(page.read_text())
    assert not [f"{module}.{name}" for module, name in named if not declares(module, name)]


PARSERS = {"lightrail": main._parser, "lightrail-admin": admin._parser, "lightrail-spark": spark_jobs._parser}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_programs_take_the_commands_of_its_blocks(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    for program in PARSERS:
        for words in commands(page, program):
            parse(program, words)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_programs_have_the_commands_of_its_sentences(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be cut short: what they need is not looked at."""
    monkeypatch.setattr(argparse.ArgumentParser, "error", refuse)
    text = FENCE.sub("", page.read_text())
    for program, words in INLINE.findall(text):
        with suppress(IncompleteError, SystemExit):
            words = re.sub(r"\b(?:N|ID)$", "0", words.removesuffix(" …"))
            parse(program, shlex.split(words))


def parse(program: str, words: list[str]) -> None:
    """The load generator, the trace and the commands of the bus read their own words."""
    if program == "lightrail" and words[:1] == ["bench"]:
        options._parser().parse_args(words[1:])
    elif program == "lightrail" and words[:1] == ["bus"]:
        bus._parser().parse_args(words[1:])
    elif program == "lightrail" and words[:1] == ["trace"]:
        trace._parser().parse_args(words[1:])
    else:
        PARSERS[program]().parse_args(words)


class IncompleteError(Exception):
    """A command lacks something."""


def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In the place of argparse's own, which ends the process."""
    if "are required" in message:
        raise IncompleteError(message)
    raise AssertionError(f"{parser.prog}: {message}")


def test_the_parts_of_the_gateway_are_those_of_the_documents() -> None:
    there = {part for part, _ in (*app.NAMED, *app.ROOT) if part.startswith("!")}
    named = {part for page in PAGES for part in PART.findall(page.read_text())}
    assert named - {"!ui"} == there


def test_the_index_of_operating_has_every_page() -> None:
    linked = set(LINK.findall(INDEX.read_text()))
    assert {page.name for page in INDEX.parent.glob("*.md") if page != INDEX} <= linked


def test_decisions_have_numbers_of_their_own_without_gaps() -> None:
    files = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(page.name[:4]) for page in files] == list(range(1, len(files) + 1))
    for page in files:
        assert page.read_text().startswith(f"# {int(page.name[:4])}. ")
