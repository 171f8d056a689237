"""Steps that the suite takes on a site, one after the other, and what it records of each."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from testbed.processes import wait_until
from tests.machines.machine import Machine
from tests.machines.site import PATIENCE, Site


class OutcomeError(AssertionError):
    """What came about is not what the page promises; the message says both.

    ``outcome``: what was measured all the same.
    """

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True)
class Outcome:
    """What came of one step. ``failure``: "" where it held.

    ``seconds`` of the step; ``recovered``: seconds from the fault; ``lost``, ``doubled``: rows, None where nobody has
    counted them; ``rows``: more to show.
    """

    part: str = ""
    what: str = ""
    outcome: str = ""
    seconds: float = 0.0
    recovered: float | None = None
    lost: int | None = None
    doubled: int | None = None
    rows: Sequence[Sequence[str]] = ()
    failure: str = ""


@dataclass(frozen=True)
class Step:
    """One step: what an operator does or what happens, and the function that does it and says what came."""

    part: str
    what: str
    act: Callable[[Site], str | Outcome]

    def take(self, site: Site) -> Outcome:
        """Take it, and return what came of it; an error becomes its failure."""
        began = time.monotonic()
        try:
            came = self.act(site)
        except Exception as error:  # noqa: BLE001  whatever fails, the next step is due
            measured = error.outcome if isinstance(error, OutcomeError) and error.outcome else Outcome()
            came = dataclasses.replace(measured, failure=f"{type(error).__name__}: {error}")
        if isinstance(came, str):
            came = Outcome(outcome=came)
        return dataclasses.replace(came, part=self.part, what=self.what, seconds=time.monotonic() - began)


def take_all(site: Site, steps: Sequence[Step]) -> list[Outcome]:
    """Take the steps in order, and tell each on standard error as it ends."""
    outcomes = []
    for step in steps:
        outcome = step.take(site)
        outcomes.append(outcome)
        state = f"FAILED: {outcome.failure}" if outcome.failure else outcome.outcome
        sys.stderr.write(f"{outcome.seconds:6.1f} s  {step.part}: {step.what}: {state}\n")
    return outcomes


def expect(holds: object, message: str) -> None:
    """Raise `OutcomeError` with the message unless it holds."""
    if not holds:
        raise OutcomeError(message)


def state_of(machine: Machine, unit: str, what: str = "ActiveState") -> str:
    """Return a property of a unit."""
    return machine.output(f"systemctl show -P {what} {unit}")


def _status(machine: Machine, unit: str) -> str:
    return machine.run(f"systemctl status --no-pager {unit} | tail -15", check=False).stdout


def wait_for_state(machine: Machine, unit: str, state: str = "active", seconds: float = PATIENCE) -> float:
    """Wait until a unit is in a state; seconds that it took."""
    began = time.monotonic()
    wait_until(
        lambda: state_of(machine, unit) == state,
        f"{unit} of {machine.name} in state {state}",
        seconds,
        every=0.2,
        details=lambda: _status(machine, unit),
    )
    return time.monotonic() - began


def wait_for_status(machine: Machine, unit: str, text: str, seconds: float = 60.0) -> None:
    """Wait until a text is in the status that a unit reports."""
    wait_until(
        lambda: text in state_of(machine, unit, "StatusText"),
        f"{unit}: {text}",
        seconds,
        every=0.2,
        details=lambda: _status(machine, unit),
    )


def set_drop_in(machine: Machine, unit: str, *lines: str) -> None:
    """Write a drop-in as ``systemctl edit`` does, and restart; without lines it is removed."""
    path = f"/etc/systemd/system/{unit}.service.d/override.conf"
    if lines:
        machine.write(path, "[Service]\n" + "\n".join(lines) + "\n")
    else:
        machine.run(f"rm {path}; rmdir {path.rpartition('/')[0]}")
    machine.run(f"systemctl daemon-reload; systemctl restart {unit}")


def wait_for_new_process(machine: Machine, unit: str, pid: str, seconds: float) -> None:
    """Wait until a unit has another main process than ``pid``."""

    def has_another() -> bool:
        return state_of(machine, unit, "MainPID") not in ("0", pid)

    wait_until(has_another, f"a new process of {unit} on {machine.name}", seconds, every=0.2)
