"""Imports between the rooms of the package: downwards only, in the order of the design, and without a circle."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = [
    "_lazy",
    "_version",
    "_validate",
    "_platform",
    "kernels.philox",  # a generator of random numbers, of which the engine draws
    "_engine",
    "data",
    "mechanisms",
    "kernels",
    "secure",
    "auditing",
    "training",
    "federated",
    "personalization",
    "audits",
    "report",
    "pytest_plugin",
    "cli",
]
SECURE_MAY = {"_lazy", "_validate", "_engine", "mechanisms", "secure"}  # a server needs no more of the package


def modules(folder: Path = ROOT) -> dict[str, Path]:
    """Every module below the package's own two, by its name without ``dpaudit.``."""
    files = [*(folder / "dpaudit").rglob("*.py"), *(folder / "kernels").rglob("*.py")]
    places = {tuple(part for part in file.relative_to(folder).with_suffix("").parts): file for file in files}
    found = {".".join(parts[1:] if parts[0] == "dpaudit" else parts): file for parts, file in places.items()}
    named = {name.removesuffix(".__init__"): file for name, file in found.items()}
    return {name: file for name, file in named.items() if name not in ("__init__", "__main__")}


def imports(source: str, known: dict[str, Path]) -> Iterator[str]:
    """The modules of this package that a source imports anywhere but for type checking."""
    for node in ast.walk(_without_type_checking(ast.parse(source))):
        if isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}".removeprefix("dpaudit.")
                within = node.module.removeprefix("dpaudit").removeprefix(".")
                if node.module.split(".")[0] == "dpaudit":
                    yield name if name in known else within
        elif isinstance(node, ast.Import):
            yield from (alias.name[8:] for alias in node.names if alias.name.startswith("dpaudit."))


def _without_type_checking(tree: ast.Module) -> ast.Module:
    class Remover(ast.NodeTransformer):
        def visit_If(self, node: ast.If) -> ast.AST | None:
            is_guard = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            return None if is_guard else self.generic_visit(node)

    return Remover().visit(tree)


def place(module: str) -> int:
    """The number of the part that a module belongs to: the longest prefix that is listed."""
    fitting = [part for part in PARTS if module == part or module.startswith(part + ".")]
    return PARTS.index(max(fitting, key=len))


def upward(edges: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(module, other) for module, other in edges if place(other) > place(module)]


def circle(edges: list[tuple[str, str]]) -> list[str]:
    """The modules that lie on a circle or import one: what is left when modules without imports are taken away."""
    left = {module: {other for one, other in edges if one == module} for edge in edges for module in edge}
    while leaves := [module for module, others in left.items() if not others]:
        for leaf in leaves:
            del left[leaf]
        left = {module: others - set(leaves) for module, others in left.items()}
    return sorted(left)


@pytest.fixture(scope="module")
def edges() -> list[tuple[str, str]]:
    known = modules()
    return [
        (module, other)
        for module, file in known.items()
        for other in imports(file.read_text(), known)
        if other and other != module
    ]


def test_every_room_is_listed() -> None:
    rooms = {module.split(".")[0] for module in modules()}
    assert rooms == {part.split(".")[0] for part in PARTS}


def test_imports_run_downwards(edges: list[tuple[str, str]]) -> None:
    assert len(edges) > 300
    assert upward(edges) == []
    assert upward([("data.files", "auditing.audit"), ("cli.main", "_validate")]) == [("data.files", "auditing.audit")]


def test_imports_have_no_circle(edges: list[tuple[str, str]]) -> None:
    assert circle(edges) == []
    assert circle([("a", "b"), ("b", "c"), ("c", "b"), ("d", "e")]) == ["a", "b", "c"]


def test_secure_stands_on_the_lowest_rooms(edges: list[tuple[str, str]]) -> None:
    assert {other.split(".")[0] for module, other in edges if module.startswith("secure.")} <= SECURE_MAY


def test_type_checking_is_no_import() -> None:
    source = "if TYPE_CHECKING:\n    from dpaudit import cli\nfrom dpaudit.data import files\nimport dpaudit.secure\n"
    assert list(imports(source, modules())) == ["data.files", "secure"]


def test_modules_are_short() -> None:
    assert [module for module, file in modules().items() if len(file.read_text().splitlines()) > 400] == []


def bound_twice(source: str) -> list[str]:
    """Names that a module binds more than once at its top: the second meaning would change what came before."""
    bound: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
            bound += [one.id for one in names if isinstance(one.ctx, ast.Store)]
    return sorted(name for name in {*bound} - {"_"} if bound.count(name) > 1)


def test_no_constant_or_function_is_bound_twice() -> None:
    assert {module: names for module, file in modules().items() if (names := bound_twice(file.read_text()))} == {}
    assert bound_twice("RATE, FAR = 1, 2\ndef f(): return RATE\nRATE = 3\n") == ["RATE"]
