"""What programs of frameworks, and the tests of Azure's SDK for .NET, ask of Service Bus.

The programs are tests/interop/dotnet/Parts.cs and those beside it, which run at once in one process; each
test looks at what one of them found. The README there has the names of the tests for which they stand.
"""

import re

import pytest

from tests.interop.programs import HERE, Found, in_csharp

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)

PROGRAMS = (
    "Scene",
    "FrameworkEntities",
    "MassTransitLinks",
    "NServiceBusLinks",
    "RebusLinks",
    "WolverineLinks",
    "FunctionsLinks",
    "Receivers",
    "SessionReceivers",
    "Senders",
    "Bodies",
    "Processors",
    "SessionProcessors",
    "SdkTransactions",
    "RuleManagers",
    "Administrations",
)

EMPTY = "0 0 0"
"""Messages that are left in a queue: active, scheduled, dead letters."""


@pytest.fixture(scope="module")
def parts(strings: tuple[str, str]) -> Found:
    return in_csharp("Parts", *strings, "parts", beside=PROGRAMS, seconds=200)


def part(found: Found, name: str) -> dict[str, object]:
    """The scenarios of one program, which have to be there."""
    start = f"{name}: "
    scenarios = {
        key.removeprefix(start): each for key, each in found.scenarios.items() if key.startswith(start)
    }
    assert scenarios, f"expected what {name} found, which is nothing"
    return scenarios


def test_what_frameworks_send_to_administration_comes_back(parts: Found) -> None:
    exists, missing = "MessagingEntityAlreadyExists", "MessagingEntityNotFound"
    assert part(parts, "entities") == {
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


def test_masstransit_forwards_schedules_moves_and_has_sagas_in_sessions(parts: Found) -> None:
    assert part(parts, "masstransit") == {
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


def test_nservicebus_sends_with_the_end_of_the_message_that_it_handles(parts: Found) -> None:
    assert part(parts, "nservicebus") == {
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


def test_rebus_renews_defers_publishes_and_gives_up(parts: Found) -> None:
    one = ["hello", "hello to one", "once more", "once more to one"]
    assert part(parts, "rebus") == {
        "renewed": True,
        "completed": "none",
        "input left": EMPTY,
        "deferred": ["deferred True 1", "now True 1"],
        "expired": "short TTLExpiredException",
        # The second queue has unsubscribed before the second message.
        "published": [one, ["hello"], ["hello", "once more"]],
        "nobody's": "MessagingEntityNotFound",
        "deliveries": [1, 1, 2, 2, 3, 3, 4, 4],
        "error": True,
        "dead": "natively: 4 deliveries, 4 failed",
        "failing left": EMPTY,
    }


def test_wolverine_listens_to_batches_single_messages_and_sessions(parts: Found) -> None:
    assert part(parts, "wolverine") == {
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


def test_triggers_of_functions_have_their_actions(parts: Found) -> None:
    assert part(parts, "functions") == {
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


def test_receivers_peek_cancel_defer_and_settle(parts: Found) -> None:
    ten = "0 1 2 3 4 5 6 7 8 9"
    assert part(parts, "receivers") == {
        "peeked": "0 2 3 4",
        "peeked is settled": "InvalidOperationException",
        "locked are peeked": "0 1 2 3 4",
        "nothing to peek": True,
        "nothing fetched": 0,
        "cancelled 0": "TaskCanceledException",
        "all 0": ten,
        "left 0": EMPTY,
        "cancelled 10": "TaskCanceledException",
        "all 10": ten,
        "left 10": EMPTY,
        "after a cancelled receive": "0 1",
        "iterator ends": "TaskCanceledException",
        "iterator": "0 1 2",
        "unsettled": 6000,
        "completed at once": "5000 0 0",
        "peeked deferred": "0 Deferred",
        "one is missing": "MessageNotFound",
        "no number": 0,
        "deferred": f"{ten} Deferred",
        "deferred again": "0",
        "dead": ["0  ", "1 reason description", "2  "],
        "not a text": "7 8 x",
        "abandoned": ten,
        "again": f"{ten} 2",
        "settled by another": "none",
        "and not twice": "MessageLockLost",
        "settled by a neighbour": "MessageLockLost",
        "abandoned left": "8 0 0",
    }


def test_receivers_of_sessions_have_their_locks_and_states(parts: Found) -> None:
    assert part(parts, "session receivers") == {
        "own": [True],
        "increments": "0123456789",
        "beyond the end": 0,
        "received": "012345 1",
        "are peeked": "012345",
        "after their ends": "1345",
        "deferred": "1 Deferred",
        "renewed": True,
        "completed": "none",
        "again": "3 4 5",
        "dead": "2 s reason description",
        "no state": True,
        "state first": "first",
        "state second": "second",
        "state ended": True,
        "another receiver": "SessionCannotBeLocked",
        "another session": "none",
        "lost": "ObjectDisposedException",
        "again after the lock": "0 2",
        "completed in time": "none",
        "closed": "none",
        "of a queue without sessions": "InvalidOperationException",
        "next of a queue without sessions": "InvalidOperationException",
        "without a session": "InvalidOperationException",
        "received and deleted": "0123 True",
    }


def test_senders_have_signatures_batches_and_schedules(parts: Found) -> None:
    assert part(parts, "senders") == {
        "signature": ["signed"],
        "signature elsewhere": "UnauthorizedAccessException",
        "added": [True, True, True, False],
        "sizes": [0, 100_000, 100_000],
        "too large": "MessageSizeExceeded",
        "too large a list": "MessageSizeExceeded",
        "batches left": EMPTY,
        "scheduled": [f"{number} Scheduled True" for number in range(3)],
        "cancelled": True,
        "no message": 0,
        "a session's at a queue": "s",
        "no session's": "InvalidOperationException",
        "after the refusal": "none",
        "closed": "ObjectDisposedException",
        "others go on": "x",
        # A dead letter that is sent again is none.
        "again": "x id 1 1 ",
        "later number": True,
    }


def test_messages_arrive_with_every_type_and_kind_of_body(parts: Found) -> None:
    assert part(parts, "bodies") == {
        "properties": [],
        "null property": True,
        "data": ["one", "two"],
        "value": "1 text 2",
        "sequence": ["1 a", "2 b"],
        "empty": 0,
        "large": True,
        "sections": "7 footer 3",
        "null fields": "null null null null",
        "empty fields": "'' '' ''",
        "fields": [],
    }


def test_processors_settle_renew_and_stop(parts: Found) -> None:
    failed = "ProcessMessageCallback InvalidDataException"
    assert part(parts, "processors") == {
        **{f"{calls} calls": f"{2 * calls} True  {EMPTY}" for calls in (1, 5, 20)},
        **dict.fromkeys(("nothing", "complete", "abandon"), EMPTY),
        **{f"{end} and throw": f"{failed} {EMPTY}" for end in ("nothing", "complete", "abandon")},
        "defer": "1 0 0",
        "defer and throw": f"{failed} 1 0 0",
        "dead-letter": "0 0 1",
        "dead-letter and throw": f"{failed} 0 0 1",
        "stopped": f"40 True 1 {EMPTY}",
        "missing": "Receive MessagingEntityNotFound",
        "started twice": "InvalidOperationException",
        "renewed": f"5  {EMPTY}",
        "lost": "MessageLockLost",
        "concurrency": f"100 10 {EMPTY}",
        "closed client": True,
        "dead letters": f"10 {EMPTY}",
    }


def test_processors_of_sessions_accept_release_and_lose_them(parts: Found) -> None:
    failed = "ProcessMessageCallback InvalidDataException"
    assert part(parts, "session processors") == {
        "events": "True 10 s0 s1 s2 s3 s4",
        "named": "bbbccc 3 0 0",
        "calls": f"40 True 2  {EMPTY}",
        "lost": "ObjectDisposedException",
        "without sessions": ["AcceptSession InvalidOperationException"],
        "throwing": f"1 2 3 {failed} {failed} {EMPTY}",
    }


def test_transactions_of_the_client_for_dotnet_commit_and_roll_back(parts: Found) -> None:
    assert part(parts, "transactions") == {
        "after a rollback": "none",
        "completed twice": "MessageLockLost",
        "queue left": "three two",
        "session left": "one two",
        "deferred after a rollback": "none",
        "deferred is settled": "MessageLockLost",
        "subscription": ["two"],
        "scheduled": ["soon"],
        "cancelled and rolled back": "1 1 0",
        "cancelled": "1 0 0",
        "another client": True,
        "receives first": f"2: {EMPTY}, {EMPTY}; {EMPTY}, 1 0 0, 1 0 0",
        "sends first": f"1 0 0, {EMPTY}, 2 0 0",
        "processor": f"1 2: {EMPTY}, 1 0 0, 1 0 0",
        "session processor": f"1: {EMPTY}, 1 0 0, 1 0 0",
        "session sent": "s y",
    }


def test_rules_of_a_rule_manager_choose_what_a_subscription_gets(parts: Found) -> None:
    assert part(parts, "rules") == {
        "first": ["$Default TrueRuleFilter "],
        "sql": "price > 10 True",
        "correlation": "True Set x = 'y'",
        "twice": "MessagingEntityAlreadyExists",
        "none": 0,
        "not there": "MessagingEntityNotFound",
        "default": "0 1 2 3 4",
        "true": "0 1 2 3 4",
        "false": "",
        "correlation field": "1",
        "correlation property": "1",
        "correlation with action": "0 set 3 set",
        "sql field": "2 4",
        "sql property": "2 4",
        "sql with action": "0 set 3 set",
        "sql and": "3",
        "sql or": "0 1 3 4",
        "no duration": "ArgumentException",
        "short": "00:05:00 00:05:00 1 True",
        "late": "01:00:00 01:00:00 2 True",
    }


def test_administration_changes_lists_counts_and_refuses(parts: Found) -> None:
    assert part(parts, "administration") == {
        **dict.fromkeys(("queue", "topic", "subscription"), "True True"),
        **{f"{name} updated": True for name in ("queue", "topic", "subscription", "rule")},
        "listed": True,
        "deleted": [False, False, False],
        "rules": [True, True, True],
        "rule deleted": False,
        "rule not there": "MessagingEntityNotFound",
        "queue counts": "1 1 1 3 True",
        "subscription counts": "1 1 2",
        "topic counts": "1 1",
        "times": True,
        "listed counts": 3,
        "missing": ["MessagingEntityNotFound"],
        "kinds": "MessagingEntityNotFound",
        "again": ["MessagingEntityAlreadyExists"],
        "namespace": "Standard True",
    }


def test_what_the_readme_names_is_what_a_program_finds(parts: Found) -> None:
    text = (HERE / "dotnet" / "README.md").read_text()
    named = set(re.findall(r"^\| [^|]+ \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE))
    found = {each for cell in named for each in re.findall(r"`(.+?)`", cell)}
    assert len(found) > 50
    missing = {each for each in found if each not in parts.scenarios and not (HERE / each).exists()}
    assert missing == set(), f"expected scenarios of Parts.cs, or files, found {sorted(missing)}"
