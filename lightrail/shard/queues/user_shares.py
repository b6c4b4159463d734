"""The shares of users in something that a shard has for all clients together.

A user may have as much as is free besides: the first one a half, each of two a third, so that there is always
room for one more. Clients with one user, as with anonymous access, have one share.
"""


class UserShares:
    """What each user has of one thing, in the unit of the thing: bytes, tags, links.

    Links that belong to no user, and those of frontends of former versions, have the user "".
    """

    __slots__ = ("_by_user", "total")

    def __init__(self) -> None:
        self._by_user: dict[str, int] = {}
        self.total = 0
        """What all users have together."""

    def add(self, user: str, amount: int) -> None:
        """Adds to what a user has; a negative amount if it has less."""
        self.total += amount
        found = self._by_user.get(user, 0) + amount
        if found:
            self._by_user[user] = found
        else:
            self._by_user.pop(user, None)

    def of(self, user: str) -> int:
        """What a user has."""
        return self._by_user.get(user, 0)

    def share(self, user: str, most: int) -> int:
        """What a user may have if there is `most` for all: a half of what the others leave."""
        return (most - self.total + self.of(user)) // 2

    def has_room(self, user: str, most: int, amount: int = 0) -> bool:
        """Whether a user has no more than its share, also with an `amount` more."""
        return self.of(user) + amount <= self.share(user, most)
