"""What the installed mlx-lm makes of a config: whether it has the family, and whether a drafter could serve it.

Modules of families are read, never imported: some import packages that are not there, and one ends the process.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dflash2_mlx import facts

_NAME = re.compile(r"[A-Za-z0-9_-]+")
# Ends of architectures that write text; the last one only with a language model in the config.
_WRITES = ("ForCausalLM", "LMHeadModel")
_SEES_AND_WRITES = "ForConditionalGeneration"
# Ends of architectures that write none, also in families that mlx-lm has.
_OTHER = re.compile(r"(For\w*Classification|ForMaskedLM|ForQuestionAnswering|ForReward\w*|(?<!LMHead)Model)$")
# Files of sentence-transformers: the model gives embeddings, whatever its architecture is called.
_EMBEDDING_FILES = {"modules.json", "config_sentence_transformers.json"}


def is_chat_model(config: Mapping[str, Any], files: frozenset[str]) -> bool:
    """Whether a user would expect the folder among the chat models, to be loaded or to be told why not."""
    names = _architectures(config)
    if files & _EMBEDDING_FILES or (names and all(_OTHER.search(name) for name in names)):
        return False
    if any(name.endswith(_WRITES) for name in names):
        return True
    if any(name.endswith(_SEES_AND_WRITES) for name in names) and "text_config" in config:
        return True
    return unsupported(config) is None


def unsupported(config: Mapping[str, Any]) -> str | None:
    """Why mlx-lm cannot load a model of that config; None where it can."""
    family = config.get("model_type")
    if not isinstance(family, str) or not family:
        return "config.json names no model_type: it is no checkpoint that mlx-lm can load"
    if config.get("model_file") is not None:
        return f"its config runs code of its own ({config['model_file']}), which is not supported"
    if _module(module_name(config)) is None:
        return f"mlx-lm {_version()} has no family {family!r}: update mlx-lm, or use another model"
    return None


def incompatible(config: Mapping[str, Any]) -> str | None:
    """Why no drafter can serve a model of that config, as far as that tells; None where one can."""
    strange = sorted(_cache_classes(module_name(config)) - _known_caches())
    if strange:
        return (
            f"{config.get('model_type')} keeps its state in {', '.join(strange)}, which cannot be rolled back: "
            "it decodes plainly"
        )
    if not facts.layer_kinds(config):
        return "its config does not tell how many layers it has: no drafter can be matched with it"
    return None


def module_name(config: Mapping[str, Any]) -> str:
    """The family's module in mlx-lm, which takes some for others."""
    from mlx_lm import utils

    family = str(config.get("model_type"))
    by_architecture: Mapping[tuple[str, str], str] = getattr(utils, "MODEL_ARCHITECTURE_REMAPPING", {})
    for name in _architectures(config):
        if (family, name) in by_architecture:
            return by_architecture[family, name]
    others: Mapping[str, str] = getattr(utils, "MODEL_REMAPPING", {})
    return others.get(family, family)


def _architectures(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


@cache
def _module(name: str) -> Path | None:
    """The file of a family's module; None where mlx-lm has none, or it is no model."""
    source = _source(name)
    return source if source is not None and "Model" in _names(_parsed(source)) else None


@cache
def _source(name: str) -> Path | None:
    if not _NAME.fullmatch(name):  # a dot would import the module before it
        return None
    spec = importlib.util.find_spec(f"mlx_lm.models.{name}")
    return Path(spec.origin) if spec is not None and spec.origin else None


@cache
def _cache_classes(name: str) -> frozenset[str]:
    """Names of the cache classes that a family uses, with those of the families that it is made of."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        source = _source(module)
        if module in seen or source is None:
            continue
        seen.add(module)
        tree = _parsed(source)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Cache"):
                found.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.level == 1:
                names = [alias.name for alias in node.names]
                if node.module == "cache":
                    found.update(each for each in names if each.endswith("Cache"))
                else:
                    waiting += [node.module] if node.module else names
    return frozenset(found)


@cache
def _known_caches() -> frozenset[str]:
    from dflash2_mlx.target.rollback import known_kinds

    return known_kinds() | {"_BaseCache"}


@cache
def _parsed(source: Path) -> ast.Module:
    return ast.parse(source.read_text(encoding="utf-8"))


def _names(tree: ast.Module) -> set[str]:
    """What a module defines or imports at its top."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found.update(alias.asname or alias.name for alias in node.names)
    return found


def _version() -> str:
    from importlib.metadata import version

    return version("mlx-lm")
