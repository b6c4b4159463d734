"""No field of a policy is without a test of its law, alive and after a kill -9 of the whole broker."""

import ast
from pathlib import Path

from lightrail.model.policy import BY_NAME

FOLDER = Path(__file__).parent


def marked(decorator: str) -> set[str]:
    """The fields that stand in `@checks(...)` or `@survives(...)` of any file here."""
    trees = [ast.parse(file.read_text()) for file in FOLDER.glob("*.py")]
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    calls = [mark for each in functions for mark in each.decorator_list if isinstance(mark, ast.Call)]
    marks = [each for each in calls if isinstance(each.func, ast.Name) and each.func.id == decorator]
    return {str(field.value) for each in marks for field in each.args if isinstance(field, ast.Constant)}


def test_every_field_is_checked() -> None:
    assert marked("checks") == set(BY_NAME)


def test_every_field_is_checked_after_a_kill_9() -> None:
    assert marked("survives") == set(BY_NAME)
