"""Small packages on disk, whose counts a reader can do in the head."""

from pathlib import Path
from textwrap import dedent

from scripts.counts.product import Product


def product(folder: Path, **files: str) -> Product:
    """A package `made` of these files: `shard__queue__line="..."` is `made/shard/queue/line.py`."""
    root = folder / "made"
    root.mkdir()
    (root / "__init__.py").touch()
    for name, text in files.items():
        file = root.joinpath(*name.split("__")).with_suffix(".py")
        for package in file.relative_to(root).parents:
            (root / package).mkdir(parents=True, exist_ok=True)
            (root / package / "__init__.py").touch()
        if name.endswith("__face"):
            file = file.with_name("__init__.py")
        file.write_text(dedent(text))
    return Product.read(root)
