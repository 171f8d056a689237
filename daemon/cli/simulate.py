"""Commands ``policies``, ``simulate`` and ``assess``, which need no cluster."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.markup import escape

from rechannel.daemon.assess.assessment import assess
from rechannel.daemon.assess.files import EventLogError
from rechannel.daemon.assess.page import render_page
from rechannel.daemon.assess.result import Verdict
from rechannel.daemon.cli.tables import new_console, new_table, print_assessment
from rechannel.policies.model.arrays import ModelError
from rechannel.policies.registry import installed_policies, known_policies, make_parameters, parameter_types
from rechannel.policies.scenarios.compare import PlacementCost, PolicyResult, compare, cost_of
from rechannel.policies.scenarios.generators import GENERATORS, GeneratorError, Parameter, generate
from rechannel.policies.scenarios.scenario import Scenario, ScenarioError, from_document, to_document
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.printable import with_noun

_ALL = "all"


def show_policies(*, as_json: bool) -> None:
    """Show every policy, and every generator of scenarios, with their parameters."""
    rows: list[dict[str, Any]] = [
        {"name": name, "summary": policy.summary, "source": policy.source, "parameters": _defaults(name)}
        for name, policy in sorted(known_policies().items())
    ]
    generators = [
        {
            "name": name,
            "summary": generator.summary,
            "parameters": {one.name: {"default": one.default, "meaning": one.meaning} for one in generator.parameters},
        }
        for name, generator in GENERATORS.items()
    ]
    if as_json:
        errors = list(installed_policies().errors)
        click.echo(json.dumps({"policies": rows, "generators": generators, "errors": errors}))
        return
    console = new_console()
    table = new_table("policy | what it does | parameters | source", whole=["policy"])
    for one in rows:
        parameters = "\n".join(f"{key}={value}" for key, value in one["parameters"].items())
        table.add_row(*map(escape, (one["name"], one["summary"], parameters, one["source"])))
    console.print(table)
    console.print()
    table = new_table("generator | what it makes | parameters", whole=["generator"])
    for name, generator in GENERATORS.items():
        table.add_row(*map(escape, (name, generator.summary, "\n".join(map(_range, generator.parameters)))))
    console.print(table)
    for error in installed_policies().errors:
        click.echo(f"warning: {error}", err=True)


def compare_policies(*, policy: str, workload: str, settings: Sequence[str], save: str, as_json: bool) -> None:
    """Show what each policy would make of a scenario.

    ``policy``: names separated by commas, or ``all``; ``workload``: file of a scenario, or a generator with its
    parameters; ``settings``: each as POLICY.PARAMETER=VALUE.
    """
    names = _names(policy)
    parameters = _parameters(names, settings)
    scenario = _scenario(workload)
    if save:
        _write(Path(save), msgspec.json.encode(to_document(scenario)) + b"\n")
    rows = compare(scenario, names, parameters, time.perf_counter)
    current = cost_of(scenario, scenario.current)
    if as_json:
        answer = {
            "scenario": scenario.name,
            "executors": scenario.cluster.size,
            "partitions": scenario.workload.partitions,
            "current": dataclasses.asdict(current),
            "policies": [dataclasses.asdict(row) for row in rows],
        }
        click.echo(json.dumps(answer))
        return
    _show(scenario, current, rows)


def assess_logs(paths: Sequence[Path], batches: int, html: Path | None, *, as_json: bool) -> ExitCode:
    """Show what event logs say of each query.

    ``batches``: how many of the newest of a query are assessed, at most; ``html``: page that the result is written to.
    """
    try:
        result = assess(paths, batches)
    except (EventLogError, OSError) as error:
        raise CommandError(ExitCode.REFUSED, str(error)) from error
    if html is not None:
        _write(html, render_page(result).encode())
    if as_json:
        click.echo(msgspec.json.encode(result))
    else:
        print_assessment(result)
    if Verdict.YES in result.verdicts:
        return ExitCode.DONE
    return ExitCode.NOTHING if result.verdicts - {Verdict.NOT_ASSESSABLE} else ExitCode.NOT_READY


def _defaults(policy: str) -> dict[str, Any]:
    values = dataclasses.asdict(known_policies()[policy].parameters())
    return {key: str(value) if value in (math.inf, -math.inf) else value for key, value in values.items()}  # JSON's law


def _range(one: Parameter) -> str:
    bounds = "|".join(one.choices) if one.choices else f"{one.minimum:,} to {one.maximum:,}"
    return f"{one.name}={one.default} ({bounds}): {one.meaning}"


def _names(text: str) -> list[str]:
    existing = sorted(known_policies())
    names = existing if text == _ALL else list(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in existing]
    if unknown:
        raise click.UsageError(
            f"--policy: no policy is called {unknown[0]!r}, there are: {', '.join(existing)}, or all"
        )
    return names


def _parameters(names: Sequence[str], settings: Sequence[str]) -> dict[str, dict[str, object]]:
    values_of: dict[str, dict[str, object]] = {}
    for text in settings:
        path, equals, value = text.partition("=")
        policy, _, key = path.partition(".")
        if not equals or policy not in names:
            raise click.UsageError(f"--set {text}: write POLICY.PARAMETER=VALUE, POLICY one of: {', '.join(names)}")
        values_of.setdefault(policy, {})[key] = _value(policy, key, value)
    for policy, values in values_of.items():
        try:
            make_parameters(known_policies()[policy], values)
        except ModelError as error:
            raise click.UsageError(f"--set {policy}: {error}") from error
    return values_of


def _value(policy: str, key: str, text: str) -> object:
    """Read a parameter by its type: a number, true, none, one of its words, or a JSON list."""
    hints = parameter_types(known_policies()[policy])
    if key not in hints:
        raise click.UsageError(f"--set: policy {policy!r} has no parameter {key!r}, it has: {', '.join(hints)}")
    # As written, in the words that are shown for no value and for no bound, and as JSON.
    readings: tuple[Callable[[], object], ...] = (
        lambda: msgspec.convert({"none": None}.get(text.lower(), text), hints[key], strict=False),
        lambda: msgspec.convert(float(text), hints[key]),
        lambda: msgspec.json.decode(text, type=hints[key]),
    )
    problem: Exception | None = None
    for reading in readings:
        try:
            return reading()
        except ValueError as error:  # what msgspec raises too
            problem = problem or error
    raise click.UsageError(f"--set {policy}.{key}={text}: {problem}")


def _scenario(text: str) -> Scenario:
    """A name of a generator comes first; a file of that name is ``./NAME``."""
    if text.partition(":")[0] in GENERATORS:
        try:
            return generate(text)
        except GeneratorError as error:
            raise click.UsageError(f"--workload: {error}") from error
    try:
        return from_document(msgspec.json.decode(Path(text).read_bytes()))
    except OSError as error:
        why = f"{text}: cannot be read ({error.strerror})"
        raise CommandError(
            ExitCode.REFUSED, f"{why}, and no generator is called so: {', '.join(GENERATORS)}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandError(ExitCode.REFUSED, f"{text}: is not JSON ({error})") from error
    except ScenarioError as error:
        raise CommandError(ExitCode.REFUSED, f"{text}: describes no scenario: {'; '.join(error.problems)}") from error


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise CommandError(ExitCode.REFUSED, f"{path}: cannot be written ({error.strerror})") from error


def _show(scenario: Scenario, current: PlacementCost, rows: Sequence[PolicyResult]) -> None:
    console = new_console()
    stages = scenario.workload.placeable
    partitions = sum(stage.n for stage in stages)
    console.print(
        f"[bold]{escape(scenario.name)}[/bold]: {with_noun(scenario.cluster.size, 'executor')}, "
        f"{with_noun(len(stages), 'stage')} with {partitions:,} partitions, "
        f"{sum(shuffle.summary()[0] for shuffle in scenario.workload.shuffles):,} streams"
    )
    table = new_table(
        "policy | >s/batch | >s/s | >highest load | >spread | >node MB/s | >executor MB/s | >cohesion | >coupling"
        " | >moves | >MiB moved | >took ms",
        whole=["policy"],
    )
    table.add_row("as it is", *_cells(current), "", "", "", style="bold")
    for row in rows:
        if row.figures is None:
            table.add_row(escape(row.policy), *["-"] * 10, f"{row.decision_seconds * 1e3:,.0f}", style="yellow")
            continue
        moved = f"{row.moves:,}", f"{row.bytes_moved / 2**20:,.1f}", f"{row.decision_seconds * 1e3:,.0f}"
        table.add_row(escape(row.policy), *_cells(row.figures), *moved)
    console.print(table)
    for row in rows:
        if row.error:
            console.print(f"{escape(row.policy)} refused: {escape(row.error)}", style="yellow")
        for note in row.notes:
            console.print(f"note of {escape(row.policy)}: {escape(note)}")


def _cells(one: PlacementCost) -> tuple[str, ...]:
    return (
        f"{one.seconds_per_batch:.3f}",
        f"{one.seconds_per_second:.3f}",
        f"{one.highest_utilization:.0%}",
        f"{one.load_spread:.3f}",
        f"{one.inter_node_bytes_per_second / 1e6:,.1f}",
        f"{one.inter_executor_bytes_per_second / 1e6:,.1f}",
        f"{one.cohesion:,.1f}",
        f"{one.coupling:,.1f}",
    )
