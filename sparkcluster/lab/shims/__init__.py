"""Programs on a virtual Spark that make it look like a GB10: Python 3.8, standard library."""
