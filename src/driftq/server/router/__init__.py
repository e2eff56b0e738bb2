"""The router hook: what may decide, at produce, where a message goes and which label it carries."""
