"""``python -m benchmarks.adoption``: adopt Rechannel as its pages say, and time the benefit.

Each way begins with empty environments and a standalone cluster of two nodes that has no part of Rechannel. It runs the
commands of docs/install.md with the default settings. After the first decision a third node joins. All nodes are on one
machine, so a step that is due on several machines is timed once.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report.results import Result, ResultFile, argument_parser, progress
from benchmarks.report.templates import table
from testbed.installation import copy_tree, install, outside_environment
from testbed.processes import ROOT, ProcessGroup, wait_until
from testbed.redis_server import RedisServer
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec, spark_home

NODES = [f"127.0.0.{number}" for number in (141, 142, 143)]
SCRIPT = ROOT / "tests" / "smoke" / "slow_numbers.py"
PARTITIONS = 24
PATIENCE = 900.0  # seconds for any step


@dataclass
class Trial:
    """Seconds since the first command until each step was done, and what the environments hold."""

    way: str
    seconds: dict[str, float] = field(default_factory=dict)
    megabytes: dict[str, int] = field(default_factory=dict)
    batch_before: float = 0.0
    batch_after: float = 0.0
    sentence: str = ""


class _Adoption:
    """One way on a cluster: its environments, variables and processes."""

    def __init__(self, trial: Trial, directory: Path, group: ProcessGroup, cluster: StandaloneCluster) -> None:
        self.trial, self.directory, self.group, self.cluster = trial, directory, group, cluster
        self.began = time.monotonic()
        self.tree = copy_tree(directory / "checkout")

    def install(self, name: str, requirement: str) -> Path:
        """Install into an empty environment; returns its directory of programs."""
        place = self.directory / name
        programs = install(place, requirement, tree=self.tree)
        size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())
        self.trial.megabytes[name] = round(size / 2**20)
        return programs

    def variables(self, programs: Path | None = None, **more: str) -> dict[str, str]:
        """Return the variables of a process that sees nothing of this checkout."""
        path = os.pathsep.join([*([str(programs)] if programs else []), os.environ["PATH"]])
        return outside_environment(PATH=path, TMPDIR=str(self.directory)) | more

    def submit(self, programs: Path, *options: str, **more: str) -> None:
        """Start the script, which has never heard of Rechannel."""
        python = ("spark.pyspark.python", "spark.pyspark.driver.python")
        conf = {name: value for name, value in self.cluster.conf(executor_cores=1).items() if name not in python}
        conf |= {"spark.sql.shuffle.partitions": str(PARTITIONS), "spark.driver.memory": "1g"}
        settings = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        command = [str(programs / "rechannel"), "submit", *options, *settings, str(SCRIPT), "checkpoint"]
        more = {"SPARK_LOCAL_IP": self.cluster.site.driver_host} | more
        self.group.start("submit", command, env=self.variables(programs, **more), cwd=self.directory)

    def start(self, name: str, programs: Path, *arguments: str, **more: str) -> None:
        """Start a daemon of ours."""
        self.group.start(name, [str(programs / "rechannel"), *arguments], env=self.variables(programs, **more))

    def observe(self, programs: Path, **more: str) -> None:
        """Wait for the first decision, have a node join, and wait for the gain that is measured."""

        def entries(kind: str) -> list[dict[str, Any]]:
            self.group.check()
            command = [str(programs / "rechannel"), "history", "--json"]
            variables = self.variables(programs, **more)
            done = subprocess.run(  # noqa: S603  our own program
                command, env=variables, cwd=self.directory, capture_output=True, text=True, check=False
            )
            listed = json.loads(done.stdout).get("entries", []) if done.stdout else []
            return [entry for entry in listed if entry["type"] == kind]

        def decided() -> bool:
            return any(entry["result"] != "not-ready" for entry in entries("decision"))

        def judged() -> list[dict[str, Any]]:
            return [entry for entry in entries("outcome") if entry["batch_before"] and entry["batch_after"]]

        self._await("decision", decided)
        self.cluster.add_worker(WorkerSpec(NODES[2], 1, 1024))
        self.note("node joined")
        outcome = self._await("measured gain", judged)[0]
        self.trial.batch_before = statistics.fmean(outcome["batch_before"].values())
        self.trial.batch_after = statistics.fmean(outcome["batch_after"].values())
        self.trial.sentence = outcome["sentence"]

    def _await(self, step: str, ready: Callable[[], Any]) -> Any:
        result = wait_until(ready, step, PATIENCE, 1.0, lambda: self.group.processes["submit"].log_tail(20))
        self.note(step)
        return result

    def note(self, step: str) -> None:
        """Note the time at which a step is done."""
        self.trial.seconds[step] = round(time.monotonic() - self.began, 1)
        progress(f"{self.trial.way}: {step} after {self.trial.seconds[step]:.0f} s")


def _solo(adoption: _Adoption) -> None:
    programs = adoption.install("rechannel", ".[solo]")
    adoption.note("installed")
    adoption.submit(programs, "--solo", "--apply")
    adoption.observe(programs)


def _whole(adoption: _Adoption) -> None:
    programs = adoption.install("rechannel", ".")
    adoption.note("installed")
    _serve(adoption, programs, programs, programs, {})


def _light(adoption: _Adoption) -> None:
    agents = adoption.install("node", "./distributions/agent")
    driver = adoption.install("driver", "./distributions/agent[driver]")
    controller = adoption.install("controller", ".")
    adoption.note("installed")
    _serve(adoption, controller, agents, driver, {"SPARK_HOME": str(spark_home())})


def _serve(adoption: _Adoption, controller: Path, agents: Path, driver: Path, of_driver: Mapping[str, str]) -> None:
    """Start a Redis, agents and a controller, and submit the script."""
    with RedisServer(adoption.group) as redis:
        make_keys = [str(controller / "rechannel"), "config", "keys", str(adoption.directory / "keys")]
        subprocess.run(make_keys, env=adoption.variables(), check=True, stdout=subprocess.DEVNULL)  # noqa: S603  our own
        config = adoption.directory / "rechannel.toml"
        config.write_text(
            f'[redis]\nurl = "{redis.url}"\n'
            '[signing]\nprivate_key_file = "keys/signing.key"\npublic_key_file = "keys/signing.pub"\n'
            '[reschedule]\nmode = "apply"\n'
        )
        more = {"RECHANNEL_CONFIG": str(config)}
        for node in NODES:
            adoption.start(f"agent-{node}", agents, "agent", "--node", node, **more)
        adoption.start("controller", controller, "controller", **more)
        adoption.submit(driver, **more, **of_driver)
        adoption.observe(controller, **more)


WAYS: dict[str, Callable[[_Adoption], None]] = {"solo": _solo, "whole": _whole, "light": _light}


def adopt(way: str) -> Trial:
    """Adopt Rechannel in one way on a new cluster; TimeoutError if a step takes too long."""
    trial = Trial(way)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="adopt")))  # short: sockets are in it
        group = stack.enter_context(ProcessGroup(directory / "logs"))
        workers = [WorkerSpec(node, 1, 1024) for node in NODES[:2]]
        cluster = stack.enter_context(StandaloneCluster(group, directory / "cluster", workers, SparkOptions()))
        WAYS[way](_Adoption(trial, directory, group, cluster))
    return trial


def cells(trial: Trial) -> list[str]:
    """Return the figures as a row of the table."""
    steps = [f"{trial.seconds[step]:.0f} s" for step in ("installed", "decision", "measured gain")]
    sizes = ", ".join(f"{name} {size}" for name, size in trial.megabytes.items())
    return [trial.way, *steps, f"{trial.batch_before:.1f} → {trial.batch_after:.1f} s", sizes]


def main() -> None:
    """Try the ways and print the table."""
    parser = argument_parser("benchmarks.adoption", __doc__, "only the way solo")
    parser.add_argument("--way", choices=[*WAYS], action="append", help="only this way; may be given again")
    options = parser.parse_args()
    ways = options.way or (["solo"] if options.quick else [*WAYS])
    trials: list[Trial] = []
    rows: list[dict[str, Any]] = []
    result = Result.of("Seconds from the first command to the benefit", {"rows": rows}, quick=options.quick)
    results = ResultFile(options.json, {"adoption": result})
    for way in ways:
        trials.append(adopt(way))
        rows.append(vars(trials[-1]))
        results.save()
    print(table("way | installed | first decision | measured gain | batch | MB", map(cells, trials)))


if __name__ == "__main__":
    main()
