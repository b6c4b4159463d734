"""What the chart does with what it finds in a cluster: Secrets stay, shards don't go with their queues."""

import base64
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.deploy import kubernetes_api
from tests.deploy.kubernetes_api import released
from tests.support.deploy import helm
from tests.support.deploy.helm import Manifest, of_kind
from tests.support.deploy.helm_values import FIXED, merged

USERS = [{"name": name, "rights": "all", "prefix": "/"} for name in ("admin", "new")]


def upgrade(found: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> list[Manifest]:
    """What an upgrade makes where these objects are in the cluster."""
    with kubernetes_api.serving(found) as url:
        return helm.render(values, *kubernetes_api.HELM, url)


def shards(number: int) -> Manifest:
    return released("apps/v1", "StatefulSet", "rel-lightrail-shard", spec={"replicas": number})


def data(manifests: list[Manifest], name: str) -> dict[str, bytes]:
    """A Secret's content."""
    found = of_kind(manifests, "Secret")[f"rel-lightrail-{name}"]["data"]
    return {key: base64.b64decode(value) for key, value in found.items()}


# --- Secrets ----------------------------------------------------------------------------------------------


def test_a_key_of_the_wire_is_one_of_curve_and_another_each_time() -> None:
    seen = set()
    for _ in range(8):
        key = data(helm.render(merged(FIXED, {"wire": {"keySecret": ""}})), "wire")["wire.key"]
        head, secret = key.decode().splitlines()
        assert head == "lightrail-wire-key 1"
        assert len(zmq.curve_public(secret.encode())) == 40
        seen.add(secret)
    assert len(seen) == 8


def test_a_certificate_is_for_all_names_and_of_its_authority(tmp_path: Path) -> None:
    tls = {"source": "generated", "secret": "", "names": ["broker.example.org", "203.0.113.7", "2001:db8::7"]}
    found = data(helm.render(merged(FIXED, {"tls": tls})), "tls")
    for key, content in found.items():
        (tmp_path / key).write_bytes(content)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    for option, name in (
        ("-verify_hostname", "rel-lightrail-amqp.ns.svc"),
        ("-verify_hostname", "rel-lightrail-gateway.ns.svc.cluster.local"),
        ("-verify_hostname", "rel-lightrail-gateway"),
        ("-verify_hostname", "broker.example.org"),
        ("-verify_ip", "203.0.113.7"),
        ("-verify_ip", "2001:db8::7"),
    ):
        subprocess.run(
            ["openssl", "verify", "-CAfile", "ca.crt", option, name, "tls.crt"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )


def test_what_was_drawn_stays_over_upgrades() -> None:
    first = helm.render({"users": {"create": USERS[:1]}})
    kept = [
        released("v1", "Secret", name, data=each["data"]) for name, each in of_kind(first, "Secret").items()
    ]
    second = upgrade(kept, {"users": {"create": USERS}})
    assert data(second, "wire") == data(first, "wire")
    assert data(second, "tls") == data(first, "tls")
    passwords = data(second, "users")
    assert passwords["admin"] == data(first, "users")["admin"]
    assert len(passwords["new"]) == 32
    for name, pod in helm.pods(first).items():
        if name.partition("/")[0] in ("frontend", "shard", "gateway"):
            assert helm.pods(second)[name] == pod, "nothing restarts because of a new user"


def test_what_was_drawn_outlives_the_release_like_the_volumes() -> None:
    for each in of_kind(helm.render({}), "Secret").values():
        assert each["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_a_secret_of_the_user_that_changes_replaces_the_pods() -> None:
    def checksums(content: str) -> str:
        found = [released("v1", "Secret", "given-tls", data={"tls.crt": content})]
        return str(of_kind(upgrade(found, FIXED), "Deployment")["rel-lightrail-frontend"]["spec"]["template"])

    assert checksums("b25l") != checksums("dHdv")
    assert checksums("b25l") == checksums("b25l")


# --- shards that go ---------------------------------------------------------------------------------------


def hooks(manifests: list[Manifest]) -> dict[str, tuple[str, str]]:
    """{name: (hook, last line of its script)} of all Jobs that are hooks."""
    return {
        name: (
            each["metadata"]["annotations"]["helm.sh/hook"],
            each["spec"]["template"]["spec"]["containers"][0]["args"][0],
        )
        for name, each in of_kind(manifests, "Job").items()
        if "helm.sh/hook" in each["metadata"].get("annotations", {})
    }


def test_shards_do_not_go_with_their_queues() -> None:
    with pytest.raises(helm.RefusedError) as refused:
        upgrade([shards(5)], merged(FIXED, {"shards": {"replicas": 3}}))
    assert "shards 3, 4 would go with their queues" in str(refused.value)
    assert "shards.scaleIn" in str(refused.value)


def test_shards_are_drained_before_they_go_and_removed_after() -> None:
    values = {"shards": {"replicas": 3, "scaleIn": "drain"}, "rebalance": {"throttle": "20MB"}}
    found = hooks(upgrade([shards(5)], merged(FIXED, values)))
    assert {name: hook for name, (hook, _) in found.items()} == {
        "rel-lightrail-drain": "pre-upgrade",
        "rel-lightrail-remove-3": "post-upgrade",
        "rel-lightrail-remove-4": "post-upgrade",
    }
    drain = found["rel-lightrail-drain"][1].strip().splitlines()
    assert drain[-2:] == ["admin shard drain 3 --throttle 20MB", "admin shard drain 4 --throttle 20MB"]
    assert found["rel-lightrail-remove-4"][1].strip().endswith("admin shard remove 4")


@pytest.mark.parametrize("there", [1, 3])
def test_nothing_is_drained_where_no_shard_goes(there: int) -> None:
    for how in ("refuse", "drain", "force"):
        assert (
            hooks(upgrade([shards(there)], merged(FIXED, {"shards": {"replicas": 3, "scaleIn": how}}))) == {}
        )


def test_who_insists_takes_shards_away() -> None:
    assert hooks(upgrade([shards(5)], merged(FIXED, {"shards": {"replicas": 3, "scaleIn": "force"}}))) == {}


def test_rebalancing_waits_for_all_shards() -> None:
    manifests = helm.render(
        merged(FIXED, {"shards": {"replicas": 4}, "rebalance": {"afterUpgrade": {"enabled": True}}})
    )
    assert {name: hook for name, (hook, _) in hooks(manifests).items()} == {
        "rel-lightrail-rebalance": "post-upgrade"
    }
    pod = of_kind(manifests, "Job")["rel-lightrail-rebalance"]["spec"]["template"]["spec"]
    urls = pod["initContainers"][0]["args"][2:]
    assert urls == [
        f"http://rel-lightrail-shard-{id}.rel-lightrail-shard.ns.svc:9464/readyz" for id in range(4)
    ]
    assert pod["containers"][0]["args"][0].strip().endswith("admin rebalance")


def test_etcd_keeps_its_members() -> None:
    found = released("apps/v1", "StatefulSet", "rel-lightrail-etcd", spec={"replicas": 1})
    with pytest.raises(helm.RefusedError, match="was made with 1 members"):
        upgrade([found], FIXED)
    upgrade([found], merged(FIXED, {"etcd": {"replicas": 1}}))
