"""Writes docs/operate/policies.md from the fields of policies; a test checks that the page is current."""

import json
import sys
from pathlib import Path

from lightrail.model.policy import FIELDS, Field, Role

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "policies.md"
HEAD = """# Policies

Every name that can be written exists already, and its role is `none`. Posting a policy to a name gives it a role;
no name above it has to be made. A policy is a JSON object with `role` and the fields of that role, for example
`{"role": "queue", "lock_duration": 30, "max_delivery_count": 5}`. Unknown fields and values out of range are
refused with the field, the value and what is allowed. Durations are seconds as numbers, sizes are bytes, times
are RFC 3339 in UTC. A policy is kept as it was given; a field that was left out has its default.

| role | what the name does |
|---|---|
| `none` | attach and send answer not-found; a policy of role none says what is so for the names below (`auto_create`, `template`) |
| `metadata` | points elsewhere: HTTP answers 303, AMQP `amqp:link:redirect`, with `reference` |
| `connection-point` | a relay: senders are passed straight through to who listens there; nothing is stored |
| `queue` | holds messages until consumers take them; `NAME/$dlq` has those that failed |
| `router` | gives messages on to its subscribers |

A field changes with `PUT /NAME/!policy` (or `lightrail-admin names set`). It holds within 50 ms, under open links
too, and for every attach and HTTP request that begins after the answer; in a cluster that is so at the process
that answered, and a millisecond or so later at the others.
"""
TAIL = """
## Memory

Whatever the policy, messages flow to disk when a shard has more than its memory mark (`--memory-mark`) of them, and are
read back before they are delivered. So do messages that receivers have not settled, after all others; accepting them
reads nothing. A queue with `groups`, an `order` other than `fifo`, or `delay` keeps an index of its
messages in memory: about 250 bytes for each, 150 more and the length of the key where it has one, 400 for each group. So a
shard with the default mark of 1 GiB holds about two million delayed messages, of whatever size. All such indexes of a shard may take
half of its mark. Then senders to these queues wait; where too many wait, they are refused with
`amqp:resource-limit-exceeded`, and go on when receivers have taken some. Other queues are not concerned. Of a key of
more than 256 characters or bytes, only the beginning decides the order; longer ones are still told apart.

Consumers that reject a message may add annotations to its dead letter: entries of the error's `info` whose names begin with `x-opt-`, but
for `x-opt-dead-letter-`, which are the broker's. Consumers may add message-annotations to a message that they give back (the outcome modified of AMQP). They are
merged as long as all annotations of the message are at most 64 KiB, and it is no larger than `max_message_bytes` and what
is left of `max_bytes`; else it comes back without them, and `lightrail_queue_messages_unannotated_total` counts it.

## Capture

With `capture` all that happens to the messages of a queue, and of its `/$dlq`, is written down in the journal of its
shard: that they came, to whom they were given, and every outcome, for transient messages as well as for durable ones.
The journal's segments are kept in the archive, which [the journal's format](../formats/journal.md) describes. It
begins with the policy, not with the messages that were there before, and goes with the queue to another shard.

What does not change: transient messages are gone after a restart of the shard, and their senders are answered at once, as
long as the disk keeps up. Other than usual, a transient message is refused when the disk is full: nothing comes to a
captured queue that is not written down. Who browses, peeks or looks at figures leaves no trace.

- **Stores other than the journal** (`--store memory` or `sqlite`) keep nothing that could be read. The policy is
  taken, since it does not say where the queue is or will be; a shard with such a store logs a warning for each queue, and
  `GET /NAME/!figures` says `"captured": false`.
- **A router holds no messages** and can't be captured. To have every message that goes into it, subscribe a captured queue
  without a filter. With `{"role": "queue", "capture": true, "max_length": 1, "overflow": "discard_existing"}` all
  are in the archive and at most one waits in the queue. Such a queue counts as a subscriber: with `distribution` `one` it would
  get some of the messages only, and nothing is unroutable any more.
"""
TABLE = "\n| field | values | default | |\n|---|---|---|---|\n"
SECTIONS = (
    ("Every role", frozenset(Role)),
    ("Queues, routers and connection points", frozenset({Role.QUEUE, Role.ROUTER, Role.CONNECTION_POINT})),
    ("Metadata", frozenset({Role.METADATA})),
    ("Queues", frozenset({Role.QUEUE})),
    ("Routers", frozenset({Role.ROUTER})),
)


def row(field: Field) -> str:
    """One line of a table."""
    # 1.0 is no flag, although it equals True; text stands without quotes unless it is empty.
    default = field.default if isinstance(field.default, str) and field.default else json.dumps(field.default)
    values = ", ".join(f"`{each}`" for each in field.choices) or field.allowed
    return f"| `{field.name}` | {values} | `{default}` | {field.doc} |\n"


def page() -> str:
    """The whole page."""
    text = HEAD
    for title, roles in SECTIONS:
        rows = [row(field) for field in FIELDS if field.roles == roles]
        text += f"\n## {title}\n{TABLE}{''.join(rows)}"
    return text + TAIL


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
