"""The story of routers and queues, from the first name to the last message, as curl would tell it."""

import re
import subprocess
from pathlib import Path

from tests.support.broker import ROOT, Broker
from tests.support.http_client import Http

JOBS = 12


def test_audit_beside_load_balancing(http: Http) -> None:
    # All names exist; a policy posted to one gives it a role. The path becomes the tail of the queue, and two
    # locations come with it: the policy's and the head's.
    audit = http("POST", "/story/audit", {"role": "queue", "lock_duration": 2})
    assert audit.status == 201
    assert audit.headers["location"] == "/story/audit/!policy"
    assert '</story/audit/!head>; rel="head"' in audit.headers["link"]

    # A router that sends each job to all of its subscribers ...
    jobs = http("POST", "/story/jobs", {"role": "router", "distribution": "all"})
    assert (jobs.status, jobs.headers["location"]) == (201, "/story/jobs/!policy")
    # ... and one that sends each to one of them, chosen at random: that balances the load.
    assert http("POST", "/story/balance", {"role": "router", "distribution": "one"}).status == 201
    for worker in range(3):
        assert http("POST", f"/story/worker/{worker}", {"role": "queue"}).status == 201
        target = {"target": f"story/worker/{worker}"}
        assert http("POST", "/story/balance/!subscriptions", target).status == 201
    # The audit gets every job, and so does the load balancer: a queue and a router subscribe to a router.
    for name in ("story/audit", "story/balance"):
        assert http("POST", "/story/jobs/!subscriptions", {"target": name}).status == 201
    # What would go round for ever is refused.
    assert http("POST", "/story/balance/!subscriptions", {"target": "story/jobs"}).status == 422

    # Jobs go to the name of the router, and are accepted when everybody who has to have them does.
    for job in range(JOBS):
        assert http("POST", "/story/jobs", f"job {job}").status == 201

    # Each job is with exactly one worker, who takes it off its queue.
    done = []
    for worker in range(3):
        while (taken := http("DELETE", f"/story/worker/{worker}/!head")).status == 200:
            done.append(taken.body.decode())
    assert sorted(done) == sorted(f"job {job}" for job in range(JOBS))

    # The audit takes its copy in two steps: it locks the message at the head ...
    first = http("POST", "/story/audit/!head?timeout=10")
    assert (first.status, first.body) == (201, b"job 0")
    # ... which hides it from everybody else, who get the next one ...
    second = http("POST", "/story/audit/!head?timeout=10")
    assert second.body == b"job 1"
    # ... fumbles it, and does not answer in time: the message pops back into view, ahead of the others.
    again = http("POST", "/story/audit/!head?timeout=10")
    while again.body != b"job 0":
        assert again.status == 201
        again = http("POST", "/story/audit/!head?timeout=10")
    assert again.properties["DeliveryCount"] >= 1
    assert http("DELETE", first.headers["location"]).status == 410
    # The second time it is on the audit's disk: it deletes the lock, and that removes the message.
    assert http("DELETE", again.headers["location"]).status == 200

    # The rest is audited the short way. Nothing is lost, and nothing is left.
    audited = {"job 0"}
    while len(audited) < JOBS:
        taken = http("DELETE", "/story/audit/!head?timeout=10")
        assert taken.status == 200
        audited.add(taken.body.decode())
    assert audited == {f"job {job}" for job in range(JOBS)}
    assert http("DELETE", "/story/audit/!head").status == 204
    assert http("GET", "/story/audit/!figures").json()["ready"] == 0


def test_the_readme_tells_it_with_curl(broker: Broker, http: Http, tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text().partition("## Routers and queues, with curl")[2]
    found = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    script = "set -eu\n" + found[1].replace("http://127.0.0.1:8080", f"http://{broker.http}")
    run = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "job.txt").read_text() == "job 1"
    assert run.stdout.count("job 1") == 1
    assert http("GET", "/shop/audit/!messages").json()["messages"] == []
