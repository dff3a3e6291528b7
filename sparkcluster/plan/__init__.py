"""The plan of a launch: pure data, printed before it is executed.

- The plan's hash covers its actions, never free memory, ports, time or the release number.
- The plan contains only names of secrets. Values are written to a file of mode 0600 on the nodes whose rank needs them,
  and are in no argument list. ``docker inspect`` shows a container's environment to members of the docker group; this
  cannot be avoided.
- Of the Hugging Face cache, a container mounts only the served repositories, read-only (complete folders, since
  snapshots are links into them). The token and other models are not mounted. ``HF_HOME`` is a directory of the
  container, where transformers unpacks remote code at each start.
"""

from sparkcluster.plan.build import build as build
