"""Values of secrets, which a plan only names: on nodes they are only in a file of mode 0600."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkcluster import engines
from sparkcluster.endpoint.find import KEY_NOT_IN_USE, RESTART
from sparkcluster.errors import UsageError
from sparkcluster.spec import Spec
from sparkcluster.spec.inventory import ApiKey
from sparkcluster.spec.variables import RAY_TOKEN

if TYPE_CHECKING:
    from sparkcluster.plan.model import Plan
    from sparkcluster.plan.release_record import RecordedGroup

MAKE = "sparkcluster key INVENTORY"


def values(spec: Spec, plan: Plan) -> dict[str, str]:
    """Values of all secrets in ``plan``.

    Ray's token is generated for every launch.

    Raises:
        UsageError: one is not set, or has a value that an env file cannot hold.
    """
    return {name: secrets.token_hex(32) if name == RAY_TOKEN else _value(name, spec) for name in sorted(plan.secrets)}


def keyed_hashes(values: Mapping[str, str], *, salt: str | None = None) -> dict[str, Any]:
    """A salt and the hash of each value but Ray's token, for a record: detects a rotated secret without revealing it.

    The salt is random for every start. The hash is slow (scrypt, 16 MiB), since a key may be short.
    """
    salt = salt or secrets.token_hex(16)
    hashes = {
        name: hashlib.scrypt(value.encode(), salt=f"{salt}{name}".encode(), n=2**14, r=8, p=1, dklen=32).hex()
        for name, value in values.items()
        if name != RAY_TOKEN
    }
    return {"salt": salt, "hashes": hashes}


def of_inventory(spec: Spec, engine: str | None = None) -> dict[str, str]:
    """The API key by its variable in ``engine``; empty if there is none, or if its value is not available here.

    The key belongs to the inventory, not to a release: after a rollback the current key is used.
    """
    name = engines.engine(engine or spec.playbook.engine).api_key
    if name and spec.inventory.api.key is not None:
        with contextlib.suppress(UsageError):
            return {name: api_key(spec)}
    return {}


def renewed(recorded: Mapping[str, Any], values: Mapping[str, str], names: Collection[str]) -> dict[str, Any]:
    """``recorded`` (see ``keyed_hashes``) reduced to secrets ``names``, with the hashes of ``values`` replaced."""
    new = keyed_hashes({name: value for name, value in values.items() if name in names}, salt=recorded.get("salt"))
    hashes = {**recorded.get("hashes", {}), **new["hashes"]}
    return {"salt": new["salt"], "hashes": {name: hashes[name] for name in sorted(hashes.keys() & set(names))}}


def rotated(group: RecordedGroup, spec: Spec) -> tuple[str, ...]:
    """The secrets whose value differs from the one that ``group`` was started with.

    This includes an API key if the ranks were started without one. Secrets that are not set here are omitted, and so
    are all secrets of a record by an older version. The engine may be another one than the inventory has now.
    """
    recorded = group.secrets
    now, then = of_inventory(spec, group.engine), recorded.get("hashes", {})
    # A record comes from a node, which must not choose the variables that are read here.
    for name in then.keys() & set(spec.playbook.secrets) - now.keys():
        with contextlib.suppress(UsageError):
            now[name] = _value(name, spec)
    hashes = keyed_hashes(now, salt=recorded.get("salt"))["hashes"] if recorded.get("salt") else {}
    return tuple(name for name in sorted(hashes) if not hmac.compare_digest(hashes[name], then.get(name, "")))


def lost_key(group: RecordedGroup, spec: Spec) -> tuple[str, str] | None:
    """The reason and hint if the API key that ``group`` was started with cannot be read here; else None.

    Variables do not count: one may be set in another terminal.
    """
    source, name = spec.inventory.api.key, engines.engine(group.engine).api_key
    if source is None or source.env or name not in group.secrets.get("hashes", {}):
        return None
    try:
        api_key(spec)
    except UsageError as error:
        return (
            f"{error.message}, but the running model requires it; copy it from where it was made, or create another",
            error.hint or MAKE,
        )
    return None


def key_warning(group: RecordedGroup, spec: Spec) -> str | None:
    """A warning with a hint, if the API key of ``group`` differs from the one here or is missing; else None."""
    if lost := lost_key(group, spec):
        return f"{lost[0]}: {lost[1]} && {RESTART}"
    key = engines.engine(group.engine).api_key
    return f"{KEY_NOT_IN_USE}: {RESTART}" if key in rotated(group, spec) else None


def _value(name: str, spec: Spec) -> str:
    if name == engines.engine(spec.playbook.engine).api_key and spec.inventory.api.key is not None:
        return api_key(spec)
    return _from_environment(name, f"the playbook lists {name} under secrets")


def check(spec: Spec) -> None:
    """Raise UsageError if a secret is not set or cannot be used, before anything is changed."""
    for name in spec.playbook.secrets:
        _value(name, spec)
    accepted_keys(spec)


def accepted_keys(spec: Spec) -> dict[str, list[str] | None]:
    """The models that each client key may use, None for all: from ``api.key`` and ``gateway.keys``.

    Raises:
        UsageError: as in ``api_key``.
    """
    keys = spec.inventory.gateway.keys if spec.inventory.gateway else {}
    make = "write one line into the file, such as the output of: openssl rand -hex 24"
    found = {api_key(spec): None} if spec.inventory.api.key is not None else {}
    return {**found, **{_key(key, f"key {name}", make): key.models for name, key in keys.items()}}


def api_key(spec: Spec) -> str:
    """The API key of the inventory.

    Raises:
        UsageError: there is none, its variable or file does not hold one line of text, or the engine would read it as
            several keys.
    """
    if spec.inventory.api.key is None:
        raise UsageError("the inventory has no API key", hint="sparkcluster key INVENTORY")
    key, engine = _key(spec.inventory.api.key, "API key", MAKE), engines.engine(spec.playbook.engine)
    if engine.key_separator and engine.key_separator in key:
        why = f"the API key has {engine.key_separator!r}, by which {engine.title} separates several keys"
        raise UsageError(why, hint="use another key, such as the output of: openssl rand -hex 24")
    return key


def _key(source: ApiKey, called: str, make: str) -> str:
    """The value of a key; ``called`` is its name in messages, ``make`` the hint that creates its file."""
    if source.env:
        more = f"; or {MAKE} --file FILE   makes one" if make == MAKE else ""
        return _from_environment(source.env, f"the inventory reads the {called} from it", more)
    path = Path(str(source.file)).expanduser()
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"cannot read the {called} from {path}: {why}", hint=make) from error
    if not key or not key.isprintable():
        # Does not overwrite other content of that file.
        hint = f"{MAKE} --file FILE" if key and make == MAKE else make
        raise UsageError(f"{path} must contain the {called} as one line of text", hint=hint)
    return key


def _from_environment(name: str, why: str, more: str = "") -> str:
    value = os.environ.get(name, "")
    if not value or not value.isprintable():  # used in a line of an env file, and in an HTTP header
        problem = "is not one line of text" if value else "is not set"
        raise UsageError(f"{name} {problem}, but {why}", hint=f"export {name}=VALUE{more}")
    return value
