"""An ordinary PySpark script that knows nothing of Rechannel: counts numbers, and runs until it is killed.

``slow_numbers.py CHECKPOINT``: one row of fifty takes 30 ms in the stateful stage, without a processor.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 4000).load()
    keyed = rows.withColumn("k", (F.col("value") * F.col("value")) % 97).repartition("k")
    paused = F.reflect(F.lit("java.lang.Thread"), F.lit("sleep"), F.lit(30).cast("long"))
    slow = keyed.withColumn("paused", F.when(F.col("value") % 50 == 0, paused))
    counts = slow.groupBy("k").agg(F.sum(F.when(F.col("paused") == "never", 0).otherwise(1)).alias("n"))
    writer = counts.writeStream.outputMode("update").format("noop").queryName("numbers")
    writer.option("checkpointLocation", sys.argv[1]).start().awaitTermination()
