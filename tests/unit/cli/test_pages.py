"""Every lightrail-admin command on the pages for operators is one that the program knows."""

import shlex

import pytest

from lightrail.cli import admin
from tests.support.documented import OPERATE, commands

PROGRAM = "lightrail-admin "
LINES = sorted(
    {
        (page.name, line)
        for page in OPERATE.glob("*.md")
        for line in commands(page.name)
        if line.startswith(PROGRAM) and not line.endswith("\\")
    }
)


def test_there_are_some() -> None:
    assert len(LINES) > 50
    assert {"scaling.md", "backup.md", "alerts.md", "admin.md", "cluster.md"} <= {page for page, _ in LINES}


@pytest.mark.parametrize(("page", "line"), LINES)
def test_the_program_knows_the_commands_of_the_pages(page: str, line: str) -> None:
    admin._parser().parse_args(shlex.split(line, comments=True)[1:])
