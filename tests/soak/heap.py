"""Live objects of a JVM, asked over HotSpot's attach protocol: what ``jcmd`` does, without a JDK.

Source: ``sun.tools.attach.VirtualMachineImpl`` and ``attachListener_linux.cpp`` of OpenJDK.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import time
from pathlib import Path

_TOTAL = re.compile(r"^Total +\d+ +(\d+)$", re.MULTILINE)  # objects, bytes
_PATIENCE = 10.0  # seconds for a JVM to open its socket, and for an answer
_PAUSE = 0.05


def live_heap(pid: int) -> float | None:
    """Return the bytes of a JVM's live objects, None if the JVM does not answer.

    A histogram of classes collects the garbage and counts what is left before anything else runs: the heap's size a
    moment later has hundreds of MiB of new garbage in it.
    """
    try:
        return live_bytes(_ask(pid, "GC.class_histogram"))
    except OSError:
        return None


def live_bytes(histogram: str) -> float | None:
    """Return the bytes in the last line of a histogram of classes, None where there is none."""
    total = _TOTAL.search(histogram)
    return float(total[1]) if total else None


def _ask(pid: int, command: str) -> str:
    """Return the answer to a diagnostic command, sent as version, ``jcmd``, command and two empty arguments."""
    path = _socket(pid)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_PATIENCE)
        connection.connect(str(path))
        connection.sendall(b"\0".join((b"1", b"jcmd", command.encode(), b"", b"")) + b"\0")
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer.decode(errors="replace")


def _socket(pid: int) -> Path:
    """Return the socket of a JVM. It opens one at a SIGQUIT, where a file of a certain name asks for it."""
    path = Path(f"/tmp/.java_pid{pid}")
    if path.exists():
        return path
    request = Path(f"/proc/{pid}/cwd/.attach_pid{pid}")
    request.touch()
    try:
        os.kill(pid, signal.SIGQUIT)
        end = time.monotonic() + _PATIENCE
        while not path.exists():
            if time.monotonic() > end:
                raise TimeoutError(f"JVM {pid} opens no socket")
            time.sleep(_PAUSE)
    finally:
        with contextlib.suppress(OSError):
            request.unlink()
    return path
