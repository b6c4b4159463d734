"""What MassTransit, NServiceBus, Rebus, Wolverine and Functions ask of Service Bus, by Azure's SDK for .NET.

The programs are tests/interop/dotnet/Frameworks.cs and those beside it: the administration requests of these
frameworks with all of their values, and what their transports do on links. They run at once in one process,
and each test looks at a part of what they found.
"""

import pytest

from tests.interop.programs import Found, in_csharp

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)

PARTS = (
    "FrameworkEntities",
    "MassTransitLinks",
    "NServiceBusLinks",
    "RebusLinks",
    "WolverineLinks",
    "FunctionsLinks",
)

EMPTY = "0 0 0"
"""Messages that are left in a queue: active, scheduled, dead letters."""


@pytest.fixture(scope="module")
def frameworks(strings: tuple[str, str]) -> Found:
    return in_csharp("Frameworks", *strings, "frameworks", beside=PARTS)


def part(found: Found, framework: str) -> dict[str, object]:
    """The scenarios of one framework, which have to be there."""
    start = f"{framework}: "
    scenarios = {
        name.removeprefix(start): each for name, each in found.scenarios.items() if name.startswith(start)
    }
    assert scenarios, f"the program ended before {framework}"
    return scenarios


def test_what_frameworks_send_to_administration_comes_back(frameworks: Found) -> None:
    exists, missing = "MessagingEntityAlreadyExists", "MessagingEntityNotFound"
    assert part(frameworks, "entities") == {
        "MassTransit made": 14,
        "MassTransit differences": [],
        "NServiceBus verification": "none",
        "NServiceBus topic again": exists,
        "NServiceBus subscription again": exists,
        "NServiceBus rule": "none",
        "NServiceBus unsubscribe": "none",
        "NServiceBus unsubscribe again": missing,
        "NServiceBus made": 9,
        "NServiceBus differences": [],
        "Rebus delete": "none",
        "Rebus deleted": missing,
        "Rebus made": 6,
        "Rebus differences": [],
        "Wolverine made": 8,
        "Wolverine differences": [],
    }


def test_masstransit_forwards_schedules_moves_and_has_sagas_in_sessions(frameworks: Found) -> None:
    assert part(frameworks, "masstransit") == {
        "events": 100,
        "others": ["again", "again", "bad", "native", "request", "scheduled", "unknown"],
        "errors": [],
        "cancel": "none",
        "cancel again": "MessageNotFound",
        "answer": "answer 7",
        "error": "bad fault bad 01:00:00",
        "skipped": "unknown dead-letter unknown 01:00:00",
        "dead": "native fault no",
        "left": EMPTY,
        "sessions": 10,
        "state": "012345",
    }


def test_nservicebus_sends_with_the_end_of_the_message_that_it_handles(frameworks: Found) -> None:
    assert part(frameworks, "nservicebus") == {
        "orders": 30,
        "others": ["delayed 1", "fails 2", "poison 1"],
        "errors": [],
        "bills": 90,
        "error": True,
        "dead": ["poison", "Deserialization", "no such type", "can't be read"],
        "left": [EMPTY, EMPTY, EMPTY],
        "long": ["long 1"],
        "errors of long": [],
        "long left": EMPTY,
    }


def test_rebus_renews_defers_publishes_and_gives_up(frameworks: Found) -> None:
    one = ["hello", "hello to one", "once more", "once more to one"]
    assert part(frameworks, "rebus") == {
        "renewed": True,
        "completed": "none",
        "input left": EMPTY,
        "deferred": ["now True 1", "deferred True 1"],
        "expired": "short TTLExpiredException",
        # The second queue has unsubscribed before the second message.
        "published": [one, ["hello"], ["hello", "once more"]],
        "nobody's": "MessagingEntityNotFound",
        "deliveries": [1, 1, 2, 2, 3, 3, 4, 4],
        "error": True,
        "dead": "natively: 4 deliveries, 4 failed",
        "failing left": EMPTY,
    }


def test_wolverine_listens_to_batches_single_messages_and_sessions(frameworks: Found) -> None:
    assert part(frameworks, "wolverine") == {
        "batches": True,
        "buffered": "300 True",
        "buffered left": EMPTY,
        "own dead letters": "7 Bad",
        "inline": ["bad", "later", "ping", "requeued", "requeued", "retried"],
        "answer": "pong ping",
        "dead": "bad System.DivideByZeroException Attempted to divide by zero.",
        "inline left": EMPTY,
        "without a session": "InvalidOperationException",
        "sessions": ["blue 01234", "green 01234", "red 01234"],
        "no session": "ServiceTimeout",
        "all": ["blue", "red"],
        "red": ["red"],
        "red left": 0,
    }


def test_triggers_of_functions_have_their_actions(frameworks: Found) -> None:
    assert part(frameworks, "functions") == {
        "seen": "51 53",
        "dead": "bad MaxDeliveryCountExceeded",
        "trigger left": EMPTY,
        "actions": ["abandon 1", "abandon 2", "complete 1", "dead-letter 1", "defer 1", "renew 1"],
        "received": ["defer", "one", "three", "two"],
        # What a function has dead-lettered.
        "actions left": "0 0 1",
        "monitor": "0 Active 500",
        "batch": 500,
        "batch left": EMPTY,
        "sessions": 12,
        "state": "10",
        "session left": EMPTY,
        "letters of a subscription": ["dead"],
    }
