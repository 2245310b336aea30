"""The world model: memorise, imagine, explain."""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import as_plain, require, require_whole
from gtmsm.errors import InputError, shown
from gtmsm.files import as_path, write_tensors
from gtmsm.kernels.operator import load_operators
from gtmsm.kernels.search.most_visible import most_visible
from gtmsm.model.bumps import Bumps
from gtmsm.model.checks import (
    given,
    require_actions,
    require_clips,
    require_closure,
    require_enough,
    require_finite,
    require_frames,
    require_kind,
    require_split,
    start_of_plans,
)
from gtmsm.model.dream import Dream
from gtmsm.model.elbo import Elbo, foresee, infer
from gtmsm.model.fingerprint import Fingerprint
from gtmsm.model.following import Observed, follow
from gtmsm.model.frame_memory import FrameMemory
from gtmsm.model.frame_vae import HIGHEST, LOWEST, FrameVAE, patch_grid
from gtmsm.model.landmark import Landmarks
from gtmsm.model.localisation import PoseMixture, localise
from gtmsm.model.memory import Memory, Neighbours, measure, nearest
from gtmsm.model.motion import build_motion
from gtmsm.model.planning import Obstacles, Plan, PlanConfig, Walked, plan, require_obstacles
from gtmsm.model.query_network import QueryNetwork
from gtmsm.model.ray_attention import RayAttention
from gtmsm.model.recall import Forecast, MixturePrior, Prior, RecallConfig, Retrieved
from gtmsm.model.settings import Description, WorldModelConfig
from gtmsm.model.weights import WEIGHTS, open_weights, take_weights
from gtmsm.shipped import Card, cards, find_run
from gtmsm.tensors import Actions, Belief, Frames, Gaussian, require_generator


class WorldModel(nn.Module):
    """GTM-SM (Fraccaro et al., 2018): memorises frames with their poses, and predicts the frames of any actions.

    Frames are `batch time channel height width` in [0, 1]; frame t is observed after action t.
    """

    def __init__(self, settings: WorldModelConfig, frame_shape: tuple[int, int, int], action_size: int) -> None:
        super().__init__()
        Description(model=settings, frame_shape=frame_shape, action_size=action_size)
        load_operators()
        self.settings = settings
        self.frame_shape = frame_shape
        self.action_size = action_size
        self.vae = FrameVAE(settings.vae, frame_shape)
        self.motion = build_motion(settings.motion, action_size)
        places = self.place_size = self.motion.place(self.motion.start(1)).shape[-1]
        self.prior = self._build_prior(places)
        mapped = settings.recall.map_size
        self.metric = nn.Linear(places, mapped, bias=False) if mapped else nn.Identity()
        self.log_var: nn.Parameter | None = None  # shared by all samples that memory holds
        if settings.recall.holds == "samples":
            self.log_var = nn.Parameter(torch.zeros(settings.vae.code_size))
        self.landmarks: Landmarks | None = None
        if settings.landmark.form != "off":
            self.landmarks = Landmarks(settings.landmark, settings.vae.code_size, self.motion)
        self.bumps = Bumps(settings.vae.code_size, action_size, settings.bumps) if settings.bumps else None
        self._fingerprint = Fingerprint()

    def _build_prior(self, places: int) -> Prior:
        """The prior that the settings name."""
        settings, code_size = self.settings.recall, self.settings.vae.code_size
        if settings.prior == "query":
            return QueryNetwork(settings, code_size, places)
        if settings.prior == "rays":
            return RayAttention(settings, code_size, patch_grid(self.frame_shape, self.settings.vae.patch))
        return MixturePrior()

    @property
    def fingerprint(self) -> str | None:
        """Hash of the weights, None while they cannot be read; memories made by other weights are refused."""
        return self._fingerprint.of(self)

    def without_walls(self) -> "WorldModel":
        """The same weights with a motion without walls, for walks that begin anywhere on a picture.

        Learned walls lie relative to the start of the walks of training. Without them, failed steps are recognised by
        landmarks alone.
        """
        if self.settings.motion.kind != "walled":
            return self
        settings = replace(self.settings, motion=replace(self.settings.motion, kind="free"))
        free = WorldModel(settings, self.frame_shape, self.action_size).to(self.motion.start(1))
        free.load_state_dict({name: x for name, x in self.state_dict().items() if name in free.state_dict()})
        return free.train(self.training).requires_grad_(next(self.parameters()).requires_grad)

    def train(self, mode: bool = True) -> "WorldModel":
        """`nn.Module.train`; drops the cached fingerprint, since weights may have changed."""
        self._fingerprint.forget()
        return super().train(mode)

    def memorise(
        self,
        frames: Frames,
        actions: Actions,
        memory: Memory | None = None,
        here: Belief | None = None,
        closure: int | None = None,
    ) -> tuple[Memory, Belief]:
        """Store frames with the poses they were seen from (section 3.3); return the memory and the pose estimate.

        `memory` and `here` of an earlier call continue its walk. `closure`: number of steps after which loops are
        closed; 0: never; None: as in the settings of landmarks. Entries that `memory` already holds never change, so
        calls with single steps close no loops; `Explorer` does. If memory holds samples, they are drawn with the seed
        len(memory).
        """
        seen = self.observe(frames, actions, memory, here, closure)
        return (memory.write(seen.entries) if memory else seen.entries), seen.walk[:, -1]

    def observe(
        self,
        frames: Frames,
        actions: Actions,
        memory: Memory | None = None,
        here: Belief | None = None,
        closure: int | None = None,
    ) -> Observed:
        """The entries that `memorise` writes, and the pose estimates of the walk."""
        require_clips(self, frames, actions, "memorise", memory, here)
        require_closure(self, closure)
        alone = bool(closure) and memory is not None and frames.shape[1] == 1
        fix = f"walk with Explorer(model, closure={closure}), or give the walk in one call"
        require(not alone, f"closure is {closure}, but there is 1 step, which closes no loop; {fix}")
        code = self.vae.encode(frames)
        followed = follow(self, actions, code, memory, here, closure)
        walk, variance = followed.walk, followed.variance
        # Only without a heading is the pose its own place, so that its covariance is that of the place.
        covariance = None if self.settings.motion.has_heading else walk.covariance
        kept = code
        if self.log_var is not None:
            held = 0 if memory is None else len(memory)
            kept = self.as_samples(code, torch.Generator(frames.device).manual_seed(held))
        written = self.written(Belief(self.motion.place(walk.mean), covariance), kept, variance)
        require_finite(self, "memorise", {}, walk.mean, walk.covariance, code.mean, code.log_var, written.digest)
        weights = (memory and memory.weights) or self.fingerprint  # a memory of other weights was refused above
        entries = replace(written, weights=weights, slips=followed.slips)
        return Observed(
            entries, walk, followed.made, followed.start, followed.sights, followed.believed, followed.watched
        )

    def follow(
        self,
        frames: Frames,
        actions: Actions,
        memory: Memory | None = None,
        here: Belief | None = None,
        closure: int | None = None,
    ) -> Belief:
        """Pose estimates after each action: p*(s_t) from actions or, with landmarks, q*(s_t) from frames as well.

        `memory`: entries known before the walk. `here`: the initial pose; `anywhere` if it is unknown.
        """
        require_clips(self, frames, actions, "follow", memory, here)
        require_closure(self, closure)
        code = self.vae.encode(frames)
        walk = follow(self, actions, code, memory, here, closure).walk
        require_finite(self, "follow", {}, walk.mean, walk.covariance)
        return walk

    def anywhere(self, batch: int) -> Belief:
        """The belief of an unknown initial pose, which landmarks and a memory then estimate from the first frames."""
        landmarks = self.require_landmarks("start anywhere")
        require_whole("batch", batch)
        start = self.motion.start(batch)
        return Belief(start, landmarks.as_covariance(landmarks.ignorance(batch, start), start))

    def localise(self, memory: Memory, frames: Frames, actions: Actions | None = None) -> PoseMixture:
        """The poses from which the last frame of each clip may have been seen, and the probability that it never was.

        A clip is followed from an unknown initial pose, by its actions if they are given. A single frame is looked up
        in memory by its code.
        """
        landmarks = self.require_landmarks("localise")
        require_frames(self, frames)
        guess, plan = actions is None, actions
        if plan is None:
            plan = frames.new_zeros(*frames.shape[:2], self.action_size)
        require_kind(memory, Memory)
        require_clips(self, frames, plan, "localise", memory)
        require_enough(memory, landmarks.settings.matches)
        found = localise(self, memory, frames, plan, guess)
        require_finite(self, "localise", {}, found.weight, found.pose, found.variance, found.unknown)
        return found

    def require_landmarks(self, what: str) -> Landmarks:
        """The landmarks of this model; refuses to do `what` if it has none."""
        if self.landmarks is None:
            raise InputError(
                f"to {what} takes landmarks, and this model has none; train one with --model.landmark.form"
            )
        return self.landmarks

    def imagine(
        self,
        memory: Memory,
        here: Belief,
        actions: Actions,
        generator: torch.Generator | None = None,
        obstacles: Obstacles | None = None,
    ) -> Dream:
        """Predict where `actions` would lead from `here`, and the frames that memory predicts there.

        Poses are computed at once and cheaply; `Dream.frames` decodes on demand. Without a generator: the mean path and
        the heaviest component; with one: samples of pose, component and code. One memory and one initial pose serve any
        number of plans. `obstacles`: what the agent bumped into, which stops plans (`Obstacles.of`). With or without
        them, walls of the motion stop plans, and with `--model.bumps` so do views at which steps are expected to fail.
        """
        require_actions(self, actions)
        require_generator(generator, actions.device)
        here = start_of_plans(self, memory, here, len(actions))
        require_finite(self, "imagine", given(actions, here))
        memory = memory.snapshot()  # what is written before frames are asked for changes nothing
        start, noise = here.mean, None
        if generator is not None:
            start, noise = here.sample(generator), self.motion.draw_noise(actions, generator)
        if obstacles is not None:
            require_obstacles(obstacles, self.motion, memory)
        unroll = self.motion.unroll if obstacles is None else obstacles.unroll
        if self.bumps is not None:
            actions = self.bumps.foreseen(self, memory, start, actions, unroll)
        poses = unroll(start, actions, noise)
        query = Belief(self.motion.place(poses))
        if self.settings.recall.distance == "kl":
            query = self.motion.believe(here, actions)
            if obstacles is not None:
                query = Belief(unroll(here.mean, actions), query.covariance)
        require_finite(self, "imagine", {}, poses)
        return Dream(poses, partial(self._recall, memory, query), self._show, generator)

    def plan(
        self,
        memory: Memory,
        here: Belief,
        goal: Float[Tensor, "*goal"],
        walked: Walked | None = None,
        settings: PlanConfig | None = None,
        choices: Float[Tensor, "m A"] | None = None,
        before: Plan | None = None,
        generator: torch.Generator | None = None,
    ) -> Plan:
        """Actions that lead from `here` to `goal`, a picture or a pose, by search over sequences of actions.

        `walked`: steps tried so far; what they bumped into is barred. `choices`: actions to choose from, by default all
        one-hot actions. `before`: an earlier plan, whose `choices` are one of the sequences that the search begins
        with. Without a generator: seed 0.
        """
        for name, part, kind in (
            ("walked", walked, Walked), ("settings", settings, PlanConfig), ("before", before, Plan),
        ):  # fmt: skip
            require(part is None or isinstance(part, kind), f"{name} is {shown(part)}; give a {kind.__name__}, or None")
        return plan(self, memory, here, goal, walked, settings, choices, before, generator)

    def _recall(self, memory: Memory, query: Belief) -> Forecast:
        """`read` for a dream; refuses distances that are not finite, since the entries found would be arbitrary."""
        forecast = self.read(memory, query)
        # Attention treats NaN as nothing to attend to, so its output does not reveal NaN in its weights.
        require_finite(self, "imagine", {}, forecast.neighbours.distance2, *self.odd_weights())
        return forecast

    def odd_weights(self) -> Iterable[Tensor]:
        """The weights of the prior, unless they are known to be finite: checking all of them takes milliseconds."""
        return () if self._fingerprint.is_finite(self.prior) else self.prior.parameters()

    def _show(self, codes: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch channel height width"]:
        """Decoded frames for a dream; refuses NaN, which weights of the decoder may cause."""
        frames = self.vae.decode(codes)
        require_finite(self, "imagine", {}, frames)
        return frames

    def forward(
        self, frames: Frames, actions: Actions, plan: Float[Tensor, "batch later A"]
    ) -> Float[Tensor, "batch later channel height width"]:
        """The frames that `plan` would show after a walk: memorise, then imagine. Entry point for `torch.compile`."""
        memory, here = self.memorise(frames, actions)
        return self.imagine(memory, here, plan).frames

    def read(self, memory: Memory | FrameMemory, query: Belief, reading: RecallConfig | None = None) -> Forecast:
        """p(z_t | s_t, m) at the places `query`, from K entries of memory or from all if it holds fewer.

        A single memory serves any number of clips. Imagination and training both read memory by this method. Poses and
        distances stay in float32 where networks run in bfloat16.
        """
        reading = reading or self.settings.recall
        readable = min(reading.latest or len(memory), len(memory))
        k = min(reading.neighbours or readable, readable)
        lead = query.mean.shape[:2]
        if memory.batch == 1 != lead[0]:  # all clips read the same memory
            covariance = None if query.covariance is None else query.covariance.flatten(0, 1)[None]
            query = Belief(query.mean.flatten(0, 1)[None], covariance)
        with torch.autocast(query.mean.device.type, enabled=False):
            neighbours = self._search(memory, query, k, reading)
        bank, row, digest = memory.retrieve(neighbours.index)
        near = Neighbours(neighbours.index.view(*lead, k), neighbours.distance2.view(*lead, k))

        def relative() -> Float[Tensor, "batch time K P"]:
            with torch.autocast(query.mean.device.type, enabled=False):
                place = memory.place_at(neighbours.index)
                return self.motion.relative(place, query.mean[:, :, None]).view(*lead, k, -1)

        def absolute() -> tuple[Float[Tensor, "batch time K P"], Float[Tensor, "batch time P"]]:
            return memory.place_at(neighbours.index).view(*lead, k, -1), query.mean.view(*lead, -1)

        return self.prior(Retrieved(near, bank, row.view(*lead, k), relative, reading.delta, digest, absolute))

    def _search(self, memory: Memory | FrameMemory, query: Belief, k: int, reading: RecallConfig) -> Neighbours:
        """The k entries to retrieve and their distances, which may be measured in a learned map of places."""
        first = max(0, len(memory) - reading.latest) if reading.latest else 0
        if not first and reading.choice == "nearest" and not self.settings.recall.map_size:
            return memory.nearest(query, k, reading.distance)
        if first:
            kept = torch.arange(first, len(memory), device=query.mean.device).expand(memory.batch, -1)
        place = memory.place_at(kept) if first else memory.place.mean
        mapped, asked = self.metric(place), self.metric(query.mean)
        if reading.choice == "visible":
            found = measure(mapped, asked, most_visible(place, query.mean, k, reading.field_of_view))
        else:
            found = nearest(Belief(mapped), Belief(asked), k)
        return Neighbours(found.index + first, found.distance2) if first else found

    def explain(
        self,
        frames: Frames,
        actions: Actions,
        tau: int,
        generator: torch.Generator | None = None,
        reading: RecallConfig | None = None,
    ) -> Elbo:
        """The bound on log p(x_{tau+1:T} | a, x_{1:tau}), per frame (section 3.4), by one sample of poses and codes.

        Memory holds the means of p*(s_t); the poses of later steps are ancestral samples of it. With landmarks, both
        are of q*(s_t), which depends on the frames as well and, as in training, ignores walls; the bound then includes
        the KL of the poses. Without a generator: seed 0.
        """
        require_clips(self, frames, actions, "explain")
        require_generator(generator, frames.device)
        reading = self.settings.recall if reading is None else replace(self.settings, recall=reading).recall
        require_split(frames.shape[1], tau, reading.neighbours)
        generator = generator or torch.Generator(frames.device).manual_seed(0)
        walk = infer(self, frames, actions, generator)
        foreseen = foresee(self, frames, actions, walk, tau, None, reading, generator)
        terms = (
            self.vae.log_likelihood(frames[:, tau:], self.vae.logits(foreseen.z)),
            foreseen.forecast.divergence(foreseen.code, foreseen.z),
            None if walk.pose_kl is None else walk.pose_kl[:, tau:],
        )
        require_finite(self, "explain", {}, *terms, *self.odd_weights())
        return Elbo(*terms)

    def as_samples(self, code: Gaussian, generator: torch.Generator) -> Gaussian:
        """Codes for a memory of samples: z ~ q(z|x), with one learned variance for all of them."""
        assert self.log_var is not None
        z = code.sample(generator)
        return Gaussian(z, nn.functional.hardtanh(self.log_var, LOWEST, HIGHEST).expand_as(z).contiguous())

    def written(self, place: Belief, code: Gaussian, variance: Float[Tensor, "batch time G"] | None = None) -> Memory:
        """A memory of these codes at these places."""
        digest = self.prior.digest(code.flatten())
        return Memory(place, code, None if digest is None else digest.unflatten(0, code.mean.shape[:2]), variance)

    def save(self, path: str | Path) -> None:
        """Write weights and settings to one safetensors file, atomically."""
        about = {"model": as_plain(self.settings), "frame_shape": self.frame_shape, "action_size": self.action_size}
        write_tensors(as_path(path), self.state_dict(), about)

    def begin_with(self, folder: str | Path) -> None:
        """Copy the weights of a trained model of the same parts; parts that it lacks, such as landmarks, are kept."""
        folder = find_run(folder)
        if not (folder / WEIGHTS).is_file():
            raise InputError(f"begin_with is {folder}, which holds no {WEIGHTS}; give a run folder with --begin-with")
        other = WorldModel.load(folder)
        tensors = self.state_dict() | other.state_dict()
        take_weights(self, tensors, folder / WEIGHTS)

    @staticmethod
    def available() -> tuple[Card, ...]:
        """The weights that `load` knows by name, each with a description and its licence."""
        return cards()

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> "WorldModel":
        """Load a model from a run folder, its weights file, or the name of shipped weights (`available`).

        For use, not for training: its weights have no gradients.
        """

        def build(said: Description) -> "WorldModel":
            return cls(said.model, said.frame_shape, said.action_size)

        return open_weights(find_run(path), device, "world model", "model", Description, build)
