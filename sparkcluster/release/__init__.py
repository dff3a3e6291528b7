"""The state table of ``up`` and ``down``, the records they leave, and the lease they hold."""
