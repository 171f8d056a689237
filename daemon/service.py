"""The controller as a process: its jobs on APScheduler, and a clean end."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from datetime import UTC

import structlog

from rechannel.conf.settings import Settings, SettingsError
from rechannel.daemon import choosing
from rechannel.daemon.brake import Brake
from rechannel.daemon.controller import Controller
from rechannel.wire.signing import KeyFileError, Signer
from rechannel.wire.store import Store, StoreError, StoreUnavailableError


def run_controller(settings: Settings, stop: threading.Event, clock: Callable[[], float] = time.time) -> None:
    """Run the controller until ``stop`` is set.

    Raises SettingsError or KeyFileError where it cannot start, and StoreRefusedError where Redis says no (wrong
    password, too old). A Redis that is merely away is waited for.
    """
    from apscheduler.schedulers.background import BackgroundScheduler

    signer = signer_of(settings)
    store = Store(settings.redis, settings.cluster.name)
    log = structlog.get_logger("rechannel.controller")
    try:
        store.check()
    except StoreUnavailableError as error:
        log.warning("redis-away", job="start", sentence=str(error))
    name = settings.controller.name or f"{socket.gethostname()}:{os.getpid()}"
    controller = Controller(settings, store, signer, clock, name=name)
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # a slow Redis makes it warn every second
    scheduler = BackgroundScheduler(timezone=UTC)
    often = settings.controller.observe
    for title, job, seconds in (
        ("observe", controller.observe, often),
        ("requests", controller.answer_requests, often),
        ("follow", controller.follow, often),
        ("decide", controller.decide_all, settings.reschedule.timeout),
    ):
        scheduler.add_job(
            Brake(title, job, time.monotonic),
            "interval",
            seconds=seconds,
            id=title,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=max(1, int(min(seconds, 60))),
        )
    where = settings.redis.url.split("@")[-1]
    log.info("controller-starts", name=controller.lead.name, cluster=settings.cluster.name, redis=where)
    scheduler.start()
    try:
        stop.wait()
    finally:
        scheduler.shutdown(wait=True)
        try:
            controller.close()
            store.close()
        except StoreError as error:
            log.warning("lease-not-released", sentence=str(error))
        log.info("controller-ends", name=controller.lead.name)


def signer_of(settings: Settings) -> Signer:
    """Load the signing key, after checking what a controller cannot do without."""
    mistakes = []
    if not settings.signing.private_key_file:
        mistakes.append(
            "signing.private_key_file: is not set, and a link obeys no unsigned placement; make a key pair with "
            "`rechannel config keys DIR` and name its signing.key here"
        )
    mistakes += choosing.mistakes(settings)
    if mistakes:
        raise SettingsError(mistakes)
    try:
        return Signer.from_file(settings.signing.private_key_file)
    except KeyFileError as error:
        raise KeyFileError(f"{error}; make a key pair with `rechannel config keys DIR`") from error
