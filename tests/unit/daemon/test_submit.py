from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rechannel.daemon import cli_submit
from rechannel.daemon.cli import main
from rechannel.daemon.cli_submit import parse, plan, spark_home
from rechannel.daemon.exits import CommandError, Exit


@pytest.fixture
def spark(tmp_path: Path) -> Path:
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "spark-submit").touch()
    (home / "jars").mkdir()
    (home / "conf").mkdir()
    return home


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "count words.py"
    path.write_text("print('never run here')\n")
    return str(path)


def environ(spark: Path, **more: str) -> dict[str, str]:
    return {"SPARK_HOME": str(spark), "PATH": "", **more}


def test_what_stands_before_the_script_is_spark_submits_and_what_follows_is_the_scripts():
    words = parse(
        [
            "--conf",
            "a=b",
            "-v",
            "--master=spark://x:7077",
            "--dry-run",
            "--config",
            "r.toml",
            "s.py",
            "--conf",
            "c",
            "-x",
        ]
    )
    assert words.options == ("--conf", "a=b", "-v", "--master=spark://x:7077")
    assert (words.script, words.arguments) == ("s.py", ("--conf", "c", "-x"))
    assert (words.dry_run, words.config) == (True, "r.toml")
    assert words.conf == {"a": "b", "spark.master": "spark://x:7077"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no script is named"),
        (["--master"], "--master has no value"),
        (["--version"], "--version submits no Python script"),
    ],
)
def test_wrong_usage_is_told(given, said):
    with pytest.raises(CommandError, match=said) as caught:
        parse(given)
    assert caught.value.code == Exit.USAGE


def test_the_runner_is_the_main_file_and_the_script_keeps_its_name(spark, script):
    made = plan(parse(["--master", "spark://x:7077", script, "one", "two words"]), environ(spark))
    runner = Path(made.command[-4])
    assert made.command[0] == str(spark / "bin" / "spark-submit")
    assert made.command[1:5] == ("--master", "spark://x:7077", "--name", "count words.py")
    assert (runner.name, runner.is_file()) == ("runner.py", True)
    assert made.command[-3:] == (script, "one", "two words")
    assert made.environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert made.warnings == ()


def test_a_name_and_a_python_that_were_chosen_stay(spark, script):
    made = plan(parse(["--name", "mine", script]), environ(spark, PYSPARK_PYTHON="/usr/bin/python3"))
    assert made.command.count("--name") == 1
    assert "PYSPARK_DRIVER_PYTHON" not in made.environment
    (spark / "conf" / "spark-defaults.conf").write_text("spark.app.name  from-file\nspark.pyspark.python=python3\n")
    made = plan(parse([script]), environ(spark))
    assert "--name" not in made.command
    assert "PYSPARK_DRIVER_PYTHON" not in made.environment


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        (["--deploy-mode", "cluster"], {}, "use --deploy-mode client, or put `import rechannel"),
        (["--deploy-mode=cluster"], {}, "cluster mode"),
        (["--conf", "spark.submit.deployMode=cluster"], {}, "cluster mode"),
        (["--remote", "sc://x"], {}, "Spark Connect .* use --master"),
        ([], {"SPARK_REMOTE": "sc://x"}, "Spark Connect"),
        (["--conf", "spark.api.mode=connect"], {}, "Spark Connect"),
    ],
)
def test_what_cannot_be_attached_is_refused_with_the_cure(spark, script, options, more, said):
    with pytest.raises(CommandError, match=said) as caught:
        plan(parse([*options, script]), environ(spark, **more))
    assert caught.value.code == Exit.REFUSED


def test_cluster_mode_in_the_properties_file_is_seen(spark, script, tmp_path):
    properties = tmp_path / "my.properties"
    properties.write_text("# mine\n\nspark.submit.deployMode = cluster\n")
    with pytest.raises(CommandError, match="cluster mode"):
        plan(parse(["--properties-file", str(properties), script]), environ(spark))
    (spark / "conf" / "spark-defaults.conf").write_text("spark.submit.deployMode cluster\n")
    with pytest.raises(CommandError, match="cluster mode"):
        plan(parse([script]), environ(spark))
    assert plan(parse(["--deploy-mode", "client", script]), environ(spark)).command, "the command line goes before it"


@pytest.mark.parametrize(
    ("name", "said"), [("job.jar", "no Python script"), ("gone.py", "no file"), ("s3://b/s.py", "no file")]
)
def test_what_is_no_script_of_this_machine_is_refused(spark, name, said):
    with pytest.raises(CommandError, match=said):
        plan(parse([name]), environ(spark))


def test_settings_that_hinder_are_told(spark, script):
    made = plan(parse(["--master", "local[2]", "--conf", "spark.speculation=true", script]), environ(spark))
    assert any("no second executor" in sentence for sentence in made.warnings)
    assert any("spark.speculation" in sentence for sentence in made.warnings)


def test_a_spark_home_without_spark_is_refused_and_pyspark_is_found_without_one(tmp_path):
    with pytest.raises(CommandError, match="set it to a Spark"):
        spark_home({"SPARK_HOME": str(tmp_path)})
    assert (spark_home({"PATH": ""}) / "bin" / "spark-submit").is_file()


def test_a_dry_run_prints_a_line_for_the_shell_and_starts_nothing(spark, script, monkeypatch):
    monkeypatch.setattr(cli_submit.os, "execve", lambda *_: pytest.fail("started"))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    done = CliRunner().invoke(main, ["submit", "--executor-cores", "2", "--dry-run", script, "--json", "-h"])
    assert done.exit_code == 0, done.output
    assert f"{spark}/bin/spark-submit --executor-cores 2 --name 'count words.py'" in done.output
    assert done.output.rstrip().endswith("runner.py '" + script + "' --json -h")


def test_this_process_becomes_spark_submit(spark, script, tmp_path, monkeypatch):
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(cli_submit.os, "execve", lambda *given: started.append(given))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    config = tmp_path / "r.toml"
    config.write_text("[cluster]\nname = 'x'\n")
    assert CliRunner().invoke(main, ["submit", "--config", str(config), script]).exit_code == 0
    ((path, command, environment),) = started
    assert path == command[0] == str(spark / "bin" / "spark-submit")
    assert environment["RECHANNEL_CONFIG"] == str(config)
    config.write_text("[cluster]\nnaem = 'x'\n")
    assert CliRunner().invoke(main, ["submit", "--config", str(config), script]).exit_code == Exit.CONFIGURATION
