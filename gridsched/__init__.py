"""gridsched owns the GPU: it sits between OpenAI clients and llama.cpp and decides who runs when.

This module holds the version and nothing else, so that importing it costs nothing.
"""

__version__ = "0.1.0"
