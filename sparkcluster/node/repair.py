"""Files of root's on this node, made by containers, that its user has to change: by a container, without sudo.

The container is of the serving image, since no other is there; so it sees those
directories alone, and has no network. Without an image, ``sudo -n`` does it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence

from sparkcluster.node import docker
from sparkcluster.node.programs import Failed, run_once

_LIMIT_S = 120
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER")
# Of root's files alone: nobody else's are ours to take. Links are not followed, nor entered.
_OWN = """
import os, sys
uid, gid = map(int, sys.argv[1:3])
def take(name, handle):
    if os.stat(name, dir_fd=handle, follow_symlinks=False).st_uid == 0:
        os.chown(name, uid, gid, dir_fd=handle, follow_symlinks=False)
for top in sys.argv[3:]:
    for _, folders, files, handle in os.fwalk(top, follow_symlinks=False):
        for name in folders + files:
            take(name, handle)
    take(top, None)
"""
_EMPTY = """
import os, shutil, sys
for each in os.scandir(sys.argv[1]):
    if each.is_dir(follow_symlinks=False):
        shutil.rmtree(each.path)
    else:
        os.unlink(each.path)
"""


def remove_tree(path: str, image: str | None = None) -> None:
    """Remove a directory; what a container wrote there may be root's, and then takes one of ``image``."""
    try:
        shutil.rmtree(path)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        why = str(error)
    try:
        _in_container("delete", image, _EMPTY, [path], [path])
    except Failed as error:
        command = shlex.join(["sudo", "rm", "-rf", "--one-file-system", "--", path])
        raise Failed("%s; %s; on that node: %s" % (why, error, command)) from None
    shutil.rmtree(path)


def own(hf_home: str, names: Sequence[str], image: str | None = None) -> None:
    """Make the folders ``names`` of Hugging Face's cache, and their locks, with what root has in them, this user's.

    Those that are missing are made.

    Raises:
        Failed: a container of ``image`` cannot do it; or a folder is or is behind a link, other than ``hf_home``
            itself: root would change what it leads to.
    """
    hub = os.path.join(os.path.realpath(hf_home), "hub")
    folders = [os.path.join(hub, *place, name) for name in names for place in ((), (".locks",))]
    for folder in folders:
        if os.path.realpath(folder) != folder:
            hint = "check it: " + shlex.join(["namei", "-l", folder])
            raise Failed("%s is, or is behind, a symbolic link; not changed; %s" % (folder, hint))
    _in_container("own", image, _OWN, folders, [str(os.getuid()), str(os.getgid()), *folders])


def _in_container(purpose: str, image: str | None, source: str, folders: Sequence[str], words: Sequence[str]) -> None:
    """Run a program as root in a container that sees ``folders`` alone."""
    if not image:
        raise Failed("no image is here, whose container could change it")
    run_once(purpose, image, source, docker.as_root(_CAPABILITIES, folders), words=words, limit_s=_LIMIT_S)
