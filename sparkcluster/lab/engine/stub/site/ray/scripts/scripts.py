"""`python -m ray.scripts.scripts`: the `ray` command, whatever interpreter its script names."""

import sys

from stubengine.raycli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
