"""Builds an image on this node, of files that were sent here.

A job (``job``) builds, which outlives the operator's connection; it changes nothing but Docker's store of images, and
ends by itself. The request says ``do`` (run or cancel), ``reference`` (the name that the image gets), ``base`` (the
image that it is built on), ``folder``, which of its files is the ``dockerfile`` or, instead of it, a ``script``,
``limit_s``, and the lease. Each reference has a job, in ``state_dir/builds/HASH``.
"""

from __future__ import annotations

import os
import time
from typing import Any, BinaryIO

from sparkcluster.node import common, docker, job, programs
from sparkcluster.node.wire import Failed

Request = dict[str, Any]

LINES = 20  # of the log of a build

# BuildKit's own format moves the cursor; another builder than Docker's would keep the image to itself.
_ENVIRONMENT = {"BUILDKIT_PROGRESS": "plain", "BUILDX_BUILDER": "default", "DOCKER_CLI_HINTS": "false"}
# Attestations would make it an image for several platforms, one of them unknown.
_ENVIRONMENT["BUILDX_NO_DEFAULT_ATTESTATIONS"] = "1"


# An image in which a script has run, in a directory with its other files.
_SCRIPTED = "ARG BASE\nFROM $BASE\nCOPY . /sparkcluster-build\nRUN cd /sparkcluster-build && sh ./%s\n"


def main(request: Request, stdin: BinaryIO) -> dict[str, Any]:
    """Build, or end the build; the answer is that of ``wire.answer``."""
    return job.answer(request, stdin, "builds", request["reference"], lambda own: build(request, own))


def build(request: Request, own: job.Job) -> dict[str, Any]:
    """Run the build, and look for the image."""
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
