"""docs/use/other-brokers.md lists what the suite expects brokers to lack."""

from pathlib import Path

from tests.brokers import lacks

PAGE = Path(__file__).parents[2] / "docs" / "use" / "other-brokers.md"


def test_the_page_has_the_table_of_the_suite() -> None:
    assert lacks.table() in PAGE.read_text(), f"expected this table in {PAGE.name}:\n{lacks.table()}"
