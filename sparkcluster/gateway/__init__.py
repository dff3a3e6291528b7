"""One address for all models of an inventory: the program in the gateway's container.

It is sent as one file (``hosts/program.py``) and runs on the aiohttp and prometheus_client of the image, aiohttp 3.8 or
newer on Python 3.10 or newer; it knows no other room, and no other room imports it.

- ``program``: starts everything, takes in a new ``config.json`` without dropping a stream, and has the control socket
- ``config``: that document
- ``serve``: the requests of clients
- ``body``: the model that a request names
- ``schedule``: the states of all models and who waits for them, and from these alone which models run
- ``keeper``: keeps these true: asks guards and engines, and tells guards what to run
- ``metrics``: what Prometheus reads
"""
