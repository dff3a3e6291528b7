"""Ray's command line as a module."""
