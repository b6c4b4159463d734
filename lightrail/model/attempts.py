"""Attempts: how often messages have failed, and whether they are deferred, wait, or are a session's state.

All of it is one number, in memory and between shards. So code that stores, joins or moves messages by their
attempts does the same with deferred and waiting ones and states, and has nothing else to do for them. The
lower 32 bits are a field of the journal; the time until which messages wait is above them.
"""

from typing import Final

DEFERRED: Final = 1 << 31
"""The messages are deferred: they stay in the queue until somebody asks for them by their sequences."""
STATE: Final = 1 << 30
"""Beside DEFERRED: the message is the state of a session, and for nobody to receive."""
WAITS: Final = 1 << 32
"""From this number on the messages wait: after a failed delivery, until a time."""


def failures(attempts: int) -> int:
    """The number of failed deliveries."""
    return attempts & STATE - 1


def waiting(attempts: int, until_ms: int) -> int:
    """The attempts of messages that wait until a time, in milliseconds since the epoch."""
    return attempts | until_ms * WAITS


def waits_until_ms(attempts: int) -> int:
    """The time until which messages wait, in milliseconds since the epoch; 0 if they do not wait."""
    return attempts // WAITS


def of_journal(attempts: int) -> int:
    """The part of attempts that is a field of 32 bits."""
    return attempts % WAITS
