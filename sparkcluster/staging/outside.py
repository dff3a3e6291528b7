"""Gets artifacts that no node has: a node downloads or builds them; if no node reaches the hub, this machine downloads.

On a node this is a job, which continues if the connection breaks. A download that fails is not retried in the same run:
bytes that arrived are kept, and the next run resumes there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path

from sparkcluster.errors import BuildFailed, HostSilent, RegistryAuth, SparkclusterError, StageError
from sparkcluster.hosts.base import Host
from sparkcluster.hosts.fleet import combined
from sparkcluster.hosts.local import LocalHost
from sparkcluster.hosts.program import stream
from sparkcluster.node.shared import registry_of
from sparkcluster.report import count, size
from sparkcluster.runtime import observed
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Build
from sparkcluster.spec.playbook_files import FileSet
from sparkcluster.staging import small_files
from sparkcluster.staging.artifacts import Request, download_request
from sparkcluster.staging.copy import HERE, Answer, Done, Failure, OnBytes, Step, follow, stage_error, stage_errors
from sparkcluster.staging.local_weights import step_here
from sparkcluster.staging.plan import Staging, no_weights
from sparkcluster.staging.transfers import Transfers

DOWNLOAD_NODES = 2
"""Nodes that may try to download: if two fail, a third rarely succeeds."""
_CANCEL_S = 5


def run_job(
    step: Step,
    host: Host,
    program: str,
    request: Request,
    report: OnBytes = lambda _done, _total: None,
    *,
    heard: Callable[[Answer], None] = lambda _: None,
) -> Done | Failure:
    """Start or follow the job of ``program`` (pull, fetch or build) on ``host``; return its result.

    Ctrl-C ends the job unless another command follows it.

    Raises:
        StageError: the node went silent while the job continues; or the job was stopped.
        LeaseLost: another operator has the lease.
    """
    whole = {**request, **step.lease(host.name), "do": "run"}
    try:
        with stage_errors(step, host.name), stream(host, program, whole) as running:
            return follow(step, host.name, running, report, heard)
    except (StageError, KeyboardInterrupt) as error:
        if error.__cause__ is None:
            with contextlib.suppress(SparkclusterError), stream(host, program, {**whole, "do": "cancel"}) as running:
                next(running.lines(_CANCEL_S), None)
        elif isinstance(error, StageError) and isinstance(error.__cause__, HostSilent):
            error.hint = f"the {program} continues on {host.name}: retry to follow it"
        raise


def build(run: Transfers, spec: Spec, files: FileSet, staging: Staging) -> str:
    """Send ``files`` to the first node that lacks the image, and build it there; return that node.

    Raises:
        BuildFailed: the build failed; it has the last lines of the log.
        StageError: the files did not reach the node, or it went silent; a running build continues there.
        LeaseLost: another operator has the lease.
    """
    node, begin, step = staging.download[0], time.monotonic(), run.step("image")
    facts, wanted = run.facts[node], spec.playbook.build or Build(context=files.source)
    if files.mark not in facts.files:
        run.send("files", node, small_files.of_playbook(files, facts.state_dir), files.size_bytes)
    run.shown.note(f"building {staging.name} on {node} from {spec.playbook.image} and {files.source}")
    log: list[str] = []

    def heard(last: Answer) -> None:
        log[:] = last.log or log
        minutes = int(time.monotonic() - begin) // 60
        run.progress(node, f"building, {count(minutes, 'minute')}: {''.join(log[-1:])}")

    request: Request = {"reference": staging.name, "base": spec.playbook.image, "limit_s": wanted.timeout_s}
    request |= {"folder": files.place(facts.state_dir), "dockerfile": wanted.dockerfile, "script": wanted.script}
    done = run_job(step, run.fleet[node], "build", request, heard=heard)
    if isinstance(done, Failure) and done.kind == "build":
        raise BuildFailed(
            f"building {files.source} on {node} failed: {done.text}",
            node=node,
            step=step.name,
            hint=f"fix {files.source}/{wanted.script or wanted.dockerfile}, then retry; nothing else was changed",
            log=log,
        )
    if isinstance(done, Failure):
        raise stage_error(step, done)
    run.record("image", node, "build", 0, begin)
    return node


@dataclasses.dataclass
class Download:
    """The download of a missing artifact.

    Attributes:
        no_hub: nodes that cannot reach the hub.
    """

    run: Transfers
    spec: Spec
    staging: Staging
    no_hub: set[str] = dataclasses.field(default_factory=set)

    def anywhere(self) -> str | Path:
        """Download it; return the node, or the cache of this machine for weights if no node reaches the hub.

        Raises:
            SparkclusterError: of the first node that tried, with the errors of the others.
        """
        from sparkcluster.fit.headers import is_offline  # noqa: PLC0415 - slow and rarely needed

        staging, errors = self.staging, list[SparkclusterError]()
        offline = staging.what == "weights" and is_offline()
        if not staging.download or offline:
            why = "HF_HUB_OFFLINE is set on this machine" if offline else ""
            raise no_weights(self.run.facts, staging.missing[0][0], self.spec, why=why)
        for node in staging.download[:DOWNLOAD_NODES]:
            begin = time.monotonic()
            try:
                moved = self.on(node)
            except SparkclusterError as error:
                errors.append(error)
                # a silent node continues its download, and two downloads would share a slow uplink
                if isinstance(error.__cause__, HostSilent) or type(error) is not StageError:
                    break
                self.run.progress(node, error.message)
            else:
                self.run.record(staging.what, node, "download", moved, begin)
                return node
        if staging.what == "weights" and len(self.no_hub) == len(errors):
            try:
                return self.here()
            except StageError as error:
                errors.append(error)
        raise combined(errors)

    def here(self) -> Path:
        """Download the model to the Hugging Face cache of this machine with ``hf``; return the cache.

        Raises:
            StageError: the download failed.
        """
        run, step, said = self.run, step_here(self.run), set[str]()
        home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
        request = download_request(self.spec, run.facts[self.staging.download[0]], "weights", None)
        shown = run.moving("weights", HERE, "download")

        def report(done: int, total: int) -> None:
            if not said:
                said.add(amount := size(total) if total else "unknown size")
                does = f"downloading {self.staging.name} ({amount}) on this machine to {home}"
                run.shown.note(f"no node can reach the hub: {does}")
            shown(done, total)

        with stream(LocalHost(HERE), "fetch", {**request, "hf_home": str(home), "image": None}) as running:
            done = follow(step, HERE, running, report)
        if isinstance(done, Failure):
            raise stage_error(step, done)
        return home

    def on(self, node: str, digest: str | None = None) -> int:
        """Download on ``node``, an image by ``digest`` if it is known; return the number of bytes.

        Raises:
            StageError: it failed; the message says why.
            RegistryAuth: the registry requires a login.
            LeaseLost: another operator has the lease.
        """
        from sparkcluster.fit.headers import is_gated  # noqa: PLC0415 - slow and rarely needed

        name, model, run = self.staging.name, self.spec.playbook.model, self.run
        done, token = self._attempt(node, digest, None), os.environ.get("HF_TOKEN")
        # The hub decides whether the model is gated: trusting the node's answer would let any node ask for the token.
        if isinstance(done, Failure) and done.kind == "hub auth" and token and is_gated(str(model.id), model.revision):
            run.progress(node, f"{name} is gated: downloading it with HF_TOKEN")
            done = self._attempt(node, digest, token)
        if isinstance(done, Failure):
            raise self._error(node, done)
        if done.left_out_bytes:
            run.progress(node, f"{name}: {size(done.left_out_bytes)} of unneeded files not downloaded")
        if done.whole:
            run.progress(node, f"{name}: the hub did not list its files, so the complete repository was downloaded")
        return done.bytes

    def _attempt(self, node: str, digest: str | None, token: str | None) -> Done | Failure:
        what, name, run = self.staging.what, self.staging.name, self.run
        request = download_request(self.spec, run.facts[node], what, token)
        report = run.moving(what, node, "download")
        if what == "weights":
            return run_job(run.step(what), run.fleet[node], "fetch", request, report)
        if digest is not None and digest != name:
            request |= {"reference": digest, "tag": name}

        def reported(done: int, total: int) -> None:
            report(done, total)
            if done == total:
                run.progress(node, "unpacking the image")

        ended = run_job(run.step(what), run.fleet[node], "pull", request, reported)
        outcome = ended.text if isinstance(ended, Failure) else "pulled"
        observed.note(str(run.lease(node)["cluster"]), "pull", node=node, outcome=outcome)
        return ended

    def _error(self, node: str, done: Failure) -> SparkclusterError:
        """The error for a download that failed on ``node``."""
        step, name = self.run.step(self.staging.what), self.staging.name
        if done.kind in {"no hub", "no downloader"}:
            self.no_hub |= {node} if done.kind == "no hub" else set()
            return no_weights(self.run.facts, node, self.spec, why=done.text)
        causes = {
            "auth": f"the registry of {name} requires a login on {node}",
            "hub auth": f"the hub denies {node} access to {name}",
            "registry": f"no node has the image {name}, and {node} cannot pull it",
            "blobs": f"Docker on {node} has an image with the same layers in another compression (containerd#8973)",
            "platform": f"{name} has no build for the architecture of {node}",
        }
        hints = {
            "auth": f"{f'docker login {registry_of(name)}'.strip()}   on {node}",
            "hub auth": f"accept the terms on the page of {name}, then export HF_TOKEN=…, or hf auth login   on {node}",
            "registry": f"docker pull {name}   on any node, or docker load -i FILE",
            "blobs": f"docker image rm {name} and the images that share its layers   on {node}, then retry",
            "platform": "set image: in the playbook to one for linux/arm64",
        }
        if done.kind not in causes:
            return stage_error(step, done)
        error = RegistryAuth if done.kind == "auth" else StageError
        return error(f"{causes[done.kind]}: {done.text}", node=node, step=step.name, hint=hints[done.kind])
