"""Search for actions that lead to a goal, in a memory (the paper's future work)."""

from gtmsm.model.planning.gait import typical
from gtmsm.model.planning.goal import Goal, find_goal
from gtmsm.model.planning.obstacles import Obstacles, Walked, require_obstacles
from gtmsm.model.planning.search import Plan, plan
from gtmsm.model.planning.terrain import PlanConfig, Terrain

__all__ = [
    "Goal", "Obstacles", "Plan", "PlanConfig", "Terrain", "Walked", "find_goal", "plan", "require_obstacles", "typical",
]  # fmt: skip
