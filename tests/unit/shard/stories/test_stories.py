"""Stories of shards: each file beside this one is a law, in what frontends do and what shards answer.

`LIGHTRAIL_STORIES=write` writes what happened in this run; the difference shows what a change changes.
"""

import os
from pathlib import Path

import pytest

from tests.support.shard.shards_story import ShardsStory
from tests.support.shard.story import Story

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_happens_as_it_is_written(path: Path) -> None:
    written = path.read_text()
    happened = (ShardsStory if "\nthere " in written else Story)().replay(written)
    if os.environ.get("LIGHTRAIL_STORIES") == "write":
        path.write_text(happened)
    assert happened == written


def test_there_are_stories_and_each_says_its_law_first() -> None:
    assert len(STORIES) >= 10
    for path in STORIES:
        assert path.read_text().startswith("# "), path.name


@pytest.mark.parametrize("lines", ["f0 comes\nf0 dances\n", "there is 1 shard\nf0@0 comes\nf0@0 dances\n"])
def test_a_line_that_nobody_understands_is_an_error(lines: str) -> None:
    with pytest.raises(ValueError, match="expected one of the lines"):
        (ShardsStory if lines.startswith("there ") else Story)().replay(lines)
