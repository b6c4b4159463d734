"""Shares of users: one user may have as much as is free besides."""

from lightrail.shard.queues.memory import UserShares

MOST = 120


def fill(shares: UserShares, user: str) -> int:
    """Adds units for a user while there is room; returns how many it has."""
    while shares.has_room(user, MOST, 1):
        shares.add(user, 1)
    return shares.of(user)


def test_the_first_user_has_a_half_and_there_is_room_for_every_further_one() -> None:
    shares = UserShares()
    assert [fill(shares, user) for user in "abc"] == [60, 30, 15]
    assert shares.total == 105


def test_each_of_two_that_fill_their_shares_in_turn_has_a_third() -> None:
    shares = UserShares()
    while any(shares.has_room(user, MOST, 1) for user in "ab"):
        for user in "ab":
            if shares.has_room(user, MOST, 1):
                shares.add(user, 1)
    assert [shares.of(user) for user in "ab"] == [40, 40]


def test_what_one_user_leaves_is_free_for_all() -> None:
    shares = UserShares()
    fill(shares, "a")
    fill(shares, "b")
    shares.add("a", -60)
    assert (shares.of("a"), shares.total) == (0, 30)
    assert fill(shares, "b") == 60


def test_a_user_may_be_beyond_its_share_after_others_have_come() -> None:
    shares = UserShares()
    fill(shares, "a")
    fill(shares, "b")
    assert shares.share("a", MOST) == 45
    assert not shares.has_room("a", MOST)
    assert shares.has_room("b", MOST)
