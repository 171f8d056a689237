"""Command `doctor`, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from rechannel.daemon.cli import doctor
from rechannel.daemon.cli.main import main
from rechannel.daemon.doctor.finding import Finding, Severity, exit_code_of
from rechannel.wire.exit_codes import ExitCode
from rechannel.wire.signing import make_keys
from unit.daemon.cli.command import run, write_config
from unit.daemon.doctor.checks import FAILED, OK, PAGE, ROOT, SECTIONS, WARNING


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
    document = json.loads(run("doctor", "--conf", path, "--json").stdout)
    assert (document["ok"], document["counts"]) == (True, {"ok": 1, "warning": 3, "failed": 0})
    assert "cannot be read" in run("doctor", "--conf", tmp_path / "none", code=1).stderr


@pytest.mark.parametrize(("variable", "colored"), [("", True), ("1", False)])
def test_no_color_is_obeyed(tmp_path: Path, variable: str, colored: bool) -> None:
    path = tmp_path / "spark-defaults.conf"
    path.write_text("")
    done = CliRunner().invoke(main, ["doctor", "--conf", str(path)], color=True, env={"NO_COLOR": variable})
    assert ("\x1b[" in done.output) == colored


def test_a_wrong_configuration_is_reported_without_redis(tmp_path: Path) -> None:
    path = write_config(tmp_path, "[gate]\nmin_gain = 7\n[agent]\nwindow = 0\n")
    done = run("doctor", "--config", path, code=7)
    assert all(phrase in done.stdout for phrase in ("gate.min_gain", "agent.window", "3 failed"))
    assert "redis" not in done.stdout.replace("redis.", "")


def test_redis_away_is_a_failed_check(tmp_path: Path) -> None:
    make_keys(tmp_path)
    signing = '[signing]\nprivate_key_file = "signing.key"\npublic_key_file = "signing.pub"\n'
    path = write_config(tmp_path, f'{signing}[redis]\nurl = "redis://127.0.0.1:1/0"\ntimeout = 0.2\n')
    done = run("doctor", "--config", path, "--json", code=5)
    document = {item["check"]: item for item in json.loads(done.stdout)["checks"]}
    assert document["redis"]["verdict"] == "failed"
    assert document["redis"]["cure"]


def test_each_section_of_the_page_is_a_check_with_its_cure() -> None:
    modules = [*(ROOT / "daemon" / "doctor").glob("*.py"), ROOT / "daemon" / "cli" / "doctor.py"]
    source = "".join(path.read_text(encoding="utf-8") for path in modules)
    assert len(SECTIONS) == PAGE.count("\n### ") > 20
    for name, section in SECTIONS.items():
        assert f'"{name}"' in source, name
        assert "Cure:" in section, name
