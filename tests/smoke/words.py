"""An ordinary PySpark script that knows nothing of Rechannel: counts words of files, batch by batch.

``words.py INPUT OUTPUT STOP``: runs until the file STOP exists and all input is counted, then writes OUTPUT. As some
scripts do, it waits for that in a thread, while its own last line is long behind it.
"""

import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

COUNTS = {}


def keep(frame, batch):
    COUNTS.update({row["word"]: row["count"] for row in frame.collect()})


def finish(spark, query, output, stop):
    while not Path(stop).exists() and query.isActive:
        time.sleep(0.2)
    query.processAllAvailable()
    query.stop()
    Path(output).write_text(json.dumps(COUNTS))
    spark.stop()
    print("counted", len(COUNTS))


if __name__ == "__main__":
    source, output, stop = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(source)
    phrase = lines.select(F.explode(F.split("value", " ")).alias("word")).groupBy("word").count()
    query = phrase.writeStream.outputMode("update").foreachBatch(keep).queryName("words").start()
    threading.Thread(target=finish, args=(spark, query, output, stop)).start()
    sys.exit(3)
