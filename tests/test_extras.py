"""Light core, extras for the rest: what is imported must be declared, and a missing library must name its extra."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpaudit import InputError, _validate

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LIBRARIES = {"google": "protobuf", "grpc": "grpcio", "orbax": "orbax-checkpoint", "sklearn": "scikit-learn"}


def names(requirements: list[str]) -> set[str]:
    """The projects that requirements name."""
    return {re.split(r"[\[<>=~! ]", one)[0].lower().replace("_", "-") for one in requirements}


def imports(tree: ast.AST, extra: str | None = None) -> Iterator[tuple[str, str | None]]:
    """The libraries that a module imports, each with the extra that is named around its import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], extra) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.split(".")[0], extra
        elif isinstance(node, ast.With) and (named := _extra(node)) is not None:
            yield from imports(node, named)
        else:
            yield from imports(node, extra)


def _extra(node: ast.With) -> str | None:
    call = node.items[0].context_expr
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "_validate.extra":
        assert isinstance(call.args[0], ast.Constant)
        return str(call.args[0].value)
    return None


def undeclared(source: str) -> set[tuple[str, str | None]]:
    """The imports of a module that neither the core nor the extra named around them installs."""
    return {
        (library, extra)
        for library, extra in imports(ast.parse(source))
        if library not in sys.stdlib_module_names | {"dpaudit"}
        and LIBRARIES.get(library, library.replace("_", "-"))
        not in names(PROJECT["dependencies"] if extra is None else EXTRAS[extra])
    }


def test_every_import_is_of_the_core_or_names_its_extra():
    files = [file for file in (ROOT / "dpaudit").rglob("*.py") if not file.name.endswith("_pb2.py")]
    assert len(files) > 100
    # JAX's own types of numbers are ml_dtypes', dp-accounting's events are classes of attrs: both install them. The
    # plugin is imported by pytest.
    theirs = {("ml_dtypes", None), ("attr", None), ("pytest", None)}
    found = {file: undeclared(file.read_text("utf-8")) - theirs for file in files}
    assert {file.name: wrong for file, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize(
    "source, wrong",
    [
        ("import matplotlib", {("matplotlib", None)}),
        ("def f():\n    from sklearn.metrics import roc_auc_score", {("sklearn", None)}),
        ("with _validate.extra('data'):\n    import grpc", {("grpc", "data")}),
        ("with _validate.extra('secure'):\n    import grpc\nimport jax", set()),
        ("if TYPE_CHECKING:\n    import matplotlib", set()),
    ],
)
def test_undeclared_imports_are_found(source, wrong):
    assert undeclared(source) == wrong


def test_all_holds_every_extra_of_a_user():
    assert {"train", "data", "report", "secure", "tfds", "colab"} == _within("all")
    assert {"train", "data", "report", "secure"} < _within("dev")


def _within(extra: str) -> set[str]:
    (own,) = (one for one in EXTRAS[extra] if one.startswith("dpaudit["))
    return set(own.removeprefix("dpaudit[").removesuffix("]").split(","))


def hide(monkeypatch: pytest.MonkeyPatch, library: str, *importers: str) -> None:
    """Makes importing ``library`` fail, also for modules that have imported it already."""
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, library, None)
    for name in importers:
        monkeypatch.delitem(sys.modules, name, raising=False)


def draw() -> None:
    from dpaudit.report import figures

    figures.canvas(1, 1)


def digits() -> None:
    from dpaudit import data

    data.load("digits", split="train")


def save(tmp_path: Path = Path("nowhere")) -> None:
    from dpaudit._engine.checkpoint import FolderCheckpoint

    FolderCheckpoint(tmp_path, {}).restore()


def matrices() -> None:
    import dpaudit.training.matrix_noise  # noqa: F401


def membership() -> None:
    import dpaudit.training.dropout.membership  # noqa: F401


def certificates() -> None:
    import dpaudit.secure.service.certificates  # noqa: F401


def channels() -> None:
    import dpaudit.personalization.boundary.channels  # noqa: F401


@pytest.mark.parametrize(
    "library, extra, use, importer",
    [
        ("matplotlib", "report", draw, None),
        ("sklearn", "data", digits, None),
        ("sklearn", "data", membership, "dpaudit.training.dropout.membership"),
        ("orbax", "train", save, None),
        ("jax_privacy", "train", matrices, "dpaudit.training.matrix_noise"),
        ("grpc", "secure", certificates, "dpaudit.secure.service.certificates"),
        ("cryptography", "secure", channels, "dpaudit.personalization.boundary.channels"),
    ],
)
def test_a_missing_library_names_its_extra(monkeypatch, library, extra, use, importer):
    hide(monkeypatch, library, *([] if importer is None else [importer]))
    with pytest.raises(
        InputError, match=rf"^{library}: expected .*\(pip install 'dpaudit\[{extra}\]'\), got"
    ) as caught:
        use()
    assert "\n" not in str(caught.value)


def test_an_extra_leaves_other_failures_alone():
    with pytest.raises(ZeroDivisionError), _validate.extra("data"):
        raise ZeroDivisionError
