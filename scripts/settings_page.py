"""Writes docs/operate/settings.md from the settings themselves; a test checks that the page is current."""

import sys
from pathlib import Path

from lightrail.model.settings import VARIABLE_PREFIX, descriptions

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "settings.md"
HEAD = """# Settings

Later sources win: defaults, a TOML file (`lightrail serve --config FILE`), `LIGHTRAIL_…` variables,
flags. A value that can't be used is refused with its name, the value, and what is allowed. Sizes take
`MB` (10⁶) and `MiB` (2²⁰).

| flag | variable | TOML key | default | |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = []
    for name, metavar, help, default in descriptions():
        text = ", ".join(map(str, default)) if type(default) is tuple else default
        shown = "" if default in (None, ()) else f"`{text}`"
        flag = "--" + name.replace("_", "-")
        variable = VARIABLE_PREFIX + name.upper()
        rows.append(f"| `{flag} {metavar}` | `{variable}` | `{name}` | {shown} | {help} |\n")
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
