"""Entry of a pod's container: runs `lightrail-spark`, or the driver or executor that Spark created the pod
for.

Spark on Kubernetes starts pods with the arguments `driver ...` or `executor` and environment variables; the
image starts a process from them. The variables are those of Spark 4 (org.apache.spark.deploy.k8s.Constants).
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

EXECUTOR: Final = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION: Final = "SPARK_JAVA_OPT_"
_ARGUMENTS: Final = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Options of an executor, and the variables with their values."""


def command(words: Sequence[str], environ: Mapping[str, str], home: str, java: str) -> list[str]:
    """The command for the arguments of a container.

    Args:
        home: the folder of Spark, with jars/ and bin/.
        java: the path of the program.

    Raises:
        KeyError: a variable that Spark sets is missing.
    """
    if words[:1] == ["driver"]:
        address = environ["SPARK_DRIVER_BIND_ADDRESS"]
        return [
            f"{home}/bin/spark-submit",
            *("--conf", f"spark.driver.bindAddress={address}"),
            *("--conf", f"spark.executorEnv.SPARK_DRIVER_POD_IP={address}"),
            *("--deploy-mode", "client"),
            *words[1:],
        ]
    if words[:1] == ["executor"]:
        numbers = sorted(int(name[len(_OPTION) :]) for name in environ if name.startswith(_OPTION))
        memory = environ["SPARK_EXECUTOR_MEMORY"]
        paths = [environ.get("SPARK_CONF_DIR"), environ.get("SPARK_CLASSPATH"), f"{home}/jars/*", os.getcwd()]
        return [
            java,
            *(environ[f"{_OPTION}{number}"] for number in numbers),
            f"-Xms{memory}",
            f"-Xmx{memory}",
            *("-cp", ":".join(each for each in paths if each)),
            EXECUTOR,
            *(word for name, variable in _ARGUMENTS.items() for word in (name, environ[variable])),
        ]
    # -P: the container's working folder is for data, not for modules.
    return [sys.executable, "-P", "-m", "lightrail.spark.main", *words]


def main() -> None:
    """Replaces this process by the command's."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    home = os.environ.setdefault("SPARK_HOME", os.path.dirname(spec.origin))
    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if "JAVA_HOME" in os.environ else None)
    try:
        words = command(sys.argv[1:], os.environ, home, java or "java")
    except KeyError as error:
        sys.exit(f"expected the variable {error} as Spark sets it in its pods, found none")
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
