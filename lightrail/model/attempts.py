"""Attempts: how often the delivery of messages has failed, whether they are deferred, or a session's state.

All of it is one number of 32 bits, in memory, in the journal and between shards. So code that stores, joins
or moves messages by their attempts does the same with deferred ones and states, and has nothing else to do
for them.
"""

from typing import Final

DEFERRED: Final = 1 << 31
"""The messages are deferred: they stay in the queue until somebody asks for them by their sequences."""
STATE: Final = 1 << 30
"""Beside DEFERRED: the message is the state of a session, and for nobody to receive."""


def failures(attempts: int) -> int:
    """The number of failed deliveries."""
    return attempts & ~(DEFERRED | STATE)
