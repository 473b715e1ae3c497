"""The panel: one page, its scripts and its style, as files without a build step."""
