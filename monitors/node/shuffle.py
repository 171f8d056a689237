"""Stream sizes off the node: what every map task sends to each downstream partition.

Spark's own shuffle writers leave ``shuffle_<shuffle>_<map task>_0.index`` under ``blockmgr-*/xx/`` of the executor's
local directories: big-endian 64-bit offsets into the data file, so their differences are bytes per downstream
partition. The file appears whole, by a rename. Other shuffle managers leave none, and then there is nothing to report.

New files are told by the kernel (`rechannel.monitors.node.inotify`), so thousands of old ones cost nothing. A
directory that
cannot be watched is listed whenever it changed; a watched one is looked at once in `VERIFY_EVERY` seconds all the same,
and is listed from then on if it held something that was never told.

The directories belong to the executors, whose code may put anything there: only regular files are read, no link is
followed, and files count by their size in what one pass may cost.

Read with `struct`: for some hundred partitions it is as quick as NumPy, and the agent is spared NumPy's memory.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

from rechannel.monitors.node import files
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import Executor
from rechannel.wire.measurements import StreamRow

MOST_PARTITIONS = 200_000  # downstream partitions of a map output; a window has no room for more
LARGEST_INDEX = 8 * (MOST_PARTITIONS + 1)  # bytes
READ_COST = 20  # what reading an index file costs, in names of a directory's listing
SIZES_A_NAME = 50  # so many of its numbers cost as much as a name more
SETTLED = 0.1  # seconds: two changes closer than the file system's clock ticks leave one modification time
VERIFY_EVERY = 30.0  # seconds after which a watched directory is looked at all the same
_INDEX = re.compile(r"shuffle_(\d{1,9})_(\d{1,18})_0\.index")


_Named = tuple[str, re.Match[str]]  # a file's name, taken apart


class IndexFileError(ValueError):
    """A shuffle index file that cannot be used; the message is the reason, fit for counting."""


def read_index(path: str | os.PathLike[str], *, directory: int | None = None) -> list[int]:
    """Return the bytes that a map task sends to each downstream partition.

    ``directory``: the descriptor that ``path`` is relative to. Raises IndexFileError for what is not a regular file,
    too big, empty, cut off or no list of offsets, OSError if unreadable.
    """
    try:
        descriptor, size = files.open_regular(path, directory=directory)
    except files.NotRegularError:
        raise IndexFileError("index file not a regular file") from None
    try:
        # Not read: a sparse file of any size costs its owner nothing.
        data = os.read(descriptor, size) if size <= LARGEST_INDEX else None
    finally:
        os.close(descriptor)
    if data is None:
        raise IndexFileError("index file too big")
    if not data:
        raise IndexFileError("index file empty")
    if len(data) % 8 or len(data) < 16:
        raise IndexFileError("index file cut off")
    offsets = struct.unpack(f">{len(data) // 8}q", data)
    sizes = [end - start for start, end in pairwise(offsets)]
    if offsets[0] != 0 or min(sizes) < 0:
        raise IndexFileError("index file holds no rising offsets")
    return sizes


@dataclass
class _Directory:
    changed: int = -1  # modification time in nanoseconds when last listed, -1 to list it again
    files: set[str] = field(default_factory=set)
    waiting: list[_Named] = field(default_factory=list)  # that the budget did not reach to
    watched: bool = False
    verify_at: float = 0.0  # when a watched one is looked at next


@dataclass
class _Seen:
    old: bool  # ran before the reader did: what it left so far is no news
    leaves: dict[str, _Directory] = field(default_factory=dict)


class ShuffleReader:
    """Reads every new shuffle index file once.

    A directory that did not change costs nothing, or one stat where it cannot be watched; a file read before costs
    nothing in a watched one. Without ``changes`` nothing is watched. ``budget`` bounds one executor's pass
    (names listed, a file read counting as `READ_COST` names and more by its size); what it leaves is read in the next
    pass, the directory that waited longest first.
    """

    def __init__(
        self,
        *,
        wall: Callable[[], float] = time.time,
        budget: int = 5_000,
        changes: DirectoryWatch | None = None,
    ) -> None:
        self._changes = changes
        self._wall = wall
        self._budget = budget
        self._since = wall()
        self._seen: dict[tuple[int, float], _Seen] = {}
        self._owners: dict[str, tuple[int, float]] = {}
        self._skipped: Counter[str] = Counter()

    def take_skipped(self) -> dict[str, int]:
        """Return what could not be read since the last call, by reason."""
        skipped, self._skipped = self._skipped, Counter()
        return dict(skipped)

    def forget(self, alive: set[tuple[int, float]]) -> None:
        """Drop what is remembered of executors other than these (pid, start time)."""
        for identity in [identity for identity in self._seen if identity not in alive]:
            for leaf in self._seen.pop(identity).leaves:
                self._unwatch(leaf)
        self._owners = {path: owner for path, owner in self._owners.items() if owner in alive}

    def close(self) -> None:
        """Watch nothing any more."""
        if self._changes is not None:
            self._changes.close()

    def gather(self) -> None:
        """Take in what the kernel has told since the last call; to be called before a round of `read`."""
        if self._changes is None or self._changes.gather():
            return
        self._skipped["changes of directories lost by the kernel, directories listed instead"] += 1
        for seen in self._seen.values():
            for directory in seen.leaves.values():
                directory.verify_at = 0.0

    def read(self, executor: Executor) -> Iterator[StreamRow]:
        """Yield the map outputs an executor wrote since the last call."""
        identity = (executor.pid, executor.started)
        first = identity not in self._seen
        seen = self._seen.setdefault(identity, _Seen(old=executor.started < self._since))
        self._find_leaves(executor, identity, seen, first=first)
        spent = 0
        # Those with files that were told come first: they cost no listing, and the budget may end before the others.
        told = self._changes.told if self._changes is not None else frozenset[str]()
        for path in sorted(seen.leaves, key=lambda leaf: leaf not in told):
            directory = seen.leaves[path]
            waiting, directory.waiting = directory.waiting, []
            new, listed = self._new_files(executor, path, seen)
            if path not in seen.leaves or (new is None and not waiting):
                continue
            # To the end of the line: the next pass begins with those that waited longer.
            seen.leaves[path] = seen.leaves.pop(path)
            spent += listed
            rows, cost, directory.waiting = self._rows(executor, path, waiting + (new or []), self._budget - spent)
            yield from rows
            spent += cost
            if spent > self._budget:
                self._skipped["shuffle directories put off to the next pass"] += 1
                return

    def _find_leaves(self, executor: Executor, identity: tuple[int, float], seen: _Seen, *, first: bool) -> None:
        for root in map(str, executor.directories):
            for name in self._subdirectories(executor, seen, root):
                if not name.startswith("blockmgr-"):
                    continue
                # Executors that share a local directory: each block manager is reported for one of them only.
                if self._owners.setdefault(f"{root}/{name}", identity) != identity:
                    continue
                for inner in self._subdirectories(executor, seen, root, name):
                    leaf = f"{root}/{name}/{inner}"
                    if leaf in seen.leaves:
                        continue
                    # Watched before it is listed: between the two nothing is missed.
                    directory = seen.leaves[leaf] = _Directory()
                    directory.watched = self._changes is not None and self._changes.watch(leaf)
                    if self._changes is not None and not directory.watched:
                        self._skipped["shuffle directory that cannot be watched, listed instead"] += 1
                    if seen.old and first:
                        self._list(executor, leaf, directory)

    def _subdirectories(self, executor: Executor, seen: _Seen, *parts: str) -> list[str]:
        """Name the directories in a directory that holds few entries; a change of theirs shows in its own stat."""
        try:
            descriptor = files.open_directory(*parts)
            try:
                with os.scandir(descriptor) as entries:
                    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            finally:
                os.close(descriptor)
        except PermissionError:
            self._skipped[f"executor {executor.executor}: rights missing to read its local directories"] += 1
        except FileNotFoundError:
            for leaf in [leaf for leaf in seen.leaves if leaf.startswith("/".join(parts) + "/")]:
                self._unwatch(leaf)
                del seen.leaves[leaf]
        except OSError:
            self._skipped["local directory unreadable"] += 1
        return []

    def _new_files(self, executor: Executor, path: str, seen: _Seen) -> tuple[list[_Named] | None, int]:
        """Return the new index files of a directory, None if it did not change, and how many names were listed."""
        directory = seen.leaves[path]
        told = self._told(path)
        before, now = directory.files, self._wall()
        if directory.watched and now < directory.verify_at <= now + VERIFY_EVERY:
            new = told - before
            directory.files |= new
            return _matched(new) or None, 0
        try:
            # 64 directories of each executor, every second.
            changed = os.stat(path, follow_symlinks=False).st_mtime_ns  # noqa: PTH116
        except OSError:
            self._unwatch(path)
            del seen.leaves[path]
            return None, 0
        if changed == directory.changed:
            directory.verify_at = _next_look(path, now)
            return _matched(told - before) or None, 0
        self._list(executor, path, directory)
        if directory.watched:
            # What was there before the watch, or before events were lost, was never to be told.
            known_to_tell, directory.verify_at = directory.verify_at > 0, _next_look(path, now)
            self.gather()
            told |= self._told(path)
            if known_to_tell and _matched(directory.files - before - told):
                self._skipped["new files the kernel does not tell of: directory listed from now on"] += 1
                directory.watched = False
                self._unwatch(path)
        return _matched((directory.files | told) - before), len(directory.files)

    def _told(self, path: str) -> set[str]:
        names = self._changes.take(path) if self._changes is not None else []
        return {name for name in names if name.endswith("_0.index")}

    def _unwatch(self, path: str) -> None:
        if self._changes is not None:
            self._changes.forget(path)

    def _list(self, executor: Executor, path: str, directory: _Directory) -> None:
        try:
            descriptor = files.open_directory(*_parts(path))
            try:
                changed = os.fstat(descriptor).st_mtime_ns
                names = {name for name in os.listdir(descriptor) if name.endswith("_0.index")}  # noqa: PTH208
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return
        except PermissionError:
            self._skipped[f"executor {executor.executor}: rights missing to read its local directories"] += 1
            return
        except OSError:
            self._skipped["local directory unreadable"] += 1
            return
        directory.files = names
        settled = self._wall() - changed / 1e9 > SETTLED
        directory.changed = changed if settled else -1

    def _rows(
        self, executor: Executor, path: str, named: list[_Named], budget: int
    ) -> tuple[list[StreamRow], int, list[_Named]]:
        """Read files of a directory; returns the rows, what that cost, and the files that the budget did not reach."""
        if not named:
            return [], 0, []
        try:
            descriptor = files.open_directory(*_parts(path))
        except FileNotFoundError:
            self._skipped["index file vanished"] += len(named)
            return [], 0, []
        except OSError:
            self._skipped["local directory unreadable"] += 1
            return [], 0, []
        rows, cost = list[StreamRow](), 0
        try:
            for number, (name, match) in enumerate(named):
                if cost > budget:
                    return rows, cost, named[number:]
                row = self._row(executor, descriptor, name, match)
                cost += READ_COST
                if row is not None:
                    rows.append(row)
                    cost += len(row.sizes) // SIZES_A_NAME
        finally:
            os.close(descriptor)
        return rows, cost, []

    def _row(self, executor: Executor, directory: int, name: str, match: re.Match[str]) -> StreamRow | None:
        try:
            sizes = read_index(name, directory=directory)
        except FileNotFoundError:
            self._skipped["index file vanished"] += 1
        except OSError:
            self._skipped["index file unreadable"] += 1
        except IndexFileError as error:
            self._skipped[str(error)] += 1
        else:
            return StreamRow(
                application=executor.application,
                executor=executor.executor,
                shuffle=int(match[1]),
                map_task=int(match[2]),
                sizes=sizes,
            )
        return None


def _next_look(path: str, now: float) -> float:
    """Directories are not looked at all at once."""
    return now + VERIFY_EVERY * (0.5 + 0.5 * (crc32(path.encode()) / 2**32))


def _parts(leaf: str) -> tuple[str, str, str]:
    """Take the path of a leaf apart: local directory, block manager, name."""
    outer, _, name = leaf.rpartition("/")
    root, _, manager = outer.rpartition("/")
    return root, manager, name


def _matched(names: set[str]) -> list[_Named]:
    found = [(name, _INDEX.fullmatch(name)) for name in sorted(names)]
    return [(name, match) for name, match in found if match]
