"""A slow disk: a directory seen through a file system that delays every request and caps the throughput.

What is delayed by ``latency``, once per request that reaches the file system: getattr (stat and path look-up),
access, readdir, statfs, open, create, read, write, truncate, rename, unlink, mkdir, rmdir, link, symlink, readlink,
chmod, chown, utimens, fsync, fsyncdir. Closing costs nothing. Waits of different callers overlap, as on a remote disk.

What does not reach it: the kernel answers from its own cache for a name that it looked up in the last minute, for a
file's attributes of the last second, and for data read since the file was last opened; opening drops that data. It
reads ahead. Writes are never held back: one request per call, or several for a large one. A missing name is always
asked for, so creating a file is two requests.

Nothing else may write below the root while it is mounted. An unlinked file that is still open keeps a hidden name in
its directory, as on NFS, so that directory cannot be removed yet. Renaming over a file is atomic, but who opens that
file by its name while the rename is under way may get ENOENT or ESTALE instead of the old file or the new one: libfuse
knows files by their paths.

Needs Linux, libfuse 3 and mfusepy (the extra ``bench``); :func:`slow_disk_problem` tells what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ctypes.util
import errno
import importlib.util
import math
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Self

import psutil

from testbed.processes import ROOT, Block

_SOURCE = "rechannel-slow-disk"  # the mount table shows it, with the process id of the server
_DEVICE = Path("/dev/fuse")
_START_S = 60.0
_GRACE_S = 2.0  # how long a busy mount is waited for before it is detached under its users
_THREADS = 64  # requests that wait at the same time; libfuse's own default is 10
_BURST_S = 0.05
_MNT_DETACH = 2
# How utimensat spells "now" and "leave it" in the nanoseconds; mfusepy adds them to zero seconds.
_UTIME_NOW = (1 << 30) - 1
_UTIME_OMIT = (1 << 30) - 2


class SlowDiskError(RuntimeError):
    """The slow disk cannot be mounted; the message says why."""


class TokenBucket:
    """Shares a throughput among callers, first come, first served.

    ``rate`` is in bytes per second and may be infinite; ``burst`` is how many bytes an idle time saves up at most.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        if not rate > 0 or burst < 0:
            raise ValueError(f"rate must be above zero and burst not below it, not {rate} and {burst}")
        self._rate = rate
        self._saved_s = 0.0 if math.isinf(rate) else burst / rate
        self._free_at = now - self._saved_s
        self._lock = threading.Lock()

    def reserve(self, size: int, now: float) -> float:
        """Take ``size`` bytes and return how many seconds from ``now`` the caller has to wait for them."""
        with self._lock:
            self._free_at = max(self._free_at, now - self._saved_s) + size / self._rate
            return max(0.0, self._free_at - now)


class _Passthrough:
    """The file system's operations, by mfusepy's names; they run at the same time, each in a thread of libfuse."""

    use_ns = True

    def __init__(self, root: str, latency: float, bucket: TokenBucket, on_ready: Callable[[], None]) -> None:
        self._root = root
        self._latency = latency
        self._bucket = bucket
        self._on_ready = on_ready
        self._answered: dict[int, str] = {}

    def _at(self, path: str) -> str:
        return self._root + path

    def _wait(self, size: int = 0) -> None:
        delay = self._latency + (self._bucket.reserve(size, time.monotonic()) if size else 0.0)
        if delay > 0:
            time.sleep(delay)

    def _then_getattr(self, path: str) -> None:
        # libfuse asks for the attributes of what was changed within the same request, in the same thread: no new delay.
        # Not threading.local: Python forgets a foreign thread's state between two calls.
        self._answered[threading.get_ident()] = path

    def init_with_config(self, connection: Any, _config: object) -> None:
        connection.max_background = connection.congestion_threshold = _THREADS  # read-ahead overlaps as well
        self._on_ready()

    def getattr(self, path: str, _handle: int | None = None) -> dict[str, int]:
        if self._answered.pop(threading.get_ident(), None) != path:
            self._wait()
        status = os.lstat(self._at(path))
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_rdev", "st_size", "st_blksize", "st_blocks")
        times = {f"st_{which}time": getattr(status, f"st_{which}time_ns") for which in "amc"}
        return {name: getattr(status, name) for name in names} | times

    def access(self, path: str, mode: int) -> None:
        self._wait()
        if not os.access(self._at(path), mode):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    def readdir(self, path: str, _handle: int) -> Iterator[tuple[str, dict[str, int], int]]:
        self._wait()
        with os.scandir(self._at(path)) as entries:
            listed = [(entry.name, {"st_mode": _type_of(entry), "st_ino": entry.inode()}, 0) for entry in entries]
        yield from [(name, {"st_mode": stat.S_IFDIR}, 0) for name in (".", "..")]
        yield from listed

    def statfs(self, path: str) -> dict[str, int]:
        self._wait()
        status = os.statvfs(self._at(path))
        names = ("bavail", "bfree", "blocks", "bsize", "favail", "ffree", "files", "flag", "frsize", "namemax")
        return {f"f_{name}": getattr(status, f"f_{name}") for name in names}

    def open(self, path: str, flags: int) -> int:
        self._wait()
        return os.open(self._at(path), _backing_flags(flags))

    def create(self, path: str, mode: int, flags: int) -> int:
        self._wait()
        handle = os.open(self._at(path), _backing_flags(flags) | os.O_CREAT, mode)
        self._then_getattr(path)
        return handle

    def mknod(self, path: str, mode: int, device: int) -> None:
        self._wait()
        os.mknod(self._at(path), mode, device)
        self._then_getattr(path)

    def read(self, _path: str, size: int, offset: int, handle: int) -> bytes:
        data = os.pread(handle, size, offset)
        self._wait(len(data))
        return data

    def write(self, _path: str, data: bytes, offset: int, handle: int) -> int:
        self._wait(len(data))
        return os.pwrite(handle, data, offset)

    def truncate(self, path: str, length: int, _handle: int | None = None) -> None:
        self._wait()
        os.truncate(self._at(path), length)
        self._then_getattr(path)

    def flush(self, _path: str, handle: int) -> None:
        os.close(os.dup(handle))  # has the file system below report what it keeps for close()

    def release(self, _path: str, handle: int) -> None:
        os.close(handle)

    def fsync(self, _path: str, data_only: int, handle: int) -> None:
        self._wait()
        (os.fdatasync if data_only else os.fsync)(handle)

    def fsyncdir(self, path: str, _data_only: int, _handle: int) -> None:
        self._wait()
        handle = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, old: str, new: str) -> None:
        self._wait()
        os.rename(self._at(old), self._at(new))  # noqa: PTH104 - the atomic call itself

    def unlink(self, path: str) -> None:
        self._wait()
        os.unlink(self._at(path))  # noqa: PTH108

    def mkdir(self, path: str, mode: int) -> None:
        self._wait()
        os.mkdir(self._at(path), mode)  # noqa: PTH102
        self._then_getattr(path)

    def rmdir(self, path: str) -> None:
        self._wait()
        os.rmdir(self._at(path))  # noqa: PTH106

    def link(self, new: str, old: str) -> None:
        self._wait()
        os.link(self._at(old), self._at(new), follow_symlinks=False)
        self._then_getattr(new)

    def symlink(self, new: str, content: str) -> None:
        self._wait()
        os.symlink(content, self._at(new))  # noqa: PTH211
        self._then_getattr(new)

    def readlink(self, path: str) -> str:
        self._wait()
        return os.readlink(self._at(path))  # noqa: PTH115

    def chmod(self, path: str, mode: int) -> None:
        self._wait()
        os.chmod(self._at(path), mode)  # noqa: PTH101
        self._then_getattr(path)

    def chown(self, path: str, user: int, group: int) -> None:
        self._wait()
        os.chown(self._at(path), user, group, follow_symlinks=False)
        self._then_getattr(path)

    def utimens(self, path: str, times: tuple[int, int] | None) -> None:
        self._wait()
        status = os.lstat(self._at(path))
        requested = times or (_UTIME_NOW, _UTIME_NOW)
        accessed, modified = (
            {_UTIME_NOW: time.time_ns(), _UTIME_OMIT: current}.get(value, value)
            for value, current in zip(requested, (status.st_atime_ns, status.st_mtime_ns), strict=True)
        )
        os.utime(self._at(path), ns=(accessed, modified), follow_symlinks=False)
        self._then_getattr(path)


def _type_of(entry: os.DirEntry[str]) -> int:
    if entry.is_symlink():
        return stat.S_IFLNK
    return stat.S_IFDIR if entry.is_dir(follow_symlinks=False) else stat.S_IFREG


def _backing_flags(flags: int) -> int:
    # The kernel has worked out the offset of an append itself; and direct I/O would want aligned buffers of us, whereas
    # towards the caller the kernel keeps to it.
    return flags & ~(os.O_APPEND | os.O_DIRECT)


def _mounted() -> list[tuple[Path, str]]:
    """Return mount point and source of each mount."""
    return [(Path(mount.mountpoint), mount.device) for mount in psutil.disk_partitions(all=True)]


def _unmount(mount_point: Path, *, lazy: bool = False) -> bool:
    """Unmount and return whether that went well; lazy: even while it is in use."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.umount2(os.fsencode(mount_point), _MNT_DETACH if lazy else 0) == 0)
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(mount_point)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603


def _unmount_stale() -> None:
    """Detach what servers left that were killed before they could unmount."""
    for point, source in _mounted():
        name, _, owner = source.rpartition(".")
        if name != _SOURCE:
            continue
        try:
            alive = b"slow_disk" in Path("/proc", owner, "cmdline").read_bytes()
        except OSError:
            alive = False
        if not alive:
            _unmount(point, lazy=True)


def _unmount_at_end_of_input(mount_point: Path) -> None:
    # The owner holds the other end of the pipe: it closes it, or the kernel does when the owner dies.
    while os.read(0, 1):
        pass
    deadline = time.monotonic() + _GRACE_S
    while not _unmount(mount_point):
        if time.monotonic() > deadline:
            _unmount(mount_point, lazy=True)
            break
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGTERM)  # libfuse's own handler: ends its loop, also if files are still open


def _serve(root: Path, mount_point: Path, latency: float, bytes_per_second: float) -> None:
    os.environ["FUSE_LIBRARY_NAME"] = "fuse3"  # mfusepy would take libfuse 2 first
    import mfusepy

    class Server(mfusepy.FUSE):  # type: ignore[misc,unused-ignore]  # untyped, and there or not
        def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
            # mfusepy drops the flags, and "do not replace" would replace. Callers fall back on a refusal.
            if flags:
                return -errno.EINVAL
            return int(self.rename_fuse_2(old, new) or 0)

    def ready() -> None:
        os.write(1, b"ready\n")

    os.umask(0)  # the kernel has applied the caller's
    limits = {"max_threads": _THREADS, "max_idle_threads": _THREADS}
    if mfusepy.fuse_version_minor < 12:  # it knew no limit, and not the option
        limits = {}
    bucket = TokenBucket(bytes_per_second, bytes_per_second * _BURST_S, time.monotonic())
    operations = _Passthrough(str(root), latency, bucket, ready)
    threading.Thread(target=_unmount_at_end_of_input, args=(mount_point,), daemon=True).start()
    Server(
        operations,
        str(mount_point),
        foreground=True,
        fsname=f"{_SOURCE}.{os.getpid()}",
        use_ino=True,  # hard links are told by their inode
        entry_timeout=60,
        attr_timeout=1,
        negative_timeout=0,
        **limits,
    )


class SlowDisk(Block):
    """Mounts ``root`` at ``mount_point`` as a slow disk for the length of a block.

    ``latency`` is in seconds per request; ``bytes_per_second`` is shared by all reads and writes, infinite for no cap.
    The mount point is made if it is missing. A process of its own serves it and unmounts when the block ends, however
    it ends, and when this process dies; what is still open there then fails.
    """

    def __init__(self, root: Path, mount_point: Path, *, latency: float, bytes_per_second: float) -> None:
        if not 0 <= latency < math.inf or not bytes_per_second > 0:
            raise ValueError(f"no such disk: {latency} s per request, {bytes_per_second} bytes per second")
        self.root = root.resolve()
        # Not resolved: that would ask a server that may have died.
        self.mount_point = Path(os.path.abspath(mount_point))  # noqa: PTH100
        if self.root.is_relative_to(self.mount_point) or self.mount_point.is_relative_to(self.root):
            raise ValueError(f"{self.root} and {self.mount_point} must not contain each other")
        self.latency = latency
        self.bytes_per_second = bytes_per_second
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Mount it; SlowDiskError where that cannot be."""
        if problem := _missing():
            raise SlowDiskError(problem)
        _unmount_stale()
        if not self.root.is_dir():
            raise NotADirectoryError(self.root)
        self.mount_point.mkdir(parents=True, exist_ok=True)
        self.mount_point = self.mount_point.resolve()
        if any(point == self.mount_point for point, _ in _mounted()):
            raise FileExistsError(f"something is mounted at {self.mount_point}")
        with tempfile.TemporaryFile() as errors:
            self._start_server(errors)
        return self

    def _start_server(self, errors: IO[bytes]) -> None:
        command = [sys.executable, "-m", "testbed.slow_disk", str(self.root), str(self.mount_point)]
        command += ["--latency", str(self.latency), "--bytes-per-second", str(self.bytes_per_second)]
        self._server = subprocess.Popen(  # noqa: S603 - our own interpreter, our own module
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # an interrupt from the terminal is for the owner
        )
        output = self._server.stdout
        if output is None or not select.select([output], [], [], _START_S)[0] or output.readline() != b"ready\n":
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(timeout=1)
            errors.seek(0)
            tail = errors.read().decode(errors="replace").strip().splitlines()[-5:]
            raise SlowDiskError(f"the slow disk's server did not mount it: {' | '.join(tail) or 'no message'}")

    def close(self) -> None:
        """Unmount and end the server; may be called more than once."""
        server, self._server = self._server, None
        if server is None:
            return
        if server.stdin is not None:
            server.stdin.close()
        try:
            server.wait(timeout=_GRACE_S + 5)
        except subprocess.TimeoutExpired:
            _unmount(self.mount_point, lazy=True)
            server.kill()
            server.wait()
        if server.stdout is not None:
            server.stdout.close()
        if any(source == f"{_SOURCE}.{server.pid}" for _, source in _mounted()):  # it was killed
            _unmount(self.mount_point, lazy=True)


def _missing() -> str:
    if sys.platform != "linux":
        return "a slow disk needs Linux"
    if not _DEVICE.exists():
        return f"there is no {_DEVICE}: load the kernel module fuse, or give the container that device"
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return f"no permission to read and write {_DEVICE}"
    if importlib.util.find_spec("mfusepy") is None:
        return "the Python package mfusepy is missing: pip install -e '.[bench]'"
    if ctypes.util.find_library("fuse3") is None:
        return "install libfuse 3: apt-get install fuse3 (Debian, Ubuntu)"
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return "not root, and there is no fusermount3: apt-get install fuse3 (Debian, Ubuntu)"
    return ""


def slow_disk_problem() -> str:
    """Return why no slow disk can be mounted on this machine, or "" if one can: a small one is tried."""
    if problem := _missing():
        return problem
    with tempfile.TemporaryDirectory(prefix="slow-disk-") as name:
        root = Path(name, "root")
        root.mkdir()
        try:
            with SlowDisk(root, Path(name, "disk"), latency=0.0, bytes_per_second=math.inf) as disk:
                (disk.mount_point / "file").write_bytes(b"tried")
        except (OSError, SlowDiskError) as error:
            return f"mounting fails: {error}"
    return ""


def main() -> None:
    """Serve one slow disk until standard input ends."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("mount_point", type=Path)
    parser.add_argument("--latency", type=float, required=True, help="seconds per request")
    parser.add_argument("--bytes-per-second", type=float, required=True)
    arguments = parser.parse_args()
    _serve(arguments.root, arguments.mount_point, arguments.latency, arguments.bytes_per_second)


if __name__ == "__main__":
    main()
