"""The broker as the AMQP client of Vert.x sees it, by which programs of Quarkus and SmallRye connect."""

import pytest

from tests.interop.programs import HERE, Found, compiled_in_java, finished
from tests.support.broker import Broker

PROJECT = HERE / "vertx"


@pytest.fixture(scope="module")
def found(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the scenarios of one process found."""
    path = compiled_in_java(PROJECT, tmp_path_factory.mktemp("classes"))
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return Found.read(
        "vertx", finished(["java", *options, "-cp", path, "Scenarios", broker.amqp, "vertx"], 110)
    )


def test_closing_counts_nothing_of_what_was_fetched_ahead(found: Found) -> None:
    assert found["closing"] == {"bodies": [f"m{number}" for number in range(200)], "counts": 0}


def test_outcomes_and_redelivery(found: Found) -> None:
    assert found["outcomes"] == {"again": {"m2": 0, "m3": 1}, "dead": "m1"}


def test_requests_are_answered_over_a_dynamic_queue(found: Found) -> None:
    assert found["requests"] == [f"{number}Q{number}" for number in range(20)]
