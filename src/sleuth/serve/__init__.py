"""HTTP servers. They bind to this machine alone by default."""
