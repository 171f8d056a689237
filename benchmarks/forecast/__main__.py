"""Measure the forecast on made-up loads: ``python -m benchmarks.forecast``; prints the table of docs/forecast.md.

Each kind of load is made many times over by a seed. A trial is 32 partitions of one stage over some slots; the
forecast sees all but the last few, and is held against those. A placement by load alone (largest partition first, to
the least loaded of four executors) is made of the last values and of the forecast, and both are held against the load
that came: by how much the most loaded executor has more than the mean.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.policies.measure import timed
from benchmarks.report.results import Result, ResultFile, argument_parser
from benchmarks.report.templates import table
from rechannel.policies.analysis.forecast import look_ahead, slots_ahead
from rechannel.policies.model.arrays import FloatArray

_PARTITIONS, _EXECUTORS, _SLOTS, _WANTED = 32, 4, 21, 40
HEAD = "load | partitions with a forecast | error over the last value's | uneven by last values | by forecast"
_Kind = Callable[[np.random.Generator, FloatArray], FloatArray]


def _drift(random: np.random.Generator, moment: FloatArray) -> FloatArray:
    return np.asarray(1 + moment * random.uniform(-0.03, 0.06, _PARTITIONS))


def _walk(random: np.random.Generator, moment: FloatArray) -> FloatArray:
    return np.asarray(np.exp(np.cumsum(random.normal(0, 0.07, (len(moment), _PARTITIONS)), axis=0)))


def _drift_that_stops(random: np.random.Generator, moment: FloatArray) -> FloatArray:
    return _drift(random, np.minimum(moment, random.integers(5, len(moment), _PARTITIONS)))


def _steps(random: np.random.Generator, moment: FloatArray) -> FloatArray:
    after = moment >= random.integers(2, len(moment), _PARTITIONS)
    return np.asarray(1.0 + after * random.uniform(-0.7, 1.5, _PARTITIONS))


def _season(random: np.random.Generator, moment: FloatArray) -> FloatArray:
    return np.asarray(1 + 0.5 * np.sin(2 * np.pi * (moment / 6 + random.uniform(0, 1, _PARTITIONS))))


# Factors on the load of each partition by slot, and the share of noise on top.
KINDS: dict[str, tuple[_Kind | None, float]] = {
    "constant": (None, 0.0),
    "noise of 20 %": (None, 0.2),
    "random walk": (_walk, 0.0),
    "drift, noise of 3 %": (_drift, 0.03),
    "drift, noise of 15 %": (_drift, 0.15),
    "drift that stops": (_drift_that_stops, 0.03),
    "one step each": (_steps, 0.03),
    "season of 6 slots": (_season, 0.03),
}


def _load(kind: str, random: np.random.Generator, moment: FloatArray) -> FloatArray:
    """Return the load of each partition by slot, (slots, partitions)."""
    factors, share = KINDS[kind]
    base = 10 * random.lognormal(0, 0.7, _PARTITIONS)
    load = base * (factors(random, moment) if factors else np.ones((len(moment), 1)))
    return np.clip(load * random.normal(1, share, load.shape) if share else load, 0, None)


def _uneven(forecast: FloatArray, actual: FloatArray) -> float:
    """Excess of the most loaded executor over the mean of the actual load, placed by the forecast."""
    forecast_load, load = np.zeros(_EXECUTORS), np.zeros(_EXECUTORS)
    for partition in np.argsort(forecast)[::-1]:
        executor = int(np.argmin(forecast_load))
        forecast_load[executor] += forecast[partition]
        load[executor] += actual[partition]
    return float(load.max() / load.mean() - 1)


def measure(kind: str, trials: int, seed: int) -> tuple[float, float, float, float]:
    """Return the share of partitions with a forecast, the error over the last value's, and both unevennesses."""
    random = np.random.default_rng(seed)
    ahead = slots_ahead(_SLOTS, _WANTED)
    moment = np.arange(_SLOTS + ahead, dtype=np.float64)[:, None]
    used, forecast_error, last_error = 0, 0.0, 0.0
    uneven = np.zeros(2)
    for _ in range(trials):
        load = _load(kind, random, moment)
        past, actual = load[:_SLOTS], load[_SLOTS:].mean(axis=0)
        outlook = look_ahead(past, ahead)
        used += outlook.used
        forecast_error += float(np.abs(outlook.values - actual).sum())
        last_error += float(np.abs(past[-1] - actual).sum())
        uneven += _uneven(past[-1], actual), _uneven(outlook.values, actual)
    error = forecast_error / last_error if last_error > 1e-6 else 1.0
    return used / (trials * _PARTITIONS), error, uneven[0] / trials, uneven[1] / trials


def main() -> None:
    """Print the table."""
    parser = argument_parser("benchmarks.forecast", "What a forecast is worth.", "a tenth of the trials")
    parser.add_argument("--trials", type=int, metavar="N", default=300, help="of each kind of load (%(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", default=1)
    options = parser.parse_args()
    trials = max(1, options.trials // 10) if options.quick else options.trials
    rows = {kind: measure(kind, trials, options.seed) for kind in KINDS}
    cells = (
        [kind, f"{used:.1%}", f"{error:.2f}", f"{last:.1%}", f"{forecast:.1%}"]
        for kind, (used, error, last, forecast) in rows.items()
    )
    print(table(HEAD, cells))
    past = np.abs(np.random.default_rng(options.seed).normal(10, 2, (24, 100_000)))
    seconds = min(timed(lambda: look_ahead(past, slots_ahead(24, _WANTED)))[0] for _ in range(5))
    print(f"\n100,000 partitions, 24 slots: {1e3 * seconds:.0f} ms of CPU time (best of five)")
    names = ("told", "error_over_last", "uneven_by_last", "uneven_by_forecast")
    kinds = [{"load": kind, **dict(zip(names, row, strict=True))} for kind, row in rows.items()]
    figures = {"rows": kinds, "seed": options.seed, "trials": trials, "seconds": seconds}
    results = ResultFile(options.json)
    results.figures["forecast"] = Result.of("Errors of the forecast on generated loads", figures, quick=options.quick)
    results.save()


if __name__ == "__main__":
    main()
