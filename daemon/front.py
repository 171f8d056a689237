"""What a controller shows over HTTP, put together: records of its jobs, views, and the server that answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from rechannel.conf.settings import Settings
from rechannel.daemon import http
from rechannel.daemon.controller import Controller
from rechannel.daemon.loops import Loops
from rechannel.daemon.publisher import Publisher
from rechannel.daemon.view import Board
from rechannel.wire.store import Store


class Front:
    """One controller's front. Takes its port at once, and answers once it is started.

    Raises SettingsError where the port cannot be had.
    """

    def __init__(
        self,
        controller: Controller,
        store: Store,
        settings: Settings,
        clock: Callable[[], float],
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loops = Loops(clock, steady)
        self._board = board = Board()
        self._publisher = Publisher(controller, store, settings, board, self._loops, controller.counts, clock, steady)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every odd request
        self._server = http.HttpServer(
            settings.controller.listen,
            lambda local: http.build_app(
                board.take,
                self._loops,
                controller.counts,
                silence=settings.controller.lease,
                local=local,
                routes=http.web_routes(board.take),
            ),
        )

    @property
    def address(self) -> str:
        """Where it listens."""
        return self._server.address

    def watch(self, job: str, every: float, run: Callable[[], object]) -> Callable[[], object]:
        """Return a job with a record kept of its runs; ``every``: seconds from start to start."""
        return self._loops.watch(job, every, run)

    def publish(self) -> str:
        """Make a new view: the job ``view``."""
        return self._publisher.publish()

    def take(self, settings: Settings) -> None:
        """Go on with other settings. Where it listens stays as it is."""
        self._publisher.settings = settings
        self._loops.expect("decide", settings.reschedule.timeout)

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def close(self) -> None:
        """End, and give the port back."""
        self._server.close()
