from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from testbed.guard import marked_pids
from testbed.processes import ProcessDiedError, ProcessGroup, wait_until

pytestmark = pytest.mark.root
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]
# A child that starts a grandchild in a session of its own and ignores being terminated.
STUBBORN = [
    sys.executable,
    "-c",
    (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True);"
        "print('up', flush=True); time.sleep(600)"
    ),
]
OWNER = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
from testbed.processes import ProcessGroup
with ProcessGroup(Path(sys.argv[1])) as group:
    group.start("stubborn", {stubborn!r})
    while "up" not in (Path(sys.argv[1]) / "stubborn.log").read_text():
        time.sleep(0.02)
    print(group.marker, flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_after_the_block(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path, grace_s=0.5) as group:
        group.start("sleeper", SLEEPER)
        stubborn = group.start("stubborn", STUBBORN)
        wait_until(lambda: "up" in stubborn.log_tail(), "the child is up", 60.0)
        assert len(marked_pids(group.marker)) == 3
    assert marked_pids(group.marker) == []


def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    group = ProcessGroup(tmp_path)
    with pytest.raises(RuntimeError, match="boom"), group:
        group.start("sleeper", SLEEPER)
        raise RuntimeError("boom")
    assert marked_pids(group.marker) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_signalled(tmp_path: Path, number: int) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(stubborn=STUBBORN), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    with owner:
        assert owner.stdout is not None
        marker = owner.stdout.readline().strip()
        assert len(marked_pids(marker)) == 2
        owner.send_signal(number)
        wait_until(lambda: not marked_pids(marker), "all are gone", 60.0)
        owner.wait(20)


def test_a_child_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group:
        process = group.start("crash", [sys.executable, "-c", "import sys; sys.exit('no such luck')"])
        process.popen.wait()
        with pytest.raises(ProcessDiedError, match="no such luck"):
            group.check()


def test_each_child_leads_a_session_and_can_be_stopped_alone(tmp_path: Path) -> None:
    with ProcessGroup(tmp_path) as group:
        first, second = group.start("first", SLEEPER), group.start("second", SLEEPER)
        assert os.getsid(first.pid) == first.pid
        group.kill("first")
        assert not psutil.pid_exists(first.pid)
        assert second.alive()
