"""Stateful operators of a query, read from its checkpoint through Hadoop's file systems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rechannel.migration.spark.gateway import Gateway, translate_errors
from rechannel.migration.spark.state_stores import stores_of_metadata, stores_of_partition

_SEPARATOR = "\0"  # in no path


@dataclass(frozen=True)
class CheckpointOperator:
    """A stateful operator by the checkpoint's metadata."""

    operator: int
    partitions: int
    stores: tuple[str, ...]


class Checkpoints:
    """Reader of checkpoints; each is named by Spark's own form of <checkpoint>/state.

    Source: ``OperatorStateMetadata`` (v1 is one file, v2 a directory with a file per batch; the newest counts). Before
    4.0 there is none, and the names of directories are used.
    """

    def __init__(self, gateway: Gateway, hadoop_conf: Any) -> None:
        self._hadoop_conf = hadoop_conf
        with translate_errors():  # py4j asks the JVM for every part of a class's name: these are looked up once
            hadoop = gateway.jvm.org.apache.hadoop.fs
            self._path_class, self._paths_of = hadoop.Path, hadoop.FileUtil.stat2Paths
            self._sequence = gateway.jvm.scala.Predef.genericWrapArray
            self._read = gateway.jvm.org.apache.commons.io.IOUtils.toString

    def operators(self, checkpoint: str) -> list[CheckpointOperator]:
        """Read all stateful operators; none before a first batch."""
        with translate_errors():
            files = self._files(checkpoint)
            numbers = sorted(int(name) for name in self._names(files, checkpoint) if name.isdigit())
            operators = [self._operator(files, checkpoint, number) for number in numbers]
            return [operator for operator in operators if operator is not None]

    def store_names(self, checkpoint: str, operator: int) -> list[str]:
        """Read an operator's store names; empty when the checkpoint does not have them yet."""
        with translate_errors():
            read = self._operator(self._files(checkpoint), checkpoint, operator)
            return [] if read is None else list(read.stores)

    def _files(self, checkpoint: str) -> Any:
        return self._path(checkpoint).getFileSystem(self._hadoop_conf)

    def _path(self, *parts: str) -> Any:
        return self._path_class("/".join(parts))

    def _operator(self, files: Any, checkpoint: str, operator: int) -> CheckpointOperator | None:
        root = (checkpoint, str(operator))
        entries = self._names(files, *root)
        names = self._store_names(files, root, entries)
        # Each partition has a directory; the metadata also counts those that a single-partition stage never has.
        partitions = sum(name.isdigit() for name in entries)
        return CheckpointOperator(operator, partitions, tuple(names)) if names else None

    def _store_names(self, files: Any, root: tuple[str, str], entries: list[str]) -> list[str]:
        if "_metadata" not in entries:  # left by a Spark before 4.0
            return stores_of_partition(self._names(files, *root, "0"))
        path = self._path(*root, "_metadata", "metadata")
        if not files.exists(path):
            batches = [name for name in self._names(files, *root, "_metadata", "v2") if name.isdigit()]
            if not batches:
                return []
            path = self._path(*root, "_metadata", "v2", max(batches, key=int))
        stream = files.open(path)
        try:
            return stores_of_metadata(str(self._read(stream, "UTF-8")))
        finally:
            stream.close()

    def _names(self, files: Any, *parts: str) -> list[str]:
        """Return the names in a directory; none if it does not exist."""
        path = self._path(*parts)
        if not files.exists(path):
            return []
        # One text for all: py4j would ask the JVM for each name.
        paths = str(self._sequence(self._paths_of(files.listStatus(path))).mkString(_SEPARATOR))
        return [item.rpartition("/")[2] for item in paths.split(_SEPARATOR) if item]
