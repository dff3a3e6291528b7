"""Whether a container of an image has the GPU, from the output of Docker and the toolkit."""

from __future__ import annotations

import pytest

from sparkcluster.node import image
from sparkcluster.node.machine import Unreadable

LISTED = "GPU 0: NVIDIA GB10 (UUID: GPU-1)\n"
REQUIRED = "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.1, please update your driver"
REFUSED = (
    "docker: Error response from daemon: failed to create task for container: error running prestart hook #0: "
    f"exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n{REQUIRED}\n\nRun 'docker run --help' for more"
)
MISSING = (
    "docker: Error response from daemon: failed to stat library\n"
    "nvidia-container-cli: container error: stat libcuda.so: no such file or directory\n"
)


@pytest.mark.parametrize(
    ("outcome", "answer"),
    [
        ((0, LISTED), {"gpus": 1}),
        ((125, REFUSED), {"unread": REQUIRED}),
        # Docker treats a file that the toolkit does not find as the program.
        ((127, MISSING), {"unread": "nvidia-container-cli: container error: stat libcuda.so: no such file or directory"}),
        ((127, 'exec: "nvidia-smi": executable file not found in $PATH'), {"gpus": None}),
        ((9, ""), {"unread": "nvidia-smi exit 9"}),
        (Unreadable("docker timed out"), {"unread": "docker timed out"}),
    ],
)  # fmt: skip
def test_output_of_the_container(make_machine, outcome, answer):
    machine = make_machine({})

    def run(argv, limit_s=3.0):
        machine.ran.append(argv)
        if isinstance(outcome, Unreadable) and argv[1] != "rm":
            raise outcome
        return outcome

    machine.run = run
    assert image.main({"image_id": "sha256:5f", "count": "gpus"}, machine=machine) == answer
    argv = machine.ran[0]
    assert argv[-4:] == ["--entrypoint", "nvidia-smi", "sha256:5f", "-L"]
    assert " ".join(argv[7:]).startswith("--network none --memory 4g --gpus all ")
