"""Weights, images and Ray to every node.

The hub: ``endpoint`` in ``artifacts.py``, its folders on a node ``hub_folder`` in ``node/shared.py``.

- HF_TOKEN leaves this machine for gated models only: a node downloads without it first, and gets it if the hub, asked
  from here, denies the model without one. It goes to the hub that was asked: the operator's ``HF_ENDPOINT``, else
  huggingface.co, whatever the node is configured for. Without a token the node's own ``HF_ENDPOINT`` counts where the
  operator has none. With ``HF_HUB_OFFLINE`` on the operator's machine no hub is asked.
- Ray for an image without one is fetched by the controller for the image's Python and platform (uv, else pip), with
  the versions and hashes of ``staging/ray-VERSION.txt``, kept in ``~/.cache/sparkcluster`` (or
  ``$SPARKCLUSTER_CACHE``), sent to one node, copied from there to the others over the interconnect, and mounted
  read-only. Only the package ``ray`` is on ``PYTHONPATH``, which comes before the image's own packages; of what Ray
  requires the launcher shows the image what it lacks and nothing else, so that no protobuf of ours shadows the one
  that its engine was built with. Whether Ray is brought is decided from facts alone: with executor ``auto``, what runs
  without it stays so, though it could be fetched by now.
"""
