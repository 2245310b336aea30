"""The world model: memorise, imagine, explain."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.config import as_plain, config, read_config, require, require_whole
from gtmsm.errors import InputError, shown
from gtmsm.files import as_path, read_tensors, write_tensors
from gtmsm.kernels.operator import load_operators
from gtmsm.kernels.search.most_visible import most_visible
from gtmsm.model.budget import Budget
from gtmsm.model.bumps import Bumps
from gtmsm.model.checks import (
    given,
    require_actions,
    require_clips,
    require_device,
    require_enough,
    require_finite,
    require_frames,
    require_kind,
    require_split,
    start_of_plans,
    take_weights,
)
from gtmsm.model.dream import Dream
from gtmsm.model.elbo import Elbo, Foreseen, Walk, at_steps
from gtmsm.model.fingerprint import Fingerprint
from gtmsm.model.frame_memory import FrameMemory, frame_numbers
from gtmsm.model.frame_vae import FrameVAE, FrameVAEConfig, patch_grid
from gtmsm.model.landmark import Known, Landmarks
from gtmsm.model.landmark_filter import Sights
from gtmsm.model.localisation import PoseMixture, merge_matches
from gtmsm.model.memory import Memory, Neighbours, measure, nearest
from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.planning import Plan, PlanConfig, Walked, plan
from gtmsm.model.query_network import QueryNetwork
from gtmsm.model.ray_attention import RayAttention
from gtmsm.model.recall import Forecast, MixturePrior, Prior, RecallConfig, Retrieved
from gtmsm.model.recognition import LandmarkConfig, look_up
from gtmsm.shipped import Card, cards, find_run
from gtmsm.tensors import Actions, Belief, Frames, Gaussian, State, States, gather, require_generator


@config
class WorldModelConfig:
    """The parts of a world model."""

    vae: FrameVAEConfig = FrameVAEConfig()
    motion: MotionConfig = MotionConfig()
    recall: RecallConfig = RecallConfig()
    landmark: LandmarkConfig = LandmarkConfig()
    bumps: int = 0
    """Units of the network that tells from a view which steps from it fail (not in the paper); 0: none does."""

    def __post_init__(self) -> None:
        """Refuse parts that do not fit together."""
        require(
            self.recall.distance != "kl" or self.motion.noise > 0,
            "distance is kl but noise is 0: a pose that is known exactly has no divergence; give some noise",
        )
        require(
            self.recall.distance != "kl" or not self.motion.has_heading,
            f"distance is kl, which compares poses themselves, but the places of a {self.motion.kind} motion are not "
            "its poses; use distance euclidean",
        )
        wants_heading = self.recall.prior == "rays" or self.recall.choice == "visible"
        require(
            self.motion.has_heading or not wants_heading,
            f"prior {self.recall.prior} with choice {self.recall.choice} needs an agent with a heading, and a "
            f"{self.motion.kind} motion has none; use turning, drifting or gliding",
        )
        require(self.bumps >= 0, f"bumps is {self.bumps}; give a number of units, or 0")
        require(
            self.landmark.form == "off" or self.motion.noise > 0,
            "landmarks correct a pose that may be wrong, but noise is 0; give some noise",
        )
        require(
            self.landmark.form == "off" or self.recall.distance == "euclidean",
            "distance is kl, but beliefs corrected by landmarks are no marginals of the motion; use distance euclidean",
        )
        require(
            self.recall.prior != "rays" or self.vae.coder == "spatial",
            f"prior rays needs spatial codes but coder is {self.vae.coder}; use coder spatial",
        )


@config
class Description:
    """What a file of weights says of the model that they belong to."""

    model: WorldModelConfig
    frame_shape: tuple[int, int, int]
    action_size: int

    def __post_init__(self) -> None:
        """Refuse frames that nobody draws."""
        shaped = isinstance(self.frame_shape, tuple) and len(self.frame_shape) == 3
        require(shaped, f"frame_shape is {shown(self.frame_shape)}; give a tuple (channels, height, width)")
        for name, size in (*(("frame_shape", size) for size in self.frame_shape), ("action_size", self.action_size)):
            require_whole(name, size, most=LARGEST)


WEIGHTS = "weights.safetensors"
LARGEST = 1_024
"""Side of a frame in pixels, and number of actions."""


@dataclass(frozen=True)
class Observed:
    """A walk that was followed, and what is to be memorised of it."""

    entries: Memory
    walk: Belief
    made: Actions
    """Its actions, without those that the views say have failed."""
    start: State
    """Where it began, as far as that was found out."""
    sights: Sights | None
    """What was recognised at each step, by the numbers of entries; in Bayes' form of landmarks."""
    believed: States
    """Where the agent believed to be at each step, by what it had seen so far; `walk` may know more (`closure`)."""


class WorldModel(nn.Module):
    """GTM-SM (Fraccaro et al., 2018): what was seen, where, and what any actions would show.

    Frames are `batch time channel height width` in [0, 1]; frame t is what action t led to.
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
            return RayAttention(settings, code_size, patch_grid(self.frame_shape))
        return MixturePrior()

    @property
    def fingerprint(self) -> str | None:
        """Of its weights: memories say which made them, and are refused by others."""
        return self._fingerprint.of(self)

    def without_walls(self) -> "WorldModel":
        """The same weights with a motion that knows no walls: its walks may begin anywhere on a picture.

        Learned walls lie where they did from the start of the walks that taught them. Steps that fail are then told by
        landmarks alone.
        """
        if self.settings.motion.kind != "walled":
            return self
        settings = replace(self.settings, motion=replace(self.settings.motion, kind="free"))
        free = WorldModel(settings, self.frame_shape, self.action_size).to(self.motion.start(1))
        free.load_state_dict({name: x for name, x in self.state_dict().items() if name in free.state_dict()})
        return free.train(self.training).requires_grad_(next(self.parameters()).requires_grad)

    def train(self, mode: bool = True) -> "WorldModel":
        """`nn.Module.train`; weights may have changed since."""
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
        """Store what was seen and where (section 3.3); returns the memory and where the agent is now.

        Give `memory` and `here` of an earlier call to go on from there. `closure`: steps after which loops are closed,
        0 for never; None: as the settings of landmarks say. What `memory` holds already stays as it is: calls of single
        steps close no loops, `Explorer` does.
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
        """What `memorise` writes, and how the walk was followed."""
        require_clips(self, frames, actions, "memorise", memory, here)
        alone = bool(closure) and memory is not None and frames.shape[1] == 1
        fix = f"walk with Explorer(model, closure={closure}), or give the walk in one call"
        require(not alone, f"closure is {closure}, but there is 1 step, which closes no loop; {fix}")
        code = self.vae.encode(frames)
        made = self._made(actions, code, memory)
        walk, variance, start, sights, believed = self._follow(made, code, memory, here, closure)
        # Only where a pose is its own place does its covariance compare places.
        covariance = None if self.settings.motion.has_heading else walk.covariance
        written = self._written(Belief(self.motion.place(walk.mean), covariance), code, variance)
        require_finite(self, "memorise", {}, walk.mean, walk.covariance, code.mean, code.log_var, written.digest)
        weights = (memory and memory.weights) or self.fingerprint  # a memory of other weights was refused above
        return Observed(replace(written, weights=weights), walk, made, start, sights, believed)

    def follow(
        self,
        frames: Frames,
        actions: Actions,
        memory: Memory | None = None,
        here: Belief | None = None,
        closure: int | None = None,
    ) -> Belief:
        """Where the agent was after each action: p*(s_t) of its actions, or with landmarks q*(s_t) of what it saw, too.

        `memory` is what it knew before, `here` where it set out from; `anywhere` if that is not known.
        """
        require_clips(self, frames, actions, "follow", memory, here)
        code = self.vae.encode(frames)
        walk = self._follow(self._made(actions, code, memory), code, memory, here, closure)[0]
        require_finite(self, "follow", {}, walk.mean, walk.covariance)
        return walk

    def anywhere(self, batch: int) -> Belief:
        """To set out from a place that is not known: looking around will tell, with landmarks and a memory."""
        landmarks = self.require_landmarks("start anywhere")
        require_whole("batch", batch)
        start = self.motion.start(batch)
        return Belief(start, landmarks.as_covariance(landmarks.ignorance(batch, start), start))

    def localise(self, memory: Memory, frames: Frames, actions: Actions | None = None) -> PoseMixture:
        """Where was this picture, or the last of this short clip, seen? With a probability that it never was.

        A clip is followed from anywhere, by its actions where they are given; a single picture is looked up as it is.
        """
        landmarks = self.require_landmarks("localise")
        require_frames(self, frames)
        plan = frames.new_zeros(*frames.shape[:2], self.action_size) if actions is None else actions
        require_kind(memory, Memory)
        require_clips(self, frames, plan, "localise", memory)
        require_enough(memory, landmarks.settings.matches)
        code = self.vae.encode(frames)
        past = self._known(memory, code)
        lookup = look_up(past.code, code, landmarks.settings.matches)
        log_odds, offset, noise = landmarks.compare(past.code, code, lookup)
        sure = landmarks.compare.confidence(log_odds, noise, lookup.distance).mean(1)
        score = landmarks.compare.evidence(log_odds, noise)[:, -1]
        entry = lookup.index[:, -1]
        pose = self.motion.space.step(gather(past.pose, entry), offset[:, -1])
        if frames.shape[1] > 1:
            here = self.anywhere(len(frames))
            track = landmarks.trace(
                self.motion, here.mean, landmarks.as_variance(here), plan, code, past, guess=actions is None
            ).track
            score = score + landmarks.log_prob(pose, noise[:, -1], track.state[:, -1], track.variance[:, -1])
        variance = noise[:, -1] + gather(past.variance, entry)
        found = merge_matches(landmarks.compare, score, pose, variance, past.number[entry], sure)
        require_finite(self, "localise", {}, found.weight, found.pose, found.variance, found.unknown)
        return found

    def _made(self, actions: Actions, code: Gaussian, memory: Memory | None) -> Actions:
        """The actions without those that the views before them say have failed."""
        if self.bumps is None:
            return actions
        before = None
        if memory is not None and (held := len(memory)):
            last = torch.full((memory.batch,), held - 1, device=actions.device)
            before = memory.code_at(last).mean
        return self.bumps.noticed(code.mean, actions, before)

    def _follow(
        self, actions: Actions, code: Gaussian, memory: Memory | None, here: Belief | None, closure: int | None = None
    ) -> tuple[Belief, Float[Tensor, "batch time G"] | None, State, Sights | None, States]:
        """The walk; with landmarks the variances of its poses; its start, what was recognised, what was believed."""
        if closure is not None and (not isinstance(closure, int) or closure < 0 or (closure and not self.landmarks)):
            raise InputError(f"closure is {closure}; give a number of steps, 0 for never; it takes landmarks")
        here = here or Belief(self.motion.start(len(actions)))
        if self.landmarks is None:
            walk = self.motion.believe(here, actions)
            return walk, None, here.mean, None, walk.mean
        variance = self.landmarks.as_variance(here)
        past = self._known(memory, code)
        trace = self.landmarks.trace(self.motion, here.mean, variance, actions, code, past, closure=closure)
        (state, variance), sights = trace.track, trace.sights
        if sights is not None:
            sights = sights._replace(index=past.numbers(actions.shape[1])[sights.index])
        walk = Belief(state, self.landmarks.as_covariance(variance, state))
        return walk, variance, trace.start, sights, trace.believed

    def _known(self, memory: Memory | None, code: Gaussian) -> Known:
        """What landmarks may recognise in `memory` when they see this; nothing where there is none."""
        landmarks = self.require_landmarks("recognise places")
        if memory is None or not len(memory):
            start = self.motion.start(len(code.mean))[:, None][:, :0]
            return Known.whole(start[..., : self.motion.pose_size], start[..., : len(landmarks.groups)], code[:, :0])
        found = memory.alike(code.mean, landmarks.asked)
        if found.variance is None:
            raise InputError("this memory does not say how sure its poses are; memorise with a model with landmarks")
        return Known(self.motion.pose_at(found.place), found.variance, found.code, found.number, found.held)

    def require_landmarks(self, what: str) -> Landmarks:
        """Refuse what needs landmarks where there are none."""
        if self.landmarks is None:
            raise InputError(
                f"to {what} takes landmarks, and this model has none; train one with --model.landmark.form"
            )
        return self.landmarks

    def imagine(
        self, memory: Memory, here: Belief, actions: Actions, generator: torch.Generator | None = None
    ) -> Dream:
        """Where `actions` would lead from `here`, and what memory says is to be seen there.

        Poses come first and cheaply; `Dream.frames` decodes on demand. Without a generator: the mean path
        and the heaviest component; with one: samples of pose, component and code. From one memory and one place to
        start from, any number of plans may be imagined.
        """
        require_actions(self, actions)
        require_generator(generator, actions.device)
        here = start_of_plans(self, memory, here, len(actions))
        require_finite(self, "imagine", given(actions, here))
        memory = memory.snapshot()  # what is written before frames are asked for changes nothing
        start, noise = here.mean, None
        if generator is not None:
            start, noise = _draw(here, generator), self.motion.draw_noise(actions, generator)
        if self.bumps is not None:
            actions = self.bumps.foreseen(self, memory, start, actions)
        poses = self.motion.unroll(start, actions, noise)
        query = Belief(self.motion.place(poses))
        if self.settings.recall.distance == "kl":
            query = self.motion.believe(here, actions)
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

        `walked`: steps tried so far; what they bumped into is barred. `choices`: actions to choose from, one-hot ones
        by default. `before`: an earlier plan, of which the search may keep what is left. Without a generator: seed 0.
        """
        return plan(self, memory, here, goal, walked, settings, choices, before, generator)

    def _recall(self, memory: Memory, query: Belief) -> Forecast:
        """`read` for a dream: distances must be numbers, or the entries found are any."""
        forecast = self.read(memory, query)
        # Attention takes NaN for nothing to attend to, so that what it makes tells nothing of its weights.
        require_finite(self, "imagine", {}, forecast.neighbours.distance2, *self._odd_weights())
        return forecast

    def _odd_weights(self) -> Iterable[Tensor]:
        """The weights of the prior, unless they are known to be numbers: to look at all of them takes milliseconds."""
        return () if self._fingerprint.is_finite(self.prior) else self.prior.parameters()

    def _show(self, codes: Float[Tensor, "*batch Z"]) -> Float[Tensor, "*batch channel height width"]:
        """Decoded frames for a dream: a weight that is no number shows here."""
        frames = self.vae.decode(codes)
        require_finite(self, "imagine", {}, frames)
        return frames

    def forward(
        self, frames: Frames, actions: Actions, plan: Float[Tensor, "batch later A"]
    ) -> Float[Tensor, "batch later channel height width"]:
        """The frames that `plan` would show after a walk: memorise, then imagine. What `torch.compile` compiles."""
        memory, here = self.memorise(frames, actions)
        return self.imagine(memory, here, plan).frames

    def read(self, memory: Memory | FrameMemory, query: Belief, reading: RecallConfig | None = None) -> Forecast:
        """p(z_t | s_t, m) at the places `query`: K entries of memory, or all where it holds fewer.

        A single memory answers any number of clips. Imagining and training read in this one way; poses and distances
        stay in float32 where networks run in bfloat16.
        """
        reading = reading or self.settings.recall
        k = min(reading.neighbours or len(memory), len(memory))
        lead = query.mean.shape[:2]
        if memory.batch == 1 != lead[0]:  # all of them ask the same memory
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

        return self.prior(Retrieved(near, bank, row.view(*lead, k), relative, reading.delta, digest))

    def _search(self, memory: Memory | FrameMemory, query: Belief, k: int, reading: RecallConfig) -> Neighbours:
        """Which k entries to retrieve, and how far they are; distances may be measured in a learned map of places."""
        if reading.choice == "nearest" and not self.settings.recall.map_size:
            return memory.nearest(query, k, reading.distance)
        place, asked = self.metric(memory.place.mean), self.metric(query.mean)
        if reading.choice == "visible":
            return measure(place, asked, most_visible(memory.place.mean, query.mean, k, reading.field_of_view))
        return nearest(Belief(place), Belief(asked), k)

    def explain(
        self,
        frames: Frames,
        actions: Actions,
        tau: int,
        generator: torch.Generator | None = None,
        reading: RecallConfig | None = None,
    ) -> Elbo:
        """The bound on log p(x_{tau+1:T} | a, x_{1:tau}), per frame (section 3.4), by one sample of poses and codes.

        Memory holds the means of p*(s_t); the future's poses are ancestral samples of it. With landmarks both are of
        q*(s_t), which looks at the frames as well and, as in training, knows no walls; the bound pays for that.
        Without a generator: the samples of seed 0.
        """
        require_clips(self, frames, actions, "explain")
        require_generator(generator, frames.device)
        reading = self.settings.recall if reading is None else replace(self.settings, recall=reading).recall
        require_split(frames.shape[1], tau, reading.neighbours)
        generator = generator or torch.Generator(frames.device).manual_seed(0)
        walk = self.infer(frames, actions, generator)
        foreseen = self.foresee(frames, actions, walk, tau, None, reading, generator)
        terms = (
            self.vae.log_likelihood(frames[:, tau:], self.vae.logits(foreseen.z)),
            foreseen.forecast.divergence(foreseen.code, foreseen.z),
            None if walk.pose_kl is None else walk.pose_kl[:, tau:],
        )
        require_finite(self, "explain", {}, *terms, *self._odd_weights())
        return Elbo(*terms)

    def infer(self, frames: Frames, actions: Actions, generator: torch.Generator) -> Walk:
        """The mean path of a clip and one sampled path; with landmarks its frames are encoded and looked up first."""
        if self.landmarks is None:
            with torch.autocast(frames.device.type, enabled=False):
                paths = self.motion.unroll_twice(actions, self.motion.draw_noise(actions, generator))
            return Walk(paths.mean, paths.sample, step=paths.step)
        codes = self.vae.encode(frames)
        with torch.autocast(frames.device.type, enabled=False):
            lookup = self.landmarks.look_back(codes, codes, 0)
            learned = self.landmarks.learn(self.motion, self.motion.start(len(actions)), actions, codes, lookup)
            sample = self.landmarks.sample(learned.track, generator)
        return Walk(learned.track.state, sample, codes, lookup, learned)

    def foresee(
        self,
        frames: Frames,
        actions: Actions,
        walk: Walk,
        tau: int,
        asked: Int[Tensor, "batch asked"] | None,
        reading: RecallConfig,
        generator: torch.Generator,
        capacity: int | None = None,
    ) -> Foreseen:
        """q(z|x) and p(z|s, m) at the steps `asked` (None: all after tau), where memory holds the first tau steps.

        Memory is read at sampled poses or, by the KL distance, at the marginals p*(s_t) themselves.
        """
        with torch.autocast(frames.device.type, enabled=False):
            place = Belief(self.motion.place(walk.mean))
            query = Belief(at_steps(self.motion.place(walk.sample), asked, tau))
            if reading.distance == "kl":
                place = self.motion.believe(Belief(self.motion.start(len(actions))), actions)
                assert place.covariance is not None
                query = Belief(at_steps(place.mean, asked, tau), at_steps(place.covariance, asked, tau))
        if walk.codes is not None:
            code = at_steps(walk.codes, asked, tau)
            forecast = self.read(self._written(place[:, :tau], walk.codes[:, :tau]), query, reading)
            return Foreseen(code, code.sample(generator), forecast)
        if asked is None:
            asked = frame_numbers(1, frames.shape[1], 0, frames.device)[:, tau:].expand(len(frames), -1)
        memory = FrameMemory(place[:, :tau], frames, asked, self.vae, self.prior, capacity)
        forecast = self.read(memory, query, reading)
        code = memory.asked_code
        return Foreseen(code, code.sample(generator), forecast, memory.complete, memory.needed)

    def _written(self, place: Belief, code: Gaussian, variance: Float[Tensor, "batch time G"] | None = None) -> Memory:
        """A memory of these codes at these places."""
        digest = self.prior.digest(code.flatten())
        return Memory(place, code, None if digest is None else digest.unflatten(0, code.mean.shape[:2]), variance)

    def save(self, path: str | Path) -> None:
        """Weights and settings in one safetensors file, atomically."""
        about = {"model": as_plain(self.settings), "frame_shape": self.frame_shape, "action_size": self.action_size}
        write_tensors(as_path(path), self.state_dict(), about)

    def begin_with(self, folder: str | Path) -> None:
        """Take the weights of a trained model of the same parts, as far as it has them: it may lack landmarks."""
        folder = find_run(folder)
        if not (folder / WEIGHTS).is_file():
            raise InputError(f"begin_with is {folder}, which holds no {WEIGHTS}; give a run folder with --begin-with")
        other = WorldModel.load(folder)
        tensors = self.state_dict() | other.state_dict()
        self.load_weights(tensors, folder / WEIGHTS)

    @staticmethod
    def available() -> tuple[Card, ...]:
        """The weights that `load` knows by name, with what each is and its licence."""
        return cards()

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> "WorldModel":
        """From a run folder, a weights file of one, or the name of shipped weights (`available`).

        To look with, not to learn: its weights ask for no gradients.
        """
        device = require_device(device)
        path = find_run(path)
        file = path / WEIGHTS if path.is_dir() else path
        if not file.is_file():
            raise InputError(f"no weights at {file}; give a run folder that holds {WEIGHTS}")
        about, tensors = read_tensors(file)
        if "model" not in about:
            raise InputError(f"{file} holds no weights of a world model; give a run folder or its {WEIGHTS}")
        said = read_config(Description, about, str(file))
        with Budget(tensors, file):
            model = cls(said.model, said.frame_shape, said.action_size)
        model.load_weights(tensors, file)
        return model.to(device).eval().requires_grad_(False)

    def load_weights(self, tensors: dict[str, Tensor], source: Path) -> None:
        """Take the weights of `source`, which must be those of a model like this one."""
        take_weights(self, tensors, source)


def _draw(here: Belief, generator: torch.Generator) -> Float[Tensor, "batch S"]:
    """A sample of the belief."""
    if here.covariance is None:
        return here.mean
    noise = torch.randn(here.mean.shape, dtype=here.mean.dtype, device=here.mean.device, generator=generator)
    # A pose that is known exactly has a covariance of 0, which is no obstacle: it only lacks a Cholesky factor.
    tiny = torch.finfo(noise.dtype).tiny * torch.eye(noise.shape[-1], dtype=noise.dtype, device=noise.device)
    try:
        factor = torch.linalg.cholesky(here.covariance + tiny)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        raise InputError("here.covariance is not positive definite; give a covariance, as memorise returns") from None
    return here.mean + (factor @ noise[..., None]).squeeze(-1)
