"""Faults of whole machines and of what surrounds a service, while queries run; every batch is audited afterwards."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from testbed.processes import wait_until
from tests.machines.installing import AGENT, CONTROLLER
from tests.machines.machine import Machine, MachineError, call
from tests.machines.site import CHECKOUT, CONTROLLERS, PATIENCE, WORKERS, Site, page_blocks
from tests.machines.steps import (
    Outcome,
    OutcomeError,
    Step,
    expect,
    set_drop_in,
    state_of,
    wait_for_new_process,
    wait_for_state,
)

_MEMORY = Path("/sys/fs/cgroup/memory")
_BATCHES = 8
_DAY = 86400
_TAKEN = 16 << 20  # bytes
_TAKE_MEMORY = f"""
import pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text("0")
memory = b"x" * {_TAKEN}
sys.stdin.read()
"""
_ROOMS = ("conf", "daemon", "migration", "monitors", "policies", "wire")
_PROGRAM = "/opt/rechannel/lib/python3*/site-packages/rechannel"


def _leads(site: Site, name: str) -> bool:
    """Return whether the controller of a machine says that it leads; False while the machine is off."""
    with contextlib.suppress(MachineError):
        return state_of(site[name], CONTROLLER, "StatusText").startswith("leading")
    return False


def _leader(site: Site) -> str:
    """Return the machine of the controller that leads, "" while none says so."""
    return next((name for name in CONTROLLERS if _leads(site, name)), "")


def _other(name: str) -> str:
    return next(other for other in CONTROLLERS if other != name)


def _wait_for_lead(site: Site, name: str, began: float) -> float:
    """Wait until the controller of a machine leads; the seconds since ``began``."""
    wait_until(lambda: _leads(site, name), f"{name} leads", 60, every=0.2)
    return time.monotonic() - began


def _application(site: Site) -> dict[str, Any]:
    applications = site.status().get("applications") or [{}]
    application: dict[str, Any] = applications[0]
    return application


def _is_whole(site: Site) -> bool:
    """Return whether somebody leads, three executors are there, and no node lacks figures."""
    if not _leader(site):
        return False
    executors = _application(site).get("executors", ())
    return len(executors) == len(WORKERS) and all(executor["fresh"] for executor in executors)


def _recover(site: Site, began: float, outcome: str) -> Outcome:
    """Wait until all is whole and batches go on, and audit what was written; ``began``: of the fault."""
    wait_until(
        lambda: _is_whole(site),
        "all parts together again",
        PATIENCE,
        every=1.0,
        details=lambda: site.ask("status").stdout,
    )
    recovered = time.monotonic() - began
    site.wait_for_batches(_BATCHES)
    audit = site.audit()
    measured = Outcome(outcome=outcome, recovered=recovered, lost=audit.lost, doubled=audit.doubled)
    if not audit.exact:
        raise OutcomeError(f"{audit.lost} rows lost, {audit.doubled} doubled: {audit.wrong[:3]}", measured)
    return measured


def _begin_migration(site: Site) -> str:
    """Drain the node that holds most, and wait until its partitions move; return its name."""
    executors = _application(site)["executors"]
    node: str = max(executors, key=lambda executor: executor["partitions"])["node"]
    site.rechannel(f"drain {node}")
    wait_until(lambda: _application(site).get("moves"), f"moves off {node}", 60, every=0.1)
    return node


def drain(site: Site) -> Outcome:
    """Drain a node and end the drain: the order passes from the command to the executors of three machines."""
    began = time.monotonic()
    site.rechannel(f"drain {WORKERS[0]} --follow")
    seconds = time.monotonic() - began
    site.rechannel(f"undrain {WORKERS[0]}")
    return _recover(site, time.monotonic(), f"all state was off the node after {seconds:.0f} s")


def reboot_worker(site: Site) -> Outcome:
    """Reboot a worker in the middle of a migration off it."""
    node = _begin_migration(site)
    began = time.monotonic()
    seconds = site[node].reboot()
    site.ask(f"undrain {node}")
    return _recover(site, began, f"booted in {seconds:.0f} s; worker, agent and executor came back by themselves")


def reboot_leader(site: Site) -> Outcome:
    """Reboot the machine of the leader, and of Redis' master where it is, in the middle of a migration."""
    node = _begin_migration(site)
    name = _leader(site)
    began = time.monotonic()
    site[name].reboot()
    wait_until(lambda: bool(_leader(site)), "a leader once the machine is back", 60, every=0.5)
    site.ask(f"undrain {node}")
    return _recover(site, began, f"{name} rebooted, {_leader(site)} leads")


def lose_worker(site: Site) -> Outcome:
    """Take the power from a worker, and give it back after twenty seconds."""
    began = time.monotonic()
    site[WORKERS[1]].vanish()
    time.sleep(20.0)
    site[WORKERS[1]].boot()
    return _recover(site, began, "off for 20 s")


def lose_leader(site: Site) -> Outcome:
    """Take the power from the machine of the leader; the other one leads before it is back."""
    name = _leader(site)
    began = time.monotonic()
    site[name].vanish()
    seconds = _wait_for_lead(site, _other(name), began)
    site[name].boot()
    return _recover(site, began, f"{_other(name)} led {seconds:.1f} s later")


def lose_redis(site: Site) -> Outcome:
    """Take the power from the machine of Redis' master; the sentinels promote the replica."""
    ask = "sentinel get-master-addr-by-name rechannel | head -1"
    address = site.sentinel(ask)
    name = next(machine.name for machine in site.each(CONTROLLERS) if machine.address == address)
    began = time.monotonic()
    site[name].vanish()
    wait_until(lambda: site.sentinel(ask) != address, "a promoted replica", 90, every=0.5)
    wait_until(lambda: bool(_leader(site)), "a leader with the new master", 90, every=0.5)
    seconds = time.monotonic() - began
    site[name].boot()
    return _recover(site, began, f"decisions went on with the new master {seconds:.1f} s later")


def cut_worker(site: Site) -> Outcome:
    """Take the network from a worker for fifteen seconds."""
    began = time.monotonic()
    site[WORKERS[2]].cut()
    time.sleep(15.0)
    site[WORKERS[2]].mend()
    return _recover(site, began, "cut off for 15 s")


def cut_leader(site: Site) -> Outcome:
    """Take the network from the leader: it stops acting before the other one leads."""
    name = _leader(site)
    began = time.monotonic()
    site[name].cut()
    seconds = _wait_for_lead(site, _other(name), began)
    text = state_of(site[name], CONTROLLER, "StatusText")
    expect(not text.startswith("leading"), f"{name} still says {text!r}")
    site[name].mend()
    return _recover(site, began, f"{_other(name)} led {seconds:.1f} s later; the other one had stopped by then")


def full_disk(site: Site) -> Outcome:
    """Fill the file system of the audit file: an order is refused, nothing else stops."""
    name = _leader(site)
    machine = site[name]
    machine.run(f"systemctl stop {CONTROLLER}")
    machine.run("mount -t tmpfs -o size=64k,uid=$(id -u rechannel),mode=750 tmpfs /var/log/rechannel")
    machine.run(f"systemctl start {CONTROLLER}")
    site[_other(name)].run(f"systemctl restart {CONTROLLER}")
    _wait_for_lead(site, name, time.monotonic())
    machine.run("cat /dev/zero >/var/log/rechannel/filler", check=False)
    began = time.monotonic()
    answer = site.ask("pause")
    expect(answer.returncode != 0 and "audit" in answer.stderr, f"an order without an audit: {answer.stderr.strip()}")
    machine.run("rm /var/log/rechannel/filler")
    site.rechannel("pause")
    site.rechannel("resume")
    machine.run(f"systemctl stop {CONTROLLER}; umount /var/log/rechannel; systemctl start {CONTROLLER}")
    return _recover(site, began, "an order was refused, naming the audit file; carried out once there was room")


def exhaust(machine: Machine, unit: str) -> None:
    """Have the kernel kill a service for want of memory, by control groups of version 1.

    Control groups are read-only in a container, so the limit is set on this host: the machine's systemd starts the
    service in a group of its own, whose memory is then taken by another process; the kernel kills the service first.
    """
    group, systemd = _MEMORY / f"rechannel-{unit}-{time.monotonic_ns()}", str(machine.leader)
    before = _MEMORY / re.search(r":memory:/(.*)", Path(f"/proc/{systemd}/cgroup").read_text())[1]  # type: ignore[index]
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(systemd)
        machine.run(f"systemctl restart {unit}")
        (before / "cgroup.procs").write_text(systemd)
        wait_for_state(machine, unit)
        pid = state_of(machine, unit, "MainPID")
        for process in (group / "cgroup.procs").read_text().split():
            Path(f"/proc/{process}/oom_score_adj").write_text("1000")
        usage = int((group / "memory.usage_in_bytes").read_text())
        (group / "memory.limit_in_bytes").write_text(str(usage + _TAKEN // 4))
        with subprocess.Popen([sys.executable, "-c", _TAKE_MEMORY, str(group)], stdin=subprocess.PIPE):
            wait_for_new_process(machine, unit, pid, 60)
        expect("oom_kill 0" not in (group / "memory.oom_control").read_text(), f"the kernel killed {unit}")
        journal = machine.output(f"journalctl -u {unit} --since=-90s -o cat")
        expect("status=9/KILL" in journal, f"systemd saw {unit} killed")
    finally:
        (before / "cgroup.procs").write_text(systemd)
        for process in (group / "cgroup.procs").read_text().split():
            (before / "cgroup.procs").write_text(process)
        group.rmdir()


def out_of_memory(site: Site) -> Outcome:
    """Exhaust the memory of the leader and of an agent."""
    exhaust(site[_leader(site)], CONTROLLER)
    exhaust(site[WORKERS[0]], AGENT)
    return _recover(site, time.monotonic(), "killed by the kernel, started again by systemd")


def clock_steps(site: Site) -> Outcome:
    """Have the clock of both controllers jump by an hour, and back, by libfaketime in a drop-in."""
    library = site["control1"].output("ls /usr/lib/*/faketime/libfaketimeMT.so.1")
    environment = f"LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE=/run/clock FAKETIME_NO_CACHE=1"
    environment += " FAKETIME_DONT_FAKE_MONOTONIC=1"
    for machine in site.each(CONTROLLERS):
        machine.run("echo +0s >/run/clock; chmod 644 /run/clock")
        set_drop_in(machine, CONTROLLER, f"Environment={environment}", "MemoryDenyWriteExecute=no")
    wait_until(lambda: bool(_leader(site)), "a leader with a clock of its own", 60, every=0.5)
    epochs = []
    for jump in ("+1h", "-1h", "+0s"):
        for machine in site.each(CONTROLLERS):
            machine.run(f"echo {jump} >/run/clock")
        time.sleep(5.0)
        name = _leader(site)
        expect(name, f"a leader after a jump to {jump}")
        epochs.append(state_of(site[name], CONTROLLER, "StatusText").split(";")[0])
    expect(len(set(epochs)) == 1, f"the lead changed: {epochs}")
    for machine in site.each(CONTROLLERS):
        noticed = machine.output(f"journalctl -u {CONTROLLER} -n 400 -o cat | grep -c clock-was-set || true")
        expect(int(noticed) >= len(epochs), f"{machine.name} noticed {noticed} jumps of its clock")
        set_drop_in(machine, CONTROLLER)
    return _recover(site, time.monotonic(), "an hour forward, two back, one forward: the same leader in the same epoch")


def upgrade(site: Site) -> Outcome:
    """Take every machine back to the program of a day before, and upgrade it by the page's blocks, under load."""

    def git(*arguments: str) -> str:
        return call("git", "-C", str(site.shared / "rechannel.git"), *arguments).strip()

    new, seconds = git("log", "-1", "--format=%H %ct").split()
    old = git("rev-list", "-1", f"--min-age={int(seconds) - _DAY}", "HEAD")
    roles = list(zip((WORKERS, CONTROLLERS), page_blocks("Upgrade"), (AGENT, CONTROLLER), strict=True))
    for pull, revision in ((f"git reset --quiet --hard {old}", old), ("git pull", new)):
        for names, block, unit in roles:
            leader = _leader(site)
            for machine in sorted(site.each(names), key=lambda it: it.name == leader):
                before = state_of(machine, unit, "MainPID")
                machine.run(f"cd {CHECKOUT}\n{block.replace('git pull', pull)}")
                wait_for_state(machine, unit)
                expect(state_of(machine, unit, "MainPID") != before, f"{unit} of {machine.name} was restarted")
                expect(machine.output(f"cd {CHECKOUT}; git rev-parse HEAD") == revision, f"{revision} is checked out")
                for room in ("monitors", "wire") if unit == AGENT else _ROOMS:
                    machine.run(f"diff -rq -x __pycache__ {CHECKOUT}/{room} {_PROGRAM}/{room}")
        site.wait_for_batches(_BATCHES)
    return _recover(site, time.monotonic(), "all five machines to the program of a day before, then to today's")


def _step(what: str, act: Callable[[Site], Outcome]) -> Step:
    return Step("Faults", what, act)


STEPS = (
    _step("a node is drained, and the drain ended", drain),
    _step("a worker reboots in the middle of a migration", reboot_worker),
    _step("the leader's machine reboots in the middle of a migration", reboot_leader),
    _step("a worker loses its power", lose_worker),
    _step("the leader's machine loses its power", lose_leader),
    _step("the machine of Redis' master loses its power", lose_redis),
    _step("a worker is cut off", cut_worker),
    _step("the leader is cut off", cut_leader),
    _step("the disk of the audit file is full", full_disk),
    _step("no memory is left", out_of_memory),
    _step("the clocks of both controllers jump", clock_steps),
    _step("back to the program of a day before, and upgraded in place", upgrade),
)
