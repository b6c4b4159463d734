"""lightrail bench against a broker: what messages may carry arrives, and what a selector leaves is missed."""

from collections.abc import Iterator

import pytest

from tests.benchmarks.load import LoadError, bench
from tests.benchmarks.take_overs import pause
from tests.support.broker import Broker
from tests.support.http_client import Http

COUNT = 600


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Each test has queues of its own."""
    with Broker(tmp_path_factory.mktemp("bench") / "data", "--frontends", "1", "--shards", "1") as broker:
        with Http(broker.http) as http:
            for levels in ("/levels", "/selected"):
                assert http("POST", levels, {"role": "queue", "priorities": 10}).status == 201
            assert http("POST", "/red", {"role": "queue", "duplicate_window": 60}).status == 201
            assert http("POST", "/prices", {"role": "router"}).status == 201
            assert http("POST", "/prices/!subscriptions", {"target": "red"}).status == 201
        yield broker


def test_loads_of_every_kind_arrive_whole(broker: Broker) -> None:
    flags = f"--count {COUNT} --warm-up 0s --message-ids --groups 7 --property colour=100"
    through = bench(f"amqp://{broker.amqp}/red", f"{flags} --target prices --selector colour<>'x'")
    assert through["received"] == COUNT
    levels = bench(f"amqp://{broker.amqp}/levels", f"{flags} --durable --priorities 10")
    assert levels["received"] == COUNT


def test_what_a_selector_does_not_select_counts_as_lost(broker: Broker) -> None:
    flags = f"--count {COUNT} --warm-up 0s --property colour=3 --selector colour='1' --drain-time 1s"
    with pytest.raises(LoadError, match=f"lost {COUNT * 2 // 3}, duplicates 0, out of order 0"):
        bench(f"amqp://{broker.amqp}/selected", flags)


def test_slow_links_take_their_time_and_lose_nothing(broker: Broker) -> None:
    flags = "--senders 6 --receivers 6 --slow 4 --queues 2 --backlog 2000 --duration 1s --warm-up 0s"
    value = bench(f"amqp://{broker.amqp}/mixed", f"{flags} --slow-rate 20 --slow-time 100ms")
    # Four receivers that take ten messages a second each at most, of the twenty that are sent to each.
    assert 4 <= value["slow_received_per_s"] <= 44
    assert value["received_per_s"] > 1_000
    assert value["received"] == value["sent"]


def test_every_request_gets_its_reply(broker: Broker) -> None:
    flags = f"--requests --senders 7 --receivers 2 --durable --count {COUNT} --warm-up 0s"
    value = bench(f"amqp://{broker.amqp}/questions", flags)
    assert (value["sent"], value["received"], value["misdirected"]) == (COUNT, COUNT, 0)
    settled = bench(f"amqp://{broker.amqp}/questions", f"{flags} --pre-settled --connections 1")
    assert settled["received"] == COUNT


def test_a_request_without_a_reply_counts_as_lost(broker: Broker) -> None:
    flags = f"--requests --count {COUNT} --warm-up 0s --drain-time 1s"
    with pytest.raises(LoadError, match="lost 1, duplicates 0, out of order 0"):
        bench(f"amqp://{broker.amqp}/unanswered", f"{flags} --property colour=3 --selector colour<>'1'")


def test_a_pause_does_not_end_with_what_was_on_its_way() -> None:
    answers = [9.9, 10.0, 10.01, 10.02, 10.75, 10.76, 10.8]
    assert pause(answers, 10.005) == pytest.approx(0.745)
    assert pause(answers, 10.75) == pytest.approx(0.05)
