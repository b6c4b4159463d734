"""When messages for a router are sent again, and to which queues."""

import pytest

from lightrail.model import conditions
from lightrail.namespace.forwarding import ChainEnd
from lightrail.namespace.router_plan import CopyGroup
from lightrail.namespace.spreading import left_over
from lightrail.shard_client.sending.lanes import Again, again
from lightrail.wire.bodies import Refusal


def group(queues: str, *contents: bytes) -> CopyGroup:
    return CopyGroup(frozenset(queues.split()), [0] * len(contents), [*contents])


@pytest.mark.parametrize(
    ("condition", "accepted", "is_repeated", "how"),
    [
        (conditions.MOVED, 0, False, Again.ELSEWHERE),
        # As often as it takes, and the rest of them where some are stored.
        (conditions.MOVED, 0, True, Again.ELSEWHERE),
        (conditions.MOVED, 2, False, Again.ELSEWHERE),
        (conditions.NOT_FOUND, 0, False, Again.ANEW),
        (conditions.RESOURCE_DELETED, 0, False, Again.ANEW),
        (conditions.RESOURCE_DELETED, 0, True, Again.NEVER),
        (conditions.RESOURCE_DELETED, 2, False, Again.NEVER),
        (conditions.RESOURCE_LIMIT_EXCEEDED, 0, False, Again.NEVER),
        (conditions.INTERNAL_ERROR, 0, False, Again.NEVER),
    ],
)
def test_messages_follow_a_queue_that_moved_and_are_routed_anew_once_for_a_queue_that_was_deleted(
    condition: str, accepted: int, is_repeated: bool, how: Again
) -> None:
    assert again(Refusal(condition, accepted=accepted), is_repeated=is_repeated) is how


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
    groups: list[CopyGroup], carried: list[tuple[bytes, str]], left: list[tuple[set[str], list[bytes]]]
) -> None:
    found = left_over(groups, [7], {(7, content, queue) for content, queue in carried})
    assert [(set(queues), contents) for queues, indices, contents in found] == left


@pytest.mark.parametrize(
    ("contents", "carried", "left"),
    [
        ([b"m"], [(b"m", "source")], []),
        # An action such as newid() gives another content each time.
        ([b"changed"], [(b"m", "source")], []),
        ([b"changed"], [(b"m", "end")], []),
        ([b"m", b"n"], [(b"m", "source")], [b"n"]),
        ([b"changed", b"other"], [(b"m", "source"), (b"n", "end")], []),
        ([b"changed", b"other"], [(b"m", "source")], [b"other"]),
    ],
)
def test_what_is_in_the_source_of_a_queue_is_not_sent_to_the_queue_as_well(
    contents: list[bytes], carried: list[tuple[bytes, str]], left: list[bytes]
) -> None:
    taken = {(7, content, queue) for content, queue in carried}
    found = left_over([group("end", *contents)], [7], taken, {"end": ChainEnd("source", 1)})
    assert [content for _, _, contents in found for content in contents] == left
