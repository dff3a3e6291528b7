"""Output of ``enable`` if systemd is PID 1 on all, some or none of the Sparks."""

from __future__ import annotations

import argparse
import contextlib
from types import SimpleNamespace

import pytest

from sparkcluster.cli import enable
from sparkcluster.release import enabled
from sparkcluster.runtime.change import Installed

UNIT = "/home/u/.config/systemd/user/sparkcluster-atlas.service"
COMMAND = ("/usr/bin/python3", "-I", "guard.py", "/state/enabled")


@pytest.mark.parametrize(
    ("units", "first"),
    [
        ({"alpha": UNIT, "beta": UNIT}, "enabled: release 3 comes back after a reboot"),
        ({"alpha": UNIT, "beta": None}, "enabled on 1 of 2 Sparks: beta has no systemd"),
        ({"alpha": None, "beta": None}, "enabled on 0 of 2 Sparks: alpha, beta have no systemd"),
    ],
)
def test_without_systemd_the_command_to_run_at_boot_is_shown(monkeypatch, capsys, units, first):
    @contextlib.contextmanager
    def reporting(_args):
        yield None, SimpleNamespace(inventory=SimpleNamespace(cluster="atlas"), idle_s=None), None

    monkeypatch.setattr(enable, "reporting", reporting)
    installed = {name: Installed(unit=unit, command=COMMAND) for name, unit in units.items()}
    monkeypatch.setattr(enabled, "enable", lambda *_, **__: (3, installed))
    assert enable.run(argparse.Namespace(json=False, json_lines=False, yes=False)) == 0
    out, err = capsys.readouterr()
    assert out == f"{first}\n"
    without = [name for name, unit in units.items() if unit is None]
    commands = [f"  on {name}: /usr/bin/python3 -I guard.py /state/enabled" for name in without]
    assert err.splitlines()[1:] == commands
