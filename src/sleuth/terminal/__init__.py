"""What verbs have in common: options, checks of input, tables, progress."""
