"""The chart with the real helm: rendered for every choice that it offers; Kubernetes takes what comes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import kubernetes_schemas
from tests.support.deploy import helm
from tests.support.deploy.helm import CHART
from tests.support.deploy.helm_values import (
    FIXED,
    INSTALLATIONS,
    at,
    choices,
    chosen,
    defaults,
    merged,
    parts,
    resolved,
    schema,
)

GOLDEN = Path(__file__).parents[1] / "golden" / "helm"
VERSIONS = ("1.25", "1.28", "1.37")
"""Of Kubernetes: the oldest and the newest that the schemas have, and one where the chart changes."""
checked: set[str] = set()
"""Objects that were right already: most are the same for most values."""


def assert_right(manifests: list[helm.Manifest], version: str = VERSIONS[-1]) -> None:
    """Kubernetes of this version takes all of them, and none is there twice."""
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(names) == len(set(names))
    for each in manifests:
        key = version + json.dumps(each, sort_keys=True)
        if key not in checked:
            assert kubernetes_schemas.wrong(each, version) == ""
            checked.add(key)


def test_lint_finds_nothing() -> None:
    for values in ({}, *INSTALLATIONS.values()):
        assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART), values=values)


@pytest.mark.parametrize(
    ("path", "value"), [pytest.param(*each, id=f"{each[0]}={each[1]}") for each in choices()]
)
def test_every_choice_makes_objects_that_kubernetes_takes(path: str, value: Any) -> None:
    manifests = helm.render(chosen(path, value))
    assert_right(manifests)
    assert {"frontend", "shard", "gateway"} <= {name.partition("/")[0] for name in helm.pods(manifests)}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", INSTALLATIONS)
def test_every_kubernetes_takes_whole_installations(name: str, version: str) -> None:
    assert_right(helm.render(INSTALLATIONS[name], "--kube-version", version), version)


def by_name(text: str) -> dict[tuple[str, str], helm.Manifest]:
    """Objects without the order and the blank lines, which are helm's business."""
    found = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_golden_files(name: str) -> None:
    """LIGHTRAIL_GOLDEN=write writes them; their difference shows what a change of the chart does."""
    path = GOLDEN / f"{name}.yaml"
    # Alerts and dashboards are files of their own, compared in test_helm_laws.py.
    copies = {"prometheusRule": {"enabled": False}, "dashboards": {"enabled": False}}
    values = merged(INSTALLATIONS[name], {"monitoring": copies})
    found = helm.text(values, "--kube-version", "1.37")
    if os.environ.get("LIGHTRAIL_GOLDEN") == "write":
        path.write_text(found)
    hint = "look at what changed, then: LIGHTRAIL_GOLDEN=write pytest tests/deploy"
    assert by_name(found) == by_name(path.read_text()), hint


def test_the_defaults_alone_are_an_installation() -> None:
    manifests = helm.render({})
    assert_right(manifests)
    assert set(helm.of_kind(manifests, "Secret")) == {
        f"rel-lightrail-{of}" for of in ("users", "wire", "tls")
    }


def test_names_stay_within_the_limits_of_kubernetes() -> None:
    for values in ({"fullnameOverride": "n" * 40}, {"nameOverride": "n" * 40}):
        for each in helm.render(merged(INSTALLATIONS["everything"], values)):
            assert len(each["metadata"]["name"]) <= 63
    long = yaml.safe_load_all(helm.run("template", "r" * 53, str(CHART), values=FIXED))
    assert all(len(each["metadata"]["name"]) <= 63 for each in long if each)


# --- the schema of values ---------------------------------------------------------------------------------


def test_schema_and_defaults_have_the_same_values() -> None:
    def compare(part: Any, found: Any, path: str) -> None:
        properties = resolved(part).get("properties")
        if properties is None or not isinstance(found, dict) or path == "config":
            return
        assert set(found) <= set(properties), path
        assert set(properties) - set(found) <= {"global", "ephemeral-storage"}, path
        for key, value in found.items():
            compare(properties[key], value, f"{path}.{key}".lstrip("."))

    compare(schema(), defaults(), "")


def test_the_schema_describes_everything_and_allows_nothing_else() -> None:
    found = [("the chart", schema()), *parts()]
    assert all(part.get("description") for _, part in found), [
        path for path, part in found if not part.get("description")
    ]
    assert not [
        path for path, part in found if "properties" in part and part.get("additionalProperties") is not False
    ]


BAD: list[tuple[str, Any, str]] = [
    ("shards.replica", 3, "replica"),
    ("shards.replicas", 0, "/shards/replicas"),
    ("shards.replicas", "three", "/shards/replicas"),
    ("shards.scaleIn", "maybe", "/shards/scaleIn"),
    ("shards.members", 8, "/shards/members"),
    ("shards.minInSync", -1, "/shards/minInSync"),
    ("shards.persistence.size", "a lot", "/shards/persistence/size"),
    ("shards.persistence.accessModes", ["ReadWriteMany"], "/shards/persistence/accessModes"),
    ("shards.resources.limits", {"cpu": "1", "memory": None}, "/shards/resources/limits"),
    ("frontends.service.type", "ExternalName", "/frontends/service/type"),
    ("frontends.autoscaling.max", 0, "/frontends/autoscaling/max"),
    ("frontends.pdb.maxUnavailable", 0, "/frontends/pdb/maxUnavailable"),
    ("gateway.service.httpPort", 70000, "/gateway/service/httpPort"),
    ("gateway.ingress.hosts", ["x"], "hosts"),
    ("etcd.replicas", 2, "/etcd/replicas"),
    ("etcd.external.endpoints", ["http://etcd:2379"], "/etcd/external/endpoints/0"),
    ("image.tag", "latest", "/image/tag"),
    ("etcd.image.tag", "latest", "/etcd/image/tag"),
    ("image.digest", "sha256:12", "/image/digest"),
    ("config.amqp", "0.0.0.0:5672", "amqp"),
    ("config.log_level", "loud", "/config/log_level"),
    ("config.memory_mark", "some", "/config/memory_mark"),
    ("cluster", "a/b", "/cluster"),
    ("tls.source", "maybe", "/tls/source"),
    ("users.create", [{"name": "a b", "rights": "all", "prefix": "/"}], "/users/create/0/name"),
    ("users.create", [{"name": "a", "rights": "write", "prefix": "/"}], "/users/create/0/rights"),
    ("networkPolicy.amqpFrom", [{}], "/networkPolicy/amqpFrom/0"),
    ("monitoring.podMonitor.interval", "often", "/monitoring/podMonitor/interval"),
    ("rebalance.throttle", "slowly", "/rebalance/throttle"),
]


@pytest.mark.parametrize(("path", "value", "named"), BAD)
def test_a_bad_value_is_refused_by_its_name(path: str, value: Any, named: str) -> None:
    with pytest.raises(helm.RefusedError, match="schema") as refused:
        helm.text(merged(FIXED, at(path, value)))
    # Helm 4 writes /shards/replicas, Helm 3 shards.replicas.
    assert named.strip("/").replace("/", ".") in str(refused.value).replace("/", ".")


TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"tls": {"source": "none", "secret": ""}}, "config.plain_without_tls"),
    ({"tls": {"secret": ""}}, "tls.secret is empty"),
    ({"tls": {"source": "generated"}}, "leave tls.secret empty"),
    ({"tls": {"source": "certManager", "secret": ""}}, "tls.certManager.issuer.name"),
    (
        {
            "tls": {"source": "none", "secret": "", "clientCaSecret": "x"},
            "config": {"plain_without_tls": True},
        },
        "tls.clientCaSecret",
    ),
    (
        {
            "tls": {"source": "none", "secret": ""},
            "config": {"plain_without_tls": True},
            "frontends": {"amqp": False},
        },
        "frontends.amqp is false",
    ),
    ({"etcd": {"enabled": False}}, "etcd.external.endpoints is empty"),
    ({"etcd": {"external": {"endpoints": ["10.0.0.1:2379"]}}}, "etcd.enabled is true"),
    (
        {"etcd": {"enabled": False, "external": {"endpoints": ["10.0.0.1:2379"], "user": "x"}}},
        "etcd.external.passwordSecret",
    ),
    (
        {
            "etcd": {
                "enabled": False,
                "external": {"endpoints": ["e:2379"], "tls": {"clientCertificate": True}},
            }
        },
        "etcd.external.tls.secret is empty",
    ),
    ({"users": {"existingSecret": "", "operator": "nobody"}}, "users.operator is nobody"),
    (
        {"users": {"create": [{"name": "a", "rights": "all", "prefix": "/"}] * 2}},
        "users.create has a twice",
    ),
    ({"shards": {"members": 2, "minInSync": 3}}, "shards.minInSync is 3, but shards.members is 2"),
    ({"shards": {"founders": True}}, "shards.founders is true, but shards.members is 1"),
    ({"shards": {"members": 3, "pdb": {"maxUnavailable": 2}}}, "expected a number up to 1"),
    ({"shards": {"members": 3, "pdb": {"maxUnavailable": "34%"}}}, "shards.pdb.maxUnavailable is 34%"),
    ({"shards": {"members": 3}, "config": {"store": "sqlite"}}, "only the store journal has replicas"),
    ({"frontends": {"autoscaling": {"min": 5, "max": 2}}}, "frontends.autoscaling.min"),
    ({"frontends": {"drainSeconds": 60}}, "frontends.drainSeconds"),
    ({"gateway": {"ingress": {"enabled": True}}}, "gateway.ingress.host is empty"),
    (
        {"analytics": {"enabled": True, "lake": {"persistence": {"enabled": False}}}},
        "analytics.lake.table is empty",
    ),
    ({"analytics": {"plan": {"rebalance": True}}}, "analytics.plan.enabled is false"),
    ({"monitoring": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}}, "counted twice"),
    ({"serviceAccounts": {"create": False, "annotations": {"a": "b"}}}, "serviceAccounts.annotations"),
]


@pytest.mark.parametrize(("values", "said"), TOGETHER)
def test_values_that_do_not_go_together_are_refused_with_what_to_do(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(helm.RefusedError) as refused:
        helm.text(merged(FIXED, values))
    assert said in str(refused.value)
