"""Brings weights, images and Ray to every node.

The hub: ``endpoint`` in ``artifacts.py``; its folders on a node: ``hub_folder`` in ``node/shared.py``.

- HF_TOKEN leaves this machine for gated models only. A node first downloads without it; it gets the token if the hub,
  queried from this machine, denies access without one. The token is sent only to the hub that was queried: the
  operator's ``HF_ENDPOINT``, else huggingface.co, whatever the node's configuration. Without a token, the node's
  ``HF_ENDPOINT`` is used if the operator has none. With ``HF_HUB_OFFLINE`` on the operator's machine no hub is queried.
- Ray for an image without it is downloaded by the controller for the image's Python and platform (by uv, else pip),
  with the versions and hashes in ``staging/ray-VERSION.txt``. It is cached in ``~/.cache/sparkcluster`` (or
  ``$SPARKCLUSTER_CACHE``), sent to one node, copied to the others over the interconnect, and mounted read-only. Only
  the package ``ray`` is on ``PYTHONPATH``, which precedes the image's packages. Of Ray's requirements the launcher
  adds only those that the image lacks, so that our protobuf does not shadow the one that its engine was built with.
  Facts alone decide whether Ray is staged: with executor ``auto``, a group that runs without Ray continues to do so.
"""
