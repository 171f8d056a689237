"""Event logs through Spark's own classes, with stand-ins for the JVM."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from rechannel.migration.spark import event_log_codecs
from rechannel.migration.spark.event_log_codecs import EventLogCodecError, open_with_spark


class JavaInput:
    """Java's stream of some bytes; fails after them if told to."""

    def __init__(self, data: bytes, *, fails: bool = False) -> None:
        self._data, self._fails = io.BytesIO(data), fails
        self.closed = False

    def copy(self, chunk: JavaOutput, begin: int, size: int) -> None:
        assert begin == 0
        data = self._data.read(min(size, 5))
        chunk.write(data)
        if len(data) < 5 and self._fails:
            raise Py4JError("An error occurred.\n: java.io.IOException: Stream is corrupted\n\tat java.base")

    def close(self) -> None:
        self.closed = True


class JavaOutput(io.BytesIO):
    """Java's ``ByteArrayOutputStream``."""

    toByteArray = io.BytesIO.getvalue  # noqa: N815


@pytest.fixture(autouse=True)
def forget_jvm() -> Iterator[None]:
    event_log_codecs._start_jvm.cache_clear()
    yield
    event_log_codecs._start_jvm.cache_clear()


def gateway(opened: Any) -> Any:
    """Return a gateway whose reader of event logs answers with ``opened``, or raises it."""

    def open_event_log(path: str, system: str) -> Any:
        assert (path, system) == ("file:///logs/app-1.lz4", "local")
        if isinstance(opened, Exception):
            raise opened
        return opened

    def hadoop_path(uri: str) -> Any:
        return type("Path", (str,), {"getFileSystem": lambda self, conf: "local"})(uri)

    history = SimpleNamespace(EventLogFileReader=SimpleNamespace(openEventLog=open_event_log))
    hadoop = SimpleNamespace(fs=SimpleNamespace(Path=hadoop_path), conf=SimpleNamespace(Configuration=object))
    commons = SimpleNamespace(io=SimpleNamespace(IOUtils=SimpleNamespace(copyLarge=JavaInput.copy)))
    java = SimpleNamespace(io=SimpleNamespace(ByteArrayOutputStream=JavaOutput))
    apache = SimpleNamespace(
        commons=commons, hadoop=hadoop, spark=SimpleNamespace(deploy=SimpleNamespace(history=history))
    )
    return SimpleNamespace(jvm=SimpleNamespace(java=java, org=SimpleNamespace(apache=apache)))


def launch(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def launch_gateway(**options: Any) -> Any:
        calls.append(options)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch_gateway)
    return calls


def test_bytes_come_in_order_and_one_jvm_serves_all(monkeypatch: pytest.MonkeyPatch):
    source = JavaInput(b"one\ntwo\nthree\n")
    calls = launch(monkeypatch, gateway(source))
    with io.BufferedReader(open_with_spark(Path("/logs/app-1.lz4")), 4) as stream:
        assert list(stream) == [b"one\n", b"two\n", b"three\n"]
    assert source.closed
    open_with_spark(Path("/logs/app-1.lz4"))
    assert len(calls) == 1


def test_damaged_data_is_an_error_of_the_file_after_what_comes_before_it(monkeypatch: pytest.MonkeyPatch):
    launch(monkeypatch, gateway(JavaInput(b"one\ntwo\nth", fails=True)))
    with io.BufferedReader(open_with_spark(Path("/logs/app-1.lz4")), 4) as stream:
        assert [stream.readline(), stream.readline()] == [b"one\n", b"two\n"]
        with pytest.raises(OSError, match=r"Stream is corrupted$"):
            stream.readline()


def test_no_java_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    launch(monkeypatch, FileNotFoundError("java"))
    with pytest.raises(EventLogCodecError, match=r"cannot start a JVM \(FileNotFoundError: java\)"):
        open_with_spark(Path("/logs/app-1.lz4"))


def test_what_spark_cannot_open_is_a_sentence(monkeypatch: pytest.MonkeyPatch):
    launch(monkeypatch, gateway(Py4JError("no such codec")))
    with pytest.raises(EventLogCodecError, match="Spark cannot open the file: no such codec"):
        open_with_spark(Path("/logs/app-1.lz4"))
