"""The connections of a frontend: which virtual hosts their clients expect."""

import pytest

from lightrail.frontend import connections as connections_module
from lightrail.frontend.client import Client
from lightrail.frontend.connections import Connections
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
