"""Properties: each has a counterpart, or is refused by its name."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from lightrail.gateway.errors import ProblemError
from lightrail.gateway.resources.atom import element
from lightrail.model.policy import Policy
from lightrail.service_bus.administration.durations import FOREVER, duration_of
from lightrail.service_bus.administration.kept import UNLIMITED_MB, WINDOW, bounds_of, with_bounds
from lightrail.service_bus.administration.properties import (
    LOCK_S_MAX,
    NEW_QUEUE,
    NEW_SUBSCRIPTION,
    NEW_TOPIC,
    READ_ONLY,
    UNLIMITED_COUNT,
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    Server,
    changed,
    queue_properties,
    subscription_properties,
    topic_properties,
)

SERVER = Server("host:1", 5, 1 << 20)


def queue(properties: Mapping[str, str], policy: Policy = NEW_QUEUE) -> dict[str, Any]:
    """Fields of the policy after properties were sent."""
    wanted = {name: element(name, value) for name, value in properties.items()}
    return dict(changed(policy, wanted, queue_properties(policy, SERVER)).given)


def test_what_is_shown_and_sent_back_changes_nothing() -> None:
    for fields in (
        {},
        NEW_QUEUE.given,
        {"duplicate_window": 7.5, "max_bytes": 1_000_001, "max_age": 3, "max_delivery_count": 0},
        {"status": "send_disabled", "forward_to": "a/b", "max_idle": 86_401.5},
        {"dead_letter": "a/b", "groups": True, "expired": "discard", "description": "PT1M", "max_length": 9},
    ):
        policy = Policy.parse({"role": "queue", **fields})
        shown = queue_properties(policy, SERVER)
        assert queue(shown, policy) == policy.given
    for policy, shown in (
        (NEW_TOPIC, topic_properties(NEW_TOPIC, SERVER)),
        (NEW_SUBSCRIPTION, subscription_properties(NEW_SUBSCRIPTION, SERVER)),
    ):
        wanted = {name: element(name, value) for name, value in shown.items()}
        assert changed(policy, wanted, shown) == policy


@pytest.mark.parametrize(
    ("name", "value", "field", "found"),
    [
        ("LockDuration", "PT30S", "lock_duration", 30),
        ("MaxSizeInMegabytes", "5120", "max_bytes", 5120 << 20),
        ("MaxSizeInMegabytes", str(UNLIMITED_MB), "max_bytes", None),
        ("RequiresSession", "true", "groups", True),
        ("DefaultMessageTimeToLive", "P14D", "max_age", 14 * 86_400),
        ("DefaultMessageTimeToLive", FOREVER, "max_age", None),
        ("AutoDeleteOnIdle", "P427D", "max_idle", 427 * 86_400),
        ("AutoDeleteOnIdle", "PT5M", "max_idle", 300),
        ("AutoDeleteOnIdle", FOREVER, "max_idle", None),
        ("DeadLetteringOnMessageExpiration", "True", "expired", None),
        ("MaxDeliveryCount", "3", "max_delivery_count", 3),
        ("MaxDeliveryCount", str(UNLIMITED_COUNT), "max_delivery_count", 0),
        ("UserMetadata", "true", "description", "true"),
        ("ForwardDeadLetteredMessagesTo", "sb://other/a/b", "dead_letter", "a/b"),
        ("ForwardDeadLetteredMessagesTo", "a", "dead_letter", "a"),
        ("ForwardTo", "sb://other/a/b", "forward_to", "a/b"),
        ("ForwardTo", "", "forward_to", None),
        ("MaxMessageSizeInKilobytes", "64", "max_message_bytes", 64 << 10),
        ("Status", "Active", "status", None),
        ("Status", "Disabled", "status", "disabled"),
        ("Status", "SendDisabled", "status", "send_disabled"),
        ("Status", "ReceiveDisabled", "status", "receive_disabled"),
        ("RequiresDuplicateDetection", "true", "duplicate_window", 600),
    ],
)
def test_a_property_is_a_field_of_the_policy(name: str, value: str, field: str, found: Any) -> None:
    """A field that has its default is not in the policy."""
    assert queue({name: value}).get(field) == found


def test_a_window_counts_with_detection_alone() -> None:
    window = {"DuplicateDetectionHistoryTimeWindow": "PT20S"}
    assert "duplicate_window" not in queue(window)
    found = queue({**window, "RequiresDuplicateDetection": "true"})
    assert found["duplicate_window"] == 20
    policy = Policy.parse({"role": "queue", **found})
    assert queue(window, policy)["duplicate_window"] == 20
    assert "duplicate_window" not in queue({"RequiresDuplicateDetection": "false"}, policy)


@pytest.mark.parametrize("role", ["queue", "topic"])
def test_a_window_without_detection_is_shown_as_it_was_sent(role: str) -> None:
    def sent(policy: Policy, **wanted: str) -> Policy:
        elements = {name: element(name, value) for name, value in wanted.items()}
        return changed(policy, elements, shown_of(policy))

    shown_of = partial(queue_properties if role == "queue" else topic_properties, server=SERVER)
    policy = sent(NEW_QUEUE if role == "queue" else NEW_TOPIC, **{WINDOW: "PT1M"})
    assert (shown_of(policy)["RequiresDuplicateDetection"], shown_of(policy)[WINDOW]) == ("false", "PT1M")
    policy = sent(policy, RequiresDuplicateDetection="true")
    assert (shown_of(policy)["RequiresDuplicateDetection"], shown_of(policy)[WINDOW]) == ("true", "PT1M")
    policy = sent(policy, RequiresDuplicateDetection="false", **{WINDOW: "PT10M"})
    assert policy.given.get("service_bus", "") == ""
    with pytest.raises(ProblemError, match=WINDOW):
        sent(policy, **{WINDOW: "PT1S"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EnablePartitioning", "perhaps"),
        ("EnableBatchedOperations", "perhaps"),
        ("SupportOrdering", "perhaps"),
        ("Status", "Renaming"),
        ("AutoDeleteOnIdle", "PT4M59.999S"),
        ("AutoDeleteOnIdle", "five minutes"),
        ("ForwardTo", "a//b"),
        ("LockDuration", "PT0S"),
        ("LockDuration", duration_of(LOCK_S_MAX + 0.001)),
        ("LockDuration", FOREVER),
        ("LockDuration", "a minute"),
        ("LockDuration", FOREVER + "x"),
        ("MaxDeliveryCount", "0"),
        ("MaxDeliveryCount", "1000001"),
        ("MaxDeliveryCount", "9" * 30),
        ("MaxSizeInMegabytes", "-1"),
        ("RequiresSession", "perhaps"),
        ("RequiresDuplicateDetection", "perhaps"),
        ("ForwardDeadLetteredMessagesTo", "a//b"),
        ("UserMetadata", "x" * 1_025),
        ("NoSuchProperty", "1"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ProblemError, match=name) as refused:
        queue({name: value})
    assert refused.value.status == 400


def test_durations_have_the_bounds_of_service_bus_unless_they_are_as_shown() -> None:
    assert queue({"LockDuration": duration_of(LOCK_S_MAX)})["lock_duration"] == LOCK_S_MAX
    for seconds in (WINDOW_S_MIN - 1, WINDOW_S_MAX + 1):
        window = {WINDOW: duration_of(seconds), "RequiresDuplicateDetection": "true"}
        with pytest.raises(ProblemError, match="a duration from PT20S up to P7D"):
            queue(window)
    policy = Policy.parse({"role": "queue", "lock_duration": 3_600, "duplicate_window": 1})
    shown = queue_properties(policy, SERVER)
    assert queue(shown | {"MaxDeliveryCount": "3"}, policy) == {**policy.given, "max_delivery_count": 3}


FLAGS = {
    "SupportOrdering": "true",
    "EnableBatchedOperations": "true",
    "EnablePartitioning": "false",
    "EnableExpress": "false",
}
OF_TOPICS = {"FilteringMessagesBeforePublishing": "false", "EnableSubscriptionPartitioning": "false"}


@pytest.mark.parametrize("name", [*FLAGS, *OF_TOPICS])
def test_what_means_nothing_here_is_shown_as_it_was_sent(name: str) -> None:
    kinds = [(NEW_TOPIC, topic_properties)]
    if name in FLAGS:
        kinds.append((NEW_QUEUE, queue_properties))
    default = (FLAGS | OF_TOPICS)[name]
    other = "false" if default == "true" else "true"
    for policy, properties in kinds:
        assert properties(policy, SERVER)[name] == default
        made = changed(policy, {name: element(name, other)}, properties(policy, SERVER))
        assert made["service_bus"] == f"{name}={other}"
        assert properties(made, SERVER) == properties(policy, SERVER) | {name: other}
        again = changed(made, {"UserMetadata": element("UserMetadata", "x")}, properties(made, SERVER))
        assert properties(again, SERVER)[name] == other
        assert changed(made, {name: element(name, default)}, properties(made, SERVER)) == policy


def topic(policy: Policy = NEW_TOPIC, **wanted: str) -> Policy:
    elements = {name: element(name, value) for name, value in wanted.items()}
    return changed(policy, elements, topic_properties(policy, SERVER))


def test_the_bounds_of_a_topic_are_kept_and_are_those_of_its_subscriptions() -> None:
    detecting: dict[str, Any] = {
        "RequiresDuplicateDetection": "true",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
    }
    made = topic(MaxSizeInMegabytes="2048", **detecting)
    shown = topic_properties(made, SERVER)
    assert {name: shown[name] for name in ("MaxSizeInMegabytes", *detecting)} == {
        "MaxSizeInMegabytes": "2048",
        **detecting,
    }
    bounds = {"max_bytes": 2048 << 20, "duplicate_window": 20}
    assert bounds_of(made) == bounds
    own = Policy.parse({"role": "queue", "lock_duration": 5, "max_bytes": 7})
    bound = with_bounds(own, made, NEW_TOPIC)
    assert bound.given == {"lock_duration": 5, **bounds}
    # What a topic does not bound, a manager of the queue may.
    assert with_bounds(own, NEW_TOPIC, NEW_TOPIC) == own
    without = topic(made, RequiresDuplicateDetection="false")
    assert with_bounds(bound, without, made).given == {"lock_duration": 5, "max_bytes": 2048 << 20}
    assert topic(made, UserMetadata="x")["service_bus"] == made["service_bus"]
    assert bounds_of(topic(MaxSizeInMegabytes=str(UNLIMITED_MB))) == {"max_bytes": None}
    for wrong in ("0", "x"):
        with pytest.raises(ProblemError, match="MaxSizeInMegabytes"):
            topic(MaxSizeInMegabytes=wrong)


def test_the_idle_time_of_a_topic_is_kept_as_it_was_sent_and_is_not_that_of_its_subscriptions() -> None:
    made = topic(AutoDeleteOnIdle="P427D")
    assert made["service_bus"] == "AutoDeleteOnIdle=P427D"
    assert topic_properties(made, SERVER)["AutoDeleteOnIdle"] == "P427D"
    assert topic(made, UserMetadata="x")["service_bus"] == made["service_bus"]
    assert bounds_of(made) == {}
    assert topic(made, AutoDeleteOnIdle=FOREVER) == NEW_TOPIC
    assert topic_properties(NEW_TOPIC, SERVER)["AutoDeleteOnIdle"] == FOREVER
    for wrong in ("PT4M", "x"):
        with pytest.raises(ProblemError, match="AutoDeleteOnIdle"):
            topic(AutoDeleteOnIdle=wrong)


@pytest.mark.parametrize(
    "text", ["MaxSizeInMegabytes=x", "x", "= =", "DuplicateDetectionHistoryTimeWindow=1"]
)
def test_what_others_write_into_the_field_bounds_nothing(text: str) -> None:
    policy = Policy.parse({"role": "router", "service_bus": text})
    assert bounds_of(policy) == {}
    assert topic_properties(policy, SERVER)["RequiresDuplicateDetection"] == "false"


def test_a_window_that_cannot_be_is_refused_by_its_name() -> None:
    with pytest.raises(ProblemError, match="DuplicateDetectionHistoryTimeWindow"):
        queue({"RequiresDuplicateDetection": "true", "DuplicateDetectionHistoryTimeWindow": "PT0S"})


def test_what_only_the_broker_sets_is_not_read() -> None:
    assert queue(dict.fromkeys(READ_ONLY, "whatever")) == NEW_QUEUE.given


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RequiresSession", "true"),
        ("LockDuration", "PT1M"),
    ],
)
def test_a_topic_stores_nothing(name: str, value: str) -> None:
    present = topic_properties(NEW_TOPIC, SERVER)
    with pytest.raises(ProblemError, match=name):
        changed(NEW_TOPIC, {name: element(name, value)}, present)
    wanted = {"UserMetadata": element("UserMetadata", "orders")}
    assert changed(NEW_TOPIC, wanted, present)["description"] == "orders"


def test_the_time_to_live_of_a_topic_is_its_age_and_the_longest_duration_is_none() -> None:
    def with_life(policy: Policy, value: str) -> Policy:
        present = topic_properties(policy, SERVER)
        return changed(policy, {"DefaultMessageTimeToLive": element("x", value)}, present)

    aged = with_life(NEW_TOPIC, "PT10M")
    assert aged.given == {"unroutable": "drop", "max_age": 600}
    assert topic_properties(aged, SERVER)["DefaultMessageTimeToLive"] == "PT10M"
    ageless = with_life(aged, "P10675199DT2H48M5.4775807S")
    assert ageless == NEW_TOPIC
    assert topic_properties(ageless, SERVER)["DefaultMessageTimeToLive"] == FOREVER
    with pytest.raises(ProblemError, match="DefaultMessageTimeToLive"):
        with_life(NEW_TOPIC, "PT0S")


def test_elements_where_text_is_expected_are_refused() -> None:
    nested = element("LockDuration")
    nested.append(element("x"))
    with pytest.raises(ProblemError, match="expected text"):
        changed(NEW_QUEUE, {"LockDuration": nested}, queue_properties(NEW_QUEUE, SERVER))
