"""Health: whether the processes of this machine serve, and the metrics of all of them as one.

Figures: counters of the processes of this machine, read from their metrics and summed over labels.
"""

import asyncio
import html
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from importlib.metadata import version
from typing import Any, Final

from aiohttp import web

from lightrail.gateway.http_client import FAILURES, HttpClient
from lightrail.gateway.processes.members import FAMILIES, Member, Members, Presence
from lightrail.model.clock import wall_ms
from lightrail.telemetry.exposition import TEXT
from lightrail.telemetry.metrics import AnyFamily, merge
from lightrail.telemetry.running import Running

SCRAPE_TIME_MAX_S: Final = 5.0
"""A process that does not answer in this time is left out of /metrics; Prometheus waits 10 s."""
SCRAPE_TIME_HEADER: Final = "X-Prometheus-Scrape-Timeout-Seconds"
"""Seconds that Prometheus waits for this answer."""
SCRAPE_TIME_PART: Final = 0.8
"""Share of it for the other processes: one that does not answer must not cost the metrics of all."""
DETAILED: Final = "/metrics/detailed"
READY_TIME_MAX_S: Final = 1.0
"""A process that does not answer a probe in this time is not serving."""
SCRAPE_BYTES_MAX: Final = 64 * 1024 * 1024

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Health:
    """Answers about the processes in `members`, open to every caller.

    Metrics that name queues are the exception: `Gateway` serves them to managers only.
    """

    def __init__(
        self, id: int, members: Members, not_ready: Callable[[], str | None], running: Running | None = None
    ) -> None:
        self.members = members
        self.running = running = running or Running("gateway", lambda: id)
        self.presence: Presence | None = None
        """Presence of shards; None before the gateway has a map of the shards."""
        running.ready = self._not_ready = not_ready
        running.show(FAMILIES, members)
        self.listing_key = ""
        """Authorization header for requests to other processes that name queues."""
        self._http = HttpClient()

    def show(self, families: Iterable[AnyFamily[Any]], counts: object) -> None:
        """Adds families of this process to /metrics."""
        self.running.show(families, counts)

    def routes(self) -> list[web.RouteDef]:
        """Routes of the requests that are served here."""
        return [
            web.get("/healthz", self._alive),
            web.get("/readyz", self._ready),
            web.get("/metrics", self._merged("/metrics")),
            web.get(DETAILED, self._merged(DETAILED)),
        ]

    async def close(self, _: web.Application) -> None:
        await self._http.close()

    async def page(self, request: web.Request) -> web.Response:
        rows = "".join(
            f"<li>{html.escape(member.name)}: {'serving' if member.ready else 'not serving'}</li>"
            for member in self.members.list()
        )
        return web.Response(
            content_type="text/html",
            text=f"<!doctype html><html lang=en><meta charset=utf-8><title>LightRail</title>"
            f"<h1>LightRail {version('lightrail')}</h1><p>An AMQP 1.0 broker. This is its gateway: "
            f"<a href=/readyz>/readyz</a>, <a href=/healthz>/healthz</a>, <a href=/metrics>/metrics</a>, "
            f"<a href=/metrics/detailed>/metrics/detailed</a> (per queue, <code>?queue=PREFIX</code>).</p>"
            f"<ul>{rows}</ul></html>\n",
        )

    async def _alive(self, _: web.Request) -> web.Response:
        return web.Response(text="alive\n")

    async def _ready(self, request: web.Request) -> web.Response:
        """200 if every process serves; 503 with a line for each that does not.

        With ?self the answer is about this gateway alone, for load balancers: with one shard of many down it
        serves the queues of all others.
        """
        own = self._not_ready()
        alone = "self" in request.query
        reasons = ([own] if own else []) if alone else await self.reasons()
        text = "".join(f"{reason}\n" for reason in reasons) or "ready\n"
        return web.Response(text=text, status=503 if reasons else 200)

    async def reasons(self, seconds: float = READY_TIME_MAX_S) -> list[str]:
        """A line for each process that does not serve; empty if all serve.

        Args:
            seconds: what a process has to answer. A probe goes on to the next machine; a person who looks
                at a busy machine waits longer rather than see a process that serves listed as silent.
        """
        own = self._not_ready()
        members = self.members.list()
        answers = await asyncio.gather(*(self._reason(member, seconds) for member in members))
        reasons = [own] if own else []
        named = {m.name: reason for m, reason in zip(members, answers, strict=True) if reason}
        if self.presence is not None:
            for member in members:
                waiting = self.presence.waiting(member.id) if member.role == "shard" else ""
                if member.name in named and waiting:
                    named[member.name] += f"; {waiting}"
            listed = {member.name for member in members}
            for shard, reason in self.presence.unregistered():
                if f"shard-{shard}" not in listed:
                    named[f"shard-{shard}"] = reason
        return reasons + [f"{name}: {reason}" for name, reason in named.items()]

    async def _reason(self, member: Member, seconds: float) -> str | None:
        """Why a process does not serve, by its own /readyz; None if it serves."""
        if not member.ready:
            return "not serving"
        if member.metrics is None:
            return None
        try:
            status, text = await self._get(member, "/readyz", seconds)
        except FAILURES as error:
            return f"no answer ({type(error).__name__})"
        return None if status == 200 else text.strip()[:200]

    def _merged(self, path: str) -> Handler:
        async def handler(request: web.Request) -> web.Response:
            query = f"?{request.query_string}" if request.query_string else ""
            members = [member for member in self.members.list() if member.ready and member.metrics]
            seconds = _patience(request.headers.get(SCRAPE_TIME_HEADER))
            texts = await asyncio.gather(*(self.scraped(member, path + query, seconds) for member in members))
            own = self.running.text() if path == "/metrics" else ""
            # The series of every process have its labels already.
            merged = merge(({}, text) for text in (own, *texts) if text is not None)
            return web.Response(body=merged.encode(), headers={"Content-Type": TEXT})

        return handler

    async def scraped(self, member: Member, path: str, seconds: float = SCRAPE_TIME_MAX_S) -> str | None:
        """A page of a process's own metrics, or None without an answer in time."""
        try:
            status, text = await self._get(member, path, min(seconds, SCRAPE_TIME_MAX_S))
        except FAILURES as error:
            log.warning("no metrics from %s: %s", member.name, type(error).__name__)
            self.members.scrapes_failed += 1
            return None
        return text if status == 200 else None

    async def _get(self, member: Member, path: str, seconds: float) -> tuple[int, str]:
        headers = {"Authorization": self.listing_key} if path.startswith(DETAILED) else {}
        url = f"http://{member.metrics}{path}"
        status, _, body = await self._http.request("GET", url, headers, None, seconds, SCRAPE_BYTES_MAX)
        return status, body.decode(errors="replace")


def _patience(header: str | None) -> float:
    """Seconds that other processes have to answer, by the scraper's own time-out."""
    try:
        seconds = float(header) if header is not None else SCRAPE_TIME_MAX_S
    except ValueError:
        return SCRAPE_TIME_MAX_S
    return seconds * SCRAPE_TIME_PART if seconds > 0 else SCRAPE_TIME_MAX_S


_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)", re.MULTILINE)
_PROCESS: Final = re.compile(r',?role="[^"]*",id="[^"]*"\}$')
"""The labels that telemetry/running.py adds to each series."""
CLOCK: Final = "lightrail_clock_seconds"
CLOCK_AHEAD: Final = "ahead of the clock of this gateway"
"""Key of a figure that is no sample: by how many seconds the clock of a process is ahead of this one's."""
STORE_TOTAL: Final = 'lightrail_store_bytes{kind="total"}'

Samples = dict[str, float]
"""Values by name, summed over all labels, and by name with labels, without those of the process."""


def samples(text: str) -> Samples:
    """The samples of one process's metrics in the text format of Prometheus."""
    found: Samples = {}
    for name, labels, number in _SAMPLE.findall(text):
        try:
            value = float(number)
        except ValueError:
            continue
        found[name] = found.get(name, 0.0) + value
        own = _PROCESS.sub("}", labels)
        if len(own) > 2:
            found[name + own] = value
    return found


async def read(health: Health) -> dict[Member, Samples]:
    """The samples of every process that serves and answers, with its CLOCK_AHEAD."""
    members = [each for each in health.members.list() if each.ready and each.metrics]
    found = await asyncio.gather(*(_read(health, each) for each in members))
    return {each: samples for each, samples in zip(members, found, strict=True) if samples is not None}


async def _read(health: Health, member: Member) -> Samples | None:
    asked_ms = wall_ms()
    text = await health.scraped(member, "/metrics")
    if text is None:
        return None
    found = samples(text)
    clock_s = found.get(CLOCK)
    if clock_s is not None:
        found[CLOCK_AHEAD] = ahead_s(clock_s, asked_ms / 1000, wall_ms() / 1000)
    return found


def ahead_s(clock_s: float, asked_s: float, answered_s: float) -> float:
    """By how much another clock is certainly ahead of this one, which showed these times before the other one
    was read and after it; negative for one that is behind, 0 if the two may agree."""
    return clock_s - min(max(clock_s, asked_s), answered_s)
