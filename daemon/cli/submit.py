"""The command ``submit``: gives a PySpark script to spark-submit with Rechannel around it.

The script stays as it is: spark-submit's main file is `rechannel.migration.link.submit_main`, which runs the script and
attaches its sessions. This process becomes spark-submit, so signals and exit codes are its own.
"""

from __future__ import annotations

import contextlib
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
from rechannel.daemon.cli.options import exit_code_on_error, load_settings
from rechannel.daemon.doctor import spark_properties
from rechannel.wire.exit_codes import CommandError, ExitCode

# The options of spark-submit that take no value, as org.apache.spark.launcher.SparkSubmitOptionParser has them.
SWITCHES = ("--supervise", "--verbose", "-v", "--load-spark-defaults")
OTHER_ERRANDS = ("--kill", "--status", "--version", "--usage-error", "--help", "-h", "--class")
_OWN_SWITCHES = ("--dry-run", "--strict")
_SHORT = {
    "--name": "spark.app.name",
    "--master": "spark.master",
    "--deploy-mode": "spark.submit.deployMode",
    "--remote": "spark.remote",
}
_TRIED = ("spark://", "local")
_BY_HAND = "or put `import rechannel; rechannel.attach(spark)` into the script, which works there too"
_DRIVER_PYTHON = ("PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON")
_PYTHON_SETTINGS = ("spark.pyspark.driver.python", "spark.pyspark.python")
_PYTHON = "python3"  # which Spark takes else
LENT, STRICT = "RECHANNEL_LENT", "RECHANNEL_STRICT"  # as in the runner, whose package cannot be had without py4j
_UNTRIED = (
    "{master}: Rechannel was tried on standalone clusters only; on this one moves, drains and the release of executors "
    "are untried (docs/compatibility.md)"
)
_PACKAGES = {"site-packages", "dist-packages"}


@dataclass(frozen=True)
class SubmitArguments:
    """The command line, taken apart. ``options`` are spark-submit's, as they were given; ``conf`` what they set.

    ``properties``: the files that go before spark-defaults.conf, later ones first; ``defaults``: whether that counts.
    """

    options: tuple[str, ...]
    script: str
    arguments: tuple[str, ...]
    dry_run: bool
    strict: bool
    config: str
    conf: Mapping[str, str]
    properties: tuple[str, ...]
    defaults: bool


@dataclass(frozen=True)
class SparkSubmitCommand:
    """What is started: the command, and what its environment gets on top. ``warnings`` are sentences."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())

    def shown(self) -> str:
        """The whole as one line for a shell."""
        return " ".join(
            [*(f"{name}={shlex.quote(value)}" for name, value in self.environment.items()), shlex.join(self.command)]
        )


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--dry-run] [--strict] [--config FILE] [SPARK-SUBMIT OPTIONS]",
    short_help="Run an unmodified PySpark script with its queries attached.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="SCRIPT.py [ARGUMENTS]")
@exit_code_on_error
def submit(words: tuple[str, ...]) -> None:
    """Run an unmodified PySpark script by spark-submit, its streaming queries attached to Rechannel.

    All options of spark-submit may be given, as --master URL or --conf KEY=VALUE; what follows the script is the
    script's. --dry-run prints the command and starts nothing. --strict ends the script where a session of it cannot be
    attached, which runs as without Rechannel otherwise. --config FILE is Rechannel's configuration, by default that of
    RECHANNEL_CONFIG. Client mode only. Exits as spark-submit does.
    """
    parsed = parse(words)
    if parsed.config:
        load_settings(parsed.config)  # a mistake is told before anything starts
    submission = plan(parsed, os.environ)
    for sentence in submission.warnings:
        click.echo(f"rechannel: {sentence}", err=True)
    if parsed.dry_run:
        click.echo(submission.shown())
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(  # noqa: S606  # nosec B606  no shell; spark-submit of the Spark that SPARK_HOME or pyspark names
        submission.command[0], list(submission.command), {**os.environ, **submission.environment}
    )


def parse(words: Sequence[str]) -> SubmitArguments:
    """Take a command line apart, as spark-submit does: options first, then the script, then the script's own."""
    options: list[str] = []
    conf: dict[str, str] = {}
    own = set[str]()
    config, properties, defaults = "", "", False
    extra: list[str] = []
    left = list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word in _OWN_SWITCHES:
            own.add(word)
            continue
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in OTHER_ERRANDS:
            raise CommandError(ExitCode.USAGE, f"{name} submits no Python script; call spark-submit itself")
        if name in SWITCHES:
            options.append(word)
            defaults = defaults or name == "--load-spark-defaults"
            continue
        if not equals:
            if not left:
                raise CommandError(ExitCode.USAGE, f"{name} has no value")
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
        elif name == "--extra-properties-file":
            extra.append(value)
    if not left:
        raise CommandError(ExitCode.USAGE, "no script is named; as in `rechannel submit --master URL script.py`")
    files = (*reversed(extra), *([properties] if properties else []))
    defaults = defaults or not properties
    dry_run, strict = (switch in own for switch in _OWN_SWITCHES)
    return SubmitArguments(tuple(options), left[0], tuple(left[1:]), dry_run, strict, config, conf, files, defaults)


def plan(words: SubmitArguments, environ: Mapping[str, str]) -> SparkSubmitCommand:
    """Say what is to be started; CommandError where it cannot be, or would not be attached."""
    if not words.script.endswith(".py"):
        raise CommandError(ExitCode.REFUSED, f"{words.script} is no Python script (.py); call spark-submit itself")
    if "://" in words.script or not Path(words.script).is_file():
        raise CommandError(
            ExitCode.REFUSED, f"{words.script} is no file on this machine; the driver runs here, so copy it"
        )
    home = spark_home(environ)
    conf = {**_from_files(words, environ, home), **words.conf}
    mode = conf.get("spark.submit.deployMode") or environ.get("DEPLOY_MODE", "")
    if mode == "cluster":
        raise CommandError(
            ExitCode.REFUSED,
            f"in cluster mode the driver runs elsewhere, where this command has no hand in it: use --deploy-mode "
            f"client, {_BY_HAND}",
        )
    remote = conf.get("spark.remote") or environ.get("SPARK_REMOTE", "")
    if remote or "connect" in (conf.get("spark.api.mode", ""), environ.get("SPARK_API_MODE", "")):
        raise CommandError(
            ExitCode.REFUSED,
            "a Spark Connect session has no driver to attach to: use --master instead of --remote, SPARK_REMOTE and "
            "spark.api.mode=connect",
        )
    import rechannel

    root = Path(rechannel.__file__).parent
    runner = root / "migration" / "link" / "submit_main.py"
    script = Path(words.script).resolve()  # as spark-submit itself names a script to Python
    options = words.options
    if not conf.get("spark.app.name"):
        options += ("--name", script.name)  # Spark's own default would be the runner's
    command = (str(home / "bin" / "spark-submit"), *options, str(runner), str(script), *words.arguments)
    master = conf.get("spark.master") or environ.get("MASTER", "")
    untried = (_UNTRIED.format(master=master),) if master and not master.startswith(_TRIED) else ()
    environment = _environment(words, conf, environ, home, root.parent)
    return SparkSubmitCommand(command, environment, (*untried, *_warnings(conf)))


def spark_home(environ: Mapping[str, str]) -> Path:
    """Find the Spark to submit with: SPARK_HOME, else pyspark's own, else that of the spark-submit on PATH."""
    given = environ.get("SPARK_HOME", "")
    if given:
        if not (Path(given) / "bin" / "spark-submit").is_file():
            raise CommandError(
                ExitCode.REFUSED, f"SPARK_HOME={given} holds no bin/spark-submit; set it to a Spark, or unset"
            )
        return Path(given)
    spec = importlib.util.find_spec("pyspark")
    places = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    found = shutil.which("spark-submit", path=environ.get("PATH", ""))
    places += [Path(found).resolve().parent.parent] if found else []
    for place in places:
        if (place / "bin" / "spark-submit").is_file() and (place / "jars").is_dir():
            return place
    raise CommandError(ExitCode.REFUSED, "no Spark is found: set SPARK_HOME, or install pyspark")


def _environment(
    words: SubmitArguments, conf: Mapping[str, str], environ: Mapping[str, str], home: Path, package: Path
) -> dict[str, str]:
    found: dict[str, str] = {}
    if not environ.get("SPARK_HOME"):
        found["SPARK_HOME"] = str(home)  # spark-submit would ask a Python that may have another Spark, or none
    if words.config:
        found[CONFIG_VARIABLE] = str(Path(words.config).resolve())
    if words.strict:
        found[STRICT] = "1"
    # The script keeps the Python it has without us: its packages are there, and its executors run the same version.
    chosen = any(environ.get(name) for name in _DRIVER_PYTHON) or any(conf.get(key) for key in _PYTHON_SETTINGS)
    if not chosen and not shutil.which(_PYTHON, path=environ.get("PATH", "")):
        found["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # What that Python has not got of what the link needs, the runner takes from ours.
    own = [item for item in sys.path if _PACKAGES.intersection(Path(item).parts)]
    found[LENT] = os.pathsep.join([sys.implementation.cache_tag or "", *dict.fromkeys([str(package), *own])])
    return found


def _warnings(conf: Mapping[str, str]) -> tuple[str, ...]:
    """Of the settings known by now; those that the script sets itself stand in `rechannel status`, as problems."""
    try:
        from rechannel.migration.spark import compatibility
    except ImportError:  # no py4j in this Python, but in the Spark of SPARK_HOME
        return ()
    return tuple(finding.sentence for finding in compatibility.examine(lambda key, default: conf.get(key, default)))


def _from_files(words: SubmitArguments, environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """Read the files that spark-submit will read, in its order: spark-defaults.conf, then those that were named."""
    directory = environ.get("SPARK_CONF_DIR") or str(home / "conf")
    paths = [*words.properties, *([str(Path(directory) / "spark-defaults.conf")] if words.defaults else [])]
    found: dict[str, str] = {}
    for path in reversed(paths):
        if not Path(path).is_file():
            continue  # what comes out of a pipe, as <(command) names one, comes out once, and is for spark-submit
        with contextlib.suppress(OSError, UnicodeDecodeError):  # spark-submit says what is wrong with it
            found |= spark_properties.read(Path(path))
    return found
