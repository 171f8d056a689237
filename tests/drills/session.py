"""Runs scenarios one after the other, on a world that is kept as long as nothing was broken in it."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
import time
from pathlib import Path

from rechannel.wire.redis.errors import StoreError
from testbed.processes import ProcessDiedError
from tests.drills import audit, scenarios
from tests.drills.network import NetworkError
from tests.drills.results import Result
from tests.drills.scenarios import Scenario
from tests.drills.world import DrillError, World

_FAILURES = (DrillError, ProcessDiedError, NetworkError, StoreError, OSError)
_PER_WORLD = 12  # scenarios on one world: the audit reads all batches anew each time


def to_stderr(text: str) -> None:
    """Say what is going on, with the time."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


class NoWorldError(RuntimeError):
    """Not even the world came up, so nothing was found out about any fault."""


class Session:
    """One world at a time. ``directory``: logs of what went wrong are kept there."""

    def __init__(self, directory: Path | None = None) -> None:
        self.world: World | None = None
        self._directory = directory or Path(tempfile.mkdtemp(prefix="rechannel-drills-"))
        self._number = 0
        self._runs = 0

    def run(self, scenario: Scenario, provider: str, repetition: int = 1) -> Result:
        """Run a scenario; what goes wrong in it is a result too, and the next one gets a new world.

        Raises NoWorldError where nothing could be tried.
        """
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        plain = Result(scenario.name, scenario.fault.name, scenario.when, provider, repetition=repetition, at=at)
        if why := scenario.fault.why_not():
            to_stderr(f"SKIPPED: {scenario.name}: {why}")
            return dataclasses.replace(plain, skipped=why)
        to_stderr(f"{scenario.name} ({provider}, run {repetition})")
        try:
            world = self._world(provider)
        except _FAILURES as error:
            self.close(keep=True)
            raise NoWorldError(f"no world could be made: {error}") from error
        try:
            result = scenarios.run(world, scenario, to_stderr)
        except _FAILURES as error:
            verdict = audit.audit(self.world.app_directory) if self.world is not None else audit.Audit(0, 0, 0)
            to_stderr(f"did not hold: {error}")
            self.close(keep=True)
            return dataclasses.replace(
                plain,
                problems=[str(error).split("\n---")[0][:2000]],
                lost=verdict.lost,
                doubled=verdict.doubled,
                batches=verdict.batches,
            )
        self._runs += 1
        for problem in result.problems:
            to_stderr(f"did not hold: {problem}")
        if not result.held:
            self.close(keep=True)
        return dataclasses.replace(result, repetition=repetition, at=at)

    def _world(self, provider: str) -> World:
        if self.world is not None and (self.world.provider != provider or self._runs >= _PER_WORLD):
            self.close()
        if self.world is None:
            self._number += 1
            self._runs = 0
            directory = self._directory / f"{self._number}-{provider}"
            shutil.rmtree(directory, ignore_errors=True)
            self.world = World(directory, provider)
            self.world.__enter__()  # closed by `close`, for it outlives this call
        return self.world

    def close(self, *, keep: bool = False) -> None:
        """End the world; with ``keep`` its logs stay."""
        world, self.world = self.world, None
        if world is not None:
            world.close()
            if keep:
                to_stderr(f"logs are kept in {world.directory}")
            else:
                shutil.rmtree(world.directory, ignore_errors=True)
