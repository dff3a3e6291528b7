"""The walk over the state table under one lease: switch what is replaced, group by group, then start what is missing.

A switch stops nothing before the way back is proven, and goes back where the new release fails::

    looked at ── staged ── way back proven ── journal ──▶ stopped ── started ── serving ── compared ──▶ recorded
    (the old release serves)                                  │ any failure
                                                              ▼
                                              journal ── stopped ── old release started ── serving ──▶ recorded
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkcluster.endpoint.find import endpoints
from sparkcluster.errors import (
    HostError,
    HostSilent,
    Interrupted,
    LaunchError,
    LeaseLost,
    RolledBack,
    SparkclusterError,
    UsageError,
)
from sparkcluster.facts.running import Reply
from sparkcluster.inspect.cluster import view_cluster
from sparkcluster.inspect.releases import node_records
from sparkcluster.plan.release_record import RecordedGroup, recorded_groups
from sparkcluster.plan.switch import anything, pending
from sparkcluster.release import journal, rollback_target, speed
from sparkcluster.release.deploy import Deployment, Doing, Options
from sparkcluster.release.down import former_nodes
from sparkcluster.release.outcome import came_back, cause, in_turn
from sparkcluster.release.restore import keep, restore, write_journal
from sparkcluster.release.rollback_target import Kept
from sparkcluster.release.serving import refuse, replies, stop_on_wrong_answers, survey
from sparkcluster.release.stage import staging_lease
from sparkcluster.release.states import Action, GroupState, Seen, State, group_states
from sparkcluster.report import Report
from sparkcluster.runtime import Changer
from sparkcluster.spec import Spec


@dataclasses.dataclass(slots=True)
class Switched:
    """What a switch has measured, by group."""

    downtime_s: dict[str, float] = dataclasses.field(default_factory=dict)
    before: dict[str, speed.Speed] = dataclasses.field(default_factory=dict)
    after: dict[str, speed.Speed] = dataclasses.field(default_factory=dict)

    @property
    def speed(self) -> dict[str, tuple[float | None, float | None]]:
        """Tokens/s before and after."""
        none = speed.Speed(None)
        return {
            name: (found.tokens_per_s, self.after.get(name, none).tokens_per_s) for name, found in self.before.items()
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A kept release that is to serve again: these groups of it, which are started from one spec.

    ``restart``: also those that serve it already.
    """

    kept: Kept
    groups: Collection[str]
    restart: bool = False

    @property
    def survey(self) -> dict[str, Any]:
        """What ``serving.survey`` needs to know of it."""
        restart = self.kept.number if self.restart else 0
        return {"kept": self.kept.groups, "only": self.groups, "restart": restart}


class Walk:
    """The walk over the state table under one lease, towards ``spec``; with ``target`` that of a kept release.

    ``kept`` are releases that were accepted before: what serves is among them.
    """

    def __init__(
        self,
        changer: Changer,
        spec: Spec,
        options: Options,
        report: Report,
        *,
        target: Target | None = None,
        kept: Sequence[Kept] = (),
    ) -> None:
        self.changer = changer
        self.spec = spec
        self.options = options
        self.report = report
        self.doing = Doing()
        self.measured = Switched()
        # From what is copied while a group still serves until it is stopped and all is there: nobody comes between.
        self.staging = staging_lease(changer.fleet, spec, "up")
        self.target = target
        self.kept = kept
        self.new = Deployment(
            changer,
            spec,
            options,
            report,
            staging=self.staging,
            doing=self.doing,
            kept=target.kept if target else None,
        )
        view = self.new.view
        # After down no rank is left, here or on nodes that are no longer in the inventory.
        before = view.newest.record if view.newest and view.ranks.anything else {}
        self.former = {node.label: {"host": node.host} for node in former_nodes(spec, {"": before})}
        self.pending = pending(view.facts, view.newest)
        self.number = 0
        self.changed = False
        self.stopped: set[str] = set()

    def interrupted(self) -> Interrupted:
        """What an interruption outside of the launch itself leaves behind."""
        remains = {
            "stop": ("old ranks may remain", "sparkcluster up INVENTORY; or sparkcluster down INVENTORY"),
            "start": ("ranks may still run", "sparkcluster down INVENTORY"),
            "verify": ("the model serves, and is not recorded", "sparkcluster up INVENTORY"),
        }
        left, hint = remains.get(self.doing.step, ("no rank was started", None))
        return Interrupted(f"interrupted; {left}", step=self.doing.step, hint=hint)

    def survey(self, before: Mapping[str, GroupState]) -> dict[str, GroupState]:
        """Every group as it is now, and what to do with each; raises if a group conflicts with the plan."""
        groups = survey(
            self.changer.fleet,
            self.new.view,
            self.report,
            replace=self.options.replace,
            before=before,
            abandoned=self.pending.groups if self.pending else (),
            **(self.target.survey if self.target else {}),
        )
        refuse(self.new.view, groups)
        return groups

    def to_serving(self, before: Mapping[str, GroupState]) -> dict[str, Reply]:
        """Walk until every group serves; replies by group. ``before`` was seen before the lease was taken.

        Raises:
            RolledBack: the switch of a group failed, and what served before serves again.
            NotServing: a group that was left alone does not answer as it should.
        """
        groups = self.survey(before)
        found: dict[str, Reply] = {}
        switched = self.to_switch(groups)
        if switched:
            found, groups = self.switch(switched, groups)
            groups = self.survey(groups)
        # What has just answered is done: its node may have lost the tag that it was looked for by.
        dirty = {name: group for name, group in groups.items() if group.action is Action.CLEAN and name not in found}
        if dirty:
            if self.target:
                rollback_target.require_secrets(self.target.kept, list(dirty), self.secrets())
            self.new.clean(dirty)
            groups = self.looked_after_clean(groups, dirty)
        launches = {
            name: group
            for name, group in groups.items()
            if group.action in {Action.START, Action.WATCH} and name not in found
        }
        kept = {name: group for name, group in groups.items() if name not in launches}
        found = replies(kept) | found
        if launches:
            self.prepare(launches)
            found |= self.launch(launches, self.recorded(kept))
        elif not switched:
            self.number = self.new.view.newest.number if self.new.view.newest else 0
        lacking = {name: each for name, each in kept.items() if each.action is Action.KEEP and each.lacking}
        if lacking:
            self.record_again(replies(lacking), kept)
        if not switched and anything(self.new.view.facts):
            self.forget()
        stop_on_wrong_answers(self.new.view, groups)
        return found

    def to_switch(self, groups: Mapping[str, GroupState]) -> dict[str, GroupState]:
        """Groups that are replaced though they are not dead, and those whose switch was cut off."""
        begun = self.pending.groups if self.pending else ()
        unfinished = {Action.CLEAN, Action.START, Action.WATCH}
        return {
            name: group
            for name, group in groups.items()
            if (group.replaced and group.recorded) or (name in begun and group.action in unfinished)
        }

    def looked_after_clean(self, groups: Mapping[str, GroupState], cleaned: Collection[str]) -> dict[str, GroupState]:
        """Every group once the ranks of ``cleaned`` were removed."""
        self.new.look()
        now = self.survey(groups)
        for name in cleaned:
            # a group that only its ranks named is gone with them
            if (group := now.get(name)) is not None and group.action is Action.CLEAN:
                raise came_back(group)
        return now

    def prepare(self, launches: Mapping[str, GroupState]) -> None:
        """Check and stage for what is to be started."""
        starting = [name for name, each in launches.items() if each.state is State.EMPTY]
        if starting:
            self.new.prepare(starting)

    def launch(self, groups: Mapping[str, GroupState], kept: Mapping[str, RecordedGroup]) -> dict[str, Reply]:
        """Start, watch, verify and record ``groups`` beside ``kept``; their replies."""
        outcomes, hashes = self.new.launch(groups)
        try:
            return self.new.finish(outcomes, hashes, kept=kept, former=self.former)
        finally:
            self.number, self.changed = self.new.number, True

    def record_again(self, replies: Mapping[str, Reply], kept: Mapping[str, GroupState]) -> None:
        """Record groups that serve this plan, as it is here: what one node has of it is not copied to others."""
        recorded = self.recorded(kept)
        hashes = {name: recorded[name].secrets for name in replies}
        others = {name: each for name, each in recorded.items() if name not in replies}
        self.new.finish(replies, hashes, kept=others, former=self.former)
        self.number, self.changed = self.new.number, True

    def recorded(self, groups: Mapping[str, GroupState]) -> dict[str, RecordedGroup]:
        """What is recorded of ``groups``, which are left as they are, and of those that are not looked at."""
        newest = self.new.view.newest
        others = recorded_groups(newest.record) if self.target and newest else {}
        left = {name: group for name, group in others.items() if self.target and name not in self.target.groups}
        return left | {name: group.recorded for name, group in groups.items() if group.recorded}

    # The switch.

    def switch(
        self, switched: Mapping[str, GroupState], groups: Mapping[str, GroupState]
    ) -> tuple[dict[str, Reply], dict[str, GroupState]]:
        """Replace ``switched`` in turn, the first of them alone; their replies, and all groups then.

        One that fails takes those before it back.

        Raises:
            RolledBack: what served before serves again.
        """
        names = list(dict.fromkeys([*switched, *(self.pending.groups if self.pending else ())]))
        batches = in_turn(list(switched), self.options.order, self.options.max_unavailable)
        kept = self.ready_to_switch(switched, names)
        found: dict[str, Reply] = {}
        groups = dict(groups)
        touched: list[str] = []
        try:
            write_journal(self.new, names, self.source())
            for batch in batches:
                if touched and self.options.pause_s:
                    self.new.step("pause", f"{self.options.pause_s:g} s before {', '.join(batch)}")
                    time.sleep(self.options.pause_s)
                touched += batch
                began = time.monotonic()
                dirty = {name: groups[name] for name in batch if groups[name].action is Action.CLEAN}
                if dirty:
                    self.stopped |= dirty.keys()
                    self.new.clean(dirty)
                    groups = self.looked_after_clean(groups, dirty)
                found |= self.switched(batch, groups, began, partial=len(touched) < len(switched))
                self.new.look()
                now = group_states(self.new.view)
                groups |= {name: dataclasses.replace(now[name], seen=Seen(found[name])) for name in batch}
        except (LeaseLost, HostSilent):  # what was begun goes on, and --resume continues it
            raise
        except (SparkclusterError, KeyboardInterrupt) as error:
            if not self.options.rollback and isinstance(error, LaunchError):
                from sparkcluster.release import wreck  # noqa: PLC0415 - few runs need it

                wreck.keep(self.changer.fleet, self.spec, error, self.source(), self.report)
            if kept is None or (isinstance(error, Interrupted) and error.left_running):
                raise
            raise self.back(kept, names if self.pending else touched, error) from error
        self.forget()
        return found, groups

    def ready_to_switch(self, switched: Mapping[str, GroupState], names: Sequence[str]) -> Kept | None:
        """The release to go back to with ``names``, once all that is slow is done; nothing is stopped.

        Raises:
            SparkclusterError: something is missing for the new release, or for the way back.
        """
        self.new.refuse_elsewhere(switched)
        try:
            if self.target:
                rollback_target.require_secrets(self.target.kept, list(switched), self.secrets())
            self.new.prepare(switched)  # while they still serve
            self.new.prove_gpu(switched)
            kept = self.way_back(switched, names)
        except SparkclusterError:
            if self.pending and self.pending.source:
                back = f"sparkcluster rollback INVENTORY {self.pending.source}"
                self.report.note(f"hint: {back}   starts the release again that served before the switch")
            raise
        answering = {name: each for name, each in switched.items() if each.seen and each.seen.wrong is None}
        recorded = {name: each.recorded for name, each in answering.items() if each.recorded}
        if self.options.min_speed and recorded:
            for name in recorded:
                self.report.progress(self.spec.inventory.called(name), "measuring the speed of what serves")
            self.measured.before = speed.of_groups(self.changer.fleet, recorded)
        return kept

    def secrets(self) -> dict[str, Sequence[int]]:
        """The releases whose secrets each node has."""
        return {node: answer.secrets for node, answer in node_records(self.changer.fleet, self.spec)[0].items()}

    def source(self) -> int:
        """The release that served before what is under way."""
        if self.pending:
            return self.pending.source
        return self.new.view.newest.number if self.new.view.newest else 0

    def switched(
        self, batch: Sequence[str], groups: Mapping[str, GroupState], began: float, *, partial: bool
    ) -> dict[str, Reply]:
        """Start the groups ``batch`` of the new release, verify them, compare their speed, and record them."""
        outcomes, hashes = self.new.launch({name: groups[name] for name in batch}, left=not self.options.rollback)
        others = {name: each for name, each in groups.items() if name not in batch}
        if all(isinstance(outcome, Reply) for outcome in outcomes.values()):
            self.measured.downtime_s |= dict.fromkeys(batch, time.monotonic() - began)
            for name in batch:
                self.compare(name)
        try:
            kept = self.recorded(others)
            return self.new.finish(outcomes, hashes, kept=kept, former=self.former, partial=partial)
        finally:
            self.number, self.changed = self.new.number, True

    def compare(self, name: str) -> None:
        """Compare the speed of a group with that before; LaunchError where it is too slow."""
        before = self.measured.before.get(name)
        if before is None or not self.options.min_speed:
            return
        plan = self.new.view.ready()[1]
        endpoint = endpoints(plan.as_json(), plan.engine)[name]
        host = self.changer.fleet.hosts[endpoint.head]
        self.report.progress(self.spec.inventory.called(name), "measuring the speed of the new release")
        after = speed.measure(host, endpoint, self.spec.playbook.verifying, plan.engine)
        self.measured.after[name] = after
        if before.tokens_per_s and after.tokens_per_s:
            speeds = {"before": before.tokens_per_s, "after": after.tokens_per_s}
            self.new.measured.setdefault(name, {})["switch"] = {"source": self.source(), **speeds}
        note = speed.compare(self.spec.inventory.called(name), before, after, self.options.min_speed, endpoint.head)
        if note:
            self.report.note(note)

    def forget(self) -> None:
        """Remove the journal of a switch that has ended; where a node is silent its record says so too."""
        with contextlib.suppress(HostError):
            self.changer.apply(journal.remove(self.spec, self.new.view.facts))
        self.pending = None

    # The way back.

    def way_back(self, switched: Mapping[str, GroupState], names: Sequence[str]) -> Kept | None:
        """The release to go back to, once every node is proven to have what starts it again; None if none is wanted.

        Raises:
            UsageError, LaunchError: it cannot be gone back to; nothing was changed.
        """
        if not self.options.rollback:
            return None
        self.doing.step = "go back"
        number = self.source()
        if not number or (self.target and self.target.kept.number == number and not self.target.restart):
            return None
        fleet = self.changer.fleet
        try:
            kept = next((each for each in self.kept if each.number == number), None) or rollback_target.find_kept(
                fleet, self.spec, number, self.report, yes=self.options.yes
            )
        except UsageError as error:
            if any(group.seen for group in switched.values()) or not self.pending:
                raise
            # Nothing of it serves.
            self.report.note(f"warning: there is no way back: {error.message}")
            return None
        names = [name for name in names if name in kept.groups]
        if not names:
            return None
        keep(self.new, kept, [name for name in names if name in switched and switched[name].seen])
        secrets = self.secrets()
        for spec, part in kept.parts(names):
            rollback_target.prove(view_cluster(fleet, spec), kept, part, secrets)
        return kept

    def back(self, kept: Kept, names: Sequence[str], error: BaseException) -> SparkclusterError:
        """Go back to ``kept`` with the groups ``names``; the error that says how that ended."""
        interrupted = isinstance(error, (KeyboardInterrupt, Interrupted))
        failed_with = error if isinstance(error, SparkclusterError) and not interrupted else Interrupted("interrupted")
        why = cause(failed_with)
        self.step_back(kept.number)
        by_hand = f"sparkcluster rollback INVENTORY {kept.number}"
        names = [name for name in names if name in kept.groups]
        try:
            number = restore(self.new, kept, names, stopped=self.stopped, former=self.former)
        except (KeyboardInterrupt, Interrupted):
            text = f"interrupted while going back to release {kept.number}"
            return Interrupted(text, step="go back", hint=by_hand)
        except (LeaseLost, HostSilent) as lost:
            return lost
        except SparkclusterError as failed:
            text = f"{why}; going back to release {kept.number} failed too: {failed.message}"
            return LaunchError(text, node=failed.node, step="go back", hint=by_hand)
        self.forget()
        self.report.done()
        self.number = number
        text = f"{why}; release {kept.number} serves again, as release {number}"
        kind = Interrupted if interrupted else RolledBack
        return kind(text, node=failed_with.node, step=failed_with.step, hint=failed_with.hint)

    def step_back(self, number: int) -> None:
        """Report that it is gone back; why is in the error."""
        self.report.failed()
        self.report.step("go back", f"to release {number}")
        self.doing.step = "go back"
