"""What `--help` of a command shows under its options, where the command has no longer text of its own.

Owns these lines; each is a command as it can be typed.
"""

EXAMPLES = {
    "serve": ("gridsched serve", "gridsched serve --models-dir ~/models --port 8080", "gridsched serve --sim"),
    "demo": ("gridsched demo", "gridsched demo --sim --seconds 20"),
    "check": ("gridsched check", "gridsched check --config rig.yaml"),
    "doctor": ("gridsched doctor", "gridsched doctor --json --config rig.yaml"),
    "estimate": (
        "gridsched estimate model.gguf --devices 24GiB",
        "gridsched estimate model.gguf -- -c 32768 -np 2 -ctk q8_0 -ctv q8_0",
    ),
    "ps": ("gridsched ps", "gridsched ps --server 10.0.0.7:1234 --json"),
    "top": ("gridsched top", "gridsched top --server 10.0.0.7:1234", "gridsched top --once"),
    "models": ("gridsched models", "gridsched models --options", "gridsched models --names"),
    "plan": ("gridsched plan qwen3-8b", "gridsched plan qwen3-8b --ctx 32768"),
    "unload": ("gridsched unload qwen3-8b", "gridsched unload qwen3-8b --force --yes"),
    "pin": ("gridsched pin qwen3-8b",),
    "unpin": ("gridsched unpin qwen3-8b",),
    "release": ("gridsched release gpu0", "gridsched release all"),
    "jobs": ("gridsched jobs", "gridsched jobs --json"),
    "explain": ("gridsched explain 17", "gridsched explain op-3"),
    "cancel": ("gridsched cancel 17", "gridsched cancel op-3"),
    "events": (
        "gridsched events --follow",
        "gridsched events --event load --event evict",
        "gridsched events --since 5m --class background",
        "gridsched events --job 17 --json",
    ),
    "logs": ("gridsched logs qwen3-8b --lines 100", "gridsched logs gateway"),
    "drain": ("gridsched drain",),
    "restart": ("gridsched restart",),
    "downloads": ("gridsched downloads",),
    "benchmark": ("gridsched benchmark qwen3-8b", "gridsched benchmark qwen3-8b --device gpu0"),
    "keys": ("gridsched keys add phone --scope inference,read", "gridsched keys list", "gridsched keys revoke phone"),
    "engine": ("gridsched engine list", "gridsched engine install wheel", "gridsched engine rollback"),
    "install-service": ("gridsched install-service --dry-run", "gridsched install-service"),
    "mcp": ("gridsched mcp", "gridsched mcp --server 10.0.0.7:1234"),
    "loadtest": (
        "gridsched loadtest --seconds 60",
        "gridsched loadtest --mix ambient --report F.html --json",
        "gridsched loadtest --compare A.json B.json",
        "gridsched loadtest --url http://10.0.0.7:1234 --chat 2 --background 2 --batch 0 --embed 1 --seed 7",
    ),
    "simulate": ("gridsched simulate SCENARIO.yaml --seed 1", "gridsched simulate SCENARIO.yaml --json"),
    "replay": ("gridsched serve --record run.tape", "gridsched replay run.tape --check"),
}


def under(command: str, epilog: str | None) -> str | None:
    """The text under a command's options."""
    lines = EXAMPLES.get(command)
    if lines is None:
        return epilog
    told = "\n".join(("examples:", *(f"  {line}" for line in lines)))
    return f"{told}\n\n{epilog}" if epilog else told
