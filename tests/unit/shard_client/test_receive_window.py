"""Laws of the receive window that consumers of the frontend and the gateway share."""

from array import array

import pytest

from lightrail.shard_client.links import MissingDeliveriesError
from lightrail.shard_client.receiving.queue_consumer import ReceiveWindow, Slice, decode_slice
from lightrail.wire.frames import deliver


def test_credit_is_what_may_still_arrive() -> None:
    window = ReceiveWindow()
    window.limit = 10
    window.advance(0, 3, "q")
    assert (window.next, window.credit) == (3, 7)


def test_a_slice_that_does_not_follow_the_one_before_changes_nothing() -> None:
    window = ReceiveWindow()
    window.limit = 10
    window.advance(0, 3, "q")
    with pytest.raises(MissingDeliveriesError, match="expected delivery 3 of q, found 5"):
        window.advance(5, 1, "q")
    assert (window.next, window.credit) == (3, 7)


def test_withdrawn_credit_leaves_the_numbers_of_deliveries() -> None:
    window = ReceiveWindow()
    window.limit = 10
    window.advance(0, 3, "q")
    window.withdraw()
    assert (window.next, window.limit, window.credit) == (3, 3, 0)


@pytest.mark.parametrize("base", [0, 7])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_slice_is_decoded_wherever_it_begins_in_its_stored_batch(base: int, kind: type) -> None:
    ends = array("I", (base + 3, base + 3, base + 5))
    part = deliver(1, 2, 40, 3, 9, 100, 2, 5_000, 4_000, 8, base, ends.tobytes(), b"abcde")
    assert decode_slice(kind(part), 3) == Slice(100, 5_000, 4_000, 2, 8, [b"abc", b"", b"de"])
