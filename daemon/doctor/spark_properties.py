"""Reader of files with Spark settings, such as spark-defaults.conf."""

from __future__ import annotations

import re
from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Return the settings of a file in the format of java.util.Properties.

    Raises OSError or UnicodeDecodeError if the file cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    settings = {}
    for line in re.sub(r"\\\n[ \t]*", "", text).splitlines():
        match = re.fullmatch(r"\s*([^\s#!=:][^\s=:]*)\s*[=:\s]\s*(.*)", line)
        if match:
            settings[match[1]] = match[2].rstrip()
    return settings
