"""Ratios of each variant over Spark as it is, and their noise, over all sessions. Pure.

A phase in which nothing moved is Spark as it is, whether nobody was asked or a way found nothing to move. Every other
is divided by what those before and after it say for its place: on a line between their logarithms, so that what slowly
changes over a session (code that is compiled, other work) is nobody's merit. The same is done with every such phase
that has one on either side: what comes of those is chance, since nothing differs. Their mean square, over all sessions,
is the noise of a metric, and Student's distribution makes intervals of it.
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.live.situations import Shape
from benchmarks.live.variants import SPARK
from benchmarks.report.numbers import student

METRICS: dict[str, str] = {
    "mean": "mean batch",
    "soon": "first batches after the moves",
    "p99": "p99 batch",
    "throughput": "throughput",
    "bytes_per_row": "bytes sent",
    "cpu_spread": "CPU spread",
    "memory_spread": "memory spread",
    "all": "mean batch since the event",
    "longest": "longest batch (moves included)",
}
"""Figure of a phase -> what a table calls it."""

BETTER = {"throughput": 1}
"""Where more is better; elsewhere less is."""

# Of middle turns that follow each other and so share turns: v - (u + w) / 2 of equal independent ones.
_NEXT, _NEXT_BUT_ONE = -2 / 3, 1 / 6
_SENTENCES = {
    "quota": "{:g} cores a node",
    "link": "{:g} Mbit/s",
    "partitions": "{} partitions",
    "rootless": "rootless",
    "speeds": "speeds {}",
    "interval": "a batch every {:g} s",
}


@dataclass(frozen=True)
class Noise:
    """Standard error of one turn's log ratio where nothing differs.

    ``ratios``: of the turns that it was made of, by what their session is called; ``freedom``: the degrees of freedom
    that these have.
    """

    error: float
    freedom: float
    ratios: tuple[tuple[str, float], ...] = ()

    @property
    def count(self) -> int:
        """Number of turns behind it."""
        return len(self.ratios)

    def reach(self, sessions: int) -> float:
        """Return by what factor chance alone (95 %) moves a mean ratio of so many sessions; infinite if not known."""
        if self.freedom < 1:
            return math.inf
        return math.exp(min(50.0, student(int(self.freedom)) * self.error / math.sqrt(sessions)))


@dataclass(frozen=True)
class Cell:
    """A way's figure over Spark's: geometric mean, least and most over sessions; ``reach`` by what chance moves it."""

    middle: float
    least: float
    most: float
    sessions: int
    reach: float

    @property
    def in_noise(self) -> bool:
        """Whether it may be chance: the interval has 1 in it, or sessions do not agree on the side."""
        return self.least <= 1 <= self.most or 1 / self.reach <= self.middle <= self.reach


def group(sessions: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the sessions that count by what they are called: those with an equal input on equal nodes together."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for session in sessions:
        if not _flaw(session):
            key = [session[name] for name in ("situation", "workload", "shape", "input", "lengths")] + _bed(session)
            alike.setdefault(json.dumps(key, sort_keys=True), []).append(session)
    by_label: dict[str, list[list[dict[str, Any]]]] = {}
    for sessions in alike.values():
        by_label.setdefault(_label(sessions[0]), []).append(sessions)
    named = {}
    for label, groups in by_label.items():
        details = [_detail(sessions[0]) for sessions in groups]
        differing = [name for name in details[0] if len({detail[name] for detail in details}) > 1]
        for sessions, detail in zip(groups, details, strict=True):
            full = ", ".join([label, *(detail[name] for name in differing)])
            while full in named:
                full += ", others"
            named[full] = sessions
    return named


def in_full(session: Mapping[str, Any]) -> str:
    """Return what a session is called, with all of its input, however long its turns are."""
    return ", ".join([_label(session), *(text for name, text in _detail(session).items() if name != "after")])


def left_out(sessions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return which sessions and phases do not count, and why."""
    flaws = []
    for session in sessions:
        name = f"{session['situation']}, {session['workload']}, seed {session['seed']}"
        if flaw := _flaw(session):
            flaws.append(f"{name}: {flaw}")
        for phase in session.get("phases", ()):
            if "error" in phase:
                flaws.append(f"{name}, run {phase['turn'] + 1}, {phase['way']}: {_first_line(phase['error'])}")
    return flaws


def noise(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Noise]:
    """Return the noise of every metric, over all sessions."""
    by_metric = {}
    for metric in METRICS:
        ratios: list[tuple[str, float]] = []
        freedom = 0.0
        for label, session in ((label, session) for label, sessions in groups.items() for session in sessions):
            places = _places([each for each in session["figures"] if still(each)], metric)
            count = max(0, len(places) - 2)
            for at in range(1, count + 1):
                before, (place, value), after = places[at - 1 : at + 2]
                ratios.append((label, value / math.exp(_between([before, after], place))))
            if count:  # Satterthwaite's, of correlated squares
                pairs = count + 2 * (count - 1) * _NEXT**2 + 2 * max(0, count - 2) * _NEXT_BUT_ONE**2
                freedom += count**2 / pairs
        squares = [math.log(ratio) ** 2 for _, ratio in ratios]
        by_metric[metric] = Noise(math.sqrt(statistics.fmean(squares)) if squares else math.nan, freedom, tuple(ratios))
    return by_metric


def still(phase: Mapping[str, Any]) -> bool:
    """Whether nothing was moved in it, so that it was Spark as it is."""
    return phase["way"] == SPARK.name or not phase["moves"]


def table(sessions: Sequence[Mapping[str, Any]], noises: Mapping[str, Noise]) -> dict[str, dict[str, Cell]]:
    """Return cells by way and metric, of all ways but Spark."""
    logs: dict[str, dict[str, list[float]]] = {}
    for session in sessions:
        ways = dict.fromkeys(each["way"] for each in session["figures"] if each["way"] != SPARK.name)
        for metric in noises:
            for way in ways:
                own = _places([each for each in session["figures"] if each["way"] == way], metric)
                spark = _places([each for each in session["figures"] if still(each) and each["way"] != way], metric)
                if spark and own:
                    mean = statistics.fmean(math.log(value) - _between(spark, place) for place, value in own)
                    logs.setdefault(way, {}).setdefault(metric, []).append(mean)
    return {
        way: {
            metric: Cell(
                math.exp(statistics.fmean(values)),
                math.exp(min(values)),
                math.exp(max(values)),
                len(values),
                noises[metric].reach(len(values)),
            )
            for metric, values in by_metric.items()
        }
        for way, by_metric in logs.items()
    }


def _flaw(session: Mapping[str, Any]) -> str:
    """Return why a session does not count, "" if it does."""
    if "error" in session:
        return _first_line(session["error"])
    if not any(each["way"] == SPARK.name for each in session.get("figures", ())):
        return f"no run of {SPARK.name} was measured"
    return "" if session.get("exact") else "its output was not exact"


def _label(session: Mapping[str, Any]) -> str:
    """Return situation and workload, and whatever else is unlike the usual."""
    usual = asdict(Shape())
    shape = {key: value for key, value in session["shape"].items() if _plain(value) != _plain(usual.get(key))}
    details = [_SENTENCES[key].format(_plain(value)) for key, value in shape.items() if key in _SENTENCES]
    return ", ".join([session["situation"], session["workload"], *details])


def _detail(session: Mapping[str, Any]) -> dict[str, str]:
    """Return in words what sessions with the same label may differ by."""
    source = session["input"]
    return {
        "rows": f"{source['rows']:,} rows",
        "keys": f"{source['keys']:,} keys",
        "skew": f"skew {source['skew']:g}",
        "after": f"{session['lengths']['after']} batches",
    }


def _bed(session: Mapping[str, Any]) -> list[object]:
    """Return the machine, and what holds its nodes to their links and quotas."""
    bed = session["testbed"]
    return [{name: bed["machine"][name] for name in ("processor", "cores", "spark")}, bed["network"], bed["cpu"]]


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0]


def _plain(value: object) -> object:
    if isinstance(value, list | tuple):
        return "/".join(f"{each:g}" for each in value)
    return value


def _places(phases: Sequence[Mapping[str, Any]], metric: str) -> list[tuple[int, float]]:
    """Return (place in the session, figure) of the phases that have one."""
    figures = [(each["turn"], each.get(metric)) for each in phases]
    return [(turn, value) for turn, value in figures if value is not None and not math.isnan(value) and value > 0]


def _between(places: Sequence[tuple[int, float]], place: int) -> float:
    """Return the logarithm that known places have for another: on a line, or that of the nearest."""
    at = bisect([each for each, _ in places], place)
    if at in (0, len(places)):
        return math.log(places[min(at, len(places) - 1)][1])
    (first, low), (last, high) = places[at - 1], places[at]
    share = (place - first) / (last - first)
    return math.log(low) * (1 - share) + math.log(high) * share
