"""A site of six machines, as its operators would make it: certificates, Redis with sentinels, Spark, and Rechannel.

=========  =====================================================  =====================
machine    services                                               users
=========  =====================================================  =====================
control1   Redis (master), sentinel, controller                   redis, rechannel
control2   Redis (replica), sentinel, controller                  redis, rechannel
worker1-3  Spark worker with one executor core, agent             spark
driver     Spark master, sentinel, the driver of the application  spark, redis, etl
=========  =====================================================  =====================

Rechannel itself is installed by the blocks of `docs/services.md`, word for word; ``editor`` is a program of the site
that writes the configuration which an operator would type.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyspark

from testbed.processes import ROOT, wait_until
from tests.drills.audit import Audit, audit
from tests.machines.app import QUERIES, ROWS_PER_BATCH
from tests.machines.machine import SHARED, Machine, MachineError, Machines, call, checkout_of

CONTROLLERS = ("control1", "control2")
WORKERS = ("worker1", "worker2", "worker3")
DRIVER = "driver"
CLUSTER = "machines"
CHECKOUT = "/usr/local/src/rechannel"
APPLICATION = SHARED / "application"
PATIENCE = 240.0  # seconds for anything to come about
_REDIS, _SENTINEL = 6380, 26379
_REDIS_CLI = "redis-cli --tls --cacert /etc/redis/ca.pem"
_PAGE = ROOT / "docs" / "services.md"
_SENTINELS = ",".join(f"{name}:{_SENTINEL}" for name in (*CONTROLLERS, DRIVER))

_REDIS_CONF = """\
port 0
tls-port {port}
bind 0.0.0.0
protected-mode no
daemonize no
supervised systemd
dir /var/lib/redis
tls-cert-file /etc/redis/tls.crt
tls-key-file /etc/redis/tls.key
tls-ca-cert-file /etc/redis/ca.pem
tls-auth-clients no
tls-replication yes
"""
_DATA_CONF = """\
pidfile /run/redis/redis-server.pid
appendonly yes
aclfile /etc/redis/users.acl
replica-announce-ip {address}
masteruser replica
masterauth replica-password
"""
_SENTINEL_CONF = """\
pidfile /run/sentinel/redis-sentinel.pid
sentinel announce-ip {address}
sentinel monitor rechannel {master} {port} 2
sentinel auth-user rechannel sentinel
sentinel auth-pass rechannel sentinel-password
sentinel down-after-milliseconds rechannel 3000
sentinel failover-timeout rechannel 10000
"""
_USERS = """\
user default off
user admin on >admin-password ~* &* +@all
user replica on >replica-password +psync +replconf +ping
user sentinel on >sentinel-password allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish \
+info +client|setname +client|kill +script|kill
"""
_SPARK_UNIT = """\
[Unit]
After=network-online.target
Wants=network-online.target

[Service]
User=spark
UMask=0000
Environment=JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64 SPARK_LOCAL_DIRS=/var/lib/spark/local
ExecStart=/opt/spark/bin/spark-class org.apache.spark.deploy.{command}
Restart=always
RestartSec=2s
SuccessExitStatus=143

[Install]
WantedBy=multi-user.target
"""
_DRIVER_UNIT = """\
[Unit]
After=network-online.target
Wants=network-online.target

[Service]
User=etl
UMask=0000
Environment=JAVA_HOME=/usr/lib/jvm/java-17-openjdk-amd64 SPARK_HOME=/opt/spark SPARK_LOCAL_HOSTNAME=driver
ExecStart=/opt/rechannel-driver/bin/rechannel submit --master spark://driver:7077 --name application \\
    --conf spark.driver.memory=700m --conf spark.executor.memory=700m --conf spark.executor.cores=1 \\
    --conf spark.sql.shuffle.partitions=6 --conf spark.deploy.maxExecutorRetries=-1 \\
    --conf spark.hadoop.fs.permissions.umask-mode=000 --conf spark.network.timeoutInterval=10s \\
    --conf spark.network.timeout=30s --conf spark.executor.heartbeatInterval=3s \\
    /usr/local/share/application/app.py {directory}
Restart=on-failure
RestartSec=2s

[Install]
WantedBy=multi-user.target
"""


def make_wheels(directory: Path) -> Path:
    """Fill a directory with all wheels that installing needs, as a site's mirror of PyPI holds them."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", str(directory), "-c", "constraints.txt"]
    # The last one is for Debian's Python 3.11.2; the two before it build Rechannel.
    command += [
        ".",
        "./distributions/agent[driver]",
        "setuptools>=77",
        "setuptools-scm>=10",
        "wheel",
        "async-timeout>=4",
    ]
    call(*command, cwd=ROOT)
    for own in directory.glob("rechannel*.whl"):
        own.unlink()
    return directory


def page_blocks(heading: str) -> list[str]:
    """Return the commands of each block below a heading of docs/services.md."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", _PAGE.read_text(), re.DOTALL | re.MULTILINE)
    if section is None:
        raise MachineError(f"docs/services.md has no heading {heading!r}")
    blocks = re.findall(r"(?:^    .*\n)+", section[1], re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()) for block in blocks]


class Site(contextlib.AbstractContextManager["Site"]):
    """All machines and what stands on them. Everything is gone when the block ends."""

    def __init__(self, directory: Path) -> None:
        self.shared = directory / "shared"
        shutil.rmtree(self.shared, ignore_errors=True)
        application = self.shared / "application"
        application.mkdir(parents=True)
        application.chmod(0o777)
        checkout_of(self.shared / "rechannel.git")
        names = (*CONTROLLERS, *WORKERS, DRIVER)
        binds = {Path(pyspark.__file__).parent: "/opt/spark", make_wheels(directory / "wheels"): "/srv/wheels"}
        self._group = Machines(directory, names, self.shared, binds)
        self.machines = self._group.machines
        self.passwords: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._group.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._group.__exit__(*error)

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def each(self, names: tuple[str, ...]) -> Iterator[Machine]:
        """Yield machines by name."""
        yield from (self.machines[name] for name in names)

    # -- what stands before Rechannel is installed --

    def make_certificates(self) -> None:
        """Make an authority, and a certificate for each machine that runs Redis or a sentinel."""
        maker = self["control1"]
        maker.run(
            "mkdir -p /root/ca && cd /root/ca\n"
            "openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=site' -keyout ca.key -out ca.pem"
        )
        authority = (maker.root / "root/ca/ca.pem").read_text()
        for machine in self.machines.values():
            machine.write("/etc/rechannel/ca.pem", authority)
            machine.write("/etc/redis/ca.pem", authority)
            if machine.name in WORKERS:
                continue
            names = f"subjectAltName=DNS:{machine.name},IP:{machine.address}"
            maker.run(
                f"cd /root/ca && openssl req -newkey rsa:2048 -nodes -subj '/CN={machine.name}' "
                "-keyout m.key -out m.csr\n"
                f"openssl x509 -req -in m.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 "
                f"-extfile <(echo '{names}') -out m.crt"
            )
            for kind in ("crt", "key"):
                machine.write(f"/etc/redis/tls.{kind}", (maker.root / f"root/ca/m.{kind}").read_text(), 0o600)

    def start_redis(self) -> None:
        """Start Redis on both controllers' machines, and three sentinels."""
        master = self["control1"]
        for machine in self.each((*CONTROLLERS, DRIVER)):
            if machine.name in CONTROLLERS:
                text = _REDIS_CONF.format(port=_REDIS) + _DATA_CONF.format(address=machine.address)
                if machine is not master:
                    text += f"replicaof {master.address} {_REDIS}\n"
                machine.write("/etc/redis/redis.conf", text)
                machine.write("/etc/redis/users.acl", _USERS)
            text = _REDIS_CONF.format(port=_SENTINEL) + _SENTINEL_CONF.format(
                address=machine.address, master=master.address, port=_REDIS
            )
            machine.write("/etc/redis/sentinel.conf", text)
            machine.run("chown -R redis:redis /etc/redis; chmod 640 /etc/redis/*.conf")
            services = "redis-server redis-sentinel" if machine.name in CONTROLLERS else "redis-sentinel"
            machine.run(f"systemctl enable --now {services}")

    def start_spark(self) -> None:
        """Start a master and three workers as services of the user `spark`."""
        for machine in self.each((*WORKERS, DRIVER)):
            machine.run("useradd --system --create-home --home-dir /var/lib/spark spark")
            command = "master.Master --host driver --port 7077"
            if machine.name in WORKERS:
                command = f"worker.Worker --host {machine.name} --cores 1 --memory 1g --work-dir /var/lib/spark/work "
                command += "spark://driver:7077"
            machine.write("/etc/systemd/system/spark.service", _SPARK_UNIT.format(command=command))
            machine.run("systemctl daemon-reload; systemctl enable --now spark")

    def prepare_checkouts(self) -> None:
        """Clone the repository on every machine, name the site's wheels to pip, and give the site its editor."""
        for machine in self.machines.values():
            machine.write("/etc/pip.conf", "[global]\nno-index = true\nfind-links = /srv/wheels\n")
            machine.write("/usr/local/bin/editor", '#!/bin/sh\ncp /root/site.toml "$1"\n', 0o755)
            machine.run(
                f"git config --global --add safe.directory '*'\ngit clone --quiet {SHARED}/rechannel.git {CHECKOUT}"
            )

    # -- Rechannel --

    def configuration(self, machine: Machine, user: str) -> str:
        """Return the configuration that an operator types on a machine; ``user``: its user of Redis."""
        lines = [
            "[cluster]",
            f'name = "{CLUSTER}"',
            "[redis]",
            f'url = "sentinel://{_SENTINELS}/0?service=rechannel"',
            f'username = "{user}"',
            'password_file = "/etc/rechannel/redis.password"',
            'tls_ca_file = "/etc/rechannel/ca.pem"',
        ]
        if machine.name in CONTROLLERS:
            lines += [
                "[signing]",
                'public_key_file = "/etc/rechannel/signing.pub"',
                'private_key_file = "/etc/rechannel/signing.key"',
                "[controller]",
                'audit_file = "/var/log/rechannel/audit.jsonl"',
                "[migration]",
                "moves_per_batch = 1",
                "[gate]",
                "cooldown = 5.0",
            ]
        elif machine.name in WORKERS:
            lines += ["[agent]", f'node = "{machine.name}"']
        else:
            lines += ["[signing]", 'public_key_file = "/etc/rechannel/signing.pub"']
        return "\n".join(lines) + "\n"

    def add_user(self, command: str) -> None:
        """Make a user of Redis by ``rechannel acl``; its password is in `passwords`."""
        control = self["control1"]
        admin = (
            self.configuration(self[DRIVER], "admin").split("[signing]")[0].replace("redis.password", "admin.password")
        )
        control.write("/root/admin.toml", admin, 0o600)
        control.write("/etc/rechannel/admin.password", "admin-password", 0o600)
        control.run(f"cd /root && rechannel acl {command} --config /root/admin.toml")
        for path in (control.root / "root").glob("*.password"):
            self.passwords[path.stem] = path.read_text()

    def write_configurations(self) -> None:
        """Lay down what each machine's editor writes, and its password."""
        for machine in self.machines.values():
            role = f"agent-{machine.name}" if machine.name in WORKERS else "link"
            role = "controller" if machine.name in CONTROLLERS else role
            user = f"rechannel-{CLUSTER}-{role}"
            machine.write("/root/site.toml", self.configuration(machine, user))
            machine.write("/etc/rechannel/redis.password", self.passwords[user], 0o600)
        user = f"rechannel-{CLUSTER}-operator"
        text = self.configuration(self[DRIVER], user).replace("redis.p", "operator.p")
        for machine in self.each(CONTROLLERS):
            machine.write("/root/operator.toml", text)
            machine.write("/etc/rechannel/operator.password", self.passwords[user], 0o600)

    def copy_keys(self) -> None:
        """Copy the signing keys from the machine where they were made, as the page's comment says."""
        source = self["control1"].root / "etc/rechannel"
        for machine in self.each(("control2", DRIVER)):
            machine.write("/etc/rechannel/signing.pub", (source / "signing.pub").read_text())
        self["control2"].write("/etc/rechannel/signing.key", (source / "signing.key").read_text(), 0o600)

    def start_application(self) -> None:
        """Install the link's packages as `docs/install.md` says, and start the driver's service."""
        driver = self[DRIVER]
        driver.write("/usr/local/share/application/app.py", (ROOT / "tests/machines/app.py").read_text())
        driver.run(
            f"cd {CHECKOUT}\n"
            "python3 -m venv /opt/rechannel-driver\n"
            "/opt/rechannel-driver/bin/pip install './distributions/agent[driver]'\n"
            "editor /etc/rechannel/rechannel.toml\n"
            "chown etl /etc/rechannel/redis.password"
        )
        driver.write("/etc/systemd/system/application.service", _DRIVER_UNIT.format(directory=APPLICATION))
        driver.run("systemctl daemon-reload; systemctl enable --now application")

    # -- what an operator sees --

    def ask(self, command: str, on: str = "control1") -> subprocess.CompletedProcess[str]:
        """Run a command of the operator, whatever its exit code."""
        return self[on].run(f"RECHANNEL_CONFIG=/root/operator.toml rechannel {command}", check=False)

    def rechannel(self, command: str, on: str = "control1") -> str:
        """Return what a command of the operator prints; MachineError if it fails."""
        done = self.ask(command, on)
        if done.returncode:
            raise MachineError(f"rechannel {command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def redis(self, machine: Machine, command: str) -> str:
        """Return what the Redis of a machine answers to its administrator."""
        user = "--user admin --pass admin-password --no-auth-warning"
        return machine.output(f"{_REDIS_CLI} -p {_REDIS} {user} {command}")

    def sentinel(self, command: str) -> str:
        """Return what the driver's sentinel answers."""
        return self[DRIVER].output(f"{_REDIS_CLI} -p {_SENTINEL} {command}")

    def status(self) -> dict[str, Any]:
        """Return ``rechannel status --json``, {} while it cannot be had."""
        for name in CONTROLLERS:
            with contextlib.suppress(MachineError, ValueError):
                status: dict[str, Any] = json.loads(self.rechannel("status --json", on=name))
                return status
        return {}

    def batches(self) -> int:
        """Return how many batches the queries have written."""
        out = self.shared / "application" / "out"
        return sum(1 for name in QUERIES for _ in (out / name).glob("[0-9]*.json"))

    def wait_for_batches(self, more: int = 6) -> float:
        """Wait for so many batches more; seconds that it took."""
        began, least = time.monotonic(), self.batches() + more
        wait_until(lambda: self.batches() >= least, f"{more} more batches", PATIENCE, every=0.2)
        return time.monotonic() - began

    def audit(self) -> Audit:
        """Compare everything that the queries wrote with what the same rows give at once."""
        return audit(self.shared / "application", QUERIES, ROWS_PER_BATCH)
