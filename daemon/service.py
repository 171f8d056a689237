"""The controller as a process: its start, its jobs, reloads, and a clean end."""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from rechannel.conf import lease_timing, reload
from rechannel.conf.settings import Settings, SettingsError
from rechannel.daemon.audit import AuditError, AuditFile
from rechannel.daemon.control.controller import Collaborators, Controller
from rechannel.daemon.control.leadership import Role
from rechannel.daemon.decide import policy_settings
from rechannel.daemon.doctor import security
from rechannel.daemon.jobs import watchdog
from rechannel.daemon.jobs.clock import Clock
from rechannel.daemon.jobs.health import JobMonitor
from rechannel.daemon.jobs.planning import BackgroundRunner
from rechannel.daemon.jobs.watchdog import Watchdog
from rechannel.daemon.view.metrics import Counters
from rechannel.daemon.view.publisher import VIEW_EVERY
from rechannel.policies.registry import installed_policies
from rechannel.wire.messages import Decision
from rechannel.wire.redis.errors import StoreError, StoreUnavailableError
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import KeyFileError, Signer
from rechannel.wire.systemd import Notifier

if TYPE_CHECKING:
    from rechannel.daemon.view.http import HttpFrontend


_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def log_standing_by(controller: Controller, log: Any) -> Callable[[], str]:
    """Return the job ``observe``, which also logs each new leader once."""
    logged = ""

    def observe() -> str:
        nonlocal logged
        sentence, lead = controller.run_leader_cycle(), controller.lead
        leader = lead.holder if lead.role is Role.STANDING_BY else ""
        if leader and leader != logged:
            log.info("standing-by", leader=leader, epoch=lead.epoch)
        logged = leader
        return sentence

    return observe


def tune_garbage_collection() -> None:
    """Collect garbage seldom, for a process that decides.

    A decision on a large application makes a million objects and hardly any cycles of them; the interpreter would look
    through all objects again and again.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def run_controller(
    settings: Settings, stop: threading.Event, *, reload_signal: reload.ReloadSignal | None = None
) -> None:
    """Run the controller until ``stop`` is set.

    With ``reload_signal``, reload the settings on request. Raises SettingsError if it cannot start, and
    StoreRefusedError if Redis refuses it (wrong password, too old). A Redis that is merely away is waited for.
    """
    from rechannel.daemon.jobs.runner import JobRunner  # needs APScheduler, which no other command does

    clock = Clock()
    signer = signer_of(settings)
    store = Store(settings.redis, settings.cluster.name)
    log = structlog.get_logger("rechannel.controller")
    monitor = JobMonitor(clock, patience=watchdog.patience(settings))
    supervision = Watchdog(Notifier.from_environment(), settings, monitor, clock)
    supervision.begin()
    reload_signal = reload_signal and replace(
        reload_signal, load=supervision.notifier.announce_reload(reload_signal.load)
    )
    _check_environment(settings, store, log)
    counters = Counters()
    parts = Collaborators(
        store,
        signer,
        clock,
        name=settings.controller.name or f"{socket.gethostname()}:{os.getpid()}",
        background=BackgroundRunner(lease_timing.OBSERVE / 10, monitor),
        count_answer=counters.count_answer,
    )
    controller = Controller(settings, parts)
    frontend = _frontend(controller, store, monitor, counters, clock) if settings.controller.listen else None
    _add_jobs(monitor, controller, log)
    if frontend is not None:
        monitor.add("view", VIEW_EVERY, frontend.publisher.publish)
    runner = JobRunner(monitor.jobs.values(), clock)
    where = settings.redis.url.split("@")[-1]
    log.info("controller-starts", name=controller.lead.name, cluster=settings.cluster.name, redis=where)
    if frontend is not None:
        frontend.server.start()
    runner.start()
    reloader = reload.Reloader(settings, reload_signal, log, policy_settings.policy_errors)
    try:
        while not stop.wait(lease_timing.OBSERVE):
            supervision.send_heartbeat()
            if (changed := reloader.poll()) is not None:
                controller.reload(changed)
                if frontend is not None:
                    frontend.publisher.settings = changed
                if (timeout := changed.reschedule.timeout) != monitor.jobs["decide"].status.every:
                    controller.schedule_decision()
                    runner.reschedule("decide", timeout)
            runner.follow_clock()
    finally:
        supervision.end()
        if frontend is not None:
            frontend.server.close()
        runner.stop()
        try:
            controller.close()
            store.close()
        except StoreError as error:
            log.warning("lease-not-released", sentence=str(error))
        log.info("controller-ends", name=controller.lead.name)


def _check_environment(settings: Settings, store: Store, log: Any) -> None:
    """Log unsafe keys, addresses and Redis, and installed policies that cannot be used."""
    notes = security.key_notes(settings)
    notes += security.listen_notes({"controller.listen": settings.controller.listen})
    try:
        store.check()
        notes += security.redis_notes(settings)
    except StoreUnavailableError as error:
        log.warning("redis-away", job="start", sentence=str(error))
    for sentence in notes:
        log.warning("not-safe", sentence=sentence)
    for sentence in installed_policies().errors:
        log.warning("policy-unusable", sentence=sentence)


def _add_jobs(monitor: JobMonitor, controller: Controller, log: Any) -> None:
    def describe(decisions: Sequence[Decision] | None) -> str:
        return f"last decision: {decisions[-1].sentence}" if decisions else ""

    settings = controller.settings
    monitor.add("observe", lease_timing.OBSERVE, log_standing_by(controller, log))
    monitor.add("requests", lease_timing.OBSERVE, controller.answer_requests)
    monitor.add("follow", lease_timing.OBSERVE, controller.follow)
    monitor.add("decide", settings.reschedule.timeout, controller.decide_all, describe=describe)


def _frontend(
    controller: Controller, store: Store, monitor: JobMonitor, counters: Counters, clock: Clock
) -> HttpFrontend:
    # Imported here: a controller that does not listen loads no web server.
    from rechannel.daemon.view.http import HttpFrontend
    from rechannel.daemon.web.page import routes

    return HttpFrontend(controller, store, monitor, counters, clock, routes)


def signer_of(settings: Settings) -> Signer:
    """Load the signing key.

    Raises SettingsError with everything that a controller cannot start without.
    """
    errors = []
    if not settings.signing.private_key_file:
        errors.append(
            "signing.private_key_file: is not set, and a link obeys no unsigned placement; make a key pair with "
            "`rechannel config keys DIR` and name its signing.key here"
        )
    errors += policy_settings.policy_errors(settings)
    try:
        AuditFile(settings.controller.audit_file).check()
    except AuditError as error:
        errors.append(str(error))
    if errors:
        raise SettingsError(errors)
    try:
        return Signer.from_file(settings.signing.private_key_file, settings.signing.public_key_file)
    except KeyFileError as error:
        raise SettingsError([f"{error}; make a key pair with `rechannel config keys DIR`"]) from error
