"""The main file of `rechannel submit` in its own process, as spark-submit starts it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

import rechannel
from rechannel.daemon.cli import submit
from rechannel.migration.link import submit_main
from rechannel.migration.link.submit_main import SessionAttacher
from rechannel.wire.codes import Mode

RUNNER = Path(rechannel.__file__).parent / "migration" / "link" / "submit_main.py"


def python(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run this Python; ``env``: its whole environment, this process' by default."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_script(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_script


def test_a_script_has_the_environment_of_a_plain_run(write):
    write("VALUE = 7\n", "beside.py")
    script = write(
        "import os, pickle, sys\nimport beside\n"
        "class Mine: pass\n"
        "print(sys.argv, __name__, __file__, os.path.realpath(sys.path[0]), beside.VALUE)\n"
        "print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, sys.modules['__main__'].Mine is Mine)\n"
        "if __name__ == '__main__':\n    print('main', file=sys.stderr)\n"
    )
    with_us, without = python(RUNNER, script, "a", "--b", "c d"), python(script, "a", "--b", "c d")
    assert with_us.stdout == without.stdout
    assert (with_us.returncode, with_us.stderr) == (0, "main\n")


@pytest.mark.parametrize(
    "body",
    [
        "import sys\nsys.exit(7)\n",
        "raise SystemExit('no such table')\n",
        "raise SystemExit\n",
        "def f():\n    raise ValueError('mine')\nf()\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise KeyError('second')\n",
        "class Odd(BaseException): pass\nraise Odd('base')\n",
        "x = = 1\n",
        "import sys\nsys.excepthook = lambda *three: print('own hook', three[1])\nraise ValueError('mine')\n",
        "import atexit\natexit.register(print, 'at exit')\nraise ValueError('mine')\n",
        "import os\nos._exit(9)\n",
    ],
)
def test_a_script_ends_as_in_a_plain_run(write, body):
    script = write(body)
    with_us, without = python(RUNNER, script), python(script)
    assert vars(with_us) | {"args": []} == vars(without) | {"args": []}


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_a_script_as_in_a_plain_run(write, number):
    script = write(f"import os\nos.kill(os.getpid(), {int(number)})\nprint('not reached')\n")
    assert python(RUNNER, script).returncode == python(script).returncode == -number


def test_a_missing_script_and_a_missing_argument_are_errors(tmp_path):
    done = python(RUNNER, tmp_path / "gone.py")
    assert done.returncode == 1
    assert "gone.py" in done.stderr
    alone = python(RUNNER)
    assert (alone.returncode, "usage" in alone.stderr) == (2, True)


@pytest.mark.parametrize(
    ("strict", "code", "output", "error"),
    [("", 0, "ran\n", "rechannel: not attached"), ("1", 1, "", "rechannel: not attached, as --strict asks")],
)
def test_without_rechannel_and_pyspark_a_script_runs_unless_strict(write, strict, code, output, error):
    environment = os.environ | {submit_main.STRICT: strict}
    done = python("-I", "-S", RUNNER, write("print('ran')\n"), env=environment)
    assert (done.returncode, done.stdout, done.stderr.count(error)) == (code, output, 1)


def test_a_sentence_that_standard_error_does_not_take_leaves_the_exit_code(write):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-I", "-S", str(RUNNER), str(write("print('ran')\n"))]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, b"ran\n")


class Context:
    """A SparkContext."""


def session_class() -> Any:
    context = Context()

    class Session:
        def __init__(self, application: str = "app-1", context: object = context) -> None:
            self.application, self.sparkContext = application, context
            self.options: dict[str, str] = {}

        class Builder:
            def getOrCreate(self) -> Any:  # noqa: N802
                session = Session()
                session.options["set"] = "later"
                return session

    return Session


def test_a_context_is_attached_once_its_session_has_its_options():
    Session = session_class()  # noqa: N806
    sessions = []
    SessionAttacher(lambda session: sessions.append((session.application, dict(session.options)))).watch(Session)
    Session.Builder().getOrCreate()
    assert sessions == [("app-1", {"set": "later"})], "once, when the builder is through"
    Session()
    Session.Builder().getOrCreate()
    assert len(sessions) == 1, "as each batch of a foreachBatch makes one"
    Session("app-2", Context())
    assert sessions[1:] == [("app-2", {})]


def test_a_stopped_context_is_not_kept_alive():
    Session = session_class()  # noqa: N806
    SessionAttacher(lambda session: None).watch(Session)
    context = Context()
    gone = weakref.ref(context)
    session = Session("app-1", context)
    del context, session
    gc.collect()
    assert gone() is None


def test_a_session_without_a_context_is_tried_once():
    tries = []
    attacher = SessionAttacher(tries.append)
    for _ in range(2):
        attacher.join("a session of Spark Connect")
    assert len(tries) == 1


def refuse(_: Any) -> None:
    raise ValueError("no key")


def test_a_link_that_fails_stops_nothing_and_is_reported_once(capsys):
    Session = session_class()  # noqa: N806
    SessionAttacher(refuse).watch(Session)
    for _ in range(2):
        assert Session.Builder().getOrCreate().application == "app-1"
    assert capsys.readouterr() == ("", "rechannel: not attached, the script runs as without it: no key\n")


def test_strict_a_link_that_fails_ends_the_script(capsys):
    Session = session_class()  # noqa: N806
    SessionAttacher(refuse, strict=True).watch(Session)
    with pytest.raises(SystemExit, match="1"):
        Session.Builder().getOrCreate()
    assert capsys.readouterr() == ("", "rechannel: not attached, as --strict asks, the script ends: no key\n")
    Session()  # of a batch of a script that went on all the same: never ends a query


def test_errors_of_the_builder_pass_and_a_closed_stderr_does_no_harm(monkeypatch):
    Session = session_class()  # noqa: N806

    def fail(self: Any) -> Any:
        raise KeyError("builder")

    Session.Builder.getOrCreate = fail
    attacher = SessionAttacher(lambda _: pytest.fail("attached"))
    attacher.watch(Session)
    with pytest.raises(KeyError):
        Session.Builder().getOrCreate()
    monkeypatch.setattr(sys, "stderr", None)
    attacher.print_once("nobody hears this")


# A PySpark and a Rechannel of three lines: the link says when it ends, as the real one does at exit.
PYSPARK = (
    "class SparkContext: pass\n"
    "class SparkSession:\n"
    "    def __init__(self):\n        self.sparkContext = SparkContext()\n"
    "    class Builder:\n        def getOrCreate(self):\n            return SparkSession()\n"
)
RECHANNEL = (
    "import atexit\ndef attach(session, strict):\n    print('attached')\n    atexit.register(print, 'link ends')\n"
)


def put_package(directory: Path, name: str, text: str) -> None:
    path = directory.joinpath(*name.split("."), "__init__.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in path.parents[: name.count(".") + 1]:
        (parent / "__init__.py").touch()
    path.write_text(text)


def put_packages(directory: Path) -> None:
    put_package(directory, "pyspark.sql", PYSPARK)
    put_package(directory, "rechannel", RECHANNEL)


def run_bare(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In a Python that has nothing installed."""
    return python("-S", RUNNER, script, env={"PATH": os.environ["PATH"], **variables})


def test_the_link_lasts_as_long_as_the_scripts_threads_and_ends_after_the_traceback(write, tmp_path):
    put_packages(tmp_path / "packages")
    script = write(
        "import atexit, pickle, sys, threading, time\n"
        "from pyspark.sql import SparkSession\n"
        "SparkSession.Builder().getOrCreate()\n"
        "def mine(): pass\n"
        "def late():\n"
        "    threading.main_thread().join()\n"
        "    print('late', pickle.loads(pickle.dumps(mine)) is mine, flush=True)\n"
        "    SparkSession.Builder().getOrCreate()\n"
        "threading.Thread(target=late).start()\n"
        "sys.excepthook = lambda *three: print('traceback', flush=True)\n"
        "atexit.register(lambda: print('at exit', sys.modules['__main__'].mine is mine))\n"
        "raise ValueError\n"
    )
    done = run_bare(script, PYTHONPATH=str(tmp_path / "packages"))
    assert done.stdout.splitlines() == [
        "attached",
        "traceback",
        "late True",
        "attached",
        "link ends",
        "at exit True",
        "link ends",
    ], done.stderr
    assert (done.returncode, done.stderr) == (1, "")


def test_packages_that_the_drivers_python_lacks_come_from_submits_and_last(write, tmp_path):
    put_packages(tmp_path / "ours")
    put_package(tmp_path / "theirs", "pyspark.sql", PYSPARK)
    put_package(tmp_path / "theirs", "both", "WHERE = 'theirs'\n")
    put_package(tmp_path / "ours", "both", "WHERE = 'ours'\n")
    script = write("from pyspark.sql import SparkSession\nSparkSession()\nimport both\nprint(both.WHERE)\n")
    lent = os.pathsep.join([str(sys.implementation.cache_tag), str(tmp_path / "ours")])
    done = run_bare(script, PYTHONPATH=str(tmp_path / "theirs"), RECHANNEL_LENT=lent)
    assert (done.stdout, done.stderr) == ("attached\ntheirs\nlink ends\n", "")
    other = os.pathsep.join(["cpython-27", str(tmp_path / "ours")])
    done = run_bare(script, PYTHONPATH=str(tmp_path / "theirs"), RECHANNEL_LENT=other)
    assert (done.returncode, done.stdout) == (0, "theirs\n")
    assert "No module named 'rechannel'" in done.stderr
    assert "runs on is cpython-27; name a Python in PYSPARK_PYTHON" in done.stderr
    assert submit_main.LENT == submit.LENT == "RECHANNEL_LENT"


@pytest.mark.parametrize(("mode", "options"), [("observe", "False"), ("apply", "True")])
def test_solo_and_its_mode_are_handed_to_attach(write, tmp_path, mode, options):
    put_package(tmp_path, "pyspark.sql", PYSPARK)
    put_package(tmp_path, "rechannel", "def attach(session, strict, solo, apply):\n    print(strict, solo, apply)\n")
    script = write("from pyspark.sql import SparkSession\nSparkSession()\n")
    done = run_bare(script, PYTHONPATH=str(tmp_path), RECHANNEL_SOLO=mode)
    assert (done.stdout, done.stderr) == (f"True True {options}\n", "")
    assert submit_main._APPLY == Mode.APPLY


def test_only_the_standard_library_is_imported_at_the_top():
    text = Path(submit_main.__file__).read_text()
    top = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in top if "rechannel" in line or "pyspark" in line]
