"""The state of a queue that moves: all data besides the messages that the destination needs.

It has the sequences in the queue and how often they were delivered, the unsettled deliveries of each
consumer, locks, owners of groups, message-ids, and the numbers of producers' batches. The source encodes it,
the destination decodes it.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lightrail.filters.errors import FilterError
from lightrail.filters.matcher import Looks
from lightrail.model.attempts import of_journal, waiting, waits_until_ms
from lightrail.model.links import Durability, LockEnding
from lightrail.shard.effects.performer import Performer
from lightrail.shard.effects.receiving_link import Origin
from lightrail.shard.journal.kept_links import RecoveredTerminus
from lightrail.shard.links.receiving.consumer_options import options_of
from lightrail.shard.links.sending.sending_links import Known
from lightrail.shard.moving.pieces import Columns, ColumnsError, QueueMessages, pack, put, rows, unpack
from lightrail.shard.queue.changes.copying import Stretch
from lightrail.shard.queue.lines.consumers import Consumer
from lightrail.shard.queue.timed.windows import DIGEST_BYTES
from lightrail.shard.queue.values.commands import ConsumerOptions, Holder, Past
from lightrail.shard.queue.values.runs import Run
from lightrail.shard.queues.shard_queue import Queue
from lightrail.wire.bodies import ConsumerOpen
from lightrail.wire.columns import decode_tags, encode_tags

if TYPE_CHECKING:
    from lightrail.shard.links.links import Links


@dataclass(slots=True)
class QueueState:
    """The decoded state; the default is that of a queue without consumers and producers."""

    stretches: list[Stretch] = field(default_factory=list)
    next_sequence: int = 0
    holders: list[Holder] = field(default_factory=list)
    origins: dict[int, Origin] = field(default_factory=dict)
    """The link of each consumer at the source, by the consumer's number at this shard."""
    locks: list[tuple[int, int, int, int]] = field(default_factory=list)
    past: Past = field(default_factory=Past)
    known: Known = field(default_factory=lambda: Known({}, {}, {}))
    ids: list[tuple[int, bytes]] = field(default_factory=list)
    seen_to: int = 0
    redelivered_before: int = 0
    may_have_lost: bool = False
    recovered_to: int = 0
    termini: list[RecoveredTerminus] = field(default_factory=list)
    """Links that may be resumed."""
    idle_since_ms: int = 0
    """As in the source's record."""
    source_ms: int = 0
    """The source's time when it sent the state."""


def encode_state(
    contents: QueueMessages, performer: Performer, links: "Links"
) -> tuple[dict[str, Any], bytes]:
    """The fields of the JSON and the blob of a queue's state."""
    queue = contents.queue
    view = queue.view
    consumers = _consumers(queue, performer)
    index_of = {consumer.id: index for index, (consumer, _) in enumerate(consumers)}
    pasts, stretches = _stretches(contents, index_of)
    past = view.past
    columns: Columns = {}
    put(columns, "there", {"first": "Q", "count": "Q", "past": "I"}, stretches)
    _put_deliveries(columns, queue, [consumer for consumer, _ in consumers], index_of)
    owners = (past.owners or {}).items()
    put(
        columns,
        "owners",
        {"sequence": "Q", "consumer": "I"},
        ((sequence, index_of[owner]) for sequence, owner in owners if owner in index_of),
    )
    put(columns, "newest", {"sequence": "Q", "above": "Q"}, (past.newest or {}).items())
    _put_producers(columns, links.sending.numbers_of(queue))
    groups = view.ids
    sizes = ((until_ms, len(digests)) for until_ms, digests in groups)
    put(columns, "ids", {"until_ms": "q", "size": "I"}, sizes)
    columns["digests"] = [digests for _, digests in groups]
    termini = list(links.sending.termini.of(queue))
    tags = [encode_tags(terminus.tags) for terminus in termini]
    kept = ((each.suspended_ms, len(body)) for each, body in zip(termini, tags, strict=True))
    put(columns, "termini", {"suspended_ms": "Q", "size": "I"}, kept)
    columns["tags"] = tags
    described, blob = pack(columns)
    header = {
        "next_sequence": view.next_sequence,
        "seen_to": view.deliveries.seen_to,
        "redelivered_before": queue.redelivered_before,
        "may_have_lost": queue.may_have_lost,
        "recovered_to": queue.recovered_to,
        "idle_since_ms": queue.idle_since_ms,
        "messages": view.held,
        "bytes": view.held_bytes,
        "pasts": [[of_journal(attempts), list(barred)] for attempts, barred in pasts],
        # Former versions do not know it; for them, messages that wait are ready.
        "waits": [waits_until_ms(attempts) for attempts, _ in pasts],
        "consumers": [each for _, each in consumers],
        "termini": [terminus.client_link for terminus in termini],
        "durability": [Durability.CONFIGURATION if each.lost else each.durability for each in termini],
        "users": [each.user for each in termini],
        "groups": past.owners is not None,
        "last_values": past.newest is not None,
        **described,
    }
    return header, blob


def _put_deliveries(
    columns: Columns, queue: Queue, consumers: list[Consumer], index_of: dict[int, int]
) -> None:
    """Adds the unsettled deliveries of each consumer, and its locks."""
    put(
        columns,
        "held",
        {"consumer": "I", "number": "Q", "sequence": "Q", "count": "I"},
        (
            (index, number, run.sequence, run.count)
            for index, consumer in enumerate(consumers)
            for number, run in _in_flight(consumer)
        ),
    )
    put(
        columns,
        "locks",
        {"until_ms": "q", "consumer": "I", "first": "Q", "last": "Q"},
        (
            (until_ms, index_of[id], first, last)
            for until_ms, id, first, last in queue.view.locks
            if id in index_of
        ),
    )
    put(
        columns,
        "renewed",
        {"consumer": "I", "number": "Q", "until_ms": "q"},
        (
            (index, number, until_ms)
            for index, consumer in enumerate(consumers)
            for number, until_ms in consumer.renewed.items()
        ),
    )


def _put_producers(columns: Columns, known: Known) -> None:
    """Adds the numbers of the last batches of each producer."""
    put(
        columns,
        "producers",
        {"id": "Q", "number": "Q", "part": "I"},
        ((id, number, known.parts.get(id, 0)) for id, number in known.numbers.items()),
    )
    put(
        columns,
        "stored",
        {"id": "Q", "number": "Q", "sequence": "Q"},
        (
            (id, number, sequence)
            for id, stored in known.sequences.items()
            for number, sequence in stored.items()
        ),
    )


def _consumers(queue: Queue, performer: Performer) -> list[tuple[Consumer, dict[str, Any]]]:
    """Consumers in the order of their attaches, then those that detached and still have locks."""
    found: list[tuple[Consumer, dict[str, Any]]] = []
    position_of: dict[int | None, int] = {}
    for consumer in queue.view.holders():
        fields: dict[str, Any] = {
            "next": consumer.next,
            "lock_ms": consumer.lock_ms,
            "lock_ms_before": consumer.lock_ms_before,
        }
        link = performer.links.get(consumer.id)
        if consumer.departed:
            fields |= {"departed": True, "lock_key": consumer.options.lock_key}
            fields["own_lock_ms"] = consumer.options.lock_ms
            # Attached consumers come first.
            if (of := position_of.get(consumer.session_of)) is not None:
                fields["session_of"] = of
            if consumer.blame is not None:
                fields["blame"] = [consumer.blame.oldest, sorted(consumer.blame.renewed)]
        elif link is not None:
            boot, number = link.key
            fields |= {"boot": boot, "link": number, "opened": _opened(consumer, link.opened)}
            fields["user"] = link.opened.user
            if link.has_ended:
                fields["ended"] = True
        else:
            # No link would claim its deliveries.
            continue
        if consumer.options.lock_ends:
            fields["lock_ends"] = consumer.options.lock_ends
        if consumer.ring is None:
            fields["cursor"] = consumer.cursor
        elif queue.view.consumers.single_active and not consumer.standby and not consumer.departed:
            fields["active"] = True
        position_of[consumer.id] = len(found)
        found.append((consumer, fields))
    return found


def _opened(consumer: Consumer, opened: ConsumerOpen) -> dict[str, Any]:
    """The fields of a consumer's opening; those that former versions do not know only if they are set.

    Its user, and what ends its locks, are beside them, since former versions refuse an opening with a field
    that they do not know.
    """
    options = consumer.options
    fields = asdict(opened) | {"session": options.session, "any_session": options.any_session}
    del fields["user"], fields["lock_ends"]
    if not options.is_session:
        del fields["session"], fields["any_session"]
    if not opened.durability:
        del fields["durability"]
    return fields


def _stretches(
    contents: QueueMessages, index_of: dict[int, int]
) -> tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, int, int]]]:
    """All different pasts of messages, and (first sequence, count, past) of all messages, in order."""
    pasts: dict[tuple[int, tuple[int, ...]], int] = {}
    rows: list[tuple[int, int, int]] = []
    first = end = 0
    last: Run | None = None
    for run in contents.runs():
        if last is not None:
            if run.sequence == end and run.attempts == last.attempts and run.barred == last.barred:
                end = run.end
                continue
            rows.append((first, end - first, _past_of(last, pasts, index_of)))
        first, end, last = run.sequence, run.end, run
    if last is not None:
        rows.append((first, end - first, _past_of(last, pasts, index_of)))
    return list(pasts), rows


def _past_of(run: Run, pasts: dict[tuple[int, tuple[int, ...]], int], index_of: dict[int, int]) -> int:
    barred = tuple(index_of[each] for each in run.barred if each in index_of)
    return pasts.setdefault((run.attempts, barred), len(pasts))


def _in_flight(consumer: Consumer) -> Iterable[tuple[int, Run]]:
    line = consumer.in_flight
    return zip(line.keys[line.head :], line.runs[line.head :], strict=True)


def decode_state(
    header: dict[str, Any], blob: bytes, next_consumer: Callable[[], int], looks: Looks
) -> QueueState:
    """Decodes a state; its consumers get numbers of this shard.

    Raises:
        ColumnsError: the blob does not match its JSON.
        KeyError, IndexError, TypeError, ValueError: a field is missing or invalid.
    """
    columns = unpack(header, blob)
    origins: dict[int, Origin] = {}
    holders = _holders(header["consumers"], columns, next_consumer, looks, origins)
    numbers = [holder.consumer for holder in holders]
    waits = header.get("waits", [0] * len(header["pasts"]))
    pasts = [
        (waiting(int(attempts), int(until_ms)), tuple(numbers[each] for each in barred))
        for (attempts, barred), until_ms in zip(header["pasts"], waits, strict=True)
    ]
    locks = rows(columns, "locks.until_ms", "locks.consumer", "locks.first", "locks.last")
    owners = rows(columns, "owners.sequence", "owners.consumer")
    newest = rows(columns, "newest.sequence", "newest.above")
    return QueueState(
        [
            Stretch(first, first + count, *pasts[past])
            for first, count, past in rows(columns, "there.first", "there.count", "there.past")
        ],
        header["next_sequence"],
        holders,
        origins,
        [(until_ms, numbers[index], first, last) for until_ms, index, first, last in locks],
        Past(
            {sequence: numbers[index] for sequence, index in owners} if header["groups"] else None,
            dict(newest) if header["last_values"] else None,  # type: ignore[arg-type]  # rows of two
        ),
        _known(columns),
        _ids(columns),
        header["seen_to"],
        # Shards of former versions do not send it.
        int(header.get("redelivered_before", 0)),
        bool(header.get("may_have_lost", False)),
        int(header.get("recovered_to", 0)),
        _termini(header, columns),
        int(header.get("idle_since_ms", 0)),
        header["now_ms"],
    )


def _holders(
    consumers: list[dict[str, Any]],
    columns: Columns,
    next_consumer: Callable[[], int],
    looks: Looks,
    origins: dict[int, Origin],
) -> list[Holder]:
    """The source's consumers under numbers of this shard; adds the link of each to `origins`."""
    deliveries: list[list[tuple[int, int, int]]] = [[] for _ in consumers]
    for index, number, sequence, count in rows(
        columns, "held.consumer", "held.number", "held.sequence", "held.count"
    ):
        deliveries[index].append((number, sequence, count))
    renewed: list[dict[int, int]] = [{} for _ in consumers]
    for index, number, until_ms in rows(columns, "renewed.consumer", "renewed.number", "renewed.until_ms"):
        renewed[index][number] = until_ms
    holders: list[Holder] = []
    for each, held, anew in zip(consumers, deliveries, renewed, strict=True):
        id = next_consumer()
        if each.get("departed"):
            # Shards of former versions do not send its own lock time, and what ends its locks.
            options = ConsumerOptions(
                first=each["next"],
                lock_ms=each.get("own_lock_ms", 0),
                lock_key=each["lock_key"],
                lock_ends=LockEnding(each.get("lock_ends", "")),
            )
        else:
            # Shards of former versions do not send `user`, `lock_ends` and `ended`.
            opened = ConsumerOpen(
                **each["opened"], user=each.get("user", ""), lock_ends=each.get("lock_ends", "")
            )
            origins[id] = Origin((each["boot"], each["link"]), opened, bool(each.get("ended")))
            try:
                options = replace(options_of(opened, looks), first=each["next"])
            except FilterError as error:
                raise ValueError(f"a consumer's filter can't be used: {error}") from error
        holders.append(
            Holder(
                id,
                options,
                each["next"],
                held,
                each["lock_ms"],
                each["lock_ms_before"],
                anew,
                each.get("cursor", 0),
                each.get("departed", False),
                (each["blame"][0], each["blame"][1]) if each.get("blame") else None,
                None if "session_of" not in each else holders[each["session_of"]].consumer,
                each.get("active", False),
            )
        )
    return holders


def _known(columns: Columns) -> Known:
    """The numbers of producers' last batches at the source."""
    known = Known({}, {}, {})
    for id, number, part in rows(columns, "producers.id", "producers.number", "producers.part"):
        known.numbers[id] = number
        if part:
            known.parts[id] = part
    for id, number, sequence in rows(columns, "stored.id", "stored.number", "stored.sequence"):
        known.sequences.setdefault(id, {})[number] = sequence
    return known


def _termini(header: dict[str, Any], columns: Columns) -> list[RecoveredTerminus]:
    """The links that may be resumed, with their tags; shards of former versions do not send any."""
    found: list[RecoveredTerminus] = []
    position = 0
    if "termini" not in header:
        return found
    sizes = rows(columns, "termini.suspended_ms", "termini.size")
    links = header["termini"]
    durability = header.get("durability", [0] * len(links))
    users = header.get("users", [""] * len(links))
    for client_link, durable, user, (suspended_ms, size) in zip(links, durability, users, sizes, strict=True):
        tags = decode_tags(columns["tags"][position : position + size])
        found.append(RecoveredTerminus(bytes.fromhex(client_link), durable, suspended_ms, tags, user))
        position += size
    return found


def _ids(columns: Columns) -> list[tuple[int, bytes]]:
    """Digests of message-ids in the window of duplicates, with the end of their window."""
    found: list[tuple[int, bytes]] = []
    digests = columns["digests"]
    position = 0
    for until_ms, size in rows(columns, "ids.until_ms", "ids.size"):
        found.append((until_ms, bytes(digests[position : position + size])))
        position += size
    if position != len(digests) or any(len(each) % DIGEST_BYTES for _, each in found):
        raise ColumnsError(f"the digests have {position} bytes, found {len(digests)}")
    return found
