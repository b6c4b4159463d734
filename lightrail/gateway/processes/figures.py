"""Figures: counters of the processes of this machine, read from their metrics and summed over labels."""

import asyncio
import re
from typing import Final

from lightrail.gateway.processes.health import Health
from lightrail.gateway.processes.members import Member

_SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})? (\S+)", re.MULTILINE)
_PROCESS: Final = re.compile(r',?role="[^"]*",id="[^"]*"\}$')
"""The labels that telemetry/running.py adds to each series."""
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
    """The samples of every process that serves and answers."""
    members = [each for each in health.members.list() if each.ready and each.metrics]
    texts = await asyncio.gather(*(health.scraped(each, "/metrics") for each in members))
    return {each: samples(text) for each, text in zip(members, texts, strict=True) if text is not None}
