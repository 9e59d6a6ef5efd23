"""The mathematics of learning, from advantages to the optimiser step. Knows no engine, environment or reward."""
