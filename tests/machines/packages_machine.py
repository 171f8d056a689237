"""A booted Debian machine for the tests of packages: systemd-nspawn on an overlay of one base."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from testbed.processes import ROOT, Block, wait_until

PROGRAMS = ("systemd-nspawn", "debootstrap", "nsenter", "ip")
INSIDE = "systemd-sysv,dbus,python3,python3-apt,openssh-server,redis-server"
BRIDGE, GATEWAY, ADDRESS = "rcd0", "10.78.0.1", "10.78.0.2"
PATIENCE = 120.0  # seconds


def obstacle() -> str:
    """Return the reason for which no machine can be booted here; "" if there is none."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}: NOT tried on a booted machine"
    return "" if os.geteuid() == 0 else "needs root: NOT tried on a booted machine"


def base() -> Path:
    """Return the root of a Debian system: that of RECHANNEL_MACHINE_BASE, else one in ``out``, made once."""
    prepared = os.environ.get("RECHANNEL_MACHINE_BASE")
    root = Path(prepared) if prepared else ROOT / "out/machines/bookworm"
    if not root.is_dir():
        unfinished = root.with_suffix(".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        call("debootstrap", "--variant=minbase", f"--include={INSIDE}", "bookworm", str(unfinished))
        unfinished.rename(root)
    return root


def call(*command: str, codes: tuple[int, ...] = (0,), cwd: Path | None = None) -> str:
    """Run a command, and return all that it wrote; AssertionError if its code is none of ``codes``."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=cwd, timeout=900
    )
    assert done.returncode in codes, f"{' '.join(command)}: {done.returncode}\n{done.stdout}"
    return done.stdout


class Machine(Block):
    """A machine with the address ADDRESS, of which nothing is left afterwards."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.root = place / "root"
        self._nspawn: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Boot it, and give it its address."""
        for name in ("up", "work", "root"):
            (self.place / name).mkdir(parents=True)
        layers = f"lowerdir={base()},upperdir={self.place}/up,workdir={self.place}/work"
        call("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        call("ip", "link", "add", BRIDGE, "type", "bridge")
        call("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        call("ip", "link", "set", BRIDGE, "up")
        command = ["systemd-nspawn", "-D", str(self.root), "-M", "rcd-packages", "--boot", "--console=pipe"]
        command += ["--register=no", "--keep-unit", f"--network-bridge={BRIDGE}"]
        with (self.place / "log").open("wb") as log:
            self._nspawn = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._is_up, "the machine's boot", PATIENCE, every=0.5, details=(self.place / "log").read_text)
        self._enter(("-n",), "ip", "addr", "add", f"{ADDRESS}/24", "dev", "host0")
        self._enter(("-n",), "ip", "link", "set", "host0", "up")
        return self

    def close(self) -> None:
        """Power it off."""
        if self._nspawn is not None:
            self._nspawn.terminate()
            try:
                self._nspawn.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._nspawn.kill()
                self._nspawn.wait(PATIENCE)
        call("ip", "link", "delete", BRIDGE, codes=(0, 1))
        call("umount", "--lazy", str(self.root), codes=(0, 32))

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> str:
        """Run a command inside, as root."""
        return self._enter(("-m", "-u", "-i", "-n", "-p", "-C"), *command, codes=codes)

    def _enter(self, namespaces: Sequence[str], *command: str, codes: tuple[int, ...] = (0,)) -> str:
        assert self._nspawn is not None
        (leader,) = psutil.Process(self._nspawn.pid).children()
        return call("nsenter", "-t", str(leader.pid), *namespaces, "--", *command, codes=codes)

    def _is_up(self) -> bool:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, (self.place / "log").read_text()
        if not psutil.Process(self._nspawn.pid).children():
            return False
        states = self.run("systemctl", "is-system-running", codes=(0, 1))
        return "running" in states or "degraded" in states
