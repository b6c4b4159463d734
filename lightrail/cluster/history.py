"""History: decides whether the entries that a coordinator lists continue those that a process knows.

A restored etcd has fewer revisions than the processes that follow it, or different ones under the same
numbers. Entries that it lacks were not deleted. `doubt` compares; `restoring` plans the writes that restore
lost entries. Both are pure.

The entry ``history`` names the current history. It is absent until the first history was broken: then a new
id is written, by an operator's put-back (`accepted`) or by a shard whose journal has revisions that the
coordinator has not reached. Revisions of different histories must not be compared.
"""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lightrail.cluster.coordinator import ConflictError, CoordinatorError, KeySpace, PutBack, Write
from lightrail.cluster.entries import HISTORY, Entry
from lightrail.cluster.map import FRONTENDS, GATEWAYS, PLACEMENT, SHARDS, Placed
from lightrail.cluster.replica_sets import FOLLOWERS

REGISTRATIONS: Final = (SHARDS, FOLLOWERS, FRONTENDS, GATEWAYS)
"""Prefixes of registrations, which living processes write again."""
_ORDER: Final = ("shardsets/", "users/", "permissions/", "readers/", "names/", "subscriptions/")
"""Prefixes that are written before the rest: a placement must not be known before its name."""
Version = tuple[str, int, int]
"""Key, revision that made it, revision that changed it."""


@dataclass(frozen=True, slots=True)
class History:
    """The entry ``history``."""

    id: str = ""
    """Id; empty for the first history, which has no entry."""
    follows: str = ""
    """The id of the history that was put back into this one."""
    accepted: bool = False
    """Whether an operator has accepted that processes of the history `follows` continue with this one."""

    def encode(self) -> str:
        return json.dumps(
            {"id": self.id, "follows": self.follows, "accepted": self.accepted}, separators=(",", ":")
        )

    @classmethod
    def decode(cls, entry: Entry | None) -> "History":
        """Decodes the entry, or None for the first history. Raises CoordinatorError."""
        if entry is None or entry.value is None:
            return cls()
        try:
            fields = json.loads(entry.value)
            return cls(str(fields["id"]), str(fields["follows"]), fields["accepted"] is True)
        except (ValueError, TypeError, KeyError) as error:
            raise CoordinatorError(f"the entry {entry.key} can't be read: {error}") from None

    def continues(self, known: "History") -> bool:
        """Whether a process of the history `known` may continue with this different history."""
        return self.accepted and self.follows == known.id and self.id != known.id


def doubt(
    known: Mapping[str, Entry],
    known_at: int,
    entries: Sequence[Entry],
    revision: int,
    then: Iterable[Version] | None,
) -> str:
    """Why a list of all entries at `revision` does not continue those known at `known_at`; empty if it does.

    Args:
        then: the versions that the coordinator reports for `known_at`; None if it has compacted that
            revision, or never reached it. Then a missing entry counts as deleted only if a known entry of the
            same or a later revision is still there unchanged: that entry proves that the revision is part of
            this history.
    """
    if revision < known_at:
        return f"it is at revision {revision}, and revision {known_at} was seen before"
    if then is not None:
        versions = {(key, created, at) for key, created, at in then}
        mine = {(key, each.created, each.revision) for key, each in known.items()}
        if versions != mine:
            key = min(versions ^ mine)[0]
            return f"at revision {known_at} it had a different {key} than before"
    there = {each.key: each for each in entries}
    for each in entries:
        if each.revision <= known_at and known.get(each.key) != each:
            # Another history may have written the same key at the same revision, as starts of one member do.
            what = "differs from that known" if each.key in known else "did not exist"
            return f"it has {each.key} of revision {each.revision}, which {what} at revision {known_at}"
    if then is not None:
        return ""
    proven = max((each.revision for key, each in known.items() if there.get(key) == each), default=0)
    for key, each in known.items():
        if key not in there and each.revision > proven and not key.startswith(REGISTRATIONS):
            return f"{key} of revision {each.revision} is missing, and nothing proves that it was deleted"
    return ""


def restoring(known: Mapping[str, Entry], entries: Iterable[Entry]) -> PutBack:
    """A plan for known entries that are missing or older in the list. Deletes nothing."""
    there = {each.key: each for each in entries}
    plan = PutBack()
    for key, each in known.items():
        if key == HISTORY or key.startswith(REGISTRATIONS) or each.value is None:
            continue
        value = each.value
        if key.startswith(PLACEMENT):
            # An epoch that was the revision stays the same although the entry gets another revision.
            placed = Placed.decode(each)
            value = Placed.encode(placed.shard, placed.epoch, placed.lost)
        found = there.get(key)
        if found is None:
            plan.writes.append(Write(key, value, 0))
        elif found.value == each.value:
            continue
        elif found.created == each.created and found.revision < each.revision:
            plan.writes.append(Write(key, value, found.revision))
        else:
            plan.kept.append(key)
    plan.again = [
        key for key in there if key not in known and key != HISTORY and not key.startswith(REGISTRATIONS)
    ]
    plan.writes.sort(key=_order)
    return plan


def _order(write: Write) -> tuple[int, str]:
    found = next((index for index, prefix in enumerate(_ORDER) if write.key.startswith(prefix)), len(_ORDER))
    return found, write.key


async def begin(coordinator: KeySpace) -> None:
    """Names a new history, after a journal has shown that the coordinator lost revisions.

    Raises CoordinatorError. If another process was faster, its id is used.
    """
    there = await coordinator.entry(HISTORY)
    made = History(secrets.token_hex(8), History.decode(there).id)
    try:
        await coordinator.write([Write(HISTORY, made.encode(), there.revision if there is not None else 0)])
    except ConflictError:
        return
