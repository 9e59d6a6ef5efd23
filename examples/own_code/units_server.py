"""A server of tools for any client of the Model Context Protocol: it converts lengths. Needs the package `mcp`."""

from mcp.server.fastmcp import FastMCP

METRES = {"m": 1, "km": 1000, "cm": 0.01, "mi": 1609.344, "ft": 0.3048, "in": 0.0254}
server = FastMCP("units")


@server.tool()
def convert(length: float, unit: str, to: str) -> float:
    """Converts a length to another unit: m, km, cm, mi, ft or in."""
    return round(length * METRES[unit] / METRES[to], 6)


server.run()
