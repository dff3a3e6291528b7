"""`python -m ray.scripts.scripts`: the `ray` command, independent of the interpreter in its script."""

import sys

from stubengine.raycli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
