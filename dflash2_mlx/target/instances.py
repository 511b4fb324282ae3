"""Give single instances of a library class a behaviour of their own, and leave the class alone.

The instance gets a subclass of its own class: parameters, quantisation and `isinstance` stay as they are, and every
other instance in the process is untouched.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from mlx import nn


@cache
def _subclass(base: type, mixin: type) -> type:
    return type(base.__name__, (mixin, base), {"__module__": base.__module__, "__qualname__": base.__qualname__})


def equip(instance: nn.Module, mixin: type, **attributes: Any) -> None:
    """Put `mixin` in front of the class of `instance`, once, and set plain (not parameter) attributes."""
    if not isinstance(instance, mixin):
        instance.__class__ = _subclass(type(instance), mixin)
    for name, value in attributes.items():
        object.__setattr__(instance, name, value)
