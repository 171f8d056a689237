"""Each hardening line of the units, with an attempt that it stops.

An attempt is a shell command that succeeds if the attacker does. It runs as a transient service three times: without
any hardening, where it has to succeed; with that line alone, which has to stop it; and with every line of the unit and
its user, which have to stop it too. What cannot be told apart in a container, and why, stands beside the others.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from testbed.processes import ROOT
from tests.machines.installing import AGENT, CONTROLLER
from tests.machines.machine import Machine
from tests.machines.site import Site
from tests.machines.steps import Outcome, Step, expect

_PYTHON = "/usr/bin/python3 -c "


@dataclass(frozen=True)
class Attempt:
    """What an attacker would do. ``user``: who tries it; ``with_``: lines that it needs to succeed."""

    what: str
    command: str
    user: str = "root"
    with_: tuple[str, ...] = ()


def _python(code: str) -> str:
    return _PYTHON + shlex.quote(code)


ATTEMPTS: dict[str, Attempt] = {
    "NoNewPrivileges": Attempt("become root by a setuid program", "test $(/usr/local/bin/suid-id -u) = 0", "nobody"),
    "CapabilityBoundingSet": Attempt("give a file of root away", "cd /run && touch given && chown nobody given"),
    "ProtectSystem": Attempt("write below /usr", "touch /usr/local/share/written"),
    "ProtectHome": Attempt("write below /root", "touch /root/written"),
    "ProtectProc": Attempt("see the processes of others", "test -d /proc/1", "nobody"),
    "ProcSubset": Attempt("read the kernel's figures", "test -r /proc/meminfo"),
    "ProtectControlGroups": Attempt(
        "make a control group", "mkdir /sys/fs/cgroup/systemd/made && rmdir /sys/fs/cgroup/systemd/made"
    ),
    "ProtectHostname": Attempt("rename the machine", "hostname renamed"),
    "ProtectKernelModules": Attempt("read the kernel's modules", "ls /usr/lib/modules/probe"),
    "ProtectKernelTunables": Attempt("change a setting of the kernel", "echo 0 >/proc/sys/net/ipv4/ip_forward"),
    "PrivateDevices": Attempt("find a device", "test -e /dev/net/tun"),
    "PrivateIPC": Attempt("find the shared memory of others", "ipcs -m | grep -q 12345"),
    "PrivateMounts": Attempt(
        "mount for all to see", "mount -t tmpfs seen /mnt && nsenter -t 1 -m sh -c 'mountpoint -q /mnt && umount /mnt'"
    ),
    "LockPersonality": Attempt("change its personality", "setarch -R true"),
    "MemoryDenyWriteExecute": Attempt(
        "write code into its own memory",
        _python("import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_WRITE | mmap.PROT_EXEC)"),
    ),
    "RestrictAddressFamilies": Attempt(
        "listen to raw packets", _python("import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)")
    ),
    "RestrictNamespaces": Attempt("make a namespace", "unshare -n true"),
    "RestrictRealtime": Attempt("run before all others", "chrt -f 1 true"),
    "RestrictSUIDSGID": Attempt("leave a setuid program", "cd /run && touch left && chmod u+s left"),
    "SystemCallArchitectures": Attempt("call the kernel as a 32-bit program", "/usr/local/bin/old-call"),
    "SystemCallFilter": Attempt("mount a file system", "mount -t tmpfs own /mnt && umount /mnt"),
    "LimitCORE": Attempt("leave a core dump", "test $(ulimit -c) != 0", with_=("LimitCORE=infinity",)),
    "UMask": Attempt(
        "leave a file for all to read", "cd /run && rm -f open && touch open && test $(stat -c %a open) = 644"
    ),
    "PrivateTmp": Attempt("find the temporary files of others", "test -e /tmp/probe"),
    "PrivateUsers": Attempt("read the file of another user", "cat /run/of-nobody"),
    "RemoveIPC": Attempt("leave shared memory behind", "ipcmk -M 4096", "rechannel"),
}
# Lines without an attempt of their own, and why.
UNTRIED = {
    "ProtectClock": "a container may not set the clock anyway, and it would be the host's",
    "ProtectKernelLogs": "a container has no kernel log",
    "DevicePolicy": "needs the control group of devices, which is read-only in a container",
    "KeyringMode": "systemd-nspawn refuses all calls of keyrings",
    "SystemCallErrorNumber": "only says what a refused call returns",
    "LogsDirectory": "gives a directory, and takes nothing away",
    "LogsDirectoryMode": "gives a directory, and takes nothing away",
}
_HARDENING = re.compile(r"^([A-Z]\w+)=(.*)$", re.MULTILINE)
_SUPERVISION = {
    *(
        "Description",
        "Documentation",
        "After",
        "Wants",
        "StartLimitIntervalSec",
        "Type",
        "User",
        "Group",
        "Environment",
    ),
    *("ExecStart", "ExecReload", "Restart", "RestartSec", "RestartPreventExitStatus", "WatchdogSec", "TimeoutStopSec"),
    "WantedBy",
}


def hardening_lines(unit: str) -> dict[str, list[str]]:
    """Return the hardening lines of a unit in the checkout: name -> its values."""
    lines: dict[str, list[str]] = {}
    for name, value in _HARDENING.findall((ROOT / "systemd" / f"{unit}.service").read_text()):
        if name not in _SUPERVISION:
            lines.setdefault(name, []).append(value)
    return lines


def prepare(machine: Machine) -> None:
    """Lay out what the attempts look for."""
    machine.write(
        "/root/old-call.s", ".globl _start\n_start: mov $20, %eax\nint $0x80\nmov $60, %eax\nxor %edi, %edi\nsyscall\n"
    )
    machine.run(
        "cp /usr/bin/id /usr/local/bin/suid-id; chmod 4755 /usr/local/bin/suid-id; mkdir -p /usr/lib/modules/probe\n"
        "ipcs -m | grep -q 12345 || ipcmk -M 12345 >/dev/null; touch /tmp/probe\n"
        "echo secret >/run/of-nobody; chown nobody /run/of-nobody; chmod 600 /run/of-nobody\n"
        "gcc -nostdlib -static -o /usr/local/bin/old-call /root/old-call.s"
    )


def succeeds(machine: Machine, attempt: Attempt, properties: list[str], user: str) -> bool:
    """Return whether an attempt succeeds in a transient service with these properties."""
    options = [f"--property=User={user}", *(f"--property={line}" for line in properties)]
    command = ["systemd-run", "--quiet", "--wait", "--pipe", "--collect", *options, "sh", "-c", attempt.command]
    done = machine.run(f"hostname {machine.name}; {shlex.join(command)}", check=False)
    if attempt is ATTEMPTS["RemoveIPC"]:  # what counts is what is left
        left = machine.output("ipcs -m | awk '$3 == \"rechannel\" {print $2}'").split()
        for identity in left:
            machine.run(f"ipcrm -m {identity}")
        return bool(left)
    return done.returncode == 0


def attempts(machine: Machine, unit: str) -> list[tuple[str, str, str, str]]:
    """Try everything against each line of a unit: unit, line, attempt, outcome. A line that stops nothing raises."""
    machine.run(f"systemctl stop {unit}")  # while it runs, objects of its user are not removed
    prepare(machine)
    lines = hardening_lines(unit)
    whole = [f"{name}={value}" for name, values in lines.items() for value in values if name != "LogsDirectory"]
    user = "rechannel" if unit == CONTROLLER else "spark"
    expect(succeeds(machine, Attempt("nothing", "true"), whole, user), f"a command runs with all lines of {unit}")
    rows = []
    for name, values in lines.items():
        own = [f"{name}={value}" for value in values]
        text = "<br>".join(f"`{line}`" for line in own)
        if name in UNTRIED:
            rows.append((f"`{unit}`", text, "", f"not tried: {UNTRIED[name]}"))
            continue
        attempt = ATTEMPTS[name]
        expect(succeeds(machine, Attempt("nothing", "true"), own, attempt.user), f"a command runs with {own}")
        expect(
            succeeds(machine, attempt, list(attempt.with_), attempt.user), f"{name}: {attempt.what}, without the line"
        )
        expect(
            not succeeds(machine, attempt, [*attempt.with_, *own], attempt.user),
            f"{own}: does not stop: {attempt.what}",
        )
        expect(not succeeds(machine, attempt, whole, user), f"all lines of {unit} do not stop: {attempt.what}")
        rows.append((f"`{unit}`", text, attempt.what, "stopped"))
    machine.run(f"hostname {machine.name}; systemctl start {unit}")
    return rows


def _step(unit: str, name: str) -> Step:
    def act(site: Site) -> Outcome:
        rows = attempts(site[name], unit)
        stopped = sum(row[-1] == "stopped" for row in rows)
        outcome = f"{stopped} of {len(rows)} lines stopped their attempt, {len(rows) - stopped} could not be tried"
        return Outcome(outcome=outcome, rows=rows)

    return Step("Hardening", f"`{unit}`, line by line", act)


STEPS = (_step(CONTROLLER, "control2"), _step(AGENT, "worker1"))
