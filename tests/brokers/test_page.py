"""docs/use/other-brokers.md lists what the suite expects brokers to lack; the suite has those laws."""

import re
from pathlib import Path

from tests.brokers import lacks, test_brokers

PAGE = Path(__file__).parents[2] / "docs" / "use" / "other-brokers.md"
PROJECT = Path(__file__).parent / "artemis" / "pom.xml"


def test_the_page_has_the_table_of_the_suite() -> None:
    assert lacks.table() in PAGE.read_text(), f"expected this table in {PAGE.name}:\n{lacks.table()}"


def test_each_law_that_a_broker_lacks_is_one_of_the_suite() -> None:
    named = {law.partition(":")[0] for found in lacks.LACKS.values() for law in found}
    laws = {name.removeprefix("test_") for name in vars(test_brokers) if name.startswith("test_")}
    assert named <= laws, f"no test has the names {sorted(named - laws)}"


def test_the_page_names_the_version_of_artemis_that_is_tested() -> None:
    (version,) = re.findall(r"<artemis\.version>(.+)</artemis\.version>", PROJECT.read_text())
    assert f"ActiveMQ Artemis {version}" in PAGE.read_text()
