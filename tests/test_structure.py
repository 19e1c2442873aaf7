"""Dependencies point one way, as docs/architecture.md says."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import transformer_mt

PACKAGE = Path(transformer_mt.__file__).parent
# From the bottom to the top. A module may import those of its own floor and of the floors below.
FLOORS = [
    ("runtime",),
    ("config", "weights"),
    ("model", "data", "model_directory"),
    ("decoding", "evaluation"),
    ("training",),
    ("mechanisms", "backends"),
    ("inspect", "pages"),
    ("assembly",),
    ("serving",),
    ("device_check",),
    ("commands",),
    ("cli",),
    ("__init__", "__main__"),
]
FLOOR_OF_ROOM = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
# What these modules collect from the rooms above them, from modules that are light to import.
COLLECTING = ("config.schema", "config.rules")
COLLECTED = re.compile(
    r"data\.datasets|evaluation\.(metrics|tokenizers)|training\.schedule|mechanisms\.\w+\.config"
)


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
        }
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
            is_collected = module in COLLECTING and COLLECTED.fullmatch(other)
            is_version = (module, other) in [
                ("cli", "__init__"),
                ("commands.model_choice", "__init__"),
                ("commands.augment", "__init__"),
                ("device_check.machine", "__init__"),
                ("assembly.run", "__init__"),
                ("serving.app", "__init__"),
            ]
            assert its <= own or is_collected or is_version, f"{module} imports {other}"


def test_no_modules_import_each_other():
    graph = imports()
    del graph["__init__"]  # it imports the translator when somebody asks for it
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_core_imports_no_mechanism_and_no_backend():
    core = ("model", "data", "decoding", "evaluation", "training")
    for module, others in imports().items():
        for other in others if module.split(".")[0] in core else ():
            assert not other.startswith(("mechanisms", "backends")), f"{module} imports {other}"
