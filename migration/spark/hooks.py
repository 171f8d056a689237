"""Hooks in the driver's JVM, made of Java's own classes at run time.

No jar is needed, and no hook calls Python.

* `EventFilter` keeps Spark from writing events that are not read.
* `StartHook` makes a query's first batch wait, for a bounded time, until the link has placed the query's partitions.
* `Watchdog` takes everything of the link out of the JVM when the link sends no heartbeat: a Python process that was
  killed or hangs leaves no listener behind that fills a disk.

They are composed by `Handles`; the docstrings show the Java that they stand for.
"""

from __future__ import annotations

import time
from typing import Any

from rechannel.migration.spark.gateway import translate_errors
from rechannel.migration.spark.handles import METHOD, Handles

START_WAIT = 5  # seconds that a query's start may wait for its placement, at most
_QUEUED_STARTS = 1000
WATCHDOG_TICK = 30  # seconds: a link without a heartbeat between two ticks is gone
MAX_EVENT_BYTES = 2**30  # bytes of the event stream that wait on disk; beyond: the watchdog takes the listener out
_WRITER = "org.apache.spark.scheduler.EventLoggingListener"
_INTERFACE = "org.apache.spark.scheduler.SparkListenerInterface"
_EVENTS = ("JobStart", "JobEnd", "StageCompleted", "TaskEnd", "ExecutorAdded", "ExecutorRemoved", "ApplicationEnd")
_STREAMING = "org.apache.spark.sql.streaming.StreamingQueryListener$Event"
_LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"
_STARTED = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent"


class EventFilter:
    """Listener that passes the events that the link reads to a writer of event logs.

    The other events, among them the plan of every batch, are more than half of what Spark would write::

        switch (method.getName()) {
            case "onTaskEnd": writer.onTaskEnd(event); break;        // and so on for `_EVENTS`
            case "onOtherEvent": if (event instanceof StreamingQueryListener.Event) writer.onOtherEvent(event);
        }
    """

    def __init__(self, h: Handles, writer: Any) -> None:
        with translate_errors():
            load = h.gateway.loaded_class
            kind, method = load(_WRITER), h.class_named(METHOD)
            body = h.drop(h.nothing, 0, method, h.objects)
            for event in (*_EVENTS, ""):
                name = f"on{event or 'OtherEvent'}"
                event_class = f"org.apache.spark.scheduler.SparkListener{event or 'Event'}"
                write = h.method(kind, name, h.void, load(event_class))
                write = h.cast(h.bind(write, 0, writer), h.void, h.object)
                if not event:
                    streaming = h.instance_of(load(_STREAMING))
                    write = h.branch(streaming, write, h.drop(h.nothing, 0, h.object))
                write = h.drop(h.pipe(h.first_element(), write), 0, method)
                body = h.branch(h.drop(h.is_method(name), 1, h.objects), write, body)
            self.listener = h.proxy(load(_INTERFACE), body)


class StartHook:
    """Listener that hands the starts of streaming queries to a thread of the link.

    Spark calls ``onQueryStarted`` on the query's own thread, before its first batch. There the hook does the following,
    and in the three other callbacks nothing::

        CountDownLatch done = new CountDownLatch(1);
        if (starts.offer(Map.entry(done, event)) && alive.get() && !done.await(START_WAIT, SECONDS))
            alive.set(false);                       // the link is gone or stuck: the next start does not wait for it

    ``waits_since``: seconds since the epoch; a query that started earlier waits no more, or never did.
    """

    def __init__(self, h: Handles) -> None:
        self.waits_since = 0.0
        with translate_errors():
            jvm = h.gateway.jvm
            self._seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
            self._starts = jvm.java.util.concurrent.LinkedBlockingQueue(_QUEUED_STARTS)
            self._alive = jvm.java.util.concurrent.atomic.AtomicBoolean(True)
            proxy = h.proxy(h.gateway.loaded_class(_LISTENER), self._invoke(h, h.gateway.loaded_class(_STARTED)))
            self.listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(proxy)

    def _invoke(self, h: Handles, event_class: Any) -> Any:
        """Return (Method method, Object[] arguments) -> void."""
        latch = h.class_named("java.util.concurrent.CountDownLatch")
        queue = h.class_named("java.util.concurrent.LinkedBlockingQueue")
        entry = h.constructor(h.class_named("java.util.AbstractMap$SimpleImmutableEntry"), h.object, h.object)
        offer = h.bind(h.method(queue, "offer", h.boolean, h.object), 0, self._starts)
        offer_start = h.pipe(h.cast(entry, h.object, latch, h.object), offer)  # (latch, event) -> boolean
        offer_and_wait = h.branch(
            offer_start, h.drop(self._wait(h, latch), 1, h.object), h.drop(h.nothing, 0, latch, h.object)
        )
        handle_start = h.fold(h.bind(h.constructor(latch, h.int), 0, 1), offer_and_wait)  # (event) -> void
        event = h.branch(h.instance_of(event_class), handle_start, h.drop(h.nothing, 0, h.object))
        return h.drop(h.pipe(h.first_element(), event), 0, h.class_named(METHOD))

    def _wait(self, h: Handles, latch: Any) -> Any:
        """Return (latch) -> void: wait for the link, if it is alive."""
        flag, unit = (
            h.class_named("java.util.concurrent.atomic.AtomicBoolean"),
            h.class_named("java.util.concurrent.TimeUnit"),
        )
        alive = h.call(self._alive, flag, "get", h.boolean)
        give_up = h.call(self._alive, flag, "set", h.void, (h.boolean, False))
        wait = h.bind(h.method(latch, "await", h.boolean, h.long, unit), 1, START_WAIT, self._seconds)
        # A query that is stopped while it starts keeps its interrupt, as it would without the hook.
        thread = h.class_named("java.lang.Thread")
        interrupt = h.fold(h.static(thread, "currentThread", thread), h.method(thread, "interrupt", h.void))
        wait = h.catch(wait, "java.lang.InterruptedException", h.drop(h.pipe(interrupt, h.constant(True)), 0, latch))
        nothing = h.drop(h.nothing, 0, latch)
        return h.branch(h.drop(alive, 0, latch), h.branch(wait, nothing, h.drop(give_up, 0, latch)), nothing)

    def poll(self, seconds: int) -> Any | None:
        """Wait up to ``seconds`` for a start; return what `event` and `release` take, or None."""
        with translate_errors():
            return self._starts.poll(seconds, self._seconds)

    def event(self, start: Any) -> Any:
        """Return Spark's ``QueryStartedEvent``."""
        with translate_errors():
            return start.getValue()

    def release(self, start: Any) -> None:
        """Let the query go on to its first batch."""
        with translate_errors():
            start.getKey().countDown()

    def send_heartbeat(self) -> None:
        """Tell the hook that the link is alive; due before each start is handled."""
        with translate_errors():
            if not self._alive.getAndSet(True):
                self.waits_since = time.time()


class Watchdog:
    """Runs clean-ups in the JVM when a tick passes without heartbeat, or too much is unread.

    Every tick, on a daemon thread of the JVM::

        if (!alive.getAndSet(false) || !range.isValidValue(FileUtils.sizeOfDirectory(directory)))
        {
            for (Runnable cleanUp : cleanUps) try { cleanUp.run(); } catch (Throwable ignored) {}
            FileUtils.deleteQuietly(directory);
            scheduler.shutdown();
        }
    """

    def __init__(self, handles: Handles, directory: str) -> None:
        self._handles = handles
        with translate_errors():
            jvm = handles.gateway.jvm
            self._alive = jvm.java.util.concurrent.atomic.AtomicBoolean(True)
            self._clean_ups = jvm.java.util.concurrent.CopyOnWriteArrayList()
            self._scheduler = jvm.org.apache.spark.util.ThreadUtils.newDaemonSingleThreadScheduledExecutor(
                "rechannel-watchdog"
            )
            limits = jvm.java.time.temporal.ValueRange.of(0, MAX_EVENT_BYTES)
            runnable = handles.implement("java.lang.Runnable", self._tick(handles, jvm.java.io.File(directory), limits))
            seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
            self._scheduler.scheduleWithFixedDelay(runnable, WATCHDOG_TICK, WATCHDOG_TICK, seconds)

    def _tick(self, h: Handles, directory: Any, limits: Any) -> Any:
        """Return () -> void."""
        throwable, consumer = "java.lang.Throwable", "java.util.function.Consumer"
        run = h.cast(h.method(h.class_named("java.lang.Runnable"), "run", h.void), h.void, h.object)
        run = h.catch(run, throwable, h.drop(h.nothing, 0, h.object))
        copy_on_write = h.class_named("java.util.concurrent.CopyOnWriteArrayList")
        each = (h.class_named(consumer), h.implement(consumer, run))
        clean_up = h.call(self._clean_ups, copy_on_write, "forEach", h.void, each)
        files, file = h.class_named("org.apache.commons.io.FileUtils"), h.class_named("java.io.File")
        delete = h.cast(h.bind(h.static(files, "deleteQuietly", h.boolean, file), 0, directory), h.void)
        end = h.call(self._scheduler, h.class_named("java.util.concurrent.ExecutorService"), "shutdown", h.void)
        clean_up = h.fold(clean_up, h.fold(delete, end))
        flag = h.class_named("java.util.concurrent.atomic.AtomicBoolean")
        alive = h.call(self._alive, flag, "getAndSet", h.boolean, (h.boolean, False))
        size = h.static(files, "sizeOfDirectory", h.long, file)
        in_range = h.method(h.class_named("java.time.temporal.ValueRange"), "isValidValue", h.boolean, h.long)
        small = h.pipe(h.bind(size, 0, directory), h.bind(in_range, 0, limits))
        # Parts are deleted once they are read, and one may vanish while it is measured: that is no reason to clean up.
        small = h.catch(small, throwable, h.constant(True))
        return h.branch(alive, h.branch(small, h.nothing, clean_up), clean_up)

    def add(
        self,
        target: Any,
        owner: str,
        name: str,
        *arguments: tuple[str, Any],
        result: str = "void",
    ) -> Any:
        """Add the clean-up ``target.name(arguments)``; return what `withdraw` takes.

        ``owner``: the class that declares the method; ``arguments``: class and value of each; ``result``: the method's
        Java type.
        """
        h = self._handles
        with translate_errors():
            typed = [(h.class_named(kind), value) for kind, value in arguments]
            handle = h.call(target, h.class_named(owner), name, h.class_named(result), *typed)
            clean_up = h.implement("java.lang.Runnable", h.cast(handle, h.void))
            self._clean_ups.add(clean_up)
        return clean_up

    def withdraw(self, clean_up: Any) -> None:
        """Take a clean-up back."""
        with translate_errors():
            self._clean_ups.remove(clean_up)

    def send_heartbeat(self) -> bool:
        """Tell the watchdog that the link is alive; False if the watchdog has cleaned up already."""
        with translate_errors():
            self._alive.set(True)
            return not self._scheduler.isShutdown()

    def stop(self) -> None:
        """End the watchdog; nothing is cleaned up."""
        with translate_errors():
            self._scheduler.shutdown()
