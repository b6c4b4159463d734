"""Slugs: no two queues share a folder, and every folder can be made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightrail.spark.lake.files import SLUG_BYTES_MAX, queue_of, slug_of

pytest.importorskip("pyarrow")


@pytest.mark.parametrize(
    ("queue", "slug"),
    [
        ("orders", "orders"),
        ("myapp/orders", "myapp_2forders"),
        ("a_b/$dlq", "a_5fb_2f_24dlq"),
        ("ä=%", "_c3_a4_3d_25"),
    ],
)
def test_a_slug_is_read_back(queue: str, slug: str) -> None:
    assert slug_of(queue) == slug
    assert queue_of(slug) == queue


@given(st.text(min_size=1))
def test_a_slug_is_short_and_plain_and_the_name_again(queue: str) -> None:
    slug = slug_of(queue)
    assert len(slug) <= SLUG_BYTES_MAX
    assert all(char.isascii() and (char.isalnum() or char in "-._") for char in slug)
    assert queue_of(slug) in (queue, None)


def test_long_names_that_differ_at_their_end_have_different_slugs() -> None:
    one, other = "x" * 1000 + "a", "x" * 1000 + "b"
    assert slug_of(one) != slug_of(other)
    assert queue_of(slug_of(one)) is None
