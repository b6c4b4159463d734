"""Merging: the samples of all processes, each with its labels, every family in one piece."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lightrail.telemetry.metrics import merge


def exposed(value: int) -> str:
    metrics = CollectorRegistry()
    Counter("c", "A counter.", registry=metrics).inc(value)
    Gauge("g", "A gauge.", ["queue"], registry=metrics).labels('a"}\\\n{,b 1').set(value)
    Histogram("h", "A histogram.", buckets=(1.0, 10.0), registry=metrics).observe(value)
    Gauge(f"only_{value}", "Of one process.", registry=metrics).set(value)
    return generate_latest(metrics).decode()


def test_every_sample_is_there_with_its_labels() -> None:
    labels = [{"role": "shard", "id": str(number)} for number in range(3)]
    texts = [exposed(number) for number in range(3)]
    merged = merge(zip(labels, texts, strict=True))
    found = [
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(merged)
        for sample in family.samples
    ]
    wanted = [
        (sample.name, frozenset((sample.labels | added).items()), sample.value)
        for added, text in zip(labels, texts, strict=True)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert sorted(map(repr, wanted)) == sorted(map(repr, found))
    assert len(set(found)) == len(found)


def test_a_family_stands_in_one_piece() -> None:
    merged = merge([({"id": "0"}, exposed(1)), ({"id": "1"}, exposed(2))])
    families = [family.name for family in text_string_to_metric_families(merged)]
    assert len(families) == len(set(families))
    assert merged.count("# TYPE c_total counter") + merged.count("# TYPE c counter") == 1
    assert merged.count("# HELP h ") == 1


def test_what_is_no_sample_is_left_out() -> None:
    assert merge([({"id": "0"}, "<html>\nnot metrics at all!\n\n# comment\n")]) == ""
    assert merge([]) == ""
    assert merge([({"id": 'a"b'}, "x 1\n")]) == 'x{id="a\\"b"} 1\n'
