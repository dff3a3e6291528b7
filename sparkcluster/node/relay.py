"""Lists what a node has of a model, begins its worker, and copies an image from or to another node.

Python 3.8, standard library only. The request says ``do`` (list, begin, send or receive) and the lease (``state_dir``,
``cluster``, ``epoch``).

``list`` says what this node has below ``root`` of what is served (``choice``, see ``model_choice``), with ``revision``
of that snapshot in Hugging Face's cache. The controller checks that and makes the list of files that all workers get,
so that no node decides what is written on another. With ``verify`` all files are read. ``begin``: see ``worker``.

Image: ``send`` and ``receive`` have ``address``, ``token``, for a receiver ``port``, ``image_id``, ``reference``,
``size``, the ``bytes`` of it that are to come, of each layer what the receiver has (``have``, see
``image_layers.dropped``), and what ``image_archive`` expects of what ``docker save`` sends.
"""

from __future__ import annotations

import os
from typing import Any, BinaryIO, Callable, Dict, Optional

from sparkcluster.node import common, docker_copy, wire, worker
from sparkcluster.node.listing import Reads, listing
from sparkcluster.node.record import Record
from sparkcluster.node.wire import Check, Wire

Request = Dict[str, Any]


def main(request: Request, stdin: BinaryIO) -> Optional[Dict[str, Any]]:
    """Copy; the answer is that of ``wire.answer``. What only lists, without a lease, answers as ``wire.report``."""
    if request["do"] == "list" and "epoch" not in request:
        wire.report(stdin, lambda: list_files(request))
        return None
    if request["do"] == "begin":
        common.emit(wire.outcome(lambda: worker.begin(request, stdin)))
        os._exit(0)  # a thread still reads the input

    def work(check: Check) -> dict[str, Any]:
        if request["do"] == "list":
            return list_files(request, check)
        if request["do"] == "send":
            line = Wire(wire.accept(request["address"], request["token"])[0])
        else:
            line = Wire(wire.dial(request["address"], request["port"], request["token"]))
        try:
            return _ROLES[request["do"]](request, line, check)
        finally:
            line.close()

    return wire.answer(request, stdin, work)


def list_files(request: Request, check: Check = lambda: None) -> dict[str, Any]:
    """Emit each file of the directory or snapshot: its ``name`` there, and the ``blob`` that it links to.

    What was read is recorded under a lease alone: without one nothing is changed here.
    """
    record = Record(request["state_dir"], request["root"]) if "epoch" in request else None
    reads: Reads = "all" if request.get("verify") else "small"
    try:
        choice = request.get("choice")
        found = listing(request["root"], request.get("revision"), choice, record, reads=reads, check=check)
    finally:
        if record is not None:
            record.save(request["cluster"])
    for each in found:
        common.emit({"file": each.as_json()})
    return {}


_ROLES: Dict[str, Callable[[Request, Wire, Check], Dict[str, Any]]] = {
    "send": docker_copy.send,
    "receive": docker_copy.receive,
}
