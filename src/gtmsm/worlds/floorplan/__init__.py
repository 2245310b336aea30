"""Places drawn from a seed: walls, objects, and how rooms are connected."""

from gtmsm.worlds.floorplan.plans import FloorPlans, Plan, draw_floorplans, require_walkable

__all__ = ["FloorPlans", "Plan", "draw_floorplans", "require_walkable"]
