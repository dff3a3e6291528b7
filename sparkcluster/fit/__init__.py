"""Memory that a model needs on one node: arithmetic over its config, its tensors and the engine's settings.

``config.parse`` reads a config.json: sizes, the cache of each layer (``family_layers``, ``layers``), how weights are
stored (``quantization``). ``weights`` counts the bytes of a rank, from the tensors (``safetensors``) or from the
matrices that the config implies (``modules``). ``kv.layout`` computes the KV cache for ``EngineSettings``
(``defaults``, with the changes between versions). ``verdict.fit`` decides whether both fit a ``Machine``, and what to
change. ``shipped`` reads recorded models.

Only ``headers`` and ``known`` do I/O: they read a model's files from a directory or the hub. ``known`` returns the
``Source`` of a playbook's model, read or recorded. The other rooms that are functions from data to data import neither.
"""
