"""Entry of every helper process: ``child.py KIND TITLE``; what it works on comes over file descriptor 0."""

import os
import sys


def main():
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    kind, title = sys.argv[1], sys.argv[2]
    from stubengine import proc

    proc.set_title(title)
    if kind == "core":
        from stubengine.core import main as run
    elif kind == "rank":
        from stubengine.rank import main as run
    else:
        raise SystemExit("unknown kind of child: %s" % kind)
    run(proc.parent_channel())


if __name__ == "__main__":
    main()
