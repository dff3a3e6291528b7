"""Files of root's on this node, made by containers, that its user has to change: by a container, without sudo.

Python 3.8, standard library only. The container is of the serving image, since no other is there; so it sees those
directories alone, and has no network. Without an image, ``sudo -n`` does it.
"""

from __future__ import annotations

import os
import shlex
import shutil
from typing import List, Optional, Sequence

from sparkcluster.node import docker
from sparkcluster.node.programs import Failed, run

_LIMIT_S = 120
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


def remove_tree(path: str, image: Optional[str] = None) -> None:
    """Remove a directory; what a container wrote there may be root's."""
    try:
        shutil.rmtree(path)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        denied = error
    program = docker.as_root(image, _EMPTY, [path], [path]) if image else None
    _as_root(program, [["rm", "-rf", "--one-file-system", "--", path]], str(denied))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)


def own(folders: Sequence[str], image: Optional[str] = None) -> None:
    """Make directories, with what root has in them, this user's; those that are missing are made.

    Raises:
        Failed: it is not possible, or one is a link: root would change what it leads to.
    """
    for folder in folders:
        if os.path.realpath(folder) != os.path.join(
            os.path.realpath(os.path.dirname(folder)), os.path.basename(folder)
        ):
            raise Failed("%s is a link, and stays as it is; check it: ls -l %s" % (folder, shlex.quote(folder)))
    ids = [str(os.getuid()), str(os.getgid())]
    program = docker.as_root(image, _OWN, folders, [*ids, *folders]) if image else None
    made = ["install", "--directory", "--owner", ids[0], "--group", ids[1], "--", *folders]
    taken = ["chown", "--recursive", "--from=0", ":".join(ids), "--", *folders]
    _as_root(program, [made, taken], "%s cannot be written" % folders[0])


def _as_root(program: Optional[List[str]], commands: List[List[str]], why: str) -> None:
    """Run ``program`` in a container, else ``commands`` by sudo."""
    if program is not None:
        try:
            run(program, _LIMIT_S)
        except Failed as error:
            why += "; a container could not change it: %s" % error
        else:
            return
    try:
        for command in commands:
            run(["sudo", "-n", *command], _LIMIT_S)
    except Failed:
        text = " && ".join("sudo " + " ".join(map(shlex.quote, command)) for command in commands)
        raise Failed("%s; on that node: %s" % (why, text)) from None
