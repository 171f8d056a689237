"""Watch on directories by inotify: new names without a listing.

Only renames into a directory are watched: Spark's shuffle writers put every index file into its place by one
(``IndexShuffleBlockResolver``). Everything may fail here (no inotify, no watches left, events lost); the methods then
return False, and the caller lists the directory. File systems that report nothing (NFS) cannot be known beforehand; the
caller has to detect them.
"""

from __future__ import annotations

from collections.abc import Collection

from inotify_simple import INotify, flags

_MAX_NAMES = 100_000  # names of new shuffle files between two passes; beyond: the directories are listed instead


class DirectoryWatch:
    """Names of files that were renamed into the watched directories, until they are popped."""

    def __init__(self) -> None:
        self._inotify: INotify | None = None  # opened for the first watch
        self._path: dict[int, str] = {}
        self._watch: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._count = 0

    def watch(self, path: str) -> bool:
        """Begin to watch a directory; return False where that is not possible."""
        try:
            if self._inotify is None:
                self._inotify = INotify()  # fails when the user has no instance left, or the system has no inotify
            number = self._inotify.add_watch(path, flags.MOVED_TO | flags.ONLYDIR | flags.DONT_FOLLOW)
        except OSError:
            return False
        if self._path.setdefault(number, path) != path:
            return False  # the same directory by another path, whose events come under the first one
        self._watch[path] = number
        return True

    def unwatch(self, path: str) -> None:
        """Stop watching a directory."""
        number = self._watch.pop(path, None)
        self._count -= len(self._names.pop(path, ()))
        if number is None or self._inotify is None:
            return
        del self._path[number]
        try:
            self._inotify.rm_watch(number)
        except OSError:
            return  # the directory is gone, and its watch with it

    def read_events(self) -> bool:
        """Read the events; return False if some were lost: then every directory is to be listed."""
        if self._inotify is None:
            return True
        complete = True
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW or self._count >= _MAX_NAMES:
                complete = False
            elif event.mask & flags.MOVED_TO and event.wd in self._path:
                self._names.setdefault(self._path[event.wd], []).append(event.name)
                self._count += 1
        return complete

    @property
    def changed_directories(self) -> Collection[str]:
        """Directories with new names."""
        return self._names.keys()

    def pop_new_names(self, path: str) -> list[str]:
        """Return the names that came into a directory since the last call."""
        names = self._names.pop(path, [])
        self._count -= len(names)
        return names

    def close(self) -> None:
        """Drop every watch and name."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._path, self._watch, self._names, self._count = {}, {}, {}, 0
