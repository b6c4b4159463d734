"""Versions of the wire: what changes has a new number, and the version before is spoken, too."""

import inspect
import json
import pathlib
from dataclasses import fields
from struct import Struct

from lightrail.wire import bodies, frames, versions
from lightrail.wire.bodies import ConsumerOpen, ProducerOpen
from lightrail.wire.frames import HEADER_SIZE, VERSION, Kind, OutcomeCode, frame
from lightrail.wire.versions import NEW_FIELDS, VERSIONS, for_version

FOLDER = pathlib.Path(__file__).parents[2] / "golden" / "wire"
"""`format-vN.txt` is the format of version N as it was released, and is never changed."""
NOT_SENT = {"VERSION", "CLOCK_BEHIND_MS", "EPOCHS", "HEADER_SIZE", "ENQUEUE_ENDS", "DELIVER_ENDS"}


def format_now() -> list[str]:
    """One line for each kind, outcome, flag, layout of columns, and field of a body."""
    lines = [f"kind {each.name} {each.value}" for each in Kind]
    lines += [f"outcome {each.name} {each.value}" for each in OutcomeCode]
    for name, value in vars(frames).items():
        if name.isupper() and name not in NOT_SENT:
            assert isinstance(value, int | Struct), name
            lines.append(f"{name} {value.format if isinstance(value, Struct) else value}")
    for name, body in inspect.getmembers(bodies, inspect.isclass):
        if issubclass(body, bodies._Body) and body is not bodies._Body:
            lines += [f"field {name}.{each.name}" for each in fields(body)]
    return sorted(lines)


def released(version: int) -> list[str]:
    return (FOLDER / f"format-v{version}.txt").read_text().splitlines()


def newest() -> int:
    return max(int(each.stem.removeprefix("format-v")) for each in FOLDER.glob("format-v*.txt"))


def test_a_format_that_changed_has_a_new_number() -> None:
    if newest() == VERSION:
        assert format_now() == released(VERSION), f"raise VERSION: {VERSION} is released"
    assert newest() in (VERSION, VERSION - 1)


def test_a_new_version_has_everything_of_the_one_before() -> None:
    assert set(released(VERSION - 1)) <= set(format_now())


def test_fields_that_the_version_before_does_not_know_are_named_to_be_removed() -> None:
    added = {each for each in format_now() if each.startswith("field ")} - set(released(VERSION - 1))
    assert {each.rpartition(".")[2] for each in added} == set().union(*NEW_FIELDS.values())


def test_a_process_speaks_its_version_and_the_one_before() -> None:
    assert list(VERSIONS) == [VERSION - 1, VERSION]


def test_a_body_of_a_later_version_is_read_without_the_fields_that_are_unknown_here() -> None:
    later = json.dumps({"queue": "q", "later": 1, "first": 3}).encode()
    assert ConsumerOpen.decode(later) == ConsumerOpen("q", first=3)


def test_new_fields_are_not_sent_to_a_process_that_refuses_them() -> None:
    new = {int(Kind.PRODUCER_OPEN): frozenset({"label"})}
    opening = frame(Kind.PRODUCER_OPEN, link=5, body=ProducerOpen("q", label="mine").encode())
    parts = [opening, frame(Kind.PING), frame(Kind.PRODUCER_OPEN)]
    assert for_version(parts, VERSION, new) == parts
    sent = for_version(parts, VERSION - 1, new)
    assert sent[1:] == parts[1:]
    assert sent[0][:HEADER_SIZE] == opening[:HEADER_SIZE]
    assert json.loads(sent[0][HEADER_SIZE:]) == {"queue": "q", "sequences": False, "relay": False}


def test_a_link_without_a_user_is_opened_as_by_the_version_before() -> None:
    opened = [
        frame(kind, link=5, body=body.encode())
        for kind, body in (
            (Kind.PRODUCER_OPEN, ProducerOpen("q", user="ann")),
            (Kind.CONSUMER_OPEN, ConsumerOpen("q", user="ann")),
        )
    ]
    for each, body in zip(
        for_version(opened, VERSION - 1), (ProducerOpen("q"), ConsumerOpen("q")), strict=True
    ):
        assert each[HEADER_SIZE:] == body.encode()


def test_the_log_of_an_unknown_version_names_both_and_what_to_do() -> None:
    text = versions.unknown("shard 3", 2)
    assert "shard 3 has version 2" in text
    assert f"speaks {VERSION - 1} to {VERSION}" in text
    assert "Run the same program on both" in text


if __name__ == "__main__":
    print("\n".join(format_now()))
