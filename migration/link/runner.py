"""What `rechannel submit` gives to spark-submit as the main file: runs a PySpark script and attaches its sessions.

``python runner.py SCRIPT [ARGUMENTS]`` runs the script as Python itself would: its own ``sys.argv``, ``__main__``,
``sys.path[0]``, exit code and tracebacks. Every session it creates is given to `rechannel.attach` before the script has
it; all sessions of one application share one link, which is ended after the script. Nothing stays patched.

Only the standard library is imported here: where Rechannel or what it needs is missing in the driver's Python, that is
said once, and the script runs as without it.
"""

from __future__ import annotations

import contextlib
import functools
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

_USAGE = 2


class Attacher:
    """Attaches sessions, and says once what went wrong. ``attach`` is `rechannel.attach` unless given."""

    def __init__(self, attach: Callable[[Any], Any] | None = None) -> None:
        self._attach = attach
        self._links: list[Any] = []
        self._said = False
        self._inside = threading.local()

    def join(self, session: Any) -> None:
        """Attach a session; whatever goes wrong, the script goes on."""
        try:
            if self._attach is None:
                self._attach = _attach_of_rechannel()
            link = self._attach(session)
            if all(link is not known for known in self._links):
                self._links.append(link)
        except Exception as error:  # noqa: BLE001  the user's script must never notice
            self.say(f"not attached, the script runs as without it: {error or type(error).__name__}")

    def end(self) -> None:
        """End the links."""
        for link in self._links:
            try:
                link.detach()
            except Exception as error:  # noqa: BLE001  the script is over, and its exit code stands
                self.say(f"the link did not end well: {error}")
        self._links.clear()

    def say(self, sentence: str) -> None:
        """Say a sentence on standard error, the first one only."""
        if not self._said:
            self._said = True
            with contextlib.suppress(OSError, ValueError, AttributeError):  # the script may have closed it
                print(f"rechannel: {sentence}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def watching(self, session_class: Any) -> Iterator[None]:
        """See every session that is made of this class or its builder, until the block ends."""
        builder = session_class.Builder
        get_or_create, initialize = builder.getOrCreate, session_class.__init__
        inside = self._inside

        @functools.wraps(get_or_create)
        def getting(*arguments: Any, **keywords: Any) -> Any:
            before, inside.builder = getattr(inside, "builder", False), True
            try:
                session = get_or_create(*arguments, **keywords)
            finally:
                inside.builder = before
            self.join(session)
            return session

        @functools.wraps(initialize)
        def initializing(session: Any, *arguments: Any, **keywords: Any) -> None:
            initialize(session, *arguments, **keywords)
            if not getattr(inside, "builder", False):  # the builder sets its options only after this
                self.join(session)

        builder.getOrCreate, session_class.__init__ = getting, initializing
        try:
            yield
        finally:
            builder.getOrCreate, session_class.__init__ = get_or_create, initialize


def run(script: str, arguments: list[str], attacher: Attacher, session_class: Any) -> None:
    """Run a script as ``__main__``; what it raises comes out as it is.

    ``session_class`` is PySpark's SparkSession, None where there is none.
    """
    sys.argv[:] = [script, *arguments]
    directory = str(Path(script).resolve().parent)
    if sys.flags.safe_path:
        pass  # Python was told to leave the script's directory out
    elif sys.path and _is_ours(sys.path[0]):
        sys.path[0] = directory
    else:
        sys.path.insert(0, directory)
    watch = attacher.watching(session_class) if session_class is not None else contextlib.nullcontext()
    try:
        with watch:
            runpy.run_path(script, run_name="__main__")
    finally:
        attacher.end()


def main() -> None:
    """Run what the command line names."""
    if len(sys.argv) < 2:
        print("rechannel: usage: runner.py SCRIPT [ARGUMENTS]", file=sys.stderr)
        sys.exit(_USAGE)
    attacher = Attacher()
    session_class: Any = None
    try:
        from pyspark.sql import SparkSession

        session_class = SparkSession
    except ImportError as error:
        attacher.say(f"not attached, the script runs as without it: {error}")
    try:
        run(sys.argv[1], sys.argv[2:], attacher, session_class)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  told as Python would, and the end all the same
        # As Python itself does at the end of a script, without the frames of this file.
        error.__traceback__ = _from_script(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _attach_of_rechannel() -> Callable[[Any], Any]:
    import rechannel
    from rechannel.migration.link import logs

    attach = rechannel.attach
    logs.to_standard_error()
    return functools.partial(attach, strict=True)  # what is wrong is said here, once


def _is_ours(directory: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(directory).resolve() == Path(__file__).resolve().parent
    return False


def _from_script(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames before the script's own; None where none is, as in a syntax error."""
    ours = (__file__, runpy.__file__, "<frozen runpy>")
    found = traceback
    while found is not None and found.tb_frame.f_code.co_filename in ours:
        found = found.tb_next
    return found


if __name__ == "__main__":
    main()
