"""Results of the benchmarks: the schema, the files that are saved after every part, and the common options.

A result file is a JSON object of results by the name of their part. :func:`read_results` and :class:`ResultFile` are
its only reader and writer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

import msgspec

from benchmarks.report.units import UNITS, by_name


class Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One measurement: its subject, how and where it was made, and the figures.

    ``measures``: the subject, in a sentence. ``command`` makes the same figures again; ``revision``: the commit that
    it ran on, "" where that is not known; ``machine``: cores, versions, load average at the start; ``quick``: the short
    form. ``rows``: the figures of one table; ``values``: parameters, and figures of the measurement as a whole.
    ``units``: the unit of each figure by its name; a figure without one has that of the nearest name around it.
    """

    measures: str
    command: str
    revision: str
    machine: dict[str, Any]
    units: dict[str, str] = {}
    quick: bool = False
    seed: int | None = None
    rows: list[dict[str, Any]] = []
    values: dict[str, Any] = {}

    @classmethod
    def of(
        cls, measures: str, figures: Mapping[str, Any], *, quick: bool = False, units: Mapping[str, str] | None = None
    ) -> Self:
        """Return a result of the command that runs.

        Parameters
        ----------
        measures
            The subject.
        figures
            ``rows`` (the list itself, which may grow), ``seed`` and ``machine`` where there are any, and values.
        quick
            Whether it is the short form.
        units
            Figures whose unit is not that of :data:`benchmarks.report.units.UNITS`: names by unit.
        """
        values = dict(figures)
        return cls(
            measures=measures,
            command=_command_line(),
            revision=revision(),
            machine=values.pop("machine", None) or machine(),
            units=UNITS | by_name(units or {}),
            quick=quick,
            seed=values.pop("seed", None),
            rows=values.pop("rows", []),
            values=values,
        )

    def figures(self) -> dict[str, Any]:
        """Return everything that a report reads, in one mapping."""
        fields = {name: getattr(self, name) for name in ("command", "revision", "machine", "quick", "seed", "rows")}
        return {**self.values, **fields}

    def names(self) -> Iterator[list[str]]:
        """Yield the name of every figure, behind those around it."""
        return _names([self.rows, self.values], [])

    def stored(self) -> dict[str, Any]:
        """Return the fields for a file, with the units of the names that occur."""
        occurring = {name for names in self.names() for name in names}
        units = {name: unit for name, unit in self.units.items() if name in occurring}
        return msgspec.structs.asdict(self) | {"units": units}


def _names(value: Any, names: list[str]) -> Iterator[list[str]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _names(each, [*names, str(name)])
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _names(each, names)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield names


def read_results(path: Path | None) -> dict[str, Result]:
    """Return the results of a file by part; {} without a file. ValidationError where it is not of this schema."""
    return msgspec.convert(json.loads(path.read_text()), dict[str, Result]) if path and path.exists() else {}


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


def without_files(arguments: Sequence[str], *names: str) -> list[str]:
    """Return the arguments of a command without the options of these names, whose values are files."""
    return [
        argument
        for before, argument in zip(["", *arguments], arguments, strict=False)
        if argument.partition("=")[0] not in names and before not in names
    ]


def _command_line() -> str:
    """Return the command that runs, as one would type it."""
    spec = sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).name
    return f"python -m {shlex.join([module, *sys.argv[1:]])}"


@cache
def revision() -> str:
    """Return the commit of the working tree, marked where files differ from it; "" outside of a repository."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    except OSError:  # no git
        return ""


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


def write_json(path: Path, figures: object, indent: int | None = 1) -> None:
    """Write figures or results as JSON, the whole file or nothing; its directory is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    separators = (",", ": " if indent else ":")
    partial.write_text(json.dumps(figures, indent=indent, separators=separators, default=Result.stored) + "\n")
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
    if isinstance(value, Result):
        return msgspec.structs.replace(value, rows=rounded(value.rows), values=rounded(value.values))
    return [rounded(each) for each in value] if isinstance(value, list) else value


@dataclass
class ResultFile:
    """Results of one benchmark in a JSON file that is saved after every part, so that a failure loses no other part.

    ``figures`` are new ones beside those in the file. Without a ``path`` they stay in memory.
    """

    path: Path | None
    figures: dict[str, Any] = field(default_factory=dict)
    after_save: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.figures = {**read_results(self.path), **self.figures}

    def save(self) -> None:
        """Write the results."""
        if self.path:
            write_json(self.path, self.figures)
        if self.after_save:
            self.after_save()

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
