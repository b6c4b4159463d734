"""RabbitMQ's definitions as a document for the import: what is mapped, and that the rest is listed."""

import json
from pathlib import Path
from typing import Any

import pytest

from lightrail.cli import admin
from lightrail.cli.administration import rabbitmq
from lightrail.filters.filter import compile_filter
from lightrail.model.policy import Policy
from tests.support.fake_gateway import FakeGateway

REALISTIC = Path(__file__).parent / "rabbitmq_definitions.json"
"""As `rabbitmqctl export_definitions` writes it."""


def queue(name: str = "q", type: str = "classic", vhost: str = "/", **more: Any) -> dict[str, Any]:
    arguments = {"x-queue-type": type, **more.pop("arguments", {})}
    plain = {"name": name, "vhost": vhost, "durable": True, "auto_delete": False}
    return plain | {"arguments": arguments} | more


def exchange(name: str, type: str, vhost: str = "/", **more: Any) -> dict[str, Any]:
    plain = {"name": name, "vhost": vhost, "type": type, "durable": True, "auto_delete": False}
    return plain | {"internal": False, "arguments": {}} | more


def binding(
    source: str, destination: str, key: str = "", kind: str = "queue", **arguments: Any
) -> dict[str, Any]:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "destination_type": kind,
        "routing_key": key,
        "arguments": {each.replace("_", "-"): value for each, value in arguments.items()},
    }


def converted(**parts: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The document, and the reasons by what was not mapped."""
    definitions = {"rabbit_version": "3.10.8", "queues": [], "exchanges": [], "bindings": [], **parts}
    document, missing = rabbitmq.convert(definitions)
    for policy in document["names"].values():
        Policy.parse(policy)
    for each in document["subscriptions"]:
        compile_filter(each.get("filter"))
    assert all(each.why and each.do for each in missing)
    return document, {each.what: each.why for each in missing}


def policy_of(**more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Fields of the policy of one queue that differ from those of a queue without arguments."""
    parts = {key: more.pop(key) for key in ("policies", "rabbit_version") if key in more}
    document, missing = converted(queues=[queue(**more)], **parts)
    plain = {"role": "queue", "expired": "discard", "max_delivery_count": 0}
    return {key: value for key, value in document["names"]["q"].items() if plain.get(key) != value}, missing


def filters(type: str, *bindings: dict[str, Any]) -> tuple[list[Any], dict[str, str]]:
    document, missing = converted(queues=[queue()], exchanges=[exchange("e", type)], bindings=list(bindings))
    return [each.get("filter") for each in document["subscriptions"]], missing


def test_the_file_is_recognised_by_its_shape() -> None:
    assert rabbitmq.is_rabbitmq({"rabbit_version": "3.10.8"})
    assert rabbitmq.is_rabbitmq({"rabbitmq_version": "4.0.2"})
    assert rabbitmq.is_rabbitmq({"queues": [], "exchanges": [], "bindings": []})
    others: list[Any] = [{"format": 1, "names": {}}, {"queues": [], "exchanges": []}, [], 7, None]
    for other in others:
        assert not rabbitmq.is_rabbitmq(other)


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ({"queues": {}}, "queues is"),
        ({"queues": [queue(), 7]}, r"queues\[1\] is '7'; expected an object"),
        ({"queues": [queue(name=7)]}, r"queues\[0\].name is '7'; expected a text"),  # type: ignore[arg-type]
        ({"queues": [queue(arguments={}) | {"arguments": "x"}]}, "queue q: arguments"),
        ({"exchanges": [{"name": "e"}]}, r"exchanges\[0\].type is 'null'"),
        ({"bindings": [binding("e", "q") | {"routing_key": 5}]}, r"bindings\[0\].routing_key"),
        ({"policies": [{"name": "p", "pattern": ".*", "definition": "x"}]}, r"policies\[0\]: definition"),
        ({"permissions": [{"user": "u"}]}, r"permissions\[0\].configure"),
    ],
)
def test_a_file_of_another_form_is_refused_with_what_was_expected(parts: Any, where: str) -> None:
    with pytest.raises(rabbitmq.DefinitionsError, match=where):
        converted(**parts)


@pytest.mark.parametrize(
    ("arguments", "fields"),
    [
        ({"x-message-ttl": 1500}, {"max_age": 1.5}),
        ({"x-max-length": 7}, {"max_length": 7, "overflow": "discard_existing"}),
        ({"x-max-length-bytes": 7}, {"max_bytes": 7, "overflow": "discard_existing"}),
        ({"x-max-length": 7, "x-overflow": "reject-publish"}, {"max_length": 7, "overflow": "reject"}),
        ({"x-max-priority": 5}, {"priorities": 10}),
        ({"x-max-priority": 0}, {}),
        ({"x-single-active-consumer": True}, {"single_active": True}),
    ],
)
def test_an_argument_is_a_field_of_the_policy(arguments: Any, fields: Any) -> None:
    assert policy_of(arguments=arguments) == (fields, {})


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"x-expires": 1000}, "x-expires"),
        ({"x-message-ttl": 0}, "x-message-ttl"),
        ({"x-message-ttl": "1"}, "x-message-ttl"),
        ({"x-message-ttl": 1 << 60}, "x-message-ttl"),
        ({"x-max-length": True}, "x-max-length"),
        ({"x-overflow": "unheard-of"}, "x-overflow"),
        ({"x-single-active-consumer": "yes"}, "x-single-active-consumer"),
        ({"x-delivery-limit": 3}, "x-delivery-limit"),
        ({"x-queue-mode": "lazy"}, "x-queue-mode"),
        ({"x-unheard-of": []}, "x-unheard-of"),
    ],
)
def test_an_argument_without_a_counterpart_is_listed(arguments: Any, key: str) -> None:
    fields, missing = policy_of(arguments=arguments)
    assert fields == {}
    assert list(missing) == [f"queue q: {key}"]


def test_what_is_mapped_in_part_is_listed_too() -> None:
    fields, missing = policy_of(arguments={"x-max-priority": 255, "x-overflow": "reject-publish-dlx"})
    assert fields == {"priorities": 10, "overflow": "reject"}
    assert list(missing) == ["queue q: x-max-priority", "queue q: x-overflow"]


def test_a_transient_queue_keeps_nothing_and_one_of_auto_delete_ends_with_its_consumers() -> None:
    assert policy_of(durable=False)[0] == {"durable": "never"}
    assert policy_of(auto_delete=True)[0] == {"lifetime": "last_consumer"}


def test_a_quorum_queue_stores_every_message_and_limits_redeliveries() -> None:
    assert policy_of(type="quorum")[0] == {"durable": "always"}
    limited = policy_of(type="quorum", arguments={"x-delivery-limit": 3})[0]
    assert limited["max_delivery_count"] == 4  # the first delivery, and three more
    fourth = policy_of(type="quorum", rabbit_version="4.0.2")[0]
    assert fourth["max_delivery_count"] == 21
    fourth = policy_of(type="quorum", rabbit_version="4.0.2", arguments={"x-delivery-limit": -1})[0]
    assert fourth == {"durable": "always"}
    assert "replicas of 1 quorum queues: q" in policy_of(type="quorum")[1]


@pytest.mark.parametrize(
    ("kind", "retry", "fields", "listed"),
    [
        ("quorum", {"type": "failed", "min": 500, "max": 500}, (0.5, 0.5, None), 0),
        ("quorum", {"type": "failed", "min": 500, "max": 60_000}, (0.5, 60.0, 2), 1),
        ("quorum", {"type": "failed", "min": 500, "max": 200}, (0.2, 0.2, None), 0),
        ("quorum", {"type": "all", "min": 500}, (0.5, None, 2), 2),
        ("quorum", {"type": "returned", "min": 500}, None, 1),
        ("quorum", {"type": "failed"}, None, 1),
        ("quorum", {"type": "failed", "min": "1"}, None, 1),
        ("quorum", {"type": "failed", "min": 0}, None, 1),
        ("quorum", {"type": "disabled", "min": 500}, None, 0),
        ("quorum", {"min": 500, "max": 900}, None, 0),
        ("classic", {"min": 500, "multiplier": 3, "max": 900}, (0.5, 0.9, 3), 0),
        ("classic", {"min": 500, "multiplier": 1}, (0.5, None, 1), 0),
    ],
)
def test_delayed_retries(
    kind: str, retry: dict[str, Any], fields: tuple[float | None, ...] | None, listed: int
) -> None:
    policy, missing = policy_of(type=kind, arguments={f"x-delayed-retry-{key}": retry[key] for key in retry})
    names = ("retry_delay", "retry_delay_max", "retry_growth")
    expected = dict(zip(names, fields or (), strict=False))
    assert {key: policy.get(key) for key in names} == {key: expected.get(key) for key in names}
    assert sum("delayed-retry" in each for each in missing) == min(listed, 1)


def test_delayed_retries_of_a_policy_are_listed_once() -> None:
    definition = {"delayed-retry-type": "failed", "delayed-retry-min": 500}
    document, missing = converted(
        queues=[queue("a", "quorum"), queue("b", "quorum")],
        policies=[rabbit_policy(".", 1, "quorum_queues", **definition)],
    )
    assert [document["names"][each]["retry_delay"] for each in "ab"] == [0.5, 0.5]
    assert sum("delayed-retry-type of policy" in each for each in missing) == 1


def test_a_stream_and_its_bindings_are_listed() -> None:
    parts = {"exchanges": [exchange("e", "fanout")], "bindings": [binding("e", "s")]}
    document, missing = converted(queues=[queue("s", "stream")], **parts)
    assert (list(document["names"]), document["subscriptions"]) == (["e"], [])
    assert list(missing) == ["queue s", "binding of exchange e to queue s"]


def rabbit_policy(pattern: str, priority: int, apply_to: str = "queues", **definition: Any) -> dict[str, Any]:
    named = {"vhost": "/", "name": f"p{priority}", "pattern": pattern, "apply-to": apply_to}
    plain = {key.replace("_", "-"): value for key, value in definition.items()}
    return named | {"priority": priority, "definition": plain}


def test_only_the_matching_policy_of_the_highest_priority_applies() -> None:
    policies = [
        rabbit_policy("^q", 1, message_ttl=1000, max_length=3),
        rabbit_policy("q$", 2, message_ttl=2000),
        rabbit_policy("^other", 9, message_ttl=9000),
        rabbit_policy(".*", 8, "exchanges", alternate_exchange="x"),
        rabbit_policy(".*", 7, "quorum_queues", message_ttl=7000),
        rabbit_policy(".*", 6, max_length=6) | {"vhost": "another"},
    ]
    assert policy_of(policies=policies) == ({"max_age": 2.0}, {})


def test_of_a_policy_and_an_argument_the_lower_number_applies_and_else_the_argument() -> None:
    policies = [rabbit_policy(".*", 1, message_ttl=1000, max_length=9, overflow="reject-publish")]
    arguments = {"x-message-ttl": 5000, "x-max-length": 2, "x-overflow": "drop-head"}
    fields = {"max_age": 1.0, "max_length": 2, "overflow": "discard_existing"}
    assert policy_of(policies=policies, arguments=arguments) == (fields, {})


def test_fields_of_a_policy_without_a_counterpart_are_listed_once() -> None:
    policies = [rabbit_policy(".*", 1, ha_mode="all"), rabbit_policy("(", 2)]
    document, missing = converted(queues=[queue("a"), queue("b")], policies=policies)
    assert list(document["names"]) == ["a", "b"]
    assert list(missing) == ["policy p2", "ha-mode of policy p1"]


def test_a_queue_has_its_virtual_host_before_its_name() -> None:
    document, _ = converted(queues=[queue("a"), queue("a", vhost="shop")])
    assert list(document["names"]) == ["a", "shop/a"]


@pytest.mark.parametrize("name", ["a//b", "/a", "$a", "!a", "a\x00", "a/$dlq", "a" * 1000, "..", "e\u0301"])
def test_a_name_that_is_not_valid_here_is_listed_and_not_renamed(name: str) -> None:
    document, missing = converted(queues=[queue(name), queue("q")])
    assert list(document["names"]) == ["q"]
    assert len(missing) == 1
    assert next(iter(missing)).isprintable()


def test_two_of_one_name_are_never_one() -> None:
    document, missing = converted(
        queues=[queue("orders"), queue("shop/a"), queue("a", vhost="shop")],
        exchanges=[exchange("orders", "fanout")],
        bindings=[binding("orders", "orders")],
    )
    assert document["names"].keys() == {"orders", "shop/a"}
    assert document["names"]["orders"]["role"] == "queue"
    assert list(missing) == [
        "queue a of virtual host shop",
        "exchange orders",
        "binding of exchange orders to queue orders",
    ]


def test_an_exchange_is_a_router_and_only_a_durable_direct_one_refuses_what_nobody_gets() -> None:
    types = ("direct", "fanout", "topic", "headers")
    document, missing = converted(exchanges=[exchange(each, each) for each in types])
    found = {name: (policy["role"], policy["unroutable"]) for name, policy in document["names"].items()}
    assert found == {each: ("router", "reject" if each == "direct" else "drop") for each in types}
    assert missing == {}


def test_what_a_router_does_not_do_is_listed() -> None:
    arguments = {"alternate-exchange": "x", "x-other": 1}
    odd = exchange("e", "direct", durable=False, auto_delete=True, internal=True, arguments=arguments)
    _, missing = converted(exchanges=[odd, exchange("h", "x-consistent-hash"), exchange("", "direct")])
    kinds = ("alternate-exchange", "x-other", "auto_delete", "internal", "not durable")
    assert list(missing) == [*(f"exchange e: {each}" for each in kinds), "exchange h"]


def test_the_default_exchange_is_left_out() -> None:
    document, missing = converted(queues=[queue()], bindings=[binding("", "q", "q")])
    assert (document["subscriptions"], missing) == ([], {})


def test_a_binding_of_a_built_in_exchange_brings_its_router() -> None:
    document, missing = converted(queues=[queue()], bindings=[binding("amq.topic", "q", "a.#")])
    assert document["names"]["amq.topic"] == {"role": "router", "unroutable": "drop"}
    assert [each["filter"] for each in document["subscriptions"]] == [{"subject": "a.#"}]
    assert missing == {}


@pytest.mark.parametrize(
    ("type", "key", "found"),
    [
        ("direct", "a.*", {"properties": {"subject": "a.*"}}),
        ("direct", "", {"any": [{"properties": {"subject": ""}}, {"properties": {"subject": None}}]}),
        ("fanout", "a", None),
        ("topic", "a.*.#", {"subject": "a.*.#"}),
        ("topic", "#", None),
        ("topic", "a/b", {"properties": {"subject": "a/b"}}),
    ],
)
def test_a_binding_is_a_subscription_with_the_filter_that_matches(type: str, key: str, found: Any) -> None:
    assert filters(type, binding("e", "q", key)) == ([found], {})


@pytest.mark.parametrize("key", ["a/b.*", "a*.#"])
def test_a_pattern_that_would_match_others_here_is_listed(key: str) -> None:
    found, missing = filters("topic", binding("e", "q", key))
    assert (found, len(missing)) == ([], 1)


def equal(name: str, value: Any) -> dict[str, Any]:
    return {"properties": {f"application-properties.{name}": value}}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"x_match": "all", "a": 1, "b": "x"}, {"all": [equal("a", 1), equal("b", "x")]}),
        ({"x_match": "any", "a": 1, "b": True}, {"any": [equal("a", 1), equal("b", True)]}),
        ({"a": 1, "x_b": 2}, equal("a", 1)),
        ({"x_match": "all-with-x", "x_b": 2}, equal("x-b", 2)),
        ({"a": None}, {"not": equal("a", None)}),
        ({"x_match": "all"}, None),
    ],
)
def test_headers_are_application_properties(arguments: Any, found: Any) -> None:
    assert filters("headers", binding("e", "q", **arguments)) == ([found], {})


@pytest.mark.parametrize(
    "arguments", [{"x_match": "any"}, {"x_match": "some", "a": 1}, {"a": {}}, {"a": [1]}]
)
def test_headers_that_no_filter_matches_are_listed(arguments: Any) -> None:
    found, missing = filters("headers", binding("e", "q", **arguments))
    assert (found, len(missing)) == ([], 1)


def test_several_bindings_of_a_queue_are_several_subscriptions_and_equal_ones_one() -> None:
    found, _ = filters("direct", binding("e", "q", "a"), binding("e", "q", "b"), binding("e", "q", "b", x=1))
    assert len(found) == 2


def test_an_exchange_that_is_bound_to_an_exchange_subscribes_to_its_router() -> None:
    exchanges = [exchange("from", "topic"), exchange("to", "fanout")]
    document, _ = converted(exchanges=exchanges, bindings=[binding("from", "to", "a.#", "exchange")])
    (found,) = document["subscriptions"]
    assert (found["router"], found["target"], found["filter"]) == ("from", "to", {"subject": "a.#"})


def dead(exchange: str, key: str | None = None, name: str = "q") -> dict[str, Any]:
    arguments = {"x-dead-letter-exchange": exchange} | ({"x-dead-letter-routing-key": key} if key else {})
    return queue(name, arguments=arguments)


DEAD_LETTERS = {
    "exchanges": [exchange("fan", "fanout"), exchange("direct", "direct"), exchange("topic", "topic")],
    "bindings": [
        binding("direct", "dead", "k"),
        binding("direct", "dead", "q"),
        binding("direct", "fan", "to-exchange", "exchange"),
        binding("topic", "dead", "dead.#"),
        binding("topic", "other", "dead.two"),
        binding("fan", "dead"),
    ],
}


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (dead("", "dead"), "dead"),
        (dead("fan"), "fan"),
        (dead("fan", "k"), "fan"),
        (dead("direct", "k"), "dead"),
        (dead("topic", "dead.one"), "dead"),
        (dead("direct"), "dead"),  # only the default exchange fills q, by the key q
    ],
)
def test_dead_letters_go_where_their_exchange_sends_them(given: Any, target: str) -> None:
    document, missing = converted(queues=[given, queue("dead"), queue("other")], **DEAD_LETTERS)
    assert document["names"]["q"].get("dead_letter") == target
    assert "expired" not in document["names"]["q"]
    assert missing == {}


def test_dead_letters_of_a_bound_queue_are_routed_by_their_own_subject() -> None:
    parts = {**DEAD_LETTERS, "bindings": [*DEAD_LETTERS["bindings"], binding("topic", "q", "work")]}
    document, _ = converted(queues=[dead("direct"), queue("dead"), queue("other")], **parts)
    assert document["names"]["q"]["dead_letter"] == "direct"


@pytest.mark.parametrize(
    "given",
    [
        dead("", "gone"),
        dead("gone"),
        dead("direct", "x"),
        dead("direct", "to-exchange"),
        dead("topic", "dead.two"),
    ],
)
def test_dead_letters_without_one_target_are_listed(given: Any) -> None:
    document, missing = converted(queues=[given, queue("dead"), queue("other")], **DEAD_LETTERS)
    assert "dead_letter" not in document["names"]["q"]
    assert list(missing) == ["queue q: x-dead-letter-exchange"]


def test_dead_letters_that_would_return_to_their_queue_are_listed() -> None:
    document, missing = converted(
        queues=[dead("", "retry"), dead("", "q", "retry"), dead("", "self", "self")]
    )
    found = {name: policy.get("dead_letter") for name, policy in document["names"].items()}
    assert found == {"q": "retry", "retry": None, "self": None}
    assert list(missing) == [f"queue {name}: x-dead-letter-exchange" for name in ("retry", "self")]


def permission(configure: str, write: str, read: str, vhost: str = "/") -> dict[str, Any]:
    return {"user": "u", "vhost": vhost, "configure": configure, "write": write, "read": read}


def rights(*given: dict[str, Any], tags: Any = (), **parts: Any) -> tuple[dict[str, Any], int]:
    """Rights by prefix, and how many patterns are listed."""
    users = [{"name": "u", "password_hash": "x", "tags": tags}]
    document, missing = converted(users=users, permissions=list(given), **parts)
    found = {each["prefix"]: each["rights"] for each in document["permissions"]}
    return found, sum(what.startswith("permission") for what in missing)


def test_a_user_is_listed_with_the_command_that_defines_it() -> None:
    _, missing = rabbitmq.convert({"queues": [], "exchanges": [], "bindings": [], "users": [{"name": "a b"}]})
    assert [each.what for each in missing] == ["user a b"]
    assert "user add 'a b' --no-rights" in missing[0].do


def test_permissions_of_everything_and_of_prefixes_are_rights() -> None:
    assert rights(permission("", ".*", "^$")) == ({"": ["send"]}, 0)
    assert rights(permission(".*", ".*", ".*", "shop")) == ({"shop": ["manage", "send", "listen"]}, 0)
    assert rights(permission("^$", "^a/b/.*", "^c/")) == ({"a/b": ["send"], "c": ["listen"]}, 0)


@pytest.mark.parametrize("pattern", ["^a.*", "a/.*", "^a|b$", "^(a|b)/.*", "^a$", r"^a\."])
def test_a_pattern_that_is_no_prefix_is_listed(pattern: str) -> None:
    assert rights(permission("", pattern, "")) == ({}, 1)


def test_only_an_administrator_gets_the_right_to_manage_all_names() -> None:
    everything = permission(".*", ".*", ".*")
    assert rights(everything) == ({"": ["send", "listen"]}, 1)
    assert rights(everything, tags=["administrator"]) == ({"": ["manage", "send", "listen"]}, 0)
    assert rights(everything, tags="administrator,management")[1] == 0


def test_no_right_includes_more_names_than_its_pattern() -> None:
    other = queue(vhost="shop")
    assert rights(permission("", ".*", ""), queues=[other]) == ({}, 1)
    assert rights(permission("", ".*", ""), vhosts=[{"name": "/"}, {"name": "shop"}]) == ({}, 1)
    assert rights(permission("", "^shop/.*", ""), queues=[other]) == ({}, 1)
    assert rights(permission("", "^q/.*", ""), queues=[queue("q")]) == ({}, 1)
    assert rights(permission("", ".*", "", "shop"), queues=[queue("shop/x")]) == ({}, 1)


def test_every_entry_of_a_realistic_file_is_mapped_or_listed() -> None:
    document, missing = rabbitmq.convert(json.loads(REALISTIC.read_text()))
    assert document["names"] == {
        "orders.created": {
            "role": "queue",
            "durable": "always",
            "max_delivery_count": 6,
            "dead_letter": "orders.dlx",
        },
        "orders.audit": {"role": "queue", "max_delivery_count": 0, "max_age": 86400.0, "expired": "discard"},
        "orders.dead": {"role": "queue", "max_delivery_count": 0, "expired": "discard"},
        "mail": {
            "role": "queue",
            "max_delivery_count": 0,
            "expired": "discard",
            "priorities": 10,
            "max_length": 10000,
            "overflow": "reject",
        },
        "billing/invoices": {
            "role": "queue",
            "max_delivery_count": 0,
            "expired": "discard",
            "single_active": True,
        },
        "orders": {"role": "router", "unroutable": "drop"},
        "orders.dlx": {"role": "router", "unroutable": "drop"},
        "notifications": {"role": "router", "unroutable": "reject"},
        "documents": {"role": "router", "unroutable": "drop"},
        "billing/events": {"role": "router", "unroutable": "drop"},
    }
    assert {(each["router"], each["target"]) for each in document["subscriptions"]} == {
        ("orders", "orders.created"),
        ("orders", "orders.audit"),
        ("orders", "notifications"),
        ("orders.dlx", "orders.dead"),
        ("notifications", "mail"),
        ("documents", "mail"),
        ("billing/events", "billing/invoices"),
    }
    assert document["permissions"] == [
        {"user": "billing", "prefix": "billing", "rights": ["manage", "send", "listen"]}
    ]
    assert [each.what for each in missing] == [
        "queue orders.log",
        "queue mail: x-expires",
        "replicas of 1 quorum queues: orders.created",
        "binding of exchange orders to queue orders.log by #",
        "user guest",
        "user billing",
        *(
            f"permission of user guest in virtual host /: {each} '.*'"
            for each in ("configure", "write", "read")
        ),
        "federation-upstream partner",
        "topic_permissions billing",
    ]


def test_the_import_lists_what_was_not_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps({"rabbit_version": "3.10.8", "queues": [queue(), queue("a//b")]}))
    report = {"created": ["q"], "changed": [], "unchanged": 0, "refused": [], "dry_run": True}
    with FakeGateway() as gateway:
        gateway.answers["POST", "/!definitions"] = (200, {}, report)
        arguments = ["--url", gateway.url, "import", str(file), "--dry-run"]
        assert admin.main(arguments) == 0
        assert "dry_run=true" in gateway.asked[0][1]
        assert list(json.loads(gateway.asked[0][2])["names"]) == ["q"]
        written = capsys.readouterr()
        assert "would be created: q" in written.out
        assert "1 not mapped" in written.out
        assert "not mapped: queue a//b: the name 'a//b' has an empty segment" in written.err
        assert admin.main([*arguments, "--json"]) == 0
        (listed,) = json.loads(capsys.readouterr().out)["not_mapped"]
        assert (listed["what"], listed.keys()) == ("queue a//b", {"what", "why", "do"})
        file.write_text(json.dumps({"rabbit_version": "3.10.8", "queues": [7]}))
        assert admin.main(arguments) == 1
        assert "queues[0] is '7'; expected an object" in capsys.readouterr().err
