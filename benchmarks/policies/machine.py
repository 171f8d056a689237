"""What the figures were measured on, and the one format they are kept in."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["machine", "say"]


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
