"""Random load and random harm against one real gateway, for as long as one likes: what must still hold then.

    plan ── who asks for what, and what goes wrong when, all of it from a seed
    clients ── one request from its first byte to its outcome        harm ── one fault done to one model's processes
    run ── carries the plan out                                       judge ── explains every error, and looks for leaks

`make soak MINUTES=3 SEED=7`, or `python -m tests.soak`. It must never call an error explained because errors are usual:
it is explained by a fault that was done to that model while the request lived, or it is not.
"""
