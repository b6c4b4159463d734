"""Faults: processes crash, disks are lost, restored, set back or damaged, and machines are switched off."""

from collections.abc import Iterator

from tests.model.replication.owning import restarted
from tests.model.replication.state import Entry, Member, Message, State, replaced
from tests.model.replication.taking_over import won
from tests.model.replication.world import Step, World, letter, letters, written


def crash(world: World, state: State) -> Iterator[Step]:
    """A process dies and is started again. Down is no state: a member that takes no step may be down.

    Of what was not synced everything is lost: a part that survives is a sync before the crash."""
    if state.spent.crashes >= world.scenario.crashes:
        return
    spent = state.spent._replace(crashes=state.spent.crashes + 1)
    for machine, member in enumerate(state.members):
        if member.off:
            continue
        after = state._replace(members=replaced(state, machine, restarted(world, state, member)), spent=spent)
        yield f"{letter(machine)} crashes, and starts again", after, None
        if not member.epoch or state.spent.delayed >= world.scenario.delayed:
            continue
        for other, receiver in enumerate(state.members):
            if other != machine and receiver.journal != member.journal:
                message = Message(member.epoch, other, receiver.process, member.journal)
                yield (
                    f"{letter(machine)} crashes, and starts again; "
                    f"{written(member.journal)} is on its way to {letter(other)}",
                    after._replace(
                        messages=state.messages | {message},
                        spent=spent._replace(delayed=state.spent.delayed + 1),
                    ),
                    None,
                )


def fresh_id(world: World, state: State) -> int:
    """The id of a directory that did not exist before."""
    return world.scenario.members + state.spent.faults


def lose_disk(world: World, state: State) -> Iterator[Step]:
    """A disk is lost or emptied."""
    if state.spent.faults >= world.scenario.lost_disks:
        return
    spent = state.spent._replace(faults=state.spent.faults + 1)
    for machine, member in enumerate(state.members):
        id = world.laws.id_after_loss(member.id, fresh_id(world, state))
        emptied = restarted(world, state, member)._replace(
            id=id, journal=(), synced=0, saved=0, mark=0, sound=id != member.id
        )
        yield (
            f"the disk of {letter(machine)} is emptied; its directory is now {letter(id)}",
            state._replace(members=replaced(state, machine, emptied), spent=spent),
            None,
        )


def set_disk_back(world: World, state: State) -> Iterator[Step]:
    """A volume is set back by seconds; inode, token and id are what they were."""
    if state.spent.faults >= world.scenario.set_backs:
        return
    spent = state.spent._replace(faults=state.spent.faults + 1)
    for machine, member in enumerate(state.members):
        back = restarted(world, state, member)
        for end in range(1, back.synced):
            older = shorter(back, end)
            yield (
                f"the disk of {letter(machine)} is set back to {written(older.journal)}",
                state._replace(members=replaced(state, machine, older), spent=spent),
                None,
            )


def restore_disk(world: World, state: State) -> Iterator[Step]:
    """A directory is replaced by an older one of its own, and the process that starts on it finds that: it
    writes the entry before it answers anyone. The only member in sync is refused, and takes no step."""
    if state.spent.faults >= world.scenario.restored_disks:
        return
    laws, entry = world.laws, state.etcd.entry
    spent = state.spent._replace(faults=state.spent.faults + 1)
    for machine, member in enumerate(state.members):
        if entry.in_sync == {member.id}:
            continue
        back = restarted(world, state, member)
        left, etcd, writes = entry.in_sync, state.etcd, state.writes
        if laws.must_withdraw(member.id, entry.in_sync):
            left = laws.set_withdrawn(member.id, entry.in_sync)
            revision = etcd.revision + 1
            etcd = etcd._replace(entry=entry._replace(revision=revision, in_sync=left), revision=revision)
            writes = frozenset(write for write in writes if write.compared in (None, revision))
        for end in range(1, back.synced):
            older = shorter(back, end)._replace(sound=member.id not in left)
            yield (
                f"the directory of {letter(machine)} is restored with {written(older.journal)}; "
                f"the set is {letters(left)}",
                state._replace(
                    members=replaced(state, machine, older), etcd=etcd, writes=writes, spent=spent
                ),
                None,
            )


def shorter(member: Member, end: int) -> Member:
    """The member with less of its journal."""
    saved = min(member.saved, end)
    return member._replace(journal=member.journal[:end], synced=end, saved=saved, mark=saved, sound=False)


def flip(world: World, state: State) -> Iterator[Step]:
    """A record is damaged, and found when its process starts again.

    Above the mark that the extent knows it counts as a torn end, and is cut; below it is damage."""
    if state.spent.faults >= world.scenario.flips:
        return
    spent = state.spent._replace(faults=state.spent.faults + 1)
    for machine, member in enumerate(state.members):
        after = restarted(world, state, member)
        for end in range(1, after.synced):
            if after.journal[end] <= 0:
                continue
            is_damage = end < after.saved
            id = world.laws.id_after_damage(after.id, fresh_id(world, state)) if is_damage else after.id
            found = f"finds damage, and is now {letter(id)}" if is_damage else "cuts it as a torn end"
            yield (
                f"a flip in {written(after.journal[end : end + 1])} at {letter(machine)}, "
                f"which starts again, {found}",
                state._replace(
                    members=replaced(state, machine, shorter(after, end)._replace(id=id)), spent=spent
                ),
                None,
            )


def switch_off(world: World, state: State) -> Iterator[Step]:
    """A machine is cut off or switched off, so that an operator may believe that it is lost."""
    if not world.scenario.promote or state.spent.crashes >= world.scenario.crashes:
        return
    spent = state.spent._replace(crashes=state.spent.crashes + 1)
    for machine, member in enumerate(state.members):
        if not member.off:
            off = restarted(world, state, member)._replace(off=True)
            yield (
                f"{letter(machine)} is switched off",
                state._replace(members=replaced(state, machine, off), spent=spent),
                None,
            )


def switch_on(world: World, state: State) -> Iterator[Step]:
    """It is switched on again."""
    for machine, member in enumerate(state.members):
        if member.off:
            members = replaced(state, machine, member._replace(off=False))
            yield f"{letter(machine)} is switched on", state._replace(members=members), None


def promote(world: World, state: State) -> Iterator[Step]:
    """An operator names all members of the set as lost, and promotes another one. What these members alone
    had is given up by the operator's word; it has to stay on their disks."""
    etcd = state.etcd
    entry = etcd.entry
    if not world.scenario.promote or state.given_up:
        return
    if any(member.id in entry.in_sync and not member.off for member in state.members):
        return  # Refused: a member of the set answers.
    for machine, member in enumerate(state.members):
        if member.off or member.won:
            continue
        revision = etcd.revision + 1
        promoted = Entry(revision, entry.epoch + 1, member.id, frozenset({member.id}))
        owner = won(world, member, promoted.epoch, promoted.in_sync, revision)
        after = state._replace(
            members=replaced(state, machine, owner),
            etcd=etcd._replace(entry=promoted, revision=revision),
            writes=frozenset(),
            held_before=promoted.in_sync,
            promoted=promoted.epoch,
            given_up=state.accepted,
            accepted=member.journal,
        )
        yield (
            f"the operator names {letters(entry.in_sync)} as lost, and promotes {letter(machine)}",
            after,
            None,
        )
