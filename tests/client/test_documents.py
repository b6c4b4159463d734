"""The pages of docs/use: every piece of Python in them runs against a broker, in the order of its page."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import lightrail.client
from tests.client.conftest import play
from tests.support.broker import ROOT, Broker

FOLDER = ROOT / "docs" / "use"
BY_OTHERS = {"celery.md"}
"""Its pieces are for Celery, whose tests are in tests/kombu."""
PAGES = sorted(
    page for page in FOLDER.glob("*.md") if "```python" in page.read_text() and page.name not in BY_OTHERS
)


def pieces(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pieces_of_a_page_run_as_they_stand(broker: Broker, page: Path) -> None:
    source = "async def run():\n" + textwrap.indent("\n".join(pieces(page)), "    ")

    async def test() -> None:
        url = f"amqp://{broker.amqp}"
        async with lightrail.client.connect(url) as connection:
            names: dict[str, Any] = {"lightrail": lightrail, "connection": connection, "url": url}
            exec(compile(source, str(page), "exec"), names)
            await names["run"]()

    play(test())


def test_every_page_is_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text()
    missing = [page.name for page in FOLDER.glob("*.md") if f"({page.name})" not in index]
    assert missing == ["README.md"]
