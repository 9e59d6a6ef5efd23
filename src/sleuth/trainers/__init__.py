"""Our search environment and rewards in other trainers: TRL and verifiers. Each is imported only where it is used."""
