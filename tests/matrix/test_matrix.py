"""Every kind of state on every store, on one- and two-core executors, moved busy and idle, and audited row by row.

Two applications run side by side on the same nodes and the same Redis; each runs up to eighteen queries at once.
The result is left in ``out/matrix.json``, from which ``python -m tests.matrix.document`` writes the documentation.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from matrix.mover import Mover, Turns
from matrix.workloads import WAVES
from rechannel.conf.loader import load
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer, make_keys
from testbed.processes import ProcessGroup
from testbed.redis_server import RedisServer
from testbed.spark_cluster import SparkOptions, StandaloneCluster, WorkerSpec

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(7200)]
ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.41", "127.0.0.42", "127.0.0.43")
PARTITIONS = 3
# The quick compiler alone and few log lines: some thirty queries on two cores are mostly start-up.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
CORES = tuple(int(text) for text in os.environ.get("MATRIX_CORES", "1,2").split(","))
WANTED = [
    wave
    for wave in WAVES
    if wave.workloads
    and os.environ.get("MATRIX_STORES", "") in wave.store
    and os.environ.get("MATRIX_STATE", "") in ("", "python" if wave.python else "sql")
]


def test_every_kind_of_state_moves_and_stays_exact(tmp_path):
    private, public = make_keys(tmp_path / "keys")
    with ProcessGroup(tmp_path / "logs") as group:
        redis = RedisServer(group).start()
        config = tmp_path / "rechannel.toml"
        config.write_text(
            f'[cluster]\nname = "matrix"\n[redis]\nurl = "{redis.url}"\n[signing]\npublic_key_file = "{public}"\n'
        )
        settings = load(config, {})
        workers = [WorkerSpec(node, sum(CORES), 2048, None) for node in NODES]
        cluster = StandaloneCluster(
            group,
            tmp_path / "cluster",
            workers,
            SparkOptions(800, JAVA_OPTIONS, "warn"),
        )
        with cluster:
            movers, turns = {}, Turns(len(CORES))
            for cores in CORES:
                name = f"matrix-{cores}"
                directory = tmp_path / name
                directory.mkdir()
                for number, wave in enumerate(WAVES):
                    if wave in WANTED:
                        (directory / f"inbox-{number}").mkdir()
                conf = cluster.conf(executor_cores=cores) | {
                    "spark.app.name": name,
                    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
                    "spark.driver.memory": "1500m",
                    "spark.cores.max": str(cores * len(NODES)),
                    "spark.sql.shuffle.partitions": str(PARTITIONS),
                    "spark.sql.session.timeZone": "UTC",
                    "spark.executorEnv.PYTHONPATH": str(ROOT / "tests"),
                    "spark.sql.streaming.pollingDelay": "100ms",
                }
                (directory / "conf.json").write_text(json.dumps(conf))
                environment = cluster.driver_environment() | {
                    "RECHANNEL_CONFIG": str(config),
                    "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", ".", "tests")),
                }
                command = [sys.executable, "-m", "matrix.app", str(directory / "conf.json"), str(directory)]
                group.start(name, command, env=environment, cwd=directory)
                store = Store(settings.redis, "matrix")
                check = group.processes[name].require_alive  # of this one alone: another may be done before
                movers[cores] = Mover(store, Signer.from_file(private), name, directory, check, turns)
            with ThreadPoolExecutor(len(movers)) as pool:
                for future in [pool.submit(mover.run, WANTED) for mover in movers.values()]:
                    future.result()
        redis.close()
    result = {
        str(cores): {
            "cells": {
                store: {name: vars(cell) for name, cell in cells.items()} for store, cells in mover.cells.items()
            },
            "failed_tasks": mover.failed,
        }
        for cores, mover in movers.items()
    }
    out = ROOT / "out"
    out.mkdir(exist_ok=True)
    (out / "matrix.json").write_text(json.dumps(result, indent=1))
    wrong = [
        f"{cores} cores, {store}, {name}: {cell}"
        for cores, mover in movers.items()
        for store, cells in mover.cells.items()
        for name, cell in cells.items()
        if not cell.exact or not cell.moves["busy"] or not cell.moves["idle"]
    ]
    assert not wrong, "\n".join(wrong)
    assert {sum(mover.failed.values()) for mover in movers.values()} == {0}, "no task attempt may fail"
