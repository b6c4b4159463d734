"""Rules find the reason of a dead letter that is forwarded to a topic, as clients of Service Bus read it."""

from typing import Any

import pytest

from lightrail.amqp.sections import with_annotations
from lightrail.amqp.values import Symbol
from lightrail.filters.filter import compile_filter
from lightrail.filters.matcher import Matcher
from lightrail.filters.message import MessageView
from tests.support.amqp.letters import message

EXPIRED = {"x-opt-dead-letter-reason": Symbol("expired"), "x-opt-dead-letter-source": "q"}
REFUSED = {
    "x-opt-dead-letter-reason": Symbol("rejected"),
    "x-opt-dead-letter-condition": Symbol("com.microsoft:dead-letter"),
    "x-opt-deadletter-reason": "bad order",
    "x-opt-deadletter-description": "no such article",
}
OTHERS = {"x-opt-dead-letter-reason": Symbol("rejected"), "x-opt-dead-letter-condition": Symbol("app:bad")}


def matches(sql: str, notes: dict[str, Any], own: dict[str, Any] | None = None) -> bool:
    """Whether a rule matches a message by itself, and among others that a table looks up."""
    filter = compile_filter({"rule": {"sql": sql}})
    encoded = message(b"x", own=own)
    dead = with_annotations(encoded, {Symbol(name): value for name, value in notes.items()})
    alone = filter.matches(MessageView(dead))
    other = compile_filter({"rule": {"sql": "colour = 'red'"}})
    among = Matcher([("it", filter), ("other", other)]).targets(MessageView(dead))
    assert ("it" in among) is alone
    return alone


@pytest.mark.parametrize(
    ("sql", "notes"),
    [
        ("DeadLetterReason = 'TTLExpiredException'", EXPIRED),
        ("deadletterreason LIKE 'TTL%'", EXPIRED),
        ("DeadLetterErrorDescription LIKE '%expired%'", EXPIRED),
        ("sys.DeadLetterSource = 'q'", EXPIRED),
        ("DeadLetterReason = 'bad order' AND DeadLetterErrorDescription = 'no such article'", REFUSED),
        ("property('DeadLetterReason') = 'bad order'", REFUSED),
        ("EXISTS(DeadLetterReason)", REFUSED),
        ("DeadLetterReason = 'app:bad'", OTHERS),
    ],
)
def test_rules_match_dead_letters_by_their_reason(sql: str, notes: dict[str, Any]) -> None:
    assert matches(sql, notes)
    assert not matches(sql, {}), "it is no dead letter"


def test_what_the_broker_notes_is_before_what_a_sender_wrote() -> None:
    own = {"DeadLetterReason": "mine"}
    assert matches("DeadLetterReason = 'mine'", {}, own)
    assert matches("DeadLetterReason = 'bad order'", REFUSED, own)
