"""The export of a queue to another shard: its messages in pieces by sequence, and its state at the end.

See docs/adr/0010-moving-queues.md. answering.py and freezing.py have the requests and their checks.
"""

from collections.abc import Callable
from typing import Any

from lightrail.shard.effects.actions import Read
from lightrail.shard.effects.performer import Performer
from lightrail.shard.links.links import Links
from lightrail.shard.moving.pieces import Contents, Done, Piece
from lightrail.shard.moving.selection import Selection
from lightrail.shard.moving.state import encode_state
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue
from lightrail.shard.queues.waiting import Waiter

WhenSynced = Callable[[Waiter, int], None]
"""`Engine.when_synced`: the waiter's `accept` is called when all records so far are on disk."""


class Exporting:
    """The export of one queue, from its first piece to the end of its move; `Exports` has all of them.

    Args:
        identity: changes with every start of the shard and with every Exporting, such as the shard's boot
            number and a count. If it changes, the destination drops its copy and begins again, because notes
            of rewritten messages are in memory only.
        when_synced: see `WhenSynced`.
    """

    __slots__ = ("_links", "_performer", "_when_synced", "contents", "ended", "identity", "selection")

    def __init__(
        self, queue: Queue, performer: Performer, links: Links, when_synced: WhenSynced, identity: str
    ) -> None:
        self.contents = Contents(queue, performer)
        self.selection = Selection(self.contents)
        self.identity = identity
        self.ended = False
        self._performer = performer
        self._links = links
        self._when_synced = when_synced

    def end(self) -> None:
        """Ends the export because the move ended or begins again; requests for pieces stay unanswered."""
        self.ended = True

    def note(self, run: Run) -> None:
        """See `Selection.note`."""
        self.selection.note(run)

    def read(self, run: Run, then: Callable[[Read], None]) -> None:
        """Reads the messages of a run from disk; `then` receives them."""
        self._performer.read(self.contents.queue, run, then)

    def piece(
        self, first: int, bytes_max: int, messages_max: int, done: Done, *, rewritten: bool = False
    ) -> None:
        """Answers with messages of the queue with sequences from `first` on; at least one if there are any.

        Ready, delayed and in flight, durable and transient; only those that were enqueued before the
        request, and not before all of those are on disk: after a crash other messages would get their
        sequences. So `done` is called later, with the next commit and when evicted messages were read.

        Args:
            rewritten: only messages whose bytes were changed (annotations) after a piece had them: requested
                from 0 on after the freeze, when the destination has everything else.

        The answer's JSON: "export" (identity), "lowest" (lowest sequence in the queue, or that of its next
        message), "next" (sequence to go on from, None when there was nothing more), "mark" (messages with
        sequences below it could be in this piece), "messages" and "bytes" (all that the queue holds now),
        "rewritten" (as requested), "notes" (number of rewritten ranges), and the columns of its blob; with
        "failed", a sentence, where something could not be read now.
        """
        mark = self.contents.queue.view.next_sequence
        self._when_synced(Piece(self, first, mark, bytes_max, messages_max, done, rewritten), 0)

    def state(self, now_ms: int) -> tuple[dict[str, Any], bytes]:
        """The state (state.py) after the freeze is on disk; may be called again."""
        fields, blob = encode_state(self.contents, self._performer, self._links)
        return {"export": self.identity, "now_ms": now_ms, "notes": self.selection.notes, **fields}, blob
