"""The command ``submit``: runs a PySpark script by spark-submit, attached to Rechannel.

The main file for spark-submit is `rechannel.migration.link.submit_main`, which runs the script and attaches its
sessions. This process is replaced by spark-submit, so signals and exit codes are those of spark-submit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from rechannel.conf.settings import CONFIG_VARIABLE
from rechannel.daemon.cli.options import exit_code_on_error, load_settings
from rechannel.daemon.doctor import spark_properties
from rechannel.wire.exit_codes import CommandError, ExitCode

# The options of spark-submit without a value, from org.apache.spark.launcher.SparkSubmitOptionParser.
SWITCHES = ("--supervise", "--verbose", "-v", "--load-spark-defaults")
NO_SCRIPT_OPTIONS = ("--kill", "--status", "--version", "--usage-error", "--help", "-h", "--class")
_OWN_SWITCHES = ("--dry-run", "--strict", "--solo", "--apply")
_SETTING_OF_OPTION = {
    "--name": "spark.app.name",
    "--master": "spark.master",
    "--deploy-mode": "spark.submit.deployMode",
    "--remote": "spark.remote",
}
_TESTED_MASTERS = ("spark://", "local")
_CLUSTER_MODE = (
    "in cluster mode the driver runs on another machine, where this command cannot attach it: use --deploy-mode "
    "client, or have the script itself attach (`import rechannel; rechannel.attach(spark)`) and submit it by "
    "spark-submit, with Rechannel in the driver's environment (untried; docs/where-it-runs.md)"
)
_CLUSTER_MODE_OF_STANDALONE = "a standalone cluster takes no Python script in cluster mode: use --deploy-mode client"
_DRIVER_PYTHON = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
_PYTHON_SETTINGS = ("spark.pyspark.driver.python", "spark.pyspark.python")
_PYTHON = "python3"  # Spark's default
# As in submit_main, whose package cannot be imported without py4j.
LENT, STRICT, SOLO = "RECHANNEL_LENT", "RECHANNEL_STRICT", "RECHANNEL_SOLO"
_UNTESTED = (
    "{master}: Rechannel is tested on standalone clusters only; on this one moves, drains and the release of executors "
    "are not tested (docs/where-it-runs.md)"
)
_PACKAGES = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class SubmitArguments:
    """The parsed command line.

    ``options`` are those of spark-submit, unchanged, and ``conf`` the Spark settings among them. ``properties`` are
    files that override spark-defaults.conf, the last one first; ``defaults``: whether spark-submit reads that too.
    ``solo`` is the mode of a solo run, "" for none.
    """

    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    dry_run: bool
    strict: bool
    solo: str
    config: str
    conf: Mapping[str, str]
    properties: tuple[str, ...]
    defaults: bool


@dataclass(frozen=True)
class SparkSubmitCommand:
    """Command to start, variables for its environment, and warnings for the user."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    warnings: tuple[str, ...]

    def shell_line(self) -> str:
        """Return variables and command as one line for a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.command)])


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--dry-run] [--strict] [--config FILE] [--solo [--apply]] [SPARK-SUBMIT OPTIONS]",
)
@click.argument("command_line", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGUMENTS]")
@exit_code_on_error
def submit(command_line: tuple[str, ...]) -> None:
    """Run an unmodified PySpark script by spark-submit, its queries attached to Rechannel.

    All options of spark-submit are passed on, such as --master URL or --conf KEY=VALUE; arguments after the script
    belong to the script. --dry-run prints the command without starting it. --strict ends the script if one of its
    sessions cannot be attached; without it such a session runs as without Rechannel. --config FILE is Rechannel's
    configuration, by default that of RECHANNEL_CONFIG. --solo needs no installation: it starts a private Redis and a
    controller that end with the script; --apply lets that controller act on its decisions, which are only recorded
    without it. Only client mode is supported. The exit code is spark-submit's.
    """
    arguments = parse(command_line)
    if arguments.config:
        load_settings(arguments.config)  # report a mistake before anything starts
    command = build_command(arguments, os.environ)
    for sentence in command.warnings:
        click.echo(f"rechannel: {sentence}", err=True)
    if arguments.dry_run:
        click.echo(command.shell_line())
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(  # noqa: S606  # nosec B606  no shell; spark-submit of the Spark that SPARK_HOME or pyspark names
        command.command[0], list(command.command), {**os.environ, **command.environment}
    )


def parse(command_line: Sequence[str]) -> SubmitArguments:
    """Parse a command line as spark-submit does: options, script, arguments of the script."""
    options: list[str] = []
    conf: dict[str, str] = {}
    values: dict[str, list[str]] = defaultdict(list)
    switches = set[str]()
    left = list(command_line)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in NO_SCRIPT_OPTIONS:
            raise CommandError(ExitCode.USAGE, f"{name} submits no Python script; use spark-submit")
        if name in SWITCHES or word in _OWN_SWITCHES:
            switches.add(name)
            options += [] if word in _OWN_SWITCHES else [word]
            continue
        if not equals:
            if not left:
                raise CommandError(ExitCode.USAGE, f"{name} has no value")
            value = left.pop(0)
        values[name].append(value)
        if name != "--config":
            options += [word] if equals else [name, value]
            conf |= _spark_setting(name, value)
    if not left:
        raise CommandError(ExitCode.USAGE, "no script is named; for example `rechannel submit --master URL script.py`")
    solo = ("apply" if "--apply" in switches else "observe") if "--solo" in switches else ""
    if "--apply" in switches and not solo:
        raise CommandError(ExitCode.USAGE, "--apply is for --solo; else set reschedule.mode in the configuration")
    if solo and values["--config"]:
        raise CommandError(ExitCode.USAGE, "--solo has a configuration of its own; leave --config or --solo out")
    properties = values["--properties-file"][-1:]
    return SubmitArguments(
        options=tuple(options),
        script=left[0],
        arguments=tuple(left[1:]),
        dry_run="--dry-run" in switches,
        strict="--strict" in switches,
        solo=solo,
        config=next(reversed(values["--config"]), ""),
        conf=conf,
        properties=(*reversed(values["--extra-properties-file"]), *properties),
        defaults="--load-spark-defaults" in switches or not any(properties),
    )


def _spark_setting(option: str, value: str) -> dict[str, str]:
    """Return the Spark setting that an option of spark-submit makes, if any."""
    if option in ("--conf", "-c"):
        key, _, setting = value.partition("=")
        return {key.strip(): setting.strip()}
    return {_SETTING_OF_OPTION[option]: value} if option in _SETTING_OF_OPTION else {}


def build_command(arguments: SubmitArguments, environ: Mapping[str, str]) -> SparkSubmitCommand:
    """Return the command to start; CommandError if the script would not be attached."""
    if not arguments.script.endswith(".py"):
        raise _refusal(f"{arguments.script} is not a Python script (.py); use spark-submit")
    home = spark_home(environ)
    conf = {**_settings_from_files(arguments, environ, home), **arguments.conf}
    master = conf.get("spark.master") or environ.get("MASTER", "")
    if (conf.get("spark.submit.deployMode") or environ.get("DEPLOY_MODE", "")) == "cluster":
        raise _refusal(_CLUSTER_MODE_OF_STANDALONE if master.startswith("spark://") else _CLUSTER_MODE)
    if "://" in arguments.script or not Path(arguments.script).is_file():
        raise _refusal(f"{arguments.script} is not a file on this machine; the driver runs here, so copy it")
    remote = conf.get("spark.remote") or environ.get("SPARK_REMOTE", "")
    if remote or "connect" in (conf.get("spark.api.mode", ""), environ.get("SPARK_API_MODE", "")):
        raise _refusal(
            "a Spark Connect session has no driver to attach to: use --master instead of --remote, SPARK_REMOTE and "
            "spark.api.mode=connect"
        )
    import rechannel

    root = Path(rechannel.__file__).parent
    main_file = root / "migration" / "link" / "submit_main.py"
    script = Path(arguments.script).resolve()  # the name that spark-submit gives to Python
    options = arguments.options
    if not conf.get("spark.app.name"):
        options += ("--name", script.name)  # Spark's default would be the name of submit_main
    command = (str(home / "bin" / "spark-submit"), *options, str(main_file), str(script), *arguments.arguments)
    untested = (_UNTESTED.format(master=master),) if master and not master.startswith(_TESTED_MASTERS) else ()
    environment = _environment(arguments, conf, environ, home, root.parent)
    return SparkSubmitCommand(command, environment, (*untested, *_warnings(conf)))


def _refusal(sentence: str) -> CommandError:
    return CommandError(ExitCode.REFUSED, sentence)


def spark_home(environ: Mapping[str, str]) -> Path:
    """Return the home of SPARK_HOME, else of pyspark, else of the spark-submit on PATH."""
    configured = environ.get("SPARK_HOME", "")
    if configured:
        if not (Path(configured) / "bin" / "spark-submit").is_file():
            raise _refusal(f"SPARK_HOME={configured} has no bin/spark-submit; set it to a Spark, or unset it")
        return Path(configured)
    spec = importlib.util.find_spec("pyspark")
    candidates = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    program = shutil.which("spark-submit", path=environ.get("PATH", ""))
    candidates += [Path(program).resolve().parent.parent] if program else []
    for home in candidates:
        if (home / "bin" / "spark-submit").is_file() and (home / "jars").is_dir():
            return home
    raise _refusal("no Spark is installed: set SPARK_HOME, or install pyspark")


def _environment(
    arguments: SubmitArguments, conf: Mapping[str, str], environ: Mapping[str, str], home: Path, package: Path
) -> dict[str, str]:
    variables: dict[str, str] = {}
    if not environ.get("SPARK_HOME"):
        variables["SPARK_HOME"] = str(home)  # otherwise spark-submit uses a Python that may have another Spark, or none
    if arguments.config:
        variables[CONFIG_VARIABLE] = str(Path(arguments.config).resolve())
    if arguments.strict:
        variables[STRICT] = "1"
    if arguments.solo:
        variables[SOLO] = arguments.solo
    # The script keeps its own Python: its packages are there, and its executors run the same version.
    chosen = any(environ.get(name) for name in _DRIVER_PYTHON) or any(conf.get(key) for key in _PYTHON_SETTINGS)
    if not chosen and not shutil.which(_PYTHON, path=environ.get("PATH", "")):
        variables["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Packages that the link needs and that Python lacks are imported from these directories.
    own = [item for item in sys.path if _PACKAGES.intersection(Path(item).parts)]
    variables[LENT] = os.pathsep.join([sys.implementation.cache_tag or "", *dict.fromkeys([str(package), *own])])
    return variables


def _warnings(conf: Mapping[str, str]) -> tuple[str, ...]:
    """Check the settings known before the start; the link checks those of the script."""
    try:
        from rechannel.migration.spark import compatibility
    except ImportError:  # no py4j in this Python, only in the Spark of SPARK_HOME
        return ()
    return tuple(finding.sentence for finding in compatibility.check_settings(conf.get))


def _settings_from_files(arguments: SubmitArguments, environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Read the files that spark-submit will read, in the same order."""
    directory = environ.get("SPARK_CONF_DIR") or str(home / "conf")
    paths = [*arguments.properties, *([str(Path(directory) / "spark-defaults.conf")] if arguments.defaults else [])]
    settings: dict[str, str] = {}
    for path in reversed(paths):
        if not Path(path).is_file():
            continue  # the content of a pipe, as in <(command), can be read only once, by spark-submit
        with contextlib.suppress(OSError, UnicodeDecodeError):  # spark-submit reports the error
            settings |= spark_properties.read(Path(path))
    return settings
