"""What a model is, and which memory it takes on one node: arithmetic over what is passed in.

``config.parse`` reads a config.json: sizes, what each layer remembers (``family_layers``, ``layers``), how weights are
stored (``quantization``). ``weights`` counts the bytes of a rank, of the tensors (``safetensors``) or of the matrices
that the config names (``modules``). ``kv.layout`` makes the KV cache of an ``Engine`` (``defaults``: how it is started,
and what changed with its versions). ``verdict.fit`` says whether both fit a ``Machine``, and what to change.
``shipped`` has what is known of models without the hub.
"""
