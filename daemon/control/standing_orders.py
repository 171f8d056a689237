"""The standing orders: which nodes are drained, and whether all is paused; signed, for links to obey at any time.

They live in Redis without an end, in the leader's memory, and in every link that obeys them, which reports them with
their signature: so a restarted controller knows them even where Redis was emptied meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import structlog

from rechannel.wire import keys
from rechannel.wire.envelope import Envelope, EnvelopeFactory, MessageError, decode
from rechannel.wire.keys import KeyNameError
from rechannel.wire.messages import Drain, LinkReport, StandingOrders
from rechannel.wire.redis.store import Store
from rechannel.wire.signing import Signer

_UNKNOWN = (
    "the standing orders in Redis are signed by a key that this controller does not trust, so nobody knows what is "
    "drained: all is paused, and they are left as they are. Name the bundle with the old key in "
    "signing.public_key_file and restart, or order what is to hold (`rechannel drain`); then `rechannel resume`"
)
_AGENT_HEARD = 60.0  # seconds in which an agent reports that runs
_LIFE = 3650 * 86_400.0  # seconds; they hold until something else is said


class StandingOrderStore:
    """The drains of one cluster, as the leader knows them. ``clock`` in seconds since the epoch."""

    def __init__(self, store: Store, signer: Signer, author: EnvelopeFactory, clock: Callable[[], float]) -> None:
        self.drains: dict[str, Drain] = {}
        self._store = store
        self._signer = signer
        self._author = author
        self._clock = clock
        self._known = (0, 0)  # epoch and sequence of what we know
        self._settled = False  # whether what stands in Redis was ours, or was made so, since the start
        self._left: Envelope | None = None  # what stands there, signed by a key that is not trusted: not replaced yet
        self._log = structlog.get_logger("rechannel.controller")

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that are to hold no state."""
        return frozenset(self.drains)

    def adopt(self, reports: Mapping[str, LinkReport]) -> bool:
        """Take over the newest orders that anybody holds: Redis, the links, or we ourselves.

        Returns whether all is to be paused because links say so, and what Redis has is older or nothing; or because
        what Redis has can be neither believed nor thrown away: see `_unknown`.
        """
        kept = self._store.get(keys.ORDERS)
        paused = False
        for envelope in self._found(kept, reports.values()):
            said = (envelope.epoch, envelope.sequence)
            if said > self._known and isinstance(envelope.body, StandingOrders):
                self._known = said
                self.drains = {drain.node: drain for drain in envelope.body.drains}
                paused = envelope.body.paused and envelope is not kept
        if self._unknown(kept):
            self._left = kept
            self._log.error("orders-unknown", sentence=_UNKNOWN)
            return True
        return paused

    def _unknown(self, kept: Envelope | None) -> bool:
        """Whether Redis has orders of an earlier leader that we cannot check, and nobody else had any to tell.

        So it is after the signing key was changed where signing.public_key_file does not hold the old one. They are
        left to the links, which may know that key; nothing is decided without them, until an operator says what holds.
        """
        return (
            not self._settled
            and self._known == (0, 0)
            and kept is not None
            and bool(kept.signature)
            and kept.body != StandingOrders()  # nothing would be lost with that
            and not self._signer.is_own_signature(kept)
        )

    def _found(self, kept: Envelope | None, reports: Iterable[LinkReport]) -> Iterable[Envelope]:
        candidates = [kept]
        for text in {report.standing_orders for report in reports if report.standing_orders}:
            try:
                candidates.append(decode(text.encode(), cluster=self._author.cluster))
            except MessageError as error:
                self._log.warning("orders-rejected", sentence=str(error))
        for envelope in candidates:
            if envelope is None:
                continue
            if self._signer.is_own_signature(envelope):
                yield envelope
            else:
                self._log.warning("orders-rejected", sentence="standing orders were not signed by this cluster's key")

    def publish(self, paused: bool, epoch: int) -> None:
        """Put the orders where the links look, unless they stand there already."""
        body = StandingOrders(paused=paused, drains=[self.drains[node] for node in sorted(self.drains)])
        found = self._store.get(keys.ORDERS)
        if self._left is not None and found == self._left and body == StandingOrders(paused=True):
            return  # nobody has ordered anything yet
        self._left, self._settled = None, True
        ours = found is not None and self._signer.is_own_signature(found)
        if found is not None and ours and found.body == body and found.epoch == epoch:
            return
        if found is None and body == StandingOrders() and self._known == (0, 0):
            return  # nothing was ever ordered
        envelope = self._author.envelope(body, ttl=_LIFE, epoch=epoch)
        self._known = (epoch, envelope.sequence)
        self._store.put(keys.ORDERS, "", self._signer.sign(envelope))

    def examine(self, nodes: Collection[str], reports: Mapping[str, LinkReport]) -> None:
        """Raise ValueError where a node is known to nobody, or an application would have no executor left to move to.

        A node is known by an executor, or before it has any by its agent.
        """
        hosts = {info.host for report in reports.values() for info in report.executors}
        for node in sorted(set(nodes) - hosts - self.nodes) or ([] if nodes else [""]):
            if not self._has_agent(node):
                known = ", ".join(sorted(hosts)) or "none, as no application reports an executor"
                raise ValueError(
                    f"unknown node {node}; known are {known}. A node without executors can be drained in advance once "
                    f"its agent reports: `rechannel agent --node {node or 'NAME'}` there"
                )
        stuck = stranded(reports, self.nodes | set(nodes))
        if stuck:
            others = ", ".join(sorted(self.nodes - set(nodes)))
            raise ValueError(
                f"draining {', '.join(sorted(nodes))} leaves {', '.join(stuck)} no executor to move to: add a node "
                f"first{f', or undrain {others}' if others else ''}"
            )

    def _has_agent(self, node: str) -> bool:
        try:
            newest = self._store.last(keys.WINDOWS, node, 1)
        except KeyNameError:
            return False  # a name that no agent can report under
        return bool(newest) and newest[-1].time >= self._clock() - _AGENT_HEARD

    def drain(self, node: str, *, user: str, reason: str, remove: bool, patience: float) -> Drain:
        """Order that a node is to hold no state; said again, it changes what is asked for. ``patience`` in seconds."""
        now = self._clock()
        known = self.drains.get(node)
        self.drains[node] = Drain(
            node=node,
            since=known.since if known is not None and known.remove == remove else now,
            user=user,
            reason=reason,
            remove=remove,
            deadline=now + patience if patience else 0.0,
        )
        return self.drains[node]

    def undrain(self, node: str) -> bool:
        """Let a node hold state again; False if it was not drained."""
        return self.drains.pop(node, None) is not None


def left_on(report: LinkReport, nodes: Iterable[str]) -> dict[str, int]:
    """Count the partitions that an application still has on each of these nodes.

    One that was steered away while its query is idle does not count: its state is durable, and nothing is to come.
    """
    hosts = {info.executor: info.host for info in report.executors}
    gone = {
        (view.query, view.stage, view.partition)
        for view in report.moves
        if view.state == "released_idle" and view.target in hosts
    }
    count = dict.fromkeys(nodes, 0)
    for query in report.queries:
        for stage in query.stages if query.active else ():
            for partition, executor in enumerate(stage.placement):
                node = hosts.get(executor, "")
                if node in count and (query.query, stage.stage, partition) not in gone:
                    count[node] += 1
    return count


def stranded(reports: Mapping[str, LinkReport], nodes: Collection[str]) -> list[str]:
    """Return the applications that would have state and no executor to hold it, were these nodes drained."""
    return sorted(
        name
        for name, report in reports.items()
        if any(left_on(report, nodes).values()) and {info.host for info in report.executors} <= set(nodes)
    )
