"""Writes docs/operate/policies.md from the fields of policies; a test checks that the page is current."""

import json
import sys
from pathlib import Path

from lightrail.model.policy import Role
from lightrail.model.policy_field import Field
from lightrail.model.policy_fields import FIELDS

PAGE = Path(__file__).parents[1] / "docs" / "operate" / "policies.md"
HEAD = """# Policies

Every valid name exists already, with the role `none`. Posting a policy to a name gives it a role;
the names above it need not be created. A policy is a JSON object with `role` and the fields of that role, for example
`{"role": "queue", "lock_duration": 30, "max_delivery_count": 5}`. Unknown fields and values out of range are
refused with the field, the value and what is allowed. Durations are seconds as numbers, sizes are bytes, times
are RFC 3339 in UTC. A policy is stored as it was posted; a field that was left out has its default.

| role | meaning |
|---|---|
| `none` | attach and send answer not-found; a policy of role none sets fields for the names below it (`auto_create`, `template`) |
| `metadata` | a redirection: HTTP answers 303, AMQP `amqp:link:redirect`, with `reference` |
| `connection-point` | a relay: messages are passed straight from senders to listeners; nothing is stored |
| `queue` | stores messages until consumers settle them; failed messages are in `NAME/$dlq` |
| `router` | forwards messages to its subscribers |

A field changes with `PUT /NAME/!policy` (or `lightrail-admin names set`). The change takes effect within 50 ms, for open links
too, and for every attach and HTTP request that begins after the answer; in a cluster that is true at the process
that answered, and about a millisecond later at the others.
"""
TAIL = """
## Memory

With every policy, messages are spilled to disk when they exceed the memory mark of their shard (`--memory-mark`), and are
read back before they are delivered. Besides, the C library keeps up to 32 MiB of freed memory of each process for the next messages
([ADR 36](../adr/0036-large-messages-without-copies.md)). Unsettled deliveries are spilled after all other messages; accepting them
reads nothing. What stays in memory of unsettled and deferred messages, up to 400 bytes for each, may use a fourth of the mark;
beyond that, consumers with many of them get no more until they have settled some. A queue with `groups`, an `order` other than `fifo`, or `delay` keeps an index of its
messages in memory: about 250 bytes for each, 150 more and the length of the key where it has one, 400 for each group. So a
shard with the default mark of 1 GiB holds about two million delayed messages, of whatever size. All such indexes of a shard may
use half of its mark. Beyond that, senders to these queues wait; when too many messages wait, further ones are refused with
`amqp:resource-limit-exceeded` until receivers have settled some. Other queues are not affected. Of a key of more than 256
characters or bytes, only the beginning decides the order; longer keys are still distinct.

The message-ids in the windows of all queues with a `duplicate_window`, 170 bytes for each, may use a fourth of the mark, and those of one queue
are 100,000 at most. Beyond that, the queues with most of them forget the oldest before the end of their window, with a warning in the log of
the shard. Receivers, 1,500 bytes for each and 120 for each character of a selector, may use a fourth of the mark, too, which users
[share](running.md#what-users-share); a receiver beyond the share of its user is refused with `amqp:resource-limit-exceeded` ([ADR 54](../adr/0054-what-counts-towards-the-mark.md)).
So is the creation of a queue when the queues of the shard use half of the mark, 4,340 bytes for each.

Of the messages that wait for their `retry_delay`, as many wait by themselves as fit into that fourth for unsettled ones. The next ones wait less, or more:
they are ready at once, and consumers of their queue get nothing until some of the others have waited.

Consumers that reject a message may add annotations to its dead letter: entries of the error's `info` whose names begin with
`x-opt-`, except `x-opt-dead-letter-`, which are the broker's. Consumers may add message-annotations to a message that they return
with the outcome modified. The annotations are merged if all annotations of the message are at most 64 KiB, and the message fits
`max_message_bytes` and the rest of `max_bytes`; otherwise it returns without them, and
`lightrail_queue_messages_unannotated_total` counts it.

## Retries

With `retry_delay` a message whose delivery failed waits before it is delivered again: `retry_delay` after the first failure, after each
further one `retry_growth` times as long, at most `retry_delay_max`. `{"role": "queue", "retry_delay": 1, "retry_growth": 2, "retry_delay_max": 60}` waits 1, 2, 4, … 60 seconds. What
counts as a failed delivery waits: the outcome modified with delivery-failed, a crash of the consumer, and a lock that ends.
Released messages do not wait, rejected ones are dead letters at once, and so is a message with the failure that reaches `max_delivery_count`.

Later messages pass. Only a message of a group keeps its group waiting, in a queue with `groups`, so that the group stays in order. Waiting messages
count in `delayed`, in the figures and in `lightrail_queue_messages{state="delayed"}`, and against `max_length` and `max_bytes`; `lightrail-admin peek` shows their time.
They expire by their time to live, and a purge removes them. The time survives a restart and a move. After a change of the policy
no message waits longer than the new one says; without `retry_delay` all are ready.

In a queue with `delay`, a consumer may name another time in the annotations of its outcome; that one counts.

The same holds for the dead letters of the queue, in `NAME/$dlq`, where nothing but accepted removes them. If the queue has no `retry_delay`, a dead
letter that fails waits 10 ms, after each further failure twice as long, at most 5 seconds, so that a consumer that always fails does not keep
the broker busy. A transfer, a redrive or a browser gets the other dead letters, and those that wait when their wait has ended.
([ADR 53](../adr/0053-waiting-after-a-failed-delivery.md))

## Capture

With `capture` every event of the messages of a queue, and of its `/$dlq`, is recorded in the journal of its
shard: enqueued, delivered with the consumer, and every outcome, for transient messages as well as for durable ones.
The journal's segments are kept in the archive, which [the journal's format](../formats/journal.md) describes. Capture
begins with the policy, not with the messages that were enqueued before, and continues when the queue moves to another shard.

Transient messages are still lost at a restart of the shard, and their senders are still answered at once, as
long as the disk keeps up. But a transient message is refused when the disk is full: a captured queue stores no message
without a record. Browsing, peeking and reading figures are not recorded.

- **Stores other than the journal** (`--store memory` or `sqlite`) record no events. The policy is
  accepted, because it does not name a shard; a shard with such a store logs a warning for each queue, and
  `GET /NAME/!figures` has `"captured": false`.
- **A router holds no messages** and can't be captured. To capture every message of a router, subscribe a captured queue
  without a filter. With `{"role": "queue", "capture": true, "max_length": 1, "overflow": "discard_existing"}` all messages
  are in the archive and at most one waits in the queue. Such a queue counts as a subscriber: with `distribution` `one` it
  gets only some of the messages, and no message is unroutable any more.
"""
TABLE = "\n| field | values | default | |\n|---|---|---|---|\n"
SECTIONS = (
    ("Every role", frozenset(Role)),
    ("Queues, routers and connection points", frozenset({Role.QUEUE, Role.ROUTER, Role.CONNECTION_POINT})),
    ("Metadata", frozenset({Role.METADATA})),
    ("Queues", frozenset({Role.QUEUE})),
    ("Queues and routers", frozenset({Role.QUEUE, Role.ROUTER})),
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
