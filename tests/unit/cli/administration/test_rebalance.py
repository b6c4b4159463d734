"""lightrail-admin rebalance: what is asked of the gateway, how moves are watched, the exit status."""

import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightrail.cli import admin
from lightrail.cli.administration import moving
from lightrail.cli.administration.moving import Watching
from tests.support.fake_gateway import FakeGateway

Output = pytest.CaptureFixture[str]
Answer = tuple[int, dict[str, str], Any]
NO_MOVES: Answer = (200, {}, {"moves": [], "ended": []})
MOVE = {"queue": "q", "from": 0, "to": 1, "load": 1.0, "bytes": 3_000_000}
SHARD = {"id": 0, "state": "active", "queues_before": 2, "queues_after": 1}
PLAN = {"format": 1, "kind": "lightrail-plan", "moves": [MOVE], "shards": [SHARD], "silent": [2]}


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    monkeypatch.setattr(moving, "POLL_S", 0.001)
    monkeypatch.setattr(moving, "RESULT_WAIT_S", 0.01)
    with FakeGateway() as running:
        running.answers["GET", "/!plan"] = (200, {}, PLAN)
        running.answers["GET", "/!moves"] = NO_MOVES
        begun = {"begun": [{"queue": "q", "from": 0, "to": 1}], "left_out": []}
        running.answers["POST", "/!moves"] = (202, {}, begun)
        yield running


def run(gateway: FakeGateway, *arguments: str) -> int:
    return admin.main(["--url", gateway.url, *arguments])


def under_way(phase: str = "copy", **more: Any) -> dict[str, Any]:
    return {"queue": "q", "from": 0, "to": 1, "phase": phase, "messages": 5, "messages_total": 10, **more}


def ended(result: str = "done", **more: Any) -> dict[str, Any]:
    return under_way("switch", result=result, pause_ms=7, ended_ms=9, error="", **more)


def looks(
    *states: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> list[Answer]:
    """Answers of /!moves, one after the other; the first is asked for before the moves begin."""
    return [NO_MOVES, *((200, {}, {"moves": moves, "ended": over}) for moves, over in states)]


def asked(gateway: FakeGateway) -> list[tuple[str, str]]:
    return [(method, path) for method, path, _, _ in gateway.asked]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# --- the plan ----------------------------------------------------------------------------------------------


def test_a_dry_run_only_asks_for_the_plan(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "rebalance", "--dry-run") == 0
    assert asked(gateway) == [("GET", "/!plan")]
    out = capsys.readouterr().out
    assert "QUEUES BEFORE" in out
    assert "shard 2 does not answer: its queues stay where they are" in out
    assert "1 move, 3.0 MB to copy" in out
    assert run(gateway, "rebalance", "--dry-run", "--json") == 0
    assert json.loads(capsys.readouterr().out) == PLAN


def test_nothing_to_move_is_status_0(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/!plan"] = (200, {}, PLAN | {"moves": []})
    assert run(gateway, "rebalance") == 0
    assert "nothing to move" in capsys.readouterr().out
    assert "POST" not in [method for method, _ in asked(gateway)]


def test_a_plan_of_its_own_skips_what_changed_meanwhile_and_one_of_a_file_does_not(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    assert run(gateway, "rebalance", "--throttle", "20MB", "--max-moves", "5", "--sample", "0") == 0
    assert ("GET", "/!plan?sample=0.0&max_moves=5") in asked(gateway)
    assert ("POST", "/!moves?throttle=20000000&skip=true") in asked(gateway)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    assert run(gateway, "rebalance", "--plan", str(file)) == 0
    (sent,) = [json.loads(body) for method, path, body, _ in gateway.asked if path == "/!moves" and body]
    assert sent == PLAN


def test_a_plan_from_standard_input_is_cut_to_max_moves(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"moves": [{"queue": f"q{i}", "to": 1} for i in range(9)]}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(plan)))
    assert run(gateway, "rebalance", "--plan", "-", "--max-moves", "2") == 0
    (sent,) = [json.loads(body) for method, _, body, _ in gateway.asked if method == "POST"]
    assert [move["queue"] for move in sent["moves"]] == ["q0", "q1"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "can't be read"),
        ("{", "can't be read"),
        ("\xff", "can't be read"),
        ("[" * 100_000, "can't be read"),
        ("[]", "expected an object with a list of moves"),
        ('{"moves": {}}', "expected an object with a list of moves"),
        ('{"moves": [7]}', "moves[0] is expected"),
        ('{"moves": [{"queue": "q", "to": 1}, {"to": 1}]}', "moves[1] is expected"),
        ('{"moves": [{"queue": "q"}]}', "moves[0] is expected"),
        ('{"moves": [{"queue": "q", "to": 1, "bytes": null}]}', "moves[0].bytes"),
        ('{"moves": [{"queue": "q", "to": 1, "bytes": NaN}]}', "moves[0].bytes"),
        ('{"moves": [{"queue": "q", "to": 1, "bytes": 1e999}]}', "moves[0].bytes"),
        ('{"moves": [], "shards": [7]}', "shards is expected to be a list of objects"),
        ('{"moves": [], "silent": "all"}', "silent is expected to be a list of numbers"),
    ],
)
def test_a_file_that_is_no_plan_is_wrong_use_and_nothing_is_asked(
    gateway: FakeGateway, tmp_path: Path, capsys: Output, text: str, words: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text.encode("latin-1"))
    assert run(gateway, "rebalance", "--plan", str(file)) == 2
    assert words in capsys.readouterr().err
    assert gateway.asked == []


@pytest.mark.parametrize(
    "words",
    [
        ("rebalance", "--plan", "/nowhere/plan.json"),
        ("rebalance", "--throttle", "fast"),
        ("rebalance", "--throttle", "1B"),
        ("rebalance", "--max-moves", "-1"),
        ("shard", "drain", "1", "--throttle", "fast"),
    ],
)
def test_wrong_words_are_status_2_before_anything_is_asked(
    gateway: FakeGateway, words: tuple[str, ...]
) -> None:
    assert run(gateway, *words) == 2
    assert gateway.asked == []


@pytest.mark.parametrize(
    "words", [("--dry-run", "--cancel"), ("--verify", "--plan", "x"), ("--max-moves", "many")]
)
def test_words_that_exclude_each_other_are_status_2(gateway: FakeGateway, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as raised:
        run(gateway, "rebalance", *words)
    assert raised.value.code == 2


def test_a_plan_that_the_gateway_refuses_is_said_in_its_words(
    gateway: FakeGateway, tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(PLAN))
    gateway.answers["POST", "/!moves"] = (409, {}, {"detail": "the plan was made for revision 7"})
    assert run(gateway, "rebalance", "--plan", str(file)) == 1
    assert capsys.readouterr().err == "lightrail-admin: the plan was made for revision 7\n"


# --- watching ----------------------------------------------------------------------------------------------


def test_moves_are_watched_to_their_end(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/!moves"] = looks(([under_way()], []), ([], []), ([], [ended()]))
    assert run(gateway, "rebalance") == 0
    assert "1 queue moved; the longest pause was 7 ms" in capsys.readouterr().out
    gateway.answers["GET", "/!moves"] = looks(([under_way()], []), ([], [ended()]))
    assert run(gateway, "rebalance", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [each["result"] for each in report["ended"]] == ["done"]


def test_moves_that_others_began_are_watched_as_well(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/!plan"] = (200, {}, PLAN | {"moves": []})
    gateway.answers["GET", "/!moves"] = looks(([under_way()], []), ([], [ended()]))
    assert run(gateway, "rebalance") == 0
    assert "1 queue moved" in capsys.readouterr().out


def test_a_move_that_was_not_made_is_status_1(gateway: FakeGateway, capsys: Output) -> None:
    over = ended("cancelled") | {"error": "q went on at its source"}
    gateway.answers["GET", "/!moves"] = looks(([], [over]))
    assert run(gateway, "rebalance") == 1
    assert "q: q went on at its source" in capsys.readouterr().err


def test_an_earlier_end_of_the_same_queue_is_not_ours(gateway: FakeGateway, capsys: Output) -> None:
    old = ended("cancelled") | {"error": "it was cancelled", "ended_ms": 3}
    states = looks(([], [old]), ([], [old, ended()]))[1:]
    gateway.answers["GET", "/!moves"] = states
    assert run(gateway, "rebalance") == 0
    assert "1 queue moved" in capsys.readouterr().out


def test_an_end_that_nobody_reports_is_said(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["GET", "/!moves"] = looks(([under_way()], []), ([], []))
    assert run(gateway, "rebalance") == 0
    assert "the result is no longer known: q" in capsys.readouterr().out


def test_what_was_left_out_is_said(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["POST", "/!moves"] = (202, {}, {"begun": [], "left_out": [f"q{i}" for i in range(30)]})
    assert run(gateway, "rebalance") == 0
    assert "q19 and 10 more" in capsys.readouterr().out


def test_no_wait_comes_back_at_once(gateway: FakeGateway, capsys: Output) -> None:
    assert run(gateway, "rebalance", "--no-wait") == 0
    assert "1 move begun" in capsys.readouterr().out
    assert asked(gateway)[-1] == ("POST", "/!moves?skip=true")


def test_ctrl_c_leaves_the_moves_going_on_and_another_run_shows_their_end(
    gateway: FakeGateway, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    gateway.answers["GET", "/!moves"] = looks(([under_way()], []))
    with monkeypatch.context() as patched:
        patched.setattr(time, "sleep", interrupted)
        assert run(gateway, "rebalance") == 1
    assert "the moves continue; `lightrail-admin rebalance` shows them again" in capsys.readouterr().err
    assert ("DELETE", "/!moves") not in asked(gateway)
    gateway.answers["GET", "/!plan"] = (200, {}, PLAN | {"moves": []})
    gateway.answers["GET", "/!moves"] = looks(([under_way()], []), ([], [ended()]))
    assert run(gateway, "rebalance") == 0
    assert "1 queue moved" in capsys.readouterr().out


def test_a_gateway_that_is_away_for_a_while_is_waited_for(gateway: FakeGateway, capsys: Output) -> None:
    away: Answer = (503, {}, {"detail": "the coordinator can't be asked now"})
    over: Answer = (200, {}, {"moves": [], "ended": [ended()]})
    gateway.answers["GET", "/!moves"] = [NO_MOVES, away, away, over]
    assert run(gateway, "rebalance") == 0
    assert "1 queue moved" in capsys.readouterr().out


def test_a_gateway_that_stays_away_ends_the_command_and_not_the_moves(
    gateway: FakeGateway, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "GATEWAY_WAIT_S", 0.0)
    gateway.answers["GET", "/!moves"] = [NO_MOVES, (503, {}, {"detail": "it can't be asked now"})]
    assert run(gateway, "rebalance") == 1
    assert "it can't be asked now; the moves continue without it" in capsys.readouterr().err


def test_cancel_and_verify_ask_for_just_that(gateway: FakeGateway, capsys: Output) -> None:
    gateway.answers["DELETE", "/!moves"] = (200, {}, {"cancelled": ["a"], "too_late": ["b\x1b[2J"]})
    assert run(gateway, "rebalance", "--cancel") == 0
    out = capsys.readouterr().out
    assert "1 move cancelled" in out
    assert "too late for b\\x1b[2J" in out
    found = {"queues": 5, "served": 5, "problems": []}
    gateway.answers["GET", "/!verify"] = (200, {}, found)
    assert run(gateway, "rebalance", "--verify") == 0
    assert "each is served once, by its owner" in capsys.readouterr().out
    gateway.answers["GET", "/!verify"] = (200, {}, found | {"problems": ["a is placed twice"]})
    assert run(gateway, "rebalance", "--verify") == 1
    assert "a is placed twice" in capsys.readouterr().out
    assert run(gateway, "rebalance", "--verify", "--json") == 1
    assert json.loads(capsys.readouterr().out)["problems"] == ["a is placed twice"]
    assert {path for _, path in asked(gateway)} == {"/!moves", "/!verify"}


# --- progress ----------------------------------------------------------------------------------------------


def test_on_a_terminal_each_move_has_a_bar_that_goes_when_it_is_over() -> None:
    out = Terminal()
    watching = Watching(out=out)
    watching.expect(["q", "r"])
    waiting = under_way("waiting") | {"queue": "r\x1b[2J", "error": "shard 1 is not there now"}
    assert watching.show_moves({"moves": [under_way(bytes=2_000_000), waiting], "ended": []})
    drawn = out.getvalue()
    assert "██████████░░░░░░░░░░  50% copy     q 0 → 1 2.0 MB" in drawn
    assert "r\\x1b[2J 0 → 1" in drawn
    assert "(shard 1 is" in drawn
    assert "queues moved, 1 wait" in drawn
    assert not watching.show_moves({"moves": [], "ended": [ended()]})
    watching.close()
    assert out.getvalue().endswith("\x1b[3A\x1b[J")


def test_without_a_terminal_a_line_comes_now_and_then_and_says_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    now = [0.0]
    monkeypatch.setattr("lightrail.cli.administration.moving.time.monotonic", lambda: now[0])
    watching = Watching(out=out)
    watching.expect([f"q{i}" for i in range(1_200)])
    state = {"moves": [under_way() | {"queue": "q1", "error": "shard 0 is not there now"}], "ended": []}
    for now[0] in (0.5, 1.9, 2.1, 3.0):
        watching.show_moves(state)
    assert out.getvalue() == ("1,199 of 1,200 queues moved, 1 active\nq1 waits: shard 0 is not there now\n")
