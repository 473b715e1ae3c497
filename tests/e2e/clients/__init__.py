"""The clients that people have, unchanged, against a running gateway with the real engine and real models."""
