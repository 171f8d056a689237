"""Behavior of Spark itself that the handbook warns of; where one of these fails, Spark has mended it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROWS = 100_000
SCRIPT = f"""
import glob, os, sys, time
from pyspark.sql import SparkSession

directory, threshold, partitions = sys.argv[1:]  # a worker has arguments of its own

def without_one_file(rows):
    yield from rows
    # Of the files that the map task is just about to put together, where its writer has any.
    deadline, found = time.monotonic() + (120 if int(threshold) else 5), []
    while not found and time.monotonic() < deadline:
        found = glob.glob(directory + "/**/temp_shuffle_*", recursive=True)
        time.sleep(0.1)
    for path in found[:1]:
        os.remove(path)

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.local.dir", directory).config("spark.sql.adaptive.enabled", "false")
spark = builder.config("spark.shuffle.sort.bypassMergeThreshold", threshold).getOrCreate()
numbers = spark.sparkContext.range(0, {ROWS}, 1, 1).map(lambda number: (number,)).mapPartitions(without_one_file)
counts = numbers.toDF("id long").repartition(int(partitions), "id").groupBy("id").count()
print("rows", counts.count())
"""


def rows(directory: Path, threshold: int, partitions: int = 4) -> int:
    script = directory / "count.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(directory / "local"), str(threshold), str(partitions)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    return int(done.stdout.split("rows ")[1])


def test_a_shuffle_file_that_is_gone_counts_as_one_without_rows(tmp_path: Path) -> None:
    assert rows(tmp_path, 200) < ROWS * 0.9, "SPARK-37473"


def test_the_other_writer_has_no_such_files(tmp_path: Path) -> None:
    assert rows(tmp_path, 0) == ROWS


def test_a_threshold_of_one_leaves_shuffles_to_one_partition_as_they_are(tmp_path: Path) -> None:
    assert rows(tmp_path, 1, partitions=1) < ROWS * 0.9, "SPARK-37473"
    assert rows(tmp_path, 0, partitions=1) == ROWS
