"""Search protocols as data, one file each."""
