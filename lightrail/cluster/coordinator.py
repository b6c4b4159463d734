"""Coordinator: the port behind which names, placement, users and the identity of an installation are kept.

``sqlite.py`` keeps them in one file for the processes of one machine, ``memory.py`` in one process. Every
method is one transaction; what it has answered survives the death of any process.

Everything is an entry: a text under a key, with the revision that made the key and the one that last changed
it, as etcd has them (docs/formats/coordinator.md lists the keys). Revisions rise with each transaction that
writes. A deleted entry is remembered for a while, so that whoever follows hears of the deletion.

`map.py` is a process's view of where queues are and who serves them, `namespace/directory.py` that of names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from lightrail.cluster.counts import CoordinatorCounts
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.users import UserRecord
from lightrail.model.placement import Placement

WRITES_MAX: Final = 100
"""Writes of one transaction; etcd allows 128 operations (its --max-txn-ops)."""
ATTEMPTS_MAX: Final = 100
"""Conflicts in a row after which a change is given up; each one means that somebody else got through."""


class CoordinatorError(Exception):
    """The coordinator can't answer now, or must not; the message has the reason and what to do."""


class CoordinatorRefusedError(CoordinatorError):
    """It answers and will not have us, as with wrong credentials: asking again is in vain."""


class CoordinatorFullError(CoordinatorError):
    """It answers and has no space for a write: an operator has to make some."""


class NotSetBackError(CoordinatorError):
    """Something is to be put back, and the coordinator has lost nothing that this process knows."""


class UserExistsError(CoordinatorError):
    """A user of this name is there already."""


class UnknownUserError(CoordinatorError):
    """No user has this name."""


class ShardsInUseError(CoordinatorError):
    """Fewer shards were asked for than hold queues."""


class ConflictError(CoordinatorError):
    """An entry is not at the revision that the writer had read; read it again and decide anew."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key} was changed by somebody else in the meantime; read it again")
        self.key = key


class Write(NamedTuple):
    """One write of a transaction: `value` None deletes. `guard` is the revision that the entry must have."""

    key: str
    value: str | None
    guard: int | None = None
    """0: the key must not be there. None: whatever is there."""


class SetBack(NamedTuple):
    """The coordinator has lost revisions that this process knows."""

    known_at: int
    """The newest revision that is known."""
    revision: int
    """The coordinator's."""
    reason: str
    """What shows it."""


@dataclass(slots=True)
class PutBack:
    """What has to be written to restore what a coordinator has lost, and the result."""

    writes: list[Write] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Keys with another value that was written since: that one stays."""
    again: list[str] = field(default_factory=list)
    """Keys that are not known: they were deleted before, or were made since."""

    def shown(self) -> dict[str, object]:
        """As HTTP shows it."""
        return {
            "written": sorted(each.key for each in self.writes),
            "kept": sorted(self.kept),
            "again": sorted(self.again),
        }


class KeySpace(Protocol):
    """Entries, and what this process registers among them. Safe to be called by many tasks at once."""

    @property
    def counts(self) -> CoordinatorCounts:
        """What this process counts of its contacts with it."""

    async def cluster_id(self) -> str:
        """32 hexadecimal digits, drawn when the installation was made; journals carry them."""

    async def secret(self) -> bytes:
        """32 random bytes, the same for all processes: answers about unknown users are made from them."""

    async def write(self, writes: Sequence[Write]) -> int:
        """All of these or none.

        At most WRITES_MAX, each of another key. `news` of this process has them when it returns,
        or soon after it where etcd can't be followed meanwhile.

        Returns:
            The revision of this transaction.

        Raises:
            ConflictError: a guard does not hold; nothing was written.
            ValueError: too many at once, or two of one key.
            CoordinatorError: nothing was written, or the message says that this is not known.
        """

    async def entry(self, key: str) -> Entry | None:
        """The entry of a key, or None; without deleted ones."""

    async def entries(self, prefix: str) -> list[Entry]:
        """All entries whose keys begin with `prefix`, sorted by key, without deleted ones."""

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], *, guard: int | None = None
    ) -> None:
        """Keep an entry for as long as this process lives and reaches the coordinator.

        With etcd it hangs on a lease, which is refreshed, and is written again after the lease was lost; in a
        file it stays until `unregister` or the next process that registers. It takes the place of whatever is
        there: who may do so was found out before. `displaced` is called, on the loop, with the value of
        another process that has taken the key since; the entry is then left alone. Calling it again gives the
        entry another value.

        Raises:
            ConflictError: `guard` is the revision that the entry must have, as in a Write, and it does not.
        """

    async def unregister(self, key: str) -> None:
        """Deletes such an entry, if it still is this process's."""

    def news(self, since: int) -> News | None:
        """What changed after revision `since`; None for nothing.

        Does not wait for other processes, costs microseconds when nothing changed, and is called on the loop.
        `since` 0, or one so old that deletions after it are forgotten, gives everything (`whole`).
        """

    def on_news(self, call: Callable[[], None]) -> None:
        """Have `call` called, on the loop, soon after there is news.

        With a file only what this process wrote is told so; for the rest, ask for news now and then.
        """

    @property
    def full(self) -> str | None:
        """Why it takes no writes, from one that was refused for want of space until it takes them again."""

    @property
    def set_back(self) -> SetBack | None:
        """Whether it was set back, as by a restored snapshot; then what is known goes on and nothing is
        written.
        """

    async def put_back(self) -> PutBack:
        """Writes what this process knows and a coordinator that was set back has lost; then all go on with
        it.

        Raises:
            NotSetBackError: it was not.
            CoordinatorError: see `write`; what was put back so far stays, and calling it again goes on.
        """

    async def remaining_ms(self, key: str) -> int | None:
        """How much longer a registration stays when nobody refreshes it, in milliseconds, by the coordinator
        itself.

        None where no lease ends it, 0 where it is not there. Raises CoordinatorError.
        """

    async def close(self) -> None:
        """Releases files and connections; nothing may be called afterwards."""


class Placements(Protocol):
    """Shards and the queues placed on them; names of queues are decoded and checked (model/names.py)."""

    async def shards(self) -> int:
        """Number of shards that were ever registered and not removed."""

    async def set_shards(self, count: int) -> None:
        """Shards 0 to `count` - 1, and no others. Raises ShardsInUseError when one that would go holds
        queues."""

    async def place(self, queue: str) -> Placement:
        """Where a queue is; one without a placement is placed, in an epoch above all that it ever had: see
        `placement.choose`.

        ``NAME/$dlq`` has no placement of its own: it is always where NAME is. Raises CoordinatorError when
        there is no shard that takes queues.
        """

    async def placement(self, queue: str) -> Placement | None:
        """Where a queue is, or None."""

    async def placements(self) -> dict[str, Placement]:
        """All queues that are placed, without dead-letter queues."""

    async def unplace(self, queues: Sequence[str]) -> None:
        """Delete the placements of deleted queues: made again, they may be placed elsewhere."""


class Users(Protocol):
    """Who may connect."""

    async def user(self, name: str) -> UserRecord | None:
        """The user of this name, or None."""

    async def users(self) -> list[str]:
        """Names of all users, sorted."""

    async def has_users(self) -> bool:
        """Whether anybody is defined."""

    async def add_user(self, record: UserRecord) -> None:
        """Raises UserExistsError."""

    async def replace_user(self, record: UserRecord) -> None:
        """A new password. Raises UnknownUserError."""

    async def remove_user(self, name: str) -> None:
        """Raises UnknownUserError."""


class Coordinator(KeySpace, Placements, Users, Protocol):
    """Everything that an installation keeps in common."""
