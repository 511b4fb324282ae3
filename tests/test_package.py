"""The package as a whole: what importing it costs, its public names, its size."""

import ast
import inspect
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dflash2_app
import dflash2_mlx
import dflash2_quantize
import dflash2_server

PACKAGE = Path(dflash2_mlx.__file__).parent
SERVER = Path(dflash2_server.__file__).parent
APP = Path(dflash2_app.__file__).parent
QUANTIZE = Path(dflash2_quantize.__file__).parent
SOURCES = sorted(path for package in (PACKAGE, SERVER, APP, QUANTIZE) for path in package.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60


def names_of_sources(path: Path) -> str:
    return "/".join(path.parts[-3:])


def is_method(member: object) -> bool:
    return isinstance(member, property | staticmethod | classmethod) or inspect.isfunction(member)


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_neither_mlx_nor_mlx_lm() -> None:
    heavy = "{name.split('.')[0] for name in sys.modules} & {'mlx', 'mlx_lm', 'transformers', 'numpy', 'rich'}"
    assert run_python(f"import sys, dflash2_mlx; print({heavy})") == "set()"


def test_a_public_name_is_imported_at_its_first_use() -> None:
    code = "import sys, dflash2_mlx; dflash2_mlx.generate; print('mlx.core' in sys.modules)"
    assert run_python(code) == "True"


def test_every_public_name_exists_and_is_listed() -> None:
    for name in dflash2_mlx.__all__:
        assert getattr(dflash2_mlx, name) is not None
        assert name in dir(dflash2_mlx)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = dflash2_mlx.nothing


def test_the_version_is_the_installed_one() -> None:
    assert version("dflash2-mlx") == dflash2_mlx.__version__


def test_the_package_is_marked_as_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert (SERVER / "py.typed").is_file()
    assert (APP / "py.typed").is_file()
    assert (QUANTIZE / "py.typed").is_file()


def test_the_public_api_is_documented() -> None:
    public = {name: getattr(dflash2_mlx, name) for name in dflash2_mlx.__all__ if name != "__version__"}
    for name, value in list(public.items()):
        if inspect.isclass(value):
            members = {key: what for key, what in vars(value).items() if not key.startswith("_")}
            public |= {f"{name}.{key}": what for key, what in members.items() if is_method(what)}
    undocumented = [name for name, value in public.items() if not (value.__doc__ or "").strip()]
    assert not undocumented, f"no docstring: {undocumented}"


@pytest.mark.parametrize("path", SOURCES, ids=names_of_sources)
def test_a_module_says_what_it_is_and_stays_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no module docstring"
    assert text.count("\n") <= MAX_FILE_LINES, "a file of this length is more than one idea: split it"
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions}
    long = {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES}
    assert not long, f"split these functions (lines): {long}"
