"""The controller as a process: its jobs on APScheduler, and a clean end."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from rechannel.conf import reload
from rechannel.conf.settings import Settings, SettingsError
from rechannel.daemon.control.audit import AuditError, AuditFile
from rechannel.daemon.control.controller import Controller
from rechannel.daemon.control.leadership import Role
from rechannel.daemon.decide import policy_settings
from rechannel.daemon.doctor import security
from rechannel.daemon.jobs.clock import Clock, ClockJumpDetector, due_after_jump
from rechannel.daemon.jobs.planning import Aside, PlanningClock
from rechannel.daemon.jobs.watchdog import Watchdog
from rechannel.daemon.view.metrics import Counters
from rechannel.daemon.view.publisher import VIEW_EVERY
from rechannel.wire.redis.store import Store, StoreError, StoreUnavailableError
from rechannel.wire.signing import KeyFileError, Signer
from rechannel.wire.systemd import Notifier

if TYPE_CHECKING:
    from rechannel.daemon.view.http import HttpFrontend


def told_when_standing_by(controller: Controller, log: Any) -> Callable[[], str]:
    """Return the controller's job ``observe``, which also logs once for whom this controller stands by."""
    told = ""

    def observe() -> str:
        nonlocal told
        sentence, lead = controller.observe(), controller.lead
        leader = lead.holder if lead.role is Role.STANDING_BY else ""
        if leader and leader != told:
            log.info("standing-by", leader=leader, epoch=lead.epoch)
        told = leader
        return sentence

    return observe


def run_controller(
    settings: Settings,
    stop: threading.Event,
    clock: Clock | None = None,
    *,
    reread: reload.ReloadSignal | None = None,
) -> None:
    """Run the controller until ``stop`` is set; with ``reread``, take other settings over when asked to.

    Raises SettingsError or KeyFileError where it cannot start, and StoreRefusedError where Redis says no (wrong
    password, too old). A Redis that is merely away is waited for.
    """
    from apscheduler.schedulers.background import BackgroundScheduler

    clock = clock or Clock()
    signer = signer_of(settings)
    store = Store(settings.redis, settings.cluster.name)
    log = structlog.get_logger("rechannel.controller")
    planning = PlanningClock()
    heart = Watchdog(Notifier.from_environment(), settings, planning=planning)
    heart.begin()
    reread = reread and replace(reread, again=heart.notifier.reloads(reread.again))
    notes = security.key_notes(settings)
    notes += security.listen_notes({"controller.listen": settings.controller.listen})
    try:
        store.check()
        notes += security.redis_notes(settings)
    except StoreUnavailableError as error:
        log.warning("redis-away", job="start", sentence=str(error))
    for sentence in notes:
        log.warning("not-safe", sentence=sentence)
    name = settings.controller.name or f"{socket.gethostname()}:{os.getpid()}"
    aside = Aside(settings.controller.observe / 10, planning)
    counters = Counters()
    controller = Controller(settings, store, signer, clock, name=name, aside=aside, count_answer=counters.count_answer)
    front = _front(controller, store, settings, counters, clock) if settings.controller.listen else None
    logging.getLogger("apscheduler").setLevel(logging.CRITICAL)  # a slow Redis makes it warn every second
    scheduler = BackgroundScheduler(timezone=UTC)
    often = settings.controller.observe
    jobs: tuple[tuple[str, Callable[[], object]], ...] = (
        ("observe", told_when_standing_by(controller, log)),
        ("requests", controller.answer_requests),
        ("follow", controller.follow),
        ("decide", controller.decide_all),
    )
    if front is not None:
        jobs += (("view", front.publish),)
    for title, job in jobs:
        seconds = _seconds(title, settings)
        scheduler.add_job(
            heart.watched(title, front.watch(title, seconds, job) if front is not None else job),
            "interval",
            seconds=seconds,
            id=title,
            max_instances=1,
            coalesce=True,
            misfire_grace_time=max(1, int(min(seconds, 60))),
        )
    where = settings.redis.url.split("@")[-1]
    log.info("controller-starts", name=controller.lead.name, cluster=settings.cluster.name, redis=where)
    if front is not None:
        front.start()
    scheduler.start()
    steps = ClockJumpDetector(clock)
    reloader = reload.Reloader(settings, reread, reload.CONTROLLER, log, policy_settings.policy_errors)
    try:
        while not stop.wait(often):
            heart.beat()
            if (taken := reloader.turn()) is not None:
                controller.take(taken)
                if front is not None:
                    front.reload(taken)
                if taken.reschedule.timeout != settings.reschedule.timeout:
                    controller.next_decision = clock.wall() + taken.reschedule.timeout
                    scheduler.reschedule_job("decide", trigger="interval", seconds=taken.reschedule.timeout)
                settings = taken
            if step := steps.pop_jump():
                # The scheduler lives by the clock: set back by an hour, it would do nothing for an hour.
                log.warning("clock-was-set", seconds=round(step, 1))
                for title, _ in jobs:
                    job, every = scheduler.get_job(title), _seconds(title, settings)
                    if job is not None and job.next_run_time is not None:
                        due = due_after_jump(job.next_run_time.timestamp(), step, clock.wall(), every)
                        scheduler.modify_job(title, next_run_time=datetime.fromtimestamp(due, UTC))
    finally:
        heart.end()
        if front is not None:
            front.close()
        scheduler.shutdown(wait=True)
        try:
            controller.close()
            store.close()
        except StoreError as error:
            log.warning("lease-not-released", sentence=str(error))
        log.info("controller-ends", name=controller.lead.name)


def _seconds(job: str, settings: Settings) -> float:
    """From one start of a job to the next."""
    if job == "view":
        return VIEW_EVERY
    return settings.reschedule.timeout if job == "decide" else settings.controller.observe


def _front(controller: Controller, store: Store, settings: Settings, counters: Counters, clock: Clock) -> HttpFrontend:
    from rechannel.daemon.view.http import HttpFrontend  # a controller that does not listen loads no web server

    return HttpFrontend(controller, store, settings, counters, clock)


def signer_of(settings: Settings) -> Signer:
    """Load the signing key, after checking what a controller cannot do without."""
    mistakes = []
    if not settings.signing.private_key_file:
        mistakes.append(
            "signing.private_key_file: is not set, and a link obeys no unsigned placement; make a key pair with "
            "`rechannel config keys DIR` and name its signing.key here"
        )
    mistakes += policy_settings.policy_errors(settings)
    try:
        AuditFile(settings.controller.audit_file).check()
    except AuditError as error:
        mistakes.append(str(error))
    if mistakes:
        raise SettingsError(mistakes)
    try:
        return Signer.from_file(settings.signing.private_key_file, settings.signing.public_key_file)
    except KeyFileError as error:
        raise KeyFileError(f"{error}; make a key pair with `rechannel config keys DIR`") from error
