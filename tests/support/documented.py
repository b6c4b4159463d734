"""Pages of docs/operate as tests read them: their commands, and the check of a push of forwarding.md."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "forwarding.md"


def checker() -> Callable[..., bool]:
    """`is_genuine(header, secret, body, tolerance_s)` from the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    checked: Callable[..., bool] = found["is_genuine"]
    return checked


is_genuine = checker()


OPERATE = PAGE.parent


def commands(page: str, heading: str = "") -> list[str]:
    """Command lines of a page of docs/operate in their order, of one of its parts where that is said."""
    text = (OPERATE / page).read_text()
    if heading:
        ((text),) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"^ *```(?:sh)?\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
