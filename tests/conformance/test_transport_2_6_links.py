"""Links (transport 2.6, 2.7.3, 2.7.4, 2.7.7): attach, detach, names, credit, drain, echo."""

import pytest

from lightrail.amqp.performatives import (
    AmqpError,
    Attach,
    Detach,
    Disposition,
    End,
    Flow,
    Received,
    Source,
    Target,
    Transfer,
)
from lightrail.amqp.values import Symbol
from lightrail.frontend.links.terminus import TERMINUS_TIMEOUT_S_MAX
from tests.support.amqp.frame_peer import WINDOW, Peer, frame, receiver, sender, transfers, value
from tests.support.broker import Broker
from tests.support.namespace import give

# --- attach ----------------------------------------------------------------------------------------------


def test_2_6_3_attach_of_a_sender_is_echoed_and_gets_credit(begun: Peer, queue: str) -> None:
    asked = sender(queue, handle=9, name="any name \u00e4", properties={Symbol("x"): 1})
    begun.write(asked)
    answer = begun.expect(Attach)
    assert answer.name == asked.name
    assert answer.role is True
    assert isinstance(answer.target, Target)
    assert answer.target.address == queue
    assert answer.source == Source(durable=0, expiry_policy=Symbol("session-end"), timeout=0, dynamic=False)
    assert answer.max_message_size == 100_000
    credit = begun.expect(Flow)
    assert credit.handle == answer.handle
    assert credit.link_credit is not None
    assert credit.link_credit > 0
    assert credit.delivery_count == 0


def test_2_6_3_attach_of_a_receiver_is_echoed(begun: Peer, queue: str) -> None:
    asked = receiver(queue, handle=3, name="r")
    begun.write(asked)
    answer = begun.expect(Attach)
    assert (answer.name, answer.role) == ("r", False)
    assert isinstance(answer.source, Source)
    assert answer.source.address == queue
    assert answer.target == Target(durable=0, expiry_policy=Symbol("session-end"), timeout=0, dynamic=False)
    assert answer.initial_delivery_count is not None


@pytest.mark.parametrize(
    ("policy", "holds"),
    [("never", (2, TERMINUS_TIMEOUT_S_MAX)), ("session-end", (0, 0))],
)
def test_3_5_3_the_answer_promises_a_terminus_that_outlives_its_link_for_a_time_alone(
    begun: Peer, queue: str, policy: str, holds: tuple[int, int]
) -> None:
    asked = receiver(queue, handle=3, name="r")
    assert isinstance(asked.source, Source)
    asked.source.durable = 2
    asked.source.expiry_policy = Symbol(policy)
    begun.write(asked)
    answer = begun.expect(Attach)
    assert isinstance(answer.source, Source)
    assert (answer.source.durable, answer.source.timeout) == holds
    assert answer.source.expiry_policy == Symbol("link-detach")


def test_delayed_delivery_is_not_offered_for_the_whole_connection(peer: Peer) -> None:
    """Qpid JMS, once it is offered there, no longer announces on its links that messages may have a delay."""
    assert "DELAYED_DELIVERY" not in (peer.open().offered_capabilities or ())


def test_delayed_delivery_is_offered_where_it_is_done(broker: Broker, begun: Peer, queue: str) -> None:
    """The capability that Qpid JMS looks for before it sends with a delay."""
    give(broker.data, f"{queue}/later", role="queue", delay=True)
    begun.write(sender(f"{queue}/later", name="later"))
    assert begun.expect(Attach).offered_capabilities == [Symbol("DELAYED_DELIVERY")]
    begun.expect(Flow)
    begun.write(sender(queue, handle=1, name="at once"))
    assert begun.expect(Attach).offered_capabilities is None


def test_2_6_1_names_count_per_direction(begun: Peer, queue: str) -> None:
    begun.attach_sender(queue, handle=0, name="both ways")
    begun.attach_receiver(queue, handle=1, name="both ways")


def test_2_7_3_initial_delivery_count_is_kept(begun: Peer, queue: str) -> None:
    """The receiver's delivery-count starts where the sender's does, and wraps around (2.8.10)."""
    flow = begun.attach_sender(queue, initial_delivery_count=0xFFFFFFFF)
    assert flow.delivery_count == 0xFFFFFFFF
    begun.send(transfers(0, [value(1), value(2)]))
    left = 2
    while left:
        found = begun.expect(Disposition)
        left -= (found.first if found.last is None else found.last) - found.first + 1
    begun.write(
        Flow(
            next_incoming_id=0,
            incoming_window=WINDOW,
            next_outgoing_id=2,
            outgoing_window=WINDOW,
            handle=0,
            delivery_count=1,
            echo=True,
        )
    )
    assert begun.expect(Flow).delivery_count == 1


def test_2_7_3_a_sender_without_an_initial_delivery_count_begins_at_0(begun: Peer, queue: str) -> None:
    """Microsoft.Azure.Amqp before 2.7.1 sends none, though a sender must."""
    assert begun.attach_sender(queue, initial_delivery_count=None).delivery_count == 0
    begun.put(queue, value(1))


def test_2_6_1_the_same_name_again_takes_the_link_over(begun: Peer, queue: str) -> None:
    begun.attach_receiver(queue, handle=0, name="mine")
    begun.write(receiver(queue, handle=1, name="mine"))
    begun.error_of(Detach, "amqp:link:stolen")
    begun.write(Detach(handle=0, closed=True))
    answer = begun.expect(Attach)
    assert answer.name == "mine"
    begun.put(queue, value("for the new one"))
    begun.flow(1, handle=1)
    transfer, message = begun.delivery()
    assert (transfer.handle, message) == (answer.handle, value("for the new one"))


def test_2_6_1_a_name_is_free_after_detach(begun: Peer, queue: str) -> None:
    for _ in range(3):
        begun.attach_sender(queue, name="again")
        begun.write(Detach(handle=0, closed=True))
        assert begun.expect(Detach).error is None


# --- what is refused -------------------------------------------------------------------------------------

REFUSED = {
    "resume-receiver": (
        receiver(
            "q",
            source=Source(address="q", distribution_mode=Symbol("copy")),
            unsettled={b"1": Received(0, 0)},
            incomplete_unsettled=True,
        ),
        "amqp:not-implemented",
    ),
    "dynamic-source": (receiver("q", source=Source(dynamic=True, address="q")), "amqp:invalid-field"),
    "dynamic-target": (sender("q", target=Target(dynamic=True, address="q")), "amqp:invalid-field"),
    "no-target": (sender("q", target=None), "amqp:invalid-field"),
    "no-source": (receiver("q", source=None), "amqp:not-found"),
    "no-source-address": (receiver(None), "amqp:invalid-field"),
    "empty-source-address": (receiver(""), "amqp:invalid-field"),
    "system-name": (receiver("$unknown"), "amqp:not-found"),
    "bad-name": (sender("a//b"), "amqp:invalid-field"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_2_6_3_a_refused_link_is_attached_without_terminus_and_detached(begun: Peer, name: str) -> None:
    attach, condition = REFUSED[name]
    begun.write(attach)
    begun.expect_refusal(condition)


def test_2_6_3_a_refused_link_leaves_its_name_and_handle_free(begun: Peer, queue: str) -> None:
    begun.write(receiver(queue, source=Source()))
    begun.expect_refusal("amqp:invalid-field")
    begun.attach_receiver(queue)


def test_2_6_3_what_was_pipelined_to_a_refused_link_is_dropped(begun: Peer, queue: str) -> None:
    begun.send(frame(receiver(None)), frame(Flow(0, 1, 0, 1, handle=0, delivery_count=0, link_credit=1)))
    begun.expect(Attach)
    assert begun.expect(Detach).error is not None
    begun.write(Detach(handle=0, closed=True))
    begun.nothing_before_echo()


# --- detach ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_2_6_6_detach_is_answered_in_kind(begun: Peer, queue: str, closed: bool) -> None:
    begun.attach_receiver(queue)
    error = AmqpError(condition=Symbol("amqp:internal-error"))
    begun.write(Detach(handle=0, closed=closed, error=error))
    answer = begun.expect(Detach)
    assert (answer.handle, answer.closed, answer.error) == (0, closed, None)


def test_2_6_6_detach_gives_back_what_was_held(begun: Peer, queue: str) -> None:
    begun.put(queue, value("held"))
    begun.attach_receiver(queue, handle=0)
    begun.flow(1)
    begun.delivery()
    begun.write(Detach(handle=0, closed=True))
    begun.expect(Detach)
    begun.attach_receiver(queue, handle=1)
    begun.flow(1, handle=1)
    assert begun.delivery()[1].endswith(value("held"))


def test_2_6_6_detach_races_with_credit(begun: Peer, queue: str) -> None:
    """Attach, credit and detach in one write: nothing is lost, nothing stays behind."""
    begun.put(queue, value("kept"))
    flow = Flow(0, WINDOW, 0, WINDOW, handle=0, delivery_count=0, link_credit=10)
    begun.send(frame(receiver(queue)), frame(flow), frame(Detach(handle=0, closed=True)))
    begun.expect(Attach)
    found = begun.read()
    while type(found.body) is Transfer:
        found = begun.read()
    assert type(found.body) is Detach
    begun.attach_receiver(queue)
    begun.flow(1)
    assert begun.delivery()[1].endswith(value("kept"))


def test_2_6_5_input_for_a_link_detached_with_an_error_ends_the_session(begun: Peer, queue: str) -> None:
    """errant-link: the peer has seen the detach and goes on sending (2.8.17)."""
    begun.attach_sender(queue)
    begun.write(Transfer(handle=0, delivery_id=0), value("no tag"))
    begun.error_of(Detach, "amqp:invalid-field")
    begun.send(transfers(0, [value(1)], 1))
    begun.expect_session_end("amqp:session:errant-link")


# --- flow control ----------------------------------------------------------------------------------------


def test_2_6_7_no_transfer_before_credit(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1))
    begun.attach_receiver(queue)
    begun.flow(0, echo=True)
    answer = begun.expect(Flow)
    assert (answer.handle, answer.link_credit, answer.delivery_count) == (0, 0, 0)


def test_2_6_7_credit_is_set_and_not_added(begun: Peer, queue: str) -> None:
    begun.put(queue, *(value(number) for number in range(5)))
    begun.attach_receiver(queue)
    for _ in range(3):
        begun.flow(2)
    assert [begun.delivery()[1] for _ in range(2)] == [value(0), value(1)]
    begun.flow(2, 0, echo=True)
    answer = begun.expect(Flow)
    assert (answer.delivery_count, answer.link_credit) == (2, 0)
    begun.flow(1, 2)
    assert begun.delivery()[1] == value(2)


def test_2_6_7_credit_that_was_spent_on_the_way_is_counted(begun: Peer, queue: str) -> None:
    """delivery-count says what the receiver had seen: two of the three new credits are used already."""
    begun.put(queue, *(value(number) for number in range(5)))
    begun.attach_receiver(queue)
    begun.flow(2)
    begun.delivery()
    begun.delivery()
    begun.flow(3, 0)
    assert begun.delivery()[1] == value(2)
    begun.flow(0, 3, echo=True)
    assert begun.expect(Flow).delivery_count == 3


def test_2_6_7_credit_can_be_taken_away(begun: Peer, queue: str) -> None:
    begun.attach_receiver(queue)
    begun.flow(10)
    begun.flow(0, echo=True)
    assert begun.expect(Flow).link_credit == 0
    begun.attach_receiver(queue, handle=1)
    begun.flow(10, handle=1)
    begun.put(queue, *(value(number) for number in range(3)))
    for number in range(3):
        transfer, message = begun.delivery()
        assert (transfer.handle, message) == (1, value(number))


def test_2_6_7_an_unknown_delivery_count_means_the_initial_one(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1))
    begun.attach_receiver(queue)
    begun.flow(1, delivery_count=None)
    assert begun.delivery()[1] == value(1)


def test_2_6_7_drain_with_nothing_there_uses_up_the_credit(begun: Peer, queue: str) -> None:
    begun.attach_receiver(queue)
    begun.flow(10, drain=True)
    answer = begun.expect(Flow)
    assert (answer.handle, answer.delivery_count, answer.link_credit, answer.drain) == (0, 10, 0, True)


def test_2_6_7_drain_gives_what_is_there_and_uses_up_the_rest(begun: Peer, queue: str) -> None:
    begun.put(queue, *(value(number) for number in range(3)))
    begun.attach_receiver(queue)
    begun.flow(10, drain=True)
    assert [begun.delivery()[1] for _ in range(3)] == [value(number) for number in range(3)]
    answer = begun.expect(Flow)
    assert (answer.delivery_count, answer.link_credit, answer.drain) == (10, 0, True)
    # The credit is gone: what comes now waits for more.
    begun.put(queue, value("later"))
    begun.flow(0, 10, echo=True)
    assert begun.expect(Flow).delivery_count == 10
    begun.flow(1, 10)
    assert begun.delivery()[1] == value("later")


def test_2_6_7_drain_of_exactly_what_is_there(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1), value(2))
    begun.attach_receiver(queue)
    begun.flow(2, drain=True)
    assert [begun.delivery()[1] for _ in range(2)] == [value(1), value(2)]
    begun.flow(0, 2, echo=True)
    answer = begun.expect(Flow)
    assert (answer.delivery_count, answer.link_credit) == (2, 0)


def test_2_6_7_drain_again_and_again(begun: Peer, queue: str) -> None:
    begun.attach_receiver(queue)
    for turn in range(1, 6):
        begun.flow(100, 100 * (turn - 1), drain=True)
        answer = begun.expect(Flow)
        assert (answer.delivery_count, answer.link_credit) == (100 * turn, 0)


def test_2_6_7_drain_of_a_browser_and_of_a_presettled_link(begun: Peer, queue: str) -> None:
    begun.put(queue, value(1))
    copy = Source(address=queue, distribution_mode=Symbol("copy"))
    begun.attach_receiver(queue, handle=0, source=copy)
    begun.flow(5, drain=True)
    assert begun.delivery()[1] == value(1)
    assert begun.expect(Flow).delivery_count == 5
    begun.attach_receiver(queue, handle=1, snd_settle_mode=1)
    begun.flow(5, handle=1, drain=True)
    transfer, message = begun.delivery()
    assert (transfer.settled, message) == (True, value(1))
    assert begun.expect(Flow).delivery_count == 5


def test_2_6_7_echo_on_a_sending_link(begun: Peer, queue: str) -> None:
    credit = begun.attach_sender(queue).link_credit
    begun.write(Flow(0, WINDOW, 0, WINDOW, handle=0, delivery_count=0, link_credit=credit, echo=True))
    answer = begun.expect(Flow)
    assert (answer.handle, answer.delivery_count, answer.link_credit) == (0, 0, credit)


def test_2_6_7_more_than_the_credit_detaches(begun: Peer, queue: str) -> None:
    """The transfer is on its way before the broker has granted anything."""
    begun.send(frame(sender(queue)), transfers(0, [value(1)]))
    begun.expect(Attach)
    begun.error_of(Detach, "amqp:link:transfer-limit-exceeded")
    begun.write(Detach(handle=0, closed=True))
    begun.nothing_before_echo(next_outgoing_id=1)


def test_2_6_7_a_sender_that_skips_deliveries_by_drain(begun: Peer, queue: str) -> None:
    """A sender's flow may advance its delivery-count; the broker counts on from there."""
    begun.attach_sender(queue)
    begun.write(
        Flow(0, WINDOW, 0, WINDOW, handle=0, delivery_count=50, link_credit=0, available=0, echo=True)
    )
    assert begun.expect(Flow).delivery_count == 50
    begun.send(transfers(0, [value(1)]))
    found = begun.read().body
    while type(found) is not Disposition:
        assert type(found) is Flow
        found = begun.read().body
    assert found.first == 0


def test_2_6_a_session_takes_many_links(begun: Peer, queue: str) -> None:
    for handle in range(100):
        begun.attach_receiver(f"{queue}/{handle}", handle=handle)
    for handle in range(100):
        begun.write(Detach(handle=handle, closed=True))
        assert begun.expect(Detach).handle == handle


def test_2_6_max_frame_size_is_too_small_for_an_attach(peer: Peer) -> None:
    """An answer that does not fit is not sent, and the session says why."""
    peer.open(max_frame_size=512)
    peer.begin()
    name = "n" * 480
    peer.write(Attach(name=name, handle=0, role=True, source=Source(address="q"), target=Target()))
    found = peer.read()
    assert found.size <= 512
    assert type(found.body) is End
    assert found.body.error is not None
    assert str(found.body.error.condition) == "amqp:frame-size-too-small"
