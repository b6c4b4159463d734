"""The connections of a frontend: which virtual hosts their clients expect."""

import pytest

from lightrail.frontend import connections as connections_module
from lightrail.frontend.client import Client
from lightrail.frontend.connections import REFUSED_LOGGED_EVERY_MS, Connections
from lightrail.model import conditions
from lightrail.telemetry.frontend import FrontendCounts


@pytest.mark.parametrize("hostname", [None, "", "broker.example", "vhost:", "vhost:/"])
def test_a_client_that_selects_no_virtual_host_is_not_logged(
    hostname: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    Connections(FrontendCounts()).opened(hostname, Client("owner"))
    assert not caplog.records


def test_the_log_names_each_virtual_host_once_and_so_many_at_most(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections_module, "VHOSTS_LOGGED_MAX", 2)
    connections = Connections(FrontendCounts())
    for name in ("staging", "staging", "production", "third"):
        connections.opened(f"vhost:{name}", Client("owner"))
    assert ["staging" in record.getMessage() for record in caplog.records] == [True, False]
    assert "there are none" in caplog.text


def test_a_bound_that_a_client_reaches_is_logged_once_for_a_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "lightrail.frontend.connections")
    connections = Connections(FrontendCounts())
    clients = [Client(f"owner {number}") for number in range(4)]
    now_ms = 50_000

    def refuse(number: int, at_ms: int, condition: str = conditions.RESOURCE_LIMIT_EXCEEDED) -> None:
        connections.refused(clients[number], condition, f"{number} links", now_ms + at_ms)

    refuse(0, 0, conditions.NOT_FOUND)
    assert caplog.messages == []
    refuse(0, 0)
    refuse(0, REFUSED_LOGGED_EVERY_MS)
    refuse(1, REFUSED_LOGGED_EVERY_MS - 1)
    refuse(2, REFUSED_LOGGED_EVERY_MS - 1)
    assert [text.partition(": ")[2] for text in caplog.messages] == ["0 links"]
    refuse(3, REFUSED_LOGGED_EVERY_MS)
    assert "2 other clients since the last such line): 3 links" in caplog.messages[1]
