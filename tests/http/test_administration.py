"""Azure's administration over plain HTTP: statuses and bodies that its clients tell apart."""

from xml.etree import ElementTree as Xml

import pytest

from lightrail.service_bus.administration.call import NAME_CHARACTERS_MAX
from lightrail.service_bus.spelling import PART_CHARACTERS_MAX
from tests.support.http_client import Http, Response

V = "api-version=2021-05"
UPDATE = {"If-Match": "*"}


def entry(kind: str, inner: str = "") -> bytes:
    """As the client for .NET writes it."""
    return (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        f'<{kind} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
        f'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{inner}</{kind}></content></entry>'
    ).encode()


def refused(answer: Response) -> tuple[int, str]:
    """The status and the detail of an error."""
    assert answer.headers["content-type"].startswith("application/xml")
    error = Xml.fromstring(answer.body)
    assert (error.tag, error.findtext("Code")) == ("Error", str(answer.status))
    return answer.status, error.findtext("Detail") or ""


QUEUE, TOPIC, SUBSCRIPTION = "QueueDescription", "TopicDescription", "SubscriptionDescription"
RULE = "RuleDescription"


def test_every_property_may_be_sent_with_its_default(http: Http) -> None:
    """As the client for .NET does."""
    inner = (
        "<LockDuration>PT1M</LockDuration><MaxSizeInMegabytes>1024</MaxSizeInMegabytes>"
        "<RequiresDuplicateDetection>false</RequiresDuplicateDetection><RequiresSession>false</RequiresSession>"
        "<DefaultMessageTimeToLive>P10675199DT2H48M5.4775807S</DefaultMessageTimeToLive>"
        "<DeadLetteringOnMessageExpiration>false</DeadLetteringOnMessageExpiration>"
        "<DuplicateDetectionHistoryTimeWindow>PT10M</DuplicateDetectionHistoryTimeWindow>"
        "<MaxDeliveryCount>10</MaxDeliveryCount><EnableBatchedOperations>true</EnableBatchedOperations>"
        "<AuthorizationRules/><Status>Active</Status>"
        "<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>"
        "<EnablePartitioning>false</EnablePartitioning>"
    )
    assert http("PUT", f"/net/q?{V}", entry(QUEUE, inner)).status == 201
    policy = http("GET", "/net/q/!policy").json()
    assert policy == {
        "role": "queue",
        "lock_duration": 60,
        "max_delivery_count": 10,
        "max_bytes": 1 << 30,
        "delay": True,
        "expired": "discard",
    }


def test_an_etag_guards_a_change(http: Http) -> None:
    made = http("PUT", f"/net/guarded?{V}", entry(QUEUE))
    tag = made.headers["etag"]
    change = entry(QUEUE, "<MaxDeliveryCount>3</MaxDeliveryCount>")
    changed = http("PUT", f"/net/guarded?{V}", change, {"If-Match": tag})
    assert changed.status == 200
    status, detail = refused(http("PUT", f"/net/guarded?{V}", change, {"If-Match": tag}))
    assert status == 409
    assert "SubCode=40901" in detail, "clients tell a conflict from a name that is taken by this word"
    assert http("DELETE", f"/net/guarded?{V}").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "text"),
    [
        ("GET", "/net/missing", b"", 404, "no queue or topic"),
        ("PUT", "/net/missing", entry(QUEUE), 404, "can't be changed"),
        ("DELETE", "/net/missing", b"", 404, "no queue or topic"),
        ("POST", "/net/missing", b"", 405, "expected GET, PUT, DELETE"),
        ("GET", "/$Resources/else", b"", 404, "nothing is administered"),
        ("GET", "/$temporary/missing", b"", 404, "no queue or topic"),
        ("PUT", "/$temporary/missing", entry(QUEUE), 405, "expected GET"),
        ("DELETE", "/$temporary/missing", b"", 405, "expected GET"),
        ("GET", "/net/missing/subscriptions", b"", 404, "no queue or topic"),
        ("GET", "/$Resources/queues?$top=0", b"", 400, "$top"),
        ("PUT", "/net/$dlq", entry(QUEUE), 404, "can't be changed"),
        ("PUT", "/net/missing", b"<a/>", 400, "expected an Atom entry"),
    ],
)
def test_an_error_says_what_was_expected(
    http: Http, method: str, path: str, body: bytes, status: int, text: str
) -> None:
    query = f"{path}{'&' if '?' in path else '?'}{V}"
    found, detail = refused(http(method, query, body or None, UPDATE))
    assert (found, text in detail) == (status, True), detail


def test_dead_letters_have_no_queue_of_their_own(http: Http) -> None:
    status, detail = refused(http("PUT", f"/net/other/$dlq?{V}", entry(QUEUE)))
    assert (status, "a system name" in detail) == (400, True)


def test_names_are_as_long_as_in_service_bus(http: Http) -> None:
    long = "n" * (NAME_CHARACTERS_MAX - 4)
    assert http("PUT", f"/net/{long}?{V}", entry(TOPIC)).status == 201
    status, detail = refused(http("PUT", f"/net/{long}n?{V}", entry(QUEUE)))
    assert (status, f"at most {NAME_CHARACTERS_MAX} characters" in detail) == (400, True)
    part = "s" * PART_CHARACTERS_MAX
    for path, body in ((part, SUBSCRIPTION), (f"{part}/rules/{part}", RULE)):
        assert http("PUT", f"/net/{long}/subscriptions/{path}?{V}", entry(body)).status == 201
        status, detail = refused(http("PUT", f"/net/{long}/subscriptions/{path}x?{V}", entry(body)))
        assert (status, f"at most {PART_CHARACTERS_MAX} characters" in detail) == (400, True)


def test_a_limit_is_a_quota(http: Http) -> None:
    http("POST", "/net/small", {"role": "router", "max_subscribers": 1})
    assert http("PUT", f"/net/small/subscriptions/one?{V}", entry(SUBSCRIPTION)).status == 201
    status, _ = refused(http("PUT", f"/net/small/subscriptions/two?{V}", entry(SUBSCRIPTION)))
    assert status == 403
    assert http("GET", "/net/small/Subscriptions/two/!policy").status == 404, "its queue is deleted again"


def test_a_queue_that_was_left_behind_is_taken(http: Http) -> None:
    http("PUT", f"/net/again?{V}", entry(TOPIC))
    http("POST", "/net/again/Subscriptions/s", {"role": "queue", "lock_duration": 5})
    assert http("PUT", f"/net/again/subscriptions/s?{V}", entry(SUBSCRIPTION)).status == 201
    assert http("GET", "/net/again/Subscriptions/s/!policy").json()["lock_duration"] == 60


def test_what_is_no_queue_or_topic_is_not_there(http: Http) -> None:
    http("POST", "/net/elsewhere", {"role": "metadata", "reference": "http://example.org/"})
    assert refused(http("GET", f"/net/elsewhere?{V}"))[0] == 404
    http("POST", "/net/queue", {"role": "queue"})
    assert refused(http("GET", f"/net/queue/subscriptions?{V}"))[0] == 404
    assert refused(http("PUT", f"/net/queue?{V}", entry(TOPIC), UPDATE))[0] == 409


def test_subscriptions_without_messages_of_their_own_are_not_shown(http: Http) -> None:
    for name in ("net/one", "net/two"):
        http("POST", f"/{name}", {"role": "router"})
    made = http("POST", "/net/one/!subscriptions", {"target": "net/two", "id": "routed"})
    assert made.status == 201
    assert http("GET", f"/net/one/subscriptions?{V}").body.count(b"<entry>") == 0
    assert refused(http("GET", f"/net/one/subscriptions/routed?{V}"))[0] == 404
    taken = http("PUT", f"/net/one/subscriptions/routed?{V}", entry(SUBSCRIPTION))
    assert refused(taken)[0] == 409
