"""Eight threads on one long memory, then on `imagine`: is every answer that of one thread? Run by hand.

    python benchmarks/threads.py --seconds 60 --device cuda

Entries are never changed, so the memory at any moment is the first n entries of the memory at the end. What the
threads were told is compared with what one thread is told by a memory that is written again, entry by entry.
"""

import argparse
import copy
import pickle
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.long_memory import LongMemory
from gtmsm.model.memory import Memory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.tensors import Belief, Gaussian

K, BUFFER = 4, 256
PAUSE = 2e-3
"""Seconds between writes, so that some 10^5 entries are not exceeded."""


def code_of(places: torch.Tensor) -> Gaussian:
    """A code that tells which place it belongs to."""
    return Gaussian(2 * places, 3 * places)


def first(memory: Memory, held: int) -> Memory:
    """The first entries."""
    variance = None if memory.variance is None else memory.variance[:, :held]
    return Memory(memory.place[:, :held], memory.code[:, :held], variance=variance)


def at_once(*jobs):
    """What each job returns, run in a thread of its own."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        return [made.result() for made in [threads.submit(job) for job in jobs]]


def on_a_memory(seconds: float, device: str) -> Counter:
    """Two threads write, one copies, five read."""
    memory = LongMemory(buffer=BUFFER)
    origin = torch.zeros(1, K, 2, device=device)
    memory.write(Memory(Belief(origin), code_of(origin)))
    end = time.perf_counter() + seconds
    count = Counter()

    def write(seed: int) -> None:
        chance = np.random.default_rng(seed)
        while time.perf_counter() < end:
            time.sleep(PAUSE)
            if chance.random() < 0.8:
                place = chance.normal(size=2).astype(np.float32)
                memory.insert(place, 2 * place, 3 * place)
            else:
                places = torch.from_numpy(chance.normal(size=(1, chance.integers(1, 30), 2)).astype(np.float32))
                memory.write(Memory(Belief(places.to(device)), code_of(places.to(device))))

    def read(seed: int) -> list:
        chance, answers = np.random.default_rng(seed), []
        while time.perf_counter() < end:
            query, before = chance.normal(size=2).astype(np.float32), len(memory)
            if chance.random() < 0.5:
                found = memory.find(query, K)[0]
            else:
                near = memory.nearest(Belief(torch.from_numpy(query)[None, None].to(device)), K).index
                bank, row, _ = memory.retrieve(near)
                assert torch.equal(bank.mean[row], 2 * memory.place_at(near))
                assert torch.equal(bank.log_var[row], 3 * memory.place_at(near))
                found = near.flatten().cpu().numpy()
            answers.append((max(before, int(found.max()) + 1), len(memory), query, found))
        return answers

    def copies() -> list:
        made = []
        while time.perf_counter() < end:
            for other in (memory.snapshot(), copy.deepcopy(memory), pickle.loads(pickle.dumps(memory))):
                assert torch.equal(other.place.mean, memory.place.mean[:, : len(other)])
                assert torch.equal(2 * other.place.mean, other.code.mean)
                made.append((len(other), len(other), [0.1, 0.2], other.find([0.1, 0.2], K)[0]))
            time.sleep(0.05)
        return made

    _, _, made, *answers = at_once(
        *(lambda s=s: write(s) for s in (1, 2)), copies, *(lambda s=s: read(s) for s in range(3, 8))
    )
    places, again = memory.place.mean[0].cpu().numpy(), LongMemory(buffer=BUFFER)
    for moment, after, query, found in sorted(made + sum(answers, []), key=lambda answer: answer[0]):
        for place in places[len(again) : moment]:
            again.insert(place, 2 * place, 3 * place)
        count["wrong"] += moment > after or found.tolist() != again.find(query, K)[0].tolist()
    for query in np.random.default_rng(0).normal(size=(300, 2)):
        distance2 = ((places.astype(np.float64) - query) ** 2).sum(1)
        count["wrong"] += memory.find(query, K)[0].tolist() != np.argsort(distance2, kind="stable")[:K].tolist()
    count.update(entries=len(memory), searches=sum(map(len, answers)), copies=len(made))
    return count


def on_imagine(seconds: float, device: str) -> Counter:
    """One thread memorises into a long memory, seven imagine and localise; all share one model."""
    torch.manual_seed(0)
    parts = {"motion": MotionConfig(noise=0.1), "landmark": LandmarkConfig(form="bayes", width=16)}
    model = WorldModel(WorldModelConfig(**parts), (3, 8, 8), 2).eval().requires_grad_(False).to(device)
    frames, actions = torch.rand(1, 20, 3, 8, 8, device=device), torch.randn(1, 20, 2, device=device)
    begun, here = model.memorise(frames, actions)
    memory, end, count = LongMemory.of(begun, buffer=16, ratio=2), time.perf_counter() + seconds, Counter()

    def memorise() -> None:
        chance, there = torch.Generator().manual_seed(0), here
        while time.perf_counter() < end:
            some = torch.rand(1, 3, 3, 8, 8, generator=chance), torch.randn(1, 3, 2, generator=chance)
            _, there = model.memorise(*(x.to(device) for x in some), memory, there)
            time.sleep(0.2)

    def imagine(seed: int) -> list:
        chance, answers = torch.Generator().manual_seed(seed), []
        while time.perf_counter() < end:
            plan, now = torch.randn(1, 6, 2, generator=chance).to(device), memory.snapshot()
            seen = model.localise(now, frames[:, :1]).pose
            sampled = model.imagine(now, here, plan, torch.Generator(device).manual_seed(seed)).frames
            answers.append((len(now), len(now), seed, plan, model.imagine(now, here, plan).frames, seen, sampled))
            before = len(memory)
            imagined = model.imagine(memory, here, plan).frames
            answers.append((before, len(memory), seed, plan, imagined, None, None))
        return answers

    _, *answers = at_once(memorise, *(lambda s=s: imagine(s) for s in range(7)))
    whole = Memory(memory.place, memory.code, variance=memory.variance)
    for before, after, seed, plan, imagined, seen, sampled in (answer for some in answers for answer in some):
        then = [LongMemory.of(first(whole, held)) for held in range(before, after + 1)]
        right = any(torch.equal(imagined, model.imagine(held, here, plan).frames) for held in then)
        if seen is not None:
            chance = torch.Generator(device).manual_seed(seed)
            right &= torch.equal(seen, model.localise(then[0], frames[:, :1]).pose)
            right &= torch.equal(sampled, model.imagine(then[0], here, plan, chance).frames)
        count["wrong"] += not right
    count.update(entries=len(memory), dreams=sum(map(len, answers)))
    return count


def main() -> None:
    """Both, one after the other, for so many seconds each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--device", default="cpu")
    seconds, device = (given := parser.parse_args()).seconds, given.device
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-5)  # change threads often, wherever they are
    wrong = 0
    for what, trial in (("one LongMemory", on_a_memory), ("one model and LongMemory", on_imagine)):
        count = trial(seconds, device)
        wrong += count["wrong"]
        counted = ", ".join(f"{number} {name}" for name, number in count.items())
        print(f"| 8 threads on {what}, {device}, {seconds:g} s | {counted} |", flush=True)
    if wrong:
        raise SystemExit(f"{wrong} answers differ from those of one thread")


if __name__ == "__main__":
    main()
