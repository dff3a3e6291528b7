"""Lists what a node has of a model, and begins the worker that brings it a model or an image.

The request says ``do`` (list or begin) and the lease (``state_dir``, ``cluster``,
``epoch``).

``list`` says what this node has below ``root`` of what is served (``choice``, see ``model_choice``), with ``revision``
of that snapshot in Hugging Face's cache. The controller checks that and makes the list of files that all workers get,
so that no node decides what is written on another. With ``verify`` all files are read.

``begin``: see ``worker``. For an image it has ``image_id``, ``reference``, ``size``, the ``bytes`` of it that are to
come, of each layer what all receivers have (``have``, see ``image_record.dropped``), what ``image_archive`` expects of
what ``docker save`` sends, Docker's ``images_dir``, and for the sender the bytes that Docker writes there (``spool``).
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from sparkcluster.node import common, wire, worker
from sparkcluster.node.file_hashes import Record
from sparkcluster.node.listing import Reads, listing
from sparkcluster.node.wire import Check

Request = dict[str, Any]


def main(request: Request, stdin: BinaryIO) -> dict[str, Any] | None:
    """List, which needs no lease, or begin; the answer is that of ``wire.answer``."""
    if request["do"] == "list" and "epoch" not in request:
        common.end_with(stdin)
        return wire.outcome(lambda: list_files(request))
    if request["do"] == "begin":
        common.emit(wire.outcome(lambda: worker.begin(request, stdin)))
        os._exit(0)  # a thread still reads the input

    return wire.answer(request, stdin, lambda check: list_files(request, check))


def list_files(request: Request, check: Check = lambda: None) -> dict[str, Any]:
    """Emit each file of the directory or snapshot: its ``name`` there, and the ``blob`` that it links to.

    What was read is recorded under a lease alone: without one nothing is changed here.
    """
    record = Record(request["state_dir"], request["root"]) if "epoch" in request else None
    reads: Reads = "all" if request.get("verify") else "small"

    def check_and_save() -> None:
        if record is not None:
            record.save(request["cluster"], soon=True)  # this program may be killed
        check()

    try:
        choice = request.get("choice")
        found = listing(request["root"], request.get("revision"), choice, record, reads=reads, check=check_and_save)
    finally:
        if record is not None:
            record.save(request["cluster"])
    for each in found:
        common.emit({"file": each.as_json()})
    return {}
