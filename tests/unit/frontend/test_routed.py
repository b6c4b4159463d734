"""What is left of a batch that is routed again."""

import pytest

from lightrail.frontend.links.routed import left_over
from lightrail.namespace.router_plan import Group


def group(queues: str, *contents: bytes) -> Group:
    return Group(frozenset(queues.split()), [0] * len(contents), [*contents])


@pytest.mark.parametrize(
    ("groups", "carried", "left"),
    [
        # In no other load.
        ([group("a b", b"m")], [], [({"a", "b"}, [b"m"])]),
        ([group("a b", b"m")], [(b"m", "a")], [({"b"}, [b"m"])]),
        # Two contents of one message for one queue are two messages.
        ([group("a", b"m", b"n")], [(b"m", "a")], [({"a"}, [b"n"])]),
        # An action has changed: the queue has the message already.
        ([group("a", b"changed")], [(b"m", "a")], []),
        ([group("a", b"m", b"changed")], [(b"m", "a"), (b"n", "a")], []),
        ([group("a", b"m", b"changed", b"new")], [(b"m", "a"), (b"n", "a")], [({"a"}, [b"new"])]),
    ],
)
def test_each_queue_gets_what_no_other_load_has(
    groups: list[Group], carried: list[tuple[bytes, str]], left: list[tuple[set[str], list[bytes]]]
) -> None:
    found = left_over(groups, [7], {(7, content, queue) for content, queue in carried})
    assert [(set(queues), contents) for queues, indices, contents in found] == left
