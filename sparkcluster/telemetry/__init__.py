"""Live readings of all Sparks and models of an inventory, in one document for every consumer.

- ``check``: the periodic check: facts, a token from groups where one is due, the gateway, and doctor's findings
- ``live``: samples between checks, and both combined in the document and the history of ``Live``
- ``exposition``: the same for Prometheus
- ``serve``: HTTP for both, and ``page.html``, which draws them
"""
