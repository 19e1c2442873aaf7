"""Dependencies point one way, as docs/architecture.md says."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import transformer_mt

PACKAGE = Path(transformer_mt.__file__).parent
# From the bottom to the top. A module may import those of its own room and of the floors below.
FLOORS = [
    ["utils"],
    ["config", "formats", "weights"],
    ["data", "model_directory"],
    ["model"],
    ["kernels"],
    ["decoding", "scoring"],
    ["export"],
    ["translator"],
    ["training"],
    ["pretrained"],
    ["reports"],
    ["serving"],
    ["commands"],
    ["cli"],
    ["__main__"],
]
FLOOR_OF_ROOM = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}


def imports() -> dict[str, set[str]]:
    """The modules of the package that each module imports, anywhere in it, even for types only."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        names = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        parts = [name.split(".")[1:] for name in names if name.startswith("transformer_mt.")]
        found[module_of(path.relative_to(PACKAGE).with_suffix("").parts)] = {
            module_of(own if exists(own) else own[:-1]) for own in parts
        } - {"__init__"}  # the version, which stands in the package
    del found["__init__"]  # it imports the translator when somebody asks for it
    return found


def exists(parts) -> bool:
    path = PACKAGE.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def module_of(parts) -> str:
    return ".".join(parts).removesuffix(".__init__") or "__init__"


def test_no_module_imports_from_a_floor_above():
    for module, others in imports().items():
        for other in others:
            own, its = (FLOOR_OF_ROOM[name.split(".")[0]] for name in (module, other))
            assert its <= own, f"{module} imports {other}"


def test_no_modules_import_each_other():
    TopologicalSorter(imports()).prepare()  # raises CycleError


def test_the_model_needs_no_kernels_and_one_function_chooses_them():
    """`training.run` asks them whether they have the precision of the config."""
    for module, others in imports().items():
        if module.startswith(("model", "training")) and module not in (
            "training.run",
            "training.update",
        ):
            assert not any(other.startswith("kernels") for other in others), module
