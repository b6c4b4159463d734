"""The decisions of a replicated shard's members: pure functions, which the explorer can replace one by one.

An id names a directory of a member. An end counts the records of a journal; an epoch counts the owners.
`Laws` holds one function per decision, so that a history without a law is explored by replacing one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

Ids = frozenset[int]

LEASE: Final = 2
"""Ticks from the time at which an owner sent a beat to the end of its lease."""
GRANT: Final = 3
"""Ticks from the receipt of a beat to the end of the member's grant; longer than LEASE for drift."""

UNSEEN: Final = 2
"""More epochs than may have passed without a trace in the journals that a claim is compared with."""


def accepted_end(owner: int, synced: int, ends: Sequence[int], required: Ids) -> int:
    """How much of its journal an owner may call accepted. `ends` are acknowledged in its epoch, by id."""
    return min([synced, *(ends[member] for member in required if member != owner)])


def required_while_unknown(required: Ids, wanted: Ids) -> Ids:
    """Who has to acknowledge after a write of the set was sent, until the entry's revision has changed."""
    return required | wanted


def has_caught_up(acknowledged: int, written: int) -> bool:
    """May this member be demanded, and added to the set?"""
    return acknowledged >= written


def may_be_removed(in_sync: Ids, minimum: int) -> bool:
    """May an owner remove one member of this set?"""
    return len(in_sync) - 1 >= minimum


def may_change_the_set(has_begun: bool) -> bool:
    """May this owner write another set? `has_begun`: its first segment is on its own disk."""
    return has_begun


def compared_revision(known: int) -> int | None:
    """Which revision of `replicas/N` a write of the entry, or in the shard's name, demands; None: any."""
    return known


def set_of_a_take_over(in_sync: Ids, owner: int) -> Ids:
    """The set in the entry that a take-over writes."""
    return in_sync


def needs_a_take_over(is_owner: bool) -> bool:
    """Does a process that has started need an epoch of its own? `is_owner`: the entry names its member."""
    return True


def may_take_over(member: int, in_sync: Ids) -> bool:
    """May this member write itself into the entry as the owner?"""
    return member in in_sync


def follows(promised: int, epoch: int) -> bool:
    """Does a member acknowledge an owner of `epoch`? `promised` is the newest epoch in its own journal."""
    return epoch >= promised


def promised_by_answering(epoch: int) -> int:
    """The oldest epoch that a member follows when the owner of `epoch` knows how far its journal reaches."""
    return epoch


def promised_at_start(entry_epoch: int) -> int:
    """The oldest epoch that a process follows that has started, and has read the entry before."""
    return entry_epoch


def may_begin(compared: int, members: int, minimum: int, is_whole: bool) -> bool:
    """May an owner write its first segment? It has compared its journal with `compared` disks of the set,
    its own included. With fewer than the minimum nothing is accepted anyway, so nobody waits longer. A set
    that an operator's word has made smaller than the minimum is compared wholly.

    `is_whole`: its process has followed an older owner, and has had everything accepted. What it has
    acknowledged since is on its disk: one that is set back, or damaged, shows that to a new process alone."""
    return is_whole or compared >= min(members, minimum)


def ends_by_answering(won: int, newer: int) -> bool:
    """Does a process that has won `won`, or serves in it, end before it answers a newer owner?"""
    return 0 < won < newer


def ends_by_following(won: int, newer: int) -> bool:
    """Does a process that has won `won`, and has not begun, end before it follows a newer epoch?"""
    return 0 < won < newer


def may_answer(required: Ids, owner: int, confirmed: Ids) -> bool:
    """May an answer leave? `confirmed` acknowledged a message that was sent after the request was applied."""
    return required - {owner} <= confirmed


def may_deliver(now: int, silent_until: int, required: Ids, owner: int, leases: Sequence[int]) -> bool:
    """May a delivery leave? All times are in ticks of the owner's clock."""
    return now >= silent_until and all(now < leases[member] for member in required if member != owner)


def lease_end(sent: int, heard: int) -> int:
    """When the lease ends that a member granted for a beat, `heard` being the time of the reply."""
    return sent + LEASE


def silent_until(granted_until: int) -> int:
    """When a new owner may deliver; `granted_until` is the latest end of its grants to others."""
    return granted_until


def counts_as_lease(sent: int, returned_at: int) -> bool:
    """Has an owner a lease by the reply to a beat of `sent`, if it has returned its leases since?"""
    return sent > returned_at


def is_returned(granted: tuple[int, int], sent: int, owner: tuple[int, int], returned_at: int) -> bool:
    """Does a grant end that was given to the process `granted` for a beat of `sent`, when the process `owner`
    has returned its leases?"""
    return granted == owner and sent <= returned_at


def granted_at_start(now: int) -> int:
    """The end of the grants that a member counts when its process starts and remembers none."""
    return now + GRANT


def may_cut(to: int, mark: int) -> bool:
    """May a member cut its journal to follow an owner? `mark` is what it knows to be accepted."""
    return to >= mark


def refuses_a_jump(is_behind_a_jump: bool) -> bool:
    """Does a member refuse to be cut to a journal that was promoted? It may be what was named as lost."""
    return is_behind_a_jump


def droppable_end(synced: int, accepted: int) -> int:
    """A segment may be dropped when the records that the cleaner wrote again lie before this end."""
    return accepted


def shown_end(synced: int, accepted: int) -> int:
    """How much of the journal readers are shown and the archive links."""
    return accepted


def trusts_own_disk(entry_epoch: int, own_epoch: int) -> bool:
    """Does a member follow the entry, given the newest epoch in its own journal?"""
    return entry_epoch >= own_epoch


def reclaims(entry_epoch: int, own_epoch: int, in_sync: Ids) -> bool:
    """May a member that is not in a set which it trusts claim the shard? The entry was set back, as the
    member's own journal shows; or nobody is known to have everything, since such a claim was the last one."""
    return own_epoch > entry_epoch or not in_sync


def set_reclaimed(member: int) -> Ids:
    """The set that such a claim writes: nobody is known to have everything before journals are compared."""
    return frozenset()


def epoch_reclaimed(entry_epoch: int, own_epoch: int) -> int:
    """The epoch that such a claim writes. Owners that this journal has never heard of may have had the next
    ones, and one of them may still run."""
    return own_epoch + 1 + UNSEEN if own_epoch > entry_epoch else entry_epoch + 1


def may_begin_reclaimed(compared: int, members: int, minimum: int) -> bool:
    """May an owner with such a claim write its first segment? It has compared its journal with `compared`
    disks of all members, its own included. What was accepted is on `minimum` of them."""
    return compared > members - minimum


def may_accept(in_sync: Ids) -> bool:
    """May an owner accept anything with this set?"""
    return bool(in_sync)


def trusts_others(won: int, heard: int) -> bool:
    """Does an owner that has won epoch `won` begin, given the newest epoch that another member has named?"""
    return won > heard


def id_after_loss(member: int, fresh: int) -> int:
    """The id of a directory that was emptied."""
    return fresh


def set_withdrawn(member: int, in_sync: Ids) -> Ids:
    """The set that a process writes, before it answers anyone, whose directory was restored or set back."""
    return in_sync - {member}


def must_withdraw(member: int, in_sync: Ids) -> bool:
    """Does such a process write the entry? Also if it is out of sync: an owner may have sent the write that
    adds it, and the revision refuses that."""
    return True


def mark_when_attached(acknowledged: int, end: int) -> int:
    """How far an owner counts what a member has acknowledged that attaches with a journal of this end."""
    return min(acknowledged, end)


def id_after_damage(member: int, fresh: int) -> int:
    """The id of a member in sync that found damage below the mark: it leaves the set, and fetches."""
    return fresh


def may_judge(view: int, won_at: int, begun_at: int) -> bool:
    """May a new owner judge its queues by names and placements that it read at the revision `view`?

    `won_at` is the revision of its take-over, `begun_at` one that it read after its first segment: an older
    owner may add to its journal between the two, and what it adds may know a later revision than `won_at`."""
    return view >= begun_at


@dataclass(frozen=True, slots=True)
class Laws:
    """One function per decision."""

    accepted_end: Callable[[int, int, Sequence[int], Ids], int] = accepted_end
    required_while_unknown: Callable[[Ids, Ids], Ids] = required_while_unknown
    has_caught_up: Callable[[int, int], bool] = has_caught_up
    may_be_removed: Callable[[Ids, int], bool] = may_be_removed
    may_change_the_set: Callable[[bool], bool] = may_change_the_set
    compared_by_sets: Callable[[int], int | None] = compared_revision
    compared_by_moves: Callable[[int], int | None] = compared_revision
    compared_by_deletions: Callable[[int], int | None] = compared_revision
    set_of_a_take_over: Callable[[Ids, int], Ids] = set_of_a_take_over
    needs_a_take_over: Callable[[bool], bool] = needs_a_take_over
    may_take_over: Callable[[int, Ids], bool] = may_take_over
    follows: Callable[[int, int], bool] = follows
    promised_by_answering: Callable[[int], int] = promised_by_answering
    promised_at_start: Callable[[int], int] = promised_at_start
    may_begin: Callable[[int, int, int, bool], bool] = may_begin
    ends_by_answering: Callable[[int, int], bool] = ends_by_answering
    ends_by_following: Callable[[int, int], bool] = ends_by_following
    may_answer: Callable[[Ids, int, Ids], bool] = may_answer
    may_deliver: Callable[[int, int, Ids, int, Sequence[int]], bool] = may_deliver
    lease_end: Callable[[int, int], int] = lease_end
    silent_until: Callable[[int], int] = silent_until
    counts_as_lease: Callable[[int, int], bool] = counts_as_lease
    is_returned: Callable[[tuple[int, int], int, tuple[int, int], int], bool] = is_returned
    granted_at_start: Callable[[int], int] = granted_at_start
    may_cut: Callable[[int, int], bool] = may_cut
    refuses_a_jump: Callable[[bool], bool] = refuses_a_jump
    droppable_end: Callable[[int, int], int] = droppable_end
    shown_end: Callable[[int, int], int] = shown_end
    trusts_own_disk: Callable[[int, int], bool] = trusts_own_disk
    trusts_others: Callable[[int, int], bool] = trusts_others
    reclaims: Callable[[int, int, Ids], bool] = reclaims
    set_reclaimed: Callable[[int], Ids] = set_reclaimed
    epoch_reclaimed: Callable[[int, int], int] = epoch_reclaimed
    may_begin_reclaimed: Callable[[int, int, int], bool] = may_begin_reclaimed
    may_accept: Callable[[Ids], bool] = may_accept
    id_after_loss: Callable[[int, int], int] = id_after_loss
    set_withdrawn: Callable[[int, Ids], Ids] = set_withdrawn
    must_withdraw: Callable[[int, Ids], bool] = must_withdraw
    mark_when_attached: Callable[[int, int], int] = mark_when_attached
    id_after_damage: Callable[[int, int], int] = id_after_damage
    may_judge: Callable[[int, int, int], bool] = may_judge
