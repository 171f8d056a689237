"""Tables of metrics, from which the answers to Prometheus and the documentation are made.

Names begin with ``rechannel_`` and end with their base unit, names of counters with ``_total``. Unknown values have no
sample, because 0 is a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MAX_SERIES = 10_000  # series of one metric; beyond: further label values are left out, and counted
_LONGEST_LABEL = 200
_TOTAL = "_total"
_CLUSTER = "cluster"


@dataclass(frozen=True)
class MetricDefinition:
    """A metric: a counter if its name ends in ``_total``, else a gauge."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``counter`` or ``gauge``."""
        return "counter" if self.name.endswith(_TOTAL) else "gauge"


class MetricSamples:
    """Samples of one answer; the last sample with the same labels wins.

    Every sample also has the label ``cluster``, because one Prometheus may read several clusters.
    """

    def __init__(self, table: Sequence[MetricDefinition], cluster: str) -> None:
        self._cluster = _printable(cluster)
        self.left_out = 0  # samples beyond MAX_SERIES
        self._samples: dict[MetricDefinition, dict[tuple[str, ...], float]] = {item: {} for item in table}

    def set(self, item: MetricDefinition, value: float | None, *labels: str) -> None:
        """Set a sample unless the value is None; KeyError for a metric of another table."""
        samples = self._samples[item]
        if len(labels) != len(item.labels):
            raise ValueError(f"{item.name} has the labels {item.labels}, not {len(labels)}")
        key = tuple(_printable(label) for label in labels)
        if value is None:
            return
        if len(samples) >= MAX_SERIES and key not in samples:
            self.left_out += 1
            return
        samples[key] = float(value)

    def families(self) -> Iterator[Metric]:
        """Yield all metrics of the table, also those without a sample, for Prometheus."""
        for item, samples in self._samples.items():
            kind = CounterMetricFamily if item.kind == "counter" else GaugeMetricFamily
            family = kind(item.name.removesuffix(_TOTAL), item.text, labels=(_CLUSTER, *item.labels))
            for key, value in samples.items():
                family.add_metric((self._cluster, *key), value)
            yield family


def _printable(label: str) -> str:
    return label[:_LONGEST_LABEL].encode("utf-8", "replace").decode()
