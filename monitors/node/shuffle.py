"""Map outputs: the bytes that every map task wrote for each downstream partition.

Spark's own shuffle writers (``IndexShuffleBlockResolver``) leave ``shuffle_<shuffle>_<map task>_0.index`` under
``blockmgr-*/xx/`` of the executor's local directories: big-endian 64-bit offsets into the data file, so their
differences are bytes per downstream partition. The file appears complete, by a rename. Other shuffle managers leave
none, and then there is nothing to report.

The kernel reports new files (`rechannel.monitors.node.inotify`), so thousands of old ones cost nothing. A directory
that cannot be watched is listed whenever it changed. A watched one is checked once in `VERIFY_EVERY` seconds in any
case, and is listed from then on if it holds a new file that was never reported.

The directories belong to the executors, whose code may put anything there: only regular files are read, no link is
followed, and files count by their size in what one pass may cost.

Offsets are read with `struct`: for some hundred partitions it is as fast as NumPy, without NumPy's memory.
"""

from __future__ import annotations

import math
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from zlib import crc32

from rechannel.monitors.node import files
from rechannel.monitors.node.inotify import DirectoryWatch
from rechannel.monitors.node.processes import Executor
from rechannel.wire.measurements import MapOutput

MAX_PARTITIONS = 200_000  # downstream partitions of a map output; beyond: its sizes are not read, and counted
LARGEST_INDEX = 8 * (MAX_PARTITIONS + 1)  # bytes
BUDGET = 5_000  # cost of one executor's pass, in names listed
READ_COST = 20  # cost of reading an index file, in names of a directory's listing
SIZES_A_NAME = 50  # numbers of an index file that cost as much as one more name
# A directory changed less than this many seconds ago is listed again: a second change within one clock tick would not
# alter its modification time.
SETTLED = 0.1
VERIFY_EVERY = 30.0  # seconds after which a watched directory is checked in any case
UNWATCHED = "shuffle directory that cannot be watched, listed instead"
_INDEX = re.compile(r"shuffle_(\d{1,9})_(\d{1,18})_0\.index")


_Named = tuple[str, re.Match[str]]  # a file's name and its match


class IndexFileError(ValueError):
    """A shuffle index file that cannot be used; the message is a reason to count by."""


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
class _Listing:
    changed: int = -1  # modification time in nanoseconds when last listed, -1 to list it again
    files: set[str] = field(default_factory=set)
    waiting: list[_Named] = field(default_factory=list)  # beyond the budget of the last pass
    watched: bool = False
    verify_at: float = 0.0  # time of the next check of a watched one, 0 while its reports may be incomplete


@dataclass
class _ExecutorFiles:
    old: bool  # started before the reader: its files so far are not new
    directories: dict[str, _Listing] = field(default_factory=dict)


class ShuffleReader:
    """Reads every new shuffle index file once.

    A directory that did not change costs nothing, or one stat where it cannot be watched; a file read before costs
    nothing in a watched one. `BUDGET` bounds one executor's pass (names listed; a file counts as `READ_COST` names
    and more by its size); the rest is read in the next pass, the directory that waited longest first. ``skipped``
    counts failed readings by reason.
    """

    def __init__(self, watch: DirectoryWatch, wall: Callable[[], float] = time.time) -> None:
        self.skipped: Counter[str] = Counter()
        self._watch = watch
        self._wall = wall
        self._since = wall()
        self._executors: dict[tuple[int, float], _ExecutorFiles] = {}
        self._owners: dict[str, tuple[int, float]] = {}
        self._orphans: dict[str, _Listing] = {}  # by directory, of executors that ended since the last pass

    def retain(self, alive: set[tuple[int, float]]) -> None:
        """Keep the files of the executors of these identities; drop all others.

        What was read of those is remembered for one pass, in which an executor of the same local directories takes
        them over.
        """
        self._orphans = {}
        for identity in [identity for identity in self._executors if identity not in alive]:
            self._orphans |= self._executors.pop(identity).directories
        for directory in self._orphans:
            self._watch.unwatch(directory)
        self._owners = {manager: owner for manager, owner in self._owners.items() if owner in alive}

    def close(self) -> None:
        """Stop watching."""
        self._watch.close()

    def read_changes(self) -> None:
        """Read the kernel's reports since the last call; to be called before a round of `read`."""
        if self._watch.read_events():
            return
        self.skipped["changes of directories lost by the kernel, directories listed instead"] += 1
        for tracked in self._executors.values():
            for listing in tracked.directories.values():
                listing.verify_at = 0.0

    def read(self, executor: Executor) -> Iterator[MapOutput]:
        """Yield the map outputs that an executor wrote since the last call."""
        first = executor.identity not in self._executors
        tracked = self._executors.setdefault(executor.identity, _ExecutorFiles(old=executor.started < self._since))
        self._find_directories(executor, tracked, first=first)
        spent = 0
        # Those with reported files come first: they cost no listing, and the budget may end before the others.
        for directory in sorted(tracked.directories, key=lambda name: name not in self._watch.changed_directories):
            listing = tracked.directories[directory]
            waiting, listing.waiting = listing.waiting, []
            new, listed = self._new_files(executor, directory, tracked)
            if directory not in tracked.directories or (new is None and not waiting):
                continue
            # To the end of the queue: the next pass begins with those that waited longer.
            tracked.directories[directory] = tracked.directories.pop(directory)
            spent += listed
            outputs, cost, listing.waiting = self._read_outputs(
                executor, directory, waiting + (new or []), BUDGET - spent
            )
            yield from outputs
            spent += cost
            if spent > BUDGET:
                self.skipped["shuffle directories put off to the next pass"] += 1
                return

    def _find_directories(self, executor: Executor, tracked: _ExecutorFiles, *, first: bool) -> None:
        for root in map(str, executor.directories):
            for name in self._subdirectories(executor, tracked, root):
                if not name.startswith("blockmgr-"):
                    continue
                # Executors may share a local directory: each block manager is reported for one of them only.
                if self._owners.setdefault(f"{root}/{name}", executor.identity) != executor.identity:
                    continue
                for inner in self._subdirectories(executor, tracked, root, name):
                    directory = f"{root}/{name}/{inner}"
                    if directory in tracked.directories:
                        continue
                    # Watched before it is listed, so that no file in between is missed.
                    listing = tracked.directories[directory] = self._orphans.pop(directory, _Listing())
                    listing.watched, listing.verify_at = self._watch.watch(directory), 0.0
                    if not listing.watched:
                        self.skipped[UNWATCHED] += 1
                    if first and (tracked.old or _last_change(directory) < executor.started):
                        self._list(executor, directory, listing)

    @contextmanager
    def _count_errors(self, executor: Executor) -> Iterator[None]:
        """Count every error of a directory but FileNotFoundError, and leave the block."""
        try:
            yield
        except FileNotFoundError:
            raise
        except PermissionError:
            self.skipped[f"executor {executor.executor}: rights missing to read its local directories"] += 1
        except OSError:
            self.skipped["local directory unreadable"] += 1

    def _subdirectories(self, executor: Executor, tracked: _ExecutorFiles, *parts: str) -> list[str]:
        """Return the directories in one of few entries; a change of one shows in its own stat."""
        try:
            with (
                self._count_errors(executor),
                files.open_directory(*parts) as descriptor,
                os.scandir(descriptor) as entries,
            ):
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            gone = "/".join(parts) + "/"
            for directory in [name for name in tracked.directories if name.startswith(gone)]:
                self._watch.unwatch(directory)
                del tracked.directories[directory]
        return []

    def _new_files(
        self, executor: Executor, directory: str, tracked: _ExecutorFiles
    ) -> tuple[list[_Named] | None, int]:
        """Return a directory's new index files, None without a change, and the listed names."""
        listing = tracked.directories[directory]
        reported = self._pop_index_names(directory)
        before, now = listing.files, self._wall()
        if listing.watched and now < listing.verify_at <= now + VERIFY_EVERY:
            new = reported - before
            listing.files |= new
            return _index_files(new) or None, 0
        try:
            # 64 directories of each executor, every second.
            changed = os.stat(directory, follow_symlinks=False).st_mtime_ns  # noqa: PTH116
        except OSError:
            self._watch.unwatch(directory)
            del tracked.directories[directory]
            return None, 0
        if changed == listing.changed:
            listing.verify_at = _next_check(directory, now)
            return _index_files(reported - before) or None, 0
        self._list(executor, directory, listing)
        if listing.watched:
            # Files from before the watch, or from before events were lost, could not be reported.
            reports_are_complete = listing.verify_at > 0
            listing.verify_at = _next_check(directory, now)
            self.read_changes()
            reported |= self._pop_index_names(directory)
            if reports_are_complete and _index_files(listing.files - before - reported):
                self.skipped["new files not reported by the kernel: directory listed from now on"] += 1
                listing.watched = False
                self._watch.unwatch(directory)
        return _index_files((listing.files | reported) - before), len(listing.files)

    def _pop_index_names(self, directory: str) -> set[str]:
        return {name for name in self._watch.pop_new_names(directory) if name.endswith("_0.index")}

    def _list(self, executor: Executor, directory: str, listing: _Listing) -> None:
        with (
            suppress(FileNotFoundError),
            self._count_errors(executor),
            files.open_directory(*_split(directory)) as descriptor,
        ):
            changed = os.fstat(descriptor).st_mtime_ns
            listing.files = {name for name in os.listdir(descriptor) if name.endswith("_0.index")}  # noqa: PTH208
            settled = self._wall() - changed / 1e9 > SETTLED
            listing.changed = changed if settled else -1

    def _read_outputs(
        self, executor: Executor, directory: str, named: list[_Named], budget: int
    ) -> tuple[list[MapOutput], int, list[_Named]]:
        """Read files of a directory; return map outputs, their cost, and files beyond the budget."""
        outputs, cost = list[MapOutput](), 0
        if not named:
            return outputs, cost, []
        try:
            with self._count_errors(executor), files.open_directory(*_split(directory)) as descriptor:
                for number, (name, match) in enumerate(named):
                    if cost > budget:
                        return outputs, cost, named[number:]
                    output = self._read_output(executor, descriptor, name, match)
                    cost += READ_COST
                    if output is not None:
                        outputs.append(output)
                        cost += len(output.sizes) // SIZES_A_NAME
        except FileNotFoundError:
            self.skipped["index file vanished"] += len(named)
        return outputs, cost, []

    def _read_output(self, executor: Executor, descriptor: int, name: str, match: re.Match[str]) -> MapOutput | None:
        try:
            sizes = read_index(name, directory=descriptor)
        except FileNotFoundError:
            self.skipped["index file vanished"] += 1
        except OSError:
            self.skipped["index file unreadable"] += 1
        except IndexFileError as error:
            self.skipped[str(error)] += 1
        else:
            return MapOutput(
                application=executor.application,
                executor=executor.executor,
                shuffle=int(match[1]),
                map_task=int(match[2]),
                sizes=sizes,
            )
        return None


def _next_check(directory: str, now: float) -> float:
    """Return the time of a directory's next check; checks are spread over time."""
    return now + VERIFY_EVERY * (0.5 + 0.5 * (crc32(os.fsencode(directory)) / 2**32))


def _last_change(directory: str) -> float:
    """Return when the names in a directory last changed, in seconds since the epoch."""
    try:
        return os.stat(directory, follow_symlinks=False).st_mtime  # noqa: PTH116
    except OSError:
        return math.inf


def _split(directory: str) -> tuple[str, str, str]:
    """Split the path of a directory into local directory, block manager and name."""
    outer, _, name = directory.rpartition("/")
    root, _, manager = outer.rpartition("/")
    return root, manager, name


def _index_files(names: set[str]) -> list[_Named]:
    matches = [(name, _INDEX.fullmatch(name)) for name in sorted(names)]
    return [(name, match) for name, match in matches if match]
