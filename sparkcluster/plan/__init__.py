"""What will be done: pure data, printed before it is run.

- Per-node values survive Ray. vLLM copies the driver's environment to the workers. Every name that differs between
  nodes, or is set on one alone, goes into ``ray_non_carry_over_env_vars.json`` under ``VLLM_CONFIG_ROOT``, on every
  node, before the engine starts.
- A stop lets requests finish. vLLM from 0.19 on is started with ``--shutdown-timeout 60`` where the playbook does not
  set it: after SIGTERM it ends new requests at once (``finish_reason`` ``abort``, which ``ask`` and ``status`` report
  as not ready) and lets those in flight finish. The head is labelled with these seconds
  (``io.sparkcluster.drain_s``), and gets them (at most 600) and 30 s more before SIGKILL; workers are stopped after
  it. A launch that failed has nothing to wait for, and gets 30 s.
- The plan's hash is over what it would do, never over free memory, ports or time, nor over the release number.
- Secrets are named in the plan and written to one file of mode 0600 on the nodes whose rank needs them. They are in
  no argument list. ``docker inspect`` still shows a container's environment to members of the docker group: there is
  no way around that.
- A container sees of the Hugging Face cache what it serves, read-only: the folder of each repository, since a
  snapshot is links into it. The token beside them, and other models, stay outside. ``HF_HOME`` is a directory of the
  container's own, where transformers unpacks remote code anew at each start.
"""

from sparkcluster.plan.build import build as build
