"""Spark's register of the executors that have state stores open.

Tasks take their preferred locations from it (``StateStoreCoordinatorRef``, ``StateStoreRDD.getPreferredLocations``).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.migration.spark.gateway import Gateway, translate_errors
from rechannel.migration.spark.handles import Handles
from rechannel.wire.messages import ExecutorInfo

_STATE = "org.apache.spark.sql.execution.streaming.state"
_STRINGS = "[Ljava.lang.String;"


@dataclass(frozen=True)
class StoreId:
    """A state store of one partition, as Spark's ``StateStoreProviderId`` names it."""

    checkpoint: str
    run: str
    operator: int
    partition: int
    store: str


class Coordinator:
    """Spark's coordinator of state stores, of one session."""

    def __init__(self, gateway: Gateway, session: Any) -> None:
        self._gateway = gateway
        self._ref = session.streams().stateStoreCoordinator()
        # py4j asks the JVM for every part of a class's name: these are looked up once.
        state = getattr(gateway.jvm, _STATE)
        self._store_id, self._provider_id = state.StateStoreId, state.StateStoreProviderId
        self._parse_uuid = gateway.jvm.java.util.UUID.fromString
        self._nil: Any = gateway.scala_object(gateway.jvm.scala.collection.immutable, "Nil")
        self._reports: _Reports | None = None

    def location(self, store: StoreId) -> str:
        """Return the executor that the coordinator prefers for a store, "" if it knows none."""
        with translate_errors():
            return _located_executor(str(self._ref.getLocation(self._provider(store)).toString()))

    def steer(self, store: StoreId, host: str, executor: str) -> None:
        """Tell the coordinator that a store is on an executor, which the next task then prefers."""
        with translate_errors():
            self._ref.reportActiveInstance(self._provider(store), host, executor, self._nil)

    def steer_partitions(self, first: StoreId, targets: Sequence[ExecutorInfo]) -> None:
        """Steer one store of so many partitions, from that of ``first`` on, each to its target."""
        with translate_errors():
            if self._reports is None:
                self._reports = _Reports(self._gateway, self._ref, self._nil)
            self._reports.send(first, self._run(first), targets)

    def latest_snapshot(self, store: StoreId) -> int:
        """Return the version of a store's newest snapshot by the coordinator, -1 for none.

        4.1 and newer; UnsupportedSparkError on older ones.
        """
        with translate_errors():
            version = self._ref.getLatestSnapshotVersionForTesting(self._provider(store))
            return int(version.get()) if version.isDefined() else -1

    def _provider(self, store: StoreId) -> Any:
        name = self._store_id(store.checkpoint, store.operator, store.partition, store.store)
        return self._provider_id(name, self._run(store))

    def _run(self, store: StoreId) -> Any:
        return self._parse_uuid(str(uuid.UUID(store.run)))


class _Reports:
    """Reports of many stores to the coordinator in few calls.

    A call from Python takes longer than its work in the JVM. So ``Arrays.setAll`` does this for each index of arrays
    ``hosts`` and ``executors``::

        i -> coordinator.reportActiveInstance(
            new StateStoreProviderId(new StateStoreId(root, operator, first + i, store), run),
            hosts[i], executors[i], Nil)
    """

    def __init__(self, gateway: Gateway, coordinator: Any, nil: Any) -> None:
        self._gateway = gateway
        self._handles = h = Handles(gateway)
        self._object = gateway.jvm.java.lang.Object
        self._set_all = gateway.jvm.java.util.Arrays.setAll
        self._split = gateway.jvm.org.apache.commons.lang3.StringUtils.split
        text, texts, run = (h.class_named(name) for name in ("java.lang.String", _STRINGS, "java.util.UUID"))
        store_id, provider_id = (
            gateway.loaded_class(f"{_STATE}.{name}") for name in ("StateStoreId", "StateStoreProviderId")
        )
        report = h.matching_method(
            coordinator.getClass(), "reportActiveInstance", provider_id, text, text, nil.getClass()
        )
        report = h.bind(h.bind(report, 4, nil), 0, coordinator)
        add = h.static(h.class_named("java.lang.Math"), "addExact", h.int, h.int, h.int)
        store = h.collect(h.constructor(store_id, text, h.long, h.int, text), 2, add)
        provider = h.collect(h.constructor(provider_id, store_id, run), 0, store)
        # (root, operator, first, i, store, run, host, executor) -> Object
        report = h.collect(h.cast(report, h.object, provider_id, text, text), 0, provider)
        report = h.collect(h.collect(report, 7, h.element(texts)), 6, h.element(texts))
        #: (root, operator, first, store, run, hosts, executors, i) -> Object
        self._report = h.permute(
            report, h.object, (text, h.long, h.int, text, run, texts, texts, h.int), (0, 1, 2, 7, 3, 4, 5, 7, 6, 7)
        )

    def send(self, first: StoreId, run: Any, targets: Sequence[ExecutorInfo]) -> None:
        """Report one store of so many partitions, from the first on."""
        hosts = self._split(",".join(target.host for target in targets), ",")
        executors = self._split(",".join(target.executor for target in targets), ",")
        named = (first.checkpoint, first.operator, first.partition, first.store, run, hosts, executors)
        report = self._handles.implement("java.util.function.IntFunction", self._handles.bind(self._report, 0, *named))
        self._set_all(self._gateway.new_array(self._object, len(targets)), report)


def _located_executor(option: str) -> str:
    """Return the executor of ``Some(executor_<host>_<executor>)``, "" of ``None``."""
    return option.removesuffix(")").rpartition("_")[2] if option != "None" else ""
