"""Bytes that a target has to load of a partition: the checkpoint's newest snapshot and the changes after it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path


def to_load(state: Path, partition: int) -> int:
    """Return the bytes of a partition of the first operator below a checkpoint's ``state``; 0 where none are yet."""
    directory = state / "0" / str(partition)
    snapshots: dict[int, int] = {}
    changes: dict[int, int] = {}
    for path in directory.iterdir() if directory.exists() else ():
        number = path.name.partition(".")[0].partition("_")[0]
        if path.name.startswith(".") or not number.isdigit():
            continue
        match path.suffix:
            case ".snapshot":
                snapshots[int(number)] = path.stat().st_size
            case ".zip":
                snapshots[int(number)] = _rocksdb(path)
            case ".delta" | ".changelog":
                changes[int(number)] = path.stat().st_size
    newest = max(snapshots, default=0)
    return snapshots.get(newest, 0) + sum(size for version, size in changes.items() if version > newest)


def _rocksdb(path: Path) -> int:
    """A RocksDB snapshot: the archive itself, and the files of the data base that it names."""
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("metadata").decode().splitlines()
    listed = json.loads(lines[-1])
    named = [*listed.get("sstFiles", ()), *listed.get("logFiles", ())]
    return path.stat().st_size + sum(int(file.get("sizeBytes", 0)) for file in named)
