"""The command ``submit``: its command line, and the spark-submit that it starts."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import rechannel
from rechannel.daemon.cli import submit
from rechannel.daemon.cli.submit import SparkSubmitCommand, build_command, parse, spark_home
from rechannel.migration.link import submit_main
from rechannel.wire.exit_codes import CommandError, ExitCode
from unit.daemon.cli.command import run, write_config

# Bytes of a class file: of a constant by its tag, and of the operands of the instructions that fill an array.
_SIZES = {3: 4, 4: 4, 5: 8, 6: 8, 7: 2, 8: 2, 9: 4, 10: 4, 11: 4, 12: 4, 15: 3, 16: 2, 17: 4, 18: 4, 19: 2, 20: 2}
_OPERANDS = {0x10: 1, 0x11: 2, 0x12: 1, 0x13: 2, 0xBD: 2}


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


@pytest.fixture
def python3(tmp_path: Path) -> str:
    """A directory for PATH, with a python3 in it."""
    path = tmp_path / "bin" / "python3"
    path.parent.mkdir()
    path.touch(0o755)
    return str(path.parent)


@pytest.fixture
def build(spark: Path) -> Callable[..., SparkSubmitCommand]:
    """Build the command of a command line, with variables of the environment."""
    return lambda *line, **more: build_command(parse(line), {"SPARK_HOME": str(spark), "PATH": "", **more})


def test_options_before_the_script_are_for_spark_submit():
    line = "--conf a=b -v --master=spark://x:7077 --dry-run --strict --config r.toml s.py --conf c -x"
    arguments = parse(line.split())
    assert arguments.options == ("--conf", "a=b", "-v", "--master=spark://x:7077")
    assert (arguments.script, arguments.arguments) == ("s.py", ("--conf", "c", "-x"))
    assert (arguments.dry_run, arguments.strict, arguments.config) == (True, True, "r.toml")
    assert parse(["s.py", "--strict"]).strict is False
    assert arguments.conf == {"a": "b", "spark.master": "spark://x:7077"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no script is named"),
        (["--master"], "--master has no value"),
        (["--version"], "--version submits no Python script"),
        (["--apply", "s.py"], "--apply is for --solo; else set reschedule.mode"),
        (["--solo", "--config", "r.toml", "s.py"], "leave --config or --solo out"),
    ],
)
def test_wrong_usage_of_submit(arguments, message):
    with pytest.raises(CommandError, match=message) as caught:
        parse(arguments)
    assert caught.value.code == ExitCode.USAGE


def test_the_runner_is_the_main_file_with_the_name_of_the_script(build, spark, script):
    submission = build("--master", "spark://x:7077", script, "one", "two words")
    runner = Path(submission.command[-4])
    assert submission.command[0] == str(spark / "bin" / "spark-submit")
    assert submission.command[1:5] == ("--master", "spark://x:7077", "--name", "count words.py")
    assert (runner.name, runner.is_file()) == ("submit_main.py", True)
    assert submission.command[-3:] == (script, "one", "two words")
    assert submission.warnings == ()


@pytest.mark.parametrize(("options", "mode"), [([], None), (["--solo"], "observe"), (["--apply", "--solo"], "apply")])
def test_solo_is_handed_to_the_main_file(build, script, options, mode):
    submission = build(*options, "--master", "spark://x:7077", script, "--solo")
    assert submission.environment.get(submit.SOLO) == mode
    assert submission.command[1:3] == ("--master", "spark://x:7077")
    assert submission.command[-1] == "--solo", "that of the script"
    assert submit.SOLO == submit_main.SOLO


def test_the_application_is_named_like_the_script(build, script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.py").symlink_to(script)
    for arguments in (Path(script).name, "link.py"):
        submission = build(arguments, "link.py")
        assert submission.command[-2:] == (script, "link.py")
        assert submission.command[1:3] == ("--name", "count words.py")


def test_the_script_keeps_its_python_and_the_link_gets_our_packages(build, script, python3):
    submission = build(script, PATH=python3)
    assert not {"PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON", "PYTHONPATH"}.intersection(submission.environment)
    kind, *directories = submission.environment[submit.LENT].split(os.pathsep)
    assert kind == sys.implementation.cache_tag
    for package in (rechannel, msgspec):
        assert str(Path(package.__file__).parents[1]) in directories
    assert not any(Path(item, "json").is_dir() for item in directories), "not the standard library"
    alone = build(script)
    assert alone.environment["PYSPARK_DRIVER_PYTHON"] == sys.executable, "there is no other"


def test_spark_home_is_passed_on_unless_set(build, script, tmp_path):
    assert "SPARK_HOME" not in build(script).environment
    assert build_command(parse([script]), {"PATH": ""}).environment["SPARK_HOME"] == str(spark_home({"PATH": ""}))


def test_a_chosen_name_and_python_are_not_replaced(build, spark, script):
    submission = build("--name", "mine", script, PYSPARK_PYTHON="/usr/bin/python3")
    assert submission.command.count("--name") == 1
    assert "PYSPARK_DRIVER_PYTHON" not in submission.environment
    (spark / "conf" / "spark-defaults.conf").write_text("spark.app.name  from-file\nspark.pyspark.python=python3\n")
    submission = build(script)
    assert "--name" not in submission.command
    assert "PYSPARK_DRIVER_PYTHON" not in submission.environment


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        (["--deploy-mode", "cluster"], {}, "use --deploy-mode client, or have the script itself attach .*untried"),
        (["--master", "yarn", "--deploy-mode", "cluster"], {}, "where this command cannot attach it"),
        (["--master", "spark://x:7077", "--deploy-mode", "cluster"], {}, "standalone .* no Python script"),
        (["--deploy-mode=cluster"], {}, "cluster mode"),
        (["--conf", "spark.submit.deployMode=cluster"], {}, "cluster mode"),
        (["--remote", "sc://x"], {}, "Spark Connect .* use --master"),
        ([], {"SPARK_REMOTE": "sc://x"}, "Spark Connect"),
        (["--conf", "spark.api.mode=connect"], {}, "Spark Connect"),
    ],
)
def test_unsupported_modes_are_refused_with_the_cure(build, script, options, more, message):
    with pytest.raises(CommandError, match=message) as caught:
        build(*options, script, **more)
    assert caught.value.code == ExitCode.REFUSED


def test_cluster_mode_is_refused_wherever_the_script_is(build):
    with pytest.raises(CommandError, match="have the script itself attach"):
        build("--master", "yarn", "--deploy-mode", "cluster", "hdfs:///jobs/count.py")


def test_properties_files_are_read_as_spark_submit_reads_them(build, spark, script, tmp_path):
    (spark / "conf" / "spark-defaults.conf").write_text("spark.submit.deployMode\tcluster\nspark.app.name: kept\n")
    properties, extra = tmp_path / "my.properties", tmp_path / "extra.properties"
    properties.write_text("# mine\n\nspark.speculation\ttrue\n")
    extra.write_text("spark.submit.deployMode = client\nspark.app.name=mine\n")
    options = ["--properties-file", str(properties)]
    submission = build(*options, script)
    assert "--name" in submission.command, "without spark-defaults.conf"
    assert any("spark.speculation" in sentence for sentence in submission.warnings)
    for arguments in ([], [*options, "--load-spark-defaults"], ["--load-spark-defaults=yes", *options]):
        with pytest.raises(CommandError, match="cluster mode"):
            build(*arguments, script)
        submission = build(*arguments, "--extra-properties-file", str(extra), script)
        assert "--name" not in submission.command, "it goes before the others"
    client = build("--deploy-mode", "client", script)
    assert "--name" not in client.command


def test_switches_match_the_installed_spark():
    (jar,) = (spark_home({"PATH": ""}) / "jars").glob("spark-launcher_*.jar")
    with zipfile.ZipFile(jar) as archive:
        switches = switches_of(archive.read("org/apache/spark/launcher/SparkSubmitOptionParser.class"))
    assert "--supervise" in switches
    assert switches <= {*submit.SWITCHES, *submit.NO_SCRIPT_OPTIONS}


def switches_of(code: bytes) -> set[str]:
    """Return the texts that the constructor loads (ldc) between setting the fields ``opts`` and ``switches``."""
    entries: dict[int, tuple[int, bytes]] = {}
    at, index = 10, 1
    while index < int.from_bytes(code[8:10]):
        tag = code[at]
        size = 2 + int.from_bytes(code[at + 1 : at + 3]) if tag == 1 else _SIZES[tag]
        entries[index] = (tag, code[at + 1 : at + 1 + size])
        at, index = at + 1 + size, index + (2 if tag in (5, 6) else 1)

    def text(number: int) -> str:
        tag, content = entries[number]
        return content[2:].decode() if tag == 1 else text(int.from_bytes(content[:2]))

    def named(number: int) -> str:
        return text(int.from_bytes(entries[int.from_bytes(entries[number][1][2:])][1][:2]))

    puts = {named(number): b"\xb5" + number.to_bytes(2) for number, (tag, _) in entries.items() if tag == 9}
    position, end = code.index(puts["opts"], at) + 3, code.index(puts["switches"], at)
    texts = set()
    while position < end:
        size = _OPERANDS.get(code[position], 0)
        if code[position] in (0x12, 0x13):  # ldc, ldc_w
            texts.add(text(int.from_bytes(code[position + 1 : position + 1 + size])))
        position += 1 + size
    return texts


@pytest.mark.parametrize(
    ("name", "message"), [("job.jar", "not a Python script"), ("gone.py", "not a file"), ("s3://b/s.py", "not a file")]
)
def test_a_script_that_is_no_local_python_file_is_refused(build, name, message):
    with pytest.raises(CommandError, match=message):
        build(name)


def test_unsuitable_settings_are_reported(build, script):
    submission = build("--master", "local[2]", "--conf", "spark.speculation=true", script)
    assert any("no second executor" in sentence for sentence in submission.warnings)
    assert any("spark.speculation" in sentence for sentence in submission.warnings)


def test_spark_home_is_checked_and_defaults_to_pyspark(tmp_path):
    with pytest.raises(CommandError, match="set it to a Spark"):
        spark_home({"SPARK_HOME": str(tmp_path)})
    assert (spark_home({"PATH": ""}) / "bin" / "spark-submit").is_file()


def test_a_dry_run_prints_the_shell_command(spark, script, monkeypatch):
    monkeypatch.setattr(submit.os, "execve", lambda *_: pytest.fail("started"))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    done = run("submit", "--executor-cores", "2", "--dry-run", script, "--json", "-h")
    assert f"{spark}/bin/spark-submit --executor-cores 2 --name 'count words.py'" in done.output
    assert done.output.rstrip().endswith("submit_main.py '" + script + "' --json -h")


def test_submit_replaces_its_process_by_spark_submit(spark, script, tmp_path, monkeypatch):
    started: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(submit.os, "execve", lambda *arguments: started.append(arguments))
    monkeypatch.setenv("SPARK_HOME", str(spark))
    config = write_config(tmp_path, "[cluster]\nname = 'x'\n")
    run("submit", "--config", config, script)
    ((path, command, environment),) = started
    assert path == command[0] == str(spark / "bin" / "spark-submit")
    assert environment["RECHANNEL_CONFIG"] == str(config)
    write_config(tmp_path, "[cluster]\nnaem = 'x'\n")
    run("submit", "--config", config, script, code=ExitCode.CONFIGURATION)


@pytest.mark.parametrize(
    ("master", "untried"),
    [("yarn", True), ("k8s://https://h:6443", True), ("mesos://h:5050", True), ("spark://x:7077", False), ("", False)],
)
def test_untested_cluster_managers_are_reported(build, script, master, untried):
    reported = f"{master}: Rechannel is tested on standalone clusters only"
    for options, more in (
        (["--master", master] if master else [], {}),
        (["--conf", f"spark.master={master}"] if master else [], {}),
        ([], {"MASTER": master}),
    ):
        warnings = build(*options, script, **more).warnings
        assert any(sentence.startswith(reported) for sentence in warnings) == untried


def test_the_warning_is_one_line_on_standard_error(spark, script, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(spark))
    done = run("submit", "--dry-run", "--master", "yarn", script)
    assert done.stderr.count("rechannel: yarn: ") == 1
    assert "tried" not in done.stdout


def test_strict_is_passed_to_the_runner(build, script):
    assert build(script).environment.get(submit.STRICT) is None
    assert build("--strict", script).environment[submit.STRICT] == "1"
    assert submit.STRICT == submit_main.STRICT


@pytest.mark.timeout(20)
def test_a_pipe_of_settings_is_not_read(build, script, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    submission = build("--properties-file", str(pipe), script)
    assert submission.command[1:3] == ("--properties-file", str(pipe))
