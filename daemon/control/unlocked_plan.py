"""Plan of one application, made while the controller's lock is released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rechannel.daemon.control.leadership import LeaderContext
from rechannel.daemon.decide import pipeline
from rechannel.daemon.decide.pipeline import DecisionRequest, NoPlan
from rechannel.daemon.jobs.planning import Mutex
from rechannel.daemon.jobs.running_plans import RunningPlan, RunningPlans
from rechannel.daemon.model.collector import Collector


class UnlockedPlan:
    """At most one plan of an application, during which the controller's lock is free.

    The lease is renewed meanwhile, requests are answered, other migrations go on. A plan counts only if the lead was
    never lost and it knows all that was ordered.
    """

    def __init__(
        self, application: str, context: LeaderContext, collector: Collector, plans: RunningPlans, lock: Mutex
    ) -> None:
        self._application, self._context, self._collector = application, context, collector
        self._plans, self._lock = plans, lock
        self._running: RunningPlan | None = None

    @property
    def is_running(self) -> bool:
        """Whether a plan is under way."""
        return self._running is not None

    def await_end(self) -> bool:
        """Wait until no plan is under way; returns whether there was one."""
        had_to_wait = False
        while (plan := self._running) is not None:
            had_to_wait = True
            with self._lock.released():
                plan.ended.wait()
        return had_to_wait

    @contextmanager
    def make(self, request: DecisionRequest, orders: Callable[[], tuple[object, ...]]) -> Iterator[None]:
        """Release the lock while a plan is made; raises NoPlan if it is out of date afterwards.

        ``orders``: returns the orders that the plan has to know.
        """
        epoch, before = self._context.lead.epoch, orders()
        try:
            with self._plans.record(self._application) as self._running, self._lock.released():
                yield
        except NoPlan:
            self._running = None
            self._revalidate(request, epoch, unchanged=orders() == before)
            raise
        finally:
            self._running = None
        self._revalidate(request, epoch, unchanged=orders() == before)

    def _revalidate(self, request: DecisionRequest, epoch: int, *, unchanged: bool) -> None:
        context = self._context
        if not context.lead.revalidate():
            context.restored = False  # under a lead that was won again, orders of others may be unknown
            raise NoPlan(pipeline.NOT_LEADING)
        if not context.can_act or context.lead.epoch != epoch:
            raise NoPlan(pipeline.NOT_LEADING)
        if request.apply and context.lead.paused:
            raise NoPlan(pipeline.PAUSED)
        if self._collector.reports.get(self._application) is None:
            raise NoPlan(pipeline.no_report(self._application))
        if not unchanged:
            raise NoPlan(pipeline.OVERTAKEN)
