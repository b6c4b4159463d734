"""Metrics, alert rules and dashboards hold together: a real Prometheus scrapes a real broker and says so."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from proton import Message

from lightrail.cli import admin
from scripts import dashboards, metrics_page
from scripts.grafana.panels import COLUMNS
from tests.deploy.promql import named
from tests.support import wait
from tests.support.amqp.proton_blocking import connected, received
from tests.support.broker import ROOT, Broker
from tests.support.certificates import Authority
from tests.support.deploy.prometheus import Job, Prometheus

RULES: Final = ROOT / "deploy" / "prometheus" / "lightrail.rules.yml"
RULE_TESTS: Final = RULES.with_name("lightrail.rules.test.yml")
ALERTS: Final = ROOT / "docs" / "operate" / "alerts.md"
DEADLINE_S: Final = 45.0
ABSENT_YET: Final = frozenset(
    {
        # From tenancy: the shard's side of moves.
        "lightrail_shard_moves_completed_total",
        "lightrail_shard_moves_failed_total",
        "lightrail_shard_move_bytes_total",
        "lightrail_shard_move_pause_seconds_bucket",
        "lightrail_shard_queues_frozen",
        "lightrail_shard_queues_copying",
        # Of readers of the archive, which somebody has to register.
        "lightrail_reader_behind_seconds",
        "lightrail_reader_held_bytes",
        "lightrail_reader_segments_missed_total",
        # Of shards with replicas.
        "lightrail_placement_replicas",
        "lightrail_placement_replicas_in_sync",
        "lightrail_placement_replicas_min_in_sync",
        "lightrail_placement_member_in_sync",
        "lightrail_placement_member_running",
        "lightrail_replica_acknowledged_age_seconds",
        "lightrail_replica_required",
    }
)
"""What a broker does not show before it has been used so."""
OF_KUBERNETES: Final = "namespace"
"""The label that only Kubernetes gives."""
DOWN: Final = "LightRailInstanceDown"
SILENT: Final = "LightRailProcessSilent"
OF_THE_MACHINE: Final = frozenset(
    {"LightRailDiskNearlyFull", "LightRailDiskFillingUp", "LightRailCommitsSlow", "LightRailLoopBusy"}
)
"""Alerts about the machine that runs the tests."""


class Scene(NamedTuple):
    """What the tests of this file share."""

    broker: Broker
    prometheus: Prometheus
    shards: list[str]
    """Addresses of their own metrics."""


def traffic(broker: Broker) -> None:
    """A little of everything, so that counters by outcome, reason or status have their series."""
    with connected(broker.amqp) as connection:
        sender = connection.create_sender("metrics/orders")
        for number in range(10):
            sender.send(Message(body=f"order {number}", durable=True))
        received(connection.create_receiver("metrics/orders", credit=5), 5)
    for method, path in (("POST", "/metrics/orders"), ("DELETE", "/metrics/orders/!head")):
        request = urllib.request.Request(f"http://{broker.http}{path}", data=b"over HTTP", method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status < 300


def shortened(text: str) -> str:
    """The rules with times that a test can wait for."""
    return re.sub(r"^( +)for: .*$", r"\1for: 3s", text, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("metrics")
    tls = Authority(directory / "ca").sign("localhost", "DNS:localhost", days=400)
    rules = directory / "lightrail.rules.yml"
    rules.write_text(shortened(RULES.read_text()))
    flags = ("--shards", "2", "--frontends", "1", "--amqps", "127.0.0.1:0")
    certificate = ("--tls-certificate", tls.certificate, "--tls-key", tls.key)
    with Broker(directory / "data", *flags, *certificate) as broker:
        own = {
            role: [one["metrics"] for one in broker.ready["processes"] if one["role"] == role]
            for role in ("shard", "frontend")
        }
        jobs = [
            Job("lightrail", [broker.http]),
            Job("lightrail-processes", [*own["shard"], *own["frontend"]]),
            Job("lightrail-detailed", [broker.http], "/metrics/detailed"),
        ]
        traffic(broker)
        with Prometheus(directory / "prometheus", jobs, rules) as prometheus:
            # The 99th percentile of commits needs two scrapes and what comes between them.
            def complete() -> bool:
                traffic(broker)
                return bool(prometheus.query("lightrail:journal_sync_seconds:p99_5m > 0"))

            wait.until(complete, "every recording rule has its result", DEADLINE_S)
            yield Scene(broker, prometheus, own["shard"])


def tool(*arguments: str, given: bytes | None = None) -> None:
    """promtool has nothing to say against it."""
    done = subprocess.run(["promtool", *arguments], input=given, capture_output=True)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    if given is not None:
        assert not said.strip(), said


def panels() -> Iterator[tuple[str, str, str]]:
    """(dashboard, panel, expression)"""
    for path in sorted(dashboards.DIRECTORY.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield path.stem, panel["title"], target["expr"]


def chosen(expression: str) -> str:
    """An expression of a panel with everything chosen."""
    return re.sub(r"\$(namespace|job|shard|queue)\b", ".*", expression).replace("$__rate_interval", "1m")


def rules_of(prometheus: Prometheus) -> list[dict[str, Any]]:
    """All rules, once each was evaluated."""

    def evaluated() -> list[dict[str, Any]]:
        rules = prometheus.rules()
        return rules if all(rule["health"] != "unknown" for rule in rules) else []

    return wait.until(evaluated, "each rule was evaluated", DEADLINE_S)


# --- without a broker ----------------------------------------------------------------------------------


def test_prometheus_is_installed() -> None:
    for command in ("prometheus", "promtool"):
        assert shutil.which(command), f"{command} is missing: scripts/setup.sh test installs it"


def test_rules_do_what_their_unit_tests_say() -> None:
    tool("check", "rules", str(RULES))
    tool("test", "rules", str(RULE_TESTS))


def test_each_rule_has_unit_tests_and_each_alert_is_told_when_it_does_not_fire() -> None:
    tests = RULE_TESTS.read_text()
    for alert in alerts():
        for name in (f"{alert} fires", f"{alert} does not fire"):
            assert f"- name: {name}\n" in tests, f"no test '{name}'"
    for record in re.findall(r"- record: (\S+)", RULES.read_text()):
        assert f"expr: {record}\n" in tests, f"no test of {record}"


def test_each_alert_is_explained_with_commands_that_there_are() -> None:
    page = ALERTS.read_text()
    headings = {heading.lower() for heading in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    anchors = re.findall(r"runbook_url: docs/operate/alerts\.md#(\S+)", RULES.read_text())
    assert len(anchors) == len(alerts())
    assert set(anchors) == headings
    parser = admin._parser()
    commands = re.findall(r"^lightrail-admin ([^#\n]*)", page, re.MULTILINE)
    assert commands
    for command in commands:
        parser.parse_args(shlex.split(command))


def test_the_documented_metrics_are_the_metrics() -> None:
    assert metrics_page.PAGE.read_text() == metrics_page.page(), (
        "run: .venv/bin/python scripts/metrics_page.py"
    )


def test_dashboards_are_current_and_can_be_told_apart() -> None:
    files = dashboards.texts()
    assert set(files) == set(dashboards.DIRECTORY.glob("*.json"))
    for path, text in files.items():
        assert path.read_text() == text, "run: .venv/bin/python scripts/dashboards.py"
    found = [json.loads(text) for text in files.values()]
    assert len({each["uid"] for each in found}) == len({each["title"] for each in found}) == len(found)
    for each in found:
        assert each["schemaVersion"] >= 38, "Grafana 10"
        titles = [(panel["type"], panel["title"]) for panel in each["panels"]]
        assert len(set(titles)) == len(titles)
        areas = [panel["gridPos"] for panel in each["panels"]]
        assert all(area["x"] + area["w"] <= COLUMNS for area in areas)
        names = {variable["name"] for variable in each["templating"]["list"]}
        used = set(re.findall(r"\$(?!__)\{?(\w+)", json.dumps(each)))
        assert used == names, each["uid"]


def alerts() -> list[str]:
    return re.findall(r"- alert: (\S+)", RULES.read_text())


# --- with a broker and Prometheus ----------------------------------------------------------------------


def test_metrics_keep_the_conventions(scene: Scene) -> None:
    processes = [one["metrics"] for one in scene.broker.ready["processes"]]
    for address in (*processes, scene.broker.http):
        for path in ("/metrics", "/metrics/detailed"):
            with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
                tool("check", "metrics", given=answer.read())


def test_every_process_says_what_it_is(scene: Scene) -> None:
    found = {
        (each["metric"]["role"], each["metric"]["id"])
        for each in scene.prometheus.query(
            'lightrail_build_info{job="lightrail", version!="", python!=""} == 1'
        )
    }
    assert found == {("shard", "0"), ("shard", "1"), ("frontend", "0"), ("gateway", "0")}


def test_series_of_queues_are_on_detailed_alone(scene: Scene) -> None:
    query = scene.prometheus.query
    assert query('count(lightrail_detailed_messages{queue="metrics/orders", job="lightrail-detailed"}) > 0')
    assert not query('{queue!="", job!="lightrail-detailed"}')


def test_rules_and_panels_name_metrics_and_labels_that_there_are(scene: Scene) -> None:
    query = scene.prometheus.query
    known: dict[str, set[str]] = {}
    for series in query('{__name__!=""}'):
        known.setdefault(series["metric"]["__name__"], set()).update(series["metric"])
    expressions = [("rules", rule["name"], rule["query"]) for rule in rules_of(scene.prometheus)]
    wrong = []
    for where, what, expression in (*expressions, *panels()):
        found = named(chosen(expression))
        assert found.selectors, f"{where}: {what} names no metric"
        there = [
            (metric, labels) for metric, labels in found.selectors if metric not in ABSENT_YET - known.keys()
        ]
        for metric, labels in there:
            missing = set(labels) - known.get(metric, set()) - {OF_KUBERNETES}
            if metric not in known or missing:
                wrong.append(f"{where}: {what}: {metric} {sorted(missing)}")
        if len(there) == len(found.selectors):
            labels_there = set().union(*(known.get(metric, set()) for metric, _ in there))
            strangers = found.grouping - labels_there - {OF_KUBERNETES}
            if strangers:
                wrong.append(f"{where}: {what}: {sorted(strangers)}")
    assert not wrong, "\n".join(wrong)
    variables = re.findall(r"label_values\((\w+)(?:\{.*?\})?, (\w+)\)", "\n".join(variables_of_dashboards()))
    assert variables
    for metric, label in variables:
        assert label in known[metric] or label == OF_KUBERNETES, (metric, label)


def variables_of_dashboards() -> Iterable[str]:
    for text in dashboards.texts().values():
        for variable in json.loads(text)["templating"]["list"]:
            if variable["type"] == "query":
                yield variable["definition"]


def test_prometheus_answers_each_panel(scene: Scene) -> None:
    for where, title, expression in panels():
        if not {metric for metric, _ in named(chosen(expression)).selectors} & ABSENT_YET:
            # A rate is there from the second scrape of its metric on.
            finds = partial(scene.prometheus.query, chosen(expression))
            wait.until(finds, f"{where}: {title}: {expression} finds something", DEADLINE_S)


def test_each_rule_can_be_evaluated_and_recorded_ones_have_results(scene: Scene) -> None:
    rules = rules_of(scene.prometheus)
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == set(alerts())
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    for rule in rules:
        if rule["type"] == "recording":
            # One that was evaluated before the second scrape of its metric has none yet.
            has_result = partial(scene.prometheus.query, rule["name"])
            wait.until(has_result, f"{rule['name']} has a result", DEADLINE_S)


def test_a_shard_that_hangs_is_down_until_it_goes_on(scene: Scene) -> None:
    prometheus = scene.prometheus
    rules_of(prometheus)
    assert prometheus.alerts("firing") - OF_THE_MACHINE == set()
    pid = scene.broker.pid("shard", 1)
    wait.freeze(pid)
    try:
        for state in ("pending", "firing"):
            wait.until_with(state, lambda s: DOWN in prometheus.alerts(s), f"{DOWN} is {state}", DEADLINE_S)
        down = prometheus.query(f'ALERTS{{alertname="{DOWN}", alertstate="firing"}}')
        assert {each["metric"]["instance"] for each in down} == {scene.shards[1]}
        # The gateway's metrics are those of the others, and say that one is missing.
        wait.until(lambda: SILENT in prometheus.alerts("firing"), f"{SILENT} fires", DEADLINE_S)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait.until(lambda: prometheus.alerts("firing") - OF_THE_MACHINE <= {SILENT}, "all is well", DEADLINE_S)


def test_a_shard_that_died_is_down_and_the_others_stay_in_service(scene: Scene) -> None:
    prometheus = scene.prometheus
    others = {"LightRailFrontendNotReady", "LightRailGatewayNotReady"}
    supervisor = scene.broker.process.pid
    wait.freeze(supervisor)  # it would start the shard again at once
    try:
        os.kill(scene.broker.pid("shard", 1), signal.SIGKILL)
        wait.until(lambda: DOWN in prometheus.alerts("firing"), "it is missed", DEADLINE_S)
        # They serve what is on the other shard.
        assert not prometheus.alerts("pending") & others
        assert not prometheus.alerts("firing") & others
    finally:
        os.kill(supervisor, signal.SIGCONT)
