"""Builds an image on this node, of files that were sent here.

A job (``job``) builds, which outlives the operator's connection; it changes nothing but Docker's store of images, and
ends by itself. The request says ``do`` (build or cancel), ``reference`` (the name that the image gets), ``base`` (the
image that it is built on), ``folder``, which of its files is the ``dockerfile`` or, instead of it, a ``script``,
``limit_s``, and the lease. Each reference has a job, in ``state_dir/builds/HASH``.
"""

from __future__ import annotations

import collections
import hashlib
import os
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, programs, wire
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

LINES = 20  # of the log of a build that failed
_LINE = 300
_PAUSE_S = 1.0  # between two words about it
_ADOPTED_S = 180.0  # who holds the lease may want the same image

# BuildKit's own format moves the cursor; another builder than Docker's would keep the image to itself.
_ENVIRONMENT = {"BUILDKIT_PROGRESS": "plain", "BUILDX_BUILDER": "default", "DOCKER_CLI_HINTS": "false"}
# Attestations would make it an image for several platforms, one of them unknown.
_ENVIRONMENT["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Build, or end the build; the answer is that of ``wire.answer``."""
    action = cancel if request["do"] == "cancel" else build
    return wire.answer(request, stdin, lambda check: action(request, check))


def build(request: Request, check: wire.Check) -> dict[str, Any]:
    """Follow the build of the reference, which is started unless it is under way, to its end."""
    return job.run(_directory(request), common.lease_of(request), lambda own: _Builder(request, own).build(), check)


def cancel(request: Request, check: wire.Check) -> dict[str, Any]:
    """End the build of the reference, if one is under way and no other operator wants it."""
    job.cancel(_directory(request), common.lease_of(request))
    return {}


def running_script(script: str) -> str:
    """The Dockerfile of an image in which ``script`` has run, in a directory with its other files."""
    return "ARG BASE\nFROM $BASE\nCOPY . /sparkcluster-build\nRUN cd /sparkcluster-build && sh ./%s\n" % script


def _directory(request: Request) -> str:
    name = hashlib.sha256(request["reference"].encode()).hexdigest()[:16]
    return os.path.join(common.private(request["state_dir"]), "builds", name)


class _Builder:
    """The process that builds."""

    def __init__(self, request: Request, own: job.Job) -> None:
        self.request = request
        self.job = own
        self.last: collections.deque[str] = collections.deque(maxlen=LINES)
        self.rest = b""

    def build(self) -> dict[str, Any]:
        """Run the build, and look for the image."""
        until, said = time.monotonic() + self.request["limit_s"], 0.0
        with programs.started(self._command(), env=dict(os.environ, **_ENVIRONMENT)) as process:
            for chunk in programs.chunks(process, _PAUSE_S):
                self._read(chunk)
                self.job.check(_ADOPTED_S, held=True)
                now = time.monotonic()
                if now >= until:
                    raise self._failed("it took longer than %d s (timeout_s)" % self.request["limit_s"])
                if now - said >= _PAUSE_S:
                    said = now
                    self.job.say(line=self.last[-1] if self.last else "")
        self._read(b"\n")
        if process.returncode:
            raise self._failed("docker build: exit code %d" % process.returncode)
        if programs.inspect(docker.inspect_image(self.request["reference"])) is None:
            raise self._failed("docker build ended without the image")
        return {"bytes": 0}

    def _command(self) -> list[str]:
        folder = common.inside(self.request["folder"], self.request["state_dir"])
        if self.request["script"]:
            file = os.path.join(self.job.directory, "Dockerfile")
            common.write_atomically(file, running_script(self.request["script"]).encode())
        else:
            file = os.path.join(folder, self.request["dockerfile"])
        return docker.build(self.request["reference"], self.request["base"], file, folder)

    def _read(self, chunk: bytes) -> None:
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.last.extend(line.decode(errors="replace").strip()[:_LINE] for line in lines if line.strip())
        self.rest = self.rest[-_LINE:]

    def _failed(self, why: str) -> Failed:
        self.job.say(line="", log=list(self.last))
        return Failed("build", why)
