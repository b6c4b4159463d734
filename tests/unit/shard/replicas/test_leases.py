"""Leases: at no time do two owners deliver, as long as their clocks differ by less than a quarter."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.shard.replicas.leases import BEAT_NS, BEATS_MAX, GRANT_NS, LEASE_NS, Grant, OwnersLeases

SECOND = 1_000_000_000
SPEEDS = st.floats(1.0, GRANT_NS / LEASE_NS)
DELAYS = st.integers(0, 4 * SECOND)


@given(
    st.lists(st.tuples(DELAYS, DELAYS), min_size=1, max_size=8),
    SPEEDS,
    st.integers(-SECOND, SECOND),
    st.integers(0, 12 * SECOND),
)
def test_a_successor_delivers_only_when_the_former_owner_does_not(
    delays: list[tuple[int, int]], speed: float, offset: int, now: int
) -> None:
    """Each beat and its answer may be late; the member's clock is up to a quarter faster, and differs."""

    def there(real_ns: int) -> int:
        return int(real_ns * speed) + offset + 10 * SECOND

    owner, grant = OwnersLeases(), Grant(there(-20 * SECOND))
    events: list[tuple[int, int, int]] = []
    for index, (forth, back) in enumerate(delays):
        sent = index * BEAT_NS
        events += [(sent, 0, index), (sent + forth, 1, index), (sent + forth + back, 2, index)]
    numbers: dict[int, int] = {}
    for at, what, index in sorted(event for event in events if event[0] <= now):
        if what == 0:
            numbers[index] = owner.beat(at)
        elif what == 1:
            assert grant.give(1, there(at))
        else:
            owner.granted("b", numbers[index])
    if owner.may_deliver(["b"], now):
        assert grant.remaining_ns(there(now)) > 0


def test_an_owner_delivers_while_every_required_member_grants_it() -> None:
    owner = OwnersLeases()
    number = owner.beat(5 * SECOND)
    owner.granted("b", number)
    assert not owner.may_deliver(["b", "c"], 5 * SECOND)
    owner.granted("c", number)
    assert owner.may_deliver(["b", "c"], 5 * SECOND + LEASE_NS - 1)
    assert not owner.may_deliver(["b", "c"], 5 * SECOND + LEASE_NS)
    assert owner.may_deliver([], 100 * SECOND), "a shard of one member needs no lease"


def test_an_answer_to_an_old_beat_grants_nothing() -> None:
    owner = OwnersLeases()
    old = owner.beat(SECOND)
    for _ in range(BEATS_MAX):
        owner.beat(SECOND)
    owner.granted("b", old)
    assert not owner.may_deliver(["b"], SECOND)


def test_a_late_answer_does_not_shorten_a_lease() -> None:
    owner = OwnersLeases()
    early, late = owner.beat(SECOND), owner.beat(2 * SECOND)
    owner.granted("b", late)
    owner.granted("b", early)
    assert owner.may_deliver(["b"], 2 * SECOND + LEASE_NS - 1)


def test_a_member_that_starts_counts_a_whole_grant() -> None:
    grant = Grant(SECOND)
    assert grant.remaining_ns(SECOND) == GRANT_NS
    assert grant.remaining_ns(SECOND + GRANT_NS) == 0


def test_returned_leases_end_at_once_and_only_those_of_that_epoch() -> None:
    grant = Grant(0)
    assert grant.give(3, SECOND)
    assert not grant.give(2, 2 * SECOND)
    grant.give_back(2)
    grant.give_back(3)
    assert grant.remaining_ns(SECOND) == GRANT_NS - SECOND, "that of a former process counts still"
    late = GRANT_NS + SECOND
    assert grant.give(4, late)
    assert grant.give(5, late + 1)
    grant.give_back(5)
    assert grant.remaining_ns(late + 1) == GRANT_NS - 1, "the owner before it may deliver still"
    grant.give_back(4)
    assert grant.remaining_ns(late + 1) == 0
    owner = OwnersLeases()
    owner.granted("b", owner.beat(SECOND))
    owner.return_all()
    assert not owner.may_deliver(["b"], SECOND)


def test_an_owner_returns_its_own_leases_and_not_those_of_the_owner_before() -> None:
    grant = Grant(0)
    start = 2 * GRANT_NS
    grant.give(1, start)
    grant.give(2, start + 1)
    grant.give_back(2)
    assert grant.remaining_ns(start + 2) == GRANT_NS - 2


def test_a_process_that_starts_has_granted_a_lease_that_nobody_can_return() -> None:
    grant = Grant(0)
    grant.give(1, 1)
    grant.give_back(1)
    assert grant.remaining_ns(2) == GRANT_NS - 2
