"""The command ``submit``: gives a PySpark script to spark-submit with Rechannel around it.

The script stays as it is: spark-submit's main file is `rechannel.migration.link.runner`, which runs the script and
attaches its sessions. This process becomes spark-submit, so signals and exit codes are its own.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from rechannel.conf.settings import CONFIG_VARIABLE
from rechannel.daemon.cli_options import guarded, settings_of
from rechannel.daemon.exits import CommandError, Exit

_SWITCHES = ("--supervise", "--verbose", "-v")  # the options of spark-submit that take no value
_OTHER_ERRANDS = ("--kill", "--status", "--version", "--usage-error", "--class")
_SHORT = {
    "--name": "spark.app.name",
    "--master": "spark.master",
    "--deploy-mode": "spark.submit.deployMode",
    "--remote": "spark.remote",
}
_BY_HAND = "or put `import rechannel; rechannel.attach(spark)` into the script, which works there too"
_DRIVER_PYTHON = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
_PYTHON_SETTINGS = ("spark.pyspark.driver.python", "spark.pyspark.python")


@dataclass(frozen=True)
class Words:
    """The command line, taken apart. ``options`` are spark-submit's, as they were given; ``conf`` what they set."""

    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    dry_run: bool
    config: str
    conf: Mapping[str, str]
    properties: str


@dataclass(frozen=True)
class Submission:
    """What is started: the command, and what its environment gets on top. ``warnings`` are sentences."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())

    def shown(self) -> str:
        """The whole as one line for a shell."""
        return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in self.environment.items()), self._line()])

    def _line(self) -> str:
        return shlex.join(self.command)


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--dry-run] [--config FILE] [SPARK-SUBMIT OPTIONS]",
    short_help="Run an unmodified PySpark script with its queries attached.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGUMENTS]")
@guarded
def submit(words: tuple[str, ...]) -> None:
    """Run an unmodified PySpark script by spark-submit, its streaming queries attached to Rechannel.

    All options of spark-submit may be given, as --master URL or --conf KEY=VALUE; what follows the script is the
    script's. --dry-run prints the command and starts nothing. --config FILE is Rechannel's configuration, by default
    that of RECHANNEL_CONFIG. Client mode only. Exits as spark-submit does.
    """
    parsed = parse(words)
    if parsed.config:
        settings_of(parsed.config)  # a mistake is told before anything starts
    submission = plan(parsed, os.environ)
    for sentence in submission.warnings:
        click.echo(f"rechannel: {sentence}", err=True)
    if parsed.dry_run:
        click.echo(submission.shown())
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(  # noqa: S606  no shell; spark-submit of the Spark that SPARK_HOME or pyspark names
        submission.command[0], list(submission.command), {**os.environ, **submission.environment}
    )


def parse(words: Sequence[str]) -> Words:
    """Take a command line apart, as spark-submit does: options first, then the script, then the script's own."""
    options: list[str] = []
    conf: dict[str, str] = {}
    dry_run, config, properties = False, "", ""
    left = list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word == "--dry-run":
            dry_run = True
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in _OTHER_ERRANDS:
            raise CommandError(Exit.USAGE, f"{name} submits no Python script; call spark-submit itself")
        if name in _SWITCHES:
            options.append(word)
            continue
        if not equals:
            if not left:
                raise CommandError(Exit.USAGE, f"{name} has no value")
            value = left.pop(0)
        if name == "--config":
            config = value
            continue
        options += [word] if equals else [name, value]
        if name in ("--conf", "-c"):
            key, _, setting = value.partition("=")
            conf[key.strip()] = setting.strip()
        elif name in _SHORT:
            conf[_SHORT[name]] = value
        elif name == "--properties-file":
            properties = value
    if not left:
        raise CommandError(Exit.USAGE, "no script is named; as in `rechannel submit --master URL script.py`")
    return Words(tuple(options), left[0], tuple(left[1:]), dry_run, config, conf, properties)


def plan(words: Words, environ: Mapping[str, str]) -> Submission:
    """Say what is to be started; CommandError where it cannot be, or would not be attached."""
    if not words.script.endswith(".py"):
        raise CommandError(Exit.REFUSED, f"{words.script} is no Python script (.py); call spark-submit itself")
    if "://" in words.script or not Path(words.script).is_file():
        raise CommandError(Exit.REFUSED, f"{words.script} is no file on this machine; the driver runs here, so copy it")
    home = spark_home(environ)
    conf = {**_defaults(words.properties, environ, home), **words.conf}
    mode = conf.get("spark.submit.deployMode") or environ.get("DEPLOY_MODE", "")
    if mode == "cluster":
        raise CommandError(
            Exit.REFUSED,
            f"in cluster mode the driver runs elsewhere, where this command has no hand in it: use --deploy-mode "
            f"client, {_BY_HAND}",
        )
    remote = conf.get("spark.remote") or environ.get("SPARK_REMOTE", "")
    if remote or "connect" in (conf.get("spark.api.mode", ""), environ.get("SPARK_API_MODE", "")):
        raise CommandError(
            Exit.REFUSED,
            "a Spark Connect session has no driver to attach to: use --master instead of --remote, SPARK_REMOTE and "
            "spark.api.mode=connect",
        )
    import rechannel

    root = Path(rechannel.__file__).parent
    runner = root / "migration" / "link" / "runner.py"
    options = words.options
    if not conf.get("spark.app.name"):
        options += ("--name", Path(words.script).name)  # Spark's own default would be the runner's
    command = (str(home / "bin" / "spark-submit"), *options, str(runner), words.script, *words.arguments)
    return Submission(command, _environment(words, conf, environ, root.parent), _warnings(conf))


def spark_home(environ: Mapping[str, str]) -> Path:
    """Find the Spark to submit with: SPARK_HOME, else pyspark's own, else that of the spark-submit on PATH."""
    given = environ.get("SPARK_HOME", "")
    if given:
        if not (Path(given) / "bin" / "spark-submit").is_file():
            raise CommandError(
                Exit.REFUSED, f"SPARK_HOME={given} holds no bin/spark-submit; set it to a Spark, or unset"
            )
        return Path(given)
    spec = importlib.util.find_spec("pyspark")
    places = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    found = shutil.which("spark-submit", path=environ.get("PATH", ""))
    places += [Path(found).resolve().parent.parent] if found else []
    for place in places:
        if (place / "bin" / "spark-submit").is_file() and (place / "jars").is_dir():
            return place
    raise CommandError(Exit.REFUSED, "no Spark is found: set SPARK_HOME, or install pyspark")


def _environment(words: Words, conf: Mapping[str, str], environ: Mapping[str, str], package: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    if words.config:
        found[CONFIG_VARIABLE] = str(Path(words.config).resolve())
    if not any(environ.get(name) for name in _DRIVER_PYTHON) and not any(conf.get(key) for key in _PYTHON_SETTINGS):
        found["PYSPARK_DRIVER_PYTHON"] = sys.executable  # the one that has what the link needs
    # Last: nothing else that lies beside the package is to come before what the script finds today.
    path = [item for item in environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    if str(package) not in path and "site-packages" not in package.parts:
        found["PYTHONPATH"] = os.pathsep.join([*path, str(package)])
    return found


def _warnings(conf: Mapping[str, str]) -> tuple[str, ...]:
    """Of the settings known by now; those that the script sets itself stand in `rechannel status`, as problems."""
    try:
        from rechannel.migration.link import compatibility
    except ImportError:  # no py4j in this Python, but in the Spark of SPARK_HOME
        return ()
    return tuple(finding.sentence for finding in compatibility.examine(lambda key, default: conf.get(key, default)))


def _defaults(properties: str, environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Read the properties file that spark-submit will read: the one given, or spark-defaults.conf."""
    directory = environ.get("SPARK_CONF_DIR") or str(home / "conf")
    path = Path(properties) if properties else Path(directory) / "spark-defaults.conf"
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}  # spark-submit says what is wrong with it
    for line in (text.strip() for text in lines):
        if line and not line.startswith(("#", "!")):
            key, _, value = line.replace("=", " ", 1).partition(" ") if "=" in line.split()[0] else line.partition(" ")
            found[key.strip()] = value.strip().lstrip("=").strip()
    return found
