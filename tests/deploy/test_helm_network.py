"""Who finds whom, and who may: selectors, services, policies and monitors fit the pods of the chart."""

import re
from collections.abc import Iterator

import pytest

from tests.support.deploy import helm
from tests.support.deploy.helm import Manifest, chosen, containers, of_kind, pods, ports, selects
from tests.support.deploy.helm_values import FIXED, INSTALLATIONS, merged


@pytest.fixture(scope="module", params=INSTALLATIONS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return helm.render(INSTALLATIONS[request.param])


def test_selectors_take_the_pods_of_one_role(manifests: list[Manifest]) -> None:
    for each in manifests:
        if each["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
        elif each["kind"] == "Service":
            selector = {"matchLabels": each["spec"]["selector"]}
        elif each["kind"] == "NetworkPolicy":
            selector = each["spec"]["podSelector"]
        else:
            continue
        found = {name.partition("/")[0] for name in chosen(selector, manifests)}
        allowed_empty = each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith(
            ("-jobs", "-users")
        )
        assert len(found) == 1 or (not found and allowed_empty), each["metadata"]["name"]


def test_services_and_policies_name_ports_that_the_pods_have(manifests: list[Manifest]) -> None:
    for each in of_kind(manifests, "Service").values():
        for pod in chosen({"matchLabels": each["spec"]["selector"]}, manifests).values():
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= set(ports(pod))
            for port in each["spec"]["ports"]:
                # Headless: there is nobody between who would translate the number.
                assert (
                    each["spec"].get("clusterIP") != "None" or port["port"] == ports(pod)[port["targetPort"]]
                )
    for each in of_kind(manifests, "NetworkPolicy").values():
        for pod in chosen(each["spec"]["podSelector"], manifests).values():
            named = [
                port["port"] for rule in each["spec"].get("ingress", ()) for port in rule.get("ports", ())
            ]
            assert sorted(named) == sorted(ports(pod))


def test_stateful_sets_and_autoscalers_name_what_is_there(manifests: list[Manifest]) -> None:
    services = of_kind(manifests, "Service")
    for each in of_kind(manifests, "StatefulSet").values():
        service = services[each["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert each["spec"]["podManagementPolicy"] == "Parallel"
    for each in of_kind(manifests, "HorizontalPodAutoscaler").values():
        target = of_kind(manifests, each["spec"]["scaleTargetRef"]["kind"])[
            each["spec"]["scaleTargetRef"]["name"]
        ]
        assert "replicas" not in target["spec"]
    for each in of_kind(manifests, "Ingress").values():
        (rule,) = each["spec"]["rules"]
        backend = rule["http"]["paths"][0]["backend"]["service"]
        assert backend["port"]["name"] in {
            port["name"] for port in services[backend["name"]]["spec"]["ports"]
        }


def hosts(manifests: list[Manifest]) -> Iterator[tuple[str, int]]:
    """(host, port) of everything in variables and arguments that looks like a name of the cluster."""
    for pod in pods(manifests).values():
        for each in containers(pod):
            texts = [*each.get("args", ()), *(one.get("value", "") for one in each.get("env", ()))]
            for text in texts:
                for host, port in re.findall(r"([\w.-]+)\.ns\.svc:(\d+)", text.replace("$(POD_NAME)", "pod")):
                    yield host, int(port)


def test_addresses_lead_to_services_that_are_there(manifests: list[Manifest]) -> None:
    services = of_kind(manifests, "Service")
    for host, port in hosts(manifests):
        of_pod, _, name = host.rpartition(".")
        numbers = {each["port"] for each in services[name]["spec"]["ports"]}
        for pod in chosen({"matchLabels": services[name]["spec"]["selector"]}, manifests).values():
            assert port in (set(ports(pod).values()) if of_pod else numbers), host


def test_only_the_broker_reaches_the_wire_and_only_what_needs_it_etcd() -> None:
    policies = of_kind(helm.render(FIXED), "NetworkPolicy")

    def components(policy: str, port: str) -> set[str]:
        (rule,) = [
            each
            for each in policies[f"rel-lightrail-{policy}"]["spec"]["ingress"]
            if port in {one["port"] for one in each["ports"]}
        ]
        return {each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in rule["from"]}

    assert components("shard", "wire") == components("frontend", "wire") == {"frontend", "shard", "gateway"}
    assert components("etcd", "client") == {"frontend", "shard", "gateway", "users"}
    assert components("etcd", "peer") == {"etcd"}
    assert all(each["spec"]["policyTypes"] == ["Ingress"] for each in policies.values())


def test_the_chart_lets_its_own_jobs_in_where_others_are_kept_out() -> None:
    policies = of_kind(helm.render(INSTALLATIONS["everything"]), "NetworkPolicy")
    for name, port in (("frontend", "amqps"), ("gateway", "https"), ("shard", "metrics")):
        (rule,) = [
            each
            for each in policies[f"rel-lightrail-{name}"]["spec"]["ingress"]
            if port in {one["port"] for one in each["ports"]}
        ]
        own = [each for each in rule["from"] if "namespaceSelector" not in each]
        assert "jobs" in {each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in own}


def test_monitors_find_every_process_once() -> None:
    for kind in ("podMonitor", "serviceMonitor"):
        manifests = helm.render(merged(FIXED, {"monitoring": {kind: {"enabled": True}}}))
        (monitor,) = [each for each in manifests if each["kind"].endswith("Monitor")]
        assert monitor["spec"]["namespaceSelector"] == {"matchNames": ["ns"]}
        if kind == "podMonitor":
            found = list(chosen(monitor["spec"]["selector"], manifests).items())
            endpoints = monitor["spec"]["podMetricsEndpoints"]
        else:
            services = of_kind(manifests, "Service").values()
            taken = [
                each for each in services if selects(monitor["spec"]["selector"], each["metadata"]["labels"])
            ]
            assert all([port["name"] for port in each["spec"]["ports"]] == ["metrics"] for each in taken)
            found = [
                pod
                for each in taken
                for pod in chosen({"matchLabels": each["spec"]["selector"]}, manifests).items()
            ]
            endpoints = monitor["spec"]["endpoints"]
        assert sorted(name.partition("/")[0] for name, _ in found) == ["etcd", "frontend", "gateway", "shard"]
        (endpoint,) = endpoints
        assert endpoint["port"] == "metrics"
        assert all("lightrail" in each["replacement"] for each in endpoint["relabelings"])
        assert all("metrics" in ports(pod) for _, pod in found)
