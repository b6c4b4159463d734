"""Steps at an owner: a decider asks about absence, a reader reads, and the cleaner drops segments."""

from collections.abc import Iterator

from tests.model.replication.invariants import ABSENCE
from tests.model.replication.owning import name, owners
from tests.model.replication.state import AGAIN, State, oldest_followed, replaced
from tests.model.replication.world import Step, World, letter, written


def ask_about_absence(world: World, state: State) -> Iterator[Step]:
    """A decider asks an owner whether r1 is prepared. R1 is accepted, and this owner does not have it."""
    if not world.scenario.question or 1 not in state.accepted:
        return
    for machine, member in owners(state):
        if member.confirmed is None and 1 not in member.journal:
            asked = member._replace(confirmed=frozenset())
            yield (
                f"a decider asks {name(machine, member)} whether r1 is prepared there",
                state._replace(members=replaced(state, machine, asked)),
                None,
            )


def confirm(world: World, state: State) -> Iterator[Step]:
    """A member acknowledges a message that the owner sent after the question."""
    for machine, owner in owners(state):
        if owner.confirmed is None:
            continue
        for other, member in enumerate(state.members):
            if other == machine or member.id in owner.confirmed:
                continue
            if world.laws.follows(oldest_followed(member), owner.epoch):
                confirmed = owner._replace(confirmed=owner.confirmed | {member.id})
                yield (
                    f"{letter(other)} confirms to {name(machine, owner)} that it follows",
                    state._replace(members=replaced(state, machine, confirmed)),
                    None,
                )


def answer(world: World, state: State) -> Iterator[Step]:
    """The owner answers: r1 is not prepared here. The decider forgets its decision."""
    for machine, member in owners(state):
        if member.confirmed is None or not world.laws.may_answer(
            member.required, member.id, member.confirmed
        ):
            continue
        answered = member._replace(confirmed=None)
        yield (
            f"{name(machine, member)} answers that r1 is not prepared there",
            state._replace(members=replaced(state, machine, answered)),
            ABSENCE,
        )


def read(world: World, state: State) -> Iterator[Step]:
    """A reader of the journal is shown records, or the archive links them."""
    if not world.scenario.reader:
        return
    for machine, member in owners(state):
        end = world.laws.shown_end(member.synced, member.mark)
        if end > len(state.shown):
            shown = member.journal[:end]
            yield f"{name(machine, member)} shows {written(shown)}", state._replace(shown=shown), None


def clean(world: World, state: State) -> Iterator[Step]:
    """The cleaner writes r1 again at the tail, and then drops the segment of r1."""
    if not world.scenario.cleaner:
        return
    for machine, member in owners(state):
        journal = member.journal
        if 1 not in journal or journal.index(1) >= member.mark:
            continue
        if 1 + AGAIN not in journal:
            copied = member._replace(journal=(*journal, 1 + AGAIN))
            yield (
                f"the cleaner of {name(machine, member)} writes r1 again",
                state._replace(members=replaced(state, machine, copied)),
                None,
            )
        elif journal.index(1 + AGAIN) < world.laws.droppable_end(member.synced, member.mark):
            dropped = member._replace(journal=tuple(0 if item == 1 else item for item in journal))
            yield (
                f"the cleaner of {name(machine, member)} drops the segment of r1",
                state._replace(members=replaced(state, machine, dropped)),
                None,
            )
