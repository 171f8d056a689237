"""Result files of the benchmarks: the machine, the JSON that is saved after every part, and the common options."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["ResultFile", "argument_parser", "machine", "progress", "rounded", "write_json", "write_page"]


def progress(text: str) -> None:
    """Print a line of progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def argument_parser(
    module: str, description: str | None, quick: str, parts: Sequence[str] = ()
) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark: ``--quick``, ``--json`` and, with ``parts``, ``--only``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="file for the figures; those of other parts stay in it"
    )
    if parts:
        parser.add_argument("--only", choices=parts, action="append", help="only this part; may be given again")
    return parser


def machine() -> dict[str, Any]:
    """Return cores, versions, and the load average at this moment."""
    facts: dict[str, Any] = {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }
    for name in ("numpy", "highspy", "pymetis"):
        try:
            facts[name] = version(name)
        except PackageNotFoundError:
            facts[name] = None
    return facts


def write_json(path: Path, figures: object) -> None:
    """Write figures as JSON, the whole file or nothing; its directory is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(figures, indent=1) + "\n")
    partial.rename(path)


def write_page(path: Path, text: str) -> None:
    """Write a generated page."""
    path.write_text(text)
    progress(f"written: {path}")


def rounded(value: Any) -> Any:
    """Return figures with four decimals, or four digits below one; None for a float that is not finite."""
    if isinstance(value, float):
        return None if not math.isfinite(value) else round(value, 4) if abs(value) >= 1 else float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


class ResultFile:
    """Figures of one benchmark in a JSON file that is saved after every part, so that a failure loses no other part.

    Parameters
    ----------
    path : the file; None keeps the figures in memory
    figures : the figures to begin with; None reads those of an existing file
    after_save : called with the figures after each save
    """

    def __init__(
        self,
        path: Path | None,
        figures: dict[str, Any] | None = None,
        after_save: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.path = path
        stored = json.loads(path.read_text()) if figures is None and path and path.exists() else {}
        self.figures: dict[str, Any] = stored if figures is None else figures
        self._after_save = after_save

    def save(self) -> None:
        """Write the figures."""
        if self.path:
            write_json(self.path, self.figures)
        if self._after_save:
            self._after_save(self.figures)

    @contextlib.contextmanager
    def entry(self, name: str, entry: dict[str, Any]) -> Iterator[None]:
        """Save what a block puts into an entry however it ends; a failure goes into the entry as its ``error``."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  the other parts are worth having; this one is shown as failed
            entry["error"] = f"{type(error).__name__}: {error}"
            progress(f"{name} failed: {entry['error']}")
        except BaseException as end:
            entry["error"] = f"broken off: {type(end).__name__}"
            raise
        finally:
            self.save()
