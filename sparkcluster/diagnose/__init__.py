"""What takes more than one look: reaching from node to node, measuring between them, hashing weights."""

from __future__ import annotations
