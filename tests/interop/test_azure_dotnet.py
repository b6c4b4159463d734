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


def test_requests_have_as_many_messages_as_the_client_wants_and_refusals_say_why(
    guarded: Broker, key: str
) -> None:
    give(guarded.data, "requests", role="queue", delay=True)
    give(guarded.data, "requests/twice", role="queue", delay=True, duplicate_window=60)
    give(guarded.data, "requests/small", role="queue", delay=True, max_message_bytes=65_536)
    found = in_csharp(
        "Requests", connection_string(guarded, key), "requests", "requests/twice", "requests/small"
    )
    assert found.scenarios == {
        "numbers": 1_200,
        "cancel": "none",
        "again": "MessageNotFound",
        "large": "MessageSizeExceeded",
        "after": "none",
        "deferred": 600,
        "equal": True,
        "whole": "MessageSizeExceeded",
        "left": 0,
    }
