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
from sparkcluster.spec.variables import RAY_TOKEN

if TYPE_CHECKING:
    from sparkcluster.plan.model import Plan

MAKE = "sparkcluster key INVENTORY"
_MOST_BYTES = 4096


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


def rotated(recorded: Mapping[str, Any], spec: Spec, names: Collection[str] | None = None) -> tuple[str, ...]:
    """Those of the secrets, or of ``names``, whose value is not the one that ``recorded``, from ``keyed_hashes``, has.

    Of a secret that is not set here nothing can be said; nor of a record that an older version wrote.
    """
    now: dict[str, str] = {}
    # A record is a node's word: no other variable is read because it names one.
    ours = {*spec.playbook.secrets, engines.engine(spec.playbook.engine).api_key}
    for name in ours.intersection(ours if names is None else names) & recorded.get("hashes", {}).keys():
        with contextlib.suppress(UsageError):
            now[name] = _value(name, spec)
    hashes = keyed_hashes(now, salt=recorded.get("salt"))["hashes"]
    return tuple(name for name in sorted(hashes) if not hmac.compare_digest(hashes[name], recorded["hashes"][name]))


def unused(recorded: Mapping[str, Any], spec: Spec, names: Collection[str] | None = None) -> tuple[str, ...]:
    """``rotated``, and the API key where there is one now and the ranks were started without any."""
    added = of_inventory(spec).keys() - recorded.get("hashes", {}).keys() if recorded.get("salt") else set()
    return tuple(sorted({*rotated(recorded, spec, names), *added}))


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
        what = f"{error.message}, and what serves requires one; copy it from where it was made, or make another"
        return what, error.hint or MAKE
    return None


def key_warning(recorded: Mapping[str, Any], spec: Spec, engine: str) -> str | None:
    """What is to be said of the API key of ranks of ``engine`` and the one that is here, with what to type; else None.

    ``recorded`` is from ``keyed_hashes``.
    """
    if lost := lost_key(recorded, spec):
        return f"{lost[0]}: {lost[1]} && {RESTART}"
    changed = unused(recorded, spec, [engines.engine(engine).api_key or ""])
    return f"{KEY_NOT_IN_USE}: {RESTART}" if changed else None


def _value(name: str, spec: Spec) -> str:
    if name == engines.engine(spec.playbook.engine).api_key and spec.inventory.api.key is not None:
        return api_key(spec)
    return _from_environment(name, f"the playbook lists {name} under secrets")


def check(spec: Spec) -> None:
    """Raise UsageError for a secret that is not set or cannot be carried, before anything is changed."""
    for name in spec.playbook.secrets:
        _value(name, spec)
    if spec.inventory.api.key is not None:
        api_key(spec)


def api_key(spec: Spec) -> str:
    """The API key that the inventory points at.

    Raises:
        UsageError: the variable is not set, the file cannot be read or is empty, or it holds no line of text.
    """
    source = spec.inventory.api.key
    if source is None:
        raise UsageError("the inventory has no API key", hint="sparkcluster key INVENTORY")
    if source.env:
        why = "the inventory takes the API key from it"
        return _from_environment(source.env, why, f"; or keep it in a file: {MAKE} --file FILE")
    path = Path(str(source.file)).expanduser()
    try:
        with path.open("rb") as file:
            key = file.read(_MOST_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read the API key from {path}: {getattr(error, 'strerror', None) or 'not text'}",
            hint=MAKE,
        ) from error
    if not key:
        raise UsageError(f"the API key file {path} is empty", hint=MAKE)
    return _one_line(key, f"the API key in {path}", f"{MAKE} --file FILE")


def _from_environment(name: str, why: str, otherwise: str = "") -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"{name} is not set, and {why}", hint=f"export {name}=VALUE{otherwise}")
    return _one_line(value, f"the value of {name}", f"export {name} again without it")


def _one_line(value: str, subject: str, hint: str) -> str:
    """``value``, which goes into one line of an env file and may go into an HTTP header."""
    if not value.isprintable():
        raise UsageError(f"{subject} contains a line break, or a character that is not text", hint=hint)
    return value
