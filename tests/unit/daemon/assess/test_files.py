"""Search for event logs, their parts and their lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import pytest
import zstandard

from rechannel.daemon.assess import files
from rechannel.daemon.assess.files import EventLog, EventLogError, LogLines, find_logs, open_part
from rechannel.migration.spark.event_log_codecs import EventLogCodecError


def rolled(directory: Path, *names: str, application: str = "app-1") -> Path:
    log = directory / f"eventlog_v2_{application}"
    log.mkdir(parents=True)
    for name in names:
        (log / name).write_bytes(f"{name}\n".encode())
    return log


def names(log: EventLog) -> list[str]:
    return [part.name for part in log.parts]


def read(path: Path) -> list[bytes]:
    return list(LogLines(EventLog("x", (path,))))


def test_a_file_is_a_log(tmp_path: Path):
    path = tmp_path / "app-1.inprogress"
    path.write_text("{}\n")
    (log,) = find_logs([path])
    assert log.name == "app-1.inprogress"
    assert "in progress" in log.notes[0]


def test_parts_are_in_the_order_of_their_numbers(tmp_path: Path):
    log = rolled(
        tmp_path, "events_10_app-1", "events_9_app-1", "appstatus_app-1", *(f"events_{n}_app-1" for n in range(1, 9))
    )
    (whole,) = find_logs([log])
    assert names(whole) == [f"events_{n}_app-1" for n in range(1, 11)]
    assert whole.notes == ()


def test_a_status_in_progress_is_named(tmp_path: Path):
    (log,) = find_logs([rolled(tmp_path, "events_1_app-1", "appstatus_app-1.inprogress")])
    assert "in progress" in log.notes[0]


def test_a_compacted_part_stands_for_those_before(tmp_path: Path):
    parts = ("events_2_app-1.compact", "events_1_app-1", "events_2_app-1", "events_3_app-1")
    (log,) = find_logs([rolled(tmp_path, *parts, "events_3_app-1.compact.inprogress")])
    assert names(log) == ["events_2_app-1.compact", "events_3_app-1"]
    assert "compacted by the history server" in log.notes[0]
    assert "maxFilesToRetain" in log.notes[0]


def test_missing_parts_are_named(tmp_path: Path):
    (log,) = find_logs([rolled(tmp_path, "events_2_app-1", "events_5_app-1")])
    assert log.notes == ("part 1, 3, 4 of the log is missing: what happened in it is unknown",)


def test_parts_named_by_a_pattern_are_one_log(tmp_path: Path):
    log = rolled(tmp_path, "events_1_app-1", "events_2_app-1", "appstatus_app-1")
    assert len(find_logs(sorted(log.iterdir()))) == 1
    assert len(find_logs([log, *log.iterdir()])) == 1


def test_a_directory_has_the_logs_of_several_applications(tmp_path: Path):
    rolled(tmp_path, "events_1_app-1")
    rolled(tmp_path, "events_1_app-2", application="app-2")
    (tmp_path / "app-3").write_text("{}\n")
    (tmp_path / ".app-4.crc").write_text("x")
    (tmp_path / "other").mkdir()
    assert [log.name for log in find_logs([tmp_path])] == ["app-3", "eventlog_v2_app-1", "eventlog_v2_app-2"]


@pytest.mark.parametrize(
    ("path", "cure"),
    [
        ("missing", "no such file"),
        ("hdfs:/logs/app-1", "copy the log to this machine"),
        ("empty", "holds no event log"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, path: str, cure: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(EventLogError, match=cure):
        find_logs([tmp_path / path])


def test_zstd_is_read_over_frames_and_to_a_torn_end(tmp_path: Path):
    path = tmp_path / "app-1.zstd"
    frame = zstandard.ZstdCompressor().compress
    path.write_bytes(frame(b"1\n2\n") + frame(b"3\n") + frame(b"4\n" * 1000)[:-6])
    assert read(path)[:3] == [b"1\n", b"2\n", b"3\n"]


def test_zstd_that_is_damaged_ends_with_a_note(tmp_path: Path):
    path = tmp_path / "app-1.zstd"
    path.write_bytes(zstandard.ZstdCompressor().compress(b"1\n") + b"garbage and more")
    lines = LogLines(EventLog("x", (path,)))
    list(lines)
    assert "app-1.zstd cannot be read to its end" in lines.notes[0]


def test_zstd_that_asks_for_much_memory_is_not_read(tmp_path: Path):
    path = tmp_path / "app-1.zstd"
    parameters = zstandard.ZstdCompressionParameters(window_log=30)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    path.write_bytes(compressor.compress(b"1\n" * 1000) + compressor.flush())
    lines = LogLines(EventLog("x", (path,)))
    assert list(lines) == []
    assert "cannot be read" in lines.notes[0]


def test_codecs_of_spark_are_read_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "app-1.lz4.inprogress"
    path.write_bytes(b"LZ4Block")
    monkeypatch.setattr(files, "open_with_spark", lambda _: io.BytesIO(b"1\n"))
    assert read(path) == [b"1\n"]


def test_without_a_jvm_the_cure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "app-1.snappy"
    path.write_bytes(b"xx")

    def refuse(_: Path) -> BinaryIO:
        raise EventLogCodecError("PySpark cannot start a JVM (FileNotFoundError: java)")

    monkeypatch.setattr(files, "open_with_spark", refuse)
    with pytest.raises(EventLogError, match=r"snappy.*java.*spark\.eventLog.compression.codec=zstd"):
        open_part(path)


def test_an_archive_of_the_history_server_is_to_be_unpacked(tmp_path: Path):
    path = tmp_path / "eventLogs-app-1.zip"
    path.write_bytes(b"PK\x03\x04...")
    with pytest.raises(EventLogError, match="unpack it first"):
        open_part(path)


def test_long_and_torn_lines_are_passed_over(tmp_path: Path):
    path = tmp_path / "app-1"
    path.write_bytes(b"one\n" + b"x" * 100 + b"\ntwo\n" + b"y" * 8 + b"\nthree\ntor")
    lines = LogLines(EventLog("x", (path,)), longest=8)
    assert list(lines) == [b"one\n", b"two\n", b"three\n"]
    assert "2 lines of more than 8 bytes" in lines.notes[0]


def test_a_part_that_vanishes_is_named(tmp_path: Path):
    lines = LogLines(EventLog("x", (tmp_path / "events_1_app-1",)))
    assert list(lines) == []
    assert "events_1_app-1 cannot be read" in lines.notes[0]
