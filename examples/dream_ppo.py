"""Train an agent by PPO in a dream only, then let it walk in the real world; beside it one trained there.

    python examples/dream_ppo.py                       # a minute or two on one core
    python examples/dream_ppo.py --steps 200000 --places 3

An agent walks over a picture for 256 steps and memorises it. Then PPO walks in that memory, from place to place: the
real picture is not looked at again. At last the policy is tried on the real picture, on goals that were memorised. It
knows where it is by what the model infers, and stops where it believes to be there.
"""

import argparse
import time

import gymnasium
import numpy as np
import torch

from gtmsm import Explorer, WorldModel
from gtmsm.data.record import record
from gtmsm.worlds.image_walk import ImageWalk, ImageWalkConfig
from gtmsm.worlds.images import load_images
from gtmsm.worlds.walkers import PoissonWalker

try:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import VecEnv
except ImportError:
    print('this example needs stable-baselines3: pip install "gtmsm[rl]"')
    raise SystemExit from None

WEIGHTS = "image-walk"
AGENTS, LONGEST = 64, 64
"""Agents that learn side by side, and steps after which they give up."""


class Side(VecEnv):
    """Environments as stable-baselines3 takes them; `act` returns what Gymnasium's vector environments do."""

    def __init__(self, begin, act, observation_space, action_space):
        super().__init__(AGENTS, observation_space, action_space)
        self.begin, self.act = begin, act

    def reset(self):
        return self.begin()

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        seen, reward, ended, late, info = self.act(self.actions)
        infos = [{} for _ in range(AGENTS)]
        for i in np.flatnonzero(ended | late):
            infos[i] = {"terminal_observation": info["final_obs"][i], "TimeLimit.truncated": bool(late[i])}
        return seen, reward, ended | late, infos

    def close(self): ...
    def get_attr(self, name, indices=None):
        return [None] * AGENTS

    def set_attr(self, name, value, indices=None): ...
    def env_method(self, name, *args, indices=None, **kwargs): ...
    def env_is_wrapped(self, wrapper, indices=None):
        return [False] * AGENTS


def dreaming(explorer):
    envs = gymnasium.make_vec(
        "gtmsm/Dream-v0", AGENTS, run=explorer.model, memory=explorer, observation="place", steps=LONGEST
    )
    spaces = envs.single_observation_space, envs.single_action_space
    return Side(lambda: envs.reset(seed=0)[0], envs.step, *spaces), envs.unwrapped.dreams


class Real:
    """The same task in the real world, where agents are told their true cell."""

    def __init__(self, world, cells):
        self.world, self.cells, self.rng = ImageWalk(world.images, world.config), cells, np.random.default_rng(0)
        self.image, self.goal, self.time = int(world.image[0]), np.zeros((AGENTS, 2)), np.zeros(AGENTS, int)

    def begin(self):
        self.put(self.rng.choice(self.cells, AGENTS), np.ones(AGENTS, bool))
        return self.look()

    def put(self, cells, new):
        self.world.place(torch.full((AGENTS,), self.image), torch.from_numpy(cells).long())
        self.goal[new] = self.rng.choice(self.cells, new.sum())
        self.time[new] = 0

    def look(self):
        cell = self.world.cell.numpy()
        return np.concatenate([cell - 4, self.goal - cell], 1).astype(np.float32)

    def act(self, actions):
        self.world.step(torch.as_tensor(actions))
        self.time += 1
        cell = self.world.cell.numpy().copy()
        ended = (cell == self.goal).all(1)
        late, seen = (self.time >= LONGEST) & ~ended, self.look()
        over = ended | late
        cell[over] = self.rng.choice(self.cells, over.sum())
        self.put(cell, over)
        return self.look(), ended.astype(np.float32), ended, late, {"final_obs": seen}


def learn(envs, steps, seed):
    torch.manual_seed(seed)
    settings = {"n_steps": 32, "batch_size": 512, "n_epochs": 6, "gamma": 0.95, "gae_lambda": 0.9, "ent_coef": 0.02}
    network = {"net_arch": [128, 128]}
    agent = PPO("MlpPolicy", envs, 1e-3, policy_kwargs=network, seed=seed, device="cpu", **settings)
    return agent.learn(steps)


def try_out(policy, world, goals, look, there, act):
    """Share of goals that the agent stops at in the real world, one after the other, and SPL."""
    reached, lengths = [], []
    for goal, cell in goals:
        shortest, taken = np.abs(world.cell[0].numpy() - cell).sum(), 0
        while taken < LONGEST and not there(goal, cell):
            act(int(policy.predict(look(goal, cell)[None])[0][0]))
            taken += 1
        reached.append(bool((world.cell[0].numpy() == cell).all()))
        lengths.append(reached[-1] * shortest / max(taken, shortest, 1))
    return f"{100 * np.mean(reached):.1f}% of {len(goals)} goals reached in the real world, SPL {np.mean(lengths):.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60_000, help="of PPO")
    parser.add_argument("--trials", type=int, default=200, help="in the real world, for each picture")
    parser.add_argument("--places", type=int, default=1, help="pictures, each with a dream and an agent of its own")
    flags = parser.parse_args()
    torch.set_num_threads(1)
    model = WorldModel.load(WEIGHTS)
    world = ImageWalk(load_images("builtin", 32).test, ImageWalkConfig())
    for seed in range(flags.places):
        with torch.no_grad():
            clip = record(world, PoissonWalker(), 1, 256, torch.Generator().manual_seed(seed))
            explorer = Explorer(model, *model.memorise(clip.x, clip.a))
        cells, rng, start = clip.true_pose[0].long().numpy(), np.random.default_rng(seed), world.cell.clone()
        poses = explorer.memory.snapshot().place.mean[0]
        goals = [(poses[t], cells[t]) for t in rng.integers(len(cells), size=flags.trials)]

        begun, (envs, dream) = time.perf_counter(), dreaming(explorer)
        policy = learn(envs, flags.steps, seed)
        print(f"picture {seed}: {flags.steps} steps in the dream, {time.perf_counter() - begun:.0f} s")

        def walk(action, explorer=explorer):
            world.step(torch.tensor([action]))
            explorer.step(world.look()[0], action)

        def place(goal, cell, explorer=explorer, dream=dream):
            return dream.places(explorer.here.mean, goal[None])[0]

        def believes(goal, cell, explorer=explorer, dream=dream):
            return bool(dream.terrain.there(explorer.here.mean, goal[None])[0])

        print(f"picture {seed}: dreamt:", try_out(policy, world, goals, place, believes, walk))

        world.place(world.image, start)
        begun, real = time.perf_counter(), Real(world, cells)
        policy = learn(Side(real.begin, real.act, envs.observation_space, envs.action_space), flags.steps, seed)
        print(f"picture {seed}: as many steps in the real world, {time.perf_counter() - begun:.0f} s")

        def true_place(goal, cell):
            here = world.cell[0].numpy()
            return np.concatenate([here - 4, cell - here]).astype(np.float32)

        def is_there(goal, cell):
            return bool((world.cell[0].numpy() == cell).all())

        def go(action):
            world.step(torch.tensor([action]))

        print(f"picture {seed}: lived:", try_out(policy, world, goals, true_place, is_there, go))


if __name__ == "__main__":
    main()
