"""Faults of weights and image on a Spark's disk. All of them are real."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Callable, Sequence

from sparkcluster.errors import LabError, UsageError
from sparkcluster.lab.faults.base import Fault, Undo
from sparkcluster.lab.sparks import MODEL_PATH, Spark

BACKUP = "/var/lib/gb10-backup"
"""Directory of files that a fault has changed or removed."""

OTHER_BYTES = """
import sys
with open(sys.argv[1], "r+b") as file:
    size = file.seek(0, 2)
    file.seek(size - 64)
    tail = file.read()
    file.seek(size - 64)
    file.write(bytes(byte ^ 255 for byte in tail))
"""


def _file(spark: Spark, args: Sequence[str]) -> str:
    """A file of the lab's model; by default its biggest weight file."""
    names = spark.run(["sh", "-c", f"cd {MODEL_PATH} && ls -S"], check=False).stdout.split()
    weights = [name for name in names if name.endswith(".safetensors")]
    if args and args[0] in names:
        return args[0]
    if args or not weights:
        wanted = args[0] if args else "safetensors file"
        raise UsageError(f"no {wanted} in {MODEL_PATH} of {spark.name}", hint=f"files: {', '.join(names)}")
    return weights[0]


def _changed(change: Callable[[Spark, str], None]) -> Callable[[Spark, Sequence[str]], Undo]:
    def put(spark: Spark, args: Sequence[str]) -> Undo:
        name = _file(spark, args)
        spark.run(["sh", "-c", f"mkdir -p {BACKUP} && cp -p {MODEL_PATH}/{name} {BACKUP}/{name}"])
        change(spark, f"{MODEL_PATH}/{name}")
        return {"name": name}

    return put


def _restore_weights(spark: Spark, undo: Undo) -> None:
    # Under a new name first, so that no reader sees half a file.
    place, name = f"{MODEL_PATH}/{undo['name']}", undo["name"]
    spark.run(["sh", "-c", f"mkdir -p {MODEL_PATH} && cp -p {BACKUP}/{name} {place}.back && mv {place}.back {place}"])


def _cut(spark: Spark, path: str) -> None:
    size = int(spark.run(["stat", "-c", "%s", path]).stdout)
    spark.run(["truncate", "-s", str(size * 9 // 10), path])


def _remove(spark: Spark, path: str) -> None:
    spark.run(["rm", path])


def _corrupt(spark: Spark, path: str) -> None:
    spark.run(["python3", "-c", OTHER_BYTES, path])


def _reference(spark: Spark) -> str:
    """The image that the lab's playbook names."""
    text = (spark.state.directory / "playbook.yaml").read_text()
    found = re.search(r"^image: (\S+)$", text, re.MULTILINE)
    if found is None or spark.run(["docker", "image", "inspect", found[1]], check=False).returncode:
        raise LabError(f"{spark.name} has no image", node=spark.name, hint="use --engine stub")
    return found[1]


SPARE = "gb10-backup/image:1"
"""Tag that keeps the image while its name is on another; an untagged image would be removed with its children."""


def _id(spark: Spark, reference: str) -> str:
    return spark.run(["docker", "image", "inspect", "-f", "{{.Id}}", reference]).stdout.strip()


def _image_other(spark: Spark, args: Sequence[str]) -> Undo:
    """Tag an image with one more layer by the same name, like a later build."""
    del args
    reference = _reference(spark)
    spark.run(["docker", "tag", reference, SPARE])
    container = spark.run(["docker", "create", reference]).stdout.strip()
    try:
        spark.run(["docker", "commit", container, reference])
    finally:
        spark.run(["docker", "rm", container])
    return {"reference": reference}


def _image_arch(spark: Spark, args: Sequence[str]) -> Undo:
    """Load an image of a single small layer for a processor that neither a Spark nor a lab's machine has."""
    del args
    reference = _reference(spark)
    spark.run(["docker", "tag", reference, SPARE])
    spark.run(["sh", "-c", "cat > /root/other-arch.tar"], text_in=_archive(reference, "s390x").decode("ascii"))
    try:
        spark.run(["docker", "load", "-i", "/root/other-arch.tar"])
    finally:
        spark.run(["rm", "/root/other-arch.tar"])
    return {"reference": reference}


def _archive(reference: str, architecture: str) -> bytes:
    """An image as ``docker save`` writes it; plain ASCII, so that it can be passed as text."""
    layer = _tar({"etc/lab": b"an image for another processor\n"})
    config = json.dumps(
        {
            "architecture": architecture,
            "os": "linux",
            "config": {"Cmd": ["true"]},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": ["layer.tar"]}]
    return _tar({name: config, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()})


def _tar(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def _restore_image(spark: Spark, undo: Undo) -> None:
    other = spark.run(["docker", "images", "-q", "--no-trunc", undo["reference"]]).stdout.strip()
    spark.run(["docker", "tag", SPARE, undo["reference"]])
    spark.run(["docker", "rmi", SPARE])
    if other != _id(spark, undo["reference"]):
        spark.run(["docker", "rmi", other], check=False)


FAULTS: dict[str, Fault] = {
    "cut-weights": Fault("[FILE]", _changed(_cut), _restore_weights),
    "missing-weights": Fault("[FILE]", _changed(_remove), _restore_weights),
    "corrupt-weights": Fault("[FILE]", _changed(_corrupt), _restore_weights),
    "image-other": Fault(None, _image_other, _restore_image),
    "image-arch": Fault(None, _image_arch, _restore_image),
}
"""Faults of weights and image, by kind."""
