"""From spec, facts and topology to the plan: for every node what runs there, as pure data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping

from sparkcluster import engines
from sparkcluster.engines.base import Engine, Rank
from sparkcluster.facts.engine import engine_of, has_token
from sparkcluster.facts.model import Facts, Image, Unread, read
from sparkcluster.node.shared import (
    ENTRY_FILE,
    LABEL_CLUSTER,
    LABEL_GROUP,
    LABEL_NODE,
    LABEL_PLAN,
    LABEL_RANK,
    LABEL_RANK_DIR,
    LABEL_RELEASE,
    LABEL_RUNTIME,
    LABEL_STATE_DIR,
    LAUNCHER_FILE,
)
from sparkcluster.plan import docker_run, environment, image, launcher
from sparkcluster.plan.model import ContainerPlan, GroupPlan, NodePlan, Plan
from sparkcluster.spec import Spec
from sparkcluster.topology import parallel
from sparkcluster.topology.model import Group, Member, Topology

SECRETS_FILE = "secrets.env"
RAY_TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name, never its value
NAME_LIMIT = 120


def build(
    spec: Spec,
    facts: Mapping[str, Facts],
    topology: Topology,
    *,
    release: int | Mapping[str, int],
    bring_ray: bool = False,
    images: Mapping[str, str] | None = None,
) -> Plan:
    """What ``up`` will run on every node.

    Args:
        spec: what the user wrote.
        facts: by name of node; paths, image and engine are taken from them, nothing that changes by itself.
        topology: from ``topology.build``.
        release: number that this plan will be recorded under, or one for each group; names containers, outside of
            the hash.
        bring_ray: whether a pinned Ray is staged to the nodes for an engine that has none.
        images: local image ID by node, where another than the facts' shall run.

    Raises:
        PlanError: nothing that makes sense can be run.
    """
    spec = engines.engine(spec.playbook.engine).planned(spec, facts, topology)
    ids = image.local_ids(spec, facts) if spec.inventory.runtime.kind == "docker" else {}
    maker = _Maker(spec, facts, topology, bring_ray, {**ids, **(images or {})})
    groups: list[GroupPlan] = []
    nodes: dict[str, NodePlan] = {}
    for group in topology.groups:
        # Containers are named by release and labelled with the hash: the hash is over what they would be without.
        digest = _digest(maker.nodes(group, release=0, plan_hash=""))
        number = release if isinstance(release, int) else release[group.name]
        groups.append(GroupPlan(group.name, group.names, group.endpoint, maker.executor(group), digest))
        nodes |= maker.nodes(group, release=number, plan_hash=digest)
    return Plan(
        cluster=topology.cluster,
        engine=spec.playbook.engine,
        model=spec.playbook.model_name,
        image=spec.playbook.image if spec.inventory.runtime.kind == "docker" else None,
        groups=tuple(groups),
        nodes=nodes,
    )


def container_name(cluster: str, release: int, node: str) -> str:
    """Name of a rank's container: cluster, release and node, within what Docker allows in a name."""
    written = f"sparkcluster-{cluster}-{release}-{node}"
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", written)
    if name == written and len(name) <= NAME_LIMIT:
        return name
    # Two hosts that differ only in what was replaced or cut off must not share a name.
    mark = hashlib.sha256(written.encode()).hexdigest()[:8]
    return f"{name[: NAME_LIMIT - 9]}-{mark}"


def expand(path: str, home: str) -> str:
    """``path`` with a leading ``~`` replaced by the node's home directory."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path


@dataclasses.dataclass(frozen=True)
class _Maker:
    spec: Spec
    facts: Mapping[str, Facts]
    topology: Topology
    bring_ray: bool
    images: dict[str, str]

    @property
    def engine(self) -> Engine:
        return engines.engine(self.spec.playbook.engine)

    @property
    def runtime(self) -> str:
        return self.spec.inventory.runtime.kind

    def executor(self, group: Group) -> parallel.Executor:
        found = engine_of(self.facts[group.head.name])
        return parallel.executor(self.spec.playbook, found, nodes=len(group.members), bring_ray=self.bring_ray)

    def token(self, group: Group) -> bool:
        """Whether Ray requires a token: only if the Ray of every rank can, since all ranks must agree."""
        return self.executor(group) == "ray" and all(
            has_token(engine_of(self.facts[member.name]), brought=self.bring_ray) for member in group.members
        )

    def secrets(self, group: Group, member: Member) -> tuple[str, ...]:
        names = set(self.spec.playbook.secrets)
        if self.engine.api_key and self.spec.inventory.api.key is not None and member.rank == 0:
            names.add(self.engine.api_key)
        if self.token(group):
            names.add(RAY_TOKEN)
        return tuple(sorted(names))

    def env(self, group: Group, member: Member) -> dict[str, str]:
        facts = self.facts[member.name]
        baked = read(facts.image) if facts.image is not None else None
        env = environment.build(
            self.spec.playbook,
            group,
            member,
            self.engine,
            hf_home=docker_run.HF_HOME if self.runtime == "docker" else facts.hf_home,
            baked=baked.env_names if baked is not None and self.runtime == "docker" else (),
        )
        if self.token(group):
            env["RAY_AUTH_MODE"] = "token"
        return {name: value for name, value in env.items() if name not in self.secrets(group, member)}

    def nodes(self, group: Group, *, release: int, plan_hash: str) -> dict[str, NodePlan]:
        made = {}
        envs = {member.name: self.env(group, member) for member in group.members}
        secrets = {member.name: self.secrets(group, member) for member in group.members}
        kept = environment.carry_over(self.spec.playbook.engine, envs, secrets) if self.executor(group) == "ray" else []
        for member in group.members:
            labels = self.labels(group, member, release=release, plan_hash=plan_hash)
            env = dict(sorted(envs[member.name].items()))
            made[member.name] = NodePlan(
                node=member.name,
                group=group.name,
                role="head" if member.rank == 0 else "worker",
                rank=member.rank,
                env=env,
                secrets=secrets[member.name],
                containers=(self.container(group, member, labels, env, kept),),
            )
        return made

    def labels(self, group: Group, member: Member, *, release: int, plan_hash: str) -> dict[str, str]:
        facts, cluster = self.facts[member.name], self.topology.cluster
        name = container_name(cluster, release, member.name)
        return {
            LABEL_CLUSTER: cluster,
            LABEL_GROUP: group.name,
            LABEL_NODE: member.name,
            LABEL_RANK: str(member.rank),
            LABEL_RELEASE: str(release),
            LABEL_PLAN: plan_hash,
            LABEL_STATE_DIR: facts.state_dir,
            LABEL_RANK_DIR: f"{facts.state_dir}/clusters/{cluster}/ranks/{name}",
            LABEL_RUNTIME: self.runtime,
        }

    def container(
        self,
        group: Group,
        member: Member,
        labels: dict[str, str],
        env: dict[str, str],
        carry_over: list[str],
    ) -> ContainerPlan:
        facts, playbook = self.facts[member.name], self.spec.playbook
        rank_dir = labels[LABEL_RANK_DIR]
        name = rank_dir.rsplit("/", 1)[-1]
        env_file = f"{rank_dir}/{SECRETS_FILE}" if self.secrets(group, member) else None
        executor, python = self.executor(group), self.python(member)
        ray_dir = None
        if self.bring_ray and executor == "ray":
            ray_dir = image.ray_directory(facts.state_dir, engine_of(facts))
        engine = self.engine.serve(
            Rank(
                playbook,
                group,
                member,
                parallel.sizes(playbook, group.name, len(group.members)),
                model=self.model(group, member),
                executor=executor,
                python=None if self.runtime == "docker" else python,
            )
        )
        document = launcher.build(
            self.topology.cluster,
            group,
            member,
            runtime=self.runtime,
            executor=executor,
            engine=engine[:1] if executor == "ray" and member.rank > 0 else engine,
            model={"id": playbook.model.id, "revision": playbook.model.revision}
            if playbook.model.id is not None
            else {"path": self.model(group, member)},
            setup=playbook.setup,
            carry_over=carry_over,
            token=self.token(group),
            ray_path=docker_run.RAY_PATH if ray_dir and self.runtime == "docker" else ray_dir,
        )
        if self.runtime == "process":
            argv = [python, f"{rank_dir}/{ENTRY_FILE}", f"{rank_dir}/{LAUNCHER_FILE}"]
            return ContainerPlan(name, None, tuple(argv), document, rank_dir, (rank_dir,), env_file, labels)
        mounts, directories = self.mounts(group, member, rank_dir, ray_dir)
        argv = docker_run.run(
            name=name,
            image=self.images[member.name],
            keeps_entrypoint=image.keeps_entrypoint(_image(facts)),
            python=python,
            env=env,
            env_file=env_file,
            labels=labels,
            mounts=mounts,
            infiniband=facts.infiniband_devices and len(group.members) > 1,
            cap_add=playbook.container.cap_add,
        )
        return ContainerPlan(
            name, self.images[member.name], tuple(argv), document, rank_dir, directories, env_file, labels
        )

    def python(self, member: Member) -> str:
        """Interpreter that runs the launcher: the engine's, if known."""
        facts = self.facts[member.name]
        found = engine_of(facts)
        if self.runtime == "process":
            written = self.spec.inventory.runtime.python
            if found is not None:
                return found.python
            return expand(written, facts.home) if written else facts.python.executable
        return found.python if found is not None else "python3"

    def model(self, group: Group, member: Member) -> str:
        """Repository or directory as the engine sees it.

        In containers every rank sees the directory under the head's path, whatever it is called on the node:
        Ray passes the head's path to its workers.
        """
        written = self.spec.playbook.model
        if written.path is None:
            return str(written.id)
        shown = self.facts[(group.head if self.runtime == "docker" else member).name]
        path = expand(written.path, shown.home)
        if self.runtime == "docker" and _below(path, shown.hf_home):
            # A snapshot is links into the rest of the cache, which the container has already.
            return docker_run.HF_HOME + path[len(shown.hf_home) :]
        return path

    def mounts(
        self, group: Group, member: Member, rank_dir: str, ray_dir: str | None
    ) -> tuple[list[list[str]], tuple[str, ...]]:
        """What the container sees of the node, and the directories among it that have to be made first."""
        facts, playbook = self.facts[member.name], self.spec.playbook
        mounts = [
            docker_run.bind(f"{rank_dir}/{LAUNCHER_FILE}", docker_run.LAUNCHER, read_only=True),
            docker_run.bind(f"{rank_dir}/{ENTRY_FILE}", docker_run.ENTRY, read_only=True),
            docker_run.bind(facts.hf_home, docker_run.HF_HOME),
        ]
        directories = [rank_dir, facts.hf_home]
        weights = expand(playbook.model.path, facts.home) if playbook.model.path is not None else None
        if weights is not None and not _below(weights, facts.hf_home):
            mounts.append(docker_run.bind(weights, self.model(group, member), read_only=True))
        if ray_dir is not None:
            mounts.append(docker_run.bind(ray_dir, docker_run.RAY_PATH, read_only=True))
        short = re.sub(r"[^A-Za-z0-9]", "-", self.images[member.name].removeprefix("sha256:"))[:12]
        for cache in playbook.kept_caches:
            source = f"{facts.state_dir}/caches/{short}/{cache.name}"
            mounts.append(docker_run.bind(source, cache.target))
            directories.append(source)
        for mount in playbook.mounts:
            source = expand(mount.source, facts.home)
            mounts.append(docker_run.bind(source, mount.target, read_only=mount.read_only))
        return mounts, tuple(directories)


def _below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _image(facts: Facts) -> Image:
    if facts.image is None or isinstance(facts.image, Unread):
        return Image(reference="", id="")
    return facts.image


def _digest(nodes: Mapping[str, NodePlan]) -> str:
    document = {name: dataclasses.asdict(node) for name, node in nodes.items()}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
