"""Sorted names: pages in the order of a tree, whatever changes in between."""

from hypothesis import given
from hypothesis import strategies as st

from lightrail.namespace.directory import SINGLY_MAX, SortedNames
from tests.support import work

NAMES = st.lists(st.sampled_from(["a", "b", "a!", "é"]), min_size=1, max_size=3).map("/".join)


def expected(names: set[str], prefix: str) -> list[str]:
    found = [name for name in names if not prefix or name == prefix or name.startswith(prefix + "/")]
    return sorted(found, key=lambda name: name.split("/"))


@given(
    st.sets(NAMES, max_size=20),
    st.lists(st.tuples(NAMES, st.booleans()), max_size=10),
    st.just("") | NAMES,
    st.integers(1, 4),
)
def test_pages_have_all_names_in_the_order_of_a_tree(
    names: set[str], changes: list[tuple[str, bool]], prefix: str, count: int
) -> None:
    listed = SortedNames(lambda: names)
    assert listed.count("") == len(names)
    for name, exists in changes:
        (names.add if exists else names.discard)(name)
        listed.note(name, exists)
    found: list[str] = []
    while page := listed.page(prefix, found[-1] if found else "", count):
        assert len(page) <= count
        found += page
    assert found == expected(names, prefix)
    assert listed.count(prefix) == len(found)


def test_many_changes_are_merged_at_once() -> None:
    names = {f"n/{number}" for number in range(500)}
    listed = SortedNames(lambda: names)
    assert listed.count("n") == 500
    for number in range(0, 4 * SINGLY_MAX, 2):
        names.discard(f"n/{number}")
        listed.note(f"n/{number}", False)
        names.add(f"m/{number}")
        listed.note(f"m/{number}", True)
    assert listed.page("", "", 1_000) == expected(names, "")


def test_what_is_below_a_name_can_be_skipped() -> None:
    listed = SortedNames(lambda: ["a", "a/b", "a/b/c", "a!", "b"])
    assert listed.page("", "a", 9, skips_below=True) == ["a!", "b"]
    assert listed.page("a", "a/b", 9, skips_below=True) == []
    assert listed.page("", "a", 9) == ["a/b", "a/b/c", "a!", "b"]


def test_a_page_costs_the_same_among_many_names() -> None:
    def cost(count: int) -> int:
        listed = SortedNames(lambda: [f"n/{number:06}" for number in range(count)])
        listed.page("", "", 1)
        listed.note("m", True)
        return work.lines(lambda: listed.page("n", "n/000005", 10))

    assert cost(5_000) < cost(50) + 50
