"""Finding passages: the corpus on disk and the indexes over it."""
