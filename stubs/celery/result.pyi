from typing import Any

class AsyncResult:
    def get(self, timeout: float | None = None) -> Any: ...
