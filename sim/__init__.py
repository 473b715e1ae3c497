"""A simulated card and engine behind the real ports, and a fast runner that drives the core without trio."""
