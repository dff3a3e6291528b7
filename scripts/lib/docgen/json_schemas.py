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
"""What the names of types begin with that two modules have: of each module, which pydantic puts before them."""

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
    """An object whose keys are names, as of nodes."""
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
WHY = by_name(text(), "why a node is left out, by node")
STATES = list(state.STATES)
NEXT = text("what to type next")
VITALS = record(
    "what the node does now; null where that is unknown, or nothing runs",
    _null=True,
    available_bytes=integer("MemAvailable"),
    total_bytes=integer(),
    cached_bytes=integer("page cache"),
    swap_used_bytes=integer(),
    swapped_pages_per_s=number("in and out", null=True),
    pressure=by_name(number(null=True), "share of time for which a task waited for cpu, memory or io, 0 to 1"),
    disk_read_per_s=number("bytes, of all disks", null=True),
    disk_written_per_s=number("bytes, of all disks", null=True),
    rdma=by_name(
        record(
            sent_per_s=number("bytes", null=True),
            received_per_s=number("bytes", null=True),
            errors=integer("of the last minute"),
        ),
        "by HCA",
    ),
    gpu=record(
        "null where nvidia-smi reports nothing",
        _null=True,
        utilization=number("0 to 1", null=True),
        clock_mhz=number(null=True),
        power_w=number(null=True),
        temperature_c=number(null=True),
        throttle={**STRINGS, "type": ["array", "null"]},
        source=text(),
    ),
    system_power_w=number("of the whole Spark, by the driver spbm", null=True),
)
MEASURED = record(
    "what the links carry (--deep)",
    _null=True,
    rates=many(ref("Rate")),
    unasked=WHY,
    skipped=by_name(text(), "why a kind of measurement was not taken"),
    without_perftest=many(text(), "nodes without ib_write_bw"),
)
NODE_FACTS = by_name({"anyOf": [ref("Facts"), ref("Unread")]}, "facts by node, or why there are none")
FINDINGS = many(ref("Finding"))
DIFFERENCES = many(
    record(
        **CLASS,
        group=text(),
        lines=STRINGS,
        cost=text(
            "nothing: no restart; restart: the group restarts; download: bytes move first, then it restarts",
            enum=["nothing", "restart", "download"],
        ),
    ),
    "what groups that run differ in from the plan, from playbook and inventory",
)
STAGING = many(
    record(
        what=text(enum=["weights", "image", "vocabulary", "ray", "files"]),
        name=text(),
        **FROM,
        parts=many(text(), "nodes that have some of its files, where none has all"),
        missing=by_name(text(), "what each node lacks"),
        size_bytes=integer(null=True),
    )
)
EXPECTED = by_name(
    many(
        record(
            node=text(),
            source=text("a node, the host of a hub or registry, this machine, or build"),
            bytes=integer("null while it is unknown", null=True),
            over=text("network and interface"),
            encrypted=boolean(),
            seconds=number("expected duration; null if unknown", null=True),
            medium=text(enum=["rail", "wire", "wifi", "tunnel", "download", "ssh", "build"]),
        )
    ),
    "what would move, by the name of the artifact (--dry-run)",
)
SPEED = record(before=number("tokens/s", null=True), after=number("tokens/s", null=True))
# What connect says of each model.
REACHED: dict[str, Any] = {
    "cluster": text(),
    "release": integer("that serves; null where the rest is what the inventory says", null=True),
    "endpoint": text("as the user's machine reaches it, ends in /v1; null where only the nodes know it", null=True),
    "others": many(text(), "endpoints of the other groups, unless --group chose one"),
    "tunnel": text("command that has to run while it is used, or null", null=True),
    "model": text("name that requests carry"),
    "key": record("where the API key is, null without one", _null=True, env=text(null=True), file=text(null=True)),
    "context": integer("tokens of prompt and answer, null where the playbook does not say", null=True),
    "tools": plain("boolean", "whether requests may offer tools, null if unknown", null=True),
    "reasoning": plain("boolean", "whether reasoning is apart from the answer, null if unknown or none", null=True),
    "messages": plain("boolean", "whether it serves Anthropic's Messages API, null if unknown", null=True),
    "request": plain("object", "fields that the playbook tells clients to send in requests"),
}
# What up, upgrade, rollback and restart say of what serves.
SERVES: dict[str, Any] = {
    "cluster": text(),
    "state": text(
        "on demand: it was stopped once it had answered, or is loaded when it is asked for",
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
            problem=text("why it counts as failed, which changes no exit code; null where it did not", null=True),
        ),
        "commands of the inventory that ran on the controller, in order",
    ),
    "drift": by_name(STRINGS, "addresses and GID indices that changed since the start, in lines by group"),
    "from": integer("the release that served before; 0 without one"),
    "restored": integer("the release that serves again, under a new number; 0 without one"),
    "moved_bytes": integer("of image and weights, that an upgrade copied while the release before served"),
    "downtime_s": number("of the group that was longest without an answer; 0 where nothing was stopped"),
    "speed": by_name(SPEED, "by group, where it was measured"),
}
SAVED = boolean("whether what was chosen was written into the inventory, where it says otherwise")
REASON: dict[str, Any] = {
    "anyOf": [
        record(
            "of LaunchError: the log line that says why",
            node=text("whose log has it"),
            line=text(),
            number=integer("of the line in file, from 1"),
            file=text("the saved log; empty if it could not be written"),
        ),
        {"type": "null"},
    ]
}
SPARKS = many(record(name=text(), host=text()))

DOCUMENTS: dict[str, Schema] = {
    "error": record(
        "what any command prints when it fails; `kind` is a name below",
        _optional=("findings",),
        error=record(
            _optional=("problems", "log", "reason", "difference", "others"),
            kind=text("stable name, as LeaseHeld"),
            message=text(),
            node=text("the node it is about", null=True),
            step=text("what was being done", null=True),
            hint=text("what to type", null=True),
            problems=many(
                record(
                    file=text(), line=integer(), column=integer(), path=text(), message=text(), hint=text(null=True)
                ),
                "of SpecError: every problem in an inventory or playbook",
            ),
            log=many(text(), "of LaunchError: last log lines of the rank that failed; of BuildFailed: of the build"),
            reason=REASON,
            difference=many(
                text(), "of OtherPlan: what differs from the plan that serves, each line with class and cost"
            ),
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
        findings=many(ref("Finding"), "of FoundErrors"),
    ),
    "event": record(
        "a line of --json-lines; the last line is the command's document or an error",
        _optional=(
            *("name", "node", "text", "what", "state", "bytes", "total", "rate_bytes_s", "remaining_s"),
            *("source", "medium", "encrypted"),
        ),
        at=number("seconds since 1970"),
        event=text(enum=["step", "progress", "transfer", "note"]),
        name=text("of a step: connect, check, copy, stop, start, verify, rollback and others"),
        node=text("of progress and of a transfer"),
        text=text("of a step, progress and a note"),
        what=text("of a transfer: what the node gets, such as weights or image"),
        state=text("of a transfer", enum=["copying", "complete", "left out"]),
        bytes=integer("of a transfer: that the node has"),
        total=integer("of a transfer: that are staged; 0 if that is unknown"),
        rate_bytes_s=integer("of a transfer: over the last 10 s", null=True),
        remaining_s=number("of a transfer", null=True),
        source=text("of a transfer: a node, download or controller", null=True),
        medium=text("of a transfer between nodes", null=True, enum=["rail", "wire", "wifi", "tunnel", None]),
        encrypted=boolean("of a transfer: on the way"),
    ),
    "discover": record(
        sparks=many(
            record(
                name=text("in the inventory"),
                host=text("in the inventory"),
                user=text("login name"),
                hostname=text(),
                dgx_os=text("version", null=True),
                found_by=text(enum=["inventory", "given", "this machine", "mDNS", "cable"]),
            )
        ),
        skipped=many(record(name=text(), host=text(), why=text()), "machines that were reached and are left out"),
        cabling=many(
            record(
                kind=text(enum=["cable", "switch"]),
                ports=many(record(node=text(), port=text(), interfaces=STRINGS), "that are connected by it"),
            )
        ),
        troubles=many(record(name=text(), node=text(null=True), text=text(), hint=text())),
        inventory=text("the inventory that was written or can be; null if there is nothing to write", null=True),
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
                        blocked=text("why it cannot be changed now", null=True),
                        later=text("when it takes effect, if not immediately", null=True),
                        hint=text("what to type", null=True),
                    ),
                    "differences from the wanted state, and blocked changes",
                ),
                script=text("what root runs; empty for nothing"),
                login_script=text("what the login runs; empty for nothing"),
                done=many(text(), "steps that were done or undone"),
                failed=by_name(text(), "by step, why it failed"),
                left=many(text(), "what an undo left, and why"),
                by_hand=text("why root's script has to be run by hand", null=True),
                error=text("why a script did not run, or did not end", null=True),
                journal=many(
                    record(
                        step=text(),
                        what=text("kind and target of the change"),
                        text=text("what was changed, in words"),
                        at=number("seconds since 1970 by the node's clock"),
                        operator=text(),
                        state=text(enum=["as written", "as before", "changed since", "unknown"]),
                    ),
                    "of --show",
                ),
            )
        ),
        troubles=many(record(name=text(), node=text(null=True), text=text(), hint=text()), "of the cabling"),
        errors=by_name(text(), "nodes that did not answer"),
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
        versions=many(text(), "versions that would change inside the image"),
        image_known=boolean("whether every node has the image, so that its versions are known"),
        expected_downtime_s=number("how long the last start took", null=True),
        findings=FINDINGS,
    ),
    "rollback": record(_optional=("saved",), **SERVES, saved=SAVED),
    "restart": record(**SERVES),
    "down": record(
        cluster=text(),
        state=text("of the nodes that were contacted", enum=["down"]),
        removed=by_name(STRINGS, "names of the removed ranks by node"),
        not_contacted=many(
            record(
                "a machine that is not in the inventory and may still run ranks; --also HOST stops them",
                name=text(),
                host=text(),
                named_by={**STRINGS, "description": "nodes whose record has it"},
            )
        ),
    ),
    "enable": record(
        cluster=text(),
        enabled=boolean(),
        release=integer("that comes back after a reboot"),
        nodes=by_name(
            record(
                unit=text("path of the systemd unit; null without systemd", null=True),
                command=many(text(), "that the unit runs"),
            )
        ),
    ),
    **dict.fromkeys(
        ("load", "unload"), record(cluster=text("of the model"), model=text(), text=text("what happens now"))
    ),
    "disable": record(cluster=text(), enabled=boolean(), nodes=many(text(), "that were enabled")),
    "status": record(
        cluster=text(),
        state=text(enum=STATES),
        why=text("why it does not serve; null where it does, starts or is down", null=True),
        next=NEXT,
        endpoint=text("of the first group, ends in /v1; null unless every group serves", null=True),
        model=text(null=True),
        image=text("as the playbook names it", null=True),
        digest=text("the image as any node can pull it, name@sha256:…", null=True),
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
            "the upgrade or rollback that was begun and not ended; upgrade --resume ends it if lease is null",
            _null=True,
            source=integer("release that served before"),
            number=integer("of the new release"),
            back=integer("kept release that is gone back to", null=True),
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
        enabled=boolean("whether it comes back after a reboot of any node"),
        guards=by_name(text(), "why a guard would not bring its rank back now, by node"),
        groups=many(
            record(
                name=text(),
                nodes=STRINGS,
                endpoint=text("ends in /v1; null of ranks that no release recorded", null=True),
                state=text(enum=STATES),
                release=integer(null=True),
                ready=boolean("whether it answered a completion just now"),
                why=text("why it is not ready", null=True),
                uptime_s=number("since its last rank started", null=True),
                load=record(
                    "by the engine's own counters; null where they could not be read",
                    _null=True,
                    running=number("requests", null=True),
                    waiting=number("requests", null=True),
                    kv_cache=number("share in use, 0 to 1", null=True),
                    tokens_per_s=number("generated, of all requests together", null=True),
                    prompt_tokens_per_s=number("of prompts; the following keys cover the last minute", null=True),
                    ttft_p50_s=number("time to first token, an upper bound from a histogram's bucket", null=True),
                    ttft_p95_s=number("time to first token, an upper bound", null=True),
                    itl_p50_s=number("time between tokens, an upper bound", null=True),
                    itl_p95_s=number("time between tokens, an upper bound", null=True),
                    hit_rate=number("share of the looked up tokens that the prefix cache had", null=True),
                    acceptance=number("share of the drafted tokens that were accepted", null=True),
                    accepted_length=number("tokens a step, with the one that needs no draft", null=True),
                    preemptions=number("of requests", null=True),
                ),
                warning=text("of its endpoint, with what to type: open to the network without a key", null=True),
            )
        ),
        nodes=many(
            record(
                name=text(),
                host=text(),
                role=text("head or worker", null=True),
                state=text("of its rank; empty without one; unknown or unreachable if its ranks could not be read"),
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
        inventory=text("name of the cluster; of several models, that of the file without its end"),
        state=text("the worst of the models", enum=STATES),
        checked_s=number("for how long nodes were not asked for facts, and groups not for a token"),
        models=many(
            plain("object"),
            "the document status of each, with name (null without models in the inventory), findings (of doctor, "
            "errors and warnings), released_at (seconds since 1970, or null) and drawing (null here)",
        ),
        gateway=anything("as of status; null without one", null=True),
        nodes=by_name(
            record(
                state=text(enum=["up", "lost"]),
                why=text("it is lost", null=True),
                age_s=number("of its last sample", null=True),
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
        after_ready=many(STRINGS, "commands that would run on the controller, as lists of arguments"),
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
                        launcher=anything("what the launcher runs inside; not a stable format"),
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
        netplan=by_name(text(), "a file for each node of a group whose twins share a subnet; none otherwise"),
        reach=record("what nodes reach of one another", _null=True, paths=many(ref("Path")), unasked=WHY),
        measured=MEASURED,
        hashes=record(
            "SHA-256 of the weights (--hash)", _null=True, files=by_name(many(ref("HashedFile"))), unasked=WHY
        ),
        unasked=many(ref("Unasked"), "what cannot be known yet"),
        checks=integer("how many checks were run"),
        seconds=number(),
        asks=many(text(), "kinds of what playbook and inventory can do beyond serving, about which up asks first"),
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
            operator=text("who holds the lease", null=True),
            operation=text("what they run", null=True),
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
                at=text("when it was logged, by this machine's clock (ISO 8601)", null=True),
            ),
            "by time",
        ),
        failed=record(
            "with --failed: the last launch that failed",
            at=text("when (ISO 8601)"),
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
                name=text("as --model takes it"),
                kind=text(enum=["chat", "embeddings", "rerank"]),
                **REACHED,
            ),
            "where the inventory has several, in its order; the other keys are those of the first",
        ),
        client=record(
            "what to paste (--client), else null",
            _null=True,
            name=text(),
            title=text(),
            where=text("where the block goes"),
            block=text("what to paste"),
            warnings=many(text(), "what the playbook lacks for it; what begins with two blanks is to be typed"),
            notes=STRINGS,
            source=text("its documentation"),
        ),
        clients=many(record(name=text(), title=text(), about=text())),
    ),
    "key": record(
        file=text("that has the key"),
        key=text(enum=["created", "rotated", "kept"]),
        changed=boolean("whether the inventory was changed, to name the file"),
        difference=many(text(), "of the inventory, as a unified diff"),
        curl=text("command that uses the key, which the shell reads from the file"),
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
        verified=by_name(many(text()), "nodes of which every byte was read, by model (--verify)"),
        corrupt=many(
            record(
                model=text(),
                node=text(),
                file=text(),
                sha256=text("of the copy as it was"),
                expected=text("SHA-256, or the hash by which Git names the content"),
                source=text("the node whose copy replaced it"),
            ),
            "copies that were wrong (--verify)",
        ),
        warnings=many(text(), "of copies that left the interconnect"),
        expected=EXPECTED,
    ),
    "models": record(
        cluster=text(),
        models=many(
            record(
                name=text("repository, or directory"),
                playbook=text("a given playbook that names it", null=True),
                nodes=by_name(
                    record(
                        path=text(),
                        bytes=integer(),
                        commits=many(text()),
                        staged_bytes=integer("of files that staging wrote, and nothing changed since"),
                        clusters=many(text(), "that staged it"),
                        used_by=many(text(), "clusters whose releases or ranks name it"),
                    )
                ),
            )
        ),
        errors=by_name(text(), "why a node is left out"),
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
                digest=text("the image as any node can pull it, name@sha256:…", null=True),
                nodes=many(text(), "that have the record"),
                running=boolean(),
                kept=boolean("whether its nodes keep image and secrets, to roll back to it"),
                lost=record(
                    image=many(text(), "nodes that keep it, and whose image is gone"),
                    secrets=many(text(), "nodes that keep it, and whose secrets are gone"),
                ),
                operation=text("that made it; empty in a record of an older version"),
                restores=integer("the release that it let serve again; 0 for a new one"),
                changes=many(text(), "differences of its playbook from the previous release"),
            )
        ),
        old=integer("number of a release that is compared"),
        new=integer("of the other one"),
        differences=many(text(), "between the two, in place of releases"),
        errors=by_name(text(), "why a node, or a record of it, is left out, or what it keeps is not known"),
    ),
    "playbooks": record(
        _optional=("playbooks", "playbook", "text", "left"),
        playbook=anything("of new, in place of playbooks: as docs/playbook.schema.json"),
        text=text("the same as YAML"),
        left=many(text(), "what to look at before it is served"),
        playbooks=many(
            record(
                name=text(),
                description=text(),
                use=text("what it is good for, in a few words"),
                purposes=many(text(), "words by which --for finds it"),
                model=text(),
                image=text(null=True),
                tensor_parallel={},
                sparks=many(integer(), "numbers of Sparks of a group that can serve it"),
                weights_bytes=integer("of the files of its model; null where they are not recorded", null=True),
                weights_counted=boolean("as published or by tensor, else estimated from config.json"),
                overlays=STRINGS,
                source={"anyOf": [text(), STRINGS]},
                figures=many(ref("Figure")),
                path=text(),
            )
        ),
    ),
    "lint": record(ok=boolean(), findings=FINDINGS, nodes=record()),
    "import": record(
        playbook=anything("as docs/playbook.schema.json"),
        text=text("the playbook as YAML"),
        left=many(text(), "what was not carried over"),
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
                node=text("spark-1 and on, where playbooks are given"),
                visible_bytes=integer("MemTotal"),
                system_bytes=integer("what it takes without us"),
                kept_free_bytes=integer("memory that is kept free in addition"),
                parts=many(
                    record(
                        model=text("its name in the inventory, or the playbook's"),
                        on_demand=boolean("whether it is loaded in addition to always-on models"),
                        bytes=integer("memory once it serves; null if unknown", null=True),
                        kind=text(enum=["computed", "measured", "at most", "unknown"]),
                        weights_bytes=integer("null unless computed or measured, as the next ones", null=True),
                        kv_cache_bytes=integer(null=True),
                        step_bytes=integer(null=True),
                        host_bytes=integer("of the engine's processes", null=True),
                        start_peak_bytes=integer("more than bytes, for a moment while it starts", null=True),
                    ),
                    "what each model takes of it",
                ),
                free_bytes=integer("beyond kept_free_bytes and models on demand; negative where they take more"),
                together=many(STRINGS, "if not all can run at the same time: for each model its largest set that can"),
            ),
            "of an inventory, or several playbooks, which have these, fits, problems and doubts alone",
        ),
        playbook=text(),
        model=text(),
        recorded=many(
            text(), "where what is recorded of the model was found; empty if the hub or a directory was read"
        ),
        measured=record(
            "what the nodes of --inventory logged when this model was last verified there; null if it never was",
            _null=True,
            _optional=("load_gib", "kv_gib", "kv_tokens", "graphs_gib"),
            release=integer(),
            group=text(),
            nodes=integer("of the group"),
            args=anything("of the playbook then, those that count for the memory"),
            load_gib=number("weights of a rank"),
            kv_gib=number("KV cache of a rank"),
            kv_tokens=number("KV cache"),
            graphs_gib=number("CUDA graphs of a rank"),
        ),
        architecture=text(),
        quantization=text(null=True),
        fits=boolean("null where it is too close to say, or not recorded", null=True),
        verdict=text("fits, too close to say, does not fit; not recorded, of which no figures are known"),
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
            weights_counted=boolean("from the checkpoint's headers, else estimated"),
            checkpoint_bytes=integer(),
            runtime_bytes=integer(),
            engine_host_bytes=integer(),
            left_for_system_bytes=integer(),
            system_needs_bytes=integer(),
        ),
    ),
    "bench": {
        "description": "a run is a BenchRecord; list prints all of them as runs; compare and --ab print the others",
        "anyOf": [
            ref("BenchRecord"),
            record(runs=many(ref("BenchRecord"))),
            record(
                a=many(text(), "names of the runs of A"),
                b=many(text(), "names of those of B"),
                marks=many(text(), "of any cell of these runs"),
                cells=many(
                    record(
                        prompt=integer("tokens"),
                        answer=integer("tokens"),
                        depth=integer("tokens of context before the prompt"),
                        concurrency=integer("concurrent requests"),
                        phase=text("prompt, or context, which is sent first"),
                        metric=text("decode, prefill, decode_user (tokens/s), ttft_s or texts (texts/s)"),
                        a=many(number(), "a value for each pass of A"),
                        b=many(number()),
                        change=number("of the median, as a share of A's"),
                        band=number("by which passes of one side differ too"),
                        verdict=text("of B", enum=["better", "worse", "noise"]),
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
        inventory=text("path of a ready inventory; null of a bare lab", null=True),
        directory=text("files of the lab"),
        playbook=text("path of a playbook that fits the lab's engine"),
        identity=text("path of the operator's private key"),
        password=text("of the user spark on every Spark of a bare lab; null of a ready one", null=True),
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
        token_file=text("what has the token that others have to send; null on loopback", null=True),
        metrics=text("in Prometheus' text format (--once)"),
    ),
}
DOCUMENTS["web"] = record(
    "once it listens",
    **{name: DOCUMENTS["export"]["properties"][name] for name in ("url", "metrics_url", "token_file")},
)


_GATEWAY = record(
    "where the inventory has a gateway: it, or the error of what was done with it",
    _optional=("why", "models", "error"),
    node=text("that runs it"),
    endpoint=text("of all models, ends in /v1; null where it is not known, or down", null=True),
    why=text("why it does not answer", null=True),
    models=many(
        record(
            _optional=("why", "waiting", "in_flight", "last_used_s", "progress"),
            name=text(),
            on_demand=boolean(),
            state=text("stopped, starting, ready, draining, stopping, failed, unreachable or unknown"),
            why=text(null=True),
            waiting=integer("requests that wait for it; left out while its state is unknown, as what follows"),
            in_flight=integer("requests that it answers"),
            last_used_s=number("seconds since its last request", null=True),
            progress=text("of a load, as 42 %; else empty"),
            planned_bytes=integer("of each of its nodes", null=True),
            measured_bytes=integer("of each of its nodes, once it had started", null=True),
        )
    ),
    error=anything("as of the document error"),
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
        "of an inventory with several models: the document or error of each, with its name; "
        "the other keys are those of the first",
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
    replace(definitions["RankSeen"], "log", log_lines=integer("how many log lines were read", null=True))
    replace(definitions["Finding"], "remedies", remedy=many(text(), "what fixes it, in order"))
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
    """``schema`` without the titles that pydantic makes of names."""
    if isinstance(schema, list):
        return [untitled(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: untitled(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}


def replace(definition: Schema, name: str, **by: Schema) -> None:
    """Replace the key ``name``, which is not printed as the type has it."""
    del definition["properties"][name]
    definition["properties"].update(by)
    definition["required"] = [one for one in definition["required"] if one != name] + list(by)


def page() -> str:
    """The text of docs/json.md."""
    lines = [
        "# JSON output",
        "",
        "With `--json` a command writes one document to stdout and nothing else; with `--json-lines` one event",
        "per line, and the document last. Later versions may add keys; they do not rename or remove any.",
        "[json.schema.json](json.schema.json) has a definition for each command, `error` and `event`.",
        "",
        "| document | keys |",
        "|---|---|",
    ]
    for name, document in DOCUMENTS.items():
        several = document.get("anyOf", [document])
        keys = ", ".join(f"`{key}`" for each in several for key in each.get("properties", ()))
        about = f"{document['description']}: " if "description" in document else ""
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
    """``schema`` where no object may have a key that is not documented."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: closed(value) for key, value in schema.items()}
    if isinstance(out.get("properties"), dict) and out.get("type") in ("object", ["object", "null"]):
        out.setdefault("additionalProperties", False)
    return out


def validate(name: str, document: Any) -> None:
    """Raise unless ``document`` is what the command ``name`` is documented to print, with nothing beside it."""
    import jsonschema

    jsonschema.Draft202012Validator({**_strict(), "$ref": f"#/$defs/{name}"}).validate(document)


@functools.cache
def _strict() -> Schema:
    strict: Schema = closed(schema())
    return strict
