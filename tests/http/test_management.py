"""Management over HTTP: subscriptions, definitions out and in, status, figures of queues, the description."""

import contextlib
import re
from typing import Any
from urllib.parse import quote

from openapi_spec_validator import validate
from proton import ProtonException
from proton.utils import BlockingConnection

from tests.support import wait
from tests.support.broker import Broker
from tests.support.http_client import Http


def test_subscriptions_come_change_and_go(http: Http) -> None:
    http("POST", "/subs/r", {"role": "router"})
    http("POST", "/subs/q", {"role": "queue"})
    made = http("POST", "/subs/r/!subscriptions", {"target": "subs/q", "filter": {"subject": "a.#"}})
    assert made.status == 201
    location = made.headers["location"]
    assert location.startswith("/subs/r/!subscriptions/")
    assert http("GET", location).json()["filter"] == {"subject": "a.#"}
    changed = http("PUT", location, {"target": "subs/q"}, {"If-Match": made.headers["etag"]})
    assert changed.status == 200
    assert "filter" not in changed.json()
    assert http("PUT", location, {"target": "subs/q"}, {"If-Match": made.headers["etag"]}).status == 412
    listed = http("GET", "/subs/r/!subscriptions").json()["subscriptions"]
    assert [each["target"] for each in listed] == ["subs/q"]
    assert http("DELETE", location).status == 204
    assert http("DELETE", location).status == 404
    assert http("GET", location).status == 404


def test_bad_subscriptions_are_refused(http: Http) -> None:
    http("POST", "/cycle/a", {"role": "router"})
    http("POST", "/cycle/b", {"role": "router"})
    assert http("POST", "/cycle/a/!subscriptions", {"target": "cycle/b"}).status == 201
    cycle = http("POST", "/cycle/b/!subscriptions", {"target": "cycle/a"})
    assert cycle.status == 422
    assert "cycle" in cycle.json()["detail"]
    assert http("POST", "/cycle/a/!subscriptions", {"target": "nowhere"}).status == 404
    assert http("POST", "/cycle/a/!subscriptions", {"target": 5}).json()["field"] == "target"
    assert http("POST", "/cycle/a/!subscriptions", {"target": "x", "filtre": {}}).json()["field"] == "filtre"
    bad = http("POST", "/cycle/a/!subscriptions", {"target": "cycle/b", "filter": {"sql": "((("}})
    assert bad.status == 422


def test_the_secret_of_a_push_is_shown_once(http: Http) -> None:
    http("POST", "/pushed", {"role": "router"})
    made = http("POST", "/pushed/!subscriptions", {"target": "https://127.0.0.1/hook"})
    assert len(made.json()["secret"]) == 64
    assert "secret" not in http("GET", made.headers["location"]).json()
    assert made.json()["secret"] not in http("GET", "/!definitions").body.decode()


def test_definitions_go_out_and_come_in_again(http: Http) -> None:
    http("POST", "/defs/r", {"role": "router", "distribution": "one"})
    http("POST", "/defs/q", {"role": "queue", "max_length": 3})
    http("POST", "/defs/r/!subscriptions", {"target": "defs/q"})
    document = http("GET", "/!definitions?prefix=defs").json()
    assert document["names"] == {
        "defs/q": {"role": "queue", "max_length": 3},
        "defs/r": {"role": "router", "distribution": "one"},
    }
    assert http("POST", "/!definitions", document).json()["unchanged"] == 3
    for name in ("defs/r", "defs/q"):
        assert http("DELETE", f"/{name}/!policy").status == 204
    dry = http("POST", "/!definitions?dry_run=true", document).json()
    assert dry["created"][:2] == ["defs/q", "defs/r"]
    assert len(dry["created"]) == 3
    assert http("GET", "/defs/q").status == 404
    report = http("POST", "/!definitions", document).json()
    assert report["created"] == dry["created"]
    assert report["refused"] == []
    assert http("GET", "/!definitions?prefix=defs").json() == document


def test_what_differs_is_replaced_only_when_that_was_said(http: Http) -> None:
    http("POST", "/differs", {"role": "queue"})
    document = {"format": 1, "names": {"differs": {"role": "queue", "max_length": 9}}}
    refused = http("POST", "/!definitions", document).json()["refused"]
    assert [each["what"] for each in refused] == ["name differs"]
    assert http("POST", "/!definitions?replace=true", document).json()["changed"] == ["differs"]
    assert http("GET", "/differs/!policy").json()["max_length"] == 9
    bad = {"names": {"a//b": {"role": "queue"}, "x": {}}, "subscriptions": [1], "permissions": [{}]}
    assert len(http("POST", "/!definitions", bad).json()["refused"]) == 4
    assert http("POST", "/!definitions", {"format": 2}).status == 422


def test_status_shows_processes_shards_and_sums(http: Http) -> None:
    http("POST", "/status/q", {"role": "queue"})
    http("POST", "/status/q", "message")

    def shown() -> dict[str, Any]:
        """The status in which every process has answered: on a busy machine one may be late."""
        status: dict[str, Any] = http("GET", "/!status").json()
        figures = [each["disk_bytes"] for each in status["shards"]]
        return {} if status["reasons"] or None in figures else status

    status = wait.until(shown, "every process answers")
    assert status["ready"] is True
    assert {each["role"] for each in status["processes"]} == {"shard", "frontend"}
    assert len(status["shards"]) == 2
    assert status["totals"]["messages"] >= 1
    assert status["totals"]["names"] >= 1
    assert status["shards"][0]["disk_bytes"] > 0
    assert status["shards"][0]["transactions_prepared"] == 0


def test_transactions_that_wait_for_a_decision_are_listed(http: Http) -> None:
    assert http("GET", "/!transactions").json() == {"transactions": [], "count": 0, "silent": []}
    refused = http("POST", f"/!transactions/{'0f' * 16}", {"decision": "abort"})
    assert (refused.status, "found none with id" in refused.json()["detail"]) == (404, True)


def test_queues_come_in_pages_with_their_figures(http: Http) -> None:
    for number in range(3):
        http("POST", f"/figures/q{number}", {"role": "queue", "max_length": 10})
    http("POST", "/figures/q1", "message")
    page = http("GET", "/!queues?prefix=figures&limit=2").json()
    found = [(each["name"], each["ready"]) for each in page["queues"]]
    assert found == [("figures/q0", 0), ("figures/q1", 1)]
    assert page["queues"][1]["max_length"] == 10
    assert page["next"] == "figures/q1"
    rest = http("GET", f"/!queues?prefix=figures&after={page['next']}").json()
    assert [each["name"] for each in rest["queues"]] == ["figures/q2"]
    assert rest["next"] is None


def test_a_dead_letter_queue_stands_behind_its_queue_once_it_is_there(http: Http) -> None:
    for name in ("dead/a", "dead/a b", "dead/b"):
        http("POST", f"/{name.replace(' ', '%20')}", {"role": "queue"})
    http("POST", "/dead/a", "message")
    location = http("POST", "/dead/a/!head?timeout=20").headers["location"]
    assert http("PUT", location, {"outcome": "rejected"}).status == 200
    seen = []
    after: str | None = ""
    while after is not None:
        page = http("GET", f"/!queues?prefix=dead&limit=1&after={quote(after)}").json()
        seen += [(each["name"], each["ready"]) for each in page["queues"]]
        after = page["next"]
    assert seen == [("dead/a", 0), ("dead/a/$dlq", 1), ("dead/a b", 0), ("dead/b", 0)]


def test_routers_are_listed_with_who_subscribes(http: Http) -> None:
    http("POST", "/routers/r", {"role": "router"})
    http("POST", "/routers/q", {"role": "queue"})
    http("POST", "/routers/r/!subscriptions", {"target": "routers/q"})
    (row,) = http("GET", "/!routers?prefix=routers").json()["routers"]
    assert (row["name"], row["distribution"]) == ("routers/r", "all")
    assert [each["target"] for each in row["subscriptions"]] == ["routers/q"]


def test_the_description_is_valid_openapi(http: Http) -> None:
    served = http("GET", "/!openapi.json")
    assert served.status == 200
    validate(served.json())


def test_the_pages_show_a_broker_that_runs(http: Http, broker: Broker) -> None:
    http("POST", "/shown/q", {"role": "queue"})
    http("POST", "/shown/q", "a message")
    http("POST", "/shown/r", {"role": "router"})
    connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=20)
    connection.create_receiver("shown/elsewhere")
    try:
        for path, part in (
            ("/!ui", "LightRail"),
            ("/!ui/names?prefix=shown", "shown%2Fq"),
            ("/!ui/name?name=shown/q&peek=1", "a message"),
            ("/!ui/name?name=shown/r", "shown/r"),
            ("/!ui/queues", "shown/q"),
            ("/!ui/connections", "127.0.0.1"),
            ("/!ui/data/overview", "["),
            ("/!ui/data/queue?name=shown/q", "["),
        ):
            page = http("GET", path)
            assert (page.status, part in page.body.decode()) == (200, True), path
        (shown,) = http("GET", "/!connections").json()["connections"]
        page = http("GET", f"/!ui/connection?id={shown['id']}")
        assert "shown/elsewhere" in page.body.decode()
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert http("POST", "/!ui/purge", "name=shown/q&sure=yes", form).status == 303
        assert http("DELETE", "/shown/q/!head").status == 204
        assert http("POST", "/!ui/close", f"id={shown['id']}&sure=yes", form).status == 303
        assert http("GET", "/!ui/connection?id=nobody").status == 404
    finally:
        with contextlib.suppress(ProtonException):
            connection.close()


def test_what_http_clients_did_is_counted(http: Http) -> None:
    http("POST", "/counted", {"role": "queue"})
    http("POST", "/counted", "a message")
    assert http("POST", "/counted/!head?timeout=10").status == 201
    assert http("PATCH", "/counted").status == 405
    text = http("GET", "/metrics").body.decode()
    assert 'lightrail_http_requests_total{method="other",status="405",role="gateway",id="0"}' in text
    found = {line.split(" ")[0]: float(line.split(" ")[1]) for line in text.splitlines() if line[0] != "#"}
    own = 'role="gateway",id="0"}'
    assert found[f"lightrail_http_messages_sent_total{{{own}"] >= 1
    assert found[f'lightrail_http_messages_handed_out_total{{how="locked",{own}'] >= 1
    assert found[f"lightrail_http_receivers_waiting{{{own}"] == 0
    assert found[f"lightrail_http_body_bytes{{{own}"] == 0


def test_queues_that_nobody_has_used_are_counted(http: Http) -> None:
    document = {"names": {f"unused/{number}": {"role": "queue"} for number in range(300)}}
    assert len(http("POST", "/!definitions", document).json()["created"]) == 300
    by_shard = {each["id"]: each["queues"] for each in http("GET", "/!shards").json()["shards"]}
    assert sum(by_shard.values()) >= 300
    status = http("GET", "/!status").json()
    assert {each["id"]: each["queues"] for each in status["shards"]} == by_shard
    assert status["totals"]["queues"] == sum(by_shard.values())

    def counted() -> dict[int, int]:
        text = http("GET", "/metrics").body.decode()
        found = re.findall(r'lightrail_queues\{role="shard",id="(\d+)"\} (\S+)', text)
        return {int(id): int(float(number)) for id, number in found}

    wait.until(lambda: counted() == by_shard, "the shards' metrics say the same")


def test_a_receive_leaves_no_consumer(http: Http) -> None:
    assert http("POST", "/left", {"role": "queue"}).status == 201
    assert http("POST", "/left", "a message").status == 201
    assert http("DELETE", "/left/!head").status == 200
    wait.until(lambda: http("GET", "/left/!figures").json()["consumers"] == 0, "nobody consumes")
