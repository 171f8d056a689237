"""Start of a controller: directories of its unit, and checks before the first job."""

from __future__ import annotations

import configparser
from dataclasses import fields, replace
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from rechannel.conf.settings import RescheduleSettings, Settings, SettingsError
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.doctor.security import key_notes, listen_notes
from rechannel.daemon.service import log_standing_by, signer_of
from rechannel.wire.codes import Mode
from rechannel.wire.signing import make_keys
from unit.daemon.fake_store import FakeClock, FakeStore
from unit.daemon.fakes import controller

ROOT = Path(__file__).parents[3]
AUDIT = "/var/log/rechannel/audit.jsonl"


def configured(directory: Path, audit_file: str = "") -> Settings:
    private, public = make_keys(directory)
    plain = Settings()
    signing = replace(plain.signing, private_key_file=str(private), public_key_file=str(public))
    return replace(plain, signing=signing, controller=replace(plain.controller, audit_file=audit_file))


def test_the_unit_lets_the_audit_file_be_written_where_the_documentation_puts_it() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.read(ROOT / "systemd/rechannel-controller.service")
    service = unit["Service"]
    assert service["ProtectSystem"] == "strict"
    assert f"/var/log/{service['LogsDirectory']}" == str(Path(AUDIT).parent)
    assert AUDIT in (ROOT / "docs/security.md").read_text()


def test_a_controller_does_not_start_where_it_could_not_write_orders_down(tmp_path: Path) -> None:
    signer_of(configured(tmp_path / "a", audit_file=str(tmp_path / "audit.jsonl")))
    assert not (tmp_path / "audit.jsonl").exists()
    with pytest.raises(SettingsError, match=r"controller\.audit_file: .* cannot be appended to"):
        signer_of(configured(tmp_path / "b", audit_file=str(tmp_path / "none/audit.jsonl")))


def test_a_controller_without_public_keys_is_warned(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    assert key_notes(settings) == []
    (message,) = key_notes(replace(settings, signing=replace(settings.signing, public_key_file="")))
    assert message.startswith("signing.public_key_file is not set")
    assert key_notes(Settings()) == []


@pytest.mark.parametrize("listen", ["", "127.0.0.1:9418", "127.9.9.9:1", "localhost:9418", "[::1]:9418"])
def test_what_is_reached_from_this_machine_alone_is_safe(listen: str) -> None:
    assert listen_notes({"controller.listen": listen}) == []


@pytest.mark.parametrize("listen", ["0.0.0.0:9418", "[::]:9418", "192.0.2.7:9418"])
def test_what_others_can_reach_is_told_with_its_field(listen: str) -> None:
    (message,) = listen_notes({"controller.listen": "127.0.0.1:9418", "agent.metrics": listen})
    assert message.startswith(f"agent.metrics = {listen} can be reached from other machines")


def test_the_modes_that_can_be_set_are_codes() -> None:
    (mode,) = [item for item in fields(RescheduleSettings) if item.name == "mode"]
    assert mode.metadata["choices"] == tuple(Mode)


def test_a_stand_by_says_once_for_whom(leader: Controller, store: FakeStore, clock: FakeClock) -> None:
    other = controller(store, clock, name="b")
    observe = log_standing_by(other, structlog.get_logger("test"))
    with capture_logs() as message:
        for _ in range(3):
            observe()
        leader.close()
        observe()
    (line,) = [line for line in message if line["event"] == "standing-by"]
    assert (line["leader"], line["log_level"]) == (leader.lead.name, "info")
    assert message[-1]["event"] == "lead-taken"
