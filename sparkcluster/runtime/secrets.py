"""Values of the variables that a plan only names: they go to a file of mode 0600 on the nodes alone."""

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

MAKE = "sparkcluster key INVENTORY"


def values(spec: Spec, plan: Plan) -> dict[str, str]:
    """Values of all secrets that ``plan`` names.

    Ray's token is made anew for every launch: nobody has to know it.

    Raises:
        UsageError: one is not set, or holds what an env file cannot carry.
    """
    return {name: secrets.token_hex(32) if name == RAY_TOKEN else _value(name, spec) for name in sorted(plan.secrets)}


def keyed_hashes(values: Mapping[str, str], *, salt: str | None = None) -> dict[str, Any]:
    """Salt and hash of each value but Ray's token, for a record: what tells a rotated secret and reveals none.

    The salt is random for every start, and the hash slow (scrypt, 16 MiB), since a key may be short.
    """
    salt = salt or secrets.token_hex(16)
    hashes = {
        name: hashlib.scrypt(value.encode(), salt=f"{salt}{name}".encode(), n=2**14, r=8, p=1, dklen=32).hex()
        for name, value in values.items()
        if name != RAY_TOKEN
    }
    return {"salt": salt, "hashes": hashes}


def of_inventory(spec: Spec) -> dict[str, str]:
    """The API key by its variable; empty without one, or where it has no value here.

    It is the inventory's and not a release's: a release that serves again takes the key of today.
    """
    name = engines.engine(spec.playbook.engine).api_key
    if name and spec.inventory.api.key is not None:
        with contextlib.suppress(UsageError):
            return {name: api_key(spec)}
    return {}


def renewed(recorded: Mapping[str, Any], values: Mapping[str, str], names: Collection[str]) -> dict[str, Any]:
    """``recorded``, from ``keyed_hashes``, of secrets ``names`` alone, with ``values`` in place of what some were."""
    new = keyed_hashes({name: value for name, value in values.items() if name in names}, salt=recorded.get("salt"))
    hashes = {**recorded.get("hashes", {}), **new["hashes"]}
    return {"salt": new["salt"], "hashes": {name: hashes[name] for name in sorted(hashes.keys() & set(names))}}


def rotated(recorded: Mapping[str, Any], spec: Spec) -> tuple[str, ...]:
    """The secrets whose value is not the one that ``recorded``, from ``keyed_hashes``, has.

    The API key also where the ranks were started without any. Of a secret that is not set here nothing can be said;
    nor of a record that an older version wrote.
    """
    now, then = of_inventory(spec), recorded.get("hashes", {})
    # A record is a node's word: no other variable is read because it names one.
    for name in then.keys() & set(spec.playbook.secrets) - now.keys():
        with contextlib.suppress(UsageError):
            now[name] = _value(name, spec)
    hashes = keyed_hashes(now, salt=recorded.get("salt"))["hashes"] if recorded.get("salt") else {}
    return tuple(name for name in sorted(hashes) if not hmac.compare_digest(hashes[name], then.get(name, "")))


def lost_key(recorded: Mapping[str, Any], spec: Spec) -> tuple[str, str] | None:
    """What is wrong with the file of the API key that ranks were started with, and what makes another; else None.

    ``recorded`` is from ``keyed_hashes``. A variable may be set in another terminal.
    """
    source, name = spec.inventory.api.key, engines.engine(spec.playbook.engine).api_key
    if source is None or source.env or name not in recorded.get("hashes", {}):
        return None
    try:
        api_key(spec)
    except UsageError as error:
        return (
            f"{error.message}, and what serves requires one; copy it from where it was made, or make another",
            error.hint or MAKE,
        )
    return None


def key_warning(recorded: Mapping[str, Any], spec: Spec) -> str | None:
    """What is to be said of the API key of ranks and the one that is here, with what to type; else None.

    ``recorded`` is from ``keyed_hashes``.
    """
    if lost := lost_key(recorded, spec):
        return f"{lost[0]}: {lost[1]} && {RESTART}"
    key = engines.engine(spec.playbook.engine).api_key
    return f"{KEY_NOT_IN_USE}: {RESTART}" if key in rotated(recorded, spec) else None


def _value(name: str, spec: Spec) -> str:
    if name == engines.engine(spec.playbook.engine).api_key and spec.inventory.api.key is not None:
        return api_key(spec)
    return _from_environment(name, f"the playbook lists {name} under secrets")


def check(spec: Spec) -> None:
    """Raise UsageError for a secret that is not set or cannot be carried, before anything is changed."""
    for name in spec.playbook.secrets:
        _value(name, spec)
    accepted_keys(spec)


def accepted_keys(spec: Spec) -> dict[str, list[str] | None]:
    """The models that each key of clients may use, None for all: of ``api.key`` and ``gateway.keys``.

    Raises:
        UsageError: as ``api_key``.
    """
    keys = spec.inventory.gateway.keys if spec.inventory.gateway else {}
    make = "write one line into it, such as that of: openssl rand -hex 24"
    found = {api_key(spec): None} if spec.inventory.api.key is not None else {}
    return {**found, **{_key(key, f"key {name}", make): key.models for name, key in keys.items()}}


def api_key(spec: Spec) -> str:
    """The API key that the inventory points at.

    Raises:
        UsageError: there is none, or the variable or file that it is in does not hold one line of text.
    """
    if spec.inventory.api.key is None:
        raise UsageError("the inventory has no API key", hint="sparkcluster key INVENTORY")
    return _key(spec.inventory.api.key, "API key", MAKE)


def _key(source: ApiKey, called: str, make: str) -> str:
    """The value of the key that is ``called`` so; ``make`` is how its file is made."""
    if source.env:
        return _from_environment(source.env, f"the inventory takes the {called} from it")
    path = Path(str(source.file)).expanduser()
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise UsageError(f"cannot read the {called} from {path}: {why}", hint=make) from error
    if not key or not key.isprintable():
        # What else is in that file is not replaced.
        hint = f"{MAKE} --file FILE" if key and make == MAKE else make
        raise UsageError(f"the file {path} of the {called} has not one line of text", hint=hint)
    return key


def _from_environment(name: str, why: str) -> str:
    value = os.environ.get(name, "")
    if not value or not value.isprintable():  # it goes into one line of an env file, and into an HTTP header
        raise UsageError(f"{name} is not set to one line of text, and {why}", hint=f"export {name}=VALUE")
    return value
