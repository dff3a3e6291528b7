"""Changes root's files on this node, written by containers, on behalf of its user: in a container, without sudo.

The container uses the serving image, since no other is present; it sees only these directories and has no network.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from typing import Any

from sparkcluster.node import common, docker
from sparkcluster.node.programs import Failed, run_once
from sparkcluster.node.shared import hub_folder

_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# Does not follow or enter links.
_OWN = """
import os, sys
uid, gid = map(int, sys.argv[2:4])
def take(name, handle):
    if sys.argv[1] == "all" or os.stat(name, dir_fd=handle, follow_symlinks=False).st_uid == 0:
        os.chown(name, uid, gid, dir_fd=handle, follow_symlinks=False)
for top in sys.argv[4:]:
    for _, folders, files, handle in os.fwalk(top, follow_symlinks=False):
        for name in folders + files:
            take(name, handle)
    take(top, None)
"""


def remove_tree(path: str, image: str | None = None) -> None:
    """Remove a directory; if it has files of other users, written by containers, in a container of ``image``."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        try:
            _own("all", [path], image)
        except Failed as why:
            command = shlex.join(["sudo", "rm", "-rf", "--one-file-system", "--", path])
            raise Failed("%s; %s; on that node: %s" % (error, why, command)) from None
        shutil.rmtree(path)


def own(request: dict[str, Any], step: dict[str, Any]) -> None:
    """Give this user root's files in the folder of ``repository`` in Hugging Face's cache, and in its locks.

    Missing folders are created. Files of other users are not changed.

    Raises:
        Failed: a container of ``image`` cannot do it; or a folder is a link or behind one, other than ``hf_home``
            itself: root would change the link's target.
    """
    home, name = os.path.realpath(common.expand(step["hf_home"])), hub_folder(step["repository"])
    folders = [os.path.join(home, name), os.path.join(home, "hub", ".locks", os.path.basename(name))]
    for folder in folders:
        if os.path.realpath(folder) != folder:
            hint = "check it: " + shlex.join(["namei", "-l", folder])
            raise Failed("%s is a symbolic link or below one; not changed; %s" % (folder, hint))
    _own("root's", folders, step["image"])


def _own(whose: str, folders: Sequence[str], image: str | None) -> None:
    """Change the owner of root's files (or of all files) in ``folders`` to this user, in a container as root."""
    if not image:
        raise Failed("no image on this node to run a container for that")
    words = [whose, str(os.getuid()), str(os.getgid()), *folders]
    run_once("own", image, _OWN, docker.as_root(_CAPABILITIES, folders), words=words)
