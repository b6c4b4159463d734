"""Replica sets: who owns a shard with replicas, and which members have everything that it accepted.

The entry ``replicas/N`` (`ReplicaSet`) is changed only by transactions that are guarded by its revision:

    take over     a member that is in sync becomes the owner, in epoch + 1; the set stays as it is
    reclaim       after etcd was set back: a member owns whose journal knows a later epoch than the entry, and
                  nobody is in sync before it has compared its journal with those of others
    remove, add   the owner changes who is in sync, in its epoch
    withdraw      a member whose directory was set back says that it is out of sync
    hand over     an operator names the member that is to be the next owner
    join, leave   a member is listed, or no longer: a learner, until the owner adds it
    promote       an operator gives members up, so that one that is out of sync may own the shard: its journal
                  goes on in another range of record numbers (journal/record.py)

`members` has the members that may own the shard some day; `in_sync` those of them that have every record that
was accepted. A shard without the entry has no replicas: its directory is its only member. Each change is a
new `ReplicaSet` or a SetRefusedError; `write_of` makes the write of it.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from lightrail.cluster.coordinator import CoordinatorError, Write
from lightrail.cluster.entries import Entry

REPLICAS: Final = "replicas/"
FOLLOWERS: Final = "followers/"
"""``followers/N/MEMBER``: registrations of members that do not own."""
PROMOTED_MAX: Final[int] = (1 << 23) - 1
"""The last epoch in which a member may be promoted: numbers of its records fit into 63 bits."""
UNSEEN_EPOCHS: Final = 1_000
"""More owners than may have followed each other without a trace in any journal that a claim is compared with:
one of them may still run."""
MEMBERS_MAX: Final[int] = 7
"""Members of one shard: every record is written by each member that is in sync."""


class SetRefusedError(Exception):
    """A change that would break what the entry promises; the message has what was expected, what was found,
    and what to do."""


class SetMember(NamedTuple):
    """A member of a shard, running or not."""

    host: str = ""
    """Host of its last start: members lie on distinct hosts."""


@dataclass(frozen=True, slots=True)
class ReplicaSet:
    """The entry ``replicas/N``."""

    shard: int
    epoch: int
    """Rises with each process that owns; also the epoch of the segments that it begins."""
    owner: str
    """Id of the member that owns the shard."""
    in_sync: frozenset[str]
    """Members that have every accepted record, the owner among them; none while that is not known."""
    members: Mapping[str, SetMember]
    replicas: int
    """Members that there are to be."""
    min_in_sync: int
    """Fewer members in sync accept nothing."""
    successor: str = ""
    """The member that the owner is to hand the shard over to, by an operator's word; "" for none."""
    promoted_in: int = 0
    """The epoch in which an operator made a member the owner that was out of sync, the last time; 0: never.
    The journal of each later owner has the range of record numbers that this promotion began."""
    revision: int = field(default=0, compare=False)
    """Revision of the entry; guards the next change. 0: there is no entry yet."""
    text: str = field(default="", compare=False)
    """Value of the entry at that revision, as it was written."""

    @property
    def key(self) -> str:
        return key_of(self.shard)

    @property
    def with_everything(self) -> frozenset[str]:
        """Members each of which may have every accepted record: all of them while that is not known."""
        return self.in_sync or frozenset(self.members)

    def encode(self) -> str:
        """The value of its entry."""
        fields: dict[str, Any] = {
            "epoch": self.epoch,
            "owner": self.owner,
            "in_sync": sorted(self.in_sync),
            "members": {id: {"host": found.host} for id, found in sorted(self.members.items())},
            "replicas": self.replicas,
            "min_in_sync": self.min_in_sync,
        }
        if self.successor:
            fields["successor"] = self.successor
        if self.promoted_in:
            fields["promoted"] = self.promoted_in
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, entry: Entry) -> "ReplicaSet":
        """Decodes an entry that exists; ignores fields of newer programs. Raises CoordinatorError."""
        try:
            fields: dict[str, Any] = json.loads(entry.value or "")
            found = cls(
                int(entry.key.removeprefix(REPLICAS)),
                int(fields["epoch"]),
                str(fields["owner"]),
                frozenset(map(str, fields["in_sync"])),
                {str(id): SetMember(str(each.get("host", ""))) for id, each in fields["members"].items()},
                int(fields["replicas"]),
                int(fields["min_in_sync"]),
                str(fields.get("successor", "")),
                int(fields.get("promoted", 0)),
                entry.revision,
                entry.value or "",
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None
        if not found.in_sync <= found.members.keys() or found.owner not in found.members:
            raise CoordinatorError(
                f"the entry {entry.key} can't be read: expected an owner and members in sync that it lists "
                f"as members, found {entry.value}"
            )
        return found

    def written(self, revision: int) -> "ReplicaSet":
        """This set, after it was written as the entry of this revision."""
        return replace(self, revision=revision, text=self.encode())

    # --- changes -----------------------------------------------------------------------------------------

    def taken_over(self, member: str, host: str) -> "ReplicaSet":
        """`member` owns the shard in the next epoch; the set stays as it is.

        Raises SetRefusedError: the member may lack accepted records.
        """
        if member not in self.in_sync:
            raise SetRefusedError(
                f"expected a member in sync ({_named(self.in_sync)}) to take shard {self.shard} over, found "
                f"{member}, which may lack accepted records: wait until one of these runs, or promote it"
            )
        members = {**self.members, member: SetMember(host)}
        return replace(self, epoch=self.epoch + 1, owner=member, members=members, successor="")

    def handed_over(self, member: str) -> "ReplicaSet":
        """The owner is to end in order, and `member` to take the shard over.

        Raises SetRefusedError: the member may lack accepted records, or owns the shard.
        """
        others = self.in_sync - {self.owner}
        if member not in others:
            raise SetRefusedError(
                f"expected another member of shard {self.shard} that is in sync ({_named(others)}), found "
                f"{member}: wait until it is in sync, or choose another one"
            )
        return replace(self, successor=member)

    def reclaimed(self, member: str, host: str, epoch: int) -> "ReplicaSet":
        """`member`, whose journal knows `epoch`, owns the shard, and nobody is known to have everything.

        Raises SetRefusedError: it is no member, or the entry knows this epoch and who is in sync.
        """
        if member not in self.members:
            raise SetRefusedError(
                f"expected a member of shard {self.shard} ({_named(self.members)}), found {member}: it may "
                "lack accepted records; wait until one of these runs"
            )
        if self.in_sync and epoch <= self.epoch:
            raise SetRefusedError(
                f"expected a journal of a later epoch than {self.epoch} of shard {self.shard}, whose members "
                f"in sync are known ({_named(self.in_sync)}), found one of epoch {epoch}: let one of these "
                "take over"
            )
        next_epoch = self._later_than(epoch)
        members = {**self.members, member: SetMember(host)}
        return replace(
            self, epoch=next_epoch, owner=member, in_sync=frozenset(), members=members, successor=""
        )

    def removed(self, members: Iterable[str]) -> "ReplicaSet":
        """These members are out of sync, as they do not acknowledge.

        Raises SetRefusedError: one of them owns, or fewer than the minimum would be in sync.
        """
        left = self.in_sync - frozenset(members)
        if self.owner not in left:
            raise SetRefusedError(
                f"expected the owner {self.owner} of shard {self.shard} to stay in sync, found it among "
                "members to remove: let another member take over first"
            )
        if len(left) < min(self.min_in_sync, len(self.in_sync)):
            raise SetRefusedError(
                f"expected at least {self.min_in_sync} members of shard {self.shard} in sync, found "
                f"{len(left)} without {_named(self.in_sync - left)}: start one again, or lower the minimum"
            )
        return replace(self, in_sync=left)

    def withdrawn(self, member: str) -> "ReplicaSet":
        """`member` takes itself out of those in sync: its directory may lack accepted records. It may be the
        owner, and fewer than the minimum may be left, which accept nothing.

        The entry is to be written also if it is as before: what was sent to add the member fails then.

        Raises SetRefusedError: nobody else is in sync.
        """
        if self.in_sync == {member}:
            raise SetRefusedError(
                f"expected another member of shard {self.shard} in sync, found {member} alone, whose "
                "directory may lack accepted records"
            )
        successor = "" if self.successor == member else self.successor
        return replace(self, in_sync=self.in_sync - {member}, successor=successor)

    def added(self, member: str) -> "ReplicaSet":
        """A member is in sync; the owner has demanded its acknowledgements before. The owner is as well.

        Raises SetRefusedError: it is no member.
        """
        if member not in self.members:
            raise SetRefusedError(
                f"expected a member of shard {self.shard} ({_named(self.members)}), found {member}: it has "
                "been removed"
            )
        return replace(self, in_sync=self.in_sync | {member, self.owner})

    def joined(self, member: str, host: str, running: Collection[str] = ()) -> "ReplicaSet":
        """A directory is a member from now on, as a learner; known ones get their new host.

        It replaces the member that lay on this host, if that is out of sync and not `running`: its directory
        was lost.

        Raises SetRefusedError: there are as many as there are to be, or another one lies on this host.
        """
        others = {id: each for id, each in self.members.items() if id != member}
        neighbours = [id for id, each in others.items() if host and each.host == host]
        for id in neighbours:
            if id in self.in_sync or id in running:
                raise SetRefusedError(
                    f"expected members of shard {self.shard} on distinct hosts, found {id} on {host} "
                    f"already, {'in sync' if id in self.in_sync else 'running'}: start this one elsewhere, "
                    "or wait until the other one is out of sync"
                )
            del others[id]
        if member not in self.members and len(others) >= self.replicas:
            raise SetRefusedError(
                f"expected fewer than {self.replicas} members of shard {self.shard}, found "
                f"{_named(self.members)}: remove one first"
            )
        return replace(self, members={**others, member: SetMember(host)})

    def left(self, member: str) -> "ReplicaSet":
        """A learner is no member any longer. Raises SetRefusedError: it is in sync, or owns."""
        if member in self.in_sync or member == self.owner:
            raise SetRefusedError(
                f"expected a member of shard {self.shard} that is out of sync, found {member} in sync: stop "
                "its process, and wait until the owner has removed it from those in sync"
            )
        return replace(self, members={id: each for id, each in self.members.items() if id != member})

    def sized(self, replicas: int, min_in_sync: int) -> "ReplicaSet":
        """Other numbers of members. Raises SetRefusedError: they contradict each other."""
        if not 1 <= min_in_sync <= replicas <= MEMBERS_MAX:
            raise SetRefusedError(
                f"expected 1 <= min_in_sync <= replicas <= {MEMBERS_MAX} for shard {self.shard}, found "
                f"min_in_sync {min_in_sync} and replicas {replicas}"
            )
        return replace(self, replicas=replicas, min_in_sync=min_in_sync)

    def promoted(self, member: str, lost: Iterable[str], epoch: int = 0) -> "ReplicaSet":
        """`member` alone is in sync and owns, in the next epoch: every member in sync was given up by name.

        Args:
            epoch: the newest of all journals that are known; later than the entry's if etcd was set back.

        Raises SetRefusedError: one is no member, this one is in sync, or one in sync is not among the lost
        ones.
        """
        lost = frozenset(lost)
        if unknown := {member, *lost} - self.members.keys():
            raise SetRefusedError(
                f"expected members of shard {self.shard} ({_named(self.members)}), found {_named(unknown)}"
            )
        if member in self.in_sync or member in lost:
            raise SetRefusedError(
                f"expected a member of shard {self.shard} that is out of sync and not lost, found {member}, "
                f"which is {'in sync: start it, and it takes over' if member in self.in_sync else 'lost'}. "
                f"`lightrail-admin shard replicas {self.shard} --min-in-sync 1` lets the last member in sync "
                "go on alone"
            )
        if kept := self.in_sync - lost:
            raise SetRefusedError(
                f"expected every member of shard {self.shard} in sync to be named as lost, found "
                f"{_named(kept)} with all accepted ones: start one, and it takes over, or name it with --lost"
            )
        epoch = self._later_than(epoch)
        if epoch > PROMOTED_MAX:
            raise SetRefusedError(
                f"expected an epoch of shard {self.shard} up to {PROMOTED_MAX}, found {epoch}: no range of "
                "record numbers is left"
            )
        return replace(
            self, epoch=epoch, owner=member, in_sync=frozenset({member}), successor="", promoted_in=epoch
        )

    def _later_than(self, epoch: int) -> int:
        """An epoch that no owner has had, where a journal knows this one."""
        return epoch + 1 + UNSEEN_EPOCHS if epoch > self.epoch else self.epoch + 1

    def write_of(self, changed: "ReplicaSet") -> Write:
        """The write that makes this entry the changed one, or nothing if it was changed meanwhile."""
        return Write(self.key, changed.encode(), self.revision)


def key_of(shard: int) -> str:
    """The key of a shard's entry."""
    return f"{REPLICAS}{shard}"


def follower_key(shard: int, member: str) -> str:
    """The key of the registration of a member that does not own."""
    return f"{FOLLOWERS}{shard}/{member}"


def first(shard: int, member: str, host: str, *, replicas: int, min_in_sync: int) -> ReplicaSet:
    """The entry of a shard that has had one member alone, which has everything. Raises SetRefusedError."""
    alone = ReplicaSet(shard, 1, member, frozenset({member}), {member: SetMember(host)}, 1, 1)
    return alone.sized(replicas, min_in_sync)


def _named(members: Iterable[str]) -> str:
    return ", ".join(sorted(members)) or "none"
