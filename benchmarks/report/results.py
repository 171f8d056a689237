"""What the figures were measured on, and the one format they are kept in."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["keeping", "machine", "say", "write"]


def say(text: str) -> None:
    """Tell how far it is, on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def machine() -> dict[str, Any]:
    """Cores, versions, and how busy the machine is just now."""
    found: dict[str, Any] = {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }
    for name in ("numpy", "highspy", "pymetis"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def write(path: Path, figures: object) -> None:
    """Write figures as JSON, the file whole or not at all; its directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(figures, indent=1) + "\n")
    partial.rename(path)


@contextlib.contextmanager
def keeping(name: str, keep: dict[str, Any], save: Callable[[], object]) -> Iterator[None]:
    """Save what a block measured however it ends; one that fails says so in ``keep``, and the next are measured."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  the others are worth having; this one is told as failed
        keep["error"] = f"{type(error).__name__}: {error}"
        say(f"{name} failed: {keep['error']}")
    except BaseException as end:
        keep["error"] = f"broken off: {type(end).__name__}"
        raise
    finally:
        save()
