"""Standing orders: the drained nodes and the pause, signed, for links to obey at any time.

They live without an end in Redis, in the leader's memory, and in every link that obeys them, which reports them with
their signature: a restarted controller knows them even if Redis was emptied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import structlog

from rechannel.conf.duration import TEN_YEARS
from rechannel.daemon.control.leadership import LeaderContext
from rechannel.migration.moves import units_steered_away
from rechannel.wire import keys
from rechannel.wire.commands import Drain
from rechannel.wire.envelope import Envelope, MessageError, decode
from rechannel.wire.exit_codes import CommandError, ExitCode
from rechannel.wire.keys import KeyNameError
from rechannel.wire.messages import DrainedNode, LinkReport, StandingOrders
from rechannel.wire.redis.errors import StoreError

_UNKNOWN = (
    "the standing orders in Redis are signed by a key that this controller does not trust, so it is unknown what is "
    "drained: everything is paused, and the orders stay unchanged. Name the bundle with the old key in "
    "signing.public_key_file and restart, or order what is to hold (`rechannel drain`); then `rechannel resume`"
)
_AGENT_FRESH = 60.0  # seconds within which a running agent reports


class StandingOrderStore:
    """The drains of one cluster, as the leader knows them."""

    def __init__(self, context: LeaderContext) -> None:
        self.drains: dict[str, DrainedNode] = {}
        self._context = context
        self._version = (0, 0)  # epoch and sequence of the newest orders read or written
        self._published = False  # whether Redis has held this controller's orders since the start
        self._untrusted: Envelope | None = None  # orders in Redis that are signed by another key, not replaced yet
        self._log = structlog.get_logger("rechannel.controller")

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that are to hold no state."""
        return frozenset(self.drains)

    def restore(self, reports: Mapping[str, LinkReport]) -> bool:
        """Take over the newest orders in Redis, in the links, or in this controller.

        Returns whether everything is to be paused: because links say so and Redis has older orders or none, or because
        the orders in Redis can be neither believed nor replaced (`_is_untrusted`).
        """
        stored = self._context.store.get(keys.ORDERS)
        paused = False
        for envelope in self._signed_orders(stored, reports.values()):
            version = (envelope.epoch, envelope.sequence)
            if version > self._version and isinstance(envelope.body, StandingOrders):
                self._version = version
                self.drains = {drain.node: drain for drain in envelope.body.drains}
                paused = envelope.body.paused and envelope is not stored
        if self._is_untrusted(stored):
            self._untrusted = stored
            self._log.error("orders-unknown", sentence=_UNKNOWN)
            return True
        return paused

    def _is_untrusted(self, stored: Envelope | None) -> bool:
        """Return whether Redis has orders of an unknown key, and no link reported any.

        This happens if the signing key was changed and signing.public_key_file lacks the old one. The orders are left
        to the links, which may know that key; nothing is decided until an operator gives an order.
        """
        return (
            not self._published
            and self._version == (0, 0)
            and stored is not None
            and bool(stored.signature)
            and stored.body != StandingOrders()  # empty orders can be replaced
            and not self._context.signer.is_trusted(stored)
        )

    def _signed_orders(self, stored: Envelope | None, reports: Iterable[LinkReport]) -> Iterable[Envelope]:
        candidates = [stored]
        for text in {report.standing_orders for report in reports if report.standing_orders}:
            try:
                candidates.append(decode(text.encode(), cluster=self._context.envelopes.cluster))
            except MessageError as error:
                self._log.warning("orders-rejected", sentence=str(error))
        for envelope in candidates:
            if envelope is None:
                continue
            if self._context.signer.is_trusted(envelope):
                yield envelope
            else:
                self._log.warning("orders-rejected", sentence="standing orders were not signed by this cluster's key")

    def publish(self) -> None:
        """Publish the orders and the pause for the links, unless they stand in Redis already."""
        lead = self._context.lead
        body = StandingOrders(paused=lead.paused, drains=[self.drains[node] for node in sorted(self.drains)])
        present = self._context.store.get(keys.ORDERS)
        if self._untrusted is not None and present == self._untrusted and body == StandingOrders(paused=True):
            return  # no order was given since
        self._untrusted, self._published = None, True
        trusted = present is not None and self._context.signer.is_trusted(present)
        if present is not None and trusted and present.body == body and present.epoch == lead.epoch:
            return
        if present is None and body == StandingOrders() and self._version == (0, 0):
            return  # no order was ever given
        envelope = self._context.put_signed(keys.ORDERS, body, ttl=TEN_YEARS)
        self._version = (envelope.epoch, envelope.sequence)

    def check_drain(self, nodes: Collection[str], reports: Mapping[str, LinkReport]) -> None:
        """Raise CommandError if a node is unknown, or an application had no executor left.

        A node is known by an executor, or before it has any by its agent.
        """
        hosts = {info.node_name for report in reports.values() for info in report.executors}
        for node in sorted(set(nodes) - hosts - self.nodes) or ([] if nodes else [""]):
            if not self._has_agent(node):
                names = ", ".join(sorted(hosts)) or "none, as no application reports an executor"
                raise CommandError(
                    ExitCode.REFUSED,
                    f"unknown node {node}; known are {names}. A node without executors can be drained in advance once "
                    f"its agent reports: `rechannel agent --node {node or 'NAME'}` there",
                )
        stuck = apps_without_target(reports, self.nodes | set(nodes))
        if stuck:
            others = ", ".join(sorted(self.nodes - set(nodes)))
            raise CommandError(
                ExitCode.REFUSED,
                f"draining {', '.join(sorted(nodes))} leaves {', '.join(stuck)} no executor to move to: add a node "
                f"first{f', or undrain {others}' if others else ''}",
            )

    def _has_agent(self, node: str) -> bool:
        try:
            newest = self._context.store.last(keys.WINDOWS, node, 1)
        except KeyNameError:
            return False  # a name that no agent can report under
        return bool(newest) and newest[-1].time >= self._context.clock.wall() - _AGENT_FRESH

    def drain(self, command: Drain, *, user: str, reason: str) -> None:
        """Order that nodes are to hold no state, or change the order, and publish it."""
        now = self._context.clock.wall()
        drains = dict(self.drains)
        for node in command.nodes:
            before = self.drains.get(node)
            drains[node] = DrainedNode(
                node=node,
                since=before.since if before is not None and before.remove == command.remove else now,
                user=user,
                reason=reason,
                remove=command.remove,
                deadline=now + command.deadline if command.deadline else 0.0,
            )
        self._replace(drains)

    def undrain(self, nodes: Collection[str]) -> None:
        """Let nodes hold state again, and publish that."""
        self._replace({node: drain for node, drain in self.drains.items() if node not in nodes})

    def _replace(self, drains: dict[str, DrainedNode]) -> None:
        before, self.drains = self.drains, drains
        try:
            self.publish()
        except StoreError:
            self.drains = before  # the request is read again later
            raise


def partitions_on(report: LinkReport, nodes: Iterable[str]) -> dict[str, int]:
    """Count an application's partitions on each of these nodes."""
    hosts = {info.executor: info.node_name for info in report.executors}
    steered_away = units_steered_away(report.moves, hosts)
    count = dict.fromkeys(nodes, 0)
    for query in report.queries:
        for stage in query.stages if query.active else ():
            for partition, executor in enumerate(stage.placement):
                node = hosts.get(executor, "")
                if node in count and (query.query, stage.stage, partition) not in steered_away:
                    count[node] += 1
    return count


def apps_without_target(reports: Mapping[str, LinkReport], nodes: Collection[str]) -> list[str]:
    """Return the applications that a drain of these nodes leaves without an executor."""
    return sorted(
        name
        for name, report in reports.items()
        if any(partitions_on(report, nodes).values()) and {info.node_name for info in report.executors} <= set(nodes)
    )
