"""Checks of this machine for its agent, by ``doctor --machine`` only. Pure.

:mod:`rechannel.daemon.doctor.machine_facts` collects the facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rechannel.daemon.doctor.finding import Finding, failed, ok, warning
from rechannel.daemon.doctor.host import TIME_SERVICE

AGENT_UNIT = "rechannel-agent.service"
FILES, WATCHES = "open files", "watched directories"
_CAPABILITIES = {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}  # with both an agent reads what other users own
_LITTLE = 0.05  # share of a file system that is free
_SHOWN = 3  # reasons
_CURES = {
    FILES: "`ulimit -n {0}`, or LimitNOFILE={0} in a drop-in of the unit",
    WATCHES: "`sysctl fs.inotify.max_user_watches={}` or more; what is not watched is listed, at more CPU",
}
_AGAIN = "run this again while a query runs"


@dataclass(frozen=True)
class MachineFacts:
    """Facts about this machine, as the user of this process sees them."""

    user: str
    executors: Mapping[str, str] = field(default_factory=dict)  # executor of this node -> its user
    other_hosts: Sequence[str] = ()  # host names of all other executors here
    unreadable: Sequence[str] = ()  # what an agent of this user cannot read, each as a sentence
    proc: Mapping[str, str] = field(default_factory=dict)  # mount options of /proc
    sees_others: bool = True  # whether processes of other users are visible
    missing: Sequence[str] = ()  # local directories of executors
    free: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # directory -> shares of space and inodes
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # name -> number needed, number allowed
    control_groups: int = 2  # their version; 0: none of the CPU
    in_time: bool | None = None  # whether something keeps the clock in time; None: unknown
    units: Mapping[str, bool | None] = field(default_factory=dict)  # file or drop-in -> whether changed; None: unknown
    agent_unit: Mapping[str, str] = field(default_factory=dict)  # settings of the agent's unit, drop-ins included

    @property
    def agent_user(self) -> str:
        """User of the agent: that of the unit, else that of this process."""
        return self.agent_unit.get("User") or self.user

    @property
    def reads_any_user(self) -> bool:
        """Whether the unit lets the agent read executors of any user.

        systemd drops capabilities that the bounding set does not have.
        """
        ambient = set(self.agent_unit.get("AmbientCapabilities", "").split())
        bounding_set = self.agent_unit.get("CapabilityBoundingSet", "~")  # ~: all capabilities but these
        return (ambient if "~" in bounding_set else ambient & set(bounding_set.split())) >= _CAPABILITIES

    @property
    def executor_users(self) -> list[str]:
        """Users of the executors."""
        return sorted(set(self.executors.values()))


def check_machine(machine: MachineFacts) -> list[Finding]:
    """Check what an agent needs of its machine."""
    return [
        _check_user(machine),
        _check_executors(machine),
        _check_proc(machine),
        *_check_directories(machine),
        _check_control_groups(machine.control_groups),
        *_check_limits(machine.limits),
        _check_time(machine.in_time),
        *_check_units(machine.units),
    ]


def _check_user(machine: MachineFacts) -> Finding:
    check, agent, users = "agent-user", machine.agent_user, machine.executor_users
    runs = f"{AGENT_UNIT} runs the agent as {agent}" if machine.agent_unit else f"this runs as {agent}"
    if machine.reads_any_user:
        return ok(check, f"{runs}, with the capabilities to read executors of any user")
    if set(users) - {agent}:
        sentence = f"{runs}, but executors run as {', '.join(users)}, and only their user can read all of them"
        cure = f"run the agent and this as {users[0]}: `runuser -u {users[0]} -- rechannel doctor --machine`"
        if len(users) > 1:
            cure = f"give the agent both capabilities in the two settings that a comment in {AGENT_UNIT} names"
        elif machine.agent_unit:
            cure = f"`systemctl edit {AGENT_UNIT}`: [Service] User={users[0]}"
        return (failed if machine.agent_unit else warning)(check, sentence, cure)
    if machine.user != agent:
        sentence = f"{runs}, and this as {machine.user}: the rights of {agent} are not checked"
        return warning(check, sentence, f"`runuser -u {agent} -- rechannel doctor --machine`")
    return ok(check, f"{runs}; {'executors run as ' + ', '.join(users) if users else 'no executor runs here'}")


def _check_executors(machine: MachineFacts) -> Finding:
    check, hosts, count = "executors", machine.other_hosts, len(machine.executors)
    if hosts and not count:
        sentence = f"executors here have other host names than the agent: {', '.join(hosts)}"
        return failed(check, sentence, f"set agent.node to {hosts[0]}; each host name needs an agent of its own")
    sentence = "; ".join(machine.unreadable[:_SHOWN]) + ("; …" if len(machine.unreadable) > _SHOWN else "")
    if any("rights missing" in reason for reason in machine.unreadable):
        report = failed if machine.user == machine.agent_user and not machine.reads_any_user else warning
        return report(check, sentence, "run the agent as Spark's user, in its PID namespace")
    if sentence:
        return warning(check, sentence, "see the section on agents in docs/handbook.md")
    return ok(check, f"{count} can be read" if count else f"none runs here; {_AGAIN}")


def _check_proc(machine: MachineFacts) -> Finding:
    check, options = "proc", ",".join(f"{name}={value}" for name, value in machine.proc.items())
    if "subset" in machine.proc:
        cure = "mount it without subset=; in a unit: no ProcSubset="
        return failed(check, f"/proc is mounted with {options}: without /proc/stat no agent can run", cure)
    if machine.sees_others:
        return ok(check, "processes of all users are seen")
    sentence = f"/proc is mounted with {options or 'unknown options'}: only processes of {machine.user} are seen"
    if machine.executors:
        return ok(check, f"{sentence}, such as the executors here")
    return warning(check, sentence, "run the agent and this as Spark's user, or mount /proc with gid= of their group")


def _check_directories(machine: MachineFacts) -> list[Finding]:
    check, restart = "local-directories", "restart its executors, and exclude it from what removes old files there"
    findings = [failed(check, "does not exist, but executors use it", restart, path) for path in machine.missing]
    for path, shares in machine.free.items():
        sentence = f"{shares[0]:.0%} of the space and {shares[1]:.0%} of the inodes are free"
        remove = "remove what ended applications left, or use another disk: state that moves here needs room"
        findings.append(warning(check, sentence, remove, path) if min(shares) < _LITTLE else ok(check, sentence, path))
    none = "not checked: the executors do not show theirs" if machine.executors else f"none is in use here; {_AGAIN}"
    return findings or [ok(check, none)]


def _check_control_groups(version: int) -> Finding:
    if version:
        return ok("control-groups", f"version {version}")
    cure = "mount the CPU's control groups; in a container, let it see /sys/fs/cgroup"
    return warning("control-groups", "there are none of the CPU, so no throttled executor is noticed", cure)


def _check_limits(limits: Mapping[str, tuple[int, int]]) -> list[Finding]:
    findings = [
        warning("limits", f"{has} are allowed, and an agent here needs {needs}", _CURES[name].format(needs), name)
        for name, (needs, has) in limits.items()
        if has < needs
    ]
    return findings or [ok("limits", "; ".join(f"{has} {name}" for name, (_, has) in limits.items()))]


def _check_time(in_time: bool | None) -> Finding:
    if in_time is False:
        return warning("time-service", "according to the kernel, nothing keeps the clock in time", TIME_SERVICE)
    return ok("time-service", "the clock is kept in time" if in_time else "not checked: the kernel gives no answer")


def _check_units(units: Mapping[str, bool | None]) -> list[Finding]:
    check, findings = "units", list[Finding]()
    for file, changed in units.items():
        if changed:
            cure = f"use a drop-in instead: `systemctl edit {file.rpartition('/')[2]}`; `rm {file}`; `make install`"
            findings.append(warning(check, "is not the unit that was installed", cure, file))
        else:
            state = "as installed" if changed is False else "not compared: what was installed is not here"
            findings.append(ok(check, "a drop-in, as it should be" if file.endswith(".conf") else state, file))
    return findings or [ok(check, "none of Rechannel is installed")]
