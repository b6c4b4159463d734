"""One Spark for all tests of the pipeline: it takes ten seconds to start."""

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.spark.s3_server import environment
from tests.support.spark.session import ROOT, SETTINGS


@pytest.fixture(scope="session")
def store_socket() -> Iterator[socket.socket]:
    """Where the object store will be that a test starts: Spark is told when it starts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener


@pytest.fixture(scope="session")
def spark_environment(store_socket: socket.socket) -> dict[str, str]:
    """The environment in which a driver and its Python workers find this tree."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        **environment(store_socket),
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
