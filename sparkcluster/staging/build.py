"""Builds the image of a playbook with ``build`` on one node; from there it is copied as any image."""

from __future__ import annotations

import time

from sparkcluster.errors import BuildFailed
from sparkcluster.report import count
from sparkcluster.spec import Spec
from sparkcluster.spec.playbook import Build
from sparkcluster.spec.playbook_files import Beside
from sparkcluster.staging import playbook_files
from sparkcluster.staging.copy import Answer, Failure, stage_error
from sparkcluster.staging.plan import Staging
from sparkcluster.staging.pull import run_job
from sparkcluster.staging.transfers import Transfers


def on_a_node(run: Transfers, spec: Spec, files: Beside, staging: Staging) -> str:
    """Send ``files`` to the first node that lacks the image, and build it there; returns that node.

    Raises:
        BuildFailed: the build failed; with its last lines.
        StageError: the files did not reach the node, or it stayed silent; a build that was begun goes on there.
        LeaseLost: another operator has the lease.
    """
    node, begin = staging.download[0], time.monotonic()
    facts, wanted = run.facts[node], spec.playbook.build or Build(context=files.source)
    if files.mark not in facts.files:
        run.send("files", node, playbook_files.files(files, facts.state_dir), files.size_bytes)
    run.shown.note(f"building {staging.name} on {node}, of {spec.playbook.image} and {files.source}")
    log: list[str] = []

    def heard(last: Answer) -> None:
        log[:] = last.log or log
        minutes = int(time.monotonic() - begin) // 60
        run.progress(node, f"building, {count(minutes, 'minute')}: {''.join(log[-1:])}")

    request = {
        "reference": staging.name,
        "base": spec.playbook.image,
        "folder": files.place(facts.state_dir),
        "dockerfile": wanted.dockerfile,
        "script": wanted.script,
        "limit_s": wanted.timeout_s,
    }
    done = run_job(run.step("image"), run.fleet[node], "build", request, heard=heard)
    if isinstance(done, Failure) and done.kind == "build":
        what = wanted.script or wanted.dockerfile
        raise BuildFailed(
            f"{files.source} could not be built on {node}: {done.text}",
            node=node,
            step="copy image",
            hint=f"change {files.source}/{what}, then run this again; nothing else was changed",
            log=log,
        )
    if isinstance(done, Failure):
        raise stage_error(run.step("image"), done)
    run.record("image", node, "build", 0, begin)
    return node
