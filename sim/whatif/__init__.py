"""What if: the same people and work on another card or under another policy, in virtual time.

The real scheduler in the middle, cards as fluids around it. The door is `runs.run`; the command line reads the file.
"""

from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "scenarios"
"""The folder of the scenarios that come with gridsched."""
