"""The engine in this process: cache, slots, decode attention."""
