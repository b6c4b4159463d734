"""Bounds of requests over HTTP: what is at one is served, what is beyond is refused in words, all goes on."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from lightrail.cluster import readers, users
from lightrail.cluster.coordinator import Write
from lightrail.cluster.sqlite import SqliteCoordinator
from lightrail.gateway.messages import outgoing
from lightrail.gateway.messages.batches import HTTP_BATCH_QUEUES_AT_ONCE
from lightrail.gateway.pages import pages
from lightrail.gateway.resources import connections, journals, messages, tail
from lightrail.model import limits
from lightrail.namespace import tokens
from lightrail.namespace.records import Permission, Right
from lightrail.namespace.tokens import TOKEN_SCOPES_MAX
from tests.http.test_callers import at_coordinator, user
from tests.support.batches import body, message, post
from tests.support.broker import Broker
from tests.support.http_client import Http, Response

MESSAGE_BYTES = 1024 * 1024
"""max_message_bytes of the broker, so that HTTP_BATCH_BYTES is the bound of a batch."""
NUMBERED = {"LightRail-Producer": "p", "LightRail-Batch": "0"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    data = tmp_path_factory.mktemp("bounds") / "data"
    data.mkdir(mode=0o700)

    async def prepare(coordinator: SqliteCoordinator) -> None:
        await coordinator.add_user(user("root", "pass"))
        every = Permission("root", "", frozenset(Right))
        await coordinator.write([Write(every.key, every.to_value())])

    at_coordinator(data, prepare)
    with Broker(data, "--max-message-bytes", str(MESSAGE_BYTES)) as running:
        yield running
        # Whatever was sent: no process was started again, and nothing but one line a minute is in the log.
        with Http(running.http, "root", "pass") as http:
            assert [each["restarts"] for each in http("GET", "/!status").json()["processes"]] == [0, 0]
        assert "Traceback" not in running.said()


@pytest.fixture
def http(broker: Broker) -> Iterator[Http]:
    with Http(broker.http, "root", "pass") as client:
        yield client


def refused(answer: Response, status: int, said: str) -> None:
    assert answer.status == status, answer.body
    assert said in answer.json()["detail"], answer.body


def padded(value: Any, size: int) -> bytes:
    """JSON of this size."""
    text = json.dumps(value).encode()
    return text + b" " * (size - len(text))


def raw(broker: Broker, *lines: bytes) -> bytes:
    """The answer to a request of these lines, to its end."""
    host, _, port = broker.http.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as client:
        client.sendall(b"\r\n".join(lines) + b"\r\nConnection: close\r\n\r\n")
        found = b""
        while part := client.recv(65_536):
            found += part
    return found


# --- heads of requests, before any password ------------------------------------------------------------


def test_a_header_has_at_most_so_many_bytes(broker: Broker) -> None:
    for more, status in ((0, b"200"), (1, b"431")):
        header = b"X: " + b"x" * (limits.HTTP_HEADER_BYTES + more)
        answer = raw(broker, b"GET /healthz HTTP/1.1", b"Host: h", header)
        assert answer.split(b" ", 2)[1] == status, answer[:200]
    assert b"headers of at most 65536 bytes each" in answer


def test_the_line_of_a_request_has_at_most_so_many_bytes(broker: Broker) -> None:
    answer = raw(broker, b"GET /" + b"x" * limits.HTTP_HEADER_BYTES + b" HTTP/1.1", b"Host: h")
    assert answer.split(b" ", 2)[1] == b"431"
    assert b"xxx" not in answer


def test_a_request_has_at_most_so_many_headers(broker: Broker) -> None:
    for more, status in ((0, b"200"), (1, b"431")):
        # Host and Connection are two of them.
        lines = [b"X-%d: x" % number for number in range(limits.HTTP_HEADERS_MAX - 2 + more)]
        answer = raw(broker, b"GET /healthz HTTP/1.1", b"Host: h", *lines)
        assert answer.split(b" ", 2)[1] == status, answer[:200]
    assert b"expected at most 128 headers" in answer


def test_heads_that_can_not_be_read_are_one_line_in_the_log(broker: Broker) -> None:
    for _ in range(20):
        assert raw(broker, b"GET / HTTP/1.1", b"no header").split(b" ", 2)[1] == b"400"
    assert broker.said().count("HTTP that can't be read") == 1


# --- bodies --------------------------------------------------------------------------------------------


def test_a_document_has_at_most_so_many_bytes(http: Http) -> None:
    kind = {"Content-Type": "application/json"}
    answer = http("POST", "/large", padded({"role": "queue"}, limits.HTTP_JSON_BYTES), kind)
    assert answer.status == 201, answer.body
    answer = http("PUT", "/large/!policy", padded({"role": "queue"}, limits.HTTP_JSON_BYTES + 1), kind)
    refused(answer, 413, str(limits.HTTP_JSON_BYTES))


def test_definitions_have_at_most_so_many_bytes(http: Http) -> None:
    kind = {"Content-Type": "application/json"}
    everything = http("GET", "/!definitions").json()
    answer = http("POST", "/!definitions", padded(everything, limits.HTTP_DEFINITIONS_BYTES), kind)
    assert answer.status == 200, answer.body
    # What is too large is known by its length, and not read.
    most = limits.HTTP_DEFINITIONS_BYTES
    longer = kind | {"Content-Length": str(most + 1)}
    refused(http("POST", "/!definitions", iter(()), longer), 413, str(most))


def test_a_batch_has_at_most_so_many_bytes(http: Http) -> None:
    http("POST", "/batch", {"role": "queue"})
    one = message("x" * (MESSAGE_BYTES - 100))
    count = limits.HTTP_BATCH_BYTES // len(one)
    left = limits.HTTP_BATCH_BYTES - (count + 2) * 4 - count * len(one)
    last = message("x" * (left - len(message("x" * 300)) + 300))
    batch = [one] * count + [last]
    assert len(body(batch)) == limits.HTTP_BATCH_BYTES
    assert post(http, "batch", "p", 0, batch).json() == {"stored": count + 1, "duplicate": False}
    larger = [*batch[:-1], message("x" * (left - len(message("x" * 300)) + 301))]
    assert len(body(larger)) == limits.HTTP_BATCH_BYTES + 1
    refused(post(http, "batch", "p", 1, larger), 413, str(limits.HTTP_BATCH_BYTES))


def test_a_batch_has_at_most_so_many_messages(http: Http) -> None:
    http("POST", "/many", {"role": "queue"})
    most = [message("")] * limits.HTTP_BATCH_MESSAGES
    assert post(http, "many", "p", 0, most).json()["stored"] == limits.HTTP_BATCH_MESSAGES
    refused(post(http, "many", "p", 1, [*most, most[0]]), 400, f"expected 1 to {limits.HTTP_BATCH_MESSAGES}")


def test_the_number_of_a_batch_and_the_name_of_its_producer_are_bounded(http: Http) -> None:
    http("POST", "/numbers", {"role": "queue"})
    producer, highest = "p" * limits.HTTP_PRODUCER_BYTES, limits.HTTP_BATCH_NUMBER_MAX
    assert post(http, "numbers", producer, highest, [message("a")]).json()["stored"] == 1
    refused(post(http, "numbers", producer + "p", 0, [message("a")]), 400, "1 to 512 bytes")
    refused(post(http, "numbers", "q", highest + 1, [message("a")]), 400, f"from 0 to {highest}")


def test_a_batch_reaches_more_queues_than_are_sent_to_at_once(http: Http) -> None:
    http("POST", "/wide", {"role": "router"})
    queues = [f"wide-{number}" for number in range(HTTP_BATCH_QUEUES_AT_ONCE + 1)]
    for queue in queues:
        http("POST", f"/{queue}", {"role": "queue"})
        assert http("POST", "/wide/!subscriptions", {"target": queue}).status == 201
    assert post(http, "wide", "p", 0, [message("a")]).json()["stored"] == len(queues)


# --- numbers in requests -------------------------------------------------------------------------------


def test_who_receives_waits_at_most_so_long(http: Http) -> None:
    http("POST", "/wait", {"role": "queue"})
    http("POST", "/wait", b"here", {"Content-Type": "text/plain"})
    most = limits.RECEIVE_WAIT_MS_MAX // 1000
    refused(http("DELETE", f"/wait/!head?timeout={most}.001"), 400, f"expected seconds from 0 to {most}")
    assert http("DELETE", f"/wait/!head?timeout={most}").body == b"here"


def test_a_token_lives_at_most_so_long_and_has_at_most_so_many_prefixes(http: Http) -> None:
    scope = [{"prefix": f"p{number}", "rights": ["send"]} for number in range(TOKEN_SCOPES_MAX)]
    made = http("POST", "/!tokens", {"ttl": limits.TOKEN_SECONDS_MAX, "scope": scope})
    assert made.status == 201, made.body
    # It is as good as it is long.
    bearer = {"Authorization": "Bearer " + made.json()["token"]}
    assert http("GET", "/!queues", headers=bearer).status == 200
    longer = {"ttl": limits.TOKEN_SECONDS_MAX + 1}
    refused(http("POST", "/!tokens", longer), 422, f"to {limits.TOKEN_SECONDS_MAX}")
    more = {"scope": [*scope, scope[0]]}
    refused(http("POST", "/!tokens", more), 422, f"1 to {TOKEN_SCOPES_MAX} prefixes")


def test_a_reader_holds_back_at_most_so_much_for_so_long(http: Http) -> None:
    most = {"hold_hours": limits.READER_HOLD_HOURS_MAX, "hold_bytes": limits.READER_HOLD_BYTES_MAX}
    assert http("PUT", "/!readers/most", most).status == 201
    for key, value in most.items():
        refused(http("PUT", "/!readers/most", {key: value + 1}), 422, key)
    for more, status in ((0, 200), (1, 422)):
        position = {"positions": {"0a" * 8: readers.LSN_MAX + more}}
        assert http("PUT", "/!readers/most", position).status == status
    assert http("DELETE", "/!readers/most").status == 204


def test_segments_and_offsets_of_journals_are_bounded(http: Http) -> None:
    (journal,) = {each["journal"] for each in http("GET", "/!journals").json()["journals"]}
    at = f"/!journals/{journal}"
    segment, offset = journals.SEGMENT_MAX, journals.OFFSET_MAX
    assert http("GET", f"{at}/{segment}").status == 404
    refused(http("GET", f"{at}/{segment + 1}"), 400, f"from 0 to {segment}")
    for edge in ("from", "to"):
        refused(http("GET", f"{at}/1?{edge}={offset + 1}"), 400, f"from 0 to {offset}")


def test_a_page_of_a_queue_looks_at_so_many_messages(http: Http) -> None:
    http("POST", "/looked", {"role": "queue"})
    for more, status in ((0, 200), (1, 400)):
        assert http("GET", f"/!ui/name?name=looked&peek=1&count={pages.PEEK_MAX + more}").status == status


def test_a_plan_is_bounded_in_its_moves_and_the_time_that_it_measures(http: Http) -> None:
    most = limits.PLAN_MOVES_MAX
    assert http("GET", f"/!plan?sample=0&max_moves={most}").status == 200
    refused(http("GET", f"/!plan?sample=0&max_moves={most + 1}"), 400, f"from 0 to {most}")
    seconds = limits.PLAN_SAMPLE_S_MAX
    refused(http("GET", f"/!plan?sample={seconds}.1"), 400, f"expected seconds from 0 to {seconds}")
    move = {"queue": "nowhere", "to": 0}
    refused(http("POST", "/!moves", {"moves": [move] * (most + 1)}), 422, f"at most {most} moves")


def test_the_throttle_of_moves_is_bounded(http: Http) -> None:
    most = limits.MOVE_THROTTLE_MAX
    assert http("POST", f"/!moves?throttle={most}", {"moves": []}).status == 202
    refused(http("POST", f"/!moves?throttle={most + 1}", {"moves": []}), 400, f"from 0 to {most}")


def test_a_page_has_at_most_so_many_queues(http: Http) -> None:
    assert http("GET", f"/!queues?limit={limits.PAGE_MAX}").status == 200
    refused(http("GET", f"/!queues?limit={limits.PAGE_MAX + 1}"), 400, f"from 1 to {limits.PAGE_MAX}")


def test_a_json_batch_has_at_most_so_many_messages(http: Http) -> None:
    http("POST", "/json", {"role": "queue"})
    kind = {"Content-Type": "application/vnd.lightrail.batch+json"}
    most = [{"Body": "x"}] * tail.BATCH_MAX
    assert http("POST", "/json", most, kind).status == 201
    refused(http("POST", "/json", [*most, most[0]], kind), 422, f"1 to {tail.BATCH_MAX} messages")


def test_sequences_and_lives_of_messages_have_the_widths_of_their_fields(http: Http) -> None:
    http("POST", "/widths", {"role": "queue"})
    last = messages.SEQUENCE_MAX
    assert http("GET", f"/widths/!messages?from={last}").json()["messages"] == []
    refused(http("GET", f"/widths/!messages?from={last + 1}"), 400, f"from 0 to {last}")
    for more, status in ((0, 201), (1, 422)):
        seconds = outgoing.TTL_MS_MAX // 1000 + more
        properties = {"BrokerProperties": json.dumps({"TimeToLive": seconds})}
        assert http("POST", "/widths", b"x", properties).status == status


def test_what_a_client_is_told_when_it_is_closed_has_at_most_so_many_letters(http: Http) -> None:
    text = "x" * connections.TEXT_MAX
    # There is no such connection: what is said to it is looked at first.
    assert http("DELETE", f"/!connections/frontend-0.00000000.1?text={text}").status == 404
    answer = http("DELETE", f"/!connections/frontend-0.00000000.1?text={text}x")
    refused(answer, 400, f"at most {connections.TEXT_MAX}")


def test_credentials_have_at_most_so_many_bytes(broker: Broker, http: Http) -> None:
    with Http(broker.http) as nobody:
        for size in (tokens.TOKEN_BYTES_MAX, tokens.TOKEN_BYTES_MAX + 1):
            bearer = {"Authorization": "Bearer " + "x" * size}
            assert nobody("GET", "/!queues", headers=bearer).status == 401
    long = "x" * (users.PASSWORD_BYTES_MAX + 1)
    for name, password in (("root", long), ("n" * (users.NAME_BYTES_MAX + 1), "pass")):
        with Http(broker.http, name, password) as stranger:
            assert stranger("GET", "/!queues").status == 401
    assert http("GET", "/!queues").status == 200
