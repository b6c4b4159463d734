"""Sources as mypyc reads them (scripts/compiling.py): copies that are changed in five ways.

1. A plain dataclass gets its constructor in words: mypyc would call the interpreted one, which is made when
   the class is, and it can't make a dataclass that is generic.
2. A class that stands behind another one in a list of bases becomes a trait.
3. An annotation `memoryview` of a named tuple is quoted: mypyc looks the name up where it is not.
4. A class with a length says in words that an object is true if it is not empty: where it may also be None,
   mypyc takes each object for true.
5. Fields of composites are Any: they are what their annotations say when they were decoded, and may be None
   when they were made (performatives.py), which would be a TypeError wherever one is read.

For tests, interpreted classes may derive from all classes, as those of simulations do: a method is called
through a table where the compiler would else know that nobody overrides it. From a trait no interpreted class
can derive: for `Producer` there is `DerivableProducer`.

Lines keep their numbers, but for those behind imports that a constructor needs.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PLAIN: Final = frozenset(
    f"dataclass({options})" for options in ("slots=True, eq=False, repr=False", "eq=False, repr=False")
)
"""Decorators of classes that only get a constructor from them."""
DERIVABLE: Final = "@mypyc_attr(allow_interpreted_subclasses=True)"


@dataclass(frozen=True)
class Field:
    """A field of a dataclass."""

    name: str
    type: str
    module: str
    default: str | None
    factory: str | None
    """An expression that makes the default."""
    is_parameter: bool
    is_keyword: bool
    is_passed_on: bool
    """Whether it is not stored, but an argument of `__post_init__` (InitVar)."""


def _text(annotation: ast.expr) -> str:
    is_quoted = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
    return str(annotation.value) if is_quoted else ast.unparse(annotation)  # type: ignore[attr-defined]


def _made(factory: ast.expr) -> str:
    if isinstance(factory, ast.Lambda):
        return ast.unparse(factory.body)
    text = ast.unparse(factory)
    return {"dict": "{}", "list": "[]"}.get(text, f"{text}()")


class Sources:
    """The modules of a tree, parsed when they are first needed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @cache  # noqa: B019 - lives as long as the build
    def lines(self, path: str) -> list[str]:
        return (self._root / path).read_text().split("\n")

    @cache  # noqa: B019
    def tree(self, path: str) -> ast.Module:
        return ast.parse("\n".join(self.lines(path)))

    def statements(self, path: str) -> Iterator[ast.stmt]:
        """Those of a module, and those for types alone."""
        for each in self.tree(path).body:
            yield each
            if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING":
                yield from each.body

    @cache  # noqa: B019
    def names(self, path: str) -> dict[str, str]:
        """What a module defines or imports: each name, and the module that it is of; "" for this one."""
        found: dict[str, str] = {}
        for each in self.statements(path):
            if isinstance(each, ast.ImportFrom):
                found |= {alias.asname or alias.name: each.module or "" for alias in each.names}
            elif isinstance(each, ast.Import):
                found |= {alias.asname or alias.name: f"import {alias.name}" for alias in each.names}
            elif isinstance(each, ast.ClassDef | ast.FunctionDef):
                found[each.name] = ""
            elif isinstance(each, ast.Assign):
                found |= {target.id: "" for target in each.targets if isinstance(target, ast.Name)}
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                found[each.target.id] = ""
        return found

    def find(self, path: str, name: str) -> tuple[str, ast.ClassDef] | None:
        """The class that a name of a module stands for, and its module."""
        for each in self.tree(path).body:
            if isinstance(each, ast.ClassDef) and each.name == name:
                return path, each
        module = self.names(path).get(name, "")
        if not module.startswith("lightrail."):
            return None
        return self.find(f"{module.replace('.', '/')}.py", name)

    def bases(self, path: str, of: ast.ClassDef) -> list[tuple[str, ast.ClassDef]]:
        """The base classes that are in this tree, with their modules."""
        names = [base.value if isinstance(base, ast.Subscript) else base for base in of.bases]
        found = [self.find(path, name.id) for name in names if isinstance(name, ast.Name)]
        return [each for each in found if each is not None]

    def fields(self, path: str, of: ast.ClassDef) -> dict[str, Field]:
        """Fields of a dataclass, those of its bases first."""
        found: dict[str, Field] = {}
        for base in reversed(self.bases(path, of)):
            found |= self.fields(*base)
        if not any(ast.unparse(each).startswith("dataclass") for each in of.decorator_list):
            return found
        is_keyword = False
        for each in own_fields(of):
            text = _text(each.annotation)
            is_keyword = is_keyword or text == "KW_ONLY"
            if text != "KW_ONLY":
                field = _field(path, each, text, is_keyword=is_keyword)
                found[field.name] = field
        return found

    def has_post_init(self, path: str, of: ast.ClassDef) -> bool:
        own = any(isinstance(each, ast.FunctionDef) and each.name == "__post_init__" for each in of.body)
        return own or any(self.has_post_init(*base) for base in self.bases(path, of))


def own_fields(of: ast.ClassDef) -> list[ast.AnnAssign]:
    """The fields that a class itself declares, and KW_ONLY."""
    return [
        each
        for each in of.body
        if isinstance(each, ast.AnnAssign) and not _text(each.annotation).startswith("ClassVar")
    ]


def _field(path: str, node: ast.AnnAssign, text: str, *, is_keyword: bool) -> Field:
    assert isinstance(node.target, ast.Name)
    is_passed_on = text.startswith("InitVar[")
    default = factory = None
    is_parameter = True
    value = node.value
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        for option in value.keywords:
            match option.arg:
                case "init":
                    is_parameter = ast.unparse(option.value) == "True"
                case "default":
                    default = ast.unparse(option.value)
                case "default_factory":
                    factory = _made(option.value)
                case "repr" | "compare":
                    pass
                case unknown:
                    raise SystemExit(f"compiling: {path}:{node.lineno}: field({unknown}=…) is not understood")
    elif value is not None:
        default = ast.unparse(value)
    return Field(
        node.target.id,
        text[len("InitVar[") : -1] if is_passed_on else text,
        path,
        default,
        factory,
        is_parameter,
        is_keyword,
        is_passed_on,
    )


class Module:
    """One module on its way to the compiler."""

    def __init__(
        self, sources: Sources, path: str, traits: set[tuple[str, str]], *, for_tests: bool = False
    ) -> None:
        self._sources = sources
        self._path = path
        self._lines = list(sources.lines(path))
        self._needed: dict[str, str] = {}
        """Names of other modules that constructors use, and these modules."""
        self._types: dict[str, str] = {}
        """The same, for types alone."""
        for each in ast.walk(sources.tree(path)):
            if isinstance(each, ast.ClassDef):
                if any(ast.unparse(decorator) in PLAIN for decorator in each.decorator_list):
                    self._construct(each)
                if (path, each.name) in traits:
                    self._lines[each.lineno - 2] = f"{' ' * each.col_offset}@trait"
                    self._types["trait"] = "mypy_extensions"
                self._say_what_is_true(each)
                if any(ast.unparse(base) == "NamedTuple" for base in each.bases):
                    self._quote(each)
                elif for_tests and not self._is_of_python(each):
                    self._derive(each)
                    if (path, each.name) in traits:
                        self._lines += ["", DERIVABLE, f"class Derivable{each.name}({each.name}): pass", ""]
        self._import()

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    def _quote(self, of: ast.ClassDef) -> None:
        for each in own_fields(of):
            if ast.unparse(each.annotation) == "memoryview":
                at = each.annotation.lineno - 1
                self._lines[at] = self._lines[at].replace(": memoryview", ': "memoryview"')

    def _say_what_is_true(self, of: ast.ClassDef) -> None:
        """Writes `__bool__` in the empty line behind `__len__`."""
        methods = {each.name: each for each in of.body if isinstance(each, ast.FunctionDef)}
        length = methods.get("__len__")
        if length is None or "__bool__" in methods:
            return
        place = length.end_lineno or 0
        if self._lines[place].strip():
            raise SystemExit(f"compiling: {self._path}:{place + 1}: expected an empty line behind __len__")
        self._lines[place] = f"{' ' * length.col_offset}def __bool__(self) -> bool: return len(self) > 0"

    def _is_of_python(self, of: ast.ClassDef) -> bool:
        """Whether it is an enumeration or an error, which Python's own types make."""
        names = {ast.unparse(base) for base in of.bases}
        return any(name.endswith(("Enum", "Error", "Exception")) for name in names)

    def _derive(self, of: ast.ClassDef) -> None:
        """Lets interpreted classes derive, in the empty line ahead of the class, or behind what is there."""
        place = min([of.lineno, *(each.lineno for each in of.decorator_list)]) - 2
        self._lines[place] = f"{self._lines[place]}\n{DERIVABLE}".lstrip("\n")
        self._needed["mypyc_attr"] = "mypy_extensions"  # Python calls it ahead of dataclass.

    def _construct(self, of: ast.ClassDef) -> None:
        """Writes the constructor of a plain dataclass in the empty line behind its fields."""
        lines, indent = self._lines, " " * (of.col_offset + 4)
        for decorator in of.decorator_list:
            lines[decorator.lineno - 1 : decorator.end_lineno] = [""] * (
                (decorator.end_lineno or decorator.lineno) - decorator.lineno + 1
            )
        own = own_fields(of)
        if not own:
            return
        for each in own:
            assert isinstance(each.target, ast.Name)
            text = _text(each.annotation)
            assert each.end_lineno is not None
            lines[each.lineno - 1 : each.end_lineno] = [""] * (each.end_lineno - each.lineno + 1)
            if text != "KW_ONLY" and not text.startswith("InitVar["):
                quote = '"' if isinstance(each.annotation, ast.Constant) else ""
                lines[each.lineno - 1] = f"{indent}{each.target.id}: {quote}{text}{quote}"
        fields = list(self._sources.fields(self._path, of).values())
        for field in fields:
            self._foresee(field)
        place = self._behind_fields(of)
        if lines[place].strip():
            raise SystemExit(f"compiling: {self._path}:{place + 1}: expected an empty line behind the fields")
        lines[place] = indent + self._constructor(of, fields)

    def _constructor(self, of: ast.ClassDef, fields: list[Field]) -> str:
        parameters = [_parameter(each) for each in fields if each.is_parameter and not each.is_keyword]
        keywords = [_parameter(each) for each in fields if each.is_parameter and each.is_keyword]
        body = [text for each in fields if (text := _assignment(each))]
        if self._sources.has_post_init(self._path, of):
            body.append(f"self.__post_init__({', '.join(each.name for each in fields if each.is_passed_on)})")
        parts = ["self", *parameters, *(["*", *keywords] if keywords else [])]
        return f"def __init__({', '.join(parts)}) -> None: {'; '.join(body) or 'pass'}"

    def _behind_fields(self, of: ast.ClassDef) -> int:
        last = 0
        for each in of.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                break
            is_text = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            if isinstance(each, ast.AnnAssign) or (is_text and last):
                last = each.end_lineno or 0
        return last

    def _foresee(self, field: Field) -> None:
        """Imports what a field of another module's class needs."""
        if field.module == self._path:
            return
        for text, needed in ((field.type, self._types), (field.default or field.factory or "", self._needed)):
            for each in ast.walk(ast.parse(text)):
                known = self._sources.names(field.module)
                name = each.id if isinstance(each, ast.Name) else ""
                if name in known and name not in self._sources.names(self._path):
                    needed[name] = known[name] or field.module[:-3].replace("/", ".")

    def _import(self) -> None:
        """Writes the imports in the empty line behind the last import; later lines may move by two."""
        needed = "; ".join(_import(name, module) for name, module in sorted(self._needed.items()))
        types = "; ".join(
            _import(name, module) for name, module in sorted(self._types.items()) if name not in self._needed
        )
        if not needed and not types:
            return
        imports = (ast.Import, ast.ImportFrom)
        place = max(
            (
                each.end_lineno or 0
                for each in self._sources.tree(self._path).body
                if isinstance(each, imports)
            ),
            default=1,
        )
        parts = [needed] if needed else []
        if types:
            if "TYPE_CHECKING" not in self._sources.names(self._path):
                parts.append("from typing import TYPE_CHECKING")
            parts.append(f"if TYPE_CHECKING: {types}")
        if self._lines[place].strip():
            raise SystemExit(
                f"compiling: {self._path}:{place + 1}: expected an empty line behind the imports"
            )
        self._lines[place] = "\n".join(parts)


def _import(name: str, module: str) -> str:
    return module if module.startswith("import ") else f"from {module} import {name}"


def _parameter(field: Field) -> str:
    if field.factory is not None:
        return f'{field.name}: "{field.type} | None" = None'
    default = "" if field.default is None else f" = {field.default}"
    return f'{field.name}: "{field.type}"{default}'


def _assignment(field: Field) -> str:
    """The statement that stores a field; "" for one that is not stored."""
    if field.is_passed_on:
        return ""
    if field.factory is not None:
        made = f"{field.factory} if {field.name} is None else {field.name}"
        return f"self.{field.name} = {made if field.is_parameter else field.factory}"
    if field.is_parameter:
        return f"self.{field.name} = {field.name}"
    return "" if field.default is None else f"self.{field.name} = {field.default}"


def traits_of(sources: Sources, paths: Iterable[str]) -> set[tuple[str, str]]:
    """(module, name) of the classes that stand behind another one in a list of bases."""
    found = set()
    for path in paths:
        for each in ast.walk(sources.tree(path)):
            if isinstance(each, ast.ClassDef):
                bases = [
                    base
                    for base in each.bases
                    if ast.unparse(base).split("[")[0] not in ("Generic", "Protocol")
                ]
                for base in bases[1:]:
                    if isinstance(base, ast.Name) and (of := sources.find(path, base.id)) is not None:
                        found.add((of[0], of[1].name))
    return found


def composites(lines: list[str], tree: ast.Module) -> str:
    """A module whose composites have fields of any type, but for those that may be None."""
    lines = list(lines)
    for of in tree.body:
        if isinstance(of, ast.ClassDef) and any(
            ast.unparse(each).startswith("composite(") for each in of.decorator_list
        ):
            for each in own_fields(of):
                text = _text(each.annotation)
                if "None" not in text:
                    at = each.lineno - 1
                    lines[at] = lines[at].replace(f": {text}", ": Any", 1)
    return "\n".join(lines)


def copy(root: Path, to: Path, paths: list[str], *, for_tests: bool = False) -> None:
    """Writes the tree as the compiler reads it; files that are the same are left alone."""
    sources = Sources(root)
    traits = traits_of(sources, paths)
    for path in sorted(each.relative_to(root).as_posix() for each in (root / "lightrail").rglob("*.py")):
        text = composites(sources.lines(path), sources.tree(path))
        if path in paths:
            text = Module(sources, path, traits, for_tests=for_tests).text
        target = to / path
        if not target.exists() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
