"""A cluster of nodes on this machine for staging."""

from __future__ import annotations

import dataclasses

from sparkcluster.facts.collect import Collected, collect_facts
from sparkcluster.hosts.fleet import Fleet
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.staging.copy_request import Settings
from sparkcluster.staging.run import StageReport, bring, find
from sparkcluster.staging.transfers import Transfers
from sparkcluster.topology.build import build
from tests.unit.staging.archives import ImageMade

REFERENCE = "vllm/vllm-openai:v0.18.0"
IMAGE = ImageMade([b"layer" * 500_000])
REVISION = "0123456789abcdef0123456789abcdef01234567"


def on_this_machine(facts):
    """``facts`` without the interfaces whose addresses no node of this machine has."""
    interfaces = [each for each in facts.interfaces if all(one.ip.is_loopback for one in each.ipv4())]
    return facts.model_copy(update={"interfaces": tuple(interfaces)})


class World:
    """Nodes (on this machine), their reported holdings, and the lease."""

    def __init__(self, nodes, spark, cluster, lease) -> None:
        self.nodes = {host.name: host for host in nodes}
        self.lease = lease
        self.changes = {name: {"image": None, "weights": None} for name in self.nodes}
        self._spark, self._cluster = spark, cluster
        self.reports: list[tuple[str, str]] = []
        self.playbook: dict = {}
        self.build = None
        self.image_build = ""
        self.served = {"config.json", "tokenizer.json", "model.safetensors", "sub/empty.txt"}
        self.place = lambda host: host.hf_home / "hub/models--Qwen--Qwen3-8B/snapshots" / REVISION

    def has_weights(self, name, sizes, revision) -> None:
        files = [{"name": file, "size_bytes": size} for file, size in sizes.items()]
        self.changes[name]["weights"] = {"path": "/w", "revision": revision, "files": files}

    def has_image(self, name, image=IMAGE, digest=None) -> None:
        """Make the node report the image; its engine's content is separate."""
        self.changes[name]["image"] = {"reference": REFERENCE, **image.facts(), "digest": digest}

    def facts(self):
        return {
            name: on_this_machine(
                self._spark(
                    {"enp1s0f0np0": f"127.1.0.{place}/24"},
                    management=f"127.2.0.{place}/24",
                    **self.changes[name],
                    hf_home=str(host.hf_home),
                    state_dir=f"{self.lease.state_dir}/{name}",  # all of them are on this machine
                )
            )
            for place, (name, host) in enumerate(self.nodes.items(), 11)
        }

    def collected(self, fleet, spec, names):
        """The nodes' reports, with the networks between them."""
        found, networks = collect_facts(fleet, spec, names), self.facts()
        facts = {
            name: its.model_copy(update={"interfaces": networks[name].interfaces, "hcas": networks[name].hcas})
            for name, its in found.facts.items()
        }
        return dataclasses.replace(found, facts=facts)

    def really(self, fleet, spec, names):
        """Make nodes report the ``served`` files that they have at their ``place``."""
        for name in names:
            place = self.place(self.nodes[name])
            sizes = {file: (place / file).stat().st_size for file in self.served if (place / file).exists()}
            if sizes:
                self.has_weights(name, sizes, REVISION)
                self.changes[name]["weights"]["missing"] = sorted(self.served - sizes.keys())
        return Collected({name: self.facts()[name] for name in names}, {})

    def stage(
        self, *, what=("weights", "image"), given=None, verify=False, dry_run=False, report=None, settings=None, epoch=7
    ):
        """Find missing artifacts, and copy them unless it is a ``dry_run``, with the lease of an ``epoch``."""
        facts = self.facts()
        hosts = dict(zip(self.nodes, self.nodes, strict=True))
        spec = self._cluster(hosts, state_dir=self.lease.state_dir, playbook=self.playbook)
        spec = dataclasses.replace(spec, build=self.build, image_build=self.image_build)
        changer = Changer(
            Fleet(self.nodes), cluster="atlas", state_dir=self.lease.state_dir, epochs=dict.fromkeys(self.nodes, epoch)
        )
        if spec.playbook.companions:
            beside = collect_facts(changer.fleet, spec).facts
            facts = {
                name: its.model_copy(update={"companions": beside[name].companions}) for name, its in facts.items()
            }
        run = Transfers(
            changer.fleet, facts, build(spec, facts), changer.lease,
            lambda node, text: self.reports.append((node, text)), report or Report(),
            dataclasses.replace(settings or Settings(), verify=verify),
        )  # fmt: skip
        stagings = find(run, spec, what, given)
        return StageReport(tuple(stagings)) if dry_run else bring(run, changer, stagings)
