"""Parts of laws that are deleted one at a time, with the scenario and the promise that this breaks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.model.replication import invariants
from tests.model.replication.laws import LEASE, Ids, Laws

LAWS: Final = Laws()


@dataclass(frozen=True, slots=True)
class Deletion:
    """A part of a law that members do without."""

    law: int
    part: str
    """What members do instead."""
    laws: Laws
    scenario: str
    broken: str
    """The promise that the shortest history breaks."""
    steps: tuple[str, ...]
    """Kinds of steps that this history has, in this order."""

    @property
    def name(self) -> str:
        """For tests and the command."""
        return f"{self.law} {self.part}"


def without_own_sync(owner: int, synced: int, ends: Sequence[int], required: Ids) -> int:
    """Only the others count."""
    others = [ends[member] for member in required if member != owner]
    return min(others) if others else synced


def demanded_after_the_write(required: Ids, wanted: Ids) -> Ids:
    """An added member is demanded once etcd has it."""
    return required & wanted if wanted < required else required


def not_demanded_before_the_answer(required: Ids, wanted: Ids) -> Ids:
    """A removed member is no longer demanded when its removal is sent."""
    return wanted if wanted < required else required | wanted


DELETIONS: Final = (
    Deletion(
        1,
        "the others' syncs",
        replace(LAWS, accepted_end=lambda owner, synced, ends, required: synced),
        "two members",
        invariants.IN_SYNC,
        ("append", "sync", "accept"),
    ),
    Deletion(
        1,
        "the owner's own sync",
        replace(LAWS, accepted_end=without_own_sync),
        "two members",
        invariants.IN_SYNC,
        ("append", "follow", "accept"),
    ),
    Deletion(
        1,
        "the union while a change is unknown",
        replace(LAWS, required_while_unknown=not_demanded_before_the_answer),
        "two members",
        invariants.IN_SYNC,
        ("append", "sync", "change_set", "accept"),
    ),
    Deletion(
        2,
        "to have caught up before it is added",
        replace(LAWS, has_caught_up=lambda acknowledged, written: True),
        "a learner",
        invariants.IN_SYNC,
        ("append", "sync", "accept", "change_set", "apply"),
    ),
    Deletion(
        2,
        "to be demanded before it is added",
        replace(LAWS, required_while_unknown=demanded_after_the_write),
        "a learner",
        invariants.IN_SYNC,
        ("follow", "change_set", "append", "sync", "accept", "apply"),
    ),
    Deletion(
        2,
        "the minimum",
        replace(LAWS, may_be_removed=lambda in_sync, minimum: len(in_sync) > 1),
        "three members",
        invariants.COPIES,
        ("change_set", "apply", "change_set", "apply", "accept"),
    ),
    Deletion(
        3,
        "the guard",
        replace(LAWS, compared_by_sets=lambda known: None),
        "two members",
        invariants.IN_SYNC,
        ("change_set", "apply"),
    ),
    Deletion(
        3,
        "that a take-over leaves the set alone",
        replace(LAWS, set_of_a_take_over=lambda in_sync, owner: in_sync - {owner}),
        "a lost disk",
        invariants.PLACES,
        ("ask_for_the_epoch", "apply", "lose_disk"),
    ),
    Deletion(
        3,
        "that a first segment precedes a change of the set",
        replace(LAWS, may_change_the_set=lambda has_begun: True),
        "a lost disk",
        invariants.PLACES,
        ("ask_for_the_epoch", "apply", "change_set", "apply", "lose_disk"),
    ),
    Deletion(
        4,
        "an epoch per process",
        replace(LAWS, needs_a_take_over=lambda is_owner: not is_owner),
        "two members",
        invariants.LINEAGE,
        ("append", "follow", "crash", "own_again", "begin", "append", "follow"),
    ),
    Deletion(
        5,
        "that a member of the set takes over",
        replace(LAWS, may_take_over=lambda member, in_sync: True),
        "a learner",
        invariants.IN_SYNC,
        ("append", "accept", "ask_for_the_epoch", "apply", "begin", "follow"),
    ),
    Deletion(
        5,
        "the refusal of older epochs",
        replace(LAWS, follows=lambda promised, epoch: True),
        "two members",
        invariants.IN_SYNC,
        ("begin", "apply", "accept", "crash", "follow"),
    ),
    Deletion(
        6,
        "the look around",
        replace(LAWS, may_begin=lambda *_: True),
        "a disk set back",
        invariants.IN_SYNC,
        ("set_disk_back", "begin", "follow"),
    ),
    Deletion(
        5,
        "the end of who has won an epoch and follows a newer one",
        replace(LAWS, ends_by_following=lambda won, newer: False),
        "a learner",
        invariants.LINEAGE,
        ("apply", "apply", "begin", "follow", "append", "begin", "append", "follow"),
    ),
    Deletion(
        6,
        "the end of an owner that answers a newer one",
        replace(LAWS, ends_by_answering=lambda won, newer: False),
        "damage",
        invariants.IN_SYNC,
        ("flip", "begin", "sync", "follow", "accept"),
    ),
    Deletion(
        6,
        "that who answers a candidate follows no older owner",
        replace(LAWS, promised_by_answering=lambda epoch: 0),
        "damage",
        invariants.IN_SYNC,
        ("flip", "begin", "follow", "follow", "accept"),
    ),
    Deletion(
        6,
        "that a process reads the entry before it follows",
        replace(LAWS, promised_at_start=lambda entry_epoch: 0),
        "damage and a crash",
        invariants.IN_SYNC,
        ("flip", "begin", "crash", "follow", "follow", "accept"),
    ),
    Deletion(
        7,
        "the round before an answer",
        replace(LAWS, may_answer=lambda required, owner, confirmed: True),
        "a question",
        invariants.ABSENCE,
        ("begin", "append", "accept", "ask_about_absence", "answer"),
    ),
    Deletion(
        8,
        "leases",
        replace(LAWS, may_deliver=lambda now, silent_until, required, owner, leases: True),
        "clocks",
        invariants.ONE_DELIVERS,
        ("begin", "deliver", "deliver"),
    ),
    Deletion(
        8,
        "that a lease runs from the sending of the beat",
        replace(LAWS, lease_end=lambda sent, heard: heard + LEASE),
        "clocks",
        invariants.ONE_DELIVERS,
        ("beat", "begin", "hear_grant", "deliver", "deliver"),
    ),
    Deletion(
        8,
        "that a new owner waits for its own grants",
        replace(LAWS, silent_until=lambda granted_until: 0),
        "clocks",
        invariants.ONE_DELIVERS,
        ("beat", "begin", "deliver", "deliver"),
    ),
    Deletion(
        8,
        "that a starting process counts a grant",
        replace(LAWS, granted_at_start=lambda now: 0),
        "clocks",
        invariants.ONE_DELIVERS,
        ("beat", "crash", "begin", "deliver", "deliver"),
    ),
    Deletion(
        8,
        "that a reply to an older beat is no lease after the return",
        replace(LAWS, counts_as_lease=lambda sent, returned_at: True),
        "a hand-over",
        invariants.ONE_DELIVERS,
        ("beat", "hand_back", "hear_grant", "hear_return", "deliver", "deliver"),
    ),
    Deletion(
        8,
        "that a return ends no later grant",
        replace(LAWS, is_returned=lambda granted, sent, owner, returned_at: granted == owner),
        "a hand-over",
        invariants.ONE_DELIVERS,
        ("hand_back", "beat", "hear_return", "deliver", "deliver"),
    ),
    Deletion(
        8,
        "that an owner returns its own leases alone",
        replace(LAWS, is_returned=lambda granted, sent, owner, returned_at: sent <= returned_at),
        "a hand-over to the next",
        invariants.ONE_DELIVERS,
        ("apply", "begin", "hand_back", "hear_return", "deliver", "deliver"),
    ),
    Deletion(
        9,
        "the comparison by moves",
        replace(LAWS, compared_by_moves=lambda known: None),
        "a move",
        invariants.MOVED,
        ("move", "begin", "apply", "move", "drop_copy"),
    ),
    Deletion(
        9,
        "the comparison by deletions of names",
        replace(LAWS, compared_by_deletions=lambda known: None),
        "a last consumer",
        invariants.NAMED,
        ("begin", "consume", "delete_name", "apply"),
    ),
    Deletion(
        10,
        "the mark below which nothing is cut",
        replace(LAWS, may_cut=lambda to, mark: True),
        "a disk set back, of two",
        invariants.IN_SYNC,
        ("set_disk_back", "begin", "follow"),
    ),
    Deletion(
        10,
        "that nobody follows a jump",
        replace(LAWS, refuses_a_jump=lambda is_behind: False),
        "a promoted member",
        invariants.KEPT,
        ("accept", "switch_off", "promote", "begin", "switch_on", "follow"),
    ),
    Deletion(
        10,
        "that segments are dropped after acceptance",
        replace(LAWS, droppable_end=lambda synced, accepted: synced),
        "a cleaner",
        invariants.IN_SYNC,
        ("clean", "clean"),
    ),
    Deletion(
        10,
        "that readers see accepted records",
        replace(LAWS, shown_end=lambda synced, accepted: synced),
        "a reader",
        invariants.SHOWN,
        ("append", "sync", "begin", "read", "accept"),
    ),
    Deletion(
        11,
        "the epoch on the own disk",
        replace(LAWS, trusts_own_disk=lambda entry_epoch, own_epoch: True),
        "etcd set back, two",
        invariants.ONE_HISTORY,
        ("restore", "ask_for_the_epoch", "begin"),
    ),
    Deletion(
        11,
        "the epochs that others name",
        replace(LAWS, trusts_others=lambda won, heard: True),
        "etcd set back, three",
        invariants.COPIES,
        ("restore", "ask_for_the_epoch", "begin", "follow", "accept"),
    ),
    Deletion(
        11,
        "that a journal newer than the entry is compared with enough others",
        replace(LAWS, may_begin_reclaimed=lambda compared, members, minimum: True),
        "etcd forgets, two",
        invariants.ONE_HISTORY,
        ("restore", "ask_for_the_epoch", "apply", "begin", "change_set", "apply", "accept"),
    ),
    Deletion(
        11,
        "that such a claim has nobody in sync before",
        replace(LAWS, set_reclaimed=lambda member: frozenset({member})),
        "etcd forgets, two",
        invariants.ONE_HISTORY,
        ("restore", "ask_for_the_epoch", "apply", "begin", "accept"),
    ),
    Deletion(
        11,
        "that nothing is accepted while nobody is in sync",
        replace(LAWS, may_accept=lambda in_sync: True),
        "etcd forgets, three",
        invariants.COPIES,
        ("restore", "ask_for_the_epoch", "apply", "begin", "accept"),
    ),
    Deletion(
        11,
        "that its epoch is beyond those of owners without a trace",
        replace(LAWS, epoch_reclaimed=lambda entry_epoch, own_epoch: max(entry_epoch, own_epoch) + 1),
        "etcd set back, three",
        invariants.COPIES,
        ("begin", "restore", "apply", "begin", "follow", "follow", "accept"),
    ),
    Deletion(
        12,
        "a new id for an emptied directory",
        replace(LAWS, id_after_loss=lambda member, fresh: member),
        "a lost disk",
        invariants.IN_SYNC,
        ("accept", "lose_disk", "begin"),
    ),
    Deletion(
        12,
        "to withdraw with a restored directory",
        replace(LAWS, set_withdrawn=lambda member, in_sync: in_sync),
        "restored disks",
        invariants.IN_SYNC,
        ("restore_disk", "restore_disk", "begin", "follow"),
    ),
    Deletion(
        12,
        "to write the entry also out of sync",
        replace(LAWS, must_withdraw=lambda member, in_sync: member in in_sync),
        "a restored learner",
        invariants.IN_SYNC,
        ("accept", "change_set", "restore_disk", "apply"),
    ),
    Deletion(
        12,
        "to count what is there when it attaches",
        replace(LAWS, mark_when_attached=lambda acknowledged, end: acknowledged),
        "a restored learner",
        invariants.IN_SYNC,
        ("accept", "restore_disk", "read_entry", "change_set", "apply"),
    ),
    Deletion(
        12,
        "to leave the set with damage",
        replace(LAWS, id_after_damage=lambda member, fresh: member),
        "damage below the mark",
        invariants.ONE_HISTORY,
        ("flip", "begin"),
    ),
    Deletion(
        13,
        "names as they are after the first segment",
        replace(LAWS, may_judge=lambda view, won_at, begun_at: True),
        "a queue",
        invariants.NAMED,
        ("create_queue", "begin", "delete_queue"),
    ),
    Deletion(
        13,
        "that names are read after the first segment, and not after the take-over alone",
        replace(LAWS, may_judge=lambda view, won_at, begun_at: view >= won_at),
        "a queue",
        invariants.NAMED,
        ("apply", "create_queue", "create_queue", "begin", "delete_queue"),
    ),
    Deletion(
        13,
        "placements as they are after the first segment",
        replace(LAWS, may_judge=lambda view, won_at, begun_at: True),
        "a move",
        invariants.MOVED,
        ("move", "begin", "drop_copy"),
    ),
)
