"""Rows made by teachers: rubrics, thoughts, and rows to refine."""
