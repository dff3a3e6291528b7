"""Downloads an artifact that no node has: on a node, or weights on this machine where no node reaches the hub."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from sparkcluster.errors import HostSilent, RegistryAuth, SparkclusterError, StageError
from sparkcluster.node.shared import registry_of
from sparkcluster.report import size
from sparkcluster.runtime import observed
from sparkcluster.spec import Spec
from sparkcluster.staging.artifacts import download_request
from sparkcluster.staging.copy import Done, Failure, stage_error
from sparkcluster.staging.plan import Staging, no_weights
from sparkcluster.staging.pull import run_job
from sparkcluster.staging.retries import DOWNLOAD_NODES, combined
from sparkcluster.staging.transfers import Transfers


@dataclasses.dataclass
class Downloads:
    """The download of what ``staging`` lacks.

    Attributes:
        no_hub: nodes that do not reach the hub.
    """

    run: Transfers
    spec: Spec
    staging: Staging
    no_hub: set[str] = dataclasses.field(default_factory=set)

    def anywhere(self) -> str | Path:
        """Download it: the node that could, or the cache of this machine for weights where no node reaches the hub.

        Raises:
            SparkclusterError: of the first that tried, with those of the others.
        """
        from sparkcluster.fit.headers import is_offline  # noqa: PLC0415 - slow, and few need it

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
                # on a silent node that download continues by itself, and the uplink is slow
                if isinstance(error.__cause__, HostSilent) or type(error) is not StageError:
                    break
                self.run.progress(node, error.message)
            else:
                self.run.record(staging.what, node, "download", moved, begin)
                return node
        if staging.what == "weights" and len(self.no_hub) == len(errors):
            from sparkcluster.staging import local_weights  # noqa: PLC0415 - few runs need it

            try:
                return local_weights.download(self.run, self.spec)
            except StageError as error:
                errors.append(error)
        raise combined(errors)

    def on(self, node: str, digest: str | None = None) -> int:
        """Bytes that ``node`` downloaded; of an image by its ``digest``, if that is known.

        Raises:
            StageError: it could not, and why.
            RegistryAuth: the registry requires a login.
            LeaseLost: another operator has the lease.
        """
        from sparkcluster.fit.headers import is_gated  # noqa: PLC0415 - likewise

        name, model, run = self.staging.name, self.spec.playbook.model, self.run
        done, token = self._attempt(node, digest, None), os.environ.get("HF_TOKEN")
        # Whether the model is gated is the hub's word: by the node's alone, any node could ask for the token.
        if isinstance(done, Failure) and done.kind == "hub auth" and token and is_gated(str(model.id), model.revision):
            run.progress(node, f"{name} is gated: downloading it with HF_TOKEN")
            done = self._attempt(node, digest, token)
        if isinstance(done, Failure):
            raise self._error(node, done)
        if done.left_out_bytes:
            run.progress(node, f"{name}: {size(done.left_out_bytes)} that are not served stay on the hub")
        if done.whole:
            run.progress(node, f"{name}: the hub did not list its files, so all were downloaded")
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
        """The error of a download that failed on ``node``."""
        step, name, model = self.run.step(self.staging.what), self.staging.name, self.spec.playbook.model
        if done.kind in {"no hub", "no downloader"}:
            self.no_hub |= {node} if done.kind == "no hub" else set()
            return no_weights(self.run.facts, node, self.spec, why=done.text)
        causes = {
            "auth": (
                f"the registry of {name} requires a login on {node}",
                f"{f'docker login {registry_of(name)}'.strip()}   on {node}",
            ),
            "hub auth": (
                f"the hub denies {node} access to {model.id}",
                f"accept the terms on the page of {model.id}, then export HF_TOKEN=…, or hf auth login   on {node}",
            ),
            "registry": (
                f"no node has the image {name}, and {node} cannot pull it",
                f"docker pull {name}   on any node, or docker load -i FILE",
            ),
            "blobs": (
                f"Docker on {node} has another image with the same layers, compressed otherwise (containerd#8973)",
                f"docker image rm {name}, and the images that share its layers, then run this again   on {node}",
            ),
            "platform": (f"{name} has no build for {node}", "set image: in the playbook to one for linux/arm64"),
        }
        if done.kind not in causes:
            return stage_error(step, done)
        cause, hint = causes[done.kind]
        error = RegistryAuth if done.kind == "auth" else StageError
        return error(f"{cause}: {done.text}", node=node, step=step.name, hint=hint)
