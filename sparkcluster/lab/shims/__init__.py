"""What runs on a virtual Spark and makes it look like a GB10: standard library only, Python 3.8."""
