"""Counts: every attribute is shown by one family."""

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lightrail.gateway.forwarding.counts import FAMILIES, ForwardingCounts
from lightrail.telemetry.metrics import registry


def test_every_count_of_the_couriers_is_shown_once() -> None:
    counts = ForwardingCounts()
    expected: list[int] = []
    for index, name in enumerate(ForwardingCounts.__slots__, 1):
        value = getattr(counts, name)
        if isinstance(value, dict):
            for offset, key in enumerate(value, 1):
                value[key] = 1_000 * index + offset
            expected += value.values()
        else:
            setattr(counts, name, index)
            expected.append(index)
    text = generate_latest(registry(FAMILIES, counts)).decode()
    shown = [
        int(sample.value) for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    assert sorted(shown) == sorted(expected)
    assert all(line.startswith(("#", "lightrail_")) for line in text.splitlines())
