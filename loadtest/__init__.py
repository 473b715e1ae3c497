"""The load-test harness and the demo: speaks HTTP only, imports nothing of gridsched."""
