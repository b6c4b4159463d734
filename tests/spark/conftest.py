"""One Spark for all tests of the pipeline: it takes ten seconds to start."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.worker.faulthandler.enabled": "true",
    # A failing task is a failing test at once.
    "spark.task.maxFailures": "1",
    # Micro-batches of a test are many and small.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.log.level": "ERROR",
}
"""What tests of the pipeline say to Spark, here and in processes of their own."""


@pytest.fixture(scope="session")
def spark_environment() -> dict[str, str]:
    """The environment in which a driver and its Python workers find this tree."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, spark_environment: dict[str, str]) -> Iterator[Any]:
    """A Spark of two cores in this process, for every test that needs one."""
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(spark_environment)
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)
