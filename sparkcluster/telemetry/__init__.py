"""What all Sparks and models of an inventory do, read again and again, in one document for all who show it.

- ``look``: what is asked of nodes once in a while: facts, a token where one is due, the gateway; and doctor's findings
- ``live``: samples between the looks, and both together as the document and the history of ``Live``
- ``exposition``: the same for Prometheus
- ``serve``: HTTP for both, and ``page.html``, which draws them
"""
