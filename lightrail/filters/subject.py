"""Patterns over the words of a subject: `*` is one word, `#` any number of them, none included.

The semantics are those of AMQP 0-9-1's topic exchanges (3.1.3.3). Words are separated by `.`; `/` is treated
the same. A match reads each word once: the reachable positions in the pattern are the bits of one number, so
the time is linear in the words for any pattern.
"""

from collections.abc import Callable, Sequence
from typing import Final

from lightrail.filters.errors import FilterError, shown
from lightrail.model import limits

SUBJECT_WORDS_MAX: Final[int] = 1_024
"""Words of a subject; a longer subject matches no pattern but `#`."""


def split_words(subject: str) -> list[str]:
    """The words of a subject or a pattern; none for empty text.

    Words beyond SUBJECT_WORDS_MAX become one word, so that only `#` matches them.
    """
    return subject.replace("/", ".").split(".", SUBJECT_WORDS_MAX) if subject else []


def has_wildcard(words: Sequence[str]) -> bool:
    return "*" in words or "#" in words


def check_pattern(pattern: str) -> list[str]:
    """The words of a pattern; raises FilterError when it is empty or too long."""
    if not pattern:
        raise FilterError("a subject pattern such as orders.*.created", "empty text")
    size = len(pattern.encode(errors="replace"))
    most = limits.FILTER_EXPRESSION_BYTES
    if size > most:
        raise FilterError(f"a subject pattern of at most {most} bytes", f"{size} bytes")
    words = split_words(pattern)
    most = SUBJECT_WORDS_MAX
    if len(words) > most:
        raise FilterError(f"a subject pattern of at most {most} words", f"{len(words)} words")
    for word in words:
        if len(word) > 1 and ("*" in word or "#" in word):
            raise FilterError("'*' and '#' as whole words of a subject pattern", shown(word))
    return words


def compile_pattern(pattern: str) -> Callable[[Sequence[str]], bool]:
    """A test of the words of a subject (see `split_words`). Raises FilterError."""
    words = check_pattern(pattern)
    if not has_wildcard(words):
        return lambda subject: subject == words
    if words == ["#"]:
        return lambda subject: True
    # State i: the words so far matched i of the pattern's words other than '#'. `stays` are the states with a
    # '#', where any word keeps the state; `moves` are the states that a word advances.
    taken = 0
    stays = 0
    any_word = 0
    moves: dict[str, int] = {}
    for word in words:
        if word == "#":
            stays |= 1 << taken
            continue
        if word == "*":
            any_word |= 1 << taken
        else:
            moves[word] = moves.get(word, 0) | 1 << taken
        taken += 1
    moves = {word: bits | any_word for word, bits in moves.items()}
    accepted = 1 << taken

    def matches(subject: Sequence[str]) -> bool:
        if len(subject) > SUBJECT_WORDS_MAX:
            return False
        states = 1
        for word in subject:
            states = (states & moves.get(word, any_word)) << 1 | states & stays
            if not states:
                return False
        return states & accepted != 0

    return matches
