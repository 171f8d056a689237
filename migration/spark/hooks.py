"""Hooks that live in the driver's JVM, made of Java's own classes at run time: no jar, and no call into Python.

`EventFilter` spares Spark from writing out events that nobody reads.
`StartHook` lets a query's first batch wait, for a bounded time, until the link has placed the query's partitions.
`Watchdog` takes everything of the link out of the JVM when the link no longer says that it is alive: a Python process
that was killed or hangs leaves no listener behind that fills a disk.

They are composed from ``java.lang.invoke.MethodHandles``; the docstrings show the Java that they stand for.
"""

from __future__ import annotations

from typing import Any, Literal

from rechannel.migration.spark.gateway import Gateway, translated_errors

START_WAIT = 5  # seconds that a query's start may wait for its placement, at most
_QUEUED_STARTS = 1000
_METHOD = "java.lang.reflect.Method"
WATCHDOG_TICK = 30  # seconds: a link that did not beat between two ticks is gone
MOST_EVENT_BYTES = 2**30  # of the event stream on disk; beyond it the link is too slow for the application
_WRITER = "org.apache.spark.scheduler.EventLoggingListener"
_INTERFACE = "org.apache.spark.scheduler.SparkListenerInterface"
_EVENTS = ("JobStart", "JobEnd", "StageCompleted", "TaskEnd", "ExecutorAdded", "ExecutorRemoved", "ApplicationEnd")
_STREAMING = "org.apache.spark.sql.streaming.StreamingQueryListener$Event"
_LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"
_STARTED = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryStartedEvent"

Argument = tuple[Any, Any]  # a class, and the value of an argument of that class


class _Handles:
    """The combinators of ``java.lang.invoke.MethodHandles`` that the hooks need, spelled for py4j."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._lib = gateway.jvm.java.lang.invoke.MethodHandles
        self._lookup = self._lib.publicLookup()
        self.void, self.boolean, self.long, self.int = (
            getattr(gateway.jvm.java.lang, name).TYPE for name in ("Void", "Boolean", "Long", "Integer")
        )
        self.object, self.objects = self.named("java.lang.Object"), self.named("[Ljava.lang.Object;")
        #: () -> void that does nothing
        self.nothing = self.converted(self._lib.constant(self.boolean, True), self.void)

    def named(self, name: str) -> Any:
        """Return a class."""
        return self._jvm.java.lang.Class.forName(name)

    def _classes(self, *items: Any) -> Any:
        return self._gateway.array(self._jvm.java.lang.Class, *items)

    def _type(self, result: Any, arguments: tuple[Any, ...]) -> Any:
        return self._jvm.java.lang.invoke.MethodType.methodType(result, self._classes(*arguments))

    def method(self, owner: Any, name: str, result: Any, *arguments: Any) -> Any:
        """(owner, arguments) -> result."""
        return self._lookup.findVirtual(owner, name, self._type(result, arguments))

    def static(self, owner: Any, name: str, result: Any, *arguments: Any) -> Any:
        """(arguments) -> result."""
        return self._lookup.findStatic(owner, name, self._type(result, arguments))

    def constructor(self, owner: Any, *arguments: Any) -> Any:
        """(arguments) -> owner."""
        return self._lookup.findConstructor(owner, self._type(self.void, arguments))

    def bound(self, handle: Any, position: int, *values: Any) -> Any:
        """Fix the arguments from a position on."""
        return self._lib.insertArguments(handle, position, self._gateway.array(self._jvm.java.lang.Object, *values))

    def call(self, target: Any, owner: Any, name: str, result: Any, *arguments: Argument) -> Any:
        """() -> target.name(arguments)."""
        handle = self.method(owner, name, result, *(kind for kind, _ in arguments))
        return self.bound(handle, 0, target, *(value for _, value in arguments))

    def dropping(self, handle: Any, position: int, *kinds: Any) -> Any:
        """Take further arguments of these classes before a position, and drop them."""
        return self._lib.dropArguments(handle, position, self._classes(*kinds))

    def constant(self, value: bool) -> Any:
        """() -> value."""
        return self._lib.constant(self.boolean, value)

    def piped(self, first: Any, second: Any) -> Any:
        """second(first(arguments)); where first returns nothing, second takes nothing."""
        return self._lib.filterReturnValue(first, second)

    def folded(self, combiner: Any, target: Any) -> Any:
        """target(combiner(arguments), arguments)."""
        return self._lib.foldArguments(target, combiner)

    def choice(self, test: Any, yes: Any, no: Any) -> Any:
        """test(arguments) ? yes(arguments) : no(arguments)."""
        return self._lib.guardWithTest(test, yes, no)

    def catching(self, body: Any, exception: str, handler: Any) -> Any:
        """try { body(arguments) } catch (exception) { handler(arguments) }."""
        kind = self.named(exception)
        return self._lib.catchException(body, kind, self.dropping(handler, 0, kind))

    def converted(self, handle: Any, result: Any, *arguments: Any) -> Any:
        """Cast arguments and result."""
        return handle.asType(self._type(result, arguments))

    def first_element(self) -> Any:
        """(Object[] array) -> array[0]."""
        return self.bound(self._lib.arrayElementGetter(self.objects), 1, 0)

    def proxy(self, interface: Any, handle: Any) -> Any:
        """Return an object of any interface; handle: (Method method, Object[] arguments) -> void for each call."""
        handle = self.dropping(handle, 0, self.object)
        handle = self.converted(handle, self.object, self.object, self.named(_METHOD), self.objects)
        handler = self.implementing("java.lang.reflect.InvocationHandler", handle)
        interfaces = self._classes(interface)
        return self._jvm.java.lang.reflect.Proxy.newProxyInstance(interface.getClassLoader(), interfaces, handler)

    def instance_of(self, kind: Any) -> Any:
        """(Object) -> boolean."""
        return self.bound(self.method(self.named("java.lang.Class"), "isInstance", self.boolean, self.object), 0, kind)

    def is_method(self, name: str) -> Any:
        """(Method) -> boolean: whether it has this name."""
        string = self.named("java.lang.String")
        same = self.bound(self.method(string, "equals", self.boolean, self.object), 0, name)
        read = self.method(self.named(_METHOD), "getName", string)
        return self.piped(read, self.converted(same, self.boolean, string))

    def implementing(self, interface: str, handle: Any) -> Any:
        """Return an object of an interface with one method, which the handle implements."""
        return self._jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(self.named(interface), handle)


class EventFilter:
    """A listener that passes on to a writer of event logs the events that the link reads.

    The others, among them the plan of every batch, are more than half of what Spark would write::

        switch (method.getName()) {
            case "onTaskEnd": writer.onTaskEnd(event); break;        // and so on for `_EVENTS`
            case "onOtherEvent": if (event instanceof StreamingQueryListener.Event) writer.onOtherEvent(event);
        }
    """

    def __init__(self, gateway: Gateway, writer: Any) -> None:
        with translated_errors():
            h = _Handles(gateway)
            kind, method = gateway.loaded_class(_WRITER), h.named(_METHOD)
            body = h.dropping(h.nothing, 0, method, h.objects)
            for event in (*_EVENTS, ""):
                name, taken = (
                    f"on{event or 'OtherEvent'}",
                    f"org.apache.spark.scheduler.SparkListener{event or 'Event'}",
                )
                write = h.method(kind, name, h.void, gateway.loaded_class(taken))
                write = h.converted(h.bound(write, 0, writer), h.void, h.object)
                if not event:
                    streaming = h.instance_of(gateway.loaded_class(_STREAMING))
                    write = h.choice(streaming, write, h.dropping(h.nothing, 0, h.object))
                write = h.dropping(h.piped(h.first_element(), write), 0, method)
                body = h.choice(h.dropping(h.is_method(name), 1, h.objects), write, body)
            self.listener = h.proxy(gateway.loaded_class(_INTERFACE), body)


class StartHook:
    """A listener for starts of streaming queries that only hands them to a thread of the link.

    Spark calls ``onQueryStarted`` on the query's own thread, before its first batch. There the hook does this, and in
    the three other callbacks nothing::

        CountDownLatch done = new CountDownLatch(1);
        if (starts.offer(Map.entry(done, event)) && alive.get() && !done.await(START_WAIT, SECONDS))
            alive.set(false);                       // the link is gone or stuck: the next start does not wait for it
    """

    def __init__(self, gateway: Gateway) -> None:
        with translated_errors():
            jvm = gateway.jvm
            event_class = gateway.loaded_class(_STARTED)
            self._seconds = jvm.java.util.concurrent.TimeUnit.SECONDS
            self._starts = jvm.java.util.concurrent.LinkedBlockingQueue(_QUEUED_STARTS)
            self._alive = jvm.java.util.concurrent.atomic.AtomicBoolean(True)
            handles = _Handles(gateway)
            proxy = handles.proxy(gateway.loaded_class(_LISTENER), self._invoke(handles, event_class))
            self.listener = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper(proxy)

    def _invoke(self, h: _Handles, event_class: Any) -> Any:
        """Return (Method method, Object[] arguments) -> void."""
        latch = h.named("java.util.concurrent.CountDownLatch")
        queue = h.named("java.util.concurrent.LinkedBlockingQueue")
        entry = h.constructor(h.named("java.util.AbstractMap$SimpleImmutableEntry"), h.object, h.object)
        offer = h.bound(h.method(queue, "offer", h.boolean, h.object), 0, self._starts)
        offered = h.piped(h.converted(entry, h.object, latch, h.object), offer)  # (latch, event) -> boolean
        waited = h.choice(
            offered, h.dropping(self._wait(h, latch), 1, h.object), h.dropping(h.nothing, 0, latch, h.object)
        )
        started = h.folded(h.bound(h.constructor(latch, h.int), 0, 1), waited)  # (event) -> void
        event = h.choice(h.instance_of(event_class), started, h.dropping(h.nothing, 0, h.object))
        return h.dropping(h.piped(h.first_element(), event), 0, h.named(_METHOD))

    def _wait(self, h: _Handles, latch: Any) -> Any:
        """Return (latch) -> void: wait for the link, if it is alive."""
        flag, unit = h.named("java.util.concurrent.atomic.AtomicBoolean"), h.named("java.util.concurrent.TimeUnit")
        alive = h.call(self._alive, flag, "get", h.boolean)
        give_up = h.call(self._alive, flag, "set", h.void, (h.boolean, False))
        wait = h.bound(h.method(latch, "await", h.boolean, h.long, unit), 1, START_WAIT, self._seconds)
        # A query that is stopped while it starts keeps its interrupt, as it would without the hook.
        thread = h.named("java.lang.Thread")
        interrupt = h.folded(h.static(thread, "currentThread", thread), h.method(thread, "interrupt", h.void))
        wait = h.catching(
            wait, "java.lang.InterruptedException", h.dropping(h.piped(interrupt, h.constant(True)), 0, latch)
        )
        nothing = h.dropping(h.nothing, 0, latch)
        return h.choice(h.dropping(alive, 0, latch), h.choice(wait, nothing, h.dropping(give_up, 0, latch)), nothing)

    def take(self, seconds: int) -> Any | None:
        """Wait up to ``seconds`` for a start; return what `event` and `release` take, or None."""
        with translated_errors():
            return self._starts.poll(seconds, self._seconds)

    def event(self, start: Any) -> Any:
        """Return Spark's ``QueryStartedEvent``."""
        with translated_errors():
            return start.getValue()

    def release(self, start: Any) -> None:
        """Let the query go on to its first batch."""
        with translated_errors():
            start.getKey().countDown()

    def beat(self) -> None:
        """Say that the link is alive."""
        with translated_errors():
            self._alive.set(True)


class Watchdog:
    """Runs clean-ups in the JVM when the link does not `beat` for a tick, or leaves too much of its stream unread.

    Every tick, on a daemon thread of the JVM::

        if (!alive.getAndSet(false) || !range.isValidValue(FileUtils.sizeOfDirectory(directory)))
        {
            for (Runnable cleanUp : cleanUps) try { cleanUp.run(); } catch (Throwable ignored) {}
            FileUtils.deleteQuietly(directory);
            scheduler.shutdown();
        }
    """

    def __init__(
        self, gateway: Gateway, directory: str, *, tick: int = WATCHDOG_TICK, most_bytes: int = MOST_EVENT_BYTES
    ) -> None:
        with translated_errors():
            jvm = gateway.jvm
            self._handles = _Handles(gateway)
            self._alive = jvm.java.util.concurrent.atomic.AtomicBoolean(True)
            self._clean_ups = jvm.java.util.concurrent.CopyOnWriteArrayList()
            self._scheduler = jvm.org.apache.spark.util.ThreadUtils.newDaemonSingleThreadScheduledExecutor(
                "rechannel-watchdog"
            )
            limits = jvm.java.time.temporal.ValueRange.of(0, most_bytes)
            body = self._tick(self._handles, jvm.java.io.File(directory), limits)
            runnable = self._handles.implementing("java.lang.Runnable", body)
            self._scheduler.scheduleWithFixedDelay(runnable, tick, tick, jvm.java.util.concurrent.TimeUnit.SECONDS)

    def _tick(self, h: _Handles, directory: Any, limits: Any) -> Any:
        """Return () -> void."""
        throwable, consumer = "java.lang.Throwable", "java.util.function.Consumer"
        run = h.converted(h.method(h.named("java.lang.Runnable"), "run", h.void), h.void, h.object)
        run = h.catching(run, throwable, h.dropping(h.nothing, 0, h.object))
        copy_on_write = h.named("java.util.concurrent.CopyOnWriteArrayList")
        each = (h.named(consumer), h.implementing(consumer, run))
        clean_up = h.call(self._clean_ups, copy_on_write, "forEach", h.void, each)
        files, file = h.named("org.apache.commons.io.FileUtils"), h.named("java.io.File")
        delete = h.converted(h.bound(h.static(files, "deleteQuietly", h.boolean, file), 0, directory), h.void)
        end = h.call(self._scheduler, h.named("java.util.concurrent.ExecutorService"), "shutdown", h.void)
        clean_up = h.folded(clean_up, h.folded(delete, end))
        flag = h.named("java.util.concurrent.atomic.AtomicBoolean")
        beaten = h.call(self._alive, flag, "getAndSet", h.boolean, (h.boolean, False))
        size = h.static(files, "sizeOfDirectory", h.long, file)
        in_range = h.method(h.named("java.time.temporal.ValueRange"), "isValidValue", h.boolean, h.long)
        small = h.piped(h.bound(size, 0, directory), h.bound(in_range, 0, limits))
        # Parts are deleted once they are read: one that vanishes while it is measured proves nothing.
        small = h.catching(small, throwable, h.constant(True))
        return h.choice(beaten, h.choice(small, h.nothing, clean_up), clean_up)

    def add(
        self,
        target: Any,
        owner: str,
        name: str,
        *arguments: tuple[str, Any],
        result: Literal["void", "boolean"] = "void",
    ) -> None:
        """Add the clean-up ``target.name(arguments)``, a method of class ``owner``; arguments with their classes."""
        h = self._handles
        with translated_errors():
            typed = [(h.int if kind == "int" else h.named(kind), value) for kind, value in arguments]
            handle = h.call(target, h.named(owner), name, h.void if result == "void" else h.boolean, *typed)
            self._clean_ups.add(h.implementing("java.lang.Runnable", h.converted(handle, h.void)))

    def beat(self) -> bool:
        """Say that the link is alive; False if the watchdog has cleaned up already."""
        with translated_errors():
            self._alive.set(True)
            return not self._scheduler.isShutdown()

    def stop(self) -> None:
        """End the watchdog; nothing is cleaned up."""
        with translated_errors():
            self._scheduler.shutdown()
