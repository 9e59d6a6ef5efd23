"""A tool of your own: a calculator. `calculator.toml` gives it to the policy."""

import ast
import operator

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculator(expression: str) -> float:
    """Computes an arithmetic expression.

    Args:
        expression: Numbers with +, -, *, / and brackets, such as "12 * (3 + 4)".
    """

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand)
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        raise ValueError(f"cannot compute {ast.unparse(node)}")

    return value(ast.parse(expression, mode="eval").body)
