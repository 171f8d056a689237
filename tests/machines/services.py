"""Services on booted machines: states, watchdog, journal, credentials, boot."""

from __future__ import annotations

import json
import time

from testbed.processes import wait_until
from tests.machines.installing import AGENT, CONTROLLER
from tests.machines.machine import Machine
from tests.machines.site import CONTROLLERS, WORKERS, Site
from tests.machines.steps import (
    Step,
    expect,
    set_drop_in,
    state_of,
    wait_for_new_process,
    wait_for_state,
    wait_for_status,
)

_WRONG_CONFIGURATION = 7  # exit code
_EXPOSURE = {CONTROLLER: 1.1, AGENT: 1.7}
_DAY = 86400.0


def _both(site: Site) -> tuple[tuple[Machine, str], tuple[Machine, str]]:
    return (site["control2"], CONTROLLER), (site["worker1"], AGENT)


def start_again(machine: Machine, unit: str) -> float:
    """Stop, start and restart a service; seconds of the slower start."""
    machine.run(f"systemctl stop {unit}")
    expect(state_of(machine, unit) == "inactive", f"{unit} stops")
    expect(state_of(machine, unit, "Result") == "success", f"{unit} stops in good order")
    took = []
    # Type=notify: the command returns when the service has said that it works.
    for verb in ("start", "restart"):
        began = time.monotonic()
        machine.run(f"systemctl {verb} {unit}")
        took.append(time.monotonic() - began)
        expect(state_of(machine, unit) == "active", f"{unit} is active after {verb}")
        expect(state_of(machine, unit, "StatusText"), f"{unit} has a status after {verb}")
    return max(took)


def kill(machine: Machine, unit: str, times: int) -> None:
    """Kill a service so many times at once; no limit of restarts holds it down, by default five in ten seconds."""
    set_drop_in(machine, unit, "RestartSec=100ms")
    for _ in range(times):
        pid = state_of(machine, unit, "MainPID")
        machine.run(f"kill -KILL {pid}")
        wait_for_new_process(machine, unit, pid, 30)
    wait_for_state(machine, unit)
    restarts = int(state_of(machine, unit, "NRestarts"))
    expect(restarts >= times, f"{unit}: systemd counted {restarts} restarts")
    set_drop_in(machine, unit)
    wait_for_state(machine, unit)


def refuse(machine: Machine, unit: str) -> None:
    """Start a service with a mistake in its configuration, and mend that."""
    machine.run("cp /etc/rechannel/rechannel.toml /root/good.toml; echo 'nonsense = 1' >>/etc/rechannel/rechannel.toml")
    machine.run(f"systemctl restart {unit}", check=False)
    wait_for_state(machine, unit, "failed", 30)
    code = state_of(machine, unit, "ExecMainStatus")
    expect(code == str(_WRONG_CONFIGURATION), f"{unit} ends with {code}")
    journal = machine.output(f"journalctl -u {unit} -p err -n 20 -o cat")
    expect("nonsense" in journal, f"the journal of {unit} names the mistake as an error")
    time.sleep(5.0)  # more than RestartSec
    expect(state_of(machine, unit) == "failed", f"{unit} is not started again")
    machine.run(f"cp /root/good.toml /etc/rechannel/rechannel.toml; systemctl start {unit}")
    wait_for_state(machine, unit)


def freeze(machine: Machine, unit: str) -> float:
    """Freeze a service; seconds until its watchdog has killed it and it has come back."""
    set_drop_in(machine, unit, "WatchdogSec=20s")
    wait_for_state(machine, unit)
    pid = state_of(machine, unit, "MainPID")
    machine.run(f"kill -STOP {pid}")
    began = time.monotonic()
    wait_for_new_process(machine, unit, pid, 120)
    wait_for_state(machine, unit)
    took = time.monotonic() - began
    journal = machine.output(f"journalctl -u {unit} -n 60 -o cat")
    expect("Watchdog timeout" in journal, f"systemd says that the watchdog of {unit} acted")
    set_drop_in(machine, unit)
    wait_for_state(machine, unit)
    return took


def rate(machine: Machine, unit: str) -> float:
    """Ask systemd how exposed a unit is; never more than before."""
    last = machine.output(f"systemd-analyze security {unit} --no-pager | tail -1")
    rating = float(last.split("exposure level for")[1].split(":")[1].split()[0])
    expect(rating <= _EXPOSURE[unit], f"{unit}: {rating}")
    return rating


def states(site: Site) -> str:
    """Stop, start and restart both services; reload the controller."""
    slowest = max(start_again(machine, unit) for machine, unit in _both(site))
    control = site["control2"]
    control.run("sed -i 's/cooldown = 5.0/cooldown = 6.0/' /etc/rechannel/rechannel.toml")
    control.run(f"systemctl reload {CONTROLLER}")

    def is_logged() -> bool:
        return "cooldown" in control.output(f"journalctl -u {CONTROLLER} -n 20 -o cat")

    wait_until(is_logged, "the changed setting in the journal", 10, every=0.2)
    return f"4 starts, the slowest {slowest:.1f} s; a reload names the changed setting"


def crash(site: Site) -> str:
    """Kill each service ten times."""
    for machine, unit in _both(site):
        kill(machine, unit, 10)
    return "SIGKILL, ten times each with `RestartSec=100ms` in a drop-in: restarted each time, `NRestarts` 10"


def wrong_configuration(site: Site) -> str:
    """Start each service with a mistake in its configuration."""
    for machine, unit in _both(site):
        refuse(machine, unit)
    return "exit code 7, the journal names the mistake as an error, systemd does not repeat it"


def watchdog(site: Site) -> str:
    """Freeze each service."""
    took = [freeze(machine, unit) for machine, unit in _both(site)]
    return f"SIGSTOP with `WatchdogSec=20s` in a drop-in: killed, active again after {took[0]:.0f} and {took[1]:.0f} s"


def journal(site: Site) -> str:
    """Read what the services have written: a line an event, its priority, its unit."""
    machine = site["control1"]
    lines = [json.loads(line) for line in machine.output(f"journalctl -u {CONTROLLER} -o json -n 400").splitlines()]
    own = [
        line for line in lines if line.get("_SYSTEMD_UNIT") == f"{CONTROLLER}.service" and line["_COMM"] == "rechannel"
    ]
    expect(own, "the controller's lines are found by its unit")
    priorities = {line["PRIORITY"] for line in own}
    expect(priorities <= {"3", "4", "5", "6"}, f"priorities {sorted(priorities)}")
    colored = [line["MESSAGE"] for line in own if "\x1b" in str(line["MESSAGE"])]
    expect(not colored, f"no colors in {colored[:1]}")
    return f"a line an event, priorities {', '.join(sorted(priorities))}, no colors"


def log_volume(site: Site) -> str:
    """Measure what the services write while nothing happens."""
    seconds = 60.0
    units = [(machine, CONTROLLER) for machine in site.each(CONTROLLERS)] + [
        (machine, AGENT) for machine in site.each(WORKERS)
    ]

    def written() -> dict[str, int]:
        # `-o cat` gives the messages alone; the journal adds its fields to each.
        return {m.name: len(m.output(f"journalctl -u {unit} -o cat")) for m, unit in units}

    before = written()
    time.sleep(seconds)
    after = written()
    daily = {name: (after[name] - before[name]) * _DAY / seconds / 1e6 for name in after}
    largest = max(daily.values())
    expect(largest < 10, f"megabytes a day: {daily}")
    return f"at most {largest:.1f} MB of messages a day and machine, from a minute of a running query"


def credentials(site: Site) -> str:
    """Give the controller its password by `LoadCredential=`, from a file that only root reads."""
    machine = site["control2"]
    machine.run("cd /etc/rechannel; install -m 600 redis.password /root/secret; mv redis.password redis.password.away")
    set_drop_in(
        machine,
        CONTROLLER,
        "LoadCredential=redis.password:/root/secret",
        "Environment=RECHANNEL_REDIS__PASSWORD_FILE=%d/redis.password",
    )
    wait_for_status(machine, CONTROLLER, "standing by", 30)
    machine.run("cd /etc/rechannel; mv redis.password.away redis.password")
    set_drop_in(machine, CONTROLLER)
    wait_for_state(machine, CONTROLLER)
    return "`LoadCredential=` and `RECHANNEL_REDIS__PASSWORD_FILE=%d/redis.password`: only root's file has the password"


def exposure(site: Site) -> str:
    """Ask systemd how exposed the running units are."""
    ratings = {unit: rate(machine, unit) for machine, unit in _both(site)}
    return "`systemd-analyze security`: " + ", ".join(f"{unit} {rating}" for unit, rating in ratings.items())


def boot_order(site: Site) -> str:
    """Reboot a machine; its service starts after the network and without anybody."""
    machine = site["control2"]
    seconds = machine.reboot()
    wait_for_state(machine, CONTROLLER)
    stamp = "ActiveEnterTimestampMonotonic"
    network = int(state_of(machine, "network-online.target", stamp))
    start = int(state_of(machine, CONTROLLER, "ExecMainStartTimestampMonotonic"))
    expect(0 < network <= start, f"network online at {network} µs, the service started at {start} µs")
    expect(not machine.output("systemctl --failed --plain --no-legend"), "no unit has failed")
    return f"runs {seconds:.1f} s after `systemctl reboot`, the controller after network-online.target"


STEPS = tuple(
    Step("Services", what, act)
    for what, act in (
        ("`systemctl start`, `stop`, `restart`, `reload`", states),
        ("a crash", crash),
        ("a mistake in the configuration", wrong_configuration),
        ("the watchdog", watchdog),
        ("the journal", journal),
        ("volume of the journal", log_volume),
        ("credentials", credentials),
        ("exposure", exposure),
        ("boot", boot_order),
    )
)
