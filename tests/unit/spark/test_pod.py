"""What the container of a pod runs, by the arguments and variables that Spark gives it."""

import subprocess
import sys

import pytest

from lightrail.spark.pod import EXECUTOR, command
from tests.support.spark.session import ROOT

POD = {
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@driver:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_EXECUTOR_MEMORY": "1024m",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.3",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "capture-exec-3",
    "SPARK_CONF_DIR": "/opt/spark/conf",
    **{f"SPARK_JAVA_OPT_{number}": f"-Dnumber={number} and more" for number in range(11)},
}


def test_an_executor_has_its_options_in_order_and_whole() -> None:
    words = command(["executor"], POD, "/spark", "/java")
    assert words[:12] == ["/java", *(f"-Dnumber={number} and more" for number in range(11))]
    assert words[12:15] == ["-Xms1024m", "-Xmx1024m", "-cp"]
    assert words[15].split(":")[:2] == ["/opt/spark/conf", "/spark/jars/*"]
    given = dict(zip(words[17::2], words[18::2], strict=True))
    assert words[16] == EXECUTOR
    assert given["--driver-url"] == POD["SPARK_DRIVER_URL"]
    assert given["--podName"] == "capture-exec-3"
    assert given["--resourceProfileId"] == "0"


def test_a_driver_is_a_submission_in_its_own_pod() -> None:
    words = command(
        ["driver", "--class", "C", "app"], {"SPARK_DRIVER_BIND_ADDRESS": "10.0.0.2"}, "/spark", ""
    )
    assert words[0] == "/spark/bin/spark-submit"
    assert "spark.driver.bindAddress=10.0.0.2" in words
    assert words[-5:] == ["--deploy-mode", "client", "--class", "C", "app"]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["executor"], 1, "expected the variable 'SPARK_EXECUTOR_MEMORY' as Spark sets it"),
        (["verify", "/none/such"], 1, "lightrail-spark verify: expected a Delta table"),
    ],
)
def test_other_words_are_those_of_the_command_and_what_is_missing_is_named(
    words: list[str], status: int, text: str
) -> None:
    program = [sys.executable, "-P", "-m", "lightrail.spark.pod", *words]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(program, capture_output=True, env=environ, timeout=60, text=True)
    assert done.returncode == status
    assert text in done.stderr
