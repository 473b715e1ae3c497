"""Real launches on this machine, compared with what was predicted of them: `python -m tests.vram.check`."""
