"""What appears in directories, as the kernel tells it (inotify): no listing, however many old files lie there.

Only renames into a directory are asked for: Spark's shuffle writers bring every index file into its place by one.
Everything may fail here (no inotify, no watches left, events lost) and is then said by a plain no: whoever asks lists
the directory himself. File systems that tell nothing (NFS) cannot be known beforehand; the reader looks after them.
"""

from __future__ import annotations

from collections.abc import Collection

from inotify_simple import INotify, flags

_EVENTS_KEPT = 100_000  # names that wait to be taken


class DirectoryWatch:
    """Names of files that were renamed into the watched directories, kept until they are taken."""

    def __init__(self) -> None:
        self._inotify: INotify | None = None  # opened for the first watch
        self._path: dict[int, str] = {}
        self._watch: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}
        self._kept = 0

    @property
    def watches(self) -> int:
        """How many directories are watched."""
        return len(self._watch)

    def watch(self, path: str) -> bool:
        """Begin to watch a directory; False where that cannot be had."""
        try:
            if self._inotify is None:
                self._inotify = INotify()  # fails when the user has no instance left, or the system knows none
            number = self._inotify.add_watch(path, flags.MOVED_TO | flags.ONLYDIR | flags.DONT_FOLLOW)
        except OSError:
            return False
        self._path[number] = path
        self._watch[path] = number
        return True

    def forget(self, path: str) -> None:
        """Watch a directory no longer."""
        number = self._watch.pop(path, None)
        self._kept -= len(self._names.pop(path, ()))
        if number is None or self._inotify is None:
            return
        del self._path[number]
        try:
            self._inotify.rm_watch(number)
        except OSError:
            return  # the directory is gone, and its watch with it

    def gather(self) -> bool:
        """Take in what the kernel has to say; False if it lost events: then every directory has to be listed."""
        if self._inotify is None:
            return True
        whole = True
        for event in self._inotify.read(timeout=0):
            if event.mask & flags.Q_OVERFLOW or self._kept >= _EVENTS_KEPT:
                whole = False
            elif event.mask & flags.MOVED_TO and event.wd in self._path:
                self._names.setdefault(self._path[event.wd], []).append(event.name)
                self._kept += 1
        return whole

    @property
    def told(self) -> Collection[str]:
        """Directories that names came into."""
        return self._names.keys()

    def take(self, path: str) -> list[str]:
        """Return the names that came into a directory since the last call."""
        names = self._names.pop(path, [])
        self._kept -= len(names)
        return names

    def close(self) -> None:
        """Let go of everything."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._path, self._watch, self._names, self._kept = {}, {}, {}, 0
