"""Durable receivers under schedules drawn at random: over every kill of the shard each message comes once.

Any step may be followed by the end of the shard's process, with or without the bytes that it had not synced.
"""

from hypothesis import given
from hypothesis import strategies as st

from tests.simulation.test_receivers_crash import Client
from tests.support.shard.fake_files import FakeFiles

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                *("send", "credit", "credit", "settle", "settle", "release", "other", "commit", "begin"),
                *("close", "attach", "kill", "kill"),
            )
        ),
        st.sampled_from(("none", "some", "all")),
    ),
    max_size=40,
)


@given(steps=STEPS, seed=st.integers(0, 1_000), policy=st.sampled_from(("plain", "groups", "priorities")))
def test_each_message_comes_once_over_every_kill_of_the_shard(
    steps: list[tuple[str, str]], seed: int, policy: str
) -> None:
    client = Client(seed, policy)
    files = FakeFiles()
    client.start(files)
    client.attach()
    for what, keep in steps:
        if what == "kill":
            client.read()
            files = files.after_crash(seed, keep)
            client.start(files)
        else:
            getattr(client, what)()
    client.check()
