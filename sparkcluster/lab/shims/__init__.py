"""Programs for a virtual Spark's python3 that make it look like a GB10: Python 3.8, standard library."""
