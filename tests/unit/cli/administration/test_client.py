"""lightrail-admin over HTTP: what is asked of the gateway, what is shown, which exit status a script gets."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.cli import admin
from lightrail.cli.administration.definitions import PIECE
from lightrail.console.terminal import Progress
from tests.support.fake_gateway import FakeGateway

Output = pytest.CaptureFixture[str]


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with FakeGateway() as running:
        yield running


def run(gateway: FakeGateway, *arguments: str) -> int:
    return admin.main(["--url", gateway.url, *arguments])


def test_nobody_there_is_exit_status_3(capsys: Output) -> None:
    with FakeGateway() as gone:
        url = gone.url
    assert admin.main(["--url", url, "status"]) == 3
    assert "is the broker running" in capsys.readouterr().err


def test_a_url_that_is_none_is_said(capsys: Output) -> None:
    assert admin.main(["--url", "amqp://x", "status"]) == 3
    assert "expected http://HOST:PORT" in capsys.readouterr().err


def test_a_refusal_is_said_in_the_gateways_words(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/q/!policy"] = (404, {}, {"title": "Not Found", "detail": "q has no role"})
    assert run(gateway, "names", "show", "q") == 1
    assert capsys.readouterr().err == "lightrail-admin: q has no role\n"


def test_without_a_user_a_401_says_how_to_give_one(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/!status"] = (401, {}, {"detail": "who are you?"})
    assert run(gateway, "status") == 1
    assert "add --user NAME" in capsys.readouterr().err


def test_the_password_comes_from_a_file_and_goes_as_basic(
    gateway: FakeGateway, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "password"
    file.write_text("pass word\nmore\n")
    gateway.answers["GET", "/!routers"] = (200, {}, {"routers": []})
    assert run(gateway, "--user", "alice", "--password-file", str(file), "routers") == 0
    sent = gateway.asked[0][3]["Authorization"]
    assert base64.b64decode(sent.removeprefix("Basic ")) == b"alice:pass word"
    assert capsys.readouterr().out == "NAME  DISTRIBUTION  SUBSCRIBERS\n"


def test_a_token_goes_as_bearer(gateway: FakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("abc.def\n")
    gateway.answers["GET", "/!routers"] = (200, {}, {"routers": []})
    assert run(gateway, "--token-file", str(file), "routers") == 0
    assert gateway.asked[0][3]["Authorization"] == "Bearer abc.def"


def test_a_new_name_is_posted_to_itself(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["POST", "/a%20b/q"] = (201, {}, {})
    assert run(gateway, "names", "set", "a b/q", "role=queue", "lock_duration=30", "groups=true") == 0
    method, path, body, _ = gateway.asked[-1]
    assert (method, path) == ("POST", "/a%20b/q")
    assert json.loads(body) == {"role": "queue", "lock_duration": 30, "groups": True}
    assert capsys.readouterr().out == "a b/q has role queue\n"


def test_a_change_keeps_other_fields_and_is_guarded_by_what_was_read(gateway: FakeGateway) -> None:
    policy = {"role": "queue", "max_length": 5, "max_age": 9}
    gateway.answers["GET", "/q/!policy"] = (200, {"ETag": '"7"'}, policy)
    gateway.answers["PUT", "/q/!policy"] = (200, {}, {})
    assert run(gateway, "names", "set", "q", "max_length=6", "max_age=") == 0
    method, _, body, headers = gateway.asked[-1]
    assert method == "PUT"
    assert json.loads(body) == {"role": "queue", "max_length": 6}
    assert headers["If-Match"] == '"7"'


def test_a_text_field_stays_a_text(gateway: FakeGateway) -> None:
    gateway.answers["POST", "/m"] = (201, {}, {})
    assert run(gateway, "names", "set", "m", "role=metadata", "reference=123") == 0
    assert json.loads(gateway.asked[-1][2])["reference"] == "123"


@pytest.mark.parametrize(
    "words",
    [
        ("names", "set", "q", "role"),
        ("names", "set", "q"),
        ("names", "set", "q", "role=queue", "--file", "x"),
        ("names", "set", "q", "--file", "/nowhere.json"),
        ("subscriptions", "add", "r", "q", "--filter", "{"),
        ("send", "q", "x", "--property", "novalue"),
    ],
)
def test_wrong_words_are_exit_status_2(gateway: FakeGateway, words: tuple[str, ...]) -> None:
    assert run(gateway, *words) == 2


def test_a_queue_with_messages_is_not_deleted_if_it_should_be_empty(
    gateway: FakeGateway, capsys: Output
) -> None:
    gateway.answers["GET", "/q/!policy"] = (200, {"ETag": '"3"'}, {"role": "queue"})
    gateway.answers["GET", "/q/!figures"] = (200, {}, {"ready": 2, "delayed": 0, "in_flight": 1})
    gateway.answers["DELETE", "/q/!policy"] = (204, {}, b"")
    assert run(gateway, "names", "delete", "q", "--if-empty") == 1
    assert "q holds 3 messages" in capsys.readouterr().err
    gateway.answers["GET", "/q/!figures"] = (200, {}, {"ready": 0})
    gateway.answers["GET", "/q/$dlq/!figures"] = (200, {}, {"ready": 1})
    assert run(gateway, "names", "delete", "q", "--if-empty") == 1
    assert "q holds 0 messages and 1 dead letter" in capsys.readouterr().err
    assert run(gateway, "names", "delete", "q", "--yes") == 0


def deletions(gateway: FakeGateway) -> list[str]:
    return [path for method, path, _, _ in gateway.asked if method == "DELETE"]


def test_what_goes_with_a_name_is_asked_about(gateway: FakeGateway, capsys: Output) -> None:
    empty = {"ready": 0, "delayed": 0, "in_flight": 0}
    feeding = {"name": "r", "subscriptions": [{"target": "q"}, {"target": "other"}]}
    gateway.answers["GET", "/q/!policy"] = (200, {}, {"role": "queue"})
    gateway.answers["GET", "/q/!figures"] = (200, {}, empty | {"ready": 1_200, "parked": 3})
    gateway.answers["GET", "/q/$dlq/!figures"] = (200, {}, empty | {"ready": 1})
    gateway.answers["GET", "/!routers"] = (200, {}, {"routers": [feeding]})
    assert run(gateway, "names", "delete", "q") == 1
    said = capsys.readouterr().err
    assert "q has 1,203 messages, 1 dead letter, 1 subscription to it, which would be deleted with it" in said
    assert "--yes" in said
    assert deletions(gateway) == []
    gateway.answers["GET", "/r/!policy"] = (200, {}, {"role": "router"})
    gateway.answers["GET", "/r/!subscriptions"] = (200, {}, {"subscriptions": feeding["subscriptions"]})
    assert run(gateway, "names", "delete", "r") == 1
    assert "r has 2 subscriptions" in capsys.readouterr().err
    assert deletions(gateway) == []


def test_a_name_with_nothing_in_it_goes_without_a_question(gateway: FakeGateway) -> None:
    gateway.answers["GET", "/q/!policy"] = (200, {}, {"role": "queue"})
    gateway.answers["GET", "/!routers"] = (200, {}, {"routers": []})
    gateway.answers["DELETE", "/q/!policy"] = (204, {}, b"")
    assert run(gateway, "names", "delete", "q") == 0
    assert deletions(gateway) == ["/q/!policy"]


def test_a_push_with_messages_on_their_way_is_asked_about(gateway: FakeGateway, capsys: Output) -> None:
    path = "/r/!subscriptions/s"
    gateway.answers["GET", path] = (200, {}, {"id": "s", "target": "https://there/hook"})
    gateway.answers["GET", "/r/$subscriptions/s/!figures"] = (200, {}, {"ready": 2})
    gateway.answers["DELETE", path] = (204, {}, b"")
    assert run(gateway, "subscriptions", "remove", "r", "s") == 1
    assert "2 messages for its URL" in capsys.readouterr().err
    assert deletions(gateway) == []
    assert run(gateway, "subscriptions", "remove", "r", "s", "--yes") == 0
    gateway.answers["GET", path] = (200, {}, {"id": "s", "target": "q"})
    assert run(gateway, "subscriptions", "remove", "r", "s") == 0


@pytest.mark.parametrize(
    "words",
    [("send", "", "hi"), ("receive", "/"), ("names", "set", "", "role=queue"), ("names", "delete", "")],
)
def test_the_empty_name_is_none(gateway: FakeGateway, capsys: Output, words: tuple[str, ...]) -> None:
    assert run(gateway, *words) == 1
    assert "the name is empty; expected a path such as myapp/orders" in capsys.readouterr().err
    assert gateway.asked == []


def test_a_slash_before_a_name_is_no_part_of_it(gateway: FakeGateway) -> None:
    gateway.answers["POST", "/a/q"] = (201, {}, b"")
    assert run(gateway, "send", "/a/q", "hi") == 0


def test_lines_of_a_body_are_seen_in_a_peek(gateway: FakeGateway, capsys: Output) -> None:
    message = {"sequence": 0, "state": "ready", "size": 9, "body": {"text": "one\ntwo\ttab\x1b"}}
    gateway.answers["GET", "/q/!messages"] = (200, {}, {"messages": [message]})
    assert run(gateway, "peek", "q") == 0
    assert r"one\ntwo\ttab\x1b" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [("user", "list"), ("user", "remove", "alice"), ("permission", "list"), ("journal", "repair", "x")],
)
def test_commands_that_ask_no_gateway_refuse_its_options(
    gateway: FakeGateway, capsys: Output, words: tuple[str, ...]
) -> None:
    assert run(gateway, *words) == 2
    said = capsys.readouterr().err
    assert f"`{words[0]} {words[1]}` uses no gateway" in said
    assert "--url" in said
    assert admin.main(["--ca", "x", "--user", "y", *words]) == 2
    assert "--user, --ca" in capsys.readouterr().err


def test_the_address_of_the_gateway_may_be_in_the_environment(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Output
) -> None:
    monkeypatch.setenv("LIGHTRAIL_URL", gateway.url)
    gateway.answers["GET", "/!routers"] = (200, {}, {"routers": []})
    assert admin.main(["routers"]) == 0
    assert admin.main(["--data", str(tmp_path), "user", "list"]) == 1
    assert "no broker has used" in capsys.readouterr().err


def test_lists_are_read_page_by_page(gateway: FakeGateway, capsys: Output) -> None:
    row = {"name": "a", "ready": 1, "delayed": 0, "in_flight": 0, "bytes": 1_000, "consumers": 0, "shard": 0}
    gateway.answers["GET", "/!queues"] = [
        (200, {}, {"queues": [row], "next": "a"}),
        (200, {}, {"queues": [row | {"name": "b"}], "next": None}),
    ]
    assert run(gateway, "queues", "--json") == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["a", "b"]
    assert "after=a" in gateway.asked[1][1]


def test_a_table_shows_numbers_to_the_right_and_nothing_that_moves_the_terminal(
    gateway: FakeGateway, capsys: Output
) -> None:
    rows = [
        {
            "name": "a\x1b[2J",
            "ready": 12_345,
            "delayed": 0,
            "in_flight": 0,
            "bytes": 0,
            "consumers": 0,
            "shard": 0,
        }
    ]
    gateway.answers["GET", "/!queues"] = (200, {}, {"queues": rows, "next": None})
    assert run(gateway, "queues") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "12,345" in out


def test_a_message_is_sent_with_its_properties(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["POST", "/q"] = (201, {"Location": "/q/!messages/7"}, b"")
    words = ("send", "q", "hello", "--property", "n=1", "--property", "s=x", "--subject", "t", "--delay", "2")
    assert run(gateway, *words) == 0
    _, _, body, headers = gateway.asked[0]
    assert body == b"hello"
    assert json.loads(headers["BrokerProperties"]) == {"Subject": "t", "DeliveryDelay": 2.0}
    assert headers["LightRail-Property-n"] == "1"
    assert headers["LightRail-Property-s"] == '"x"'
    assert capsys.readouterr().out == "1 message stored at q\n"


def test_standard_input_is_the_body(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\x00\xff")))
    gateway.answers["POST", "/q"] = (201, {}, b"")
    assert run(gateway, "send", "q", "--count", "2") == 0
    assert [each[2] for each in gateway.asked] == [b"\x00\xff", b"\x00\xff"]


def test_no_message_is_exit_status_4(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["DELETE", "/q/!head"] = [
        (200, {"Content-Type": "text/plain", "BrokerProperties": '{"SequenceNumber": 3}'}, b"hi"),
        (204, {}, b""),
    ]
    assert run(gateway, "receive", "q", "--count", "5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["broker_properties"] == {"SequenceNumber": 3}
    assert run(gateway, "receive", "q") == 4


def test_a_purge_without_yes_removes_nothing(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "purge", "q") == 1
    assert gateway.asked == []
    gateway.answers["DELETE", "/q/!messages"] = (200, {}, {"purged": 3})
    assert run(gateway, "purge", "q", "--yes") == 0
    assert "3 messages removed from q" in capsys.readouterr().out


def transfer(state: str, moved: int, **more: Any) -> dict[str, Any]:
    return {"id": "1", "from": "q/$dlq", "to": None, "state": state, "moved": moved, "total": 5, **more}


def test_dead_letters_that_wait_are_listed(gateway: FakeGateway, capsys: Output) -> None:
    waiting = {"name": "q/$dlq", "ready": 0, "delayed": 2, "in_flight": 0, "bytes": 9}
    gateway.answers["GET", "/!queues"] = (200, {}, {"queues": [waiting, waiting | {"name": "q"}]})
    assert run(gateway, "dlq", "list") == 0
    said = capsys.readouterr().out
    assert ("q/$dlq" in said, said.split()[-4:]) == (True, ["0", "2", "0", "9"])
    letter = {"sequence": 7, "state": "delayed", "size": 9}
    gateway.answers["GET", "/q/$dlq/!messages"] = (200, {}, {"messages": [letter]})
    assert run(gateway, "dlq", "list", "q") == 0
    assert "delayed" in capsys.readouterr().out


def test_a_redrive_is_followed_to_its_end(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["POST", "/!transfers"] = (202, {"Location": "/!transfers/1"}, transfer("running", 0))
    gateway.answers["GET", "/!transfers/1"] = [
        (200, {}, transfer("running", 2)),
        (200, {}, transfer("done", 5)),
    ]
    assert run(gateway, "dlq", "redrive", "q") == 0
    asked = json.loads(gateway.asked[0][2])
    assert (asked["from"], asked["to"], asked["mode"]) == ("q/$dlq", None, "redrive")
    assert "5 messages from q/$dlq to the queues that they come from: done" in capsys.readouterr().out


def test_a_transfer_that_fails_says_why(gateway: FakeGateway, capsys: Output) -> None:
    failed = transfer("failed", 1, error="b is full")
    gateway.answers["POST", "/!transfers"] = (202, {"Location": "/!transfers/1"}, failed)
    assert run(gateway, "move", "a", "b") == 1
    assert "b is full" in capsys.readouterr().err


def test_an_export_is_whole_or_not_there(gateway: FakeGateway, tmp_path: Path, capsys: Output) -> None:
    document = {"format": 1, "names": {"q": {"role": "queue"}}, "subscriptions": [], "permissions": []}
    gateway.answers["GET", "/!definitions"] = (200, {}, document)
    file = tmp_path / "definitions.json"
    assert run(gateway, "export", str(file)) == 0
    assert json.loads(file.read_text()) == document
    assert [each.name for each in tmp_path.iterdir()] == ["definitions.json"]
    assert run(gateway, "export", str(tmp_path / "none" / "x")) == 1
    assert "can't be written" in capsys.readouterr().err


def test_an_import_that_is_refused_in_part_is_exit_status_1(
    gateway: FakeGateway, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "definitions.json"
    file.write_text('{"format": 1}')
    report = {"created": ["a"], "changed": [], "unchanged": 2, "refused": [{"what": "b", "why": "taken"}]}
    gateway.answers["POST", "/!definitions"] = (200, {}, report)
    assert run(gateway, "import", str(file), "--dry-run") == 1
    assert "dry_run=true" in gateway.asked[0][1]
    said = capsys.readouterr()
    assert "would be created: a" in said.out
    assert "refused: b: taken" in said.err


def imported(created: int, unchanged: int = 0) -> tuple[int, dict[str, str], dict[str, Any]]:
    """An answer of the gateway to a piece of an import."""
    names = [f"made-{number}" for number in range(created)]
    return 200, {}, {"created": names, "changed": [], "unchanged": unchanged, "refused": [], "dry_run": False}


def many(file: Path, names: int) -> dict[str, Any]:
    """Definitions of so many names, and as many rights, in a file."""
    document = {
        "format": 1,
        "names": {f"q/{number}": {"role": "queue"} for number in range(names)},
        "subscriptions": [{"router": "r", "id": "i", "target": "q/1"}],
        "permissions": [{"user": f"u{number}", "rights": []} for number in range(names)],
    }
    file.write_text(json.dumps(document))
    return document


def test_an_import_goes_in_pieces_with_progress(
    gateway: FakeGateway, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Progress, "due", lambda self, now_s: True)
    file = tmp_path / "definitions.json"
    document = many(file, 2 * PIECE + 1)
    gateway.answers["POST", "/!definitions"] = imported(1, 2)
    assert run(gateway, "import", str(file), "--json") == 0
    sent = [json.loads(body) for _, _, body, _ in gateway.asked]
    assert all(each["format"] == 1 for each in sent)
    assert {name: policy for each in sent for name, policy in each.get("names", {}).items()} == document[
        "names"
    ]
    for key in ("subscriptions", "permissions"):
        assert [one for each in sent for one in each.get(key, [])] == document[key]
    kinds = [next(key for key in ("names", "subscriptions", "permissions") if key in each) for each in sent]
    assert kinds == ["names"] * 3 + ["subscriptions"] + ["permissions"] * 3
    assert max(len(each[kind]) for each, kind in zip(sent, kinds, strict=True)) == PIECE
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (len(report["created"]), report["unchanged"]) == (7, 14)
    assert said.err.splitlines()[0] == f"{PIECE:,} of {4 * PIECE + 3:,} definitions"


@pytest.mark.parametrize("end", ["error", "no gateway"])
def test_an_import_that_ends_early_says_what_was_done(
    gateway: FakeGateway, tmp_path: Path, capsys: Output, end: str
) -> None:
    file = tmp_path / "definitions.json"
    many(file, 3 * PIECE)
    failed: Any = (503, {}, {"detail": "etcd does not answer"})
    gateway.answers["POST", "/!definitions"] = [imported(PIECE), failed]
    if end == "error":
        assert run(gateway, "import", str(file)) == 1
    else:
        gateway.ends_after = 1
        assert run(gateway, "import", str(file)) == 3
    said = capsys.readouterr()
    assert f"ended after {PIECE} of {6 * PIECE + 1:,} definitions ({PIECE} created" in said.err
    assert "Repeat the command to go on" in said.err
    assert ("etcd does not answer" if end == "error" else "no gateway answers") in said.err


def test_a_document_of_another_form_is_the_gateways_to_refuse(
    gateway: FakeGateway, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "definitions.json"
    gateway.answers["POST", "/!definitions"] = (422, {}, {"detail": "names is no object"})
    documents: list[Any] = [{"names": []}, [1], {"permissions": {}}, 7]
    for document in documents:
        file.write_text(json.dumps(document))
        assert run(gateway, "import", str(file)) == 1
        assert json.loads(gateway.asked[-1][2]) == document
        assert "names is no object" in capsys.readouterr().err


STATUS: dict[str, Any] = {
    "version": "1",
    "ready": True,
    "reasons": [],
    "processes": [{"role": "shard", "id": 0, "ready": True, "restarts": 0}],
    "shards": [{"id": 0, "queues": 1, "messages": 0, "bytes": 0}],
    "totals": {"queues": 1},
}
QUEUE = {"name": "q", "ready": 0, "delayed": 0, "in_flight": 0, "bytes": 0, "consumers": 1}


def doctor(gateway: FakeGateway, status: dict[str, Any], *queues: dict[str, Any]) -> int:
    gateway.answers["GET", "/!status"] = (200, {}, STATUS | status)
    gateway.answers["GET", "/!queues"] = (200, {}, {"queues": list(queues), "next": None})
    return run(gateway, "doctor")


def test_a_healthy_broker_has_nothing_wrong(gateway: FakeGateway, capsys: Output) -> None:
    assert doctor(gateway, {}, QUEUE) == 0
    assert capsys.readouterr().out == "no problem found\n"


def test_the_doctor_says_what_is_wrong_and_what_to_do(gateway: FakeGateway, capsys: Output) -> None:
    shard = {"id": 0, "queues": 1, "messages": 0, "bytes": 0, "store_failures": 2}
    kept = [
        {"queue": "lost", "messages": 3, "role": "none", "shard": None},
        {"queue": "elsewhere", "messages": 4, "role": "queue", "shard": 1},
    ]
    status = doctor(
        gateway,
        {
            "reasons": ["shard-0: recovering"],
            "shards": [shard | {"kept_count": 5, "kept": kept}],
            "processes": [{"role": "shard", "id": 0, "ready": True, "restarts": 2}],
            "coordinator": {
                "set_back": {"known_at": 9, "revision": 3, "reason": "it is behind"},
                "full": "etcd has no space left and takes no writes",
                "full_for": ["shard-0"],
            },
        },
        QUEUE | {"name": "q/$dlq", "ready": 4},
        QUEUE | {"name": "idle", "ready": 5_000, "consumers": 0},
        QUEUE | {"name": "full", "ready": 95, "max_length": 100},
    )
    assert status == 1
    out = capsys.readouterr().out
    for part in (
        "error: not ready: shard-0: recovering",
        "error: shard 0 could not write 2 times",
        "warning: shard-0 was started again 2 times",
        "error: etcd was set back to revision 3, and revision 9 was known: it is behind",
        "lightrail-admin coordinator put-back",
        "error: etcd has no space left and takes no writes; found by shard-0. The known state is used",
        "LightRailCoordinatorFull in docs/operate/alerts.md",
        "shard 0 keeps 3 messages of lost, which has role none",
        "lightrail-admin names set lost role=queue",
        "shard 0 keeps 4 messages of elsewhere, which is at shard 1 now without them",
        "shard 0 keeps 3 further queues",
        "4 dead letters of q",
        "dlq redrive q",
        "idle has 5,000 messages and no consumer",
        "full is full by 95%",
        "max_length=200",
    ):
        assert part in out
    assert out.index("error:") < out.index("warning:")


def test_the_doctor_names_a_disk_that_hangs_and_one_without_room(
    gateway: FakeGateway, capsys: Output
) -> None:
    shard = {"id": 1, "queues": 1, "messages": 0, "bytes": 0, "store_failures": 9, "store_full": 1}
    status = doctor(
        gateway,
        {"reasons": ["shard-0: the disk has not answered for 34 s"], "shards": [shard]},
        QUEUE,
    )
    assert status == 1
    out = capsys.readouterr().out
    assert "error: not ready: shard-0: the disk has not answered for 34 s\n    check the disk" in out
    assert "error: shard 1 refuses messages: its disk has no room" in out
    assert "could not write" not in out


def test_the_doctor_speaks_of_what_is_not_ready_where_queues_can_not_be_listed(
    gateway: FakeGateway, capsys: Output
) -> None:
    gateway.answers["GET", "/!status"] = (
        200,
        {},
        json.dumps(
            {"reasons": ["shard-0: the disk has not answered for 34 s"], "processes": [], "shards": []}
        ).encode(),
    )
    gateway.answers["GET", "/!queues"] = (503, {}, b'{"title": "away", "detail": "shard 0 is silent"}')
    assert run(gateway, "doctor") == 1
    out = capsys.readouterr().out
    assert "shard 0 is silent" in out
    assert "the disk has not answered for 34 s" in out


def test_connections_are_closed_one_by_one(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["DELETE", "/!connections/0-1"] = (204, {}, b"")
    gateway.answers["DELETE", "/!connections/0-2"] = (204, {}, b"")
    assert run(gateway, "connections", "close", "0-1", "0-2") == 0
    assert capsys.readouterr().out.count("is closed") == 2
