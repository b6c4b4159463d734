"""The broker as go-amqp, the client for Go, sees it: conversations of one process (tests/interop/go/amqp)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import ulong

from tests.interop.programs import Found, built_in_go, finished
from tests.interop.test_proton_security import admin
from tests.support.amqp.proton_blocking import connected, received
from tests.support.amqp.proton_messages import COMMON_VALUES, same
from tests.support.broker import Broker
from tests.support.certificates import Authority

SCENARIOS = (
    *(
        "order",
        "types",
        "send_types",
        "large",
        "outcomes",
        "loss",
        "presettled",
        "second",
        "credit",
        "browse",
    ),
    *("select", "request", "enter", "detached", "closing", "closing_tls"),
)
SECONDS = 100.0
"""In which all of them end; they take 2."""
ACCEPTED = "*encoding.StateAccepted"

# The first test waits for all of them, and for the compiler.
pytestmark = pytest.mark.timeout(SECONDS + 260)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    """With users, and TLS beside."""
    data: Path = tmp_path_factory.mktemp("go") / "data"
    server = authority.sign("localhost", "DNS:localhost")
    admin(data, "user", "add", "alice", password="secret")
    admin(data, "user", "add", "bob", "--no-rights", password="secret")
    admin(data, "permission", "set", "bob", "bob", "all")
    tls = ("--amqps", "127.0.0.1:0", "--tls-certificate", server.certificate, "--tls-key", server.key)
    with Broker(data, *tls) as started:
        yield started


@pytest.fixture(scope="module")
def found(broker: Broker, authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """All scenarios, run by one process."""
    program = built_in_go("amqp", tmp_path_factory.mktemp("program"))
    secure = f"localhost:{broker.ready['amqps'].rpartition(':')[2]}"
    trusting = os.environ | {"SSL_CERT_FILE": authority.path}
    command: list[str | Path] = [program, broker.amqp, secure, "go/", *SCENARIOS]
    return Found.read("go/amqp", finished(command, SECONDS, env=trusting))


def test_order_over_thousands_of_messages(found: Found) -> None:
    numbers = list(range(1_000))
    assert found["order"] == {"bodies": [numbers, numbers], "outcomes": [ACCEPTED, ACCEPTED]}


def test_every_type_arrives_as_it_was_sent(found: Found) -> None:
    types = found["types"]
    assert types["changed"] == {}
    assert types["outcomes"] == [ACCEPTED]
    assert types["count"] > 70


def ordered(value: Any) -> Any:
    """A value with the keys of its maps in order: Go writes those of a map in any."""
    return {key: ordered(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


def test_every_type_arrives_at_proton(broker: Broker, found: Found) -> None:
    names = found["send_types"]["names"]
    with connected(f"amqp://alice:secret@{broker.amqp}", allowed_mechs="PLAIN") as connection:
        messages = received(connection.create_receiver("go/send_types", credit=len(names)), len(names))
    by_name = dict(zip(names, messages, strict=True))
    for name, value in COMMON_VALUES.items():
        assert same(ordered(by_name[f"body-{name}"].body), value), name
        (annotation,) = by_name[f"annotation-{name}"].annotations.values()
        assert same(ordered(annotation), value), f"annotation {name}"
        if (carrier := by_name.get(f"application-property-{name}")) is not None:
            assert same(ordered(carrier.properties[name]), value), f"application property {name}"
    properties = by_name["properties"]
    assert (properties.durable, properties.priority) == (True, 9)
    assert (properties.id, properties.correlation_id) == ("id-1", ulong(7))
    assert (properties.group_id, properties.group_sequence) == ("group", 5)


def test_a_large_message(found: Found) -> None:
    assert found["large"] == {"outcomes": [ACCEPTED], "equal": True, "after": ["after"]}


def test_outcomes_and_redelivery(found: Found) -> None:
    mine = {"x-opt-mine": 1}
    assert found["outcomes"] == {
        "seen": [["m", 0, mine], ["m", 0, mine], ["m", 1, mine], ["m", 1, mine | {"x-opt-more": "new"}]],
        "dead": ["m", "go/outcomes", "example:bad", "not like this"],
    }


def test_what_a_lost_client_had_comes_back(found: Found) -> None:
    assert found["loss"] == {"body": "held", "count": 0}


@pytest.mark.parametrize("scenario", ["closing", "closing_tls"])
def test_closing_counts_nothing_of_what_was_fetched_ahead(found: Found, scenario: str) -> None:
    assert found[scenario] == {"bodies": list(range(100, 200)), "counts": 0}


def test_presettled_both_ways(found: Found) -> None:
    assert found["presettled"] == {"bodies": list(range(500))}


def test_receiver_settle_mode_second(found: Found) -> None:
    assert found["second"] == {"bodies": list(range(100))}


def test_credit_by_hand_and_draining(found: Found) -> None:
    assert found["credit"] == {"bodies": [0, 1, 2, 3, 4, 0], "no more": True}


def test_browsers_see_all_in_order_and_take_nothing(found: Found) -> None:
    numbers = list(range(50))
    assert found["browse"] == {"browsed": [numbers, numbers], "taken": numbers}


def test_a_selector_chooses_messages(found: Found) -> None:
    assert found["select"] == {"selected": ["red", "red"], "rest": ["blue"]}


def test_request_and_response_over_a_dynamic_queue(found: Found) -> None:
    assert found["request"] == {"answer": "answer", "correlation": "1"}


def test_users_and_tls(found: Found) -> None:
    entered = {"right": True, "wrong": False, "nobody": False, "tls": True, "in the url": True}
    assert found["enter"] == entered


def test_a_detach_with_an_error_is_seen_and_the_connection_goes_on(found: Found) -> None:
    assert found["detached"] == {
        "refused": "amqp:unauthorized-access",
        "stolen": "amqp:link:stolen",
        "bodies": ["for the second"],
        "after": ["after"],
        "quick": True,
    }
