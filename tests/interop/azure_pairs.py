"""What Azure's client for Python sends to the clients of other languages, and receives from them.

The programs of the other languages do the same: Pairs.cs, pairs.mjs, pairs.go, Pairs.java. Of each pair of
languages a queue `pairs/SENDER/RECEIVER` has the messages, and one below it, `session`, those of a session.
"""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

LANGUAGES: Final = ("python", "javascript", "go", "java", "dotnet")
PATIENCE_S: Final = 100
"""How long a program waits for messages of another one, which may have to be started."""

FOUND: Final = {
    "data": "Zug \U0001f682",
    "fields": ["correlation", "subject", "text/plain", "reply", "to", "s", "r", 3600],
    "application": {"text": "value", "number": 7, "flag": True, "part": 0.5},
    "value": "größer",
    # A message that was abandoned, and the deliveries that count since.
    "again": ["größer", 1],
    "sequence": [1, "a"],
    "scheduled": "later",
    "session": "12",
}
"""What the client of a language receives from that of any other."""


def pairs(connection_string: str) -> dict[str, Any]:
    """Sends to each language, and then receives from each; what was received, by the sender's language."""
    # A client for each pair: this client needs a second to close a sender or a receiver.
    with ThreadPoolExecutor(len(LANGUAGES)) as pool:
        list(pool.map(lambda receiver: _give(connection_string, f"pairs/python/{receiver}"), LANGUAGES))
        found = pool.map(lambda sender: _take(connection_string, f"pairs/{sender}/python"), LANGUAGES)
        return dict(zip(LANGUAGES, found, strict=True))


def _give(connection_string: str, queue: str) -> None:
    data = ServiceBusMessage(
        "Zug \U0001f682",
        message_id="data",
        correlation_id="correlation",
        subject="subject",
        content_type="text/plain",
        reply_to="reply",
        to="to",
        session_id="s",
        reply_to_session_id="r",
        time_to_live=timedelta(hours=1),
        application_properties={"text": "value", "number": 7, "flag": True, "part": 0.5},
    )
    value = AmqpAnnotatedMessage(value_body="größer", properties=AmqpMessageProperties(message_id="value"))
    sequence = AmqpAnnotatedMessage(
        sequence_body=[1, "a"], properties=AmqpMessageProperties(message_id="sequence")
    )
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(data)
            sender.send_messages(value)
            sender.send_messages(sequence)
            later = ServiceBusMessage("later", message_id="scheduled")
            sender.schedule_messages(later, datetime.now(UTC) + timedelta(seconds=1))
        with client.get_queue_sender(f"{queue}/session") as sender:
            sender.send_messages([ServiceBusMessage(text, session_id="s") for text in ("1", "2")])


def _take(connection_string: str, queue: str) -> dict[str, Any]:
    with ServiceBusClient.from_connection_string(connection_string) as client:
        with client.get_queue_receiver(queue) as receiver:
            messages = {each.message_id: each for each in _received(receiver, 4)}
            data, value = messages["data"], messages["value"]
            sequence, scheduled = messages["sequence"], messages["scheduled"]
            receiver.complete_message(data)
            receiver.abandon_message(value)
            [again] = _received(receiver, 1)
            receiver.complete_message(again)
            receiver.dead_letter_message(sequence, reason="why", error_description="because")
            receiver.defer_message(scheduled)
            [deferred] = receiver.receive_deferred_messages(scheduled.sequence_number)
            receiver.complete_message(deferred)
        with client.get_queue_receiver(f"{queue}/session", session_id="s") as receiver:
            texts = ""
            for each in _received(receiver, 2):
                texts += str(each)
                receiver.complete_message(each)
            receiver.session.set_state("python")
    properties = data.application_properties or {}
    return {
        "data": str(data),
        "fields": [
            data.correlation_id,
            data.subject,
            data.content_type,
            data.reply_to,
            data.to,
            data.session_id,
            data.reply_to_session_id,
            round(data.time_to_live.total_seconds()) if data.time_to_live else None,
        ],
        "application": {_text(key): _text(each) for key, each in properties.items()},
        "value": _text(value.body),
        "again": [_text(again.body), (again.delivery_count or 0) - (value.delivery_count or 0)],
        "sequence": [_text(each) for each in _flat(sequence.body)],
        "scheduled": str(deferred),
        "session": texts,
    }


def _received(receiver: ServiceBusReceiver, count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        more = receiver.receive_messages(count - len(found), max_wait_time=PATIENCE_S)
        assert more, f"expected {count} messages, found {len(found)}"
        found += more
    return found


def _flat(rows: Any) -> list[Any]:
    """The values of a sequence, which this client gives as a list of its sections or of values."""
    return [value for row in rows for value in (row if isinstance(row, list) else [row])]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
