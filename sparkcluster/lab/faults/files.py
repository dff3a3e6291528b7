"""Faults of weights and image on a Spark's disk. All are real."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab.faults.base import Fault, Steps, command
from sparkcluster.lab.sparks import Spark

BACKUP = "/var/lib/gb10-backup"
"""Directory for files that a fault has changed or removed."""

OTHER_BYTES = """
import sys
with open(sys.argv[1], "r+b") as file:
    size = file.seek(0, 2)
    file.seek(size - 64)
    tail = file.read()
    file.seek(size - 64)
    file.write(bytes(byte ^ 255 for byte in tail))
"""

# Under a new name first, so that no reader sees a partial file.
RESTORE_WEIGHTS = f"""
mkdir -p "$2" && cd "$2" && cp -p {BACKUP}/"$1" "$1.back" && mv "$1.back" "$1"
"""

SPARE = "gb10-backup/image:1"
"""Tag that keeps the image while its name points to another; an untagged image would be removed with its children."""

# The image with one more layer, like a later build.
OTHER_IMAGE = """
container=$(docker create "$1")
trap 'docker rm "$container"' EXIT
docker commit "$container" "$1"
"""

RESTORE_IMAGE = f"""
set -e
other=$(docker images -q --no-trunc "$1")
docker tag {SPARE} "$1"
docker rmi {SPARE}
[ "$other" = "$(docker images -q --no-trunc "$1")" ] || docker rmi "$other" || true
"""


def _weights(change: str) -> Callable[..., Steps]:
    """A fault that changes a file of the lab's model, by default its largest weight file, with a shell command."""

    def put(spark: Spark, name: str = "") -> Steps:
        names = spark.run(["sh", "-c", f"cd {spark.model_path} && ls -S"], check=False).stdout.split()
        chosen = [file for file in names if (file == name if name else file.endswith(".safetensors"))]
        if not chosen:
            missing = name or "safetensors file"
            raise UsageError(f"no {missing} in {spark.model_path} of {spark.name}", hint=f"files: {', '.join(names)}")
        script = f'set -e; mkdir -p {BACKUP}; cd "$2"; cp -p "$1" {BACKUP}; {change}'
        words = ["sh", chosen[0], spark.model_path]
        return command(spark, ["sh", "-c", script, *words], ["sh", "-c", RESTORE_WEIGHTS, *words])

    return put


def _image(replace: str) -> Callable[[Spark], Steps]:
    """A fault that moves the name of the lab's image to another image, with a shell script."""

    def put(spark: Spark) -> Steps:
        text = (spark.state.directory / "playbook.yaml").read_text()
        found = re.search(r"^image: (\S+)$", text, re.MULTILINE)
        if found is None or spark.run(["docker", "image", "inspect", found[1]], check=False).returncode:
            raise LabError(f"{spark.name} has no image", node=spark.name, hint="use --engine stub")
        script = f'set -e; docker tag "$1" {SPARE}; {replace}'
        return command(spark, ["sh", "-c", script, "sh", found[1]], ["sh", "-c", RESTORE_IMAGE, "sh", found[1]])

    return put


FAULTS: dict[str, Fault] = {
    "cut-weights": Fault("[FILE]", _weights('truncate -s $(($(stat -c %s "$1") * 9 / 10)) "$1"')),
    "corrupt-weights": Fault("[FILE]", _weights(f'python3 -c {shlex.quote(OTHER_BYTES)} "$1"')),
    "image-other": Fault(None, _image(OTHER_IMAGE)),
}
"""Faults of weights and image, by kind."""
