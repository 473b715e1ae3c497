"""The service manager outside: what it is told while a server runs, and the units that it is given."""
