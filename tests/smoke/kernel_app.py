"""A process that runs cells as a notebook's kernel does: ``python -m tests.smoke.kernel_app DIRECTORY``.

Each cell runs in a thread of its own. The main thread takes interrupts, and nothing else. The third cell stops the
session and makes a new one. The first session runs until the file ``next`` exists, the second until ``stop``;
``<cell>.json`` has what a cell saw.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rechannel
from testbed.driver import open_session, read_plan, write_answer


class Kernel:
    """The cells' variables."""

    def __init__(self, directory: Path, conf: dict[str, str]) -> None:
        self.directory, self._conf = directory, conf
        self.interrupts = 0

    def run(self, cell: Callable[[], dict[str, Any]]) -> None:
        """Run a cell in a thread, and write what it returns; interrupts meanwhile are counted."""
        ended = threading.Event()

        def run() -> None:
            try:
                write_answer(self.directory / f"{cell.__name__}.json", cell())
            finally:
                ended.set()

        threading.Thread(target=run).start()
        while not ended.is_set():  # once an interrupt ends its join, Python 3.11 takes a thread for ended
            try:
                ended.wait()
            except KeyboardInterrupt:
                self.interrupts += 1

    def first(self) -> dict[str, Any]:
        """Open a session, attach it, start a query."""
        self.spark = open_session(self._conf)
        self.link = rechannel.attach(self.spark, solo=True, strict=True)
        self.query = self._start()
        return {"active": self.link.active}

    def interrupted(self) -> dict[str, Any]:
        """Interrupt the process group, as a notebook's server does, and see two more batches."""
        batch = self.query.lastProgress["batchId"]
        time.sleep(0.5)  # by then the main thread waits
        os.killpg(os.getpgrp(), signal.SIGINT)
        while self.query.isActive and self.query.lastProgress["batchId"] < batch + 2:
            time.sleep(0.1)
        while not (self.directory / "next").exists():
            time.sleep(0.1)
        return {"query": self.query.isActive, "active": self.link.active, "interrupts": self.interrupts}

    def renewed(self) -> dict[str, Any]:
        """Stop the session, attach it in vain, and make a new one, whose query runs until the end."""
        stopped, link = self.spark, self.link
        self.query.stop()
        stopped.stop()
        problem = rechannel.attach(stopped, solo=True).problem
        self.first()
        return {"problem": problem, "same": self.link is link, "active": self.link.active, "before": link.active}

    def _start(self) -> Any:
        rows = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        counts = rows.groupBy((rows.value % 10).alias("k")).count()
        writer = counts.writeStream.format("noop").outputMode("update").queryName("cells")
        checkpoint = self.directory / self.spark.sparkContext.applicationId
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        while not query.lastProgress:
            time.sleep(0.1)
        return query


def main() -> None:
    """Run the cells."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by what starts in a shell's background
    kernel = Kernel(*read_plan())
    for cell in (kernel.first, kernel.interrupted, kernel.renewed):
        kernel.run(cell)
    while not (kernel.directory / "stop").exists():
        time.sleep(0.2)


if __name__ == "__main__":
    main()
