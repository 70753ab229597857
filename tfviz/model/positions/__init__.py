"""How positions enter: `POSITIONS` by name."""

from tfviz.model.positions.alibi import Alibi
from tfviz.model.positions.base import NoPositions, PositionScheme
from tfviz.model.positions.learned import Learned
from tfviz.model.positions.rope import Rope
from tfviz.model.positions.rotation import Rotation
from tfviz.model.positions.sinusoidal import Sinusoidal

POSITIONS: dict[str, type[PositionScheme]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "rope": Rope,
    "alibi": Alibi,
    "none": NoPositions,
}

__all__ = ["POSITIONS", "PositionScheme", "Rotation"]
