"""Coordinator: the port to the store of names, placements, users and the identity of an installation.

``sqlite.py`` stores them in one file for the processes of one machine, ``memory.py`` in one process. Every
method is one transaction; its result survives the death of any process.

Everything is an entry: a text under a key, with the revision that made the key and the one that last changed
it, as in etcd (docs/formats/coordinator.md lists the keys). Revisions rise with each transaction that
writes. A deletion is stored for a while, so that followers see it.

Fence: the entries by which a process owns something, on which all of its writes depend. A process whose shard
another process has taken over may not know that for a while, and what it has sent may reach the coordinator
when it has ended: by then its successor may have dropped a copy that the process makes the owner, or have
consumers that it does not know. So the revision of the entry that names the owner is compared with each
write, in the same transaction (docs/adr/0074-fenced-writes.md). The fence is a part of the coordinator,
and not an argument of those who write: no writer can forget it.

`map.py` is a process's view of placements and members, `namespace/directory.py` its view of names.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from lightrail.cluster.counts import CoordinatorCounts
from lightrail.cluster.entries import Entry, News
from lightrail.cluster.users import UserRecord
from lightrail.model.placement import Placement

WRITES_MAX: Final = 100
"""Writes of one transaction; etcd allows 128 operations (its --max-txn-ops)."""
ATTEMPTS_MAX: Final = 100
"""Consecutive conflicts after which a change fails; each one means that another writer succeeded."""


class CoordinatorError(Exception):
    """The coordinator can't or must not carry out the request now; the message has the reason and the
    remedy."""

    may_be_written: bool = True
    """Whether a write that fails so may be applied all the same, even later."""


class CoordinatorRefusedError(CoordinatorError):
    """The coordinator refuses this process, for example its credentials; a retry is useless."""

    may_be_written = False


class CoordinatorFullError(CoordinatorError):
    """The coordinator has no space for a write; an operator has to free some."""

    may_be_written = False


class NotSetBackError(CoordinatorError):
    """A put-back was requested, and the coordinator has lost no entry that this process knows."""


class UserExistsError(CoordinatorError):
    """A user of this name exists already."""


class UnknownUserError(CoordinatorError):
    """No user has this name."""


class ShardsInUseError(CoordinatorError):
    """Fewer shards were requested than own queues."""


class ConflictError(CoordinatorError):
    """An entry is not at the revision that the writer had read; read it again and decide again."""

    def __init__(self, key: str, *others: str) -> None:
        super().__init__(f"{key} was changed by another process in the meantime; read it again")
        self.key = key
        self.keys = frozenset((key, *others))
        """All keys of the transaction that were changed, as far as the store looks at all of them."""


class FencedError(CoordinatorError):
    """An entry of the fence has another revision: nothing was written.

    Another process owns what this one owned, or this process has changed the entry itself meanwhile. Who
    follows the entry knows which; others may try again after a pause.
    """

    may_be_written = False

    def __init__(self, key: str, revision: int) -> None:
        super().__init__(
            f"{key} is not at revision {revision}, at which this process owned what it writes for: nothing "
            "was written. If another process owns it now, this one is about to end"
        )
        self.key = key


class Write(NamedTuple):
    """One write of a transaction: `value` None deletes. `guard` is the revision that the entry must have."""

    key: str
    value: str | None
    guard: int | None = None
    """0: the key must not exist. None: any state."""
    is_check: bool = False
    """The entry stays as it is, and only its guard counts; see `unchanged`."""
    was: str | None = None
    """With a guard: the value that the entry must have, too. None: any. After etcd was restored from a
    backup, another value may have the same revision."""


def unchanged(key: str, revision: int, value: str | None = None) -> Write:
    """A part of a transaction that depends on an entry without changing it: that has this revision, or with
    0 does not exist; and has this value, unless that is None."""
    return Write(key, None, revision, is_check=True, was=value)


def holds(write: Write, revision: int, value: str | None) -> bool:
    """Whether the guard of a write holds for an entry that has this revision and value; 0, None: for none."""
    if write.guard is None:
        return True
    return write.guard == revision and (not revision or write.was in (None, value))


Commit = Callable[[Sequence[Write]], Awaitable[int]]
"""Makes one transaction, and returns its revision; see KeySpace.write."""


@dataclass(slots=True, eq=False, repr=False)
class Fence:
    """The revisions and values that entries must have for a write of this process to be made."""

    _revisions: dict[str, int] = field(default_factory=dict)
    _values: dict[str, str | None] = field(default_factory=dict)

    def set(self, key: str, revision: int, value: str | None = None) -> None:
        """From now on all writes depend on this revision of an entry; 0: that there is none.

        Args:
            value: of that revision. Without it the revision may be that of another value, after etcd was
                restored from a backup.
        """
        self._revisions[key], self._values[key] = revision, value

    def lift(self, key: str) -> None:
        """From now on no write depends on this entry."""
        self._revisions.pop(key, None)
        self._values.pop(key, None)

    async def write(self, writes: Sequence[Write], commit: Commit) -> int:
        """Makes a transaction that depends on the fence too.

        A write to an entry of the fence has to have its revision as the guard. The fence then has the
        revision of the transaction: this process goes on as the owner that it has made itself. Where the
        answer was lost the fence stays as it was, until `set` is called again.

        Raises:
            FencedError: nothing was written.
            ConflictError, CoordinatorError: see KeySpace.write.
        """
        if not self._revisions:
            return await commit(writes)
        values = dict(self._values)
        writes = [each._replace(was=values.get(each.key)) if each.key in values else each for each in writes]
        own = {each.key: each for each in writes if each.key in self._revisions}
        for key, each in own.items():
            if each.guard != self._revisions[key]:
                raise FencedError(key, self._revisions[key])
        # First, as some stores report the first guard alone that does not hold.
        checks = [
            unchanged(key, revision, values[key])
            for key, revision in self._revisions.items()
            if key not in own
        ]
        sent = dict(self._revisions)
        try:
            revision = await commit([*checks, *writes])
        except ConflictError as conflict:
            fallen = next((key for key in sent if key in conflict.keys), None)
            if fallen is None:
                raise
            raise FencedError(fallen, sent[fallen]) from None
        for key, each in own.items():
            if not each.is_check and self._revisions.get(key) == each.guard:
                self.set(key, 0 if each.value is None else revision, each.value)
        return revision


class SetBack(NamedTuple):
    """The coordinator has lost revisions that this process knows."""

    known_at: int
    """The newest revision that this process knows."""
    revision: int
    """The coordinator's newest revision."""
    reason: str
    """The evidence, as text."""


@dataclass(slots=True)
class PutBack:
    """The writes that restore a coordinator's lost entries, and their result."""

    writes: list[Write] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    """Keys whose value was written since then, and stays."""
    again: list[str] = field(default_factory=list)
    """Keys that this process does not know: they were deleted before, or created since."""

    def shown(self) -> dict[str, object]:
        """The result as JSON for HTTP."""
        return {
            "written": sorted(each.key for each in self.writes),
            "kept": sorted(self.kept),
            "again": sorted(self.again),
        }


class KeySpace(Protocol):
    """Entries, and this process's registrations among them. Many tasks may call it at once."""

    counts: CoordinatorCounts
    """Counters of this process's calls to the coordinator."""
    fence: Fence
    """The entries on which all writes and registrations of this process depend; empty at first."""

    async def cluster_id(self) -> str:
        """The installation's random id, 32 hexadecimal digits; journals contain it."""

    async def secret(self) -> bytes:
        """32 random bytes, the same for all processes; log-ins of unknown users are answered with salts from
        it."""

    async def write(self, writes: Sequence[Write]) -> int:
        """Carries out all of these writes or none, and none if an entry of `fence` has changed.

        At most WRITES_MAX writes and checks, each of a different key, besides those of the fence. `news` of
        this process has the writes when this returns, or soon after if etcd can't be followed meanwhile.

        Returns:
            The revision of this transaction.

        Raises:
            ConflictError: a guard does not hold; nothing was written.
            FencedError: see `Fence.write`; nothing was written.
            ValueError: too many writes, or two of one key.
            CoordinatorError: nothing was written, or the message says that the result is unknown.
        """

    async def entry(self, key: str) -> Entry | None:
        """The entry of a key, or None; without deleted ones."""

    async def current(self, key: str) -> Entry | None:
        """The entry of a key as it is at the moment of the call, or None; `news` and `entry` have it then.

        `entry` may answer from what this process knows, which is older by a moment. Raises CoordinatorError.
        """

    async def entries(self, prefix: str) -> list[Entry]:
        """All entries whose keys begin with `prefix`, sorted by key, without deleted ones."""

    async def register(
        self, key: str, value: str, displaced: Callable[[str], None], *, guard: int | None = None
    ) -> None:
        """Keep an entry for as long as this process lives and reaches the coordinator.

        With etcd the entry has a lease, which is refreshed, and is written again after the lease was lost; in
        a file it stays until `unregister` or the next process that registers. It replaces any entry of the
        key: the caller has checked that it may. `displaced` is called, on the loop, with the value of
        another process that has written the key since; the entry is then left unchanged. A second call
        changes the value of the entry.

        Raises:
            ConflictError: `guard` is the revision that the entry must have, as in a Write, and it does not.
        """

    async def unregister(self, key: str) -> None:
        """Deletes a registration, if it still belongs to this process."""

    def news(self, since: int) -> News | None:
        """Changes after revision `since`; None if there are none.

        Does not wait for other processes, costs microseconds when nothing changed, and is called on the loop.
        With `since` 0, or so old that later deletions are no longer stored, returns all entries (`whole`).
        """

    def on_news(self, call: Callable[[], None]) -> None:
        """Registers `call`, which is called on the loop soon after there is news.

        With a file only writes of this process cause a call; poll `news` for those of other processes.
        """

    @property
    def full(self) -> str | None:
        """Why writes are refused, from the first refusal for lack of space until a write succeeds; otherwise
        None."""

    @property
    def set_back(self) -> SetBack | None:
        """Evidence that the coordinator was set back, as by a restored snapshot; then the known state is used
        and nothing is written. Otherwise None.
        """

    async def put_back(self) -> PutBack:
        """Writes the entries that this process knows and a coordinator that was set back has lost; then all
        processes continue with it.

        Raises:
            NotSetBackError: the coordinator was not set back.
            CoordinatorError: see `write`; entries written so far stay, and a second call continues.
        """

    async def remaining_ms(self, key: str) -> int | None:
        """Remaining time of a registration without a refresh, in milliseconds, by the coordinator's clock.

        None for an entry without a lease, 0 without an entry. Raises CoordinatorError.
        """

    async def close(self) -> None:
        """Releases files and connections; nothing may be called afterwards."""


class Coordinator(KeySpace, Protocol):
    """The whole shared state of an installation: entries, shards with the queues placed on them, and users.

    Names of queues are decoded and checked (model/names.py).
    """

    async def shards(self) -> int:
        """Number of shards that were registered and not removed."""

    async def members(self) -> int | None:
        """Number of members of the coordinator's own cluster, as it is now; None for a coordinator that has
        none. Raises CoordinatorError."""

    async def set_shards(self, count: int) -> None:
        """Sets the shards to 0 to `count` - 1. Raises ShardsInUseError if a shard to be removed owns
        queues."""

    async def place(self, queue: str) -> Placement:
        """The placement of a queue; a queue without one is placed, in an epoch above all its former ones: see
        `placement.place`. One whose shard has fewer members than its policy demands begins to move.

        ``NAME/$dlq`` has no separate placement: it is always on the shard of NAME. Raises CoordinatorError if
        no shard accepts queues that demand as many replicas as the policy of this one.
        """

    def replicas_max(self) -> int:
        """The most replicas that the policy of a queue may demand now: see `placement.replicas_max`."""

    async def placement(self, queue: str) -> Placement | None:
        """The placement of a queue, or None."""

    async def placements(self) -> dict[str, Placement]:
        """All placements, without dead-letter queues."""

    async def user(self, name: str) -> UserRecord | None:
        """The user of this name, or None."""

    async def users(self) -> list[str]:
        """Names of all users, sorted."""

    async def has_users(self) -> bool:
        """Whether any user is defined."""

    async def add_user(self, record: UserRecord) -> None:
        """Raises UserExistsError."""

    async def replace_user(self, record: UserRecord) -> None:
        """Replaces a user's record, for a new password. Raises UnknownUserError."""

    async def remove_user(self, name: str) -> None:
        """Raises UnknownUserError."""
