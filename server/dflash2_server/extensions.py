"""What every protocol takes: objects of any JSON and, beyond its own schema, the `dflash` object of one request."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _finite(value: dict[str, Any]) -> dict[str, Any]:
    """1e999 is JSON, and reads as infinity, which no response or template can write again."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("Input should hold finite numbers only") from None
    return value


JsonObject = Annotated[dict[str, Any], AfterValidator(_finite)]


class DFlashOptions(BaseModel):
    """`{"enabled": false}` decodes this request plainly; otherwise block size, mode and precision may be set."""

    model_config = ConfigDict(strict=True, extra="ignore")

    enabled: bool | None = None
    block_size: int | None = Field(
        default=None, description="rows of a verify block, the anchor included; 1 is plain decoding"
    )
    verify_mode: str | None = Field(default=None, description="adaptive, dflash or off")
    verify_precision: str | None = Field(
        default=None, description="fast, or reference: one row at a time, for comparison"
    )

    def parameters(self) -> dict[str, Any]:
        """The parameters for the runtime, which checks their values. `enabled: false` wins over the others."""
        if self.enabled is False:
            return {"verify_mode": "off"}
        names = ("block_size", "verify_mode", "verify_precision")
        return {name: value for name in names if (value := getattr(self, name)) is not None}
