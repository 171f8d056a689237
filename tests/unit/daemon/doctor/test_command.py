"""The command `doctor`, and that its page has every check."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from rechannel.daemon.cli import doctor
from rechannel.daemon.cli.main import main
from rechannel.daemon.doctor.finding import CATALOG, Finding, Severity, exit_code_of
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.signing import make_keys
from unit.daemon.doctor.checks import FAILED, OK, ROOT, WARNING


def findings(check: str, verdict: Severity) -> Finding:
    return Finding(check, verdict, "s", "c")


def test_the_exit_code_names_the_cause() -> None:
    assert exit_code_of([findings("agents", WARNING), findings("python", OK)]) == ExitCode.DONE
    assert exit_code_of([findings("agents", FAILED)]) == ExitCode.NOT_READY
    assert exit_code_of([findings("redis-role", FAILED), findings("agents", FAILED)]) == ExitCode.REDIS
    assert exit_code_of([findings("redis", FAILED), findings("signing-keys", FAILED)]) == ExitCode.CONFIGURATION


def test_a_file_of_spark_settings_before_a_start(tmp_path: Path) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text(
        "# spark.speculation true\nspark.task.cpus   2\nspark.locality.wait=0\nspark.scheduler.mode : FAIR\n"
        "spark.executor.extraJavaOptions -Da=b \\\n   -Dc=d\n\n"
    )
    assert doctor.read_spark_properties(path) == {
        "spark.task.cpus": "2",
        "spark.locality.wait": "0",
        "spark.scheduler.mode": "FAIR",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
    }
    done = CliRunner().invoke(main, ["doctor", "--conf", str(path), "--json"])
    document = json.loads(done.stdout)
    assert (done.exit_code, document["ok"], document["counts"]) == (0, True, {"ok": 1, "warning": 3, "failed": 0})
    missing = CliRunner().invoke(main, ["doctor", "--conf", str(tmp_path / "none")])
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (1, True)


def test_a_wrong_configuration_is_told_whole_and_redis_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("[gate]\nmin_gain = 7\n[agent]\nwindow = 0\n")
    done = CliRunner().invoke(main, ["doctor", "--config", str(path)])
    assert done.exit_code == 7
    assert all(phrase in done.stdout for phrase in ("gate.min_gain", "agent.window", "3 failed"))
    assert "redis" not in done.stdout.replace("redis.", "")


def test_a_redis_that_is_away(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    make_keys(tmp_path)
    signing = '[signing]\nprivate_key_file = "signing.key"\npublic_key_file = "signing.pub"\n'
    path.write_text(f'{signing}[redis]\nurl = "redis://127.0.0.1:1/0"\ntimeout = 0.2\n')
    done = CliRunner().invoke(main, ["doctor", "--config", str(path), "--json"])
    document = {item["check"]: item for item in json.loads(done.stdout)["checks"]}
    assert (done.exit_code, document["redis"]["verdict"]) == (5, "failed")
    assert document["redis"]["cure"]


def test_the_page_tells_of_every_check() -> None:
    text = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    headings = [line.removeprefix("### ").strip("`") for line in text.splitlines() if line.startswith("### ")]
    assert headings == [*CATALOG]
    for name in CATALOG:
        section = text.partition(f"### `{name}`")[2].partition("###")[0]
        assert CATALOG[name] in section, name
        assert "Cure:" in section, name
