from __future__ import annotations

import errno
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from testbed.processes import ProcessGroup, wait_until
from testbed.slow_disk import SlowDisk, SlowDiskError, TokenBucket, slow_disk_problem

pytestmark = pytest.mark.root
ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture(scope="module")
def mountable(skip_loudly: Callable[[str], None]) -> None:
    skip_loudly(slow_disk_problem())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


def without_delay(root: Path, mount_point: Path) -> SlowDisk:
    return SlowDisk(root, mount_point, latency=0.0, bytes_per_second=math.inf)


@pytest.fixture
def disk(mountable: None, root: Path, tmp_path: Path) -> Iterator[Path]:
    with without_delay(root, tmp_path / "disk") as mounted:
        yield mounted.mount_point


def mounted_at(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_bucket_grants_the_burst_then_the_rate_and_saves_no_more_than_the_burst() -> None:
    bucket = TokenBucket(rate=100.0, burst=50.0, now=0.0)
    assert bucket.reserve(50, now=0.0) == 0.0
    assert bucket.reserve(100, now=0.0) == pytest.approx(1.0)
    assert bucket.reserve(100, now=0.0) == pytest.approx(2.0)
    assert bucket.reserve(100, now=1.5) == pytest.approx(1.5)
    assert bucket.reserve(150, now=1000.0) == pytest.approx(1.0)


def test_bucket_without_a_cap_never_waits() -> None:
    bucket = TokenBucket(rate=math.inf, burst=math.inf, now=0.0)
    assert [bucket.reserve(1 << 40, now=0.0) for _ in range(3)] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("latency", "rate"), [(-1.0, 1.0), (math.inf, 1.0), (math.nan, 1.0), (0.0, 0.0)])
def test_refuses_an_impossible_disk(root: Path, tmp_path: Path, latency: float, rate: float) -> None:
    with pytest.raises(ValueError, match="no such disk"):
        SlowDisk(root, tmp_path / "disk", latency=latency, bytes_per_second=rate)


def test_refuses_a_mount_point_that_would_serve_itself(root: Path) -> None:
    for mount_point in (root, root / "inside", root.parent):
        with pytest.raises(ValueError, match="must not contain"):
            SlowDisk(root, mount_point, latency=0.0, bytes_per_second=1.0)


def test_says_what_is_missing(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("testbed.slow_disk._DEVICE", tmp_path / "fuse")
    assert "there is no" in slow_disk_problem()
    (tmp_path / "fuse").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "mfusepy is missing: pip install" in slow_disk_problem()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert "install libfuse 3: apt-get install fuse3" in slow_disk_problem()
    with pytest.raises(SlowDiskError, match="libfuse"), SlowDisk(root, tmp_path / "d", latency=0, bytes_per_second=1):
        pass
    monkeypatch.setattr("ctypes.util.find_library", lambda name: "libfuse3.so.3")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no fusermount3" in slow_disk_problem()


def test_files_are_created_read_appended_and_cut(disk: Path, root: Path) -> None:
    data = os.urandom(3 * MIB + 17)
    (disk / "file").write_bytes(data)
    assert (disk / "file").read_bytes() == (root / "file").read_bytes() == data
    with (disk / "file").open("ab") as file:
        file.write(b"end")
    assert (root / "file").read_bytes() == data + b"end"
    os.truncate(disk / "file", 5)
    assert (disk / "file").read_bytes() == data[:5]
    with (disk / "file").open("r+b") as file:
        file.truncate(2)
        file.seek(4)
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    assert (root / "file").read_bytes() == data[:2] + b"\0\0x"
    (disk / "file").write_bytes(b"new")
    assert (root / "file").read_bytes() == b"new"


def test_appends_by_many_writers_lose_nothing(disk: Path, root: Path) -> None:
    def append(writer: int) -> None:
        with (disk / "log").open("ab", buffering=0) as file:
            for _ in range(50):
                file.write(f"{writer}\n".encode())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(append, range(8)))
    lines = (root / "log").read_text().split()
    assert sorted(lines) == sorted(str(writer) for writer in range(8) for _ in range(50))


def test_exclusive_creation_has_one_winner(disk: Path) -> None:
    def create(_: int) -> bool:
        try:
            os.close(os.open(disk / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(create, range(8))) == 1


def test_what_a_rename_replaces_is_never_seen_half(disk: Path, root: Path) -> None:
    (disk / "target").write_bytes(b"0")
    stop = threading.Event()
    seen: set[bytes] = set()

    def watch() -> None:
        while not stop.is_set():
            try:
                seen.add((disk / "target").read_bytes())
            except OSError as error:  # the limit that the module's docstring names
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for number in range(1, 100):
            (disk / "part").write_bytes(str(number).encode())
            (disk / "part").replace(disk / "target")
        stop.set()
        watching.result()
    assert seen <= {str(number).encode() for number in range(100)}
    assert (disk / "target").read_bytes() == b"99"
    assert names(root) == ["target"]


def test_directories_and_links(disk: Path, root: Path) -> None:
    (disk / "a" / "b").mkdir(parents=True)
    (disk / "a" / "file").write_text("x")
    os.link(disk / "a" / "file", disk / "hard")
    (disk / "soft").symlink_to("a/file")
    assert (disk / "hard").stat().st_nlink == 2
    assert (disk / "hard").samefile(disk / "a" / "file")
    assert (disk / "soft").readlink() == Path("a/file")
    assert (disk / "soft").read_text() == "x"
    with os.scandir(disk) as entries:
        kinds = {entry.name: (entry.is_dir(follow_symlinks=False), entry.is_symlink()) for entry in entries}
    assert kinds == {"a": (True, False), "hard": (False, False), "soft": (False, True)}
    with pytest.raises(OSError, match=os.strerror(errno.ENOTEMPTY)):
        (disk / "a").rmdir()
    (disk / "a").rename(disk / "moved")
    (disk / "moved" / "b").rmdir()
    (disk / "moved" / "file").unlink()
    assert names(root) == ["hard", "moved", "soft"]
    handle = os.open(disk, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(handle)
    os.close(handle)
    with pytest.raises(FileNotFoundError):
        (disk / "a").stat()


def test_modes_and_times(disk: Path, root: Path) -> None:
    file = disk / "file"
    previous = os.umask(0o027)
    try:
        file.touch()
    finally:
        os.umask(previous)
    assert (root / "file").stat().st_mode & 0o777 == 0o640
    file.chmod(0o600)
    assert (root / "file").stat().st_mode & 0o777 == 0o600
    assert os.access(file, os.W_OK)
    os.utime(file, ns=(10**18 + 1, 2 * 10**18 + 3))
    assert ((root / "file").stat().st_atime_ns, file.stat().st_mtime_ns) == (10**18 + 1, 2 * 10**18 + 3)
    subprocess.run(["touch", "-m", file], check=True)
    assert (root / "file").stat().st_atime_ns == 10**18 + 1
    assert abs(file.stat().st_mtime - time.time()) < 60
    os.utime(file)
    assert abs((root / "file").stat().st_atime - time.time()) < 60
    assert os.statvfs(disk).f_blocks == os.statvfs(root).f_blocks


def test_an_unlinked_file_stays_readable_while_open(disk: Path) -> None:
    with (disk / "file").open("w+b") as file:
        file.write(b"kept")
        file.flush()
        (disk / "file").unlink()
        file.seek(0)
        assert file.read() == b"kept"
        assert os.fstat(file.fileno()).st_size == 4
        assert not (disk / "file").exists()
    assert list(disk.iterdir()) == []


def test_direct_and_mapped_access(disk: Path, root: Path) -> None:
    page = mmap.mmap(-1, 4096)
    page.write(b"d" * 4096)
    handle = os.open(disk / "direct", os.O_CREAT | os.O_RDWR | os.O_DIRECT)
    try:
        assert os.write(handle, page) == 4096
        assert os.preadv(handle, [page], 0) == 4096
    finally:
        os.close(handle)
    with (disk / "direct").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        assert mapped[:4] == b"dddd"
        mapped[:4] = b"edit"
        mapped.flush()
    assert (root / "direct").read_bytes()[:6] == b"editdd"


def test_move_without_replacing_does_not_replace(disk: Path) -> None:
    (disk / "old").write_text("old")
    (disk / "new").write_text("new")
    subprocess.run(["mv", "-n", disk / "old", disk / "new"], check=False, capture_output=True)
    assert (disk / "new").read_text() == "new"


def test_each_request_waits_once_and_waits_overlap(mountable: None, root: Path, tmp_path: Path) -> None:
    latency, count = 0.04, 20
    for number in range(count):
        (root / f"file{number}").write_bytes(b"x" * 100)

    def waits(action: Callable[[], object]) -> float:
        start = time.monotonic()
        action()
        return (time.monotonic() - start) / latency

    with SlowDisk(root, tmp_path / "disk", latency=latency, bytes_per_second=math.inf) as disk:
        files = [disk.mount_point / f"file{number}" for number in range(count)]
        looked_up = [waits(file.stat) for file in files]
        assert 1.0 <= min(looked_up) < 1.6  # how much longer a busy machine makes some of them says nothing
        durations = [waits((disk.mount_point / f"directory{number}").mkdir) for number in range(5)]
        assert 2.0 <= min(durations) < 2.6  # asks for the name, then makes it
        with ThreadPoolExecutor(count) as pool:  # open and read: two each
            assert waits(lambda: list(pool.map(Path.read_bytes, files))) < count


def test_reads_and_writes_share_the_throughput(mountable: None, root: Path, tmp_path: Path) -> None:
    rate = 4 * MIB
    (root / "given").write_bytes(os.urandom(2 * MIB))
    with SlowDisk(root, tmp_path / "disk", latency=0.0, bytes_per_second=rate) as disk:
        start = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            reading = pool.submit((disk.mount_point / "given").read_bytes)
            pool.submit((disk.mount_point / "written").write_bytes, b"w" * 2 * MIB).result()
            assert reading.result() == (root / "given").read_bytes()
        ratio = 4 * MIB / (time.monotonic() - start) / rate
        assert 0.5 < ratio < 1.1  # the burst is a twentieth of a second


def test_unmounts_when_the_block_fails(mountable: None, root: Path, tmp_path: Path) -> None:
    point = tmp_path / "disk"
    with pytest.raises(ZeroDivisionError), without_delay(root, point) as disk:
        assert mounted_at(disk.mount_point)
        raise ZeroDivisionError
    assert not mounted_at(point)
    assert list(point.iterdir()) == []


def test_a_file_left_open_does_not_keep_the_mount(mountable: None, root: Path, tmp_path: Path) -> None:
    point = tmp_path / "disk"
    with without_delay(root, point):
        handle = os.open(point / "open", os.O_CREAT | os.O_WRONLY)
    assert not mounted_at(point)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.write(handle, b"late")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.close(handle)


def test_unmounts_when_the_owner_is_killed(mountable: None, root: Path, tmp_path: Path) -> None:
    point = tmp_path / "disk"
    code = (
        "import os, signal, sys; from pathlib import Path; from testbed.slow_disk import SlowDisk\n"
        "with SlowDisk(Path(sys.argv[1]), Path(sys.argv[2]), latency=0.0, bytes_per_second=1e9):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, root, point], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not mounted_at(point), "it is unmounted", 60.0)


def test_what_a_killed_server_leaves_is_cleaned_at_the_end_and_at_the_next_start(
    mountable: None, root: Path, tmp_path: Path
) -> None:
    points = [tmp_path / "one", tmp_path / "two"]
    for point in points:
        leaking = without_delay(root, point).__enter__()
        server = leaking._server
        assert server is not None
        server.kill()
        server.wait()
        assert mounted_at(point)
        if point == points[0]:
            leaking.close()
            assert not mounted_at(point)
    with without_delay(root, points[1]) as disk:
        (disk.mount_point / "file").write_text("works")
    assert not mounted_at(points[1])
    leaking.close()


def test_refuses_a_mount_point_in_use(disk: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(FileExistsError, match="something is mounted"), without_delay(other, disk):
        pass
    assert mounted_at(disk)


QUERY = """
import json, sys
from pyspark.sql import SparkSession
source, checkpoint, output, provider, warehouse = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").appName("slow disk")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2")
    .config("spark.sql.warehouse.dir", warehouse)
    .config("spark.local.dir", warehouse)
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state." + provider)
    .getOrCreate()
)
batches, counts = [], {}
def keep(frame, batch):
    batches.append(batch)
    counts.update({row["value"]: row["count"] for row in frame.collect()})
query = (
    spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(source).groupBy("value").count()
    .writeStream.outputMode("complete").foreachBatch(keep).option("checkpointLocation", checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
json.dump({"batches": batches, "counts": counts}, open(output, "w"))
"""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(500)
@pytest.mark.parametrize("provider", ["HDFSBackedStateStoreProvider", "RocksDBStateStoreProvider"])
def test_a_checkpoint_on_it_survives_a_restart(mountable: None, root: Path, tmp_path: Path, provider: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    results = []
    with (
        SlowDisk(root, tmp_path / "disk", latency=0.002, bytes_per_second=20 * MIB) as disk,
        ProcessGroup(tmp_path / "logs") as group,
    ):
        for files in (range(3), range(3, 5)):
            for number in files:
                (source / f"{number}.txt").write_text("all\n" * 10 + f"only{number}\n")
            command = [sys.executable, "-c", QUERY, str(source), str(disk.mount_point / "checkpoint")]
            command += [str(tmp_path / "output.json"), provider, str(tmp_path / "warehouse")]
            query = group.start(f"query{files.start}", command)
            assert query.popen.wait(timeout=240) == 0, query.log_tail(60)
            results.append(json.loads((tmp_path / "output.json").read_text()))
    assert [result["batches"] for result in results] == [[0, 1, 2], [3, 4]]
    assert results[1]["counts"] == {"all": 50} | {f"only{number}": 1 for number in range(5)}
    assert sorted(path.name for path in (root / "checkpoint" / "commits").glob("[0-9]")) == list("01234")
