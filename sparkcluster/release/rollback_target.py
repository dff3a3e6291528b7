"""Rollback targets: the record of a release as the head has it, and the spec made from it.

A record is shown and accepted like a playbook (``spec.consent``), unless it was accepted before on this machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkcluster import engines
from sparkcluster.answers import problem
from sparkcluster.errors import LaunchError, SparkclusterError, UsageError
from sparkcluster.facts.model import ReleaseFact
from sparkcluster.facts.running import Reply
from sparkcluster.inspect.cluster import View
from sparkcluster.inspect.releases import Records, as_recorded
from sparkcluster.node.shared import LABEL_RELEASE, kept_image
from sparkcluster.plan import image as images
from sparkcluster.plan.cost import missing_on
from sparkcluster.plan.model import Plan
from sparkcluster.plan.release_record import RecordedGroup, group_plan, recorded_groups, written_network
from sparkcluster.report import Report
from sparkcluster.runtime import secrets as values
from sparkcluster.spec import Spec, consent, powers
from sparkcluster.spec.load import is_shipped
from sparkcluster.spec.playbook import Playbook
from sparkcluster.spec.playbook_files import FileSet
from sparkcluster.topology import recorded as networks


@dataclasses.dataclass(frozen=True, slots=True)
class RollbackTarget:
    """A recorded and accepted release that can be started again.

    Attributes:
        number: the number under which its images and secrets are kept.
        groups: its recorded groups.
        spec: the spec that starts them again on the nodes of the current inventory.
    """

    number: int
    groups: Mapping[str, RecordedGroup]
    spec: Spec

    def of_groups(self, names: Collection[str]) -> RollbackTarget:
        """The same target with only the groups in ``names``."""
        groups = {name: group for name, group in self.groups.items() if name in names}
        return dataclasses.replace(self, groups=groups)


def find(spec: Spec, number: int, records: Mapping[str, Records], report: Report, *, yes: bool) -> RollbackTarget:
    """The release ``number`` as recorded on the head of a group, accepted; ``yes`` accepts without asking.

    Nodes without this record are reported; usually they were off when it was written.

    Raises:
        UsageError: no node has it, it is malformed, or it is not accepted.
    """
    node, release, others = as_recorded(records, number)
    if others:
        text = f"record of release {number} is missing or different; using the record of {node}"
        report.note(f"warning: {', '.join(others)}: {text}")
    groups = {name: group for name, group in recorded_groups(release.record).items() if group.verified}
    if not groups or len({json.dumps(group.playbook, sort_keys=True) for group in groups.values()}) > 1:
        why = "no group was verified, or an upgrade was interrupted between groups"
        hint = "sparkcluster releases INVENTORY   lists others"
        raise UsageError(f"release {number} is not a rollback target: {why}", hint=hint)
    first, recorded = next(iter(groups.values())), [group.secrets.get("hashes", {}) for group in groups.values()]
    # A group that was started without a key gets the current key, which must exist on this machine.
    key = engines.engine(first.engine).api_key
    if spec.inventory.api.key is not None and any(key not in hashes for hashes in recorded):
        values.api_key(spec)
    name = kept_image(spec.inventory.cluster, number) if first.image else None
    old = dataclasses.replace(spec_of(spec, first.as_json(), number), kept_image_name=name, image_build=build_of(first))
    return RollbackTarget(number, groups, accept(old, report, yes=yes))


def spec_of(spec: Spec, origin: Mapping[str, Any], number: int) -> Spec:
    """``spec`` with the playbook of release ``number``; ``origin`` is from ``origin_of``. Not accepted.

    Raises:
        UsageError: this version of sparkcluster cannot read its playbook.
    """
    try:
        playbook = Playbook.model_validate(origin["playbook"])
    except ValidationError as error:
        raise UsageError(f"the playbook of release {number} cannot be used: {problem(error)}") from None
    files = {source: FileSet(source, each["mark"], each["name"], ()) for source, each in origin["beside"].items()}
    mounted = {mount.source for mount in playbook.mounts}
    selected = origin.get("selected", {})
    shipped = is_shipped(playbook, str(selected.get("playbook", playbook.name)), spec.inventory.group_sizes)
    return dataclasses.replace(
        spec,
        playbook=playbook,
        playbook_path=Path(f"release-{number}"),
        # The nodes still have the mounted playbook files, and the image that was built.
        files={source: each for source, each in files.items() if source in mounted},
        build=files.get(playbook.build.context) if playbook.build else None,
        places={},
        bundled=shipped and not files,
        selected=selected,
    )


def accept(spec: Spec, report: Report, *, yes: bool) -> Spec:
    """``spec`` of a record or journal, accepted (``spec.consent``); ``yes`` accepts without asking.

    Raises:
        UsageError: it is not accepted, or the inventory does not permit what its playbook needs.
    """
    found = powers.of(spec.playbook, spec.inventory)
    for power in found:
        if power.refused:
            raise UsageError(f"the release's playbook is refused: {power.text}: {power.refused}")
    if needed := powers.permit(found, spec.inventory):
        raise UsageError("the release's playbook needs more than the inventory permits", hint=f"add {needed}")
    spec = consent.accept(spec, report, yes=yes)
    if spec.image_build and not consent.is_remembered(accepted_image(spec, spec.image_build)):
        what = f"{spec.playbook_path}: build {spec.image_build} of {spec.reference} was never started from this machine"
        report.note(what)
        if not yes and not report.confirm("accept this image?"):
            raise UsageError(f"{what}; not accepted", hint="to accept it, add --yes")
        consent.remember([accepted_image(spec, spec.image_build)])
    return spec


def accepted_image(spec: Spec, build: str) -> str:
    """Digest under which it is remembered that the image of ``spec`` is ``build``; a record is only a node's claim."""
    return hashlib.sha256(f"{spec.reference} {build}".encode()).hexdigest()


def build_of(group: RecordedGroup) -> str:
    """The recorded image build of ``group``; empty without one."""
    return str((group.image or {}).get("build", ""))


def prove(view: View, target: RollbackTarget, records: Mapping[str, Records], hint: str) -> None:
    """Raise LaunchError with ``hint`` unless every node has all that restarts the groups of ``target``.

    That is image, weights, files and secrets. ``view`` is of the recorded spec.
    """
    why = []
    for group in target.groups.values():
        for node in group.ranks:
            topology, bring_ray = view.topology, view.bring_ray
            missing = missing_on(view.spec, view.facts, topology, [node], bring_ray=bring_ray) if topology else ()
            lost = [each if each in {"weights", "image"} else "files or Ray" for each in sorted(missing)]
            if group.has_secrets(node) and not (node in records and target.number in records[node].secrets):
                lost.append("secrets")
            why += [f"{node} lost the {each} of release {target.number}" for each in lost]
    if not why and view.plan is None:
        why = [f"no plan can be made for release {target.number}"]
    if why:
        raise LaunchError(f"{'; '.join(why)}; nothing was stopped", step="rollback", hint=hint)


def origin_of(spec: Spec) -> dict[str, Any]:
    """The part of a record or journal from which ``spec`` can be started again."""
    files = (*spec.files.values(), *filter(None, [spec.build]))
    return {
        "playbook": spec.playbook.model_dump(mode="json", exclude_defaults=True),
        "beside": {each.source: {"mark": each.mark, "name": each.name} for each in files},
        "selected": dict(spec.selected),
    }


def newly_recorded(
    view: View, outcomes: Mapping[str, Reply | SparkclusterError], secrets: Mapping[str, dict[str, Any]]
) -> list[RecordedGroup]:
    """The groups of the next release: those in ``outcomes``, even failed ones, and the others that keep serving.

    ``secrets`` are salt and hashes of the secrets that each was started with.
    """
    topology, plan = view.ready()
    others = recorded_groups(view.newest.record) if view.newest else {}
    document, origin, found = plan.as_json(), origin_of(view.spec), []
    for group in topology.groups:
        if group.name not in outcomes:
            found += [others[group.name]] if group.name in others else []
            continue
        outcome = outcomes[group.name]
        measured: dict[str, Any] = {}
        if isinstance(outcome, Reply):
            speeds = {"ttft_s": outcome.ttft_s, "tokens_per_s": outcome.tokens_per_s}
            measured = {**speeds, "start_s": None, **outcome.footprint}
        found.append(
            RecordedGroup(
                name=group.name,
                release=int(plan.nodes[group.head.name].containers[0].labels[LABEL_RELEASE]),
                engine=plan.engine,
                plan=group_plan(document, group.name),
                verify=view.spec.playbook.verifying,
                request=view.spec.playbook.request,
                verified=isinstance(outcome, Reply),
                network=networks.document(group),
                written=written_network(view.spec),
                secrets=secrets.get(group.name, {}),
                image=images.image_identity(view.facts, group.names),
                versions=images.versions(plan.engine, view.facts, group.names),
                measured=measured,
                **origin,
            )
        )
    return found


def last_start_s(newest: ReleaseFact | None, plan: Plan, name: str) -> float | None:
    """Seconds that the recorded start of a group took; None if it had another model or image than ``plan``."""
    recorded = recorded_groups(newest.record).get(name) if newest else None
    if recorded is None or any(recorded.plan.get(key) != getattr(plan, key) for key in ("model", "image")):
        return None
    found: float | None = recorded.measured.get("start_s")
    return found
