"""The keys of messages: read while a message is in memory, kept while it is not."""

from lightrail.model import limits
from lightrail.shard.queue.lines.sparse import Sparse
from lightrail.shard.queue.order.message_keys import MessageKeys
from lightrail.shard.queue.values.keys import MISSING, key_of
from lightrail.shard.queue.values.policy import Policy
from lightrail.shard.queue.values.runs import Run, batch_of
from tests.support.shard.checked_queue import DELAY, GROUPS, LAST_VALUE, SORTED, look


def run_of(*messages: str, sequence: int = 0, message_format: int = 0) -> Run:
    batch = batch_of([each.encode() for each in messages], message_format=message_format)
    return Run(batch, 0, batch.count, sequence, 2, (7,))


def evicted(run: Run) -> Run:
    run.batch.data = None
    return run


def test_each_order_reads_its_own_field_and_some_read_none() -> None:
    run = run_of("key=7 group=a")
    assert MessageKeys(SORTED, look).key_of(run) == key_of(7)
    assert MessageKeys(LAST_VALUE, look).key_of(run) == key_of(7)
    assert MessageKeys(GROUPS, look).group_of(run) == key_of("a")
    for policy in (Policy(priorities=3), DELAY):
        assert not MessageKeys(policy, look).are_read
        assert MessageKeys(policy, look).key_of(run) == MISSING


def test_what_is_no_amqp_message_or_lacks_the_field_has_no_key() -> None:
    assert MessageKeys(SORTED, look).key_of(run_of("key=7", message_format=1)) == MISSING
    assert MessageKeys(SORTED, look).key_of(run_of("none")) == MISSING
    assert MessageKeys(GROUPS, look).group_of(run_of("none")) is None


def test_a_run_is_cut_into_messages_with_its_past_where_the_queue_reads_them() -> None:
    run = run_of("a", "b", "c", sequence=5)
    pieces = MessageKeys(DELAY, look).pieces(run)
    assert [(each.sequence, each.count, each.attempts, each.barred) for each in pieces] == [
        (5, 1, 2, (7,)),
        (6, 1, 2, (7,)),
        (7, 1, 2, (7,)),
    ]
    assert [each.messages() for each in pieces] == [[b"a"], [b"b"], [b"c"]]
    assert MessageKeys(Policy(priorities=3), look).pieces(run) == [run]


def test_the_key_of_a_delayed_message_is_known_though_its_bytes_are_on_disk() -> None:
    keys = MessageKeys(SORTED, look)
    run = run_of("key=7", sequence=3)
    keys.keep(run)
    assert keys.key_of(evicted(run)) == key_of(7)
    keys.drop(3)
    assert len(keys) == 0


def test_the_keys_of_deliveries_outlast_a_purge_and_those_of_delayed_messages_do_not() -> None:
    keys = MessageKeys(SORTED, look)
    delivered, delayed = run_of("key=1", "key=2", sequence=3), run_of("key=3", sequence=9)
    keys.remember(delivered)
    keys.keep(delayed)
    keys.cleared()
    assert [keys.is_remembered(each) for each in (3, 4, 9)] == [True, True, False]
    assert len(keys) == 2
    first, second = keys.pieces(evicted(delivered))
    assert [keys.key_of(each) for each in (first, second)] == [key_of(1), key_of(2)]
    keys.forget(delivered)
    assert len(keys) == 0
    assert not keys.is_remembered(3)


def test_keys_of_messages_that_are_delayed_no_more_do_not_pile_up() -> None:
    keys = MessageKeys(SORTED, look)
    delayed = Sparse()
    for number in range(limits.STALE_ENTRIES_MIN + 10):
        keys.keep(run_of("key=1", sequence=number))
    delayed.give_back(run_of("key=1", sequence=4))
    keys.remember(run_of("key=1", sequence=6))
    keys.thin(delayed)
    assert len(keys) == 2
    assert keys.is_remembered(6)


def test_keys_count_with_the_size_of_the_largest_one() -> None:
    keys = MessageKeys(SORTED, look)
    keys.key_of(run_of("key=7"))
    small = keys.bytes_of(1)
    assert keys.kept_bytes == small
    keys.key_of(run_of(f"key={'x' * 100}"))
    assert keys.bytes_of(1) == small + 100
    assert keys.bytes_of(10) == 10 * (small + 100)
    assert keys.bytes_of(0) == 0
    assert keys.bytes_of(1) == small, "the index was empty: what it held before no longer counts"
