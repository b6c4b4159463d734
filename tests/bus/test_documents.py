"""The pages of docs/bus: the Python in each of them runs against a broker."""

import ast
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.bus.conftest import play
from tests.support.broker import ROOT, Broker

FOLDER = ROOT / "docs" / "bus"
PAGES = sorted(FOLDER.glob("*.md"))


TABLES = {"coming-from.md"}
"""Pages without a piece."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name not in TABLES], ids=lambda page: page.stem
)
def test_the_pieces_of_a_page_run_as_they_stand(shared_broker: Broker, page: Path) -> None:
    source = "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
    assert source, "a page without a piece"
    source = source.replace("amqp://localhost", f"amqp://{shared_broker.amqp}")
    module = ModuleType(f"page_{page.stem}")
    sys.modules[module.__name__] = module
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def test() -> None:
        await eval(code, vars(module))

    try:
        play(test())
    finally:
        del sys.modules[module.__name__]


def test_every_page_is_in_the_index() -> None:
    index = (FOLDER / "README.md").read_text()
    missing = [page.name for page in PAGES if f"({page.name})" not in index]
    assert missing == ["README.md"]
