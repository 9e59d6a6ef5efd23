"""The tool of `examples/own_code/my_tools.py` in verifiers: a server, for the `toolsets` of a taskset."""

import verifiers.v1 as vf
from my_tools import calculator


class CalculatorToolset(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    def calculator(self, expression: str) -> float:
        """Computes an arithmetic expression: numbers with +, -, *, / and brackets, such as "12 * (3 + 4)"."""
        return calculator(expression)


if __name__ == "__main__":
    CalculatorToolset.run()
