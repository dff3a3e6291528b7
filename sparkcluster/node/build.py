"""Builds an image on this node from files that were sent here.

The build is a job (``job``), which survives a lost connection; it changes only Docker's image store, and ends
automatically. The request has ``do`` (run or cancel), ``reference`` (name of the new image), ``base`` (the base image),
``folder``, the name of its ``dockerfile`` or of a ``script``, ``limit_s``, and the lease. Each reference has one job,
in ``state_dir/builds/HASH``.
"""

from __future__ import annotations

import os
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, programs
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

LINES = 20  # kept from the log of a build

# BuildKit's default format moves the cursor; a builder other than Docker's would not store the image in Docker.
_ENVIRONMENT = {"BUILDKIT_PROGRESS": "plain", "BUILDX_BUILDER": "default", "DOCKER_CLI_HINTS": "false"}
# Attestations would make it a multi-platform image with one unknown platform.
_ENVIRONMENT["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"


# The image runs a script in a directory with the files.
_SCRIPTED = "ARG BASE\nFROM $BASE\nCOPY . /sparkcluster-build\nRUN cd /sparkcluster-build && sh ./%s\n"


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Build, or cancel the build; answers as ``wire.answer``."""
    return job.answer(request, stdin, "builds", request["reference"], lambda own: build(request, own))


def build(request: Request, own: job.Job) -> dict[str, Any]:
    """Run the build, and check that the image exists."""
    until = time.monotonic() + request["limit_s"]

    def tell(tail: bytes) -> None:
        own.say({"log": _lines(tail)})
        if time.monotonic() >= until:
            raise Failed("build", "it took longer than %d s (timeout_s)" % request["limit_s"])

    code, tail = programs.watched(_command(request, own.directory), tell, env=dict(os.environ, **_ENVIRONMENT))
    own.say({"log": _lines(tail)})
    if code:
        raise Failed("build", "docker build: exit code %d" % code)
    if programs.inspect(docker.inspect_image(request["reference"])) is None:
        raise Failed("build", "docker build ended without the image")
    return {"bytes": 0}


def _lines(tail: bytes) -> list[str]:
    lines = map(str.strip, tail.decode(errors="replace").splitlines())
    return list(filter(None, lines))[-LINES:]


def _command(request: Request, directory: str) -> list[str]:
    folder = common.inside(request["folder"], request["state_dir"])
    if request["script"]:
        file = os.path.join(directory, "Dockerfile")
        common.write_atomically(file, (_SCRIPTED % request["script"]).encode())
    else:
        file = os.path.join(folder, request["dockerfile"])
    return docker.build(request["reference"], request["base"], file, folder)
