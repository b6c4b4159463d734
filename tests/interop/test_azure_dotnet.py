"""Azure's SDK for .NET: programs in tests/interop/dotnet, each of which prints what it found."""

import pytest

from tests.interop.azure_scene import connection_string
from tests.interop.programs import in_csharp
from tests.support.broker import Broker
from tests.support.namespace import give

# A program may have to wait for csrun to unpack itself.
pytestmark = pytest.mark.timeout(240)


def test_one_client_has_links_requests_and_tokens_for_hundreds_of_entities(guarded: Broker, key: str) -> None:
    count = 260
    for number in range(count):
        give(guarded.data, f"many/{number}", role="queue", lock_duration=60)
    found = in_csharp("ManyEntities", connection_string(guarded, key), "many", str(count))
    assert found.scenarios == {"own": count, "renewed": count, "left": 0}
