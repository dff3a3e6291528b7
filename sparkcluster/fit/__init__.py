"""What a model is, and which memory it takes on one node: arithmetic over what is passed in.

``config.parse`` reads a config.json: sizes, what each layer remembers (``family_layers``, ``layers``), how weights are
stored (``quantization``). ``weights`` counts the bytes of a rank, of the tensors (``safetensors``) or of the matrices
that the config names (``modules``). ``kv.layout`` makes the KV cache of an ``Engine`` (``defaults``: how it is started,
and what changed with its versions). ``verdict.fit`` says whether both fit a ``Machine``, and what to change.
``shipped`` has what is recorded of models.

``headers`` and ``known`` alone read what is not passed in: a model's files, from a directory or the hub. ``known``
gives a playbook's model, a ``Source``, from there or as recorded. The other rooms that are functions from data to data
import neither.
"""
