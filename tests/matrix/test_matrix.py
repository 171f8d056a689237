"""Every kind of state on every store, on one- and two-core executors, moved busy and idle, and audited row by row.

Two applications run side by side on the same nodes and the same Redis; each runs up to eighteen queries at once.
The result is left in ``out/matrix.json``, from which ``python -m tests.matrix.document`` writes the documentation.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from matrix.mover import Mover, Turns, start
from matrix.workloads import WAVES
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer
from testbed.spark_cluster import SparkOptions
from testbed.stack import ROOT, Stack, standalone

pytestmark = [pytest.mark.spark, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(7200)]
NODES = ("127.0.0.41", "127.0.0.42", "127.0.0.43")
CORES = tuple(int(text) for text in os.environ.get("MATRIX_CORES", "1,2").split(","))
WANTED = [
    wave
    for wave in WAVES
    if wave.workloads
    and os.environ.get("MATRIX_STORES", "") in wave.store
    and os.environ.get("MATRIX_STATE", "") in ("", "python" if wave.python else "sql")
]


def test_every_kind_of_state_moves_and_stays_exact(tmp_path):
    cluster = standalone(NODES, sum(CORES), 2048, SparkOptions(800, log_level="warn"))
    with Stack(tmp_path, {"cluster": {"name": "matrix"}}, cluster) as stack:
        signer, turns = Signer.from_file(tmp_path / "keys" / "signing.key"), Turns(len(CORES))
        movers = {}
        for cores in CORES:
            conf = stack.cluster.conf(executor_cores=cores) | {
                "spark.driver.memory": "1500m",
                "spark.cores.max": str(cores * len(NODES)),
            }
            process = start(stack, f"matrix-{cores}", WANTED, conf)
            store = Store(stack.settings.redis, "matrix")
            # Of this process alone: another may be done before.
            movers[cores] = Mover(store, signer, process.name, tmp_path / process.name, process.require_alive, turns)
        with ThreadPoolExecutor(len(movers)) as pool:
            for future in [pool.submit(mover.run, WANTED) for mover in movers.values()]:
                future.result()
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
