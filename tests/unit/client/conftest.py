"""Fixtures of the client's tests."""

import pytest

from lightrail.client import connection, receiver, resuming_receiver, sender


@pytest.fixture
def closes_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """For brokers that leave messages without an outcome: closing waits for these."""
    for module in (connection, receiver, resuming_receiver, sender):
        monkeypatch.setattr(module, "CLOSE_S", 0.1)
