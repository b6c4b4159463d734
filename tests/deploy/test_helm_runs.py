"""The chart's pods with the real processes and a real etcd: what it says to them is what they understand."""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy import kubernetes_api
from tests.deploy.kubelet import Node, Pod, node
from tests.deploy.kubernetes_api import released
from tests.support import wait
from tests.support.deploy import helm
from tests.support.deploy.helm_values import Values, merged

VALUES: Values = {
    "config": {"plain_without_tls": True, "memory_mark": "64MiB", "log_format": "plain"},
    "frontends": {"replicas": 1},
    "gateway": {"replicas": 1},
    "shards": {"replicas": 2},
}
OWN = ("shard", "frontend", "gateway")


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, list[helm.Manifest]]]:
    """A release that serves; the test's certificate has the addresses of its pods."""
    with node(tmp_path_factory.mktemp("node")) as made:
        addresses = [f"{made.network}.{each}" for each in range(1, 30)]
        manifests = helm.render(merged(VALUES, {"tls": {"names": addresses}}))
        made.apply(manifests)
        # In no order: everything is patient.
        for component in ("gateway", "frontend", "shard", "etcd"):
            for pod in made.of(component):
                pod.start()
        for pod in made.of("users"):
            pod.succeeds()
        made.until_ready(*OWN)
        yield made, manifests


def ran(node: Node, *words: str) -> subprocess.CompletedProcess[str]:
    """lightrail-admin in the pod of the test, as its user."""
    test = only(node, "jobs", "-test").container("http")
    authority = next(word for word in test.command if "ca.crt" in word)
    (ca,) = set(re.findall(r"\S+/ca\.crt", authority))
    return subprocess.run(
        [str(node.programs / "lightrail-admin"), "--ca", ca, *words, "--json"],
        env=test.environ,
        capture_output=True,
        text=True,
    )


def admin(node: Node, *words: str) -> Any:
    """What lightrail-admin answers."""
    done = ran(node, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def admin_patiently(node: Node, *words: str) -> None:
    """The same, again while an owner changes the set, or a process that has ended is still registered."""
    wait.until(lambda: ran(node, *words).returncode == 0, f"{' '.join(words)} is done")


def only(node: Node, component: str, name: str = "") -> Pod:
    (found,) = [pod for pod in node.of(component) if name in pod.name]
    return found


def test_all_processes_serve(installation: tuple[Node, list[helm.Manifest]]) -> None:
    node, _ = installation
    for component in OWN:
        for pod in node.of(component):
            assert pod.probe("startupProbe") == pod.probe("livenessProbe") == 200
            assert pod.get(9464, "/metrics") == 200


def test_helm_test_succeeds(installation: tuple[Node, list[helm.Manifest]]) -> None:
    """By HTTP over TLS; by AMQP without: proton checks certificates for names, and pods have addresses."""
    node, _ = installation
    test = only(node, "jobs", "-test")
    test.succeeds("http")
    amqp = test.spec["containers"][0]
    amqp["args"] = [word.replace(":5671", ":5672") for word in amqp["args"]]
    amqp["env"] = [each for each in amqp["env"] if each["name"] != "LIGHTRAIL_CA"]
    amqp["env"].append({"name": "LIGHTRAIL_CA", "value": "none"})
    test.succeeds("amqp")


def test_a_shard_that_is_told_to_end_ends_in_order_and_comes_back_on_its_volume(
    installation: tuple[Node, list[helm.Manifest]],
) -> None:
    node, _ = installation
    pod = node.of("shard")[1]
    assert pod.running is not None
    assert pod.running.end(pod.spec["terminationGracePeriodSeconds"]) == 0
    # A process is not taken out of its service because another one is away.
    assert all(other.probe("readinessProbe") == 200 for other in node.of("frontend") + node.of("gateway"))
    pod.start()
    node.until_ready(*OWN)


def test_processes_live_and_serve_without_etcd(installation: tuple[Node, list[helm.Manifest]]) -> None:
    node, _ = installation
    running = {pod.name: pod.running for pod in node.of("etcd")}
    for container in running.values():
        assert container is not None
        container.end(10)
    for pod in node.of("etcd"):
        pod.running = None
    starts = {pod.name: pod.running.starts for each in OWN for pod in node.of(each) if pod.running}
    only(node, "jobs", "-test").succeeds("amqp")
    for component in OWN:
        for pod in node.of(component):
            assert pod.probe("livenessProbe") == 200
            assert pod.probe("readinessProbe") == 200
            assert pod.running is not None
            assert pod.running.process is not None
            assert pod.running.process.poll() is None
            assert pod.running.starts == starts[pod.name]
    for pod in node.of("etcd"):
        pod.start()
    node.until_ready(*OWN)


def secrets_of(manifests: list[helm.Manifest]) -> list[helm.Manifest]:
    """The Secrets of a release, as they are in the cluster."""
    return [
        released("v1", "Secret", name, data=each["data"])
        for name, each in helm.of_kind(manifests, "Secret").items()
    ]


def come_and_go(node: Node, manifests: list[helm.Manifest], members: int) -> None:
    """A shard is added by one upgrade, and removed by the next one, with the hooks of both."""
    name = "rel-lightrail-shard"
    secrets = secrets_of(manifests)

    def found(shards: int) -> list[helm.Manifest]:
        numbers = {name: shards} if members == 1 else {f"{name}-{each}": members for each in range(shards)}
        return [
            released("apps/v1", "StatefulSet", each, spec={"replicas": pods})
            for each, pods in numbers.items()
        ]

    before = {pod.name for pod in node.of("shard")}
    more = {"shards": {"replicas": 3, "members": members}, "rebalance": {"afterUpgrade": {"enabled": True}}}
    with kubernetes_api.serving([*secrets, *found(2)]) as url:
        node.apply(helm.render(merged(VALUES, more), *kubernetes_api.HELM, url))
    added = [pod for pod in node.of("shard") if pod.name not in before]
    assert len(added) == members
    for pod in added:
        pod.start()
    rebalance = only(node, "jobs", "-rebalance")
    rebalance.succeeds("wait")
    rebalance.succeeds("rebalance")

    less = {"shards": {"replicas": 2, "members": members, "scaleIn": "drain"}}
    with kubernetes_api.serving([*secrets, *found(3)]) as url:
        node.apply(helm.render(merged(VALUES, less), *kubernetes_api.HELM, url))
    only(node, "jobs", "-drain").succeeds()
    for pod in added:
        assert pod.running is not None
        assert pod.running.end(60) == 0
        del node.pods[pod.name]
    only(node, "jobs", "-remove-2").succeeds()
    for hook in ("-rebalance", "-drain", "-remove-2"):
        del node.pods[only(node, "jobs", hook).name]
    node.until_ready(*OWN)
    assert {each["id"] for each in admin(node, "shard", "list")} == {0, 1}


def test_shards_come_and_go_by_the_hooks(installation: tuple[Node, list[helm.Manifest]]) -> None:
    come_and_go(*installation, members=1)


def in_sync(node: Node, shard: int) -> set[str]:
    """The hosts of the members in sync."""
    members = admin(node, "shard", "replicas", str(shard))["members"]
    return {each["host"] for each in members if each["in_sync"]}


def test_shards_get_members_and_their_founders_leave(installation: tuple[Node, list[helm.Manifest]]) -> None:
    """The steps of docs/operate/helm.md, with what Kubernetes and an operator do; then a volume is lost."""
    node, manifests = installation
    founders = node.of("shard")
    pods_of = {shard: {f"rel-lightrail-shard-{shard}-{member}" for member in range(2)} for shard in range(2)}
    for shard in pods_of:
        admin(node, "send", f"kept-{shard}", "before")
        assert admin(node, "shard", "replicas", str(shard), "--replicas", "3")["min_in_sync"] == 1
    node.until_ready(*OWN)

    members = {"shards": {"replicas": 2, "members": 2, "founders": True}}
    found = released("apps/v1", "StatefulSet", "rel-lightrail-shard", spec={"replicas": 2})
    with kubernetes_api.serving([*secrets_of(manifests), found]) as url:
        node.apply(helm.render(merged(VALUES, members), *kubernetes_api.HELM, url))
    for pod in node.of("shard"):
        if pod not in founders:
            pod.start()
    node.until_ready(*OWN)
    wait.until(lambda: all(len(in_sync(node, shard)) == 3 for shard in pods_of), "all are in sync")

    for pod in founders:
        assert pod.running is not None
        assert pod.running.end(pod.spec["terminationGracePeriodSeconds"]) == 0
        del node.pods[pod.name]
    wait.until(lambda: {each: in_sync(node, each) for each in pods_of} == pods_of, "founders are out of sync")
    for shard in pods_of:
        # A pod's host name is the pod's name; here all have this machine's.
        admin_patiently(node, "shard", "remove-member", str(shard), socket.gethostname())
    lost = node.pods["rel-lightrail-shard-0-1"]
    assert lost.running is not None
    assert lost.running.end(lost.spec["terminationGracePeriodSeconds"]) == 0
    shutil.rmtree(lost.volumes / "data")
    (lost.volumes / "data").mkdir()
    lost.start()
    node.until_ready(*OWN)
    for shard, names in pods_of.items():
        admin_patiently(node, "shard", "replicas", str(shard), "--replicas", "2", "--min-in-sync", "2")
        assert in_sync(node, shard) == names
        assert admin(node, "receive", f"kept-{shard}", "--timeout", "10")["body"] == "before"


def test_shards_with_members_come_and_go_by_the_hooks(
    installation: tuple[Node, list[helm.Manifest]],
) -> None:
    come_and_go(*installation, members=2)
