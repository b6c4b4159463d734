"""Spark on Kubernetes: what the page submits makes the pods it says, the image's command runs executors."""

import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.spark.pods import SparkPods
from tests.support.spark.lakes import Lake
from tests.support.spark.session import ROOT

PAGE = ROOT / "docs" / "operate" / "spark-cluster.md"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def pods(tmp_path: Path, spark_environment: dict[str, str]) -> SparkPods:
    (tmp_path / "pods").mkdir()
    return SparkPods(tmp_path / "pods", spark_environment)


def submitted() -> list[str]:
    """The words of the page's submission to a cluster of Kubernetes."""
    (block,) = (each for each in PAGE.read_text().split("```") if "--deploy-mode cluster" in each)
    _, *words = shlex.split(block.partition("\n")[2].replace("\\\n", " "))
    return words


def test_what_the_page_submits_makes_the_pod_that_it_describes(
    pods: SparkPods, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    words = submitted()
    words[words.index("--master") + 1] = pods.master
    program = Path(sysconfig.get_path("purelib")) / "pyspark" / "bin" / "spark-submit"
    with pods:
        done = subprocess.run(
            [str(program), "--conf", "spark.kubernetes.submission.waitAppCompletion=false", *words],
            cwd=tmp_path,
            env=spark_environment,
            capture_output=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr.decode()[-3_000:]
    (driver,) = pods.of("Pod", "driver")
    (container,) = driver["spec"]["containers"]
    assert driver["spec"]["serviceAccountName"] == "spark"
    assert container["image"] == "registry.example.org/lightrail-analytics:0.1.0"
    assert "command" not in container
    # That of the submitting machine would come along otherwise.
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["PYSPARK_PYTHON"] == "/opt/lightrail/bin/python"
    assert variables["PYSPARK_DRIVER_PYTHON"] == "/opt/lightrail/bin/python"
    assert container["args"][0] == "driver"
    at = container["args"].index("local:///opt/lightrail/main.py")
    assert container["args"][at + 1 : at + 3] == ["capture", "--gateway"]
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert mounts["/archive"]["readOnly"]
    assert {"/lake", "/run/secrets/lightrail"} < set(mounts)
    volumes = {each["name"]: each for each in driver["spec"]["volumes"]}
    archive = volumes[mounts["/archive"]["name"]]
    assert archive["persistentVolumeClaim"] == {"claimName": "archive", "readOnly": True}
    secret = volumes[mounts["/run/secrets/lightrail"]["name"]]
    assert secret["secret"]["secretName"] == "lightrail-operator"
    (properties,) = (
        each["data"]["spark.properties"]
        for each in pods.of("ConfigMap")
        if "spark.properties" in each.get("data", {})
    )
    # What makes the same of executors comes to the driver by its configuration.
    assert "spark.kubernetes.executor.volumes.persistentVolumeClaim.archive.mount.path=/archive" in properties
    assert "spark.kubernetes.executor.secrets.lightrail-operator=/run/secrets/lightrail" in properties


DRIVER = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.appName("pods").getOrCreate()
rows = spark.read.format("lightrail").options(decode="none", columns="queue,lsn").load(sys.argv[1])
print(len(rows.collect()))
"""


def test_executors_in_pods_read_an_archive(
    pods: SparkPods, spark_environment: dict[str, str], tmp_path: Path
) -> None:
    lake = Lake(tmp_path)
    lake.send(60)
    lake.archived()
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "1",
        "spark.kubernetes.container.image": "lightrail-analytics",
        "spark.kubernetes.executor.enableApiWatcher": "false",
        "spark.kubernetes.executor.apiPollingInterval": "1s",
        "spark.kubernetes.allocation.batch.delay": "1s",
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
    }
    (tmp_path / "driver.py").write_text(DRIVER)
    # As a driver's pod is started, with the address that Spark gives it.
    words = ["driver", "--master", pods.master]
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    with pods:
        done = subprocess.run(
            [sys.executable, "-m", "lightrail.spark.pod", *words, "driver.py", str(lake.archive)],
            cwd=tmp_path,
            env={**spark_environment, "SPARK_DRIVER_BIND_ADDRESS": "127.0.0.1"},
            capture_output=True,
            timeout=200,
        )
    logs = "".join(path.read_text()[-2_000:] for path in (tmp_path / "pods").glob("*.log"))
    assert done.returncode == 0, done.stderr.decode()[-3_000:] + logs
    assert done.stdout.decode().split() == [str(lake.rows)]
    (executor,) = pods.of("Pod", "executor")
    assert executor["spec"]["containers"][0]["args"] == ["executor"]
