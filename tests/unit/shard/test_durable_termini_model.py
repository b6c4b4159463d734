"""Durable links under schedules drawn at random: over every kill of the shard each message is stored once.

The client's map has the deliveries that it has not settled; the broker's map must have exactly those of them
that are stored. Any step may be followed by the end of the shard's process, with or without the bytes that it
had not synced.
"""

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.test_termini_crash import Client
from tests.support.shard.fake_files import FakeFiles

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("send", "hear", "receive", "commit", "begin", "attach", "close", "kill", "kill")),
        st.sampled_from(("none", "some", "all")),
    ),
    max_size=40,
)


@given(steps=STEPS, seed=st.integers(0, 1_000), policy=st.sampled_from(("plain", "bounded", "duplicates")))
def test_each_message_is_stored_once_over_every_kill_of_the_shard(
    steps: list[tuple[str, str]], seed: int, policy: str
) -> None:
    client = Client(seed, policy)
    files = FakeFiles()
    client.start(files)
    client.attach()
    for what, keep in steps:
        if what == "kill":
            files = files.after_crash(seed, keep)
            client.start(files)
            client.attach()
        elif what == "close":
            client.peer.close_producer(1)
            client.attach()
        else:
            getattr(client, what)()
    client.check(steps)
