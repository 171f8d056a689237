"""The audit file: on the disk before anything is done, whole lines, and nothing that must not be there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path

import pytest

from rechannel.daemon import audit
from rechannel.daemon.audit import AuditError, AuditFile
from rechannel.daemon.control.controller import Controller
from rechannel.wire import keys
from rechannel.wire.commands import COMMANDS, Apply, Drain, Rebalance, encode
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.messages import Reply, Request
from rechannel.wire.redis.answers import Lease
from unit.daemon.fake_store import FakeStore
from unit.daemon.fakes import World, ask, controlled, desired, leading, read_reply, request


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def audited(world: World, path: Path) -> Controller:
    return leading(world, controlled(audit_file=str(path)))


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(text) for text in path.read_text().splitlines()]


def ask_as_viewer(store: FakeStore, verb: str, *, name: str = "q1", **fields: object) -> None:
    """Put a request on the stream of questions."""
    request(store, verb, name=name, stream=keys.QUESTIONS, user="eve", **fields)


def entry(event: str = audit.ASKED, **changed: object) -> audit.Line:
    fields: dict[str, object] = {"request": "r", "user": "root", "command": {"verb": "stop"}, **changed}
    return audit.line(event, Request(**fields), sender="s", at=1.5, leader=Lease("c", 3))  # type: ignore[arg-type]


# -- what the desk writes --


def test_an_order_leaves_two_lines(audited, store, path):
    answer = ask(audited, store, "rebalance", force=True)
    first, answered = lines(path)
    assert (first["event"], first["code"], first["sentence"]) == ("asked", None, "")
    assert (answered["event"], answered["code"]) == ("answered", 0)
    for line in (first, answered):
        assert (line["verb"], line["user"], line["reason"]) == ("rebalance", "root", "because")
        assert (line["arguments"], line["epoch"]) == ({"force": "yes"}, audited.lead.epoch)
        assert line["leader"] == audited.lead.name
        assert str(line["at"]).endswith("Z")
    assert answered["decision"] == answer.data["decision"]["decision"]
    assert answered["sentence"] == answer.sentence
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_field_of_a_command_is_written_down(verb):
    fields = COMMANDS[verb].__struct_fields__
    arguments = entry(command={"verb": verb, **dict.fromkeys(fields, "x")}).arguments
    assert set(arguments) == {"node" if name == "nodes" else name for name in fields}


def test_fields_are_written_as_on_the_command_line():
    drain = Drain(nodes=["n1", "n2"], remove=True, deadline=600.0)
    assert entry(command=encode(drain)).arguments == {"node": "n1,n2", "remove": "yes", "deadline": "600"}
    assert entry(command=encode(Rebalance(policy="even"))).arguments == {"policy": "even"}


def test_a_plan_leaves_none(audited, store, path):
    request(store, "plan")
    ask_as_viewer(store, "plan")
    assert audited.answer_requests() == 2
    assert not path.exists()


def test_an_order_among_the_questions_is_refused_counted_and_told(audited, store, clock, path):
    for number, verb in enumerate(("rebalance", "apply", "rollback", "stop", "pause", "resume", "drain", "undrain")):
        clock.sleep(13)  # more in a minute are counted only
        audited.run_leader_cycle()
        ask_as_viewer(store, verb, name=f"q{number}", nodes=["n"], decision="x" * 5000, password="hunter2")
        audited.answer_requests()
        refusal = read_reply(store, f"q{number}")
        assert refusal.code == ExitCode.REFUSED
        assert refusal.sentence.startswith(f"{verb} is an order, but arrived on the stream of viewers")
        line = lines(path)[-1]
        assert (line["event"], line["verb"], line["user"], line["sender"]) == ("refused", verb, "eve", "eve@host")
        assert "hunter2" not in path.read_text()
        assert len(json.dumps(line)) < 4000
    assert audited._requests.refused == 8
    assert desired(store) is None
    assert not audited.lead.paused


def test_many_questions_do_not_hold_the_leader_up(audited, store):
    for number in range(20):
        ask_as_viewer(store, "plan", name=f"q{number}")
    request(store, "pause")
    audited.answer_requests()
    codes = [read_reply(store, f"q{number}").code for number in range(20)]
    assert codes == [ExitCode.DONE] * 5 + [ExitCode.NOT_READY] * 15
    assert audited.lead.paused


def test_nothing_is_ordered_that_cannot_be_audited(audited, store, path):
    path.mkdir()
    answer = ask(audited, store, "rebalance")
    assert answer.code == ExitCode.REFUSED
    assert "controller.audit_file" in answer.sentence
    assert "no order is carried out without an audit record" in answer.sentence
    assert desired(store) is None
    path.rmdir()
    ask(audited, store, "rebalance", name="r2")
    assert desired(store) is not None


def test_a_reason_may_be_required(store, world, path):
    leader = leading(world, controlled(audit_file=str(path), require_reason=True))
    for name, verb, reason in (("r1", "pause", " "), ("r2", "plan", ""), ("r3", "resume", "done")):
        request(store, verb, name=name, reason=reason)
    leader.answer_requests()
    answers = [read_reply(store, name) for name in ("r1", "r2", "r3")]
    assert [answer.code for answer in answers] == [ExitCode.REFUSED, ExitCode.DONE, ExitCode.DONE]
    assert "say why with --reason" in answers[0].sentence
    assert [line["event"] for line in lines(path)] == ["refused", "asked", "answered"]
    leader.reload(controlled(audit_file=str(path), require_reason=False))
    assert ask(leader, store, "pause", name="r4", reason="").code == ExitCode.DONE


# -- the file --


def test_lines_are_appended_whole_even_after_half_a_line(path):
    file = AuditFile(str(path))
    file.append(entry())
    with path.open("a") as half:
        half.write('{"at": "20')
    file.append(entry(audit.ANSWERED))
    texts = path.read_text().splitlines()
    assert [json.loads(text)["event"] for text in (texts[0], texts[2])] == ["asked", "answered"]


def test_a_full_disk_is_an_error(path, monkeypatch):
    write = os.write

    def full(descriptor: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:10])

    monkeypatch.setattr("rechannel.daemon.audit.os.write", full)
    with pytest.raises(AuditError, match="No space left"):
        AuditFile(str(path)).append(entry())


def test_files_that_cannot_be_trusted_are_refused(path, tmp_path):
    path.touch()
    path.chmod(0o622)
    with pytest.raises(AuditError, match="others can open it"):
        AuditFile(str(path)).check()
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(AuditError, match=r"controller\.audit_file"):
        AuditFile(str(tmp_path / "link")).check()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(AuditError, match="not a regular file"):
        AuditFile(str(tmp_path / "pipe")).check()
    with pytest.raises(AuditError, match="No such file"):
        AuditFile(str(tmp_path / "none" / "audit")).check()
    AuditFile("").check()
    AuditFile("").append(entry())


@pytest.mark.parametrize(
    ("mode", "well"), [(0o600, True), (0o640, True), (0o644, False), (0o660, False), (0o604, False)]
)
def test_who_may_read_it_may_lock_it_so_few_may(path, mode, well):
    path.touch()
    path.chmod(mode)
    file = AuditFile(str(path))
    if well:
        file.check()
        file.append(entry())
        return
    for act in (file.check, lambda: file.append(entry())):
        with pytest.raises(AuditError, match=f"mode {mode:o}.; `chmod 640"):
            act()


def test_looking_makes_no_file(path, monkeypatch):
    AuditFile(str(path)).check()
    assert not path.exists()
    monkeypatch.setattr("rechannel.daemon.audit.os.access", lambda _path, _mode: False)
    with pytest.raises(AuditError, match=f"{path.parent} cannot be written to"):
        AuditFile(str(path)).check()


def test_a_lock_that_another_keeps_is_waited_for_a_second_and_no_longer(path):
    slept: list[float] = []
    path.touch(0o600)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(AuditError, match="keeps it locked"):
            AuditFile(str(path), slept.append).append(entry())
        assert sum(slept) == pytest.approx(1.0, abs=0.1)
        assert path.read_text() == ""
        AuditFile(str(path), lambda _seconds: fcntl.flock(other, fcntl.LOCK_UN)).append(entry())
    assert len(lines(path)) == 1


def test_what_others_wrote_cannot_end_a_line_or_fill_the_disk(path):
    file = AuditFile(str(path))
    file.append(entry(user='x\n{"event": "answered"}', reason="y" * 10**6, command=encode(Apply(plan="z" * 10**6))))
    (line,) = lines(path)
    assert line["user"] == 'x\n{"event": "answered"}'
    assert path.stat().st_size < 3000
    assert str(line["arguments"]["plan"]).startswith("sha256:")  # type: ignore[index]


def test_a_reply_without_a_decision_is_told_too():
    answer = Reply(request="r", code=3, sentence="nothing runs", data={"decision": "odd"})
    first = Request(request="r", user="root", command={"verb": "stop"})
    line = audit.line(audit.ANSWERED, first, sender="s", at=0.0, leader=Lease("c", 1), reply=answer)
    assert (line.code, line.sentence, line.decision) == (3, "nothing runs", "")
