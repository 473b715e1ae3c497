"""Runs the core: the nursery, the actor, the desk, dispatch. Knows no HTTP library and no concrete device."""
