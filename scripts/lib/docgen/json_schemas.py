"""The JSON that every command prints: docs/json.schema.json with one definition for each, and docs/json.md."""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from sparkcluster import errors
from sparkcluster.bench.record import Record
from sparkcluster.checks.check import Page
from sparkcluster.cli.commands import COMMANDS
from sparkcluster.facts.base import Unread
from sparkcluster.facts.between import HashedFile, Path, Rate
from sparkcluster.facts.model import Facts
from sparkcluster.facts.running import Observation, Reply
from sparkcluster.findings import Finding
from sparkcluster.inspect import state
from sparkcluster.inspect.preflight import Unasked
from sparkcluster.spec.playbook import Figure
from sparkcluster.staging.transfers import Copied
from sparkcluster.topology.model import Topology

Schema = dict[str, Any]

NAMED = {"sparkcluster__bench__record__": "Bench", "sparkcluster__facts__release_record__": ""}
"""Prefix that pydantic puts before a type name that two modules share, and its replacement."""

TYPES = {
    one.__name__: one
    for one in (
        Copied,
        Facts,
        Figure,
        Finding,
        HashedFile,
        Observation,
        Page,
        Path,
        Rate,
        Record,
        Reply,
        Topology,
        Unasked,
        Unread,
    )
}


def plain(kind: str, about: str = "", *, null: bool = False, **more: Any) -> Schema:
    """A value of one JSON type."""
    return {"type": [kind, "null"] if null else kind, **({"description": about} if about else {}), **more}


def text(about: str = "", *, null: bool = False, **more: Any) -> Schema:
    """A string."""
    return plain("string", about, null=null, **more)


def number(about: str = "", *, null: bool = False) -> Schema:
    """A number."""
    return plain("number", about, null=null)


def integer(about: str = "", *, null: bool = False) -> Schema:
    """A whole number."""
    return plain("integer", about, null=null)


def boolean(about: str = "", *, null: bool = False) -> Schema:
    """True or false."""
    return plain("boolean", about, null=null)


def many(items: Schema, about: str = "") -> Schema:
    """A list."""
    return plain("array", about, items=items)


def by_name(values: Schema, about: str = "", *, null: bool = False) -> Schema:
    """An object whose keys are names, such as nodes."""
    return plain("object", about, null=null, additionalProperties=values)


def anything(about: str, *, null: bool = False) -> Schema:
    """An object that is not documented further."""
    return by_name({}, about, null=null)


def record(_about: str = "", *, _null: bool = False, _optional: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object with these keys."""
    required = [name for name in properties if name not in _optional]
    return plain("object", _about, null=_null, properties=properties, required=required)


def ref(name: str) -> Schema:
    """A type of the package."""
    return {"$ref": f"#/$defs/{name}"}


STRINGS = many(text())
# Keywords of Python, so that they cannot be arguments.
FROM: dict[str, Any] = {"from": {"anyOf": [STRINGS, text(enum=["download", "build"])]}}
CLASS: dict[str, Any] = {"class": text(enum=["image", "weights", "arguments", "secrets", "addresses", "text"])}
WHY = by_name(text(), "reason why a node was skipped, by node")
STATES = list(state.STATES)
NEXT = text("next command to type")
VITALS = record(
    "current load of the node; null if unknown, or if no rank runs",
    _null=True,
    available_bytes=integer("MemAvailable"),
    total_bytes=integer(),
    cached_bytes=integer("page cache"),
    swap_used_bytes=integer(),
    swapped_pages_per_s=number("in and out", null=True),
    pressure=by_name(number(null=True), "share of time that tasks waited for cpu, memory or io, 0 to 1"),
    disk_read_per_s=number("bytes, of all disks", null=True),
    disk_written_per_s=number("bytes, of all disks", null=True),
    rdma=by_name(
        record(
            sent_per_s=number("bytes", null=True),
            received_per_s=number("bytes", null=True),
            errors=integer("in the last minute"),
        ),
        "by HCA",
    ),
    gpu=record(
        "null if nvidia-smi reports nothing",
        _null=True,
        utilization=number("0 to 1", null=True),
        clock_mhz=number(null=True),
        power_w=number(null=True),
        temperature_c=number(null=True),
        throttle={**STRINGS, "type": ["array", "null"]},
        source=text(),
    ),
    system_power_w=number("of the complete Spark, from the driver spbm", null=True),
)
MEASURED = record(
    "measurements of the links (--deep)",
    _null=True,
    rates=many(ref("Rate")),
    unasked=WHY,
    skipped=by_name(text(), "reason why a kind of measurement was skipped"),
    without_perftest=many(text(), "nodes without ib_write_bw"),
)
NODE_FACTS = by_name({"anyOf": [ref("Facts"), ref("Unread")]}, "facts by node, or the reason why there are none")
FINDINGS = many(ref("Finding"))
DIFFERENCES = many(
    record(
        **CLASS,
        group=text(),
        lines=STRINGS,
        cost=text(
            "nothing: no restart; restart: the group restarts; download: it restarts after files are copied",
            enum=["nothing", "restart", "download"],
        ),
    ),
    "differences between the running groups and the plan from playbook and inventory",
)
STAGING = many(
    record(
        what=text(enum=["weights", "image", "vocabulary", "ray", "files"]),
        name=text(),
        **FROM,
        parts=many(text(), "nodes that have some of its files, if no node has all"),
        missing=by_name(text(), "missing files, by node"),
        size_bytes=integer(null=True),
    )
)
EXPECTED = by_name(
    many(
        record(
            node=text(),
            source=text("a node, the host of a hub or registry, this machine, or build"),
            bytes=integer("null if unknown", null=True),
            over=text("network and interface"),
            encrypted=boolean(),
            seconds=number("expected duration; null if unknown", null=True),
            medium=text(enum=["rail", "wire", "wifi", "tunnel", "download", "ssh", "build"]),
        )
    ),
    "copies that would be made, by artifact (--dry-run)",
)
SPEED = record(before=number("tokens/s", null=True), after=number("tokens/s", null=True))
# Output of connect for each model.
REACHED: dict[str, Any] = {
    "cluster": text(),
    "release": integer("running release; null if the other keys come from the inventory", null=True),
    "endpoint": text("URL as this machine reaches it, ends in /v1; null if the address is unknown", null=True),
    "others": many(text(), "endpoints of the other groups; empty with --group"),
    "tunnel": text("command that has to run while the endpoint is used, or null", null=True),
    "model": text("model name for requests"),
    "key": record(
        "location of the API key; null without a key",
        _null=True,
        env=text(null=True),
        file=text(null=True),
        value=text("the key itself, with --show-key", null=True),
    ),
    "context": integer("tokens of prompt and answer; null if the playbook does not set it", null=True),
    "tools": plain("boolean", "whether requests may offer tools; null if unknown", null=True),
    "reasoning": plain("boolean", "whether reasoning is separate from the answer; null if unknown or none", null=True),
    "messages": plain("boolean", "whether it serves Anthropic's Messages API; null if unknown", null=True),
    "request": plain("object", "fields that clients should send in requests, from the playbook"),
}
# Output of up, upgrade, rollback and restart about the running release.
SERVES: dict[str, Any] = {
    "cluster": text(),
    "state": text(
        "on demand: stopped after it had answered; loaded by the next request",
        enum=["serving", "on demand"],
    ),
    "changed": boolean("whether anything was started or changed"),
    "release": integer(),
    "model": text(),
    "seconds": number(),
    "groups": many(record(name=text(), nodes=STRINGS, endpoint=text("ends in /v1"))),
    "after_ready": many(
        record(
            command=STRINGS,
            seconds=number(),
            problem=text("reason why it failed; does not change the exit code; null if it succeeded", null=True),
        ),
        "commands of the inventory that ran on this machine, in order",
    ),
    "drift": by_name(STRINGS, "changes of addresses and GID indices since the start, by group"),
    "from": integer("previous release; 0 without one"),
    "restored": integer("recorded release that runs again under a new number; 0 without one"),
    "moved_bytes": integer("bytes of image and weights that an upgrade copied while the previous release served"),
    "downtime_s": number("of the group with the longest downtime; 0 if nothing was stopped"),
    "speed": by_name(SPEED, "by group, if measured"),
}
SAVED = boolean("whether options that differ from the inventory were written into it")
REASON: dict[str, Any] = {
    "anyOf": [
        record(
            "with LaunchError: the log line with the cause",
            node=text("node of the log"),
            line=text(),
            number=integer("number of the line in file, from 1"),
            file=text("the saved log; empty if it could not be written"),
        ),
        {"type": "null"},
    ]
}
SPARKS = many(record(name=text(), host=text()))

DOCUMENTS: dict[str, Schema] = {
    "error": record(
        "what any command prints when it fails; in `error`: `kind` (second table of json.md), `message`, `node`, "
        "`step`, `hint`, and of some kinds `problems`, `log`, `reason`, `difference`, `others`",
        _optional=("findings",),
        error=record(
            _optional=("problems", "log", "reason", "difference", "others"),
            kind=text("stable name, as LeaseHeld"),
            message=text(),
            node=text("node that the error is about", null=True),
            step=text("step that failed", null=True),
            hint=text("what to type", null=True),
            problems=many(
                record(
                    file=text(), line=integer(), column=integer(), path=text(), message=text(), hint=text(null=True)
                ),
                "with SpecError: every problem in an inventory or playbook",
            ),
            log=many(
                text(), "with LaunchError: last log lines of the rank that failed; with BuildFailed: of the build"
            ),
            reason=REASON,
            difference=many(text(), "with OtherPlan: differences from the running plan, each line with class and cost"),
            others=many(
                record(
                    kind=text(),
                    message=text(),
                    node=text(null=True),
                    step=text(null=True),
                    hint=text(null=True),
                ),
                "failures of other nodes in the same step",
            ),
        ),
        findings=many(ref("Finding"), "with FoundErrors"),
    ),
    "event": record(
        "a line of --json-lines; the last line is the command's document or an error",
        _optional=(
            *("name", "node", "text", "what", "state", "bytes", "total", "rate_bytes_s", "remaining_s"),
            *("source", "medium", "encrypted"),
        ),
        at=number("seconds since 1970"),
        event=text(enum=["step", "progress", "transfer", "note"]),
        name=text("in step: connect, check, copy, stop, start, verify, rollback and others"),
        node=text("in progress and transfer"),
        text=text("in step, progress and note"),
        what=text("in transfer: the artifact, such as weights or image"),
        state=text("in transfer", enum=["copying", "complete", "skipped"]),
        bytes=integer("in transfer: bytes that the node has"),
        total=integer("in transfer: bytes in total; 0 if unknown"),
        rate_bytes_s=integer("in transfer: bytes per second over the last 10 s", null=True),
        remaining_s=number("in transfer", null=True),
        source=text("in transfer: a node, download, or controller: this machine", null=True),
        medium=text("in transfer, between nodes", null=True, enum=["rail", "wire", "wifi", "tunnel", None]),
        encrypted=boolean("in transfer: whether the connection is encrypted"),
    ),
    "discover": record(
        sparks=many(
            record(
                name=text("in the inventory"),
                host=text("in the inventory"),
                user=text("login name"),
                hostname=text(),
                dgx_os=text("version", null=True),
                found_by=text(enum=["inventory", "--host", "this machine", "mDNS", "cable"]),
            )
        ),
        skipped=many(record(name=text(), host=text(), why=text()), "machines that were reached and skipped"),
        cabling=many(
            record(
                kind=text(enum=["cable", "switch"]),
                ports=many(record(node=text(), port=text(), interfaces=STRINGS), "connected ports"),
            )
        ),
        troubles=many(record(name=text(), node=text(null=True), text=text(), hint=text())),
        inventory=text("the inventory, written or to write; null if there is nothing to write", null=True),
        file=text("path of the written file", null=True),
    ),
    "setup": record(
        "what would be changed (--dry-run), was changed, is set up (--show) or was undone",
        cluster=text(),
        changed=boolean("whether anything was run on the nodes"),
        nodes=by_name(
            record(
                _optional=(
                    "changes",
                    "script",
                    "login_script",
                    "done",
                    "failed",
                    "left",
                    "by_hand",
                    "error",
                    "journal",
                ),
                changes=many(
                    record(
                        step=text(),
                        found=text(),
                        wanted=text(),
                        blocked=text("reason why it cannot be changed now", null=True),
                        later=text("when it takes effect, if not immediately", null=True),
                        hint=text("what to type", null=True),
                    ),
                    "differences from the wanted state, and blocked changes",
                ),
                script=text("script for root; empty if none"),
                login_script=text("script for the login user; empty if none"),
                done=many(text(), "steps that were applied or undone"),
                failed=by_name(text(), "reason of the failure, by step"),
                left=many(text(), "changes that were not undone, with the reason"),
                by_hand=text("reason why you have to run root's script by hand", null=True),
                error=text("reason why a script did not run or did not end", null=True),
                journal=many(
                    record(
                        step=text(),
                        what=text("kind and target of the change"),
                        text=text("description of the change"),
                        at=number("seconds since 1970 by the node's clock"),
                        operator=text(),
                        state=text(enum=["as written", "as before", "changed since", "unknown"]),
                    ),
                    "with --show",
                ),
            )
        ),
        troubles=many(record(name=text(), node=text(null=True), text=text(), hint=text()), "problems of the cabling"),
        errors=by_name(text(), "errors of nodes that did not answer, by node"),
    ),
    "up": record(**SERVES),
    "upgrade": record(
        "with --dry-run, `cluster` and the keys from `dry_run` on; else the keys up to `saved`, `gateway` and `models`",
        _optional=(
            *(key for key in SERVES if key != "cluster"),
            *("saved", "dry_run", "differences", "staging", "expected", "versions", "image_known"),
            *("expected_downtime_s", "findings"),
        ),
        **SERVES,
        saved=SAVED,
        dry_run=boolean(),
        differences=DIFFERENCES,
        staging=STAGING,
        expected=EXPECTED,
        versions=many(text(), "versions in the image that would change"),
        image_known=boolean("whether every node has the image, so that its versions are known"),
        expected_downtime_s=number("duration of the last start", null=True),
        findings=FINDINGS,
    ),
    "rollback": record(_optional=("saved",), **SERVES, saved=SAVED),
    "restart": record(**SERVES),
    "down": record(
        cluster=text(),
        state=text("state on the nodes that were contacted", enum=["down"]),
        removed=by_name(STRINGS, "names of the removed ranks by node"),
        not_contacted=many(
            record(
                "a machine that is not in the inventory and may still run ranks; --also HOST stops them",
                name=text(),
                host=text(),
                named_by={**STRINGS, "description": "nodes that have it in a record"},
            )
        ),
    ),
    "enable": record(
        cluster=text(),
        enabled=boolean(),
        release=integer("release that is started after a reboot"),
        nodes=by_name(
            record(
                unit=text("path of the systemd unit; null without systemd", null=True),
                command=many(text(), "command of the unit"),
            )
        ),
    ),
    **dict.fromkeys(
        ("load", "unload"), record(cluster=text("of the model"), model=text(), text=text("status message"))
    ),
    "disable": record(cluster=text(), enabled=boolean(), nodes=many(text(), "nodes that were enabled")),
    "status": record(
        cluster=text(),
        state=text(enum=STATES),
        why=text("reason why it does not serve; null if it serves, starts or is down", null=True),
        next=NEXT,
        endpoint=text("of the first group, ends in /v1; null unless every group serves", null=True),
        model=text(null=True),
        image=text("as the playbook names it", null=True),
        digest=text("reference to pull the image, name@sha256:…", null=True),
        release=integer(null=True),
        lease=record(
            "the running operation that changes the cluster; null if none",
            _null=True,
            operator=text("user@host (pid)", null=True),
            operation=text("up, upgrade, rollback, down, restart, measure or prune", null=True),
            since=number("seconds since 1970", null=True),
            epoch=integer(),
        ),
        interrupted=record(
            "the unfinished upgrade or rollback; upgrade --resume finishes it if lease is null",
            _null=True,
            source=integer("previous release"),
            number=integer("new release"),
            back=integer("kept release, in a rollback", null=True),
            groups=STRINGS,
            operator=text("user@host (pid)"),
            began_at=number("seconds since 1970"),
        ),
        staging=record(
            "the running operation that stages; null if none",
            _null=True,
            operator=text("user@host (pid)", null=True),
            operation=text("stage, up, measure or prune", null=True),
            since=number("seconds since 1970", null=True),
            epoch=integer(),
            attached=boolean("whether the operator is connected; the operation continues without them"),
        ),
        enabled=boolean("whether it is restarted after a reboot of any node"),
        guards=by_name(text(), "reason why a guard would not restart its rank now, by node"),
        groups=many(
            record(
                name=text(),
                nodes=STRINGS,
                endpoint=text("ends in /v1; null for ranks without a recorded release", null=True),
                state=text(enum=STATES),
                release=integer(null=True),
                ready=boolean("whether it answered a completion just now"),
                why=text("reason why it is not ready", null=True),
                uptime_s=number("since its last rank started", null=True),
                load=record(
                    "from the engine's counters; null if they could not be read",
                    _null=True,
                    running=number("requests", null=True),
                    waiting=number("requests", null=True),
                    kv_cache=number("share in use, 0 to 1", null=True),
                    tokens_per_s=number("generated, sum of all requests", null=True),
                    prompt_tokens_per_s=number("of prompts; the following keys cover the last minute", null=True),
                    ttft_p50_s=number("time to first token, an upper bound from a histogram's bucket", null=True),
                    ttft_p95_s=number("time to first token, an upper bound", null=True),
                    itl_p50_s=number("time between tokens, an upper bound", null=True),
                    itl_p95_s=number("time between tokens, an upper bound", null=True),
                    hit_rate=number("share of the queried tokens that were in the prefix cache", null=True),
                    acceptance=number("share of the drafted tokens that were accepted", null=True),
                    accepted_length=number("tokens per step, including the token that needs no draft", null=True),
                    preemptions=number("of requests", null=True),
                ),
                warning=text("its endpoint is open to the network without a key; with the command to type", null=True),
            )
        ),
        nodes=many(
            record(
                name=text(),
                host=text(),
                role=text("head or worker", null=True),
                state=text("empty without a rank; unknown or unreachable if its ranks could not be read"),
                why=text(null=True),
                container=text(null=True),
                image=text("local image ID, or null", null=True),
                ray=text("alive or unknown; null without Ray", null=True),
                memory=record("", _null=True, total_bytes=integer(), available_bytes=integer()),
                vitals=VITALS,
            )
        ),
    ),
    "follow": record(
        "a line of status --follow --json",
        at=number("seconds since 1970"),
        inventory=text("name of the cluster; with several models, name of the file without its suffix"),
        state=text("worst state of the models", enum=STATES),
        checked_s=number("seconds since nodes were last queried for facts, and groups for a token"),
        models=many(
            plain("object"),
            "the status document of each, with name (null without models in the inventory), findings (errors and "
            "warnings of doctor), released_at (seconds since 1970, or null) and drawing (null here)",
        ),
        gateway=anything("as in status; null without a gateway", null=True),
        nodes=by_name(
            record(
                state=text(enum=["up", "lost"]),
                why=text("reason why it is lost", null=True),
                age_s=number("age of its last sample", null=True),
                vitals=VITALS,
            )
        ),
    ),
    "plan": record(
        "also printed by up --dry-run",
        cluster=text(),
        hash=text(),
        model=text(),
        image=text(null=True),
        after_ready=many(STRINGS, "commands that would run on this machine, as lists of arguments"),
        endpoints=by_name(text(), "by group"),
        groups=many(STRINGS, "names of the nodes of each group, head first"),
        nodes=by_name(
            record(
                group=text(),
                role=text(enum=["head", "worker"]),
                rank=integer(),
                env=by_name(text()),
                secrets=many(text(), "names only"),
                containers=many(
                    record(
                        name=text(),
                        image=text("local image ID; null with runtime process", null=True),
                        argv=STRINGS,
                        launcher=anything("input of the launcher in the container; not a stable format"),
                        env_file=text(null=True),
                    )
                ),
            )
        ),
        provisional=boolean("whether some node still lacks the image"),
        findings=FINDINGS,
        differences=DIFFERENCES,
    ),
    "preflight": record(
        ok=boolean(),
        cluster=text(),
        findings=FINDINGS,
        nodes=NODE_FACTS,
        topology={"anyOf": [ref("Topology"), {"type": "null"}]},
        netplan=by_name(text(), "a file for each node of a group whose twins share a subnet; otherwise empty"),
        reach=record("reachability between nodes", _null=True, paths=many(ref("Path")), unasked=WHY),
        measured=MEASURED,
        hashes=record(
            "SHA-256 of the weights (--hash)", _null=True, files=by_name(many(ref("HashedFile"))), unasked=WHY
        ),
        unasked=many(ref("Unasked"), "checks that cannot be run yet"),
        checks=integer("number of checks that were run"),
        seconds=number(),
        asks=many(text(), "kinds of permissions of playbook and inventory that up asks about first"),
        next=NEXT,
    ),
    "checks": record(checks=many(ref("Page"))),
    "doctor": record(
        ok=boolean(),
        cluster=text(),
        state=text(enum=STATES),
        next=NEXT,
        findings=FINDINGS,
        nodes=NODE_FACTS,
        running=record(
            nodes=by_name({"anyOf": [ref("Observation"), ref("Unread")]}, "ranks, counters and GPUs by node"),
            replies=by_name(ref("Reply"), "by group"),
            release=integer("newest recorded", null=True),
            operator=text("holder of the lease", null=True),
            operation=text("operation under the lease", null=True),
        ),
        seconds=number(),
    ),
    "logs": record(
        "with --json-lines: one element of lines per line",
        _optional=("failed",),
        cluster=text(),
        lines=many(
            record(
                node=text(),
                line=text(),
                at=text("time of the line, by this machine's clock (ISO 8601)", null=True),
            ),
            "by time",
        ),
        failed=record(
            "with --failed: the last launch that failed",
            at=text("time of the failure (ISO 8601)"),
            message=text(),
            hint=text("what to type", null=True),
            node=text("the node that failed", null=True),
            reason=REASON,
        ),
    ),
    "connect": record(
        _optional=("models",),
        **REACHED,
        models=many(
            record(
                name=text("for --model"),
                kind=text(enum=["chat", "embeddings", "rerank"]),
                **REACHED,
            ),
            "if the inventory has several models, in its order; the other keys are for the first model",
        ),
        client=record(
            "configuration of the client (--client), otherwise null",
            _null=True,
            name=text(),
            title=text(),
            where=text("where to paste the block"),
            block=text("text to paste"),
            warnings=many(text(), "settings that the playbook lacks; lines that begin with two blanks are to be typed"),
            notes=STRINGS,
            source=text("documentation of the client"),
        ),
        clients=many(record(name=text(), title=text(), about=text())),
    ),
    "key": record(
        file=text("file with the key"),
        key=text(enum=["created", "rotated", "kept"]),
        changed=boolean("whether the inventory was changed, to name the file"),
        difference=many(text(), "change of the inventory, as a unified diff"),
        curl=text("example command; the shell reads the key from the file"),
    ),
    "ask": record(
        group=text(),
        content=text(),
        reasoning=text(),
        tool_calls=plain("array"),
        finish_reason=text(null=True),
        usage=anything("as the engine reports it", null=True),
        ttft_s=number("seconds to the first token", null=True),
        total_s=number(),
        tokens_per_s=number("decode", null=True),
        status=integer("HTTP status"),
    ),
    "stage": record(
        cluster=text(),
        dry_run=boolean(),
        staging=STAGING,
        copied=many(ref("Copied")),
        verified=by_name(many(text()), "nodes where every byte was verified, by model (--verify)"),
        corrupt=many(
            record(
                model=text(),
                node=text(),
                file=text(),
                sha256=text("of the corrupt copy"),
                expected=text("SHA-256, or Git's hash of the content"),
                source=text("node of the copy that replaced it"),
            ),
            "copies that were corrupt (--verify)",
        ),
        warnings=many(text(), "copies that did not use the interconnect"),
        expected=EXPECTED,
    ),
    "models": record(
        cluster=text(),
        models=many(
            record(
                name=text("repository, or directory"),
                playbook=text("a specified playbook with this model", null=True),
                nodes=by_name(
                    record(
                        path=text(),
                        bytes=integer(),
                        commits=many(text()),
                        staged_bytes=integer("bytes of files that staging wrote and that did not change since"),
                        clusters=many(text(), "clusters that staged it"),
                        used_by=many(text(), "clusters whose releases or ranks use it"),
                    )
                ),
            )
        ),
        errors=by_name(text(), "reason why a node was skipped"),
        removed=by_name(by_name(integer("bytes"), "by node"), "by model (--prune)"),
    ),
    "releases": record(
        _optional=("releases", "old", "new", "differences"),
        cluster=text(),
        releases=many(
            record(
                number=integer(),
                plan_hash=text(),
                verified_at=number("seconds since 1970"),
                operator=text(),
                model=text(),
                image=text(null=True),
                digest=text("reference to pull the image, name@sha256:…", null=True),
                nodes=many(text(), "nodes that have the record"),
                running=boolean(),
                kept=boolean("whether its nodes keep image and secrets, to roll back to it"),
                lost=record(
                    image=many(text(), "nodes that keep the release, but lack the image"),
                    secrets=many(text(), "nodes that keep the release, but lack the secrets"),
                ),
                operation=text("operation that made it; empty in a record of an older version"),
                restores=integer("the release that it rolled back to; 0 for a new release"),
                changes=many(text(), "differences of its playbook from the previous release"),
            )
        ),
        old=integer("number of the first of two compared releases"),
        new=integer("number of the second"),
        differences=many(text(), "differences between the two, instead of the key releases"),
        errors=by_name(text(), "reason why a node or a record was skipped, or its kept images and secrets are unknown"),
    ),
    "playbooks": record(
        _optional=("playbooks", "playbook", "text", "left"),
        playbook=anything("with new, instead of the key playbooks: see docs/playbook.schema.json"),
        text=text("the same as YAML"),
        left=many(text(), "items to check before you serve it"),
        playbooks=many(
            record(
                name=text(),
                description=text(),
                use=text("purpose, in a few words"),
                purposes=many(text(), "values of --for that match it"),
                model=text(),
                image=text(null=True),
                tensor_parallel={},
                sparks=many(integer(), "possible numbers of Sparks in a group"),
                weights_bytes=integer("size of the model's files; null if not recorded", null=True),
                weights_counted=boolean("true: as published or by tensor; false: estimated from config.json"),
                overlays=STRINGS,
                source={"anyOf": [text(), STRINGS]},
                figures=many(ref("Figure")),
                path=text(),
            )
        ),
    ),
    "lint": record(ok=boolean(), findings=FINDINGS, nodes=record()),
    "import": record(
        playbook=anything("see docs/playbook.schema.json"),
        text=text("the playbook as YAML"),
        left=many(text(), "settings that were not imported"),
    ),
    "fit": record(
        _optional=(
            *("architecture", "quantization", "nodes", "tensor_parallel", "pipeline_parallel", "vllm_version"),
            *("vllm_version_is_known", "context", "concurrency_wanted", "gpu_memory_utilization"),
            *("gpu_memory_utilization_is_auto", "smallest_gpu_memory_utilization", "safe_gpu_memory_utilization"),
            *("kv_cache", "memory", "measured"),
            *("sparks", "playbook", "model", "recorded", "verdict", "advice", "not_counted"),
        ),
        sparks=many(
            record(
                node=text("of the inventory; with playbooks: spark-1, spark-2 and so on"),
                visible_bytes=integer("MemTotal"),
                system_bytes=integer("memory of the system without ranks"),
                kept_free_bytes=integer("memory that is kept free in addition"),
                parts=many(
                    record(
                        model=text("its name in the inventory, or the name of the playbook"),
                        on_demand=boolean("whether it is loaded in addition to always-on models"),
                        bytes=integer("memory while it serves; null if unknown", null=True),
                        kind=text(enum=["computed", "measured", "at most", "unknown"]),
                        weights_bytes=integer("null unless computed or measured, as the next two", null=True),
                        kv_cache_bytes=integer(null=True),
                        step_bytes=integer(null=True),
                        host_bytes=integer("of the engine's processes", null=True),
                        start_peak_bytes=integer("short peak during the start, more than bytes", null=True),
                    ),
                    "memory of each model on this node",
                ),
                free_bytes=integer("free after kept_free_bytes and models on demand; negative if they take more"),
                together=many(STRINGS, "if not all can run at the same time: for each model the largest set that can"),
            ),
            "for an inventory or several playbooks; the document then has only these, fits, problems and doubts",
        ),
        playbook=text(),
        model=text(),
        recorded=many(text(), "sources of the recorded data about the model; empty if the hub or a directory was read"),
        measured=record(
            "logged by the nodes of --inventory when this model was last verified there; null if it never was",
            _null=True,
            _optional=("load_gib", "kv_gib", "kv_tokens", "graphs_gib"),
            release=integer(),
            group=text(),
            nodes=integer("of the group"),
            args=anything("arguments of the playbook then that affect the memory"),
            load_gib=number("weights of a rank"),
            kv_gib=number("KV cache of a rank"),
            kv_tokens=number("KV cache"),
            graphs_gib=number("CUDA graphs of a rank"),
        ),
        architecture=text(),
        quantization=text(null=True),
        fits=boolean("null if too close to call, or not recorded", null=True),
        verdict=text("fits, too close to call, does not fit, or not recorded (no figures are known)"),
        problems=STRINGS,
        doubts=STRINGS,
        advice=STRINGS,
        not_counted=STRINGS,
        nodes=integer(),
        tensor_parallel=integer(),
        pipeline_parallel=integer(),
        vllm_version=text(),
        vllm_version_is_known=boolean(),
        context=integer(),
        concurrency_wanted=number(),
        gpu_memory_utilization=number("null if the size of the KV cache is set", null=True),
        gpu_memory_utilization_is_auto=boolean(),
        smallest_gpu_memory_utilization=number("for context and concurrency_wanted; null as above", null=True),
        safe_gpu_memory_utilization=number("the same with the upper bound of activations; null as above", null=True),
        kv_cache=record(
            set_by=text("the argument or variable that sets its size"),
            bytes_wanted=integer("for context and concurrency_wanted"),
            tokens=integer(),
            tokens_least=integer(),
            tokens_most=integer(),
            concurrency=number(),
            bytes=integer(),
            bytes_least=integer(),
            bytes_most=integer(),
            bytes_per_request=integer(),
            bytes_per_token=number(),
            block_bytes=integer(),
            groups=many(record(kind=text(), layers=integer(), block_tokens=integer(), page_bytes=integer())),
        ),
        memory=record(
            installed_bytes=integer(),
            visible_bytes=integer(),
            budget_bytes=integer(),
            weights_bytes=integer(),
            weights_counted=boolean("true: from the checkpoint's headers; false: estimated"),
            checkpoint_bytes=integer(),
            runtime_bytes=integer(),
            engine_host_bytes=integer(),
            left_for_system_bytes=integer(),
            system_needs_bytes=integer(),
        ),
    ),
    "bench": {
        "description": "a run is a BenchRecord (json.schema.json); list prints runs, compare and --ab the others",
        "anyOf": [
            ref("BenchRecord"),
            record(runs=many(ref("BenchRecord"))),
            record(
                a=many(text(), "names of the runs of A"),
                b=many(text(), "names of the runs of B"),
                marks=many(text(), "marks of any cell of these runs"),
                cells=many(
                    record(
                        prompt=integer("tokens"),
                        answer=integer("tokens"),
                        depth=integer("tokens of context before the prompt"),
                        concurrency=integer("concurrent requests"),
                        phase=text("prompt, or context (sent first)"),
                        metric=text("decode, prefill, decode_user (tokens/s), ttft_s or texts (texts/s)"),
                        a=many(number(), "a value for each pass of A"),
                        b=many(number()),
                        change=number("change of the median, relative to A"),
                        band=number("difference between passes of the same side, relative"),
                        verdict=text("on B", enum=["better", "worse", "noise"]),
                    ),
                ),
            ),
        ],
    },
    "lab": record(
        "up, down, fault and heal print the keys that concern them",
        _optional=(
            "inventory",
            "directory",
            "playbook",
            "identity",
            "password",
            "sparks",
            "removed",
            "fault",
            "healed",
        ),
        lab=text(),
        inventory=text("path of the lab's inventory; null for a bare lab", null=True),
        directory=text("directory with the files of the lab"),
        playbook=text("path of a playbook that fits the lab's engine"),
        identity=text("path of the operator's private key"),
        password=text("password of the user spark on every Spark of a bare lab; otherwise null", null=True),
        sparks=SPARKS,
        removed=boolean(),
        fault=text(),
        healed=STRINGS,
    ),
    "completion": record(shell=text(), script=text()),
    "export": record(
        "once it listens; with --once the metrics alone",
        _optional=("url", "metrics_url", "token_file", "metrics"),
        url=text("of the page"),
        metrics_url=text("for Prometheus"),
        token_file=text("file with the token that clients have to send; null on loopback", null=True),
        metrics=text("metrics in Prometheus' text format (--once)"),
    ),
}
DOCUMENTS["web"] = record(
    "once it listens",
    **{name: DOCUMENTS["export"]["properties"][name] for name in ("url", "metrics_url", "token_file")},
)


_GATEWAY = record(
    "the gateway, or its error; present only if the inventory has a gateway",
    _optional=("why", "models", "error"),
    node=text("node that runs it"),
    endpoint=text("URL for all models, ends in /v1; null if unknown or down", null=True),
    why=text("reason why it does not answer", null=True),
    models=many(
        record(
            _optional=("why", "waiting", "in_flight", "last_used_s", "progress"),
            name=text(),
            on_demand=boolean(),
            state=text("stopped, starting, ready, draining, stopping, failed, unreachable or unknown"),
            why=text(null=True),
            waiting=integer("waiting requests; this key and the next three are omitted while the state is unknown"),
            in_flight=integer("requests being answered"),
            last_used_s=number("seconds since its last request", null=True),
            progress=text("of a load, such as 42 %; otherwise empty"),
            planned_bytes=integer("planned memory on each of its nodes", null=True),
            measured_bytes=integer("memory on each of its nodes, measured after a start", null=True),
        )
    ),
    error=anything("see the document error"),
)
_GATEWAY["required"] = []
for _name in ("up", "upgrade", "restart", "rollback", "down", "status", "preflight"):
    DOCUMENTS[_name]["properties"]["gateway"] = _GATEWAY


for _name in (
    *(
        "up",
        "upgrade",
        "restart",
        "down",
        "enable",
        "disable",
        "status",
        "plan",
        "preflight",
        "doctor",
        "logs",
        "stage",
    ),
    *("releases", "error"),
):
    DOCUMENTS[_name]["properties"]["models"] = many(
        plain("object"),
        "only for an inventory with several models: the document or error of each model, with its name; "
        "the other keys are for the first model",
    )


def schema() -> Schema:
    """The text of docs/json.schema.json as an object: one definition per command, and the types they use."""
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (name, "serialization", TypeAdapter(kind)) for name, kind in TYPES.items()
    ]
    _, types = TypeAdapter.json_schemas(adapters, ref_template="#/$defs/{model}")
    typed = json.dumps(types["$defs"])
    for module, name in NAMED.items():
        typed = typed.replace(module, name)
    definitions = untitled(json.loads(typed))
    replace(definitions["RankSeen"], "log", log_lines=integer("number of log lines that were read", null=True))
    replace(definitions["Finding"], "remedies", remedy=many(text(), "steps to fix it, in order"))
    replace(definitions["Page"], "remedies", remedy=text())
    del definitions["Remedy"]
    replace(definitions["Reply"], "done")
    replace(definitions["Reply"], "counters")
    replace(definitions["Reply"], "footprint")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What sparkcluster prints with --json",
        "description": "One definition per command; readers must accept keys that are added later.",
        "$defs": {**DOCUMENTS, **definitions},
    }


def untitled(schema: Any) -> Any:
    """``schema`` without the titles that pydantic generates from names."""
    if isinstance(schema, list):
        return [untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: untitled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}


def replace(definition: Schema, name: str, **by: Schema) -> None:
    """Replace the key ``name``, which is printed in another form than the type's."""
    del definition["properties"][name]
    definition["properties"].update(by)
    definition["required"] = [one for one in definition["required"] if one != name] + list(by)


def page() -> str:
    """The text of docs/json.md."""
    lines = [
        "# JSON output",
        "",
        "With `--json` a command writes one document to stdout and nothing else, also if it fails; with `--json-lines`",
        "one event per line, and the document last. Later versions may add keys; they do not rename or remove any.",
        "With several models, keys such as `ok` and `state` are those of the first one (of `follow`: the worst state):",
        "read `models` and the exit code.",
        "[json.schema.json](json.schema.json) has a definition for each command, `error` and `event`.",
        "",
        "| document | keys |",
        "|---|---|",
    ]
    for name, document in DOCUMENTS.items():
        several = document.get("anyOf", [document])
        keys = ", ".join(f"`{key}`" for each in several for key in each.get("properties", ()))
        about = f"{document['description']}. Keys: " if "description" in document else ""
        lines.append(f"| `{name}` | {about}{keys} |")
    codes = {kind.__name__: kind.exit_code for kind in _kinds(errors.SparkclusterError)}
    lines += ["", "| kind of error | exit code |", "|---|---|"]
    for code in sorted(set(codes.values())):
        names = ", ".join(f"`{name}`" for name in sorted(codes) if codes[name] == code)
        lines.append(f"| {names} | {code} |")
    return "\n".join([*lines, ""])


def _kinds(kind: type[errors.SparkclusterError]) -> list[type[errors.SparkclusterError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in _kinds(below))]


def files() -> dict[str, str]:
    """Both files by name."""
    assert set(DOCUMENTS) == {*COMMANDS, "error", "event", "follow"}
    return {
        "json.schema.json": json.dumps(schema(), indent=1, ensure_ascii=False) + "\n",
        "json.md": page(),
    }


def closed(schema: Any) -> Any:
    """``schema``, with additional keys forbidden in every object."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if isinstance(out.get("properties"), dict) and out.get("type") in ("object", ["object", "null"]):
        out.setdefault("additionalProperties", False)
    return out


def validate(name: str, document: Any) -> None:
    """Raise unless ``document`` matches the schema of the command ``name``, without additional keys."""
    import jsonschema

    jsonschema.Draft202012Validator({**_strict(), "$ref": f"#/$defs/{name}"}).validate(document)


@functools.cache
def _strict() -> Schema:
    strict: Schema = closed(schema())
    return strict
