"""A small TCP proxy before Redis that can be slow, or say garbage: a Redis that misbehaves without being down."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Self


class Proxy:
    """Listens on loopback, in the namespace that ``inside`` enters; upstream is Redis' unix socket.

    ``delay``: seconds by which every answer is late; ``garbage``: answers are replaced by bytes that mean nothing.
    """

    def __init__(self, upstream: Path, inside: Callable[[], AbstractContextManager[None]]) -> None:
        self.delay = 0.0
        self.garbage = False
        self.port = 0
        self._upstream = upstream
        self._inside = inside
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    @property
    def url(self) -> str:
        """Address of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(20):
            raise TimeoutError("the proxy did not start")
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        with self._inside():  # a thread can live in a namespace of its own
            server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            self._loop.run_forever()
            server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            back, forth = await asyncio.open_unix_connection(str(self._upstream))
            try:
                tasks = [
                    asyncio.create_task(self._copy(reader, forth)),
                    asyncio.create_task(self._answer(back, writer)),
                ]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
            finally:
                forth.close()
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(b"\xff\x00garbage" * 8 if self.garbage else data)
                await writer.drain()
