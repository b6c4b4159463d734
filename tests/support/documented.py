"""The check of a push's signature as docs/operate/couriers.md has it, so that the page can't be wrong."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "couriers.md"


def checker() -> Callable[..., bool]:
    """`is_genuine(header, secret, body, tolerance_s)` from the page."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    checked: Callable[..., bool] = found["is_genuine"]
    return checked


is_genuine = checker()
