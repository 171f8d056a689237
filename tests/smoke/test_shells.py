"""Solo in a `pyspark` shell on a terminal, and in a process that runs cells as a notebook's kernel does."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.guard import MARKER_VARIABLE
from testbed.processes import wait_until
from testbed.spark_cluster import spark_home
from testbed.stack import PATIENCE, ROOT, Stack

pytestmark = [pytest.mark.spark, pytest.mark.redis]
CELL = """\
import rechannel
link = rechannel.attach(spark, solo=True, strict=True)
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
writer = rows.groupBy((rows.value % 10).alias("k")).count().writeStream.format("noop").outputMode("update")
query = writer.queryName("shell").option("checkpointLocation", {checkpoint!r}).start()
"""


def settings(stack: Stack) -> dict[str, str]:
    return stack.cluster.conf(executor_cores=1) | {"spark.cores.max": "1", "spark.sql.shuffle.partitions": "2"}


def queries(environment: Mapping[str, str], directory: Path) -> list[tuple[str, str]]:
    """Return application and name of each query with stages, by `rechannel status` of the live solo run."""
    line = [sys.executable, "-m", "rechannel", "status", "--json"]
    done = subprocess.run(line, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return [
        (application["application"], query["name"])
        for application in answer.get("applications", [])
        for query in application["queries"]
        if query["stages"]
    ]


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, command: list[str], environment: Mapping[str, str], directory: Path) -> None:
        self._terminal, inside = pty.openpty()
        self.process = subprocess.Popen(
            command,
            env=environment,
            cwd=directory,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Control-C is for this session
        )
        os.close(inside)
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the terminal's last process has ended
            while data := os.read(self._terminal, 4096):
                self._output += data

    def shows(self, text: bytes) -> bool:
        assert self.process.poll() is None, self.text()
        return text in self._output

    def text(self) -> str:
        return self._output.decode(errors="replace")[-3000:]

    def send(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        os.close(self._terminal)


def test_a_pyspark_shell(stack: Stack, tmp_path: Path, temporary: Path) -> None:
    environment = {**stack.cluster.driver_environment(), "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}
    environment = {name: value for name, value in environment.items() if not name.startswith("RECHANNEL_")}
    environment |= {"TMPDIR": str(temporary), MARKER_VARIABLE: stack.group.marker}
    command = [str(spark_home() / "bin" / "pyspark")]
    for key, value in settings(stack).items():
        command += ["--conf", f"{key}={value}"]
    (tmp_path / "cell.py").write_text(CELL.format(checkpoint=str(tmp_path / "checkpoint")))
    shell = Terminal(command, environment, tmp_path)

    def await_shown(text: str) -> None:
        wait_until(lambda: shell.shows(text.encode()), text, PATIENCE, 0.2, shell.text)

    try:
        await_shown(">>> ")
        shell.send("exec(open('cell.py').read()); print('is', 'attached')\n")
        await_shown("is attached")
        wait_until(lambda: queries(environment, tmp_path), "status has the query", PATIENCE, 1.0, shell.text)
        shell.send("import time; print('is', 'asleep'); time.sleep(600)\n")
        await_shown("is asleep")
        shell.send("\x03")  # PySpark's own handler cancels all jobs of the application, the query's too
        await_shown("KeyboardInterrupt")
        shell.send("print('link', link.active, link.problem or 'well')\n")
        await_shown("link True well")
        (name,) = {path.name.rpartition("-")[0] for path in temporary.glob("rechannel-solo-*")}
        assert name == f"rechannel-solo-{shell.process.pid}"
        shell.send("\x04")
        assert shell.process.wait(PATIENCE) == 0, shell.text()
        wait_until(lambda: list(temporary.glob("rechannel*")) == [], "nothing is left", PATIENCE)
    finally:
        shell.close()


def test_cells_in_threads_an_interrupt_and_a_session_made_anew(stack: Stack, tmp_path: Path, temporary: Path) -> None:
    directory = tmp_path / "kernel"
    variables = {"TMPDIR": str(temporary), "RECHANNEL_LINK__DIRECTORY": ""}
    process = stack.start_module("tests.smoke.kernel_app", directory, settings(stack), "kernel", **variables)
    environment = {name: value for name, value in stack.environment.items() if not name.startswith("RECHANNEL_")}
    environment["TMPDIR"] = str(temporary)

    def answer(cell: str) -> dict[str, Any]:
        path = directory / f"{cell}.json"
        stack.wait(f"the cell {cell} is through", path.exists, every=0.2)
        result: dict[str, Any] = json.loads(path.read_text())
        return result

    def applications() -> set[str]:
        return {application for application, _ in queries(environment, tmp_path)}

    assert answer("first") == {"active": True}
    stack.wait("status has the query", lambda: bool(applications()), every=1.0)
    (before,) = applications()
    (directory / "next").touch()
    assert answer("interrupted") == {"query": True, "active": True, "interrupts": 1}
    renewed = answer("renewed")
    assert "is stopped: create a new one" in renewed.pop("problem")
    assert renewed == {"same": False, "active": True, "before": False}
    stack.wait("status has the new query alone", lambda: bool(applications() - {before}), every=1.0)
    stack.group.processes.pop("kernel")  # it may end now
    (directory / "stop").touch()
    assert process.popen.wait(PATIENCE) == 0, process.log_tail(40)
    wait_until(lambda: list(temporary.glob("rechannel*")) == [], "nothing is left", PATIENCE)
