"""Calls into a JVM that does not answer."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest
from py4j.java_gateway import GatewayParameters
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from rechannel.migration.spark import gateway
from rechannel.migration.spark.gateway import Gateway, SparkCallError, translate_errors

SHORT = 0.05
HANGS = 20.0  # seconds after which the server hangs up: a call without an end fails the test, and does not block it


@pytest.fixture
def silent():
    """Return the port of a server to which the system connects everyone, and which never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        timer = threading.Timer(HANGS, server.close)
        timer.start()
        yield server.getsockname()[1]
        timer.cancel()


def call(port: int, secret: str | None) -> None:
    parameters = SimpleNamespace(address="127.0.0.1", port=port, auth_token=secret, ssl_context=None)
    with translate_errors():
        Gateway(SimpleNamespace(gateway_parameters=parameters)).jvm.java.lang.System.currentTimeMillis()


@pytest.mark.parametrize(
    ("secret", "sentence"),
    [(None, f"took longer than {SHORT:g} s"), ("secret", "cannot be reached")],
    ids=["at the call", "at the greeting"],
)
def test_every_call_ends_though_the_jvm_never_answers(silent, secret, sentence, monkeypatch):
    monkeypatch.setattr(gateway, "CALL_LIMIT", SHORT)
    start = time.monotonic()
    with pytest.raises(SparkCallError, match=sentence):
        call(silent, secret)
    assert time.monotonic() - start < HANGS / 2, "the client ended it, not the server"


def test_a_jvm_that_has_ended_is_an_error_at_once():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(SparkCallError, match="cannot be reached"):
        call(port, "secret")


class Thrown:
    """A Java exception."""

    def __init__(self, text: str, cause: Thrown | None = None) -> None:
        self._target_id, self._gateway_client = "o1", None
        self._text, self._cause = text, cause

    def __str__(self) -> str:
        return self._text

    def getCause(self) -> Thrown | None:  # noqa: N802  Java's name
        return self._cause


@pytest.mark.parametrize(
    ("exception", "sentence"),
    [
        (Thrown("a.B: one\ntwo", Thrown("a.C: three")), "a.B: one"),
        (Thrown("java.lang.reflect.UndeclaredThrowableException", Thrown("a.C: three\nfour")), "a.C: three"),
    ],
)
def test_an_error_is_sparks_own_first_line_also_from_a_composed_function(exception, sentence):
    with pytest.raises(SparkCallError) as caught, translate_errors():
        raise Py4JJavaError("An error occurred", exception)
    assert str(caught.value) == sentence


def test_an_error_of_a_jvm_that_ended_meanwhile_is_an_error_of_the_link_too(monkeypatch):
    def gone(exception: Thrown) -> str:
        raise Py4JNetworkError("gone")

    monkeypatch.setattr(Thrown, "__str__", gone)
    with pytest.raises(SparkCallError, match="cannot be reached: gone"), translate_errors():
        raise Py4JJavaError("An error occurred", Thrown("a.B: one"))


def test_a_release_that_failed_is_sent_again(monkeypatch):
    sent, broken = [], [True]

    def send_command(command: str) -> str:
        if broken.pop() if broken else False:
            raise OSError("connection lost")
        sent.append(command.split("\n")[2] if command.startswith("m") else command)
        return "!yv"

    client = gateway._BoundedClient(GatewayParameters())
    connection = SimpleNamespace(send_command=send_command, close=lambda **_: None)
    monkeypatch.setattr(client, "_get_connection", lambda: connection)
    client.garbage_collect_object("o1")
    with pytest.raises(OSError, match="lost"):
        client.send_command("a command")
    client.send_command("the next one")
    assert sent == ["o1", "the next one"]
