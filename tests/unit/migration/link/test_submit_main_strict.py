"""`rechannel submit --strict`: a script that cannot be attached ends, with one message."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rechannel
from rechannel.migration.link import submit_main
from rechannel.migration.link.submit_main import SessionAttacher

RUNNER = Path(rechannel.__file__).parent / "migration" / "link" / "submit_main.py"


class Session:
    class Builder:
        def getOrCreate(self) -> Session:  # noqa: N802  as PySpark calls it
            return Session()


def refuse(_: Any) -> None:
    raise ValueError("no key")


@pytest.mark.parametrize("strict", [False, True])
def test_a_session_that_cannot_be_attached(strict: bool, capsys: pytest.CaptureFixture[str]) -> None:
    class Own(Session):
        class Builder(Session.Builder):
            pass

    SessionAttacher(refuse, strict=strict).watch(Own)
    if strict:
        with pytest.raises(SystemExit) as caught:
            Own.Builder().getOrCreate()
        assert caught.value.code == 1
    else:
        Own.Builder().getOrCreate()
    what = "as --strict asks, the script ends" if strict else "the script runs as without it"
    assert capsys.readouterr().err == f"rechannel: not attached, {what}: no key\n"


def test_without_pyspark_a_strict_script_does_not_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("print('ran')\n")
    command = [sys.executable, "-I", "-S", str(RUNNER), str(script)]
    environment = {**os.environ, submit_main.STRICT: "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("rechannel: not attached, as --strict asks") == 1
