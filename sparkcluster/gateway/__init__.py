"""One address for all models of an inventory: the program in the gateway's container.

It is sent as one file (``hosts/program.py``) and uses the image's aiohttp and prometheus_client (aiohttp 3.8 or newer,
Python 3.10 or newer). It imports no other package of sparkcluster, and none imports it.

- ``program``: starts everything, applies a new ``config.json`` without dropping a stream, and has the control socket
- ``config``: that document
- ``serve``: client requests
- ``body``: the request body, and the model it names
- ``schedule``: the states of all models and the waiting requests, and from them which models run
- ``keeper``: keeps the states current: polls guards and engines, and tells guards what to run
- ``metrics``: Prometheus metrics
"""
