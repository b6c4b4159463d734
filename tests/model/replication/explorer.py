"""A search through all states of a world, breadth first: what it finds has the shortest history."""

import gc
from collections import deque
from dataclasses import dataclass, field

from tests.model.replication import (
    answers,
    coordinator,
    faults,
    following,
    leases,
    names,
    owning,
    taking_over,
)
from tests.model.replication.invariants import broken_in
from tests.model.replication.state import State
from tests.model.replication.world import Steps, World, start_of

STEPS: tuple[Steps, ...] = (
    owning.append,
    owning.sync,
    following.follow,
    owning.accept,
    owning.change_set,
    taking_over.ask_for_the_epoch,
    taking_over.own_again,
    coordinator.apply,
    taking_over.begin,
    owning.read_entry,
    faults.crash,
    following.receive_late,
    following.save_mark,
    faults.lose_disk,
    faults.set_disk_back,
    faults.restore_disk,
    faults.flip,
    faults.switch_off,
    faults.switch_on,
    faults.promote,
    coordinator.restore,
    coordinator.write_again,
    answers.ask_about_absence,
    answers.confirm,
    answers.answer,
    answers.read,
    answers.clean,
    names.move,
    names.drop_copy,
    names.read_names,
    names.create_queue,
    names.delete_queue,
    names.consume,
    names.delete_name,
    leases.tick,
    leases.beat,
    leases.hear_grant,
    leases.hand_back,
    leases.hear_return,
    leases.deliver,
)

Before = dict[State, tuple[State, str, str] | None]
"""Of each state: the state before it, the kind of step between the two, and what happened."""


@dataclass(slots=True)
class Found:
    """What a search has found."""

    states: int = 0
    broken: str | None = None
    """The promise that does not hold; None: no history within the bounds breaks one."""
    history: list[tuple[str, str]] = field(default_factory=list)
    """The shortest history that breaks it: kinds of steps, and what happened."""
    kinds: set[str] = field(default_factory=set)
    """All kinds of steps that have happened in any history."""
    is_complete: bool = True

    def __str__(self) -> str:
        lines = [f"{number:3}. {text}" for number, (_, text) in enumerate(self.history, 1)]
        if self.broken is None:
            return f"{self.states} states, every promise holds" + ("" if self.is_complete else " so far")
        return "\n".join([*lines, f"broken after {self.states} states: {self.broken}"])


def explore(world: World, states_max: int = 10_000_000) -> Found:
    """Visits all states that can be reached, at most `states_max`."""
    was_collecting = gc.isenabled()
    gc.disable()  # A million tuples without a cycle: to look for cycles takes a third of the time.
    try:
        return searched(world, states_max)
    finally:
        if was_collecting:
            gc.enable()


def searched(world: World, states_max: int) -> Found:
    """The search."""
    start = start_of(world.scenario)
    before: Before = {start: None}
    waiting = deque([start])
    found = Found()
    kinds = [steps for steps in STEPS if steps.__name__ not in world.scenario.omitted]
    while waiting and found.is_complete:
        state = waiting.popleft()
        for steps in kinds:
            for text, after, broken in steps(world, state):
                if broken is None:
                    if after in before:
                        continue
                    broken = broken_in(after)
                if broken is not None:
                    found.broken = broken
                    found.history = [*history(before, state), (steps.__name__, text)]
                    found.states = len(before)
                    return found
                before[after] = (state, steps.__name__, text)
                found.kinds.add(steps.__name__)
                waiting.append(after)
        found.is_complete = len(before) <= states_max
    found.states = len(before)
    return found


def history(before: Before, state: State) -> list[tuple[str, str]]:
    """The steps that have led to this state."""
    steps = []
    link = before[state]
    while link is not None:
        state, kind, text = link
        steps.append((kind, text))
        link = before[state]
    return steps[::-1]
