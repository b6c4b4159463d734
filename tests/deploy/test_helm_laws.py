"""What holds for everything that the chart makes, whatever its values are."""

import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightrail.model.settings import Settings, names
from tests.support import helm
from tests.support.helm import Manifest, containers, of_kind, pods
from tests.support.helm_values import FIXED, INSTALLATIONS, merged, schema

OWN = ("frontend", "shard", "gateway")
PORTS = {"amqp": 5672, "amqps": 5671, "http": 8080, "https": 8443, "wire": 5680, "metrics": 9464}
CHARTS_OWN = set(
    "amqp amqps http https tls_certificate tls_key tls_client_ca data metrics frontends shards etcd cluster etcd_ca "
    "etcd_certificate etcd_key etcd_user etcd_password_file wire advertise wire_key insecure_wire zone".split()
)
"""Settings that the chart makes itself."""
COMMAND_VARIABLES = {"config", "url", "user", "password_file", "ca"}
"""Variables that are no settings: of the command line and of the chart's test."""


@pytest.fixture(scope="module", params=INSTALLATIONS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return helm.render(INSTALLATIONS[request.param])


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector of Kubernetes takes these labels."""
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def chosen(selector: Mapping[str, Any], manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pods that a selector takes; an empty one would take all of the namespace and is none of ours."""
    assert selector
    return {name: pod for name, pod in pods(manifests).items() if selects(selector, pod["metadata"]["labels"])}


def ports(pod: Manifest) -> dict[str, int]:
    """{name: number} of all ports of a pod."""
    return {
        each["name"]: each["containerPort"] for one in containers(pod) for each in one.get("ports", ())
    }


# --- what a pod may -----------------------------------------------------------------------------------------


def test_every_container_is_without_privileges(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests).items():
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] == 10001, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        for each in containers(pod):
            assert each["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert "/tmp" in {mount["mountPath"] for mount in each["volumeMounts"]}, name
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(each["resources"][kind]), name
        for volume in spec["volumes"]:
            assert not {"hostPath"} & set(volume), name


def test_no_pod_talks_to_kubernetes(manifests: list[Manifest]) -> None:
    for pod in pods(manifests).values():
        assert pod["spec"]["automountServiceAccountToken"] is False
        # Or a Service of this name would show up as a setting.
        assert pod["spec"]["enableServiceLinks"] is False
    accounts = of_kind(manifests, "ServiceAccount")
    assert all(each["automountServiceAccountToken"] is False for each in accounts.values())
    assert {pod["spec"]["serviceAccountName"] for pod in pods(manifests).values()} <= {*accounts, "broker"}
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {each["kind"] for each in manifests}


def test_images_say_which_version_runs(manifests: list[Manifest]) -> None:
    for pod in pods(manifests).values():
        for each in containers(pod):
            assert re.search(r":(?!latest$)[\w.-]+$|@sha256:[0-9a-f]{64}$", each["image"]), each["image"]


def test_no_secret_is_a_variable_or_an_argument(manifests: list[Manifest]) -> None:
    for pod in pods(manifests).values():
        for each in containers(pod):
            for variable in each.get("env", ()):
                assert "secretKeyRef" not in variable.get("valueFrom", {})
                assert "envFrom" not in each


def test_a_pod_gets_only_the_secrets_that_it_needs(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests).items():
        has = {each["name"] for each in pod["spec"]["volumes"] if "secret" in each}
        allowed = {
            "frontend": {"wire", "tls", "client-ca", "etcd-tls", "etcd-password"},
            "gateway": {"wire", "tls", "client-ca", "etcd-tls", "etcd-password"},
            "shard": {"wire", "etcd-tls", "etcd-password"},
            "etcd": set(),
            "users": {"users", "etcd-tls", "etcd-password"},
            "jobs": {"operator", "authority"},
        }[name.partition("/")[0]]
        assert has <= allowed, name


# --- probes ---------------------------------------------------------------------------------------------------


def test_no_process_is_started_anew_because_of_etcd(manifests: list[Manifest]) -> None:
    """/healthz answers as long as the process turns; only /readyz knows others."""
    for component, pod in ((name.partition("/")[0], pod) for name, pod in pods(manifests).items()):
        if component not in OWN:
            continue
        (each,) = pod["spec"]["containers"]
        for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert each[probe]["httpGet"] == {"path": path, "port": "metrics"}, component
        assert ports(pod)["metrics"] == PORTS["metrics"]
        # Longer than a pause that a busy machine makes.
        assert each["livenessProbe"]["periodSeconds"] * each["livenessProbe"]["failureThreshold"] >= 30


def test_ports_are_where_the_processes_listen(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests).items():
        if name.partition("/")[0] not in OWN:
            continue
        (each,) = pod["spec"]["containers"]
        listening = {
            int(one["value"].rpartition(":")[2])
            for one in each["env"]
            if one.get("value", "").startswith("0.0.0.0:")
        }
        assert set(ports(pod).values()) <= listening, name
        assert all(PORTS[port] == number for port, number in ports(pod).items()), name


# --- who finds whom -------------------------------------------------------------------------------------------


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
        allowed_empty = each["kind"] == "NetworkPolicy" and each["metadata"]["name"].endswith(("-jobs", "-users"))
        assert len(found) == 1 or (not found and allowed_empty), each["metadata"]["name"]


def test_services_and_policies_name_ports_that_the_pods_have(manifests: list[Manifest]) -> None:
    for each in of_kind(manifests, "Service").values():
        for pod in chosen({"matchLabels": each["spec"]["selector"]}, manifests).values():
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= set(ports(pod))
            for port in each["spec"]["ports"]:
                # Headless: there is nobody between who would translate the number.
                assert each["spec"].get("clusterIP") != "None" or port["port"] == ports(pod)[port["targetPort"]]
    for each in of_kind(manifests, "NetworkPolicy").values():
        for pod in chosen(each["spec"]["podSelector"], manifests).values():
            named = [port["port"] for rule in each["spec"].get("ingress", ()) for port in rule["ports"]]
            assert sorted(named) == sorted(ports(pod))


def test_stateful_sets_and_autoscalers_name_what_is_there(manifests: list[Manifest]) -> None:
    services = of_kind(manifests, "Service")
    for each in of_kind(manifests, "StatefulSet").values():
        service = services[each["spec"]["serviceName"]]
        assert service["spec"]["clusterIP"] == "None"
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert each["spec"]["podManagementPolicy"] == "Parallel"
    for each in of_kind(manifests, "HorizontalPodAutoscaler").values():
        target = of_kind(manifests, each["spec"]["scaleTargetRef"]["kind"])[each["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
    for each in of_kind(manifests, "Ingress").values():
        (rule,) = each["spec"]["rules"]
        backend = rule["http"]["paths"][0]["backend"]["service"]
        assert backend["port"]["name"] in {port["name"] for port in services[backend["name"]]["spec"]["ports"]}


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
            taken = [each for each in services if selects(monitor["spec"]["selector"], each["metadata"]["labels"])]
            assert all([port["name"] for port in each["spec"]["ports"]] == ["metrics"] for each in taken)
            found = [
                pod for each in taken for pod in chosen({"matchLabels": each["spec"]["selector"]}, manifests).items()
            ]
            endpoints = monitor["spec"]["endpoints"]
        assert sorted(name.partition("/")[0] for name, _ in found) == ["etcd", "frontend", "gateway", "shard"]
        assert [each["port"] for each in endpoints] == ["metrics"]
        assert all("metrics" in ports(pod) for _, pod in found)


# --- what a pod reads -----------------------------------------------------------------------------------------


def test_what_pods_read_is_there_or_the_users(manifests: list[Manifest]) -> None:
    """Secrets of the user begin with `given-` here; cert-manager makes the one of a Certificate."""
    secrets = of_kind(manifests, "Secret")
    made = {each["spec"]["secretName"] for each in of_kind(manifests, "Certificate").values()}
    for name, pod in pods(manifests).items():
        mounted = {mount["name"] for each in containers(pod) for mount in each["volumeMounts"]}
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert mounted - {"data"} <= set(volumes) <= mounted, name
        for each in volumes.values():
            if "configMap" in each:
                assert each["configMap"]["name"] in of_kind(manifests, "ConfigMap"), name
            if "secret" in each:
                secret = each["secret"]["secretName"]
                assert secret in secrets or secret in made or secret.startswith("given-"), name


def test_paths_in_variables_are_mounted(manifests: list[Manifest]) -> None:
    for name, pod in pods(manifests).items():
        for each in containers(pod):
            mounts = tuple(mount["mountPath"] for mount in each["volumeMounts"])
            for one in each.get("env", ()):
                if one.get("value", "").startswith("/") and one["name"].startswith("LIGHTRAIL_"):
                    assert one["value"].startswith(mounts), f"{name}: {one}"


def test_variables_are_those_that_the_commands_know(manifests: list[Manifest]) -> None:
    known = {f"LIGHTRAIL_{name.upper()}" for name in CHARTS_OWN | COMMAND_VARIABLES}
    for pod in pods(manifests).values():
        for each in containers(pod):
            mine = {one["name"] for one in each.get("env", ()) if one["name"].startswith("LIGHTRAIL_")}
            assert mine <= known


def test_the_file_of_settings_is_read_as_it_was_meant(tmp_path: Path) -> None:
    values = INSTALLATIONS["everything"]["config"]
    path = tmp_path / "lightrail.toml"
    path.write_text(of_kind(helm.render(INSTALLATIONS["everything"]), "ConfigMap")["rel-lightrail-config"]["data"][path.name])
    settings = Settings.load(config=str(path))
    assert settings.memory_mark == values["memory_mark"]
    assert settings.segment_bytes == 64 << 20
    assert settings.max_delivery_count == 5
    assert settings.auto_create is False
    assert settings.push_allow
    assert settings.log_format == "json"


def test_every_setting_is_a_value_or_the_charts_own() -> None:
    offered = set(schema()["properties"]["config"]["properties"])
    assert not offered & CHARTS_OWN
    assert set(names()) <= offered | CHARTS_OWN, "a new setting: offer it in values.schema.json (config), or set it in the chart"
    assert offered <= set(names())


# --- restarts -------------------------------------------------------------------------------------------------


def annotations(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """{role: annotations of its pods}"""
    return {
        name.partition("/")[0]: pod["metadata"].get("annotations", {})
        for name, pod in pods(helm.render(values)).items()
    }


def test_a_change_of_what_pods_read_replaces_them() -> None:
    before = annotations(FIXED)
    for change in ({"config": {"log_level": "debug"}}, {"wire": {"keySecret": "other"}}, {"tls": {"secret": "other"}}):
        after = annotations(merged(FIXED, change))
        assert all(before[role] != after[role] for role in OWN)
        assert before["etcd"] == after["etcd"]
    assert before == annotations(merged(FIXED, {"shards": {"replicas": 4}}))


def test_the_job_of_users_has_another_name_when_it_is_another() -> None:
    """The pod of a Job can't be changed: helm would fail."""

    def job(change: dict[str, Any]) -> str:
        (name,) = of_kind(helm.render(merged(FIXED, change)), "Job")
        return name

    users = [{"name": "a", "rights": "send", "prefix": "/"}]
    changes = [{}, {"users": {"create": users}}, {"image": {"tag": "0.1.1"}}, {"users": {"existingSecret": "other"}}]
    assert len({job(change) for change in changes}) == len(changes)
    assert job({}) == job({"shards": {"replicas": 4}})


# --- shards ---------------------------------------------------------------------------------------------------


def test_the_number_of_a_shard_is_that_of_its_pod() -> None:
    new = pods(helm.render(FIXED, "--kube-version", "1.28"))["shard/rel-lightrail-shard"]["spec"]["containers"][0]
    assert [*new["command"], *new["args"]] == ["lightrail", "shard", "--id", "$(SHARD_ID)"]
    (found,) = [each["valueFrom"]["fieldRef"]["fieldPath"] for each in new["env"] if each["name"] == "SHARD_ID"]
    assert found == "metadata.labels['apps.kubernetes.io/pod-index']"
    old = pods(helm.render(FIXED, "--kube-version", "1.27"))["shard/rel-lightrail-shard"]["spec"]["containers"][0]
    assert "SHARD_ID" not in str(old)
    shell, option, script = old["command"]
    shown = script.replace("exec lightrail", "echo")
    said = subprocess.run([shell, option, shown], env={"POD_NAME": "rel-lightrail-shard-12"}, capture_output=True)
    assert said.stdout == b"shard --id 12\n"


def test_volumes_stay_unless_somebody_says_otherwise() -> None:
    for each in of_kind(helm.render(FIXED), "StatefulSet").values():
        assert each["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_every_role_has_a_budget_and_is_spread(manifests: list[Manifest]) -> None:
    manifests = helm.render(FIXED)
    assert len(of_kind(manifests, "PodDisruptionBudget")) == 4
    for role in OWN:
        (pod,) = [pod for name, pod in pods(manifests).items() if name.startswith(f"{role}/")]
        keys = [each["topologyKey"] for each in pod["spec"]["topologySpreadConstraints"]]
        assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
        assert all(
            selects(each["labelSelector"], pod["metadata"]["labels"])
            for each in pod["spec"]["topologySpreadConstraints"]
        )


def test_documents_of_the_chart_are_yaml_with_the_version_of_the_broker() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    project = (helm.CHART.parents[2] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
