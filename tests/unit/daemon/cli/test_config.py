"""The commands `config init`, `check` and `show` on real files."""

from __future__ import annotations

import json
import re
import tomllib

from rechannel.conf.loader import load
from rechannel.conf.settings import Settings
from unit.daemon.cli.command import run


def test_init_writes_a_file_of_defaults_and_never_over_one(tmp_path):
    path = tmp_path / "rechannel.toml"
    run("config", "init", path, "--all")
    assert load(path, {}) == Settings()
    path.unlink()
    run("config", "init", path)
    assert load(path, {}) == Settings()
    values = re.sub(r"^#(\w+ = )", r"\1", path.read_text(), flags=re.MULTILINE)
    path.write_text(values)
    assert load(path, {}) == Settings(), "each line shows the default"
    assert 10 <= sum(len(section) for section in tomllib.loads(values).values()) <= 14, "a dozen settings"
    path.write_text("mine")
    assert "exists" in run("config", "init", path, code=1).stderr
    assert path.read_text() == "mine"
    assert "cannot be written" in run("config", "init", tmp_path / "none" / "c.toml", code=1).stderr
    assert json.loads(run("config", "init", tmp_path / "b.toml", "--json").stdout) == {"file": str(tmp_path / "b.toml")}


def test_check_tells_of_values_policies_and_files_at_once(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(
        "[gate]\nmin_gain = 7\n[policies.adaptive]\nhorizn = 1\n[signing]\nprivate_key_file = '/none/key'\n"
        "[redis]\npassword_file = '/none/a'\nsentinel_password_file = '/none/b'\n"
        f"[link]\ndirectory = '{tmp_path}/file'\n"
    )
    (tmp_path / "file").write_text("")
    path.chmod(0o646)
    message = run("config", "check", "--config", path, code=7).stderr
    for text in (
        "gate.min_gain",
        "policies.adaptive.horizn",
        "signing.private_key_file: /none/key",
        "redis.password_file: /none/a",
        "redis.sentinel_password_file: /none/b",
        "link.directory",
        f"{path}: can be written to by everybody",
    ):
        assert text in message, message


def test_no_secret_is_shown(tmp_path):
    (tmp_path / "password").write_text("hunter2-hunter2\n")
    path = tmp_path / "c.toml"
    path.write_text(f"[redis]\npassword_file = '{tmp_path}/password'\n")
    for text in (("show",), ("show", "--json"), ("check",)):
        assert "hunter2" not in run("config", *text, "--config", path).output
    path.write_text("[redis]\nurl = 'redis://:hunter2@h/0'\n")
    for text in (("show",), ("show", "--json"), ("check",)):
        assert "hunter2" not in run("config", *text, "--config", path, code=7).output
