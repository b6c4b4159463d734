"""Shuffles of `analyse`: as many partitions as what is read needs, and those that somebody asked for."""

from types import SimpleNamespace
from typing import Any

import pytest

from lightrail.spark.jobs.analyse import SHUFFLE_PARTITIONS, fit_shuffles


def fitted(read: int, cores: int = 2, asked: dict[str, str] | None = None) -> dict[str, Any]:
    """What is set for input of `read` partitions."""
    done: dict[str, Any] = {}
    context = SimpleNamespace(
        getConf=lambda: SimpleNamespace(contains=lambda name: name in (asked or {})), defaultParallelism=cores
    )
    spark: Any = SimpleNamespace(sparkContext=context, conf=SimpleNamespace(set=done.__setitem__))
    frame: Any = SimpleNamespace(rdd=SimpleNamespace(getNumPartitions=lambda: read))
    fit_shuffles(spark, frame)
    return done


@pytest.mark.parametrize(("read", "cores", "partitions"), [(1, 2, 2), (7, 2, 7), (3, 16, 16), (900, 4, 200)])
def test_partitions_follow_what_is_read(read: int, cores: int, partitions: int) -> None:
    assert fitted(read, cores) == {SHUFFLE_PARTITIONS: partitions}


def test_what_somebody_asked_for_is_obeyed() -> None:
    assert fitted(7, asked={SHUFFLE_PARTITIONS: "50"}) == {}
