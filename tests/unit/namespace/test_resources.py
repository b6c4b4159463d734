"""Resources: what the signed text of a signature opens."""

import pytest

from lightrail.namespace.resources import Resource, resource_of


@pytest.mark.parametrize(
    ("resource", "path", "exact"),
    [
        ("sb://host/a/b", "a/b", False),
        ("AMQPS://127.0.0.1:5671/a/", "a", False),
        ("https://[::1]:8080/a?api-version=1", "a", True),
        ("sb://host", "", False),
        ("http://host/", "", False),
        ("sb://host/a/$management", "a", False),
        ("sb://host/a/$DeadLetterQueue", "a/$dlq", False),
        ("sb://host/a%20b", "a b", False),
        ("sb://host/a/!messages", "a/!messages", False),
        ("host/a", "host/a", False),
        ("host:5671", "host:5671", False),
        ("/a/b", "a/b", False),
        ("a?b", "a?b", False),
        ("other://host/a", "other://host/a", False),
        ("//host/a", "host/a", False),
    ],
)
def test_what_a_resource_names_is_in_its_text(resource: str, path: str, exact: bool) -> None:
    assert resource_of(resource) == Resource(path, exact)


def test_a_resource_bounds_names_unless_it_is_everything_or_a_path_of_the_broker() -> None:
    bound = ["a", "a/!messages", "$temporary/key"]
    assert [each for each in (*bound, "", "!status", "$Resources/queues") if Resource(each).is_name] == bound
