"""The page of the policies says what the fields say."""

from lightrail.model.policy_fields import FIELDS
from scripts.policies_page import PAGE, page


def test_the_page_is_current_and_has_every_field() -> None:
    assert PAGE.read_text() == page(), "run: .venv/bin/python scripts/policies_page.py"
    assert all(f"| `{field.name}` |" in page() for field in FIELDS)
