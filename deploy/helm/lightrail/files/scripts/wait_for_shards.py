"""Waits until all shards are ready: python wait_for_shards.py SECONDS URL...; exit status 1: they are not."""

import sys
import time
import urllib.request


def ready(url: str) -> bool:
    """Whether /readyz answers 200 there."""
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def main(seconds: str, *urls: str) -> int:
    """The exit status."""
    until = time.monotonic() + float(seconds)
    missing = list(urls)
    while missing := [url for url in missing if not ready(url)]:
        if time.monotonic() >= until:
            print("not ready in time: " + ", ".join(missing), file=sys.stderr)
            return 1
        print(f"waiting for {len(missing)} of {len(urls)} shards", flush=True)
        time.sleep(2)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
