"""A driver: waits for the executors, shuffles once, and writes their hosts and the result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from testbed.spark_cluster import wait_for_executors


def main(conf: Path, result: Path) -> None:
    builder = SparkSession.builder.appName("batch")
    for key, value in json.loads(conf.read_text()).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    executors = wait_for_executors(spark, 2)
    total = spark.range(0, 200_000, 1, 4).repartition(4, "id").selectExpr("sum(id)").collect()[0][0]
    result.write_text(json.dumps({"hosts": [host for host, _ in executors], "total": total}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
