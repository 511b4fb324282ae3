"""The choice of a BLAS: the switch, its refusals, and that the linker really binds mlx to what was loaded."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash2_mlx import _blas
from dflash2_mlx.errors import DFlashError

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="nothing is preloaded elsewhere")


@pytest.fixture(autouse=True)
def undecided() -> Iterator[None]:
    """The choice is made once per process: forget it for a test, and again after it."""
    _blas.preload.cache_clear()
    yield
    _blas.preload.cache_clear()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """As before mlx is imported, with a loader that only notes what it is asked for."""
    libraries: list[str] = []
    monkeypatch.setattr(_blas, "_load", libraries.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    monkeypatch.delenv("DFLASH2_BLAS")
    return libraries


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_bundled_loads_nothing(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_BLAS", "bundled")
    assert _blas.preload() == _blas.BlasStatus(None, "DFLASH2_BLAS=bundled")
    assert loaded == []


@pytest.mark.parametrize("value", [None, "", "auto"])
def test_auto_is_the_default_and_takes_the_first_found(
    value: str | None, loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is not None:
        monkeypatch.setenv("DFLASH2_BLAS", value)
    monkeypatch.setattr(_blas, "_candidates", lambda: iter(["first.so", "second.so"]))
    assert _blas.preload().library == "first.so"
    assert loaded == ["first.so"]


def test_the_environments_own_libraries_come_before_the_systems(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libmkl_rt.so.2", "libmkl_rt.so.3", "libopenblas.so.0"):
        (tmp_path / "lib" / name).touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    tried = [Path(library) for library in _blas._candidates()]
    own = [library.name for library in tried if library.is_relative_to(tmp_path)]
    assert own == ["libmkl_rt.so.3", "libmkl_rt.so.2", "libopenblas.so.0"]
    assert tried.index(Path("libopenblas.so.0")) >= len(own)


def test_a_broken_candidate_is_passed_over(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(library: str) -> None:
        if library == "broken.so":
            raise OSError("no such file")

    monkeypatch.setattr(_blas, "_load", load)
    monkeypatch.setattr(_blas, "_candidates", lambda: iter(["broken.so", "good.so"]))
    assert _blas.preload().library == "good.so"


def test_where_nothing_is_found_the_reason_names_the_remedy(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blas, "_candidates", lambda: iter([]))
    assert _blas.preload().library is None
    assert "libopenblas0-pthread" in str(_blas.status())


def test_never_on_macos_whatever_the_switch_says(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for value in ("auto", "/opt/libopenblas.so.0", "nonsense"):
        monkeypatch.setenv("DFLASH2_BLAS", value)
        _blas.preload.cache_clear()
        assert _blas.preload() == _blas.BlasStatus(None, "nothing is replaced on darwin")
    assert loaded == []


def test_too_late_is_reported_and_nothing_loaded(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlx.core", sys)
    assert _blas.preload().library is None
    assert "import dflash2_mlx first" in _blas.preload().reason
    assert loaded == []


def test_an_unknown_value_is_refused_with_value_and_remedy(loaded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH2_BLAS", "openblas")
    with pytest.raises(DFlashError, match=r"DFLASH2_BLAS='openblas'.*'auto'.*'bundled'.*path"):
        _blas.preload()


@on_linux
@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("no library")])
def test_a_path_that_is_no_library_is_refused(make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make(path := tmp_path / "libnothing.so")
    monkeypatch.setenv("DFLASH2_BLAS", str(path))
    monkeypatch.delitem(sys.modules, "mlx.core", raising=False)
    with pytest.raises(DFlashError, match=r"libnothing\.so.*'auto' or to 'bundled'"):
        _blas.preload()


@on_linux
def test_a_library_without_cblas_is_refused() -> None:
    with pytest.raises(OSError, match=r"libm\.so\.6 has no cblas_sgemm"):
        _blas._load("libm.so.6")


@on_linux
@pytest.mark.parametrize(("value", "taken"), [("auto", True), ("bundled", False)])
def test_mlx_multiplies_with_the_library_that_was_loaded(value: str, taken: bool, tmp_path: Path) -> None:
    status = run_python("import dflash2_mlx._blas as b; print(b.status().library or '')", DFLASH2_BLAS="auto")
    library = status.stdout.strip()
    if not library:
        pytest.skip("no fast BLAS on this machine")
    code = "import dflash2_mlx; import mlx.core as mx; mx.eval(mx.ones((8, 64)) @ mx.ones((64, 64)))"
    trace = tmp_path / "bindings"
    done = run_python(code, DFLASH2_BLAS=value, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(trace))
    assert done.returncode == 0, done.stderr
    lines = "".join(path.read_text() for path in tmp_path.glob("bindings.*")).splitlines()
    bound = [line for line in lines if "libmlx" in line and "`cblas_sgemm'" in line]
    assert bound
    assert all((Path(library).name in line) is taken for line in bound)
