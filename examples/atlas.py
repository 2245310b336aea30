"""Two Gymnasium agents explore a picture apart, share what they saw, and find each other's places. Seconds on a CPU."""

import tempfile

import gymnasium
import torch

from gtmsm import Atlas, Belief, Explorer, WorldModel

# Learned walls lie where they did from the centre, and these two set out elsewhere: without walls views alone tell.
model = WorldModel.load("obstacles-celeba").without_walls()
UP, DOWN, LEFT, RIGHT, STAY = range(5)


def explore(to_start: list[int]) -> tuple[Explorer, torch.Tensor]:
    """Walk to a start; from there right and left in rows of six cells. Returns who did so, and the last view."""
    env = gymnasium.make("gtmsm/ImageWalk-v0", split="test")
    env.reset(seed=7)
    view = [env.step(action)[0] for action in to_start][-1]
    explorer = Explorer(model)
    explorer.step(view)
    for action in [*[RIGHT] * 5, DOWN, *[LEFT] * 5, DOWN] * 4 + [RIGHT] * 5:
        view = env.step(action)[0]
        explorer.step(view, action)
    return explorer, torch.from_numpy(view).permute(2, 0, 1) / 255


anna, _ = explore([UP] * 4 + [LEFT] * 4)  # the six columns on the left, of nine
bert, view = explore([UP] * 4 + [LEFT])  # the six on the right; he ends in a corner that she has never seen

with tempfile.TemporaryDirectory() as folder, Atlas.open(f"{folder}/places.db", model) as atlas:
    atlas.add("gallery", "anna", anna.memory)
    atlas.add("gallery", "bert", bert.memory)
    (met,) = atlas.merge("gallery")
    print(f"bert set out at {met.found[0].origin.tolist()} of anna's map, really [0, 3]")
    corner, stay = Belief(torch.tensor([[8.0, 8.0]])), torch.eye(5)[STAY].view(1, 1, 5)
    for who, memory in (("alone", anna.memory), ("with bert", atlas.memory("gallery", "anna"))):
        error2 = (model.imagine(memory, corner, stay).frames[0, 0] - view).square().mean()
        print(f"anna imagines the corner {who}: {-10 * error2.log10():.1f} dB")
    found = atlas.where("gallery", view[None, None], agent="anna")
    print(f"and finds bert's last view at {found.pose[0, 0].tolist()} of her map, really [8, 8]")
    plan = Explorer(model, atlas.memory("gallery", "anna"), anna.here).plan(view)
    print(f"her way there from {anna.here.mean[0].tolist()}: {len(plan.choices)} steps to {plan.poses[-1].tolist()}")
