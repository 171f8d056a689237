"""Debian machines that systemd boots in containers of systemd-nspawn.

Each machine has its own processes, mounts, users and journal, and the kernel of this host. Machines on the bridge have
networks of their own, and share one read-only root from debootstrap; the root of a `HostMachine` is that of this host.
What a machine writes is in a layer of its own and goes with the suite.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from testbed.processes import ROOT, wait_until

RELEASE = "bookworm"
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "python3", "python3-venv", "openjdk-17-jre-headless", "redis-server"),
    *("redis-sentinel", "redis-tools", "iproute2", "openssl", "make", "git", "procps", "ca-certificates", "sudo"),
    *("openssh-server", "libfaketime", "gcc", "python3-apt"),
)
BRIDGE = "rechannel0"
NETWORK = "10.77.0"
SHARED = Path("/srv/shared")  # in every machine: a directory of this host, as of a file server
_BOOT_SECONDS = 120.0
_PATIENCE = 900.0  # seconds for a command
_REBOOT = 133  # exit code of systemd-nspawn
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


class MachineError(RuntimeError):
    """A command in a machine failed, or a machine did not boot; the message has the command and its output."""


_TOOLS = {"systemd-nspawn": "systemd-container", "debootstrap": "debootstrap", "ip": "iproute2"}


def why_not(*tools: str) -> str:
    """Say why no machine can be booted here, "" if one can; ``tools`` that are needed for it, all if none is named."""
    if os.geteuid() != 0:
        return "machines need root"
    for tool, package in _TOOLS.items():
        if (tool in tools or not tools) and shutil.which(tool) is None:
            return f"machines need {tool} (apt-get install {package})"
    return ""


def call(*command: str, codes: Sequence[int] = (0,), cwd: Path | None = None) -> str:
    """Run a command on this host, and return all that it prints; MachineError if its code is none of ``codes``."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_PATIENCE, cwd=cwd, check=False
    )
    if done.returncode not in codes:
        raise MachineError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout.strip()[-2000:]}")
    return done.stdout


def make_base(directory: Path) -> Path:
    """Return the root that all machines share; made where it is missing, in a minute or two."""
    base = directory / "base"
    stamp = directory / "base.packages"
    packages = " ".join((RELEASE, *PACKAGES))
    if not (base.is_dir() and stamp.exists() and stamp.read_text() == packages):
        shutil.rmtree(base, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        call("debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, str(base))
        for service in ("redis-server", "redis-sentinel", "ssh"):
            (base / "etc/systemd/system/multi-user.target.wants" / f"{service}.service").unlink(missing_ok=True)
        stamp.write_text(packages)
    return base


@dataclass
class Machine:
    """One machine. It is off until `boot`.

    Parameters
    ----------
    name
        Its host name.
    number
        Last part of its address.
    directory
        Of its layers and its console's log.
    base
        Root that it shares with others.
    shared
        Directory of this host that it sees as `SHARED`.
    binds
        Further directories of this host, and where the machine sees them, read-only.
    """

    name: str
    number: int
    directory: Path
    base: Path
    shared: Path
    binds: dict[Path, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return its address on the bridge."""
        return f"{NETWORK}.{self.number}"

    @property
    def root(self) -> Path:
        """Return its file system, as this host sees it."""
        return self.directory / "root"

    @property
    def leader(self) -> int:
        """Return the process id of its systemd on this host, 0 while it is off."""
        if self._process is None:
            return 0
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._process.pid).children()
            return int(children[0].pid) if children else 0
        return 0

    @property
    def nspawn_options(self) -> list[str]:
        """Return what systemd-nspawn is told of this machine beside its root and its name."""
        return [f"--network-bridge={BRIDGE}", f"--bind={self.shared}:{SHARED}", *self._read_only]

    @property
    def _read_only(self) -> list[str]:
        return [f"--bind-ro={source}:{target}" for source, target in self.binds.items()]

    def mount(self) -> None:
        """Mount its layers, and name it."""
        for layer in ("upper", "work", "root"):
            (self.directory / layer).mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={self.base},upperdir={self.directory / 'upper'},workdir={self.directory / 'work'}"
        call("mount", "-t", "overlay", "overlay", "-o", layers, str(self.root))
        self.write("/etc/hostname", f"{self.name}\n")

    def join(self, hosts: str) -> None:
        """Write what an installer of Debian would so that it has its address and knows the others."""
        self.write("/etc/hosts", hosts)
        network = f"[Match]\nName=host0\n\n[Network]\nAddress={self.address}/24\n"
        self.write("/etc/systemd/network/10-host0.network", network)
        wants = self.root / "etc/systemd/system"
        for unit, target in (("systemd-networkd", "multi-user"), ("systemd-networkd-wait-online", "network-online")):
            link = wants / f"{target}.target.wants" / f"{unit}.service"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(f"/lib/systemd/system/{unit}.service")

    def boot(self) -> float:
        """Start it and wait until its systemd has reached its target; seconds that this took.

        MachineError with its console's last lines if it ends at once.
        """
        began = time.monotonic()
        command = ["systemd-nspawn", "--quiet", "-D", str(self.root), "-M", self.name, "--register=no", "--keep-unit"]
        command += ["--boot", "--console=pipe", *self.nspawn_options]
        with (self.directory / "console.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

        def has_booted() -> bool:
            if not self.leader:
                if self._process is not None and self._process.poll() is not None:
                    console = (self.directory / "console.log").read_text(errors="replace")
                    raise MachineError(f"{self.name} did not boot: {console.strip()[-500:]}")
                return False
            state = self.run("systemctl is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded")

        wait_until(has_booted, f"the boot of {self.name}", _BOOT_SECONDS, every=0.2)
        return time.monotonic() - began

    def run(self, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run lines of a shell in it, as somebody who has logged in there would.

        Raises
        ------
        MachineError
            It is off, or a line failed, and ``check`` is true.
        """
        leader = self.leader
        if not leader:
            raise MachineError(f"{self.name} is off")
        command = ["nsenter", "-t", str(leader), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        command += ["bash", "-c", f"cd /root; set -e\n{script}"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE, env=_ENVIRONMENT, check=False, errors="replace"
        )
        if check and done.returncode:
            printed = f"{done.stdout}{done.stderr}".strip()[-2000:]
            raise MachineError(f"{self.name}: exit code {done.returncode} of\n{script.strip()}\n{printed}")
        return done

    def call(self, *command: str, codes: Sequence[int] = (0,)) -> str:
        """Run one command in it, and return all that it prints; MachineError if its code is none of ``codes``."""
        done = self.run(f"{shlex.join(command)} 2>&1", check=False)
        if done.returncode not in codes:
            raise MachineError(f"{self.name}: {shlex.join(command)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def output(self, script: str) -> str:
        """Return what lines of a shell print."""
        return self.run(script).stdout.strip()

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file in it, also while it is off."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # it may be a link, to a file of this host for an absolute one
        target.write_text(text)
        target.chmod(mode)

    def vanish(self) -> None:
        """End all of its processes at once, as a loss of power does."""
        leader = self.leader
        if leader:
            os.kill(leader, signal.SIGKILL)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        call("ip", "link", "delete", f"vb-{self.name}", codes=(0, 1))

    def reboot(self) -> float:
        """Reboot it in good order; seconds until it runs again.

        nspawn ends with a code of its own then, and its host's service manager would start it again.
        """
        assert self._process is not None
        began = time.monotonic()
        self.run("systemctl reboot", check=False)
        code = self._process.wait(timeout=_BOOT_SECONDS)
        if code != _REBOOT:
            raise MachineError(f"{self.name} ended with {code} in place of a reboot")
        self.boot()
        return time.monotonic() - began

    def cut(self) -> None:
        """Take its network cable out."""
        call("ip", "link", "set", f"vb-{self.name}", "down")

    def mend(self) -> None:
        """Put its network cable back."""
        call("ip", "link", "set", f"vb-{self.name}", "up")

    def close(self) -> None:
        """Switch it off, and unmount its layers."""
        self.vanish()
        call("umount", "-l", str(self.root), codes=(0, 32))


class HostMachine(Machine):
    """Machine with this host's root and network, made in no time; its layers are in memory.

    None of this host's services, sockets and timers is started in it.
    """

    _TARGET = "tried.target"

    def __init__(self, name: str, directory: Path, binds: dict[Path, str]) -> None:
        super().__init__(name, 0, directory, Path("/"), directory, binds)

    @property
    def nspawn_options(self) -> list[str]:
        """Return its directories of this host, and the argument for its systemd that names the target."""
        return [*self._read_only, f"systemd.unit={self._TARGET}"]

    def mount(self) -> None:
        """Mount its layers; a layer on the file system of the root itself would be refused."""
        call("mount", "-t", "tmpfs", "none", str(self.directory))
        super().mount()
        unit = "[Unit]\nRequires=sysinit.target\nAfter=sysinit.target\nAllowIsolate=yes\n"
        self.write(f"/etc/systemd/system/{self._TARGET}", unit)
        for name in ("basic.target", "NetworkManager-wait-online.service", "systemd-networkd-wait-online.service"):
            # What starts sockets and timers, and what waits for a network that is there already.
            link = self.root / "etc/systemd/system" / name
            link.unlink(missing_ok=True)
            link.symlink_to("/dev/null")

    def close(self) -> None:
        """Switch it off, and unmount its layers."""
        super().close()
        call("umount", "-l", str(self.directory), codes=(0, 32))


class Machines:
    """Block of machines on one bridge; all of it is gone when the block ends."""

    def __init__(self, directory: Path, names: Sequence[str], shared: Path, binds: dict[Path, str]) -> None:
        base, layers = make_base(directory), directory / "layers"
        shutil.rmtree(layers, ignore_errors=True)
        self.machines = {
            name: Machine(name, 11 + index, layers / name, base, shared, binds) for index, name in enumerate(names)
        }

    def __enter__(self) -> Self:
        """Make the bridge, and boot every machine."""
        call("ip", "link", "delete", BRIDGE, codes=(0, 1))
        call("ip", "link", "add", BRIDGE, "type", "bridge")
        call("ip", "addr", "add", f"{NETWORK}.1/24", "dev", BRIDGE)
        call("ip", "link", "set", BRIDGE, "up")
        hosts = "127.0.0.1 localhost\n" + "".join(f"{it.address} {it.name}\n" for it in self.machines.values())
        try:
            for machine in self.machines.values():
                machine.mount()
                machine.join(hosts)
                machine.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """Switch all machines off; their journals stay in the layers until the next run."""
        with contextlib.ExitStack() as stack:  # one after the other, whatever fails
            stack.callback(call, "ip", "link", "delete", BRIDGE, codes=(0, 1))
            for machine in self.machines.values():
                stack.callback(machine.close)


def checkout_of(target: Path) -> None:
    """Clone this checkout, as the repository that machines clone and pull from."""
    shutil.rmtree(target, ignore_errors=True)
    call("git", "clone", "--quiet", "--bare", str(ROOT), str(target))
