"""Functions composed in the driver's JVM at run time, without a jar."""

from __future__ import annotations

from typing import Any

from rechannel.migration.spark.gateway import Gateway, UnsupportedSparkError

METHOD = "java.lang.reflect.Method"

Argument = tuple[Any, Any]  # a class, and the value of an argument of that class


class Handles:
    """Combinators of ``java.lang.invoke.MethodHandles``, spelled for py4j."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self._jvm = gateway, gateway.jvm
        # py4j asks the JVM for every part of a class's name: these are looked up once.
        lang = gateway.jvm.java.lang
        self._lib, self._insert = lang.invoke.MethodHandles, lang.invoke.MethodHandles.insertArguments
        self._implement = lang.invoke.MethodHandleProxies.asInterfaceInstance
        self._method_type, self._class, self._object = lang.invoke.MethodType.methodType, lang.Class, lang.Object
        self._class_for_name = lang.Class.forName
        self._lookup = self._lib.publicLookup()
        self.void, self.boolean, self.long, self.int = (
            getattr(lang, name).TYPE for name in ("Void", "Boolean", "Long", "Integer")
        )
        self.object, self.objects = self.class_named("java.lang.Object"), self.class_named("[Ljava.lang.Object;")
        self.string, self.strings = self.class_named("java.lang.String"), self.class_named("[Ljava.lang.String;")
        #: () -> void that does nothing
        self.nothing = self.cast(self._lib.constant(self.boolean, True), self.void)

    def class_named(self, name: str) -> Any:
        """Return a class, or a primitive type."""
        primitives = {"void": self.void, "boolean": self.boolean, "int": self.int}
        return primitives[name] if name in primitives else self._class_for_name(name)

    def _classes(self, *items: Any) -> Any:
        return self.gateway.array(self._class, *items)

    def _type(self, result: Any, arguments: tuple[Any, ...]) -> Any:
        return self._method_type(result, self._classes(*arguments))

    def method(self, owner: Any, name: str, result: Any, *arguments: Any) -> Any:
        """(owner, arguments) -> result."""
        return self._lookup.findVirtual(owner, name, self._type(result, arguments))

    def matching_method(self, owner: Any, name: str, *arguments: Any) -> Any:
        """(owner, arguments) -> result, for a method whose exact types differ between versions."""
        match = self._jvm.org.apache.commons.lang3.reflect.MethodUtils.getMatchingAccessibleMethod
        if (method := match(owner, name, self._classes(*arguments))) is None:
            raise UnsupportedSparkError(f"this Spark lacks a method we need: {name}")
        return self._lookup.unreflect(method)

    def static(self, owner: Any, name: str, result: Any, *arguments: Any) -> Any:
        """(arguments) -> result."""
        return self._lookup.findStatic(owner, name, self._type(result, arguments))

    def constructor(self, owner: Any, *arguments: Any) -> Any:
        """(arguments) -> owner."""
        return self._lookup.findConstructor(owner, self._type(self.void, arguments))

    def bind(self, handle: Any, position: int, *values: Any) -> Any:
        """Fix the arguments from a position on."""
        return self._insert(handle, position, self.gateway.array(self._object, *values))

    def call(self, target: Any, owner: Any, name: str, result: Any, *arguments: Argument) -> Any:
        """() -> target.name(arguments)."""
        handle = self.method(owner, name, result, *(kind for kind, _ in arguments))
        return self.bind(handle, 0, target, *(value for _, value in arguments))

    def drop(self, handle: Any, position: int, *kinds: Any) -> Any:
        """Take more arguments of these classes before a position, and drop them."""
        return self._lib.dropArguments(handle, position, self._classes(*kinds))

    def constant(self, value: bool) -> Any:
        """() -> value."""
        return self._lib.constant(self.boolean, value)

    def collect(self, handle: Any, position: int, part: Any) -> Any:
        """handle(..., part(arguments), ...): the part's arguments are taken in place of one."""
        return self._lib.collectArguments(handle, position, part)

    def spread(self, handle: Any, array: Any, count: int) -> Any:
        """(array) -> result: all elements of an array of this class, so many, are arguments."""
        return handle.asSpreader(array, count)

    def pipe(self, first: Any, second: Any) -> Any:
        """second(first(arguments)); where first returns nothing, second takes nothing."""
        return self._lib.filterReturnValue(first, second)

    def fold(self, combiner: Any, target: Any) -> Any:
        """target(combiner(arguments), arguments)."""
        return self._lib.foldArguments(target, combiner)

    def branch(self, test: Any, yes: Any, no: Any) -> Any:
        """test(arguments) ? yes(arguments) : no(arguments)."""
        return self._lib.guardWithTest(test, yes, no)

    def catch(self, body: Any, exception: str, handler: Any) -> Any:
        """try { body(arguments) } catch (exception) { handler(arguments) }."""
        kind = self.class_named(exception)
        return self._lib.catchException(body, kind, self.drop(handler, 0, kind))

    def cast(self, handle: Any, result: Any, *arguments: Any) -> Any:
        """Cast arguments and result."""
        return handle.asType(self._type(result, arguments))

    def first_element(self) -> Any:
        """(Object[] array) -> array[0]."""
        return self.bind(self._lib.arrayElementGetter(self.objects), 1, 0)

    def proxy(self, interface: Any, handle: Any) -> Any:
        """Return an object of any interface; handle: (Method, Object[] arguments) -> void."""
        handle = self.drop(handle, 0, self.object)
        handle = self.cast(handle, self.object, self.object, self.class_named(METHOD), self.objects)
        handler = self.implement("java.lang.reflect.InvocationHandler", handle)
        interfaces = self._classes(interface)
        return self._jvm.java.lang.reflect.Proxy.newProxyInstance(interface.getClassLoader(), interfaces, handler)

    def instance_of(self, kind: Any) -> Any:
        """(Object) -> boolean."""
        return self.bind(
            self.method(self.class_named("java.lang.Class"), "isInstance", self.boolean, self.object), 0, kind
        )

    def is_method(self, name: str) -> Any:
        """(Method) -> boolean: whether it has this name."""
        same = self.bind(self.method(self.string, "equals", self.boolean, self.object), 0, name)
        read = self.method(self.class_named(METHOD), "getName", self.string)
        return self.pipe(read, self.cast(same, self.boolean, self.string))

    def implement(self, interface: str, handle: Any) -> Any:
        """Return an object of an interface with one method, which the handle implements."""
        return self._implement(self.class_named(interface), handle)
