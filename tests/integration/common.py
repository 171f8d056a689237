"""Helpers of these tests: waiting, a configuration, a controller that leads in a thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rechannel.conf.settings import Settings
from rechannel.daemon.service import run_controller
from rechannel.wire.signing import make_keys
from testbed.redis_server import RedisServer

#: times the seconds that are waited, for slow machines
PATIENCE = float(os.environ.get("RECHANNEL_TEST_PATIENCE", "1"))


def until(condition: Callable[[], Any], what: str = "", *, seconds: float = 30.0) -> Any:
    """Wait until something holds, and return it."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}" if what else "waited in vain"
        time.sleep(0.02)
    return result


def configured(directory: Path, server: RedisServer, more: str, *, password: str = "geheim") -> Path:
    """Write a configuration with a fresh key pair; ``more`` goes on in the table ``redis``."""
    (directory / "password").write_text(f"{password}\n")
    make_keys(directory / "keys")
    path = directory / "rechannel.toml"
    path.write_text(
        f"""
[signing]
private_key_file = "{directory}/keys/signing.key"
public_key_file = "{directory}/keys/signing.pub"
[redis]
url = "unix://{server.socket_path}"
password_file = "{directory}/password"
{more}
"""
    )
    return path


@contextlib.contextmanager
def leading(settings: Settings, leads: Callable[[], Any]) -> Iterator[None]:
    """A controller in a thread of this process; begun with once ``leads`` says so."""
    stop = threading.Event()
    thread = threading.Thread(target=run_controller, args=(settings, stop))
    thread.start()
    try:
        until(leads)
        yield
    finally:
        stop.set()
        thread.join(30 * PATIENCE)
    assert not thread.is_alive()
