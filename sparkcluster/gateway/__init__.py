"""One address for all models of an inventory: the program in the gateway's container.

It is sent as one file (``hosts/program.py``) and runs on the aiohttp and prometheus_client of the image, aiohttp 3.8 or
newer on Python 3.10 or newer; it knows no other room, and no other room imports it.

- ``program``: starts everything, and takes in a new ``config.json`` without dropping a stream
- ``config``: that document
- ``serve``: the requests of clients, and the control socket
- ``body``: the model that a request names
- ``schedule``: which models run, decided from data alone
- ``keeper``: the loop that owns the state of all models
"""
