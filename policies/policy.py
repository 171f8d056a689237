"""Protocol of a placement policy, and the checks that parameters of policies share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rechannel.policies.model.arrays import ModelError
from rechannel.policies.model.cluster import Cluster
from rechannel.policies.model.placement import Placement, PolicyAnswer
from rechannel.policies.model.workload import Workload

Objective = tuple[float, ...]
"""Numbers that a policy minimizes, compared entry by entry."""


class Policy(Protocol):
    """A placement policy: decides which executor holds which partition.

    Both methods are pure: the same arguments give the same answer, without a clock, input, output or unseeded
    randomness. The arrays of their arguments are read-only. ``docs/writing-a-policy.md`` shows a complete policy.
    """

    @property
    def name(self) -> str:
        """Name in the settings and on the command line: lower case letters, digits and dashes."""

    @property
    def summary(self) -> str:
        """One sentence for ``rechannel policies``."""

    @property
    def source(self) -> str:
        """Publication that the policy comes from, or its author."""

    @property
    def parameters(self) -> type[Any]:
        """Frozen dataclass of the parameters, each with a default.

        It raises ``ModelError`` for impossible values.
        """

    def place(self, cluster: Cluster, workload: Workload, current: Placement, parameters: Any, /) -> PolicyAnswer:
        """Propose an available executor for every partition of ``workload.placeable``.

        Partitions of ``current`` may be on no executor, or on an unavailable one. Raises ``ScaleOutError`` where the
        available executors cannot take the work.
        """

    def objective(self, cluster: Cluster, workload: Workload, placement: Placement, parameters: Any, /) -> Objective:
        """Measure a placement; smaller is better, and the first entry that differs decides."""


@dataclass(frozen=True)
class FunctionPolicy:
    """Policy made of two functions, as the built-in ones are.

    ``scheduler`` proposes an answer; it is called only where there are partitions to place and available executors.
    ``measure`` is the objective. The other fields are those of :class:`Policy`.
    """

    name: str
    scheduler: Callable[[Cluster, Workload, Placement, Any], PolicyAnswer]
    measure: Callable[[Cluster, Workload, Placement, Any], Objective]
    parameters: type[Any]
    summary: str
    source: str = ""

    def place(
        self, cluster: Cluster, workload: Workload, current: Placement, parameters: Any = None, /
    ) -> PolicyAnswer:
        """See :class:`Policy`; the default parameters for None.

        Raises ``ModelError`` where the arguments do not fit together, ``ScaleOutError`` where no executor is available.
        """
        current.validate(cluster, workload)
        if not workload.partitions:
            return PolicyAnswer(current, ("no stage has partitions to place",))
        cluster.check_available(workload.partitions)
        return self.scheduler(cluster, workload, current, parameters or self.parameters())

    def objective(
        self, cluster: Cluster, workload: Workload, placement: Placement, parameters: Any = None, /
    ) -> Objective:
        """See :class:`Policy`; the default parameters for None."""
        return self.measure(cluster, workload, placement, parameters or self.parameters())


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise ``ModelError`` unless a parameter is one of ``choices``."""
    if value not in choices:
        raise ModelError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_number(
    name: str, value: object, minimum: float, maximum: float = math.inf, *, above: bool = False, finite: bool = False
) -> None:
    """Raise ``ModelError`` unless a parameter is a number from ``minimum`` to ``maximum``.

    ``above`` refuses ``minimum`` itself, ``finite`` infinity.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool) and not (finite and value == math.inf)
    if not number or not minimum <= float(value) <= maximum or (above and value == minimum):  # type: ignore[arg-type]
        upper = "" if maximum == math.inf else f" to {maximum:g}"
        raise ModelError(f"{name}: expected a number {'above' if above else 'from'} {minimum:g}{upper}, got {value!r}")


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raise ``ModelError`` unless a parameter is None or a whole number from ``minimum``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and (not whole or value < minimum):  # type: ignore[operator]
        raise ModelError(f"{name}: expected None or a whole number from {minimum}, got {value!r}")
