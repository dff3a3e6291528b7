"""What a model is: its config.json and tensors as data, and what each layer remembers."""
