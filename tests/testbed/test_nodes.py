from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.node_cluster import NodeCluster, NodeSpec, machine, state
from testbed.processes import ProcessGroup

NODES = {
    name: NodeSpec(name, quota=0.4, speed=speed, link_mbit=100.0) for name, speed in (("node1", 1.0), ("node2", 0.5))
}
ADDRESSES = {"node1": "10.0.0.1", "node2": "10.0.0.2"}


def test_unequal_nodes_get_unequal_shares() -> None:
    assert {name: node.limit for name, node in NODES.items()} == {"node1": 0.4, "node2": 0.2}
    assert NodeSpec("free").limit is None


@pytest.mark.parametrize(
    "wrong", [{"cores": 0}, {"memory_mb": 0}, {"quota": 0.0}, {"quota": 1.0, "speed": 0.0}, {"speed": 2.0}]
)
def test_refuses_impossible_nodes(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="node 'a'"):
        NodeSpec("a", **wrong)  # type: ignore[arg-type]


def test_says_what_is_real() -> None:
    links, quotas = {"node1": 100.0, "node2": 100.0}, {"node1": 0.4, "node2": 0.2}
    statement = state(NODES, ADDRESSES, links=links, quotas=quotas, enforcer="cgroup v1 quota")
    assert statement.network == "namespaces, 100 Mbit/s each way; master and driver have no link of their own"
    assert statement.cpu.startswith("cgroup v1 quota: node1 0.4, node2 0.2 cores, together 0.6 of ")
    assert statement.nodes["node2"] == {
        "address": "10.0.0.2",
        "cores": 1,
        "memory_mb": 1024,
        "quota": 0.2,
        "link_mbit": 100.0,
    }
    assert json.loads(json.dumps(statement.as_dict())) == statement.as_dict()
    partly = state(NODES, ADDRESSES, links={**links, "node2": 1000.0}, quotas={"node1": 0.4})
    assert "node1 100, node2 1000 Mbit/s" in partly.network
    assert "; 1 of 2 nodes are not held" in partly.cpu


def test_says_what_is_not_real() -> None:
    statement = state(NODES, ADDRESSES, links="no root", quotas={})
    assert statement.network == "loopback: links are not shaped (no root)"
    assert statement.cpu.startswith("no quotas (none holds just now): nodes share the machine's ")
    assert statement.nodes["node1"]["link_mbit"] is statement.nodes["node1"]["quota"] is None


def test_the_machine_is_stated() -> None:
    facts = machine()
    assert facts["cores"] >= 1
    assert facts["memory_mb"] > 100
    assert all(facts[name] for name in ("processor", "kernel", "python", "spark"))


def test_without_root_nothing_is_shaped_and_the_statement_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    cluster = NodeCluster(ProcessGroup(tmp_path), tmp_path, [])
    assert cluster.address("hub") == "127.0.0.1"
    assert cluster.statement().network == "loopback: links are not shaped (network namespaces need root)"
    assert cluster.counters() == {}
