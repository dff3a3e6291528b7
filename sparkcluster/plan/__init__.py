"""What will be done: pure data, printed before it is run.

- The plan's hash is over what it would do, never over free memory, ports or time, nor over the release number.
- Secrets are named in the plan and written to one file of mode 0600 on the nodes whose rank needs them. They are in
  no argument list. ``docker inspect`` still shows a container's environment to members of the docker group: there is
  no way around that.
- A container sees of the Hugging Face cache what it serves, read-only: the folder of each repository, since a
  snapshot is links into it. The token beside them, and other models, stay outside. ``HF_HOME`` is a directory of the
  container's own, where transformers unpacks remote code anew at each start.
"""

from sparkcluster.plan.build import build as build
