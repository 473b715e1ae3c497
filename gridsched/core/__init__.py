"""The pure state machine. Standard library only: no clock, no randomness, no logging, no files, no trio."""
