"""Router nodes: a graph of routers, which is walked to find the queues of a message."""

from collections.abc import Callable, Generator, Sequence
from typing import Final

from lightrail.filters.action import Action
from lightrail.filters.filter import Filter
from lightrail.filters.matcher import Looks, Matcher
from lightrail.filters.message import MessageView

_STEP: Final = 10
_ACTION: Final = 100
"""Cost of following one subscription, and of running its action, in units of filters/matcher.py."""

Choose = Callable[[int], int]
"""Draws a whole number from 0 to below the argument."""


class Branch:
    """An edge that is followed for each message: behind an action, or into a router that chooses."""

    __slots__ = ("action", "target")

    def __init__(self, action: Action | None, target: "str | Node") -> None:
        self.action = action
        self.target = target


Key = str | Branch
Contents = dict[bytes, dict[str, None]]
"""Queues by encoded message, which actions may have changed, in the order of the walk."""


class Node:
    """A router and the targets of its subscriptions, including those of plain routers behind it."""

    __slots__ = ("chooses", "entries", "matcher", "paths")

    def __init__(self, chooses: bool, entries: Sequence[tuple[Key, Filter | None]], paths: int) -> None:
        self.chooses = chooses
        self.entries = entries
        self.matcher: Matcher[Key] = Matcher(entries)
        self.paths = paths
        """Number of paths from here to queues."""

    def spread(
        self, view: MessageView, contents: Contents, choose: Choose, looks: Looks
    ) -> Generator[None, None, bool]:
        """Adds the queues of a message to `contents`; returns False if there are none. Yields when the looks
        are used up."""
        keys: Sequence[Key] = yield from self.matcher.search(view, looks)
        if self.chooses:
            left = list(keys)
            while left:
                if (yield from _follow(left.pop(choose(len(left))), view, contents, choose, looks)):
                    return True
            return False
        found = False
        for key in keys:
            if (yield from _follow(key, view, contents, choose, looks)):
                found = True
        return found


def _follow(
    key: Key, view: MessageView, contents: Contents, choose: Choose, looks: Looks
) -> Generator[None, None, bool]:
    looks.left -= _STEP + (len(view.data) >> 9)
    if type(key) is str:
        queue: str | Node = key
    else:
        assert isinstance(key, Branch)
        queue = key.target
        if key.action is not None:
            view = MessageView(key.action.apply(bytes(view.data)))
            looks.left -= _ACTION + (len(view.data) >> 6)
    if looks.left <= 0:
        yield
    if isinstance(queue, Node):
        return (yield from queue.spread(view, contents, choose, looks))
    contents.setdefault(bytes(view.data), {})[queue] = None
    return True
