"""Patterns of texts.

Patterns over the words of a subject: `*` is one word, `#` any number of them, none included.

The semantics are those of AMQP 0-9-1's topic exchanges (3.1.3.3). Words are separated by `.`; `/` is treated
the same. A match reads each word once: the reachable positions in the pattern are the bits of one number, so
the time is linear in the words for any pattern.

LIKE: `%` is any text, `_` one character; compiled so that a match is linear in the text for any pattern.

The pattern is cut at its `%`. Each piece is searched for after the one before it, and its first match is
final, because the leftmost position is always as good as any other. So no position is tried twice. A piece
without `_`, or with `_` at its ends only, is one `str.find`. A piece that has `_` between its letters is
compared at a few positions of its longest part, and then with one bit for each position of the text
(Baeza-Yates and Gonnet's Shift-And, reversed: the bits are positions of the text, and the loop is over the
pattern).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from lightrail.filters.errors import FilterError, shown
from lightrail.model import limits

LIKE_TEXT_MAX: Final[int] = 64 * 1024
"""Longest value that LIKE matches; a longer one is UNKNOWN. It bounds the time of one match."""
LIKE_WORK_MAX: Final[int] = 2 * 1024 * 1024
"""Characters times weight that all LIKE of one filter may examine per message, about 30 ms:
more than sixteen patterns, or heavy ones, get less than LIKE_TEXT_MAX each."""
_TRIES: Final = 16
"""Positions at which a piece is compared before the search uses bits: most texts need no more."""
_WINDOW: Final = 1_024
"""Characters that are turned into bits at first; doubled while nothing is found in them."""
_BITMAPS: Final = 256
"""Characters whose positions are cached while one piece is searched for."""


class Like:
    """A test of text: True, False, or None (UNKNOWN) for text of more than `characters_max` characters.

    `weight` is the worst cost of one character of text, where 2 is a pattern without `_`; the filter that the
    pattern is part of lowers `characters_max` when many or heavy patterns share it (see `share`).
    """

    __slots__ = ("_test", "characters_max", "weight")

    def __init__(self, test: Callable[[str], bool], weight: int) -> None:
        self._test = test
        self.weight = weight
        self.characters_max = LIKE_TEXT_MAX

    def __call__(self, text: str) -> bool | None:
        return self._test(text) if len(text) <= self.characters_max else None


def share(likes: list[Like]) -> None:
    """Bounds the total cost of all patterns of one filter per message to LIKE_WORK_MAX."""
    weight = sum(like.weight for like in likes)
    if weight:
        most = min(LIKE_TEXT_MAX, LIKE_WORK_MAX // weight)
        for like in likes:
            like.characters_max = most


def compile_like(pattern: str, escape: str | None) -> Like:
    """Compile a pattern.

    Raises ValueError with the expected text if the escape character escapes nothing.
    """
    pieces = _pieces(pattern, escape)
    plain = _plain(pieces)
    if plain is not None:
        return Like(plain, 2)
    made = [_Piece(piece) for piece in pieces]
    middle = [piece for piece in made[1:-1] if piece.length]
    slow = [piece for piece in middle if len(piece.parts) > 1]
    letters = max((piece.letters for piece in slow), default=0)
    longest = max((piece.length for piece in slow), default=0)
    return Like(_in_order(made, middle), 2 + letters // 4 + longest // 128 + len(slow) // 8)


def _pieces(pattern: str, escape: str | None) -> list[list[str | None]]:
    """The characters between the `%`; None stands for `_`. Raises ValueError for an escape of nothing."""
    pieces: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            escaped = next(characters, None)
            if escaped is None or escaped not in ("%", "_", escape):
                raise ValueError("the escape character before '%', '_' or itself")
            pieces[-1].append(escaped)
        elif character == "%":
            pieces.append([])
        else:
            pieces[-1].append(None if character == "_" else character)
    return pieces


def _plain(pieces: list[list[str | None]]) -> Callable[[str], bool] | None:
    """The patterns that a method of str answers: none, a leading, a trailing, or both `%`."""
    if any(None in piece for piece in pieces):
        return None
    texts = ["".join(filter(None, piece)) for piece in pieces]
    if len(texts) == 1:
        return texts[0].__eq__
    if len(texts) == 2 and not texts[1]:
        prefix = texts[0]
        return lambda text: text.startswith(prefix)
    if len(texts) == 2 and not texts[0]:
        suffix = texts[1]
        return lambda text: text.endswith(suffix)
    if len(texts) == 3 and not texts[0] and not texts[2]:
        middle = texts[1]
        return lambda text: middle in text
    return None


def _in_order(pieces: list["_Piece"], middle: list["_Piece"]) -> Callable[[str], bool]:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return lambda text: len(text) == first.length and first.is_at(text, 0)
    least = first.length + last.length + sum(piece.length for piece in middle)

    def test(text: str) -> bool:
        stop = len(text) - last.length
        if len(text) < least or not first.is_at(text, 0) or not last.is_at(text, stop):
            return False
        start = first.length
        for piece in middle:
            found = piece.find(text, start, stop)
            if found < 0:
                return False
            start = found + piece.length
        return True

    return test


class _Piece:
    """A piece between two `%`: a number of characters, some of which are fixed."""

    __slots__ = ("_anchor", "_characters", "length", "letters", "parts")

    def __init__(self, characters: list[str | None]) -> None:
        self._characters = characters
        self.length = len(characters)
        self.letters = len(set(characters) - {None})
        """Number of different fixed characters."""
        self.parts: list[tuple[int, str]] = []
        """(offset, text) of each run of fixed characters."""
        start = 0
        for position in range(self.length + 1):
            if position == self.length or characters[position] is None:
                if position > start:
                    self.parts.append((start, "".join(filter(None, characters[start:position]))))
                start = position + 1
        self._anchor = max(self.parts, key=lambda part: len(part[1]), default=(0, ""))

    def is_at(self, text: str, position: int) -> bool:
        """Whether the piece matches at a position with enough characters after it."""
        return all(text.startswith(part, position + offset) for offset, part in self.parts)

    def find(self, text: str, start: int, stop: int) -> int:
        """The leftmost position in text[start:stop], or -1."""
        if not self.parts:
            return start if stop - start >= self.length else -1
        offset, anchor = self._anchor
        after = self.length - offset - len(anchor)
        position = start + offset
        for _ in range(_TRIES):
            position = text.find(anchor, position, stop - after)
            if position < 0:
                return -1
            if len(self.parts) == 1 or self.is_at(text, position - offset):
                return position - offset
            position += 1
        start = position - offset
        width = max(_WINDOW, 4 * self.length)
        while stop - start >= self.length:
            found = self._find_by_bits(text[start : min(stop, start + width)])
            if found >= 0:
                return start + found
            start += width - self.length + 1
            width *= 2
        return -1

    def _find_by_bits(self, text: str) -> int:
        """The same in a whole text: bit n - 1 - i of a number stands for position i of n."""
        planes = _planes(text)
        bits: dict[str, int] = {}
        characters = self._characters
        positions = -1
        shift = 0
        for character in reversed(characters):
            if character is not None:
                if positions > 0:
                    positions <<= shift
                else:
                    # Positions with enough characters after them for the `_` at the end.
                    positions = (1 << len(text)) - (1 << shift)
                if character not in bits:
                    if len(bits) >= _BITMAPS:
                        bits.clear()
                    bits[character] = _positions_of(character, planes)
                positions &= bits[character]
                if not positions:
                    return -1
                shift = 0
            shift += 1
        positions = positions << shift - 1 & (1 << len(text)) - 1
        return len(text) - positions.bit_length() if positions else -1


def _planes(text: str) -> list[bytes]:
    """The lowest octets of all characters, the next ones, and so on, without those that are all zero."""
    if text.isascii():
        return [text.encode("ascii")]
    octets = text.encode("utf-32-le", "surrogatepass")
    return [octets[0::4], octets[1::4], octets[2::4]]


def _positions_of(character: str, planes: list[bytes]) -> int:
    code = ord(character)
    positions = -1
    if code >> 8 * len(planes):
        return 0
    for plane in planes:
        positions &= int(plane.translate(_table(code & 0xFF)), 2)
        code >>= 8
        if not positions:
            break
    return positions


@lru_cache(maxsize=256)
def _table(octet: int) -> bytes:
    """Makes the digit 1 of an octet and 0 of all others."""
    return b"0" * octet + b"1" + b"0" * (255 - octet)


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
