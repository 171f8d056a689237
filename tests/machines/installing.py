"""Installing by the page: every block of `docs/services.md`, in its order, on the machines that it names."""

from __future__ import annotations

from testbed.processes import wait_until
from tests.machines.machine import MachineError
from tests.machines.site import APPLICATION, CHECKOUT, CONTROLLERS, DRIVER, WORKERS, Site, page_blocks
from tests.machines.steps import Step, expect, state_of, wait_for_state

PART = "Install"
AGENT, CONTROLLER = "rechannel-agent", "rechannel-controller"
_INSTALL_AGENT, _INSTALL, _SET_UP_CONTROLLER, _SET_UP_AGENT = range(4)


def _block(index: int) -> str:
    blocks = page_blocks(PART)
    if len(blocks) != _SET_UP_AGENT + 1:
        raise MachineError(f"docs/services.md: {len(blocks)} blocks below Install, and the suite knows 4")
    return blocks[index]


def surroundings(site: Site) -> str:
    """Certificates, Redis with a replica and three sentinels, Spark."""
    site.make_certificates()
    site.start_redis()
    site.start_spark()
    site.prepare_checkouts()
    wait_until(
        lambda: "slaves=1,sentinels=3" in site.sentinel("info sentinel"), "three sentinels and a replica", 60, every=0.5
    )
    return "six machines; Redis over TLS with a replica and three sentinels; three workers"


def install_controllers(site: Site) -> str:
    """Run the page's block for the machines of controllers."""
    for machine in site.each(CONTROLLERS):
        machine.run(f"cd {CHECKOUT}\n{_block(_INSTALL)}")
    control = site["control1"]
    user = control.output("getent passwd rechannel")
    expect("/usr/sbin/nologin" in user, f"sysusers.d made the user {user!r}")
    mode = control.output("stat -c '%a %U' /etc/rechannel")
    expect(mode == "755 root", f"tmpfiles.d made /etc/rechannel with {mode}")
    expect(state_of(control, CONTROLLER) == "inactive", "no service is started")
    return f"user and directory made, no service started; {control.output('du -sm /opt/rechannel | cut -f1')} MB"


def install_agents(site: Site) -> str:
    """Run the page's block for nodes."""
    for machine in site.each(WORKERS):
        machine.run(f"cd {CHECKOUT}\n{_block(_INSTALL_AGENT)}")
    worker = site["worker1"]
    units = worker.output("ls /usr/lib/systemd/system | grep rechannel")
    expect(units == f"{AGENT}.service", f"units of a node: {units}")
    return f"light distribution, the agent's unit alone; {worker.output('du -sm /opt/rechannel | cut -f1')} MB"


def make_users(site: Site) -> str:
    """Make the users of Redis by ``rechannel acl``, over TLS and through the sentinels."""
    site[DRIVER].run("useradd --system --create-home etl")
    for role in ("controller", "link", "operator"):
        site.add_user(f"add-role {role}")
    for name in WORKERS:
        site.add_user(f"add-node {name}")
    for machine in site.each(CONTROLLERS):
        users = [name for name in site.redis(machine, "acl users").split() if name.startswith("rechannel-")]
        expect(len(users) == 6, f"{machine.name} has the users {users}")
    site.write_configurations()
    return "six users on master and replica; `default` is off"


def set_up_controllers(site: Site) -> str:
    """Run the page's block that makes keys and starts a controller; keys are copied where its comment says so."""
    lines = _block(_SET_UP_CONTROLLER).splitlines()
    first, *others = site.each(CONTROLLERS)
    first.run("\n".join(lines))
    site.copy_keys()
    for machine in others:
        machine.run("\n".join(line for line in lines if "on one machine" not in line))
    took = max(wait_for_state(machine, CONTROLLER) for machine in site.each(CONTROLLERS))
    return f"both active {took:.1f} s after the block: " + "; ".join(
        state_of(machine, CONTROLLER, "StatusText").split(";")[0] for machine in site.each(CONTROLLERS)
    )


def set_up_agents(site: Site) -> str:
    """Run the page's block for nodes, `doctor --machine` among it."""
    for machine in site.each(WORKERS):
        machine.run(_block(_SET_UP_AGENT))
        wait_for_state(machine, AGENT)
    return f"three agents active: {state_of(site['worker1'], AGENT, 'StatusText')}"


def start_driver(site: Site) -> str:
    """Install the link beside the driver, and start an unchanged script by `rechannel submit`."""
    site.start_application()
    site.wait_for_batches()

    def has_executors() -> bool:
        applications = site.status().get("applications", ())
        return any(len(application["executors"]) == len(WORKERS) for application in applications)

    wait_until(
        has_executors, "three executors in the status", 120, every=1.0, details=lambda: site.ask("status").stdout
    )
    return f"an unchanged script as a service of the user `etl`, checkpoints below {APPLICATION.parent}"


def uninstall(site: Site) -> str:
    """Run the page's block for removing on a node."""
    machine = site["worker3"]
    (block,) = page_blocks("Uninstall")
    machine.run(f"cd {CHECKOUT}\n{block}")
    left = machine.output("ls -d /opt/rechannel /usr/local/bin/rechannel /usr/lib/systemd/system/rechannel* || true")
    expect(not left, f"left: {left}")
    machine.run("test -e /etc/rechannel/rechannel.toml -a -e /etc/rechannel/redis.password")
    return "program, command and unit are gone, configuration and password stay"


STEPS = tuple(
    Step(PART, what, act)
    for what, act in (
        ("what stands before", surroundings),
        ("`make install`, two machines", install_controllers),
        ("`make install ROLE=agent`, three machines", install_agents),
        ("`rechannel acl`", make_users),
        ("keys, configuration, `systemctl enable --now rechannel-controller`", set_up_controllers),
        ("configuration, `doctor --machine`, `systemctl enable --now rechannel-agent`", set_up_agents),
        ("the driver", start_driver),
    )
)
LAST = (Step("Uninstall", "`make uninstall`, one machine", uninstall),)
