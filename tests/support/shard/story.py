"""Stories: what frontends do at a shard, and every frame that it answers with, as a text that anyone reads.

A line that begins with a word is done; the lines below it, which begin with two spaces, are the frames that
the shard sent then, in their order. A line that begins with # explains. WELCOME and PONG are left out.

    f0 comes                             a frontend connects
    f0 opens sender 1 to q OPTIONS       OPTIONS are fields of ProducerOpen and ConsumerOpen: name=value
    f0 opens receiver 2 of q OPTIONS
    f0 sends 1/0 a b c                   on link 1 the batch 0, of three durable messages
    f0 gives 2 credit 10                 up to delivery 10
    f0 settles 2/0+3 accepted            of link 2 three deliveries from 0 on
    f0 closes receiver 2, closes sender 1
    f0 yields 2                          it has sent everything of link 2
    f0 pings                             it is there
    f0 stays silent, f0 answers          whether it answers a YIELD at once
    the disk answers                     everything is on disk, and all answers leave
    5000 ms pass
    the queue q has                      the figures of a queue
"""

import json
from collections.abc import Sequence
from typing import Any

from lightrail.wire.frames import HEADER, Kind, OutcomeCode
from tests.support.shard.scene import Peer, Scene

QUIET = frozenset((Kind.WELCOME, Kind.PONG))


class Recorder(Peer):
    """A frontend that adds each frame it receives to the story.

    Args:
        heard: the beginning of the line of a frame, as `f0 <-`.
    """

    def __init__(self, story: "Story", scene: Scene, heard: str, name: str, boot: int) -> None:
        self._story = story
        self._heard = heard
        super().__init__(scene, name, boot)
        self.yields = False

    def hear(self, parts: Sequence[bytes]) -> None:
        for part in parts:
            before = {link: len(found) for link, found in self.delivered.items()}
            super().hear([part])
            code, _, _, _, link, count, number = HEADER.unpack_from(part)
            if Kind(code) not in QUIET:
                text = self._text(Kind(code), link, count, number, before)
                self._story.add(f"{self._heard} {Kind(code).name} {text}".rstrip())

    def _text(self, kind: Kind, link: int, count: int, number: int, before: dict[int, int]) -> str:
        if kind == Kind.DELIVER:
            new = self.delivered[link][before.get(link, 0) :]
            return f"{link}: " + ", ".join(
                f"{each.number} {each.message.decode()}{' again' if each.attempts else ''}" for each in new
            )
        if kind in (Kind.GONE, Kind.REFUSED):
            _, _, refusal = self.refusals[-1]
            return f"{link}: {refusal.condition}, {refusal.description}"
        if kind == Kind.UNSETTLED and link in self.recovered:
            _, next_number, ranges = self.recovered[link]
            there = ", ".join(f"{first}+{many}" for first, many in ranges) or "nothing"
            return f"{link}: {there}; the next is {next_number}"
        if kind == Kind.RESPONSE:
            return self._story.response(self.answers[number][0])
        if kind in (Kind.ACCEPTED, Kind.SETTLED):
            return f"{link}/{number}+{count}"
        return f"{link}" if link else ""


class Story:
    """One shard and its frontends, which do what lines say."""

    def __init__(self) -> None:
        self.scene = Scene()
        self.lines: list[str] = []
        self.peers: dict[str, Recorder] = {}

    def replay(self, text: str) -> str:
        """The same story with the frames of this run below each of its lines."""
        for line in text.splitlines():
            if line.startswith("  "):
                continue
            self.lines.append(line)
            if line and not line.startswith("#"):
                self.do(line.split())
        return "\n".join(self.lines) + "\n"

    def add(self, line: str) -> None:
        """Something that happened."""
        self.lines.append(f"  {line}")

    def response(self, fields: dict[str, Any]) -> str:
        """The text of the answer to a request."""
        return json.dumps(fields)

    def do(self, words: list[str]) -> None:
        match words:
            case ["the", "disk", "answers"]:
                self.scene.settle_down()
            case [time, "ms", "pass"]:
                self.scene.tick(int(time))
                self.scene.settle_down()
            case ["the", "queue", name, "has"]:
                figures = {key: value for key, value in self.scene.queue(name).items() if value}
                self.add(json.dumps(figures))
            case [who, "comes"]:
                self.peers[who] = peer = Recorder(self, self.scene, f"{who} <-", who, 7 + len(self.peers))
                peer.greet()
            case [who, *what]:
                self.act(self.peers[who], what)

    def act(self, peer: Recorder, what: list[str]) -> None:
        match what:
            case ["opens", "sender", link, "to", queue, *options]:
                peer.produce(int(link), queue, **fields(options))
            case ["opens", "receiver", link, "of", queue, *options]:
                peer.consume(int(link), queue, **fields(options))
            case ["sends", batch, *messages]:
                link, _, number = batch.partition("/")
                peer.send(int(link), int(number), [message.encode() for message in messages])
            case ["gives", link, "credit", limit]:
                peer.credit(int(link), int(limit))
            case ["settles", which, outcome]:
                link, _, numbers = which.partition("/")
                first, _, count = numbers.partition("+")
                peer.settle(int(link), int(first), int(count), OutcomeCode[outcome.upper()])
            case ["closes", "receiver", link]:
                peer.close_consumer(int(link))
            case ["closes", "sender", link]:
                peer.close_producer(int(link))
            case ["yields", link]:
                peer.yielded(int(link))
            case ["pings"]:
                peer.ping()
            case ["stays", "silent"]:
                peer.yields = False
            case ["answers"]:
                peer.yields = True
            case _:
                raise ValueError(f"expected one of the lines of story.py, found {' '.join(what)!r}")


def fields(options: list[str]) -> dict[str, Any]:
    """name=value as JSON, or as text; a name alone is true."""
    found: dict[str, Any] = {}
    for option in options:
        name, is_given, value = option.partition("=")
        try:
            found[name] = json.loads(value) if is_given else True
        except ValueError:
            found[name] = value
    return found
