"""The identity of a client's link over its connections (transport 2.6.1): for links that ask to be kept."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.amqp.performatives import Attach, Open, Source, Target
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.terminus import client_link_of


def identity(
    *,
    user: str | None = None,
    container: str = "c",
    desires: Any = None,
    unsettled: Any = None,
    **fields: Any,
) -> str:
    """The identity of a link on which the client receives."""
    peer = Open(container_id=container, desired_capabilities=desires)
    given: dict[str, Any] = {"address": "q", "timeout": 0} | fields
    link = SimpleNamespace(
        name="link",
        is_sender=True,
        source=Source(**given),
        target=Target(),
        attach=Attach(name="link", handle=0, role=True, unsettled=unsettled),
        session=SimpleNamespace(connection=SimpleNamespace(peer_open=peer)),
    )
    return client_link_of(link, user)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields",
    [
        {"timeout": 1},
        {"expiry_policy": Symbol("never")},
        {"durable": 1},
        {"unsettled": {}},
        {"desires": [Symbol("sole-connection-for-container")]},
    ],
    ids=["timeout", "never", "durable", "unsettled", "sole connection"],
)
def test_a_link_that_asks_to_outlive_its_connection_has_one(fields: dict[str, Any]) -> None:
    assert identity(**fields) == identity(**fields)
    assert len(identity(**fields)) == 32
    assert len({identity(**fields), identity(**fields, user="u"), identity(**fields, container="d")}) == 3
    assert identity(**fields, container="") == ""


def test_other_links_have_none() -> None:
    assert identity() == ""
    assert identity(expiry_policy=Symbol("connection-close")) == ""
    assert identity(desires=[Symbol("SHARED-SUBS")]) == ""
