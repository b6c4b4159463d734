"""What a listing makes of folders that are not there."""

from pathlib import Path

import pytest

from lightrail.spark.http import Access
from lightrail.spark.places.listing import Places
from lightrail.spark.places.sources import PlaceError
from tests.support.fake_gateway import FakeGateway


def test_an_archive_that_no_shard_has_made_yet_is_empty_beside_a_gateway_and_an_error_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tmp_path / "archive")
    with FakeGateway() as gateway:
        gateway.answers["GET", "/!journals"] = (200, {}, {"journals": []})
        assert Places((path,), Access((gateway.url,))).journals() == {}
    assert "found no such folder" in caplog.text
    with pytest.raises(PlaceError, match="found no such folder"):
        Places((path,), None).journals()
