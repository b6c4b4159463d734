"""Part requests: what is one after the other in its queue, or at its receiver, is joined, in its order."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from lightrail.amqp.performatives import Accepted, Rejected
from lightrail.frontend.links.deliveries import ConsumerLink
from lightrail.frontend.transactions.part_requests import Batch, request_of
from lightrail.frontend.transactions.transaction import Attributes, Post, Retirement
from lightrail.model import limits
from lightrail.shard.transactions.work import posts_of
from lightrail.wire.bodies import ConsumerOpen


class Consumer:
    """As much of a receiving link as a request needs."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.queue = "in"
        self.options = ConsumerOpen("in")


def batch(queues: set[str], messages: list[bytes], priority: int = 4) -> Batch:
    post = Post("", False, messages, Attributes(True, priority, 0, 0))
    return frozenset(queues), post, messages


def by_queue(request: tuple[dict[str, Any], bytes]) -> dict[str, list[tuple[int, bytes]]]:
    """Priority and bytes of the messages of each queue, in the order in which a shard stores them."""
    fields, blob = request
    found: dict[str, list[tuple[int, bytes]]] = {}
    for queues, stored, _ in posts_of(fields["posts"], memoryview(blob), 0):
        for index in range(stored.count):
            for queue in queues:
                found.setdefault(queue, []).append((stored.priority, stored.message(index)))
    return found


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from("abc"), min_size=1),
            st.lists(st.binary(max_size=3), min_size=1),
            st.integers(4, 5),
        ),
        max_size=12,
    )
)
def test_each_queue_gets_all_of_its_messages_in_their_order(
    sent: list[tuple[set[str], list[bytes], int]],
) -> None:
    expected: dict[str, list[tuple[int, bytes]]] = {}
    for queues, messages, priority in sent:
        for queue in queues:
            expected.setdefault(queue, []).extend((priority, message) for message in messages)
    assert by_queue(request_of([batch(*each) for each in sent], [], [])) == expected


def test_ten_thousand_single_messages_to_queues_in_turn_are_few_batches() -> None:
    fields, _ = request_of([batch({"ab"[n % 2]}, [b"%d" % n]) for n in range(10_000)], [], [])
    assert len(fields["posts"]) == 10_000 // limits.LOOKED_INTO_AT_ONCE
    assert max(post[5] for post in fields["posts"]) == limits.LOOKED_INTO_AT_ONCE


def test_joined_batches_are_no_larger_than_those_that_queues_join() -> None:
    half = bytes(limits.JOINED_BYTES // 2)
    fields, _ = request_of([batch({"a"}, [half]) for _ in range(4)], [], [])
    assert [post[6] for post in fields["posts"]] == [limits.JOINED_BYTES] * 2


def test_what_a_client_sent_as_one_batch_stays_one() -> None:
    messages = [bytes(100)] * 5_000
    fields, _ = request_of([batch({"a"}, messages), batch({"a"}, [b"m"])], [], [])
    assert [post[5] for post in fields["posts"]] == [5_000, 1]
    assert len(messages) == 5_000


def test_ranges_of_receivers_in_turn_are_joined_while_their_outcome_is_the_same() -> None:
    one, two = (cast(ConsumerLink, Consumer(number)) for number in (1, 2))
    accepted, rejected = Accepted(), Rejected()
    ranges = [Retirement(each, n, n, accepted, True) for n in range(5) for each in (one, two)]
    ranges += [
        Retirement(one, 5, 7, rejected, True),
        Retirement(one, 8, 8, accepted, True),
        Retirement(two, 6, 6, accepted, True),
    ]
    fields, _ = request_of([], ranges, [])
    assert [each[1:4] for each in fields["settles"]] == [
        [1, 0, 5],
        [2, 0, 5],
        [1, 5, 3],
        [1, 8, 1],
        [2, 6, 1],
    ]
