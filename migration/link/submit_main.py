"""Main file of `rechannel submit`: runs a PySpark script and attaches its sessions.

``python submit_main.py SCRIPT [ARGUMENTS]`` runs the script as Python itself would: its own ``sys.argv``, ``__main__``,
``sys.path[0]``, exit code and tracebacks; its threads and exit handlers find all that as the script left it. The first
session of each SparkContext, of a late thread too, is given to `rechannel.attach` before the script has it. All
sessions of one application share that link; it ends itself when Python does, after the script's threads.

Only the standard library is imported here. Where the driver's Python lacks Rechannel or one of its dependencies, they
come from the Python that runs `rechannel submit`. Where that is not possible either, one line on standard error says
so, and the script runs without Rechannel.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

LENT = "RECHANNEL_LENT"  # the cache tag of the Python that runs `rechannel submit`, and the directories of its packages
STRICT = "RECHANNEL_STRICT"  # if set, a script that cannot be attached ends
SOLO = "RECHANNEL_SOLO"  # if set, the mode of a solo run for this script
_USAGE = 2
_APPLY = "apply"  # as in rechannel.wire.codes.Mode


class SessionAttacher:
    """Attaches the first session of each SparkContext, and prints the first error."""

    def __init__(self, attach: Callable[[Any], Any] | None = None, *, strict: bool = False) -> None:
        self._attach = attach  # None: rechannel.attach, imported for the first session
        self._strict = strict  # an error ends the script
        self._printed = False
        self._inside = threading.local()
        self._contexts: weakref.WeakSet[Any] = weakref.WeakSet()  # attached, or tried to; a stopped one may be freed

    def join(self, session: Any) -> None:
        """Attach a session, once for its SparkContext.

        After an error the script goes on, unless ``strict``. PySpark makes a session for each batch of a
        ``foreachBatch``: those cost nothing, and never end a query.
        """
        context = getattr(session, "sparkContext", self)  # a session of Spark Connect has none, and is tried once
        if context in self._contexts:
            return
        self._contexts.add(context)
        try:
            if self._attach is None:
                self._attach = _load_attach()
            self._attach(session)
        except Exception as error:  # noqa: BLE001  the user's script must never notice
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Print that there is no link; end the script if ``strict``."""
        consequence = "as --strict asks, the script ends" if self._strict else "the script runs as without it"
        self.print_once(f"not attached, {consequence}: {error or type(error).__name__}")
        if self._strict:
            raise SystemExit(1)

    def print_once(self, sentence: str) -> None:
        """Print a sentence on standard error, the first one only."""
        if not self._printed:
            self._printed = True
            write_to_standard_error(f"rechannel: {sentence}\n")

    def watch(self, session_class: Any) -> None:
        """Attach what is made of this class or its builder from now on."""
        builder = session_class.Builder
        get_or_create, initialize = builder.getOrCreate, session_class.__init__
        inside = self._inside

        @functools.wraps(get_or_create)
        def attached_get_or_create(*arguments: Any, **keywords: Any) -> Any:
            before, inside.builder = getattr(inside, "builder", False), True
            try:
                session = get_or_create(*arguments, **keywords)
            finally:
                inside.builder = before
            self.join(session)
            return session

        @functools.wraps(initialize)
        def attached_initialize(session: Any, *arguments: Any, **keywords: Any) -> None:
            initialize(session, *arguments, **keywords)
            if not getattr(inside, "builder", False):  # the builder sets its options only after this
                self.join(session)

        builder.getOrCreate, session_class.__init__ = attached_get_or_create, attached_initialize


def write_to_standard_error(text: str) -> None:
    """Write to what is standard error by now; text that it does not take is lost.

    It may be closed, full, or None. Text that stays in its buffer would make Python itself exit with an error.
    """
    stream: Any = sys.stderr
    with contextlib.suppress(Exception):
        stream.flush()
        if isinstance(stream, io.TextIOWrapper):
            unbuffered: Any = getattr(stream.buffer, "raw", stream.buffer)
            unbuffered.write(text.encode(stream.encoding, "backslashreplace"))
        else:
            stream.write(text)
            stream.flush()


def run(script: str, arguments: list[str]) -> None:
    """Run a script as ``__main__``, which it stays; its exceptions pass unchanged.

    `runpy.run_path` would take ``__main__`` away again at the script's last line, under its threads and exit handlers.
    """
    sys.argv[:] = [script, *arguments]
    directory = str(Path(script).resolve().parent)
    if sys.flags.safe_path:
        pass  # Python was told to leave the script's directory out
    elif sys.path and _is_own_directory(sys.path[0]):
        sys.path[0] = directory
    else:
        sys.path.insert(0, directory)
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    main_module = ModuleType("__main__")
    vars(main_module).update(__file__=script, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main_module
    exec(code, vars(main_module))  # noqa: S102  # nosec B102  it is the user's script


def main() -> None:
    """Run the script that the command line names."""
    if len(sys.argv) < 2:
        print("rechannel: usage: submit_main.py SCRIPT [ARGUMENTS]", file=sys.stderr)
        sys.exit(_USAGE)
    attacher = SessionAttacher(strict=bool(os.environ.get(STRICT)))
    try:
        from pyspark.sql import SparkSession

        attacher.watch(SparkSession)
    except ImportError as error:
        attacher.fail(error)
    try:
        run(sys.argv[1], sys.argv[2:])
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  printed as Python would, and the end all the same
        # As Python itself does at the end of a script, without the frames of this file.
        error.__traceback__ = _from_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _load_attach() -> Callable[[Any], Any]:
    try:
        return _import_attach()
    except ImportError as error:
        _lend_packages(error)
        return _import_attach()


def _import_attach() -> Callable[[Any], Any]:
    import rechannel

    attach = functools.partial(rechannel.attach, strict=True)  # errors are printed here, once
    mode = os.environ.get(SOLO, "")
    return functools.partial(attach, solo=True, apply=mode == _APPLY) if mode else attach


def _lend_packages(missing: ImportError) -> None:
    """Add the packages of the Python that runs `rechannel submit` to this one, if they fit.

    They come last on ``sys.path``: the script's own imports stay as they are.
    """
    kind, *directories = os.environ.get(LENT, "").split(os.pathsep)
    if not directories:
        raise missing
    if kind != sys.implementation.cache_tag:  # compiled packages fit one version only
        raise ImportError(
            f"{missing} for {sys.executable} ({sys.implementation.cache_tag}), and what `rechannel submit` runs on is "
            f"{kind}; name a Python in PYSPARK_PYTHON that has Rechannel and what the script needs"
        ) from missing
    sys.path += [directory for directory in directories if directory not in sys.path]


def _is_own_directory(directory: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(directory).resolve() == Path(__file__).resolve().parent
    return False


def _from_script(traceback: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's first frame on; None if it has none."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


if __name__ == "__main__":
    main()
