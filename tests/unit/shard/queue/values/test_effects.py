"""Effects: each one is executed or is the answer to a command, and reasons are words that stay."""

import inspect
import re
from typing import get_args

from lightrail.shard.effects import performer
from lightrail.shard.queue.values.effects import (
    Effect,
    LockAnswer,
    LockedDeferred,
    Peeked,
    Reason,
    Renewed,
    SessionRenewed,
    SettledDeliveries,
)

ANSWERS = {LockAnswer, LockedDeferred, Renewed, SessionRenewed, SettledDeliveries, Peeked}
"""What the caller of a command reads itself."""


def test_the_performer_executes_every_effect_that_is_no_answer() -> None:
    checks = re.findall(r"isinstance\(effect, (effects\.[^)]+)\)", inspect.getsource(performer))
    executed = {name for check in checks for name in re.findall(r"effects\.(\w+)", check)}
    assert executed == {each.__name__ for each in set(get_args(Effect)) - ANSWERS}


def test_reasons_are_written_to_dead_letters_and_figures_and_stay_as_they_are() -> None:
    assert [str(reason) for reason in Reason] == [
        "accepted",
        "rejected",
        "expired",
        "max-delivery-count",
        "purged",
        "replaced",
        "cancelled",
        "queue-full",
        "due",
        "discarded",
        "lost",
    ]
