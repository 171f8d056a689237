"""The runner in a process of its own, as spark-submit starts it, and what it does to a class like SparkSession."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rechannel
from rechannel.migration.link import runner
from rechannel.migration.link.runner import Attacher

RUNNER = Path(rechannel.__file__).parent / "migration" / "link" / "runner.py"


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUNNER), str(script), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def plain(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *words], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def put(text: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return put


def test_a_script_sees_what_it_would_see_without_us(write):
    write("VALUE = 7\n", "beside.py")
    script = write(
        "import os, pickle, sys\nimport beside\n"
        "class Mine: pass\n"
        "print(sys.argv, __name__, __file__, os.path.realpath(sys.path[0]), beside.VALUE)\n"
        "print(type(pickle.loads(pickle.dumps(Mine()))) is Mine, sys.modules['__main__'].Mine is Mine)\n"
        "if __name__ == '__main__':\n    print('main', file=sys.stderr)\n"
    )
    with_us, without = run(script, "a", "--b", "c d"), plain(script, "a", "--b", "c d")
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
def test_ends_as_without_us(write, body):
    script = write(body)
    with_us, without = run(script), plain(script)
    assert (with_us.returncode, with_us.stdout, with_us.stderr) == (
        without.returncode,
        without.stdout,
        without.stderr,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_it_as_without_us(write, number):
    script = write(f"import os\nos.kill(os.getpid(), {int(number)})\nprint('not reached')\n")
    assert run(script).returncode == plain(script).returncode == -number


def test_a_script_that_is_not_there_is_told_and_usage_too(tmp_path):
    done = run(tmp_path / "gone.py")
    assert done.returncode == 1
    assert "gone.py" in done.stderr
    alone = subprocess.run([sys.executable, str(RUNNER)], capture_output=True, text=True, timeout=120, check=False)
    assert (alone.returncode, "usage" in alone.stderr) == (2, True)


def test_without_rechannel_or_pyspark_the_script_runs_and_is_told_once(write):
    script = write("print('ran')\n")
    command = [sys.executable, "-I", "-S", str(RUNNER), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert done.stderr.count("rechannel: not attached") == 1


class Link:
    problem = ""

    def __init__(self) -> None:
        self.detached = 0

    def detach(self) -> None:
        self.detached += 1


def session_class() -> Any:
    class Session:
        def __init__(self, application: str = "app-1") -> None:
            self.application = application
            self.options: dict[str, str] = {}

        class Builder:
            def getOrCreate(self) -> Any:  # noqa: N802
                session = Session()
                session.options["set"] = "later"
                return session

    return Session


def test_sessions_of_an_application_share_a_link_that_ends_with_the_script():
    Session = session_class()  # noqa: N806
    links: dict[str, Link] = {}
    seen = []

    def attach(session: Any) -> Link:
        seen.append(dict(session.options))
        return links.setdefault(session.application, Link())

    before = Session.Builder.getOrCreate, Session.__init__
    attacher = Attacher(attach)
    with attacher.watching(Session):
        Session.Builder().getOrCreate()
        assert seen == [{"set": "later"}], "once, when the builder is through"
        Session.Builder().getOrCreate()
        Session()
        Session("app-2")
    assert (Session.Builder.getOrCreate, Session.__init__) == before
    assert len(seen) == 4
    attacher.end()
    attacher.end()
    assert [link.detached for link in links.values()] == [1, 1]


def test_a_link_that_fails_stops_nothing_and_is_told_once(capsys):
    Session = session_class()  # noqa: N806

    def attach(_: Any) -> Link:
        raise RuntimeError("a Spark Connect session has no driver JVM to steer")

    attacher = Attacher(attach)
    with attacher.watching(Session):
        assert Session.Builder().getOrCreate().application == "app-1"
        Session.Builder().getOrCreate()
    attacher.end()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("rechannel:") == 1
    assert "Spark Connect" in captured.err


def test_what_the_builder_raises_comes_through_and_a_closed_stderr_does_no_harm(monkeypatch):
    Session = session_class()  # noqa: N806

    def fail(self: Any) -> Any:
        raise KeyError("builder")

    Session.Builder.getOrCreate = fail
    attacher = Attacher(lambda _: pytest.fail("attached"))
    with attacher.watching(Session), pytest.raises(KeyError):
        Session.Builder().getOrCreate()
    monkeypatch.setattr(sys, "stderr", None)
    attacher.say("nobody hears this")


def test_an_end_that_fails_is_told(capsys):
    def detach() -> None:
        raise OSError("disk")

    attacher = Attacher(lambda _: SimpleNamespace(problem="", detach=detach))
    attacher.join(object())
    attacher.end()
    assert "did not end well: disk" in capsys.readouterr().err


def test_nothing_of_ours_is_imported_at_the_top():
    text = Path(runner.__file__).read_text()
    top = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in top if "rechannel" in line or "pyspark" in line]
