"""What the tokens of an image are: those in front, registers, and patches row by row; from configurations alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import ModelError
from tasks.models.families import family_of

CHANNELS = 3


@dataclass(frozen=True)
class PatchGrid:
    """The tokens that a model makes of one image."""

    leading: tuple[str, ...]
    """[CLS], DeiT's [DIST], and registers."""
    patch: tuple[int, int]
    """Pixels of a patch, (height, width)."""
    image: tuple[int, int]
    """Pixels of an image as the configuration says, (height, width)."""
    interpolates: bool
    """Whether images of another size may be given."""

    @classmethod
    def of(cls, config: Mapping[str, Any], where: str) -> PatchGrid:
        """Read it from a model's configuration. Raises ModelError naming the size that is missing or is none."""
        family = family_of(config, where=where)
        if config.get("num_channels", CHANNELS) != CHANNELS:
            got = str(config["num_channels"])
            raise ModelError(f"a model of images with {CHANNELS} channels", got=got, where=where)
        registers = config.get("num_register_tokens", family.registers) if family.registers else 0
        named = tuple(f"[REG {i}]" for i in range(registers))
        patch, image = (_pair(config, name, where) for name in ("patch_size", "image_size"))
        return cls((*family.leading, *named), patch, image, family.interpolates)

    def length(self, size: tuple[int, int]) -> int:
        """Tokens of an image of that size, (height, width)."""
        rows, columns = self._grid(size)
        return len(self.leading) + rows * columns

    def tokens(self, size: tuple[int, int]) -> list[str]:
        """What to call each token of an image of that size: patches by row and column, from 0."""
        rows, columns = self._grid(size)
        return [*self.leading, *(f"patch {row},{column}" for row in range(rows) for column in range(columns))]

    def _grid(self, size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // self.patch[0], size[1] // self.patch[1]


def _pair(config: Mapping[str, Any], name: str, where: str) -> tuple[int, int]:
    value = config.get(name)
    pair = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in pair):
        raise ModelError(
            f"one or two sizes in pixels for '{name}' in the model's configuration",
            got=repr(value),
            where=where,
            remedy="The configuration is damaged: fetch or save the model again.",
        )
    return int(pair[0]), int(pair[1])
