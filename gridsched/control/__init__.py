"""Operator verbs: what a person or an agent may do with a running server, once for REST, MCP and the command line."""
