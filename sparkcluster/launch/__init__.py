"""Start a group, watch it until the model has answered, stop it."""
