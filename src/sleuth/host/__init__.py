"""What a process needs of its machine: threads, memory, files, disk, connections, cards."""
