"""HTTP to clients: the only place that knows Quart, hypercorn and OpenAI's shapes."""
