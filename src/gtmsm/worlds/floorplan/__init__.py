"""Places to walk, drawn from a seed: shells of walls, what stands in them, and how to get from room to room."""

from gtmsm.worlds.floorplan.plans import (
    FloorPlans,
    Plan,
    draw_floorplans,
    require_drawable,
    require_objects,
    require_passable,
)

__all__ = ["FloorPlans", "Plan", "draw_floorplans", "require_drawable", "require_objects", "require_passable"]
