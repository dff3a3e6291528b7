"""``python -m sparkcluster.lab``: the lab's commands alone."""

from __future__ import annotations

import argparse
import sys

from sparkcluster.cli import lab
from sparkcluster.errors import SparkclusterError


def main() -> int:
    """Run one command of the lab; its exit code."""
    parser = argparse.ArgumentParser(prog="sparkcluster")
    lab.add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["lab", *sys.argv[1:]])
    try:
        return lab.run(args)
    except SparkclusterError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
