"""The source's side of a move: what is in a queue, in pieces by sequence, and its whole state when it stands still.

Docs: docs/adr/0010-moving-queues.md. The protocol (who asks, who may) is not here.
"""

from collections.abc import Callable
from typing import Any

from lightrail.shard.links import Links
from lightrail.shard.peers import Waiter
from lightrail.shard.performer import Performer
from lightrail.shard.queue.runs import Run
from lightrail.shard.queues import Queue

Done = Callable[[dict[str, Any], bytes], None]
"""Gets the answer: what goes into the JSON, and the blob."""
WhenSynced = Callable[[Waiter, int], None]
"""`Engine._when_synced`: the waiter's `accept` is called when everything so far is on disk."""


class Exporting:
    """Lives while its queue is being copied, at `queue.exporting`.

    Args:
        identity: says whether two answers belong together: another one after every start of the shard, and
            for every Exporting (the shard's boot number and a count will do). A destination that sees it
            change throws its copy away and begins anew: notes of what was rewritten are in memory only.
        when_synced: see `WhenSynced`.
    """

    def __init__(
        self, queue: Queue, performer: Performer, links: Links, when_synced: WhenSynced, identity: str
    ) -> None:
        """Begins: `queue.exporting` is this from now on."""
        raise NotImplementedError

    def end(self) -> None:
        """The move is over, or begins anew: `queue.exporting` is None again, pieces under way go unanswered."""
        raise NotImplementedError

    def piece(
        self, first: int, bytes_max: int, messages_max: int, done: Done, *, rewritten: bool = False
    ) -> None:
        """Answers with messages of the queue with sequences from `first` on; at least one if there are any.

        Ready, delayed and in flight, durable and transient; only those that had come when this was asked, and
        not before everything that had come then is on disk: after a crash their sequences would be given to
        others. So `done` is called later, with the next commit and when what is only on disk was read.

        Args:
            rewritten: only messages whose bytes were changed (annotations) after a piece had them: asked for
                from 0 on after the seal, when everything else is there.

        The answer: {"export": identity, "lowest": lowest sequence that is in the queue, "next": sequence to
        go on from or None when there was nothing more, "crc", "runs": number of runs in the blob, "messages"
        and "bytes": all that the queue holds now, "rewritten": whether it was asked so, "notes": how many
        rewritten ranges there are}; with "failed": a sentence, where something could not be read now.
        """
        raise NotImplementedError

    def state(self, now_ms: int) -> tuple[dict[str, Any], bytes]:
        """The final state, once the queue is sealed and that is on disk; may be asked for again.

        Everything `Importing.finish` needs: which sequences are there with which past, who holds what, locks,
        owners of groups, message-ids, the producers' numbers.
        """
        raise NotImplementedError

    def note(self, run: Run) -> None:
        """Performer: messages were rewritten in place."""
        raise NotImplementedError
