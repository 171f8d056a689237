"""Adapter and standalone master of an application whose executors are released."""

from __future__ import annotations

from rechannel.migration.link.executor_release import UNLIMITED
from rechannel.migration.spark.gateway import SparkCallError
from rechannel.wire.messages import ExecutorInfo


def info(name: str, host: str, added: float = 0.0) -> ExecutorInfo:
    return ExecutorInfo(executor=name, host=host, cores=1, added=added)


class FakeCluster:
    """An adapter and its standalone master: one executor for each worker, up to the limit.

    ``reported`` is False while Spark has not reported yet that a released executor is gone.
    """

    standalone = True

    def __init__(self, *hosts: str) -> None:
        self.workers = list(hosts)
        self.executors = {str(n): info(str(n), host) for n, host in enumerate(hosts)}
        self.limit = UNLIMITED
        self.cordoned: list[str] = []
        self.busy: set[str] = set()
        self.kills = 0
        self.reported = True
        self.unseen: dict[str, ExecutorInfo] = {}
        self.fails = self.answer_is_lost = False
        self.local = 0
        self.counts = 0  # of local checkpoints
        self.most = UNLIMITED  # spark.cores.max
        self._next = len(hosts)

    def cordon(self, executor):
        if self.fails:
            raise SparkCallError("no")
        if executor in self.cordoned:
            return False  # as Spark
        self.cordoned.append(executor)
        if self.answer_is_lost:
            raise SparkCallError("no answer within 30 s")
        return True

    def releasing(self):
        return set(self.cordoned)

    def release(self, executor, remaining, without_link):
        self.limit_executors(remaining + 1, without_link)
        if executor in self.busy:
            return False
        self.kills += 1
        self.limit = remaining + (executor in self.unseen)  # a second kill lowers nothing
        if executor in self.executors:
            executor_info = self.executors.pop(executor)
            if not self.reported:
                self.unseen[executor] = executor_info
        return True

    def limit_executors(self, most, without_link):
        changed, self.limit, self.without_link = self.limit != most, most, without_link
        return changed

    def lift_limit(self, most):
        if self.fails:
            raise SparkCallError("no")
        self.limit = most

    def local_checkpoints(self):
        self.counts += 1
        return self.local

    def worker_hosts(self):
        return list(self.workers)

    def schedule(self, now: float, order: list[str] | None = None):
        """The master starts executors on workers that have none, as far as the limit goes."""
        used = {item.host for item in self.executors.values()}
        for host in order or self.workers:
            if host in self.workers and host not in used and len(self.executors) < min(self.limit, self.most):
                name = str(self._next)
                self._next += 1
                self.executors[name] = info(name, host, now)
                used.add(host)

    def hosts(self):
        return sorted(item.host for item in self.executors.values())
