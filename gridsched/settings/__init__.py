"""The configuration: the only folder that knows YAML. Owns the settings, their faults, and the data directory.

Must never decide anything: it hands the core a `Policy`, the library its `ModelEntry`s, and is done.
"""
