"""What stands between a client and an engine costs: measured beside going there directly, and what else there is."""
