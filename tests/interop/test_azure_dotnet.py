"""Azure's SDK for .NET: programs in tests/interop/dotnet, each of which prints what it found."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.interop.azure_scene import administration_string, connection_string, http_by
from tests.interop.programs import Found, in_csharp, several_in_csharp
from tests.support import wait
from tests.support.amqp.cutting_proxy import CuttingProxy
from tests.support.broker import Broker
from tests.support.namespace import give, give_all

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def several(guarded: Broker, key: str, strings: tuple[str, str]) -> dict[str, Found]:
    """What programs found that need little time, which run at once: to compile and start one costs more."""
    give(guarded.data, "requests", role="queue", delay=True)
    give(guarded.data, "requests/twice", role="queue", delay=True, duplicate_window=60)
    give(guarded.data, "requests/small", role="queue", delay=True, max_message_bytes=65_536)
    own = (connection_string(guarded, key), administration_string(guarded, key))
    return several_in_csharp(
        {
            "Disabled": (*own, "disabled"),
            "Forwarding": (*own, "forwarding"),
            "Names": (*strings, "net"),
            "Requests": (own[0], "requests", "requests/twice", "requests/small"),
            "Schedules": (*strings, "schedules"),
            "Counts": (*strings, "counts"),
            "Refused": (*strings, "refused"),
        }
    )


def test_one_client_has_links_requests_and_tokens_for_hundreds_of_entities(guarded: Broker, key: str) -> None:
    count = 260
    give_all(guarded.data, (f"many/{number}" for number in range(count)), role="queue", lock_duration=60)
    found = in_csharp("ManyEntities", connection_string(guarded, key), "many", str(count))
    assert found.scenarios == {"own": count, "renewed": count, "left": 0}


def test_handlers_of_many_processors_and_sessions_outlive_their_locks(guarded: Broker, key: str) -> None:
    count = 12
    give_all(guarded.data, (f"busy/{number}" for number in range(count)), role="queue", lock_duration=5)
    give(guarded.data, "busy/sessions", role="queue", lock_duration=5, groups=True)
    found = in_csharp("ManyProcessors", connection_string(guarded, key), "busy", str(count), str(count))
    whole = {"calls": count, "messages": count, "at_once": count, "delivery_count": 1, "errors": []}
    assert found.scenarios == {"processors": whole, "sessions": whole}


def test_a_disabled_queue_refuses_what_its_status_says(several: dict[str, Found]) -> None:
    found = several["Disabled"]
    disabled, none, missing = "MessagingEntityDisabled", "none", "MessageNotFound"
    rows = {
        "Disabled": (disabled, disabled, disabled, disabled),
        "SendDisabled": (disabled, disabled, none, missing),
        "ReceiveDisabled": (none, none, disabled, disabled),
        "Active": (none, none, none, missing),
    }
    for status, refusals in rows.items():
        for use, refusal in zip(("send", "schedule", "receive", "deferred"), refusals, strict=True):
            assert (status, use, found[f"{status} {use}"]) == (status, use, refusal)
        assert found[f"{status} is shown"]
    assert (found["a waiting receiver"], found["its next call"]) == (none, disabled)
    assert found["a waiting receiver of dead letters"] == none


def test_queues_and_subscriptions_forward(several: dict[str, Found]) -> None:
    assert several["Forwarding"].scenarios == {
        "shown": "/forwarding/middle",
        "subscription": "one two",
        "before": "three four",
        "queue": "five",
        "receiver": "InvalidOperationException",
        "scheduled": "six",
        "missing": "ArgumentException",
        "cycle": "ArgumentException",
        "counts": "0 0 1",
        "letter": "seven com.microsoft:entity-disabled forwarding/middle",
        "four hops": "eight",
        "five hops": "nine MaxTransferHopCountExceeded",
    }


def test_names_are_those_of_entities_without_regard_to_case(several: dict[str, Found]) -> None:
    assert several["Names"].scenarios == {
        "missing": ["MessagingEntityNotFound"] * 4,
        "made": False,
        "queue": "queue",
        "shown": "net/CamelCase",
        "again": "MessagingEntityAlreadyExists",
        "subscription": "topic",
        "rules": ["$Default"],
        "rule": "$Default",
        "deleted": True,
    }


def test_requests_have_as_many_messages_as_the_client_wants_and_refusals_say_why(
    several: dict[str, Found],
) -> None:
    assert several["Requests"].scenarios == {
        "numbers": 1_200,
        "cancel": "none",
        "again": "MessageNotFound",
        "large": "MessageSizeExceeded",
        "after": "none",
        "deferred": 600,
        "equal": True,
        "whole": "MessageSizeExceeded",
        "left": 0,
    }


def test_schedules_and_cancellations_are_part_of_a_transaction_scope(several: dict[str, Found]) -> None:
    assert several["Schedules"].scenarios == {
        "before the commit": 0,
        "after the commit": "committed:Scheduled",
        "its number is that of the answer": True,
        "after a rollback": "committed:Scheduled",
        "replaced": "at once:Active one:Scheduled two:Scheduled",
        "cancelled by the numbers": "at once:Active",
        "cancelled twice": "MessageNotFound",
        "due at the commit": "at once",
        "topic": "by the topic",
    }


def test_messages_are_counted_timed_and_placed_as_in_service_bus(several: dict[str, Found]) -> None:
    assert several["Counts"].scenarios == {
        "forwarded": ["why", "because", "source"],
        "refused": "InvalidOperationException",
        "left": 1,
        "scheduled": ["first 1", "last 4", "sent 5 True 00:00:02", "requested 6 True 00:00:02"],
        "dead": 0,
        "topic": [2, True, True, False],
        "full": "QuotaExceeded",
        "scheduled in topic": 1,
        "numbers": True,
        "active": 3,
        "lives": ["100.00:00:00", "60.00:00:00", "100.00:00:00", "01:00:00"],
    }


def test_handlers_that_outlive_a_cut_connection_complete_their_messages(
    strict: Broker, strings: tuple[str, str], tmp_path: Path
) -> None:
    count = 32
    give(strict.data, "cut", role="queue", lock_duration=60)
    http = http_by(strict, strings[0])
    for number in range(count):
        assert http("POST", "/cut", str(number)).status == 201
    proxy = CuttingProxy(int(strict.amqp.rpartition(":")[2]))
    started, go = tmp_path / "started", tmp_path / "go"

    def cut() -> None:
        wait.until(started.exists, "each handler has a message", 60)
        proxy.losing.set()
        proxy.cut()
        assert proxy.lost.wait(60), "the client connects again, and hears nothing"
        go.touch()
        proxy.losing.clear()
        proxy.cut()

    through = strings[0].replace(strict.amqp, proxy.url)
    with ThreadPoolExecutor(1) as pool:
        cutting = pool.submit(cut)
        found = in_csharp("Cut", through, "cut", str(count), str(started), str(go))
        cutting.result()
    proxy.close()
    assert found.scenarios == {
        "completed": count,
        "failed": [],
        "delivery counts": [1],
        "handled": count,
    }
    figures = http("GET", "/cut/!figures").json()
    assert figures["in_flight"] == figures["ready"] == 0
    http.close()


def test_what_service_bus_refuses_is_an_invalid_operation(several: dict[str, Found]) -> None:
    found = several["Refused"]
    no_failure = {scenario for scenario, failure in found.scenarios.items() if failure == "none"}
    assert no_failure == {
        "receiver of its dead letters",
        "peek at a queue with sessions",
        "send to a queue",
        "send to a topic",
        "receive from a queue",
    }
    assert len(found.scenarios) == 20
    refused = [found[scenario] for scenario in found.scenarios.keys() - no_failure]
    assert set(refused) == {"InvalidOperationException"}
