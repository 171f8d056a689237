"""Reads the files that hold Spark's settings, such as spark-defaults.conf."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Return what a file sets: ``key value``, ``key=value`` or ``key: value`` a line, as java.util.Properties has it.

    Raises OSError or UnicodeDecodeError where it cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    found = {}
    for line in re.sub(r"\\\n[ \t]*", "", text).splitlines():
        match = re.fullmatch(r"\s*([^\s#!=:][^\s=:]*)\s*[=:\s]\s*(.*)", line)
        if match:
            found[match[1]] = match[2].rstrip()
    return found
