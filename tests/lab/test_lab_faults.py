"""Arguments and documentation of the lab's faults; test_preflight tests that they are found."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sparkcluster.cli.main import main
from sparkcluster.errors import UsageError
from sparkcluster.lab.faults import FAULTS
from sparkcluster.lab.machine import wait_until


def test_a_fault_with_a_duration_ends_automatically(lab):
    right = lab.sparks[1]
    lab.fault("right", "silence", "2")
    assert not right.ssh_answers()
    assert wait_until(right.ssh_answers, limit_s=120, step_s=0.1)


@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        ("firewall", ("middle",), "no other Spark is named middle"),
        ("cut-weights", ("pytorch.bin",), "no pytorch.bin in"),
        ("kernel", ("../../etc",), "not a kernel release"),
    ],
)
def test_an_invalid_argument_changes_nothing(kind, args, message, lab):
    with pytest.raises(UsageError, match=re.escape(message)):
        lab.fault("right", kind, *args)
    assert lab.heal() == []


def test_the_lab_page_lists_every_fault_and_everything_that_is_only_simulated():
    page = (Path(__file__).parents[2] / "docs" / "internals" / "lab.md").read_text()
    real, simulated = page.split("\n## Faults\n")[1].split("\n## ")[0].split("\nSimulated faults ")
    documented = {}
    for text, only in ((real, False), (simulated, True)):
        for names in re.findall(r"^- (`.*?`):", text, re.MULTILINE):
            for kind, argument in re.findall(r"`([a-z-]+)(?: ([^`]*))?`", names):
                documented[kind] = (argument or None, only)
    short = {"VERSION": "V", "RELEASE": "V"}
    kinds = {
        kind: (fault.argument and short.get(fault.argument, fault.argument), fault.simulated)
        for kind, fault in FAULTS.items()
    }
    assert json.dumps(documented, sort_keys=True) == json.dumps(kinds, sort_keys=True)


def test_lab_fault_without_a_kind_lists_them():
    with pytest.raises(UsageError, match="KIND is missing") as caught:
        main(["lab", "fault", "1"])
    kinds = (caught.value.hint or "").removeprefix("one of: ").split(", ")
    assert [kind.split()[0] for kind in kinds] == list(FAULTS)
