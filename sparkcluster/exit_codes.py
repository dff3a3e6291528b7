"""Exit codes of ``sparkcluster``, the only list: code, ``--help`` and docs use it."""

from __future__ import annotations

DONE = 0
FAILED = 1
USAGE = 2
LEASE_HELD = 3
ROLLED_BACK = 4
INTERRUPTED = 130

MEANINGS = {
    DONE: "done (warnings allowed)",
    FAILED: "failed",
    USAGE: "wrong usage, malformed input or missing consent; nothing was changed",
    LEASE_HELD: "another operator holds the lease",
    ROLLED_BACK: "failed; the previous release serves again",
    INTERRUPTED: "interrupted",
}
