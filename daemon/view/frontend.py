"""What a controller shows over HTTP, put together: records of its jobs, views, and the server that answers."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from rechannel.conf.settings import Settings
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.leadership import LeaderElection
from rechannel.daemon.jobs import watchdog
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.view import http
from rechannel.daemon.view.controller_snapshot import role_of
from rechannel.daemon.view.model import ControllerView, Role, ViewSlot
from rechannel.daemon.view.publisher import Publisher
from rechannel.wire.redis.store import Store


class LatestView:
    """The newest view, with the role of this moment: a lease may end while the next view is still being made."""

    def __init__(self, board: ViewSlot, lead: LeaderElection) -> None:
        self._board = board
        self._lead = lead
        self._deposed: tuple[ControllerView, ControllerView] | None = None  # a view, and what stands for it

    def take(self) -> ControllerView:
        """Return it without waiting; the same one until something changed, so that what is made of it can be kept."""
        view = self._board.take()
        if view.role is not Role.LEADING or (role := role_of(self._lead)) is Role.LEADING:
            return view
        known = self._deposed
        if known is None or known[0] is not view or known[1].role is not role:
            leader = self._lead.holder if role is Role.STANDING_BY else ""
            known = self._deposed = view, dataclasses.replace(view, role=role, leader=leader)
        return known[1]


class HttpFrontend:
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
        patience = watchdog.patience(settings)
        self._loops = JobMonitor(clock, steady, patience=patience, planning=controller.planning)
        board = ViewSlot()
        current = LatestView(board, controller.lead)
        self._publisher = Publisher(controller, store, settings, board, self._loops, controller.counts, clock, steady)
        logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every odd request
        self._server = http.HttpServer(
            settings.controller.listen,
            lambda local: http.build_app(
                current.take,
                self._loops,
                controller.counts,
                silence=settings.controller.lease,
                local=local,
                routes=http.web_routes(current.take),
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
