"""Names over HTTP: roles by POST, policies with ETags, lists in JSON and Atom, errors that help."""

import json
from urllib.parse import quote
from xml.etree import ElementTree as Xml

import pytest
from proton.utils import BlockingConnection, LinkDetached

from tests.support.broker import Broker
from tests.support.http_client import Http

ATOM = "{http://www.w3.org/2005/Atom}"


def test_a_policy_posted_to_a_name_makes_it_a_queue(http: Http) -> None:
    made = http("POST", "/first/q", {"role": "queue", "lock_duration": 30})
    assert made.status == 201
    assert made.headers["location"] == "/first/q/!policy"
    links = made.headers["link"]
    assert '</first/q>; rel="tail"' in links
    assert '</first/q/!head>; rel="head"' in links
    read = http("GET", made.headers["location"])
    assert (read.status, read.json()) == (200, {"role": "queue", "lock_duration": 30})
    assert read.headers["etag"] == made.headers["etag"]


def test_a_router_links_to_its_subscriptions(http: Http) -> None:
    made = http("POST", "/first/r", {"role": "router"})
    assert '</first/r/!subscriptions>; rel="subscriptions"' in made.headers["link"]


def test_every_default_is_shown_when_asked_for(http: Http) -> None:
    http("POST", "/effective", {"role": "queue"})
    assert http("GET", "/effective/!policy").json() == {"role": "queue"}
    assert http("GET", "/effective/!policy?effective=true").json()["overflow"] == "reject"


def test_a_second_policy_is_a_conflict(http: Http) -> None:
    http("POST", "/taken", {"role": "queue"})
    again = http("POST", "/taken", {"role": "router"})
    assert again.status == 409
    assert again.headers["content-type"].startswith("application/problem+json")
    assert "/!policy" in again.json()["detail"]


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"role": "queue", "lock_duratoin": 1}, "lock_duratoin"),
        ({"role": "queue", "lock_duration": -1}, "lock_duration"),
        ({"role": "quue"}, "role"),
        ({"role": "queue", "order": "sorted"}, "order_key"),
        ([], ""),
    ],
)
def test_a_bad_policy_is_refused_with_field_value_and_what_is_allowed(
    http: Http, policy: object, field: str
) -> None:
    refused = http("POST", "/bad", policy)
    assert refused.status == 422
    problem = refused.json()
    assert problem["field"] == field
    assert problem["allowed"]
    assert "found" in problem


def test_what_is_no_json_or_no_name_is_said(http: Http) -> None:
    assert http("POST", "/bad", "{", {"Content-Type": "application/json"}).status == 422
    assert http("POST", "/a//b", {"role": "queue"}).status == 400
    assert http("POST", "/a%2", {"role": "queue"}).status == 400
    assert http("POST", "/a%00", {"role": "queue"}).status == 400


def test_a_change_is_guarded_by_if_match(http: Http) -> None:
    made = http("POST", "/guarded", {"role": "queue"})
    first = made.headers["etag"]
    changed = http("PUT", "/guarded/!policy", {"role": "queue", "max_length": 5}, {"If-Match": first})
    assert changed.status == 200
    assert changed.headers["etag"] != first
    lost = http("PUT", "/guarded/!policy", {"role": "queue"}, {"If-Match": first})
    assert lost.status == 412
    assert http("GET", "/guarded/!policy").json()["max_length"] == 5
    assert http("DELETE", "/guarded/!policy", headers={"If-Match": first}).status == 412
    assert http("DELETE", "/guarded/!policy", headers={"If-Match": changed.headers["etag"]}).status == 204
    assert http("GET", "/guarded/!policy").status == 404


def test_what_is_known_is_not_sent_again(http: Http) -> None:
    tag = http("POST", "/cached", {"role": "queue"}).headers["etag"]
    assert http("GET", "/cached/!policy", headers={"If-None-Match": tag}).status == 304


def test_another_role_takes_a_deletion_first(http: Http) -> None:
    http("POST", "/rerole", {"role": "queue"})
    assert http("PUT", "/rerole/!policy", {"role": "router"}).status == 422
    assert http("PUT", "/no-role/!policy", {"role": "queue"}).status == 404


def test_metadata_answers_303(http: Http) -> None:
    http("POST", "/meta", {"role": "metadata", "reference": "https://example.org/there?x=ü"})
    for method, body in (("GET", None), ("POST", "message")):
        found = http(method, "/meta", body)
        assert found.status == 303
        assert found.headers["location"] == "https://example.org/there?x=%C3%BC"


def test_names_hold_any_character_and_are_decoded_once(http: Http) -> None:
    made = http("POST", "/odd/%C3%BC%20%25%3F", {"role": "queue"})
    assert made.headers["location"] == "/odd/%C3%BC%20%25%3F/!policy"
    assert http("GET", "/odd/%C3%BC%20%25%3F").json()["name"] == "odd/ü %?"


def test_a_list_shows_the_next_segment_and_what_only_leads_further(http: Http) -> None:
    for name in ("list/a", "list/a/deeper", "list/b/c", "list/d"):
        http("POST", f"/{name}", {"role": "queue"})
    found = http("GET", "/list/").json()["names"]
    assert [(each["name"], each["role"], each["below"]) for each in found] == [
        ("list/a", "queue", 1),
        ("list/b", "none", 1),
        ("list/d", "queue", 0),
    ]
    deep = http("GET", "/list/?deep=true").json()["names"]
    assert [each["name"] for each in deep] == ["list/a", "list/a/deeper", "list/b/c", "list/d"]
    root = http("GET", "/", headers={"Accept": "application/json"}).json()["names"]
    assert {"name": "list", "role": "none", "href": "/list", "below": 4} in root


def test_a_list_comes_in_pages(http: Http) -> None:
    for number in range(5):
        http("POST", f"/pages/{number}", {"role": "queue"})
    page = http("GET", "/pages/?limit=2")
    assert page.json()["next"] == "pages/1"
    seen = [each["name"] for each in page.json()["names"]]
    while "link" in page.headers:
        page = http("GET", page.headers["link"].split(">")[0][1:])
        seen += [each["name"] for each in page.json()["names"]]
    assert seen == [f"pages/{number}" for number in range(5)]
    assert page.json()["next"] is None


def test_atom_entries_make_names_and_feeds_list_them(http: Http) -> None:
    entry = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><title>q</title>'
        '<content type="application/json">{"role": "queue", "max_length": 7}</content></entry>'
    )
    atom = {"Content-Type": "application/atom+xml", "Accept": "application/atom+xml"}
    made = http("POST", "/atom/q", entry, atom)
    assert made.status == 201
    content = Xml.fromstring(made.body).find(f"{ATOM}content")
    assert content is not None
    assert json.loads(content.text or "") == {"role": "queue", "max_length": 7}
    feed = Xml.fromstring(http("GET", "/atom/", headers=atom).body)
    assert [each.text for each in feed.findall(f"{ATOM}entry/{ATOM}title")] == ["atom/q"]


@pytest.mark.parametrize("text", ["<entry", "<feed/>", '<!DOCTYPE x [<!ENTITY a "b">]><entry/>'])
def test_what_is_no_entry_is_refused(http: Http, text: str) -> None:
    refused = http("POST", "/atom/bad", text, {"Content-Type": "application/atom+xml"})
    assert refused.status in (400, 422)
    assert "Atom entry" in refused.json()["detail"]


def test_what_is_not_served_is_said_with_what_is(http: Http) -> None:
    assert http("GET", "/x/!nothing").status == 404
    wrong = http("PATCH", "/x/!policy")
    assert wrong.status == 405
    assert wrong.headers["allow"] == "GET, PUT, DELETE"
    assert http("GET", "/nothing-here").status == 404


def test_an_expired_name_falls_back_to_no_role(http: Http) -> None:
    http("POST", "/past", {"role": "queue", "expires_at": "2020-01-01T00:00:00Z"})
    assert http("GET", "/past").status == 404
    assert http("POST", "/past", {"role": "router"}).status == 201


def test_two_spellings_that_look_alike_are_one_name(http: Http, broker: Broker) -> None:
    composed, decomposed = quote("spelt/café"), quote("spelt/cafe\u0301")
    assert http("POST", f"/{composed}", "one").status == 201
    for method, path, body in (
        ("POST", f"/{decomposed}", "two"),
        ("POST", f"/{decomposed}", {"role": "queue"}),
        ("DELETE", f"/{decomposed}/!head", None),
        ("PUT", "/!readers/" + quote("cafe\u0301"), {}),
    ):
        refused = http(method, path, body)
        assert refused.status in (400, 404, 422), path
        assert "composed form (NFC)" in refused.json()["detail"]
    document = {"names": {"spelt/cafe\u0301": {"role": "queue"}}}
    (refused,) = http("POST", "/!definitions", document).json()["refused"]
    assert "composed form (NFC)" in refused["why"]
    connection = BlockingConnection(f"amqp://{broker.amqp}", timeout=20)
    try:
        with pytest.raises(LinkDetached, match="composed form"):
            connection.create_sender("spelt/cafe\u0301")
        connection.create_sender("spelt/café").close()
    finally:
        connection.close()


def test_a_receive_makes_no_queue(http: Http) -> None:
    for method in ("DELETE", "POST"):
        refused = http(method, "/nosuch/q/!head")
        assert refused.status == 404
        assert "nosuch/q has no role" in refused.json()["detail"]
    assert http("GET", "/nosuch/").json()["names"] == []


def test_a_mistyped_role_is_named(http: Http) -> None:
    refused = http("POST", "/mistyped", {"rol": "queue"})
    assert refused.status == 422
    assert refused.json()["field"] == "rol"
    assert "is role meant?" in refused.json()["detail"]
    refused = http("POST", "/mistyped", {"role": "queue", "lock_duratoin": 5})
    assert "is lock_duration meant?" in refused.json()["detail"]
