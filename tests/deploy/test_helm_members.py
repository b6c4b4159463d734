"""Shards with members in the chart: where their pods are, which may end, and how their number changes."""

from typing import Any

import pytest

from tests.deploy import kubernetes_api
from tests.deploy.kubernetes_api import released
from tests.support.deploy import helm
from tests.support.deploy.helm import Manifest, of_kind, pods, selects
from tests.support.deploy.helm_values import ANYWHERE_BUT, FIXED, merged


def members(**shards: Any) -> list[Manifest]:
    return helm.render(merged(FIXED, {"shards": {"replicas": 2, "members": 3, **shards}}))


def of_shards(manifests: list[Manifest]) -> dict[str, Manifest]:
    """{name of the StatefulSet: its pod}"""
    found = pods(manifests).items()
    return {name.partition("/")[2]: pod for name, pod in found if name.startswith("shard/")}


def test_members_of_a_shard_are_pods_of_its_own_stateful_set() -> None:
    manifests = members(minInSync=3)
    sets = of_kind(manifests, "StatefulSet")
    for shard in ("0", "1"):
        found = sets[f"rel-lightrail-shard-{shard}"]
        assert found["spec"]["replicas"] == 3
        (each,) = found["spec"]["template"]["spec"]["containers"]
        assert [*each["command"], *each["args"]] == ["lightrail", "shard", "--id", shard]
        values = {one["name"]: one.get("value") for one in each["env"]}
        assert values["LIGHTRAIL_REPLICAS"] == values["LIGHTRAIL_MIN_IN_SYNC"] == "3"
        # The name of a pod stays its own on whatever node; an emptied volume replaces its own former member.
        assert values["LIGHTRAIL_REPLICA_HOST"] == "$(POD_NAME)"
    assert set(sets) == {"rel-lightrail-etcd", "rel-lightrail-shard-0", "rel-lightrail-shard-1"}


def test_members_of_a_shard_lie_on_different_nodes() -> None:
    found = of_shards(members(affinity=ANYWHERE_BUT))
    for name, pod in found.items():
        (term,) = pod["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        kept_away = {
            each for each, pod in found.items() if selects(term["labelSelector"], pod["metadata"]["labels"])
        }
        assert kept_away == {name}
        assert pod["spec"]["affinity"]["nodeAffinity"] == ANYWHERE_BUT["nodeAffinity"]
    (pod, _) = of_shards(members(antiAffinity="preferred")).values()
    assert set(pod["spec"]["affinity"]["podAntiAffinity"]) == {
        "preferredDuringSchedulingIgnoredDuringExecution"
    }
    own: dict[str, Any] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    assert [pod["spec"]["affinity"] for pod in of_shards(members(affinity=own)).values()] == [own, own]


def test_zones_share_the_members_of_each_shard_and_hosts_all_shards() -> None:
    found = of_shards(members())
    for name, pod in found.items():
        zones, hosts = pod["spec"]["topologySpreadConstraints"]
        spread = [
            {each for each, pod in found.items() if selects(one["labelSelector"], pod["metadata"]["labels"])}
            for one in (zones, hosts)
        ]
        assert spread == [{name}, set(found)]


def test_one_budget_has_the_members_of_one_shard() -> None:
    """Kubernetes evicts no pod that two budgets select."""
    manifests = members()
    budgets = of_kind(manifests, "PodDisruptionBudget")
    for name, pod in of_shards(manifests).items():
        selecting = [
            each for each in budgets if selects(budgets[each]["spec"]["selector"], pod["metadata"]["labels"])
        ]
        assert selecting == [name]
        assert budgets[name]["spec"]["maxUnavailable"] == 1


def test_members_reach_each_other_on_any_port_and_nobody_else_does() -> None:
    (open_to,) = [
        each["from"]
        for each in of_kind(members(), "NetworkPolicy")["rel-lightrail-shard"]["spec"]["ingress"]
        if "ports" not in each
    ]
    (peer,) = open_to
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "shard"
    alone = of_kind(helm.render(FIXED), "NetworkPolicy")["rel-lightrail-shard"]["spec"]["ingress"]
    assert all("ports" in each for each in alone)


def test_founders_stay_as_they_are_beside_their_members() -> None:
    before = of_kind(helm.render(merged(FIXED, {"shards": {"replicas": 2}})), "StatefulSet")
    after = of_kind(members(founders=True), "StatefulSet")
    assert after["rel-lightrail-shard"] == before["rel-lightrail-shard"]
    assert {"rel-lightrail-shard-0", "rel-lightrail-shard-1"} < set(after)


# --- what the chart finds in a cluster --------------------------------------------------------------------


def upgrade(found: dict[str, int], **shards: Any) -> list[Manifest]:
    """What an upgrade makes where these StatefulSets, with their numbers of pods, are in the cluster."""
    sets = [
        released("apps/v1", "StatefulSet", f"rel-lightrail-{name}", spec={"replicas": number})
        for name, number in found.items()
    ]
    with kubernetes_api.serving(sets) as url:
        return helm.render(merged(FIXED, {"shards": shards}), *kubernetes_api.HELM, url)


ALONE = {"shard": 2}
MEMBERS = {"shard-0": 3, "shard-1": 3}
REFUSED: list[tuple[dict[str, int], dict[str, Any], str]] = [
    (ALONE, {"replicas": 2, "members": 3}, "set shards.founders to true until the members have all messages"),
    (ALONE | {"shard-0": 3}, {"replicas": 2, "members": 3}, "set shards.founders to true"),
    (ALONE, {"replicas": 3, "members": 3, "founders": True}, "this release has 2 shards without replicas"),
    (MEMBERS, {"replicas": 2}, "the shards of this release have members"),
    (MEMBERS, {"replicas": 2, "members": 2}, "shards.members is 2, but shard 0 has 3"),
    (MEMBERS, {"replicas": 1, "members": 3}, "shards 1 would go with their queues"),
]


@pytest.mark.parametrize(("found", "shards", "said"), REFUSED)
def test_no_upgrade_takes_volumes_away_from_shards(
    found: dict[str, int], shards: dict[str, Any], said: str
) -> None:
    with pytest.raises(helm.RefusedError) as refused:
        upgrade(found, **shards)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("found", "shards", "sets"),
    [
        ({}, {"replicas": 2, "members": 3}, {"shard-0", "shard-1"}),
        (ALONE, {"replicas": 2, "members": 3, "founders": True}, {"shard", "shard-0", "shard-1"}),
        (ALONE | MEMBERS, {"replicas": 2, "members": 3}, {"shard-0", "shard-1"}),
        (MEMBERS, {"replicas": 2, "members": 5}, {"shard-0", "shard-1"}),
        (MEMBERS, {"replicas": 2, "members": 2, "scaleIn": "force"}, {"shard-0", "shard-1"}),
        (MEMBERS, {"replicas": 3, "members": 3}, {"shard-0", "shard-1", "shard-2"}),
    ],
)
def test_members_come_beside_founders_and_may_be_more(
    found: dict[str, int], shards: dict[str, Any], sets: set[str]
) -> None:
    made = of_kind(upgrade(found, **shards), "StatefulSet")
    assert set(made) == {"rel-lightrail-etcd", *(f"rel-lightrail-{name}" for name in sets)}


def test_shards_with_members_are_drained_before_they_end() -> None:
    jobs = of_kind(upgrade(MEMBERS | {"shard-10": 3}, replicas=1, members=3, scaleIn="drain"), "Job")
    (drain,) = jobs["rel-lightrail-drain"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert drain.strip().splitlines()[-2:] == ["admin shard drain 1", "admin shard drain 10"]
    assert {"rel-lightrail-remove-1", "rel-lightrail-remove-10"} < set(jobs)


def test_rebalancing_waits_for_all_members() -> None:
    values = {
        "shards": {"replicas": 2, "members": 2},
        "rebalance": {"afterUpgrade": {"enabled": True}},
    }
    pod = of_kind(helm.render(merged(FIXED, values)), "Job")["rel-lightrail-rebalance"]["spec"]["template"]
    assert pod["spec"]["initContainers"][0]["args"][2:] == [
        f"http://rel-lightrail-shard-{shard}-{member}.rel-lightrail-shard.ns.svc:9464/readyz"
        for shard in range(2)
        for member in range(2)
    ]
