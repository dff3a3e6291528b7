"""Build the plan from spec, facts and topology: the ranks of every node, as pure data."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparkcluster import engines
from sparkcluster.engines import base
from sparkcluster.facts.base import read
from sparkcluster.facts.docker import EngineFacts, Image
from sparkcluster.facts.engine import engine_of, has_token
from sparkcluster.facts.model import Facts
from sparkcluster.node.shared import (
    BIND_FILE,
    ENTRY_FILE,
    LABEL_CLUSTER,
    LABEL_DRAIN,
    LABEL_GROUP,
    LABEL_NODE,
    LABEL_PLAN,
    LABEL_RANK,
    LABEL_RANK_DIR,
    LABEL_RELEASE,
    LABEL_RUNTIME,
    LABEL_STATE_DIR,
    LAUNCHER_FILE,
    SECRETS_FILE,
    hub_folder,
)
from sparkcluster.plan import docker_run, environment, image, paths
from sparkcluster.plan.model import ContainerPlan, GroupPlan, NodePlan, Plan, Role
from sparkcluster.spec import Spec, playbook_files
from sparkcluster.spec.library import all_bundled
from sparkcluster.spec.playbook import Playbook, is_root
from sparkcluster.spec.variables import RAY_TOKEN
from sparkcluster.topology import parallel, vocabularies
from sparkcluster.topology.model import Group, Member, Topology

# Once the containers run, a rank joins within seconds; an image that unpacks lazily takes minutes.
JOIN_TIMEOUT_S = 300
# Engines move tensors by NCCL and hardly use Ray's object store. By default Ray would reserve 30 % of the memory, which
# is shared with the GPU.
OBJECT_STORE_BYTES = 2**30
# MemAvailable below which a rank is stopped if other models share its node, as in RyderFreeman4Logos/gb10-services.
FLOOR_BYTES = 5 * 2**30


def build(
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    *,
    release: int | Mapping[str, int],
    bring_ray: bool = False,
) -> Plan:
    """The plan of what ``up`` runs on every node.

    Args:
        spec: inventory and playbook.
        facts: by node; only stable facts are used, such as paths, image and engine.
        topology: from ``topology.build``.
        release: number of the release, or one per group; part of container names, not of the hash.
        bring_ray: whether a pinned Ray is staged for an engine without Ray.

    Raises:
        PlanError: no valid plan exists.
    """
    spec = engines.engine(spec.playbook.engine).planned(spec, facts, topology)
    docker = spec.inventory.runtime.kind == "docker"
    ids = image.local_ids(spec, facts, topology) if docker else {}
    groups: list[GroupPlan] = []
    nodes: dict[str, NodePlan] = {}
    for group in topology.groups:
        ranks = _ranks(spec, facts, group, ids, bring_ray=bring_ray)
        # The hash excludes release number and hash label, which containers get afterwards.
        digest = _digest(_nodes(ranks, release=0, plan_hash=""))
        number = release if isinstance(release, int) else release[group.name]
        groups.append(GroupPlan(group.name, group.names, group.endpoint, ranks[0].executor, digest))
        nodes |= _nodes(ranks, release=number, plan_hash=digest)
    return Plan(
        cluster=spec.inventory.cluster,
        engine=spec.playbook.engine,
        model=spec.playbook.model_name,
        image=spec.reference if docker else None,
        groups=tuple(groups),
        nodes=nodes,
    )


def container_name(cluster: str, release: int, node: str) -> str:
    """Name of a rank's container: cluster, release and node."""
    return docker_run.valid_name(f"sparkcluster-{cluster}-{release}-{node}")


@dataclasses.dataclass(frozen=True)
class _Rank:
    """One rank of ``group``.

    Attributes:
        head: facts of the group's first node.
        facts: facts of the rank's node.
        token: whether Ray requires a token.
        bring_ray: whether Ray is staged to the nodes for this group.
        image_id: local ID; None with runtime ``process``.
        bundled: whether the playbook is an unchanged bundled one.
    """

    spec: Spec
    group: Group
    member: Member
    head: Facts
    facts: Facts
    executor: base.Executor
    token: bool
    bring_ray: bool
    image_id: str | None
    bundled: bool

    @property
    def playbook(self) -> Playbook:
        return self.spec.playbook

    @property
    def engine(self) -> base.Engine:
        return engines.engine(self.playbook.engine)

    @property
    def found(self) -> EngineFacts | None:
        return engine_of(self.facts)

    @property
    def image(self) -> Image | None:
        return read(self.facts.image)

    @property
    def docker(self) -> bool:
        return self.image_id is not None

    @property
    def user(self) -> str:
        """User of the container: from the playbook, else from the image, which is empty for root."""
        return self.playbook.container.user or (self.image.user if self.image is not None else "")

    @property
    def role(self) -> Role:
        return "head" if self.member.rank == 0 else "worker"

    @functools.cached_property
    def secrets(self) -> tuple[str, ...]:
        names = set(self.playbook.secrets)
        if self.engine.api_key and self.spec.inventory.api.key is not None and self.role == "head":
            names.add(self.engine.api_key)
        if self.token:
            names.add(RAY_TOKEN)
        return tuple(sorted(names))

    @functools.cached_property
    def env(self) -> dict[str, str]:
        env = environment.build(
            self.spec,
            self.group,
            self.member,
            hf_home=docker_run.path_in_container(docker_run.HF_HOME, self.user) if self.docker else self.facts.hf_home,
            home=docker_run.HOME if self.docker and not is_root(self.user) else None,
            baked=self.image.env_names if self.image is not None and self.docker else (),
        )
        if self.token:
            env["RAY_AUTH_MODE"] = "token"
        for each in vocabularies.brought(self.spec, self.facts):
            folder = vocabularies.folder(self.facts.state_dir, each)
            env[each.variable] = vocabularies.target(each) if self.docker else folder
        return {name: value for name, value in sorted(env.items()) if name not in self.secrets}

    @property
    def python(self) -> str:
        """Interpreter for the launcher: the engine's, if known."""
        if self.found is not None:
            return self.found.python
        if self.docker:
            return "python3"
        written = self.spec.inventory.runtime.python
        return paths.expand(written, self.facts.home) if written else self.facts.python.executable

    @property
    def model(self) -> str:
        """Repository or directory of the model, for the engine.

        In containers the directory has the head's path on every node, since Ray passes the head's path to its workers.
        """
        written = self.playbook.model
        if written.path is None:
            return str(written.id)
        path = paths.expand(written.path, (self.head if self.docker else self.facts).home)
        return docker_run.path_in_container(path, self.user) if self.docker else path

    @property
    def ray_dir(self) -> str | None:
        """Directory of the staged Ray on the node."""
        return image.ray_directory(self.facts.state_dir, self.found) if self.bring_ray else None

    def container(self, release: int, plan_hash: str, node_local: Sequence[str]) -> ContainerPlan:
        """The container's plan for a release number; ``node_local`` as for ``launcher``."""
        cluster, state_dir = self.spec.inventory.cluster, self.facts.state_dir
        name = container_name(cluster, release, self.member.name)
        rank_dir = f"{state_dir}/clusters/{cluster}/ranks/{name}"
        env_file = f"{rank_dir}/{SECRETS_FILE}" if self.secrets else None
        labels = {**labels_of(self.spec, cluster, self.member.name, state_dir, rank_dir), LABEL_PLAN: plan_hash}
        labels |= {LABEL_GROUP: self.group.name, LABEL_RANK: str(self.member.rank), LABEL_RELEASE: str(release)}
        # Only the head has requests to drain.
        if self.role == "head" and (drain_s := self.engine.drain_s(self.playbook)):
            labels[LABEL_DRAIN] = str(drain_s)
        if self.image_id is None:
            directories: list[str] = [rank_dir]
            roots: dict[str, str] = {}
            argv = [self.python, f"{rank_dir}/{ENTRY_FILE}", f"{rank_dir}/{LAUNCHER_FILE}"]
        else:
            mounts, directories, roots = self.mounts(rank_dir, self.image_id)
            argv = docker_run.run(
                name=name,
                image=self.image_id,
                keeps_entrypoint=self.image is not None and image.keeps_entrypoint(self.image),
                python=self.python,
                env=self.env,
                env_file=env_file,
                labels=labels,
                mounts=[docker_run.writable(self.user), *mounts],
                infiniband=self.facts.infiniband_devices and len(self.group.members) > 1,
                container=self.playbook.container,
            )
        document = self.launcher(node_local)
        if plan_hash and self.spec.siblings:
            # Outside of the hash: a new model on a node must not restart this one.
            document["victim"] = {"order": self.spec.stopped_after, "floor_bytes": FLOOR_BYTES}
        made = tuple(directories)
        shared = () if is_root(self.user) else made[1:]
        return ContainerPlan(
            name, self.image_id, tuple(argv), document, rank_dir, made, env_file, labels, roots, shared
        )

    def launcher(self, node_local: Sequence[str]) -> dict[str, Any]:
        """The document for ``node/launcher.py``; this node keeps its own values of the variables ``node_local``."""
        group, member, playbook = self.group, self.member, self.playbook
        tensor_parallel = parallel.tensor_parallel(playbook, group.name, len(group.members))
        python = None if self.docker else self.python
        command = self.engine.serve(
            base.Rank(playbook, group, member, tensor_parallel, self.model, self.executor, python)
        )
        joins_ray = self.executor == "ray"
        model = {"path": self.model}
        if playbook.model.id is not None:
            model = {"id": playbook.model.id, "revision": playbook.model.revision}
        return {
            "version": 1,
            "cluster": self.spec.inventory.cluster,
            "group": group.name,
            "node": member.name,
            "rank": member.rank,
            "role": self.role,
            "runtime": self.spec.inventory.runtime.kind,
            "executor": self.executor,
            "address": member.address,
            "members": [peer.address for peer in group.members],
            "ray": {
                "port": group.ray_port,
                "address": f"{group.head.address}:{group.ray_port}",
                "start": ray_start(group, member),
                "token": self.token,
            }
            if joins_ray
            else None,
            # Only these ports may listen on all addresses, as set in the inventory.
            "open_ports": [group.api_port] if ipaddress.ip_address(group.api_host).is_unspecified else [],
            "join_timeout_s": JOIN_TIMEOUT_S,
            # For a Ray worker only the program, by which the launcher finds the Python with Ray.
            "engine": command[:1] if joins_ray and self.role == "worker" else command,
            # Target of the link /sparkcluster/model.
            "model": model,
            "setup": list(playbook.setup),
            "carry_over": list(node_local),
            # The launcher may change installed files only in a container.
            "ptxas": self.docker,
            "ray_path": docker_run.RAY_PATH if self.ray_dir and self.docker else self.ray_dir,
        }

    def caches(self, image_id: str) -> str:
        """Directory of the playbook's caches; separate, so that other playbooks do not load code that it wrote."""
        short = re.sub(r"[^A-Za-z0-9]", "-", image_id.removeprefix("sha256:"))[:12]
        origin = "bundled" if self.bundled else "other"
        if user := self.playbook.container.user:  # another user's files may not be writable
            origin += f"-user-{user.replace(':', '-')}"
        return f"{self.facts.state_dir}/caches/{short}/{origin}/{self.playbook.name}"

    def mounts(self, rank_dir: str, image_id: str) -> tuple[list[list[str]], list[str], dict[str, str]]:
        """Mounts of the container, directories to create before, and roots by path."""
        facts, playbook = self.facts, self.playbook
        mounts = [
            docker_run.bind(f"{rank_dir}/{LAUNCHER_FILE}", docker_run.LAUNCHER, read_only=True),
            docker_run.bind(f"{rank_dir}/{ENTRY_FILE}", docker_run.ENTRY, read_only=True),
        ]
        if len(self.group.members) > 1:
            mounts.append(docker_run.bind(f"{rank_dir}/{BIND_FILE}", docker_run.LIBRARY, read_only=True))
        directories = [rank_dir]
        roots: dict[str, str] = {}
        # Mount only served repositories of the cache; other repositories and the token stay private.
        for model in (playbook.model, *playbook.companions):
            if model.id is not None:
                folder = hub_folder(model.id)
                target = docker_run.path_in_container(f"{docker_run.HF_HOME}/{folder}", self.user)
                mounts.append(docker_run.bind(f"{facts.hf_home}/{folder}", target, read_only=True))
        if playbook.model.path is not None:
            weights = paths.repository(paths.expand(playbook.model.path, facts.home))
            roots[weights] = paths.root(weights, "model.path", self.spec.inventory, facts, node=self.member.name)
            mounts.append(docker_run.bind(weights, paths.repository(self.model), read_only=True))
        for each in vocabularies.brought(self.spec, facts):
            source = vocabularies.folder(facts.state_dir, each)
            mounts.append(docker_run.bind(source, vocabularies.target(each), read_only=True))
        if self.ray_dir is not None:
            mounts.append(docker_run.bind(self.ray_dir, docker_run.RAY_PATH, read_only=True))
        for cache in playbook.kept_caches:
            source = f"{self.caches(image_id)}/{cache.name}"
            mounts.append(docker_run.bind(source, docker_run.path_in_container(cache.target, self.user)))
            directories.append(source)
        for mount in playbook.mounts:
            if mount.is_local:  # unreadable if nothing is to be started
                found = self.spec.files.get(mount.source) or playbook_files.FileSet(mount.source, "unknown", "", ())
                source = found.place(facts.state_dir)
                roots[source] = found.folder(facts.state_dir)
                mounts.append(docker_run.bind(source, mount.target, read_only=True))
                continue
            source = paths.expand(mount.source, facts.home)
            roots[source] = paths.root(source, "mounts", self.spec.inventory, facts, node=self.member.name)
            mounts.append(docker_run.bind(source, mount.target, read_only=mount.read_only))
        return mounts, directories, roots


def labels_of(spec: Spec, cluster: str, node: str, state_dir: str, rank_dir: str) -> dict[str, str]:
    """Labels of everything that sparkcluster runs on a node: cluster, node, and directories."""
    return {
        LABEL_CLUSTER: cluster,
        LABEL_NODE: node,
        LABEL_STATE_DIR: state_dir,
        LABEL_RANK_DIR: rank_dir,
        LABEL_RUNTIME: spec.inventory.runtime.kind,
    }


def ray_start(group: Group, member: Member) -> list[str]:
    """Command that starts Ray on a rank.

    Ray listens on the rank's interconnect address. Its dashboard is off, since its job API runs any submitted command.
    Each rank has one CPU: workers of engines request none, and Ray would otherwise keep an idle Python process per
    core. On workers Ray runs in the foreground, so that the container exits with it; on the head the engine does.
    """
    limits = ["--num-gpus=1", "--num-cpus=1", f"--object-store-memory={OBJECT_STORE_BYTES}", "--disable-usage-stats"]
    if member.rank == 0:
        listens = [f"--node-ip-address={member.address}", f"--port={group.ray_port}", "--include-dashboard=false"]
        return ["ray", "start", "--head", *listens, *limits]
    joins = [f"--address={group.head.address}:{group.ray_port}", f"--node-ip-address={member.address}"]
    return ["ray", "start", *joins, *limits, "--block"]


def _ranks(
    spec: Spec, facts: Mapping[str, Facts], group: Group, ids: Mapping[str, str], *, bring_ray: bool
) -> list[_Rank]:
    head = facts[group.head.name]
    executor = parallel.executor(spec.playbook, engine_of(head), nodes=len(group.members), bring_ray=bring_ray)
    # Only if every rank's Ray supports it, since all ranks must agree.
    token = executor == "ray" and all(has_token(engine_of(facts[name]), brought=bring_ray) for name in group.names)
    brought = bring_ray and executor == "ray"
    bundled = all_bundled(spec)  # reads files, so call it once
    return [
        _Rank(spec, group, member, head, facts[member.name], executor, token, brought, ids.get(member.name), bundled)
        for member in group.members
    ]


def _nodes(ranks: Sequence[_Rank], *, release: int, plan_hash: str) -> dict[str, NodePlan]:
    node_local: list[str] = []
    if ranks[0].executor == "ray":
        envs = {rank.member.name: rank.env for rank in ranks}
        secrets = {rank.member.name: rank.secrets for rank in ranks}
        node_local = environment.node_local(ranks[0].playbook.engine, envs, secrets)
    return {
        rank.member.name: NodePlan(
            node=rank.member.name,
            group=rank.group.name,
            role=rank.role,
            rank=rank.member.rank,
            env=rank.env,
            secrets=rank.secrets,
            containers=(rank.container(release, plan_hash, node_local),),
        )
        for rank in ranks
    }


def _digest(nodes: Mapping[str, NodePlan]) -> str:
    document = {name: dataclasses.asdict(node) for name, node in nodes.items()}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
