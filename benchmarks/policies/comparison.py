"""Every policy on every generator: the cost of its placements, beside the lower bound."""

from __future__ import annotations

import inspect
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from benchmarks.report.results import machine, progress
from rechannel.policies.adaptive.lower_bounds import certified_bound
from rechannel.policies.registry import POLICIES
from rechannel.policies.scenarios.compare import PolicyResult, compare, cost_of
from rechannel.policies.scenarios.generators import GENERATORS, generate

CURRENT = "current"
"""Stands for the placement that the generator starts from."""

EAGER = "adaptive, min_step=0"
"""``adaptive`` as it is where moves need save nothing but some time."""

_NEXT_PARAMETER = re.compile(r"(?<=\.) (?=(?:`\w+`(?:, | and )?)+: )")
_DEVIATES = re.compile(r"(?i)deviation|choice|paper|storm|twister2")


def describe() -> list[dict[str, Any]]:
    """Return each policy's description in registry and modules, and its default parameters."""
    policies = []
    for entry in POLICIES.values():
        defaults = entry.parameters()
        module = _paragraphs(sys.modules[entry.scheduler.__module__].__doc__)
        function = _paragraphs(entry.scheduler.__doc__)
        deviations = [text for text in module[1:] if text.startswith("Deviation")]
        if entry.source != POLICIES["adaptive"].source:
            deviations += [text for text in function[1:] if _DEVIATES.search(text) and not text.startswith("Raises")]
        policies.append(
            {
                "name": entry.name,
                "summary": entry.summary,
                "source": entry.source,
                "parameters": {field.name: _plain(getattr(defaults, field.name)) for field in fields(defaults)},
                "meaning": _meaning(entry.parameters.__doc__),
                "deviations": deviations,
            }
        )
    return policies


def measure(seeds: Sequence[int], names: Sequence[str] = ()) -> dict[str, Any]:
    """Rows of generator, seed and policy; ``names``: only these generators."""
    began, rows = machine(), []
    for name in names or GENERATORS:
        for seed in seeds:
            progress(f"compare: {name}, seed {seed}")
            rows += _rows(name, seed)
    return {
        "machine": began,
        "seeds": list(seeds),
        "generators": {
            name: {"summary": one.summary, "parameters": {each.name: each.default for each in one.parameters}}
            for name, one in GENERATORS.items()
            if not names or name in names
        },
        "rows": rows,
    }


def _rows(name: str, seed: int) -> list[dict[str, Any]]:
    scenario = generate(f"{name}:seed={seed}")
    same = {"generator": name, "seed": seed, "bound": certified_bound(scenario.cluster, scenario.workload)}
    current = PolicyResult(CURRENT, cost_of(scenario, scenario.current), 0, 0.0, 0.0)
    own, *others = compare(scenario, list(POLICIES), {}, time.process_time)
    (eager,) = compare(scenario, ["adaptive"], {"adaptive": {"min_step": 0.0}}, time.process_time)
    return [{**same, **_row(each)} for each in (current, own, replace(eager, policy=EAGER), *others)]


def _row(result: PolicyResult) -> dict[str, Any]:
    row = asdict(result)
    row["seconds"] = row.pop("decision_seconds")
    del row["notes"]
    return row


def _plain(value: object) -> object:
    return "unlimited" if isinstance(value, float) and math.isinf(value) else value


def _meaning(text: str | None) -> list[str]:
    """Return the description of a class of parameters without its first words, which name the policy.

    With an item of a list for each parameter.
    """
    first, *rest = _paragraphs(text)
    first = re.sub(r"^Settings of `[\w-]+`[.:;]? ?", "", first)
    rest = ["* " + _NEXT_PARAMETER.sub("\n* ", part) if part.startswith("`") else part for part in rest]
    return [part for part in (first[:1].upper() + first[1:], *rest) if part]


def _paragraphs(text: str | None) -> list[str]:
    """Paragraphs on one line each, in Markdown instead of reStructuredText."""
    paragraphs = [" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n")]
    paragraphs = [re.sub(r":[a-z]+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", part) for part in paragraphs if part]
    return [part.replace("``", "`") for part in paragraphs]
