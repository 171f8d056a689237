"""Installed distribution: the whole `rechannel`, or the light `rechannel-agent`.

The light one holds what nodes and light drivers need. Both hold the same files under one import name, so an environment
can have only one of them.
"""

from __future__ import annotations

import importlib.util

WHOLE, LIGHT = "rechannel", "rechannel-agent"
#: commands of `rechannel-agent`
LIGHT_COMMANDS = frozenset({"agent", "config", "doctor", "submit"})
_CURE = (
    "pip uninstall -y rechannel rechannel-agent, then install one of them: rechannel-agent on nodes, rechannel where "
    "controllers run and orders are given"
)


def is_complete() -> bool:
    """Whether the parts that only `rechannel` holds are here; so it is in a checkout too."""
    return importlib.util.find_spec("rechannel.daemon.service") is not None


def has_signatures() -> bool:
    """Whether keys can be read; nodes need none, so cryptography may not be installed."""
    return importlib.util.find_spec("cryptography") is not None


def installed() -> list[str]:
    """Return the names of the installed distributions; none in a mere checkout."""
    from importlib import metadata  # takes longer to import than a command's --help

    names = []
    for name in (WHOLE, LIGHT):
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        names.append(name)
    return names


def conflict() -> tuple[str, str]:
    """Return problem and cure of the installed distributions; empty if there is none."""
    if len(installed()) < 2:
        return "", ""
    return f"{WHOLE} and {LIGHT} are both installed, and each overwrites files of the other", _CURE


def how_to_install(extra: str = "") -> str:
    """Return how `rechannel` is installed with an extra, since no package index has it."""
    source = f"'.[{extra}]'" if extra else "."
    return f"pip install {source} in a checkout, or the wheel of `make release`"


def missing_part(module: str) -> str:
    """Return the sentence for a module that only `rechannel` holds; "" for others."""
    if is_complete() or module.partition(".")[0] != "rechannel":
        return ""
    return f"{LIGHT} does not hold this command; install {WHOLE} in an environment of its own: {how_to_install()}"
