"""The Model Context Protocol: the verbs as tools, and the bridge for clients that speak it over stdio."""
