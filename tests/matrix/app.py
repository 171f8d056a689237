"""The matrix's Spark application: one wave of queries after the other, all of a wave at once, attached to Rechannel.

``python -m matrix.app DIRECTORY``. In the directory: ``inbox-<n>`` is read, ``running-<n>`` is made when the queries
of wave n run, ``dead-<n>`` names those that failed since, ``finish-<n>`` is waited for, ``result-<n>.json`` tells what
they wrote.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import rechannel
from matrix.workloads import SCHEMA, STORES, WAVES, Wave, Workload
from testbed.driver import open_session, read_plan, write_answer


class Written:
    """Output of a query: rows by batch, so that a batch that is written again replaces itself."""

    def __init__(self, runs: int) -> None:
        self.batches: dict[int, list[list[Any]]] = {}
        self._runs = runs

    def write(self, frame: DataFrame, batch: int) -> None:
        if self._runs > 1:  # some functions name their jobs, and take the run out of the properties of Spark's jobs
            frame.sparkSession.sparkContext.setJobGroup("users-own", "name of the user's")
        for _ in range(self._runs - 1):
            frame.isEmpty() if batch % 2 else frame.count()
        self.batches[batch] = [list(row) for row in frame.collect()]


def start(spark: SparkSession, workload: Workload, directory: Path, number: int, written: Written) -> Any:
    def stream() -> DataFrame:
        reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(directory / f"inbox-{number}"))

    for key, value in workload.conf.items():
        spark.conf.set(key, value)
    writer = workload.build(stream).writeStream.outputMode(workload.mode).foreachBatch(written.write)
    writer = writer.queryName(workload.name).option("checkpointLocation", str(checkpoint(directory, number, workload)))
    query = writer.start()
    for key in workload.conf:
        spark.conf.unset(key)
    return query


def checkpoint(directory: Path, number: int, workload: Workload) -> Path:
    return directory / f"checkpoint-{number}" / workload.name.replace(" ", "-").replace(",", "")


def run(spark: SparkSession, directory: Path, number: int, wave: Wave) -> None:
    for key in {key for conf in STORES.values() for key in conf}:
        spark.conf.unset(key)
    for key, value in STORES[wave.store].items():
        spark.conf.set(key, value)
    workloads = wave.workloads
    written = {workload.name: Written(workload.runs) for workload in workloads}
    queries: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for workload in workloads:
        try:
            queries[workload.name] = start(spark, workload, directory, number, written[workload.name])
        except Exception as error:  # noqa: BLE001  a cell that Spark itself refuses is told as such
            errors[workload.name] = str(error).splitlines()[0]
    (directory / f"running-{number}").write_text(json.dumps(sorted(queries)))
    restless = {workload.name for workload in workloads if workload.restless}
    while not (directory / f"finish-{number}").exists():
        time.sleep(0.2)
        dead = sorted(name for name, query in queries.items() if not query.isActive)
        (directory / f"dead-{number}").write_text(json.dumps(dead))
    for name, query in queries.items():
        try:
            if query.isActive and name not in restless:
                query.processAllAvailable()
            elif query.exception() is not None:
                errors[name] = str(query.exception()).splitlines()[0]
            query.stop()
        except Exception as error:  # noqa: BLE001
            errors[name] = str(error).splitlines()[0]
    document = {"written": {name: item.batches for name, item in written.items()}, "errors": errors}
    write_answer(directory / f"result-{number}.json", document)


def main() -> None:
    directory, conf = read_plan()
    spark = open_session(conf, "ERROR")
    rechannel.attach(spark, strict=True)
    for number, wave in enumerate(WAVES):
        if (directory / f"inbox-{number}").exists():
            while not (directory / f"go-{number}").exists():
                time.sleep(0.2)
            run(spark, directory, number, wave)
    spark.stop()


if __name__ == "__main__":
    main()
