"""Who calls the engine: Open WebUI, and other hosts beside it."""
