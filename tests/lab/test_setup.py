"""From unboxing to an inventory: discover, setup, preflight, up and undo, on bare Sparks with every cabling."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from sparkcluster.lab.network import ip
from tests.lab.capture import capture
from tests.lab.snapshot import snapshot
from tests.lab.test_serving import until
from tests.unit.on_terminal import OnTerminal

ONE_CABLE = "topology: direct"
DONE = {"docker-group", "sysctl", "limits", "hf-cache", "perftest", "netplan"}
"""Steps that every bare Spark with a cable needs; its clock is synchronized, and Docker has NVIDIA's runtime."""


def answers_on_its_cables(spark):
    """Wait until a booting Spark has its link-local addresses."""
    until(lambda: not spark.run(["ip", "-6", "addr", "show", "tentative"]).stdout.strip())


class Desk:
    """Bare Sparks, and a laptop only in their management network, with the operator's keys."""

    def __init__(self, lab, cli):
        self.lab, self.command_line = lab, cli
        self.inventory = cli.home / "mine.yaml"
        self.known_hosts = cli.home / "known_hosts"
        hosts = [spark.host for spark in lab.sparks]
        scanned = subprocess.run(["ssh-keyscan", "-t", "ed25519", *hosts], capture_output=True, text=True, check=True)
        self.known_hosts.write_text(scanned.stdout)
        self.laptop = f"{lab.state.host_device}-laptop"
        self.address = lab.state.gateway.rpartition(".")[0] + ".3"
        ip(None, [f"netns add {self.laptop}"])
        wire = f"link add laptop type veth peer name eth0 netns {self.laptop}"
        ip(lab.state.switch, [wire, "link set laptop master mgmt up"])
        ip(self.laptop, ["link set lo up", f"addr add {self.address}/24 brd + dev eth0", "link set eth0 up"])

    def start(self, *argv, **options):
        """Start a command on the laptop; the API key that `discover`'s inventory needs is set."""
        options["env"] = {"SPARK_API_KEY": "of-the-test"} | options.get("env", {})
        prefix = ("nsenter", f"--net=/run/netns/{self.laptop}")
        return self.command_line.start(*argv, prefix=prefix, **options)

    def cli(self, *argv, timeout=300, **options):
        """Run a command on the laptop to its end."""
        return self.start(*argv, **options).wait(timeout)

    def discover(self, *flags):
        """``discover`` with the operator's key, into ``inventory``."""
        login = ["--user", "spark", "-i", self.lab.identity, "--known-hosts", self.known_hosts]
        return self.cli("discover", *login, "-o", self.inventory, "--yes", *flags)

    def setup(self, *flags):
        """``setup`` without questions."""
        return self.cli("setup", self.inventory, "--yes", *flags)

    def snapshots(self):
        """Snapshots of every Spark."""
        return {spark.name: snapshot(spark) for spark in self.lab.sparks}


@pytest.fixture
def desk(make_lab, make_cli):
    """``desk(spec, engine="none")``: bare Sparks of a spec, up for one test."""
    made = []

    def make(spec, engine="none"):
        lab = make_lab(f"bare: true\n{spec}\n", engine=engine)
        made.append(lab)
        return Desk(lab, make_cli())

    yield make
    for lab in made:
        lab.down()


def differences(before, after, ignored=()):
    """Differences between two snapshots, except paths that contain one of ``ignored``."""
    found = {}
    for name, old in before.items():
        for part, entries in old.items():
            new = after[name][part]
            for key in entries.keys() | new.keys():
                if entries.get(key) != new.get(key) and not any(each in key for each in ignored):
                    found[name, part, key] = (entries.get(key), new.get(key))
    return found


def succeeded(done):
    """Whether a setup succeeded; until the network is reverted, one end may see its link before the other."""
    words = " ".join((done.out + done.err).split())
    assert not done.code or re.search("another setup is running|link ignored", words), done
    return not done.code


def applied_steps(document):
    """Applied steps, by node."""
    return {name: set(node["done"]) for name, node in document["nodes"].items()}


@pytest.mark.full
def test_a_ring_from_unboxing_to_tokens_and_undo(desk):
    desk = desk("topology: ring\nsparks: [{}, {}, {}]", engine="stub")
    before = desk.snapshots()
    names = {spark.name for spark in desk.lab.sparks}

    found = desk.discover("--json").ok().json
    assert {each["name"] for each in found["sparks"]} == names
    assert yaml.safe_load(desk.inventory.read_text()) == yaml.safe_load(found["inventory"])
    assert applied_steps(desk.setup("--json").ok().json) == dict.fromkeys(names, DONE)

    playbook = ("--playbook", desk.lab.playbook)
    ready = desk.cli("preflight", desk.inventory, *playbook, "--json").ok().json
    assert [each["summary"] for each in ready["findings"] if each["severity"] != "info"] == []
    desk.cli("up", desk.inventory, *playbook).ok()
    assert desk.cli("ask", desk.inventory, "Hello", "--json").ok().json["content"]
    desk.cli("down", desk.inventory).ok()

    desk.setup("--undo").ok()
    # `up` creates its directory, which `down` keeps.
    assert differences(before, desk.snapshots(), ["/home/spark/.local"]) == {}


def test_setup_contacts_only_specified_or_cabled_machines_and_the_second_run_needs_one_round_trip(desk):
    desk = desk(ONE_CABLE)
    before = desk.snapshots()
    with capture(desk.lab.state) as packets:
        desk.discover().ok()
        assert not desk.cli("setup", desk.inventory, "--dry-run", "--json").ok().json["changed"]
        assert differences(before, desk.snapshots()) == {}
        assert applied_steps(desk.setup("--json").ok().json) == {spark.name: DONE for spark in desk.lab.sparks}
    management = desk.lab.sparks[0].host.rpartition(".")[0]
    known = (f"{management}.", "192.168.177.", "192.168.178.", "224.0.0.", "ff02::", "fe80::", "169.254.")
    assert {each.destination for each in packets if not each.destination.startswith(known)} == set()
    contacted = {each.destination for each in packets if each.interface == "laptop" and each.port == 22}
    assert contacted == {spark.host for spark in desk.lab.sparks}

    with capture(desk.lab.state) as packets:
        done = desk.cli("setup", desk.inventory)
    assert done.ok().out == "nothing to change: 2 nodes set up\n"
    opened = {(each.source, each.destination) for each in packets if each.port == 22}
    assert len(opened) == 2


@pytest.mark.parametrize("step", ["hf-cache", pytest.param("netplan", marks=pytest.mark.full)])
def test_a_killed_setup_can_be_resumed_and_undone(desk, step):
    desk = desk(ONE_CABLE)
    before = desk.snapshots()
    desk.discover().ok()
    running = desk.start("setup", desk.inventory, "--yes")
    running.wait_for(step)
    running.kill()
    # A script on the nodes restores the network after 60 s without a confirmation.
    until(lambda: succeeded(desk.setup()), limit_s=300)
    assert "nothing to change" in desk.cli("setup", desk.inventory).ok().out
    desk.setup("--undo").ok()
    assert differences(before, desk.snapshots()) == {}


@pytest.mark.full
def test_without_sudo_setup_prints_a_script_with_the_same_result(desk):
    desk = desk(f"{ONE_CABLE}\ndefaults: {{sudo: refused}}")
    before = desk.snapshots()
    desk.discover().ok()
    refused = desk.setup()
    assert refused.code == 1
    for spark in desk.lab.sparks:
        script = desk.inventory.parent / f"setup-{spark.name}.sh"
        assert f"sudo sh setup-{spark.name}.sh" in refused.out
        spark.run(["sh", "-s"], text_in=script.read_text())
    assert "nothing to change" in desk.cli("setup", desk.inventory).ok().out
    assert desk.setup("--undo").code == 1
    for spark in desk.lab.sparks:
        spark.run(["sh", "-s"], text_in=(desk.inventory.parent / f"undo-{spark.name}.sh").read_text())
    assert differences(before, desk.snapshots()) == {}
    desk.setup("--undo").ok()


@pytest.mark.full
def test_a_file_changed_after_setup_is_kept_and_reported(desk):
    desk = desk("sparks: [{ports: none}]")
    desk.discover().ok()
    desk.setup().ok()
    spark = desk.lab.sparks[0]
    path = "/etc/sysctl.d/90-sparkcluster.conf"
    spark.run(["sh", "-c", f"echo vm.swappiness = 10 >> {path}"])
    done = desk.setup("--undo")
    assert done.code == 1
    assert f"left {path}: changed since setup wrote it" in " ".join(done.out.split())
    assert "vm.swappiness = 10" in spark.run(["cat", path]).stdout
    assert "docker-group" not in desk.cli("setup", desk.inventory, "--show").ok().out
    # Runs the suggested command.
    discard = next(line for line in done.out.splitlines() if "keep it, or on" in line).partition(f"on {spark.name}: ")[
        2
    ]
    spark.run(["sh", "-c", discard.removeprefix("sudo ")])
    desk.setup("--undo").ok()
    assert path not in desk.cli("setup", desk.inventory, "--show").ok().out


@pytest.mark.full
def test_a_spark_reverts_an_address_that_disconnects_it(desk):
    """The new file removes the management address, so that no confirmation arrives."""
    desk = desk(ONE_CABLE)
    desk.discover().ok()
    spark = desk.lab.sparks[0]
    before = snapshot(spark)
    # Applying netplan on this Spark removes the management network, as with another user's wrong file.
    other = "/etc/netplan/60-wrong.yaml"
    spark.run(["sh", "-c", f"umask 077; cat > {other}"], text_in=WRONG)
    begun = desk.start("setup", desk.inventory, "--yes", "--only", "netplan")
    done = begun.wait()
    assert done.code == 1
    assert spark.name in done.out + done.err
    spark.run(["rm", other])
    spark.run(["netplan", "apply"])
    assert differences({"": before}, {"": snapshot(spark)}, ["/var/lib/sparkcluster"]) == {}
    desk.setup().ok()


WRONG = """
network:
  version: 2
  ethernets:
    enP7s7: {addresses: [198.51.100.9/24], dhcp4: false}
"""


@pytest.mark.full
def test_crossed_cables_are_reported(desk):
    desk = desk("topology: crossed\ndefaults: {ports: both}")
    desk.discover()
    done = desk.setup()
    assert done.code == 1
    assert "swap the two cables at" in " ".join((done.out + done.err).split())


@pytest.mark.full
def test_preflight_fix_runs_the_steps_for_its_findings(desk):
    desk = desk(ONE_CABLE)
    desk.discover().ok()
    desk.setup().ok()
    spark = desk.lab.sparks[1]
    spark.run(["ip", "link", "set", "enp1s0f1np1", "mtu", "1500"])
    spark.run(["sh", "-c", "gpasswd -d spark docker"])
    flags = ("--playbook", desk.lab.playbook, "--ignore", "IMG-013")
    found = desk.cli("preflight", desk.inventory, *flags, "--json")
    assert found.code == 1
    assert {each["step"] for each in found.json["findings"] if each["step"]} == {"netplan", "docker-group"}
    shown = desk.cli("preflight", desk.inventory, *flags)
    assert f"hint: sparkcluster setup {desk.inventory} --only netplan" in shown.out
    fixed = desk.cli("preflight", desk.inventory, *flags, "--fix", "--yes").ok()
    assert f"{spark.name}: done: docker-group, netplan" in fixed.out
    assert snapshot(spark)["links"]["enp1s0f1np1"]["mtu"] == 9000
    asked = desk.cli("preflight", desk.inventory, *flags, "--fix")
    assert "nothing to fix" in asked.ok().err


ON_THE_LAPTOP = """
import ctypes, os, sys
assert ctypes.CDLL(None).setns(os.open(sys.argv[1], os.O_RDONLY), 0x40000000) == 0
sys.argv = ["sparkcluster", *sys.argv[2:]]
from sparkcluster.cli import main
main.console()
"""


def test_passwords_and_host_keys_are_prompted_for_on_a_terminal(desk):
    """Nothing is known about the Sparks, which accept only passwords, for logins and for sudo."""
    desk = desk(f"{ONE_CABLE}\ndefaults: {{login: password, sudo: password}}")
    before = desk.snapshots()
    desk.known_hosts.write_text("")
    first, second = desk.lab.sparks
    login = ["--user", "spark", "-i", str(desk.lab.identity), "--known-hosts", str(desk.known_hosts)]

    def on_terminal(*words):
        return OnTerminal(ON_THE_LAPTOP, f"/run/netns/{desk.laptop}", *words)

    with on_terminal("discover", *login, "-o", str(desk.inventory)) as terminal:
        terminal.until(f"log in to {first.name}.local ({first.host})")
        terminal.until("? [Y/n] ")
        terminal.type("\n")
        prompts = [
            ("password of spark@", desk.lab.password),
            ("(Enter: the same as before): ", "wrong"),
            ("(the last one was refused): ", desk.lab.password),
        ]
        while prompts:  # a slow Spark's password is asked for after the password of the other Spark
            prompt, answer = prompts[0]
            if terminal.until("trust and store it? [y/N]", prompt) == prompt:
                prompts.pop(0)
                terminal.type(f"{answer}\n")
            else:
                assert "SHA256:" in terminal.shown
                terminal.type("y\n")
        assert terminal.end() == 0, terminal.shown
        assert "wrote" in terminal.shown
        assert desk.lab.password not in terminal.shown
    keys = {line.split()[0] for line in desk.known_hosts.read_text().splitlines()}
    assert keys == {first.host, second.host}

    with on_terminal("setup", str(desk.inventory), "--yes") as terminal:
        terminal.until("password of spark@")
        terminal.type(f"{desk.lab.password}\n")
        terminal.until("(Enter: the same as before): ")
        terminal.type("\n")
        for _ in desk.lab.sparks:
            terminal.until("sudo password of spark on ")
            terminal.until("(Enter: the login password): ")
            terminal.type("\n")
        assert terminal.end() == 0, terminal.shown
        assert desk.lab.password not in terminal.shown
    for spark in desk.lab.sparks:
        found = spark.run(["sh", "-c", f"grep -rlF {desk.lab.password} /etc /var /home /run /tmp || true"]).stdout
        assert found == ""
    # The key is installed now, so there is no question.
    assert "nothing to change" in desk.cli("setup", desk.inventory).ok().out

    with on_terminal("setup", str(desk.inventory), "--undo", "--yes") as terminal:
        for _ in desk.lab.sparks:
            terminal.until("sudo password of spark on ")
            terminal.type(f"{desk.lab.password}\n")
        assert terminal.end() == 0, terminal.shown
    assert differences(before, desk.snapshots()) == {}
