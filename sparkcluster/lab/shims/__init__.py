"""Programs that run on a virtual Spark's python3 and make it look like a GB10: Python 3.8, standard library."""
