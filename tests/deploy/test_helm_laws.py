"""What holds for every pod that the chart makes, whatever the values are: what it may, reads, and is told."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightrail.model.settings import Settings, names
from scripts import helm_files
from tests.support.deploy import helm
from tests.support.deploy.helm import Manifest, containers, of_kind, pods, ports, selects
from tests.support.deploy.helm_values import FIXED, INSTALLATIONS, merged, schema

OWN = ("frontend", "shard", "gateway")
PORTS = {"amqp": 5672, "amqps": 5671, "http": 8080, "https": 8443, "wire": 5680, "metrics": 9464}
CHARTS_OWN = {
    *("amqp", "amqps", "http", "https", "tls_certificate", "tls_key", "tls_client_ca"),
    *("data", "archive", "metrics", "frontends", "shards"),
    *("etcd", "cluster", "etcd_ca", "etcd_certificate", "etcd_key", "etcd_user", "etcd_password_file"),
    *("wire", "advertise", "wire_key", "insecure_wire", "wire_sockets", "zone"),
    *("replicas", "min_in_sync", "replica_host"),
}
"""Settings that the chart makes itself."""
COMMAND_VARIABLES = {"config", "url", "user", "password_file", "ca"}
"""Variables that are no settings: of the command line and of the chart's test."""


@pytest.fixture(scope="module", params=INSTALLATIONS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    return helm.render(INSTALLATIONS[request.param])


# --- what a pod may ---------------------------------------------------------------------------------------


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
    assert not {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"} & {
        each["kind"] for each in manifests
    }


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
            "analytics": {"operator", "authority"},
        }[name.partition("/")[0]]
        assert has <= allowed, name


# --- probes -----------------------------------------------------------------------------------------------


def test_no_process_is_started_anew_because_of_etcd(manifests: list[Manifest]) -> None:
    """/healthz answers as long as the process turns; only /readyz knows others."""
    for component, pod in ((name.partition("/")[0], pod) for name, pod in pods(manifests).items()):
        if component not in OWN:
            continue
        (each,) = pod["spec"]["containers"]
        for probe, path in (
            ("startupProbe", "/healthz"),
            ("livenessProbe", "/healthz"),
            ("readinessProbe", "/readyz"),
        ):
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


# --- what a pod reads -------------------------------------------------------------------------------------


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
    path.write_text(
        of_kind(helm.render(INSTALLATIONS["everything"]), "ConfigMap")["rel-lightrail-config"]["data"][
            path.name
        ]
    )
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
    assert set(names()) <= offered | CHARTS_OWN, (
        "a new setting: offer it in values.schema.json (config), or set it in the chart"
    )
    assert offered | CHARTS_OWN == set(names())


def test_scripts_reach_their_shell_as_they_are(manifests: list[Manifest]) -> None:
    """Kubernetes takes $$ for $, and puts variables of the container into $(NAME)."""
    for pod in pods(manifests).values():
        for each in containers(pod):
            known = {one["name"] for one in each.get("env", ())}
            for text in (*each.get("command", ()), *each.get("args", ())):
                assert "$$" not in text
                assert "\n" not in text or not known & set(re.findall(r"\$\(([^)]*)\)", text))


# --- restarts ---------------------------------------------------------------------------------------------


def annotations(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """{role: annotations of its pods}"""
    return {
        name.partition("/")[0]: pod["metadata"].get("annotations", {})
        for name, pod in pods(helm.render(values)).items()
    }


def test_a_change_of_what_pods_read_replaces_them() -> None:
    before = annotations(FIXED)
    for change in (
        {"config": {"log_level": "debug"}},
        {"wire": {"keySecret": "other"}},
        {"tls": {"secret": "other"}},
    ):
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
    changes: list[dict[str, Any]] = [
        {},
        {"users": {"create": users}},
        {"image": {"tag": "0.1.1"}},
        {"users": {"existingSecret": "other"}},
    ]
    assert len({job(change) for change in changes}) == len(changes)
    assert job({}) == job({"shards": {"replicas": 4}})


# --- shards -----------------------------------------------------------------------------------------------


def test_the_number_of_a_shard_is_that_of_its_pod() -> None:
    new = pods(helm.render(FIXED, "--kube-version", "1.28"))["shard/rel-lightrail-shard"]["spec"][
        "containers"
    ][0]
    assert [*new["command"], *new["args"]] == ["lightrail", "shard", "--id", "$(SHARD_ID)"]
    (found,) = [
        each["valueFrom"]["fieldRef"]["fieldPath"] for each in new["env"] if each["name"] == "SHARD_ID"
    ]
    assert found == "metadata.labels['apps.kubernetes.io/pod-index']"
    old = pods(helm.render(FIXED, "--kube-version", "1.27"))["shard/rel-lightrail-shard"]["spec"][
        "containers"
    ][0]
    assert "SHARD_ID" not in str(old)
    shell, option, script = old["command"]
    shown = script.replace("exec lightrail", "echo")
    said = subprocess.run(
        [shell, option, shown], env={"POD_NAME": "rel-lightrail-shard-12"}, capture_output=True
    )
    assert said.stdout == b"shard --id 12\n"


def test_volumes_stay_unless_somebody_says_otherwise() -> None:
    for each in of_kind(helm.render(FIXED), "StatefulSet").values():
        assert each["spec"]["persistentVolumeClaimRetentionPolicy"] == {
            "whenDeleted": "Retain",
            "whenScaled": "Retain",
        }


def test_every_role_has_a_budget_and_is_spread() -> None:
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


def test_the_chart_names_the_version_of_the_broker() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    project = (helm.CHART.parents[2] / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project


# --- alerts and dashboards --------------------------------------------------------------------------------


def test_alerts_and_dashboards_are_those_of_the_repository() -> None:
    assert helm_files.found() == helm_files.wanted(), "run: .venv/bin/python scripts/helm_files.py"


def test_alerts_and_dashboards_reach_kubernetes_as_they_are() -> None:
    manifests = helm.render(INSTALLATIONS["everything"])
    rules = [each["spec"] for each in of_kind(manifests, "PrometheusRule").values()]
    (of_rules, pattern, _), (of_dashboards, every, _) = helm_files.COPIES
    assert rules == [yaml.safe_load(path.read_text()) for path in sorted(of_rules.glob(pattern))]
    found = [each["data"] for name, each in of_kind(manifests, "ConfigMap").items() if "-dashboard-" in name]
    assert found == [{path.name: path.read_text()} for path in sorted(of_dashboards.glob(every))]
