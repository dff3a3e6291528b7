"""One round trip to every node, and facts from the answers.

``start`` sends the probe; ``collect`` parses the answers, and is imported while the nodes work.
"""
