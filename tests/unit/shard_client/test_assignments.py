"""Assignments of links to shards: every state with every event, of the table and of an owner that uses it."""

from collections.abc import Coroutine
from typing import Any

import pytest

from lightrail.model import conditions, limits
from lightrail.model.placement import Placement
from lightrail.shard_client.links import Consumer
from lightrail.shard_client.owners.assignments import (
    BEHIND,
    Assignment,
    AssignmentError,
    AssignmentEvent,
    LinkState,
)
from lightrail.shard_client.owners.owner import Owner
from lightrail.shard_client.owners.timers import OWNER_LATE_MS
from lightrail.shard_client.peers.shards import ConnectionState
from lightrail.wire.bodies import Refusal
from tests.support.shard.resolvers import FixedResolver

GRID = """
              ASSIGNED  READY   READY_LATE  MOVED        LEFT        LOST        RESTARTED  OWNER_LOST
UNASSIGNED    OPENING   -       -           -            -           -           -          UNASSIGNED
OPENING       -         OPEN    -           UNASSIGNED   UNANSWERED  UNASSIGNED  OPENING    -
OPEN          -         OPEN    -           UNASSIGNED+  DRAINING    UNASSIGNED  OPENING    -
UNANSWERED    -         OPEN    DRAINING    UNASSIGNED   -           UNASSIGNED  OPENING    UNANSWERED
DRAINING      -         OPEN    DRAINING    UNASSIGNED+  -           UNASSIGNED  OPENING    UNANSWERED
"""
"""By state and event: the next state; - where the event is refused; + where the link resumes later."""


def rows() -> list[tuple[LinkState, AssignmentEvent, str]]:
    events, *lines = [line.split() for line in GRID.strip().splitlines()]
    return [
        (LinkState[state], AssignmentEvent[event], then)
        for state, *thens in lines
        for event, then in zip(events, thens, strict=True)
    ]


def test_the_grid_has_every_state_and_event() -> None:
    assert [row[:2] for row in rows()] == [(state, event) for state in LinkState for event in AssignmentEvent]


@pytest.mark.parametrize(("state", "event", "then"), rows())
@pytest.mark.parametrize("resumes", [False, True])
def test_each_state_with_each_event(
    state: LinkState, event: AssignmentEvent, then: str, resumes: bool
) -> None:
    link: Assignment[Peer] = Assignment(7)
    link.state, link.resumes = state, resumes
    if then == "-":
        with pytest.raises(AssignmentError, match=f"link 7 is {state.name} and cannot have {event.name}"):
            link.apply(event)
        assert (link.state, link.resumes) == (state, resumes)
        return
    link.apply(event)
    assert link.state is LinkState[then.rstrip("+")]
    assert link.resumes == (then != "OPEN" and (resumes or then.endswith("+")))


class Peer:
    """As much of a shard connection as an owner sees; keeps what links posted to it."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.state = ConnectionState.SERVING
        self.producers: dict[int, Any] = {}
        self.consumers: dict[int, Any] = {}
        self.posted: list[str] = []

    def open_consumer(self, consumer: Any) -> None:
        self.consumers[consumer.number] = consumer
        self.posted.append(f"open {consumer.number}")

    def close_consumer(self, number: int, flags: int) -> None:
        if self.consumers.pop(number, None) is not None:
            self.posted.append(f"close {number}")

    def post(self, part: bytes) -> None:
        self.posted.append("frame")

    def greet_again(self, why: str) -> None:
        """Only what is unsettled is of interest here."""


class Link(Consumer):
    def __init__(self, number: int) -> None:
        self.number = number
        self.refusal: Refusal | None = None

    def ended(self, refusal: Refusal) -> None:
        self.refusal = refusal


class Table:
    """An owner of q with consumers 1 and 2, between shards A and B. It stands in for all owners, too."""

    def __init__(self) -> None:
        self.resolver = FixedResolver()
        self.a, self.b = Peer(0), Peer(1)
        self.resolver.peers = {0: self.a, 1: self.b}
        self.time_ms = 1_000_000
        self.owner: Any = Owner(self, "q", Placement(0, 1))  # type: ignore[arg-type]
        self.link = Link(1)

    # --- as all owners ---------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.time_ms

    def ignore(self, *_: Any) -> None: ...

    bind = unbind = drop = departed = wake = ignore

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        work.close()

    # --- into a state ----------------------------------------------------------------------------------

    def place(self, shard: int, epoch: int) -> None:
        self.resolver.placements["q"] = (shard, epoch)
        self.owner.replaced()

    def start(self, state: LinkState, owner_at: str) -> None:
        """Link 1 gets there, and the owner to A, B or nowhere; shard A is asked first."""
        self.resolver.placements["q"] = (0, 1)
        if state is LinkState.UNASSIGNED:
            self.resolver.peers.clear()
        self.owner.open_at(Placement(0, 1))
        self.owner.open_consumer(self.link)
        self.owner.open_consumer(Link(2))
        if state in (LinkState.OPEN, LinkState.DRAINING):
            self.owner.link_ready(self.a, 1)
        if state in (LinkState.UNANSWERED, LinkState.DRAINING):
            self.owner.link_moved(self.a, 2)
            if owner_at == "B":
                self.place(1, 2)
            elif owner_at == "A":
                self.place(0, 3)
        self.resolver.peers = {0: self.a, 1: self.b}
        assert self.owner._links[1].state is state
        self.a.posted.clear()
        self.b.posted.clear()

    # --- what happens ----------------------------------------------------------------------------------

    def ready(self) -> None:
        self.owner.link_ready(self.a, 1)

    def moved(self) -> None:
        self.owner.link_moved(self.a, 1)

    def lost(self) -> None:
        self.a.state = ConnectionState.GREETING
        self.owner.lost(self.a)

    def owner_lost(self) -> None:
        self.b.state = ConnectionState.GREETING
        self.owner.lost(self.b)

    def removed(self) -> None:
        """Owners say so only to those that are at the shard."""
        if self.owner.peer is self.a:
            self.owner.leave_removed()

    def placed(self) -> None:
        self.place(1, 5)

    def late(self) -> None:
        self.place(1, 5)
        self.time_ms += OWNER_LATE_MS
        self.owner.tick(self.time_ms)

    def retry(self) -> None:
        self.time_ms += limits.OWNER_RETRY_MS
        self.owner.tick(self.time_ms)

    def give_up_deliveries(self) -> None:
        self.owner._links[1].resumes = True
        self.owner.give_up_deliveries(self.a)

    def closed(self) -> None:
        self.owner.close_consumer(1, 0)

    def ended(self) -> None:
        self.owner.end(Refusal(conditions.RESOURCE_DELETED, "q was deleted"))

    def seen(self) -> str:
        """Link 1, its shard, + where it resumes next; what it got; frames for it that are held."""
        link = self.owner._links.get(1)
        shards: dict[Any, str] = {None: "-", self.a: "A", self.b: "B"}
        words = ["gone" if link is None else f"{link.state.name} {shards[link.peer]}{'+' * link.resumes}"]
        for peer, name in ((self.a, "A"), (self.b, "B")):
            words += [f"{what} at {name}" for what in peer.posted if what.endswith("1") or what == "frame"]
            assert (1 in peer.consumers) == (link is not None and link.peer is peer)
        words += ["held"] * len(self.owner._held)
        return ", ".join(words)


STORY = """
UNASSIGNED, owner at -
    ready       refused
    moved       refused
    lost        UNASSIGNED -
    owner_lost  UNASSIGNED -
    removed     UNASSIGNED -
    placed      OPENING B, open 1 at B
    late        OPENING B, open 1 at B
    retry       UNASSIGNED -
    give_up_deliveries UNASSIGNED -
    closed      gone, held
    ended       gone
OPENING, owner at A
    ready       OPEN A
    moved       UNASSIGNED -
    lost        OPENING A
    owner_lost  OPENING A
    removed     UNASSIGNED -
    placed      OPENING A
    late        OPENING B, open 1 at B
    retry       OPENING A
    give_up_deliveries OPENING A
    closed      gone, close 1 at A, held
    ended       gone
OPEN, owner at A
    ready       OPEN A
    moved       UNASSIGNED -+
    lost        OPENING A
    owner_lost  OPEN A
    removed     UNASSIGNED -
    placed      OPEN A
    late        OPENING B+, open 1 at B
    retry       OPEN A
    give_up_deliveries OPEN A
    closed      gone, close 1 at A
    ended       gone
UNANSWERED, owner at -
    ready       OPEN A
    moved       UNASSIGNED -
    lost        UNASSIGNED -
    owner_lost  UNANSWERED A
    removed     UNANSWERED A
    placed      UNANSWERED A
    late        OPENING B, open 1 at B
    retry       UNANSWERED A
    give_up_deliveries UNANSWERED A
    closed      gone, held
    ended       gone
UNANSWERED, owner at A
    ready       OPEN A
    moved       UNASSIGNED -
    lost        OPENING A
    owner_lost  UNANSWERED A
    removed     UNASSIGNED -
    placed      UNANSWERED A
    late        OPENING B, open 1 at B
    retry       UNANSWERED A
    give_up_deliveries UNANSWERED A
    closed      gone, frame at A, held
    ended       gone
UNANSWERED, owner at B
    ready       DRAINING A
    moved       OPENING B, open 1 at B
    lost        OPENING B, open 1 at B
    owner_lost  UNANSWERED A
    removed     UNANSWERED A
    placed      UNANSWERED A
    late        UNANSWERED A
    retry       UNANSWERED A
    give_up_deliveries UNANSWERED A
    closed      gone, frame at A, held
    ended       gone
DRAINING, owner at -
    ready       OPEN A
    moved       UNASSIGNED -+
    lost        UNASSIGNED -
    owner_lost  DRAINING A
    removed     DRAINING A
    placed      DRAINING A
    late        OPENING B+, open 1 at B
    retry       DRAINING A
    give_up_deliveries DRAINING A
    closed      gone, held
    ended       gone
DRAINING, owner at A
    ready       OPEN A
    moved       UNASSIGNED -+
    lost        OPENING A
    owner_lost  DRAINING A
    removed     UNASSIGNED -
    placed      DRAINING A
    late        OPENING B+, open 1 at B
    retry       DRAINING A
    give_up_deliveries DRAINING A
    closed      gone, frame at A, held
    ended       gone
DRAINING, owner at B
    ready       DRAINING A
    moved       OPENING B+, open 1 at B
    lost        OPENING B, open 1 at B
    owner_lost  UNANSWERED A
    removed     DRAINING A
    placed      DRAINING A
    late        DRAINING A
    retry       DRAINING A
    give_up_deliveries DRAINING A
    closed      gone, frame at A, held
    ended       gone
"""
"""By state, shard of the owner and event: what `seen` says afterwards."""


def story() -> list[tuple[LinkState, str, str, str]]:
    found: list[tuple[LinkState, str, str, str]] = []
    start = ("", "")
    for line in STORY.strip().splitlines():
        if line.startswith(" "):
            event, then = line.split(maxsplit=1)
            found.append((LinkState[start[0]], start[1], event, then))
        else:
            name, owner_at = line.split(", owner at ")
            start = (name, owner_at)
    return found


@pytest.mark.parametrize(("state", "owner_at", "event", "then"), story())
def test_what_an_owner_makes_of_each_event(state: LinkState, owner_at: str, event: str, then: str) -> None:
    table = Table()
    table.start(state, owner_at)
    if then == "refused":
        with pytest.raises(AssignmentError):
            getattr(table, event)()
    else:
        getattr(table, event)()
        assert table.seen() == then


def test_the_story_has_every_state_shard_of_the_owner_and_event() -> None:
    shards = {state: "-AB" if state in BEHIND else "A" for state in LinkState} | {LinkState.UNASSIGNED: "-"}
    events = [event for _, _, event, _ in story()[:11]]
    assert {(state, owner_at, event) for state, owner_at, event, _ in story()} == {
        (state, owner_at, event) for state in LinkState for owner_at in shards[state] for event in events
    }
