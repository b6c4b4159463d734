"""The hook in a process: which calls it counts."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from scripts.counts.traces import TRACER, Tracer

FILES = {
    "main.py": """
        import asyncio, sys, threading
        from made import before, called, resumed, threaded, untouched

        async def main():
            task = asyncio.create_task(resumed.twice())
            await asyncio.sleep(0)
            before.run()
            print("started", flush=True)
            for line in sys.stdin:
                called.run()
                thread = threading.Thread(target=threaded.run)
                thread.start()
                thread.join()
                from made import loaded
                resumed.event.set()
                await task
                print("done", flush=True)

        asyncio.run(main())
    """,
    "before.py": "def run(): ...",
    "called.py": "def run(): ...",
    "threaded.py": "def run(): ...",
    "untouched.py": "def run(): ...",
    "loaded.py": "class A: ...",
    "resumed.py": """
        import asyncio
        event = asyncio.Event()
        async def twice():
            await event.wait()
    """,
}


def test_calls_between_two_marks_count_on_any_thread(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    for name, text in FILES.items():
        (made / name).write_text(dedent(text))
    sockets = tmp_path / "s"
    sockets.mkdir()
    environ = {
        "PYTHONPATH": os.pathsep.join((str(TRACER), str(tmp_path))),
        "TRACE_SOCKETS": str(sockets),
        "TRACE_ROOT": f"{made}{os.sep}",
    }
    with subprocess.Popen(
        [sys.executable, "-c", "import made.main"],
        env=os.environ | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        async def once() -> None:
            print(file=stdin, flush=True)
            assert stdout.readline() == "done\n"

        assert stdout.readline() == "started\n"
        tracer = Tracer(sockets, [process.pid])
        first = asyncio.run(tracer.count(once))
        second = asyncio.run(tracer.count(once))
        stdin.close()
    assert {"called.py", "threaded.py", "resumed.py"} <= first.keys()
    assert first.keys().isdisjoint({"untouched.py", "loaded.py"}), "modules and classes are no calls"
    assert second == {"called.py": 1, "threaded.py": 1}
