"""Client of the driver's JVM: calls with a time limit, and translated errors.

No other module uses py4j. The user's gateway has no time limits, and with pinned threads each Python thread that makes
a call keeps a connection to the JVM. This client talks to the same JVM over at most one connection per thread of the
link.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j import protocol
from py4j.java_gateway import GatewayClient, GatewayConnection, GatewayParameters, JavaGateway, quiet_close
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

CALL_LIMIT = 30.0  # seconds: beyond it a call has failed, though the JVM may still be at work on it


_RELEASE = protocol.MEMORY_COMMAND_NAME + protocol.MEMORY_DEL_SUBCOMMAND_NAME
_WRAPPER = "java.lang.reflect.UndeclaredThrowableException"  # of what a function composed in the JVM throws
_REFERENCE = re.compile(r"[xy][a-z](o\d+)")  # an answer that is a Java object or exception


class LinkError(RuntimeError):
    """An operation in the driver that is not possible."""


class UnsupportedSparkError(LinkError):
    """This Spark cannot be steered, or lacks one method; a further try does not help."""


class SparkCallError(LinkError):
    """One call failed; the next turn is a new try."""


class _BoundedClient(GatewayClient):  # type: ignore[misc]
    """Sends each command once; raises `Py4JNetworkError` if no answer comes in time.

    py4j's own client sends some commands twice and turns a time-out into an anonymous error. Python's garbage collector
    runs on any thread, so references to Java objects are only queued there, and released with the next command. It
    also runs late, as a `JavaObject` and its methods refer to each other. So the client itself keeps a list of the
    objects that the JVM holds for it.
    """

    def __init__(self, parameters: GatewayParameters) -> None:
        super().__init__(gateway_parameters=parameters)
        self._garbage: deque[str] = deque()
        self._references: set[str] = set()

    def _create_connection(self) -> GatewayConnection:
        connection = GatewayConnection(self.gateway_parameters, self.gateway_property)
        try:
            connection.start()
        except BaseException:  # py4j leaves the socket of a failed connection to the garbage collector
            for end in (getattr(connection, "stream", None), connection.socket):
                quiet_close(end)
            raise
        return connection

    def garbage_collect_object(self, target_id: str) -> None:
        """Queue the release of a Java object."""
        self._garbage.append(target_id)

    def send_command(self, command: str, retry: bool = True, binary: bool = False) -> Any:  # noqa: ARG002  py4j's
        """Send the queued releases and a command; return the answer."""
        connection, target = self._get_connection(), None
        try:
            while (target := self._next_garbage()) is not None:
                connection.send_command(f"{_RELEASE}{target}\ne\n")
                self._references.discard(target)
            response = connection.send_command(command)
        except BaseException:
            if target is not None:  # its release may not have arrived
                self._garbage.append(target)
            connection.close(reset=True)
            raise
        self._give_back_connection(connection)
        if (reference := _REFERENCE.fullmatch(response)) is not None:
            self._references.add(reference[1])
        return response

    def release_all(self) -> None:
        """Release every Java object, even if something in Python still refers to it."""
        self._garbage.extend(self._references)
        if (target := self._next_garbage()) is not None:
            self.send_command(f"{_RELEASE}{target}\ne\n")  # carries the others

    def _next_garbage(self) -> str | None:
        try:
            return self._garbage.popleft()
        except IndexError:
            return None


class _BoundedGateway(JavaGateway):  # type: ignore[misc]
    def _create_gateway_client(self) -> GatewayClient:
        return _BoundedClient(self.gateway_parameters)


class Gateway:
    """Calls into the JVM of a PySpark session, of `CALL_LIMIT` seconds at most."""

    def __init__(self, users_gateway: Any) -> None:
        # ClientServer (pinned threads) and JavaGateway name the same parameters differently; a name that is not an
        # attribute of theirs, they take for a package of Java.
        own = vars(users_gateway)
        parameters = own.get("java_parameters") or own["gateway_parameters"]
        self._gateway = _BoundedGateway(
            gateway_parameters=GatewayParameters(
                address=parameters.address,
                port=parameters.port,
                auth_token=parameters.auth_token,
                ssl_context=parameters.ssl_context,
                auto_convert=True,
                read_timeout=CALL_LIMIT,
            )
        )
        self.jvm: Any = self._gateway.jvm

    def share(self, java_object: Any) -> Any:
        """Return the same Java object, referenced through this client."""
        return self.jvm.java.util.Optional.of(java_object).get()

    def new_array(self, kind: Any, length: int) -> Any:
        """Return a Java array of nulls or zeros."""
        return self._gateway.new_array(kind, length)

    def array(self, kind: Any, *items: Any) -> Any:
        """Return a Java array."""
        array = self.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def scala_object(self, package: Any, name: str) -> Any:
        """Return a Scala singleton."""
        return getattr(getattr(package, f"{name}$"), "MODULE$")

    def loaded_class(self, *names: str) -> Any:
        """Return the first of these classes that this Spark has."""
        for name in names:
            try:
                return self.jvm.org.apache.spark.util.Utils.classForName(name, True, False)
            except Py4JJavaError:
                continue
        raise UnsupportedSparkError(f"this Spark has no {names[0]}")

    def close(self) -> None:
        """Release every Java object and close all connections."""
        try:
            self._gateway._gateway_client.release_all()
        finally:
            self._gateway.close(keep_callback_server=True)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise a `LinkError` for whatever a call into the JVM raises."""
    try:
        yield
    except LinkError:
        raise
    except Py4JNetworkError as error:
        if isinstance(error.cause, TimeoutError):
            raise SparkCallError(f"a call into the driver's JVM took longer than {CALL_LIMIT:g} s") from error
        raise SparkCallError(f"the driver's JVM cannot be reached: {error}") from error
    except Py4JJavaError as error:
        with translate_errors():  # the JVM is asked for the text, and may be gone by now
            sentence = _first_line(error.java_exception)
        raise SparkCallError(sentence) from error
    except Py4JError as error:
        if "does not exist" in str(error):
            method = str(error).splitlines()[0]
            raise UnsupportedSparkError(f"this Spark lacks a method that Rechannel needs: {method}") from error
        raise SparkCallError(str(error)) from error
    except Exception as error:
        # py4j's sockets, PySpark's own exceptions, a session that was stopped meanwhile, an answer of another shape
        raise SparkCallError(f"a call into Spark failed: {error}") from error


def _first_line(exception: Any) -> str:
    """Return the first line of an exception of the JVM."""
    if str(exception).startswith(_WRAPPER):
        exception = exception.getCause()
    return str(exception).splitlines()[0]


def split_names(joined: str) -> frozenset[str]:
    """Return the names in the result of ``mkString(",")`` on a collection."""
    return frozenset(name for name in joined.split(",") if name)
