"""What a metric is: its name, kind, labels and meaning, in tables from which pages and answers to Prometheus are made.

Names begin with ``rechannel_``; units are base units and stand at the end; counters end in ``_total``. A value that is
not known has no sample: 0 is a measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

MOST_SERIES = 10_000  # of one metric; what names come in is not ours to say
_LONGEST_LABEL = 200
_TOTAL = "_total"
_CLUSTER = "cluster"


@dataclass(frozen=True)
class MetricDefinition:
    """One metric. ``name`` as Prometheus shows it; a name that ends in ``_total`` is a counter, any other a gauge."""

    name: str
    text: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Counter or gauge."""
        return "counter" if self.name.endswith(_TOTAL) else "gauge"


class MetricSamples:
    """Samples of one answer. Setting the same labels twice keeps the last, so no answer names a series twice.

    Every sample has the label ``cluster`` as well: one Prometheus may see several.
    """

    def __init__(self, table: Sequence[MetricDefinition], cluster: str) -> None:
        self._cluster = _printable(cluster)
        self.left_out = 0  # samples beyond what one metric may have
        self._found: dict[MetricDefinition, dict[tuple[str, ...], float]] = {item: {} for item in table}

    def set(self, item: MetricDefinition, value: float | None, *labels: str) -> None:
        """Set a sample; None sets nothing. KeyError for a metric that is not in the table."""
        found = self._found[item]
        if len(labels) != len(item.labels):
            raise ValueError(f"{item.name} has the labels {item.labels}, not {len(labels)}")
        key = tuple(_printable(label) for label in labels)
        if value is None:
            return
        if len(found) >= MOST_SERIES and key not in found:
            self.left_out += 1
            return
        found[key] = float(value)

    def families(self) -> Iterator[Metric]:
        """Yield what Prometheus' client writes out, in the order of the table; metrics without a sample too."""
        for item, samples in self._found.items():
            kind = CounterMetricFamily if item.kind == "counter" else GaugeMetricFamily
            family = kind(item.name.removesuffix(_TOTAL), item.text, labels=(_CLUSTER, *item.labels))
            for key, value in samples.items():
                family.add_metric((self._cluster, *key), value)
            yield family


def markdown(table: Iterable[MetricDefinition]) -> str:
    """Return the table in Markdown, as it stands in ``docs/metrics.md``."""
    lines = ["| metric | kind | labels | what it says |", "| --- | --- | --- | --- |"]
    for item in table:
        labels = ", ".join(f"`{label}`" for label in item.labels)
        lines.append(f"| `{item.name}` | {item.kind} | {labels} | {item.text} |")
    return "\n".join(lines) + "\n"


def _printable(label: str) -> str:
    return label[:_LONGEST_LABEL].encode("utf-8", "replace").decode()
