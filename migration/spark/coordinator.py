"""Spark's register of the executors that have state stores open.

Tasks take their preferred locations from it (``StateStoreCoordinatorRef``, ``StateStoreRDD.getPreferredLocations``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rechannel.migration.spark.gateway import translate_errors
from rechannel.migration.spark.handles import Handles
from rechannel.wire.messages import ExecutorInfo

_STATE = "org.apache.spark.sql.execution.streaming.state"
_OPERATOR = "java.util.function.UnaryOperator"
_FIELD, _ROW = "\0", "\0\0"  # separators of the fields of a row, none of which is empty, and of rows


@dataclass(frozen=True)
class StoreId:
    """A state store of one partition, as Spark's ``StateStoreProviderId`` names it."""

    checkpoint: str
    run: str
    operator: int
    partition: int
    store: str

    @property
    def row(self) -> tuple[str, ...]:
        """Its fields in the order in which Spark takes them."""
        return self.checkpoint, str(self.operator), str(self.partition), self.store, self.run


class Coordinator:
    """Spark's coordinator of state stores; each method makes two calls for all its stores."""

    def __init__(self, handles: Handles, session: Any) -> None:
        ref = session.streams().stateStoreCoordinator()
        self._functions = functions = _Functions(handles, ref)
        # Composed at the attach, as it takes more calls than there is time for at a boundary.
        nil: Any = handles.gateway.scala_object(handles.gateway.jvm.scala.collection.immutable, "Nil")
        self._report = functions.compose("reportActiveInstance", 2, nil)
        self._locate = functions.compose("getLocation")
        self._find_snapshot: Any = None
        self._no_arguments = handles.gateway.jvm.java.util.Collections.emptyList()

    def steer(self, targets: Sequence[tuple[StoreId, ExecutorInfo]]) -> None:
        """Tell the coordinator which executor each store is on; the next task prefers it."""
        self._call(self._report, [(*store.row, target.host, target.executor) for store, target in targets])

    def locations(self, stores: Sequence[StoreId]) -> list[str]:
        """Return the executor that the coordinator prefers for each store, "" if it has none."""
        # Of the form None or Some(executor_<host>_<executor>).
        options = self._call(self._locate, [store.row for store in stores])
        return [option.removesuffix(")").rpartition("_")[2] if option != "None" else "" for option in options]

    def latest_snapshots(self, stores: Sequence[StoreId]) -> list[int]:
        """Return the version of each store's newest snapshot by the coordinator, -1 for none.

        4.1 and newer; UnsupportedSparkError on older ones.
        """
        with translate_errors():
            if self._find_snapshot is None:
                self._find_snapshot = self._functions.compose("getLatestSnapshotVersionForTesting")
        options = self._call(self._find_snapshot, [store.row for store in stores])
        return [int(option[len("Some(") : -1]) if option != "None" else -1 for option in options]

    def _call(self, function: Any, rows: Sequence[Sequence[str]]) -> list[str]:
        """Call a function of `_Functions`; return its answers."""
        if not rows:
            return []
        text = _ROW.join(_FIELD.join(row) for row in rows)
        with translate_errors():
            return str(function.bindTo(text).invokeWithArguments(self._no_arguments)).split(_FIELD)


class _Functions:
    """Functions in the JVM that call a method of the coordinator for each row of a text.

    A call from Python takes longer than its work in the JVM. So they do this with each row, and join the answers::

        id = new StateStoreId(row[0], Long.parseLong(row[1]), Integer.parseInt(row[2]), row[3]);
        coordinator.<method>(new StateStoreProviderId(id, UUID.fromString(row[4])), row[5], ...)
    """

    def __init__(self, handles: Handles, coordinator: Any) -> None:
        self._handles, self._coordinator = handles, coordinator
        h, named, loaded, text = handles, handles.class_named, handles.gateway.loaded_class, handles.string
        store_class, self._provider_class = loaded(f"{_STATE}.StateStoreId"), loaded(f"{_STATE}.StateStoreProviderId")
        store = h.constructor(store_class, text, h.long, h.int, text)
        store = h.collect(store, 2, h.static(named("java.lang.Integer"), "parseInt", h.int, text))
        store = h.collect(store, 1, h.static(named("java.lang.Long"), "parseLong", h.long, text))
        uuid = named("java.util.UUID")
        provider = h.constructor(self._provider_class, store_class, uuid)
        provider = h.collect(provider, 1, h.static(uuid, "fromString", uuid, text))
        self._provider = h.collect(provider, 0, store)  # (five fields) -> StateStoreProviderId
        self._to_text = h.static(text, "valueOf", text, h.object)
        split = h.static(named("org.apache.commons.lang3.StringUtils"), "splitByWholeSeparator", h.strings, text, text)
        self._fields = h.bind(split, 1, _FIELD)  # (row) -> String[]
        rows = named("java.util.List")
        as_list = h.static(named("java.util.Arrays"), "asList", rows, h.objects)
        self._rows = h.pipe(h.bind(split, 1, _ROW), h.cast(as_list, rows, h.strings))  # (text) -> List
        self._replace = h.method(rows, "replaceAll", h.void, named(_OPERATOR))
        join = h.static(text, "join", text, named("java.lang.CharSequence"), named("java.lang.Iterable"))
        self._join = h.cast(h.bind(join, 0, _FIELD), text, rows)  # (List) -> text

    def compose(self, name: str, texts: int = 0, *last: Any) -> Any:
        """(String) -> String, for a method of a store's id, so many strings and these values."""
        h, count = self._handles, 5 + texts
        kinds = [self._provider_class, *[h.string] * texts, *(value.getClass() for value in last)]
        method = h.matching_method(self._coordinator.getClass(), name, *kinds)
        method = h.bind(h.bind(method, 2 + texts, *last), 0, self._coordinator)
        answer = h.cast(h.collect(method, 0, self._provider), h.object, *[h.string] * count)
        answer = h.pipe(self._fields, h.spread(h.pipe(answer, self._to_text), h.strings, count))
        each = h.implement(_OPERATOR, h.cast(answer, h.object, h.object))
        return h.pipe(self._rows, h.fold(h.bind(self._replace, 1, each), self._join))
