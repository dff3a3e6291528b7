"""Files of root's on this node, made by containers, that its user has to change: by a container, without sudo.

Python 3.8, standard library only. The container is of the serving image, since no other is there; so it sees those
directories alone, and has no network. Without an image, ``sudo -n`` does it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from typing import Callable, Iterator, List, Optional, Sequence

from sparkcluster.node import docker
from sparkcluster.node.programs import Failed, run, run_once

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


def remove_tree(path: str, image: Optional[str] = None) -> None:
    """Remove a directory; what a container wrote there may be root's."""
    try:
        shutil.rmtree(path)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        denied = error
    contained = _in_container("delete", image, _EMPTY, [path], [path])
    _as_root(contained, [["rm", "-rf", "--one-file-system", "--", path]], str(denied))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)


def own(hf_home: str, names: Sequence[str], image: Optional[str] = None) -> None:
    """Make the folders ``names`` of Hugging Face's cache, and their locks, with what root has in them, this user's.

    Those that are missing are made.

    Raises:
        Failed: it is not possible; or a folder is or is behind a link, other than ``hf_home`` itself: root would change
            what it leads to; or what is there then is not only the user's files.
    """
    hub = os.path.join(os.path.realpath(hf_home), "hub")
    folders = [os.path.join(hub, *place, name) for name in names for place in ((), (".locks",))]
    for folder in folders:
        if os.path.realpath(folder) != folder:
            hint = "check it: namei -l %s" % shlex.quote(folder)
            raise Failed("%s is, or is behind, a symbolic link; not changed; %s" % (folder, hint))
    ids = [str(os.getuid()), str(os.getgid())]
    contained = _in_container("own", image, _OWN, folders, [*ids, *folders])
    made = ["install", "--directory", "--owner", ids[0], "--group", ids[1], "--", *folders]
    taken = ["chown", "--recursive", "--from=0", ":".join(ids), "--", *folders]
    _as_root(contained, [made, taken], "%s cannot be written" % folders[0])
    odd = next(_odd(folders), None)
    if odd is not None:
        hint = "on that node: ls -l %s" % shlex.quote(odd)
        raise Failed("%s still belongs to root, or is setuid, after the change of owner; %s" % (odd, hint))


def _odd(folders: Sequence[str]) -> Iterator[str]:
    """What a program of the image may have left below ``folders`` for others to run: no model has such files."""
    for folder in folders:
        for here, below, names in os.walk(folder):
            for path in [here, *(os.path.join(here, name) for name in below + names)]:
                found = os.lstat(path)
                runs_as = stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_ISUID | stat.S_ISGID)
                if runs_as or (found.st_uid == 0 and os.getuid() != 0):
                    yield path


def _in_container(
    purpose: str, image: Optional[str], source: str, folders: Sequence[str], words: Sequence[str]
) -> Optional[Callable[[], None]]:
    """What runs a program in a container of ``image`` that sees ``folders`` alone; None without an image."""
    if not image:
        return None
    options = docker.as_root(_CAPABILITIES, folders)
    return lambda: run_once(purpose, image, source, options, words=words, limit_s=_LIMIT_S)


def _as_root(contained: Optional[Callable[[], None]], commands: List[List[str]], why: str) -> None:
    """Run ``contained``, else ``commands`` by sudo."""
    if contained is not None:
        try:
            contained()
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
