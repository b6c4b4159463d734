"""What docker-compose.yml, Prometheus and Grafana are told fits together; no engine is needed for that."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightrail.frontend.intake import FRONTEND_UNFINISHED_BYTES
from lightrail.frontend.outflow import FRONTEND_UNREAD_BYTES
from lightrail.gateway.messages.sending import HTTP_BODIES_BYTES
from lightrail.model import limits
from tests.deploy.images import described

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose"
ONCE = ("init", "admin", "bench", "spark")
ALONE = ("capture",)
"""Serve nobody, and end when they can't go on."""
DATASOURCES = yaml.safe_load((COMPOSE / "grafana/datasources/prometheus.yml").read_text())["datasources"]
CHART = yaml.safe_load((ROOT / "deploy/helm/lightrail/values.yaml").read_text())
DASHBOARDS = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))


@pytest.mark.parametrize("name", described())
def test_every_service_is_pinned_checked_confined_and_started_again(name: str) -> None:
    service = described()[name]
    image = re.sub(r"\$\{\w+:-(.*)\}", r"\1", service["image"])
    assert re.fullmatch(r"[a-z0-9./-]+:v?\d+\.\d+\.\d+[\w.-]*", image), image
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["logging"]["options"]["max-size"]
    if name in ONCE:
        assert service["restart"] == "no"
        assert service["healthcheck"] == {"disable": True}
    elif name in ALONE:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"] == {"disable": True}
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"


def memory(text: str) -> int:
    """Bytes of a limit, as `2g` of Compose and `2Gi` of Kubernetes."""
    value = re.sub(r"\$\{\w+:-(.*)\}", r"\1", text)
    return int(value[:-1].rstrip("GMgm")) << {"g": 30, "m": 20}[value.lower().rstrip("i")[-1]]


def limits_of_memory() -> dict[str, dict[str, int]]:
    """By the deployment and the role."""
    helm = {"frontend": "frontends", "shard": "shards", "gateway": "gateway", "etcd": "etcd"}
    return {
        "compose": {role: memory(described()[role]["mem_limit"]) for role in helm},
        "helm": {role: memory(CHART[of]["resources"]["limits"]["memory"]) for role, of in helm.items()},
    }


@pytest.mark.parametrize("of", ["compose", "helm"])
def test_limits_of_memory_leave_room_for_the_bounds_of_the_processes(of: str) -> None:
    found = limits_of_memory()[of]
    # docs/operate/running.md: unread bytes are half as many again in the allocator; 384 KiB a connection.
    bounds = limits.FRONTEND_UNANSWERED_BYTES + FRONTEND_UNFINISHED_BYTES
    assert found["frontend"] >= bounds + FRONTEND_UNREAD_BYTES * 3 // 2 + 1_000 * 384 * 1024
    mark = described()["shard"]["environment"]["LIGHTRAIL_MEMORY_MARK"]
    assert re.sub(r"\$\{\w+:-(.*)\}", r"\1", mark) == CHART["config"]["memory_mark"] == "512MiB"
    assert found["shard"] >= 3 * (512 << 20)
    assert found["gateway"] > HTTP_BODIES_BYTES + limits.HTTP_DEFINITIONS_BYTES


def test_compose_and_helm_run_etcd_alike() -> None:
    assert limits_of_memory()["compose"]["etcd"] == limits_of_memory()["helm"]["etcd"]
    image = CHART["etcd"]["image"]
    assert described()["etcd"]["image"] == f"{image['registry']}/{image['repository']}:{image['tag']}"
    chart = (ROOT / "deploy/helm/lightrail/templates/etcd/statefulset.yaml").read_text()
    shared = ("auto-compaction-mode", "auto-compaction-retention", "quota-backend-bytes")
    for flag in shared:
        (wanted,) = re.findall(rf"--{flag}=(\S+)", chart)
        assert f"--{flag}={wanted}" in described()["etcd"]["command"]


def test_files_that_are_mounted_are_there() -> None:
    mounted = [volume.split(":")[0] for each in described().values() for volume in each.get("volumes", [])]
    files = [path for path in mounted if path.startswith("./")]
    assert files
    for path in files:
        assert (ROOT / path).exists(), path


def test_what_can_be_set_is_what_the_example_says() -> None:
    used = set(re.findall(r"\$\{(\w+):-([^}]*)\}", (ROOT / "docker-compose.yml").read_text()))
    written = dict(
        re.findall(r"^# (LIGHTRAIL_\w+)=(\S*)", (COMPOSE / "env.example").read_text(), re.MULTILINE)
    )
    assert {name for name, _ in used} == set(written)
    for name, default in used - {("LIGHTRAIL_PASSWORD_FILE", "/dev/null")}:
        assert written[name] == default


def test_what_is_published_is_published_on_this_machine_alone_unless_it_is_said() -> None:
    ports = [port for each in described().values() for port in each.get("ports", [])]
    assert len(ports) == 4
    for port in ports:
        assert port.startswith(("127.0.0.1:", "${LIGHTRAIL_BIND:-127.0.0.1}:"))


def test_dashboards_name_the_source_that_is_provisioned() -> None:
    (source,) = DATASOURCES
    assert source["isDefault"]
    assert DASHBOARDS
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        variables = [each for each in dashboard["templating"]["list"] if _chooses(each, source)]
        chosen = {f"${{{each['name']}}}" for each in variables}
        for found in _sources(dashboard):
            assert found in {source["uid"], *chosen, "-- Grafana --", "grafana"}, path.name


def test_the_home_dashboard_is_one_of_those() -> None:
    home = described()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).name in [path.name for path in DASHBOARDS]
    (provider,) = yaml.safe_load((COMPOSE / "grafana/dashboards/lightrail.yml").read_text())["providers"]
    assert provider["options"]["path"] == str(Path(home).parent)


def _chooses(variable: dict[str, Any], source: dict[str, Any]) -> bool:
    """Whether a variable of a dashboard stands for sources of this kind; the default one is taken first."""
    return bool(variable["type"] == "datasource" and variable["query"] == source["type"])


def _sources(node: Any) -> list[str]:
    """Every uid of a data source anywhere in a dashboard."""
    if isinstance(node, list):
        return [found for each in node for found in _sources(each)]
    if not isinstance(node, dict):
        return []
    source = node.get("datasource")
    own = [source["uid"]] if isinstance(source, dict) and "uid" in source else []
    return own + [found for each in node.values() for found in _sources(each)]
