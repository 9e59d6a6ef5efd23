"""One loop a file: checkpoint in, checkpoint out. A stage holds no mathematics, no HTTP and no file formats."""
