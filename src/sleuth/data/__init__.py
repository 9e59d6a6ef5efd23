"""Reading what people have on disk into the nouns of `sleuth.types`."""
