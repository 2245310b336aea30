"""The world model: memorise, imagine, explain."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gtmsm.config import as_plain, config, read_config, require
from gtmsm.errors import InputError
from gtmsm.files import read_tensors, write_tensors
from gtmsm.kernels.search.most_visible import most_visible
from gtmsm.model.dream import Dream
from gtmsm.model.elbo import Elbo, ObjectiveConfig
from gtmsm.model.frame_vae import FrameVAE, FrameVAEConfig, patch_grid
from gtmsm.model.landmark import Known, Landmarks
from gtmsm.model.learning import explain, learn
from gtmsm.model.memory import Memory, Neighbours, measure, nearest
from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.query_network import QueryNetwork
from gtmsm.model.ray_attention import RayAttention
from gtmsm.model.recall import Forecast, MixturePrior, Prior, RecallConfig, Retrieved
from gtmsm.model.recognition import LandmarkConfig, look_up
from gtmsm.model.whereabouts import Whereabouts, weigh_up
from gtmsm.tensors import Belief, Gaussian, gather, stepped


@config
class WorldModelConfig:
    """The parts of a world model."""

    vae: FrameVAEConfig = FrameVAEConfig()
    motion: MotionConfig = MotionConfig()
    recall: RecallConfig = RecallConfig()
    landmark: LandmarkConfig = LandmarkConfig()

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
        require(
            self.landmark.form == "off" or self.motion.noise > 0,
            "landmarks correct a pose that may be wrong, but noise is 0; give some noise",
        )
        require(
            self.landmark.form == "off" or self.motion.has_heading or self.motion.state_size != 3,
            "state_size is 3, which landmarks take for x, y and a heading; use a motion with a heading",
        )
        require(
            self.landmark.form == "off" or self.recall.distance == "euclidean",
            "distance is kl, but beliefs corrected by landmarks are no marginals of the motion; use distance euclidean",
        )
        require(
            self.recall.prior != "rays" or self.vae.coder == "spatial",
            f"prior rays needs spatial codes but coder is {self.vae.coder}; use coder spatial",
        )


WEIGHTS = "weights.safetensors"


class WorldModel(nn.Module):
    """GTM-SM (Fraccaro et al., 2018): what was seen, where, and what any actions would show.

    Frames are `batch time channel height width` in [0, 1]; frame t is what action t led to.
    """

    def __init__(self, settings: WorldModelConfig, frame_shape: tuple[int, int, int], action_size: int) -> None:
        super().__init__()
        self.settings = settings
        self.frame_shape = frame_shape
        self.action_size = action_size
        self.vae = FrameVAE(settings.vae, frame_shape)
        self.motion = build_motion(settings.motion, action_size)
        places = self.motion.place(self.motion.start(1)).shape[-1]
        self.prior = self._build_prior(places)
        mapped = settings.recall.map_size
        self.metric = nn.Linear(places, mapped, bias=False) if mapped else nn.Identity()
        self.landmarks: Landmarks | None = None
        if settings.landmark.form != "off":
            self.landmarks = Landmarks(settings.landmark, settings.vae.code_size, self.motion)

    def _build_prior(self, places: int) -> Prior:
        """The prior that the settings name."""
        settings, code_size = self.settings.recall, self.settings.vae.code_size
        if settings.prior == "query":
            return QueryNetwork(settings, code_size, places)
        if settings.prior == "rays":
            return RayAttention(settings, code_size, patch_grid(self.frame_shape))
        return MixturePrior()

    def memorise(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        memory: Memory | None = None,
        here: Belief | None = None,
        closure: int | None = None,
    ) -> tuple[Memory, Belief]:
        """Store what was seen and where (section 3.3); returns the memory and where the agent is now.

        Give `memory` and `here` of an earlier call to go on from there. `closure`: steps after which loops are closed,
        0 for never; None: as the settings of landmarks say. What `memory` holds already stays as it is.
        """
        self._check(frames, actions)
        require(actions.shape[1] > 0, "there is nothing to memorise: frames and actions have 0 steps; give at least 1")
        _check_pixels(frames)
        _check_count(len(frames), memory, here)
        code = self.vae.encode(frames)
        walk, variance = self._follow(actions, code, memory, here, closure)
        digest = self.prior.digest(code.flatten())
        # Only a pose that is its own place can be compared by how sure it is.
        covariance = None if self.settings.motion.has_heading else walk.covariance
        written = Memory(
            Belief(self.motion.place(walk.mean), covariance),
            code,
            None if digest is None else digest.unflatten(0, frames.shape[:2]),
            variance,
        )
        return (memory.write(written) if memory else written), walk[:, -1]

    def follow(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        memory: Memory | None = None,
        here: Belief | None = None,
        closure: int | None = None,
    ) -> Belief:
        """Where the agent was after each action: p*(s_t) of its actions, or with landmarks q*(s_t) of what it saw, too.

        `memory` is what it knew before, `here` where it set out from; `anywhere` if that is not known.
        """
        self._check(frames, actions)
        require(actions.shape[1] > 0, "there is nothing to follow: frames and actions have 0 steps; give at least 1")
        _check_pixels(frames)
        _check_count(len(frames), memory, here)
        return self._follow(actions, self.vae.encode(frames), memory, here, closure)[0]

    def anywhere(self, batch: int) -> Belief:
        """To set out from a place that is not known: looking around will tell, with landmarks and a memory."""
        landmarks = self.require_landmarks("start anywhere")
        start = self.motion.start(batch)
        return Belief(start, landmarks.as_covariance(landmarks.ignorance(batch, start), start))

    def localise(
        self,
        memory: Memory,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"] | None = None,
    ) -> Whereabouts:
        """Where was this picture, or the last of this short clip, seen? With a probability that it never was.

        A clip is followed from anywhere, by its actions where they are given; a single picture is looked up as it is.
        """
        landmarks = self.require_landmarks("localise")
        self._check_frames(frames)
        plan = frames.new_zeros(*frames.shape[:2], self.action_size) if actions is None else actions
        self._check(frames, plan)
        _check_count(len(frames), memory, None)
        held, asked = len(memory), landmarks.settings.matches
        require(held > 0, "this memory is empty; memorise a walk before you ask where something was seen")
        require(
            asked <= held,
            f"this model looks up {asked} entries (K') but memory holds {held}; memorise at least {asked} steps",
        )
        require(frames.shape[1] > 0, "there is no picture to localise: frames have 0 steps; give at least 1")
        _check_pixels(frames)
        code = self.vae.encode(frames)
        lookup = look_up(memory.code, code, asked)
        log_odds, offset, noise = landmarks.compare(memory.code, code, lookup)
        sure = landmarks.compare.confidence(log_odds, noise, lookup.distance).mean(1)
        score = landmarks.compare.evidence(log_odds, noise)[:, -1]
        entry = lookup.index[:, -1]
        past = self._known(memory, self.motion.start(len(frames)), memory.code.mean[:, 0, :0], code)
        pose = stepped(gather(past.pose, entry), offset[:, -1])
        if frames.shape[1] > 1:
            here = self.anywhere(len(frames))
            track = landmarks.follow(
                self.motion, here.mean, landmarks.as_variance(here), plan, code, past, guess=actions is None
            )
            score = score + landmarks.log_prob(pose, noise[:, -1], track.state[:, -1], track.variance[:, -1])
        variance = noise[:, -1] + gather(past.variance, entry)
        return weigh_up(landmarks.compare, score, pose, variance, entry, sure)

    def _follow(
        self,
        actions: Float[Tensor, "batch time A"],
        code: Gaussian,
        memory: Memory | None,
        here: Belief | None,
        closure: int | None = None,
    ) -> tuple[Belief, Float[Tensor, "batch time G"] | None]:
        """The walk, and with landmarks the variances of its poses."""
        if closure is not None and (not isinstance(closure, int) or closure < 0 or (closure and not self.landmarks)):
            raise InputError(f"closure is {closure}; give a number of steps, 0 for never; it takes landmarks")
        here = here or Belief(self.motion.start(len(actions)))
        if self.landmarks is None:
            return self.motion.believe(here, actions), None
        variance = self.landmarks.as_variance(here)
        past = self._known(memory, here.mean, variance, code)
        track = self.landmarks.follow(self.motion, here.mean, variance, actions, code, past, closure=closure)
        return Belief(track.state, self.landmarks.as_covariance(track.variance, track.state)), track.variance

    def _known(
        self, memory: Memory | None, start: Float[Tensor, "batch S"], variance: Float[Tensor, "batch G"], code: Gaussian
    ) -> Known:
        """What landmarks may recognise in `memory`; nothing where there is none."""
        if memory is None or not len(memory):
            return Known(start[:, None, : self.motion.noisy][:, :0], variance[:, None][:, :0], code[:, :0])
        if memory.variance is None:
            raise InputError("this memory does not say how sure its poses are; memorise with a model with landmarks")
        return Known(self.motion.pose_at(memory.place.mean), memory.variance, memory.code)

    def require_landmarks(self, what: str) -> Landmarks:
        """Refuse what needs landmarks where there are none."""
        if self.landmarks is None:
            raise InputError(
                f"to {what} takes landmarks, and this model has none; train one with --model.landmark.form"
            )
        return self.landmarks

    def imagine(
        self,
        memory: Memory,
        here: Belief,
        actions: Float[Tensor, "batch time A"],
        generator: torch.Generator | None = None,
    ) -> Dream:
        """Where `actions` would lead from `here`, and what memory says is to be seen there.

        Poses come first and cheaply; `Dream.frames` decodes on demand. Without a generator: the mean path
        and the heaviest component; with one: samples of pose, component and code. From one memory and one place to
        start from, any number of plans may be imagined.
        """
        self._check_actions(actions)
        _check_kind(memory, Memory)
        _check_kind(here, Belief)
        plans = len(actions)
        if len(here.mean) not in (1, plans) or memory.batch not in (1, plans):
            raise InputError(
                f"{memory.batch} memories, {len(here.mean)} places to start from and {plans} plans; "
                "give as many of each, or one memory and one place for all plans"
            )
        if len(here.mean) != plans:
            covariance = None if here.covariance is None else here.covariance.expand(plans, -1, -1)
            here = Belief(here.mean.expand(plans, -1), covariance)
        if generator is None:
            poses = self.motion.unroll(here.mean, actions)
        else:
            poses = self.motion.unroll(_draw(here, generator), actions, self.motion.draw_noise(actions, generator))
        covariance = None
        if self.settings.recall.distance == "kl":
            covariance = self.motion.believe(here, actions).covariance
        return Dream(Belief(poses, covariance), memory, self, generator)

    def read(self, memory: Memory, query: Belief, reading: RecallConfig | None = None) -> Forecast:
        """p(z_t | s_t, m) at the places `query`: K entries of memory, or all where it holds fewer.

        A single memory answers any number of clips.
        """
        reading = reading or self.settings.recall
        k = min(reading.neighbours or len(memory), len(memory))
        lead = query.mean.shape[:2]
        if memory.batch == 1 != lead[0]:  # all of them ask the same memory
            covariance = None if query.covariance is None else query.covariance.flatten(0, 1)[None]
            query = Belief(query.mean.flatten(0, 1)[None], covariance)
        neighbours = self._search(memory, query, k, reading)
        bank, row, digest = memory.retrieve(neighbours.index)
        near = Neighbours(neighbours.index.view(*lead, k), neighbours.distance2.view(*lead, k))

        def relative() -> Float[Tensor, "batch time K P"]:
            place = memory.place_at(neighbours.index)
            return self.motion.relative(place, query.mean[:, :, None]).view(*lead, k, -1)

        return self.prior(Retrieved(near, bank, row.view(*lead, k), relative, reading.delta, digest))

    def explain(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        tau: int,
        generator: torch.Generator | None = None,
        reading: RecallConfig | None = None,
    ) -> Elbo:
        """The bound on log p(x_{tau+1:T} | a, x_{1:tau}), per frame (section 3.4).

        Memory holds the means of p*(s_t); the future's poses are ancestral samples of it. With landmarks both are of
        q*(s_t), which looks at the frames as well and, as in training, knows no walls; the bound pays for that.
        """
        self._check(frames, actions)
        require(
            0 < tau < frames.shape[1],
            f"tau is {tau}; a clip of {frames.shape[1]} steps needs 0 < tau < {frames.shape[1]}",
        )
        reading = reading or self.settings.recall
        require(
            reading.neighbours <= tau,
            f"tau is {tau} but this model reads {reading.neighbours} neighbours; memorise at least as many steps",
        )
        return explain(self, frames, actions, tau, generator, reading)

    def forward(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        true_step: Float[Tensor, "batch time D"],
        tau: int,
        generator: torch.Generator,
        reading: RecallConfig,
        objective: ObjectiveConfig,
        room: int | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to train on, and what to log: `learning.learn`, the negative bound and the extra terms."""
        self._check(frames, actions)
        return learn(self, frames, actions, true_step, tau, generator, reading, objective, room)

    def _search(self, memory: Memory, query: Belief, k: int, reading: RecallConfig) -> Neighbours:
        """Which k entries of memory to retrieve: it knows best, unless it does not know what near means."""
        if reading.choice == "nearest" and not self.settings.recall.map_size:
            return memory.nearest(query, k, reading.distance)
        return self.choose(memory.place, query, k, reading)

    def choose(
        self, place: Belief, query: Belief, k: int, reading: RecallConfig, among: int | None = None
    ) -> Neighbours:
        """Which k entries to retrieve, of the first `among` or of all, and how far they are."""
        if reading.choice == "visible":
            index = most_visible(place.mean[:, :among], query.mean, k, reading.field_of_view)
            return measure(self.metric(place.mean), self.metric(query.mean), index)
        if reading.distance == "kl":
            return nearest(place, query, k, "kl", among)
        return nearest(Belief(self.metric(place.mean)), Belief(self.metric(query.mean)), k, among=among)

    def _check(self, frames: Tensor, actions: Tensor) -> None:
        """Frames and actions of the sizes this model was built for, and as many of one as of the other."""
        self._check_actions(actions)
        self._check_frames(frames)
        if frames.dtype != actions.dtype:
            raise InputError(
                f"frames are {frames.dtype} but actions are {actions.dtype}; give both as the same floats, "
                "frames in [0, 1] (bytes: frames.float() / 255)"
            )
        if frames.shape[:2] != actions.shape[:2]:
            raise InputError(
                f"{tuple(frames.shape[:2])} frames but {tuple(actions.shape[:2])} actions (batch, time); "
                "give one action per frame: the one that led to it"
            )

    def _check_frames(self, frames: Tensor) -> None:
        """Frames of the size and kind this model was built for."""
        if not isinstance(frames, Tensor):
            raise InputError(f"frames are a {type(frames).__name__}; give a tensor: torch.from_numpy(frames)")
        if tuple(frames.shape[2:]) != tuple(self.frame_shape) or frames.dim() != 5:
            raise InputError(
                f"frames have shape {tuple(frames.shape)}; this model expects (batch, time, "
                f"{', '.join(map(str, self.frame_shape))}) in [0, 1]"
            )
        if not frames.is_floating_point():
            raise InputError(f"frames are {frames.dtype}; give floats in [0, 1] (bytes: frames.float() / 255)")

    def _check_actions(self, actions: Tensor) -> None:
        """Actions as float vectors of the right size."""
        if not isinstance(actions, Tensor):
            raise InputError(f"actions are a {type(actions).__name__}; give a tensor: torch.from_numpy(actions)")
        if actions.dim() != 3 or actions.shape[-1] != self.action_size or not actions.is_floating_point():
            raise InputError(
                f"actions are {actions.dtype} of shape {tuple(actions.shape)}; this model expects floats of shape "
                f"(batch, time, {self.action_size}), one-hot where actions are discrete"
            )
        if actions.dtype != (dtype := next(self.parameters()).dtype):
            raise InputError(f"actions are {actions.dtype} but this model computes in {dtype}; convert one of them")

    def save(self, path: str | Path) -> None:
        """Weights and settings in one safetensors file, atomically."""
        about = {"model": as_plain(self.settings), "frame_shape": self.frame_shape, "action_size": self.action_size}
        write_tensors(Path(path), self.state_dict(), about)

    def begin_with(self, folder: Path) -> None:
        """Take the weights of a trained model of the same parts, as far as it has them: it may lack landmarks."""
        if not (folder / WEIGHTS).is_file():
            raise InputError(f"begin_with is {folder}, which holds no {WEIGHTS}; give a run folder with --begin-with")
        other = WorldModel.load(folder)
        tensors = self.state_dict() | other.state_dict()
        self.load_weights(tensors, folder / WEIGHTS)

    @classmethod
    def load(cls, path: str | Path, device: torch.device | str = "cpu") -> "WorldModel":
        """From a run folder, or a weights file of one; to look with, not to learn: its weights ask for no gradients."""
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise InputError('device is cuda but PyTorch sees no GPU; use "cpu"')
        file = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise InputError(f"no weights at {file}; give a run folder that holds {WEIGHTS}")
        about, tensors = read_tensors(file)
        if "model" not in about:
            raise InputError(f"{file} holds no weights of a world model; give a run folder or its {WEIGHTS}")
        model = cls(
            read_config(WorldModelConfig, about["model"], str(file)), tuple(about["frame_shape"]), about["action_size"]
        )
        model.load_weights(tensors, file)
        return model.to(device).eval().requires_grad_(False)

    def load_weights(self, tensors: dict[str, Tensor], source: Path) -> None:
        """Take the weights of `source`, which must be those of a model like this one."""
        mine = {name: tuple(value.shape) for name, value in self.state_dict().items()}
        theirs = {name: tuple(value.shape) for name, value in tensors.items()}
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise InputError(
                    f"{source} holds weights of another model: {name} is {theirs.get(name, 'missing')} there and "
                    f"{mine.get(name, 'unknown')} here"
                )
        self.load_state_dict(tensors)


def _check_kind(thing: object, kind: type) -> None:
    """Refuse what is something else."""
    if not isinstance(thing, kind):
        raise InputError(f"got a {type(thing).__name__} for a {kind.__name__}; memorise returns (memory, here)")


def _check_count(clips: int, memory: Memory | None, here: Belief | None) -> None:
    """Refuse memories, or places to set out from, that are none, or not as many as the clips."""
    require(clips > 0, "there are 0 clips; give at least 1")
    for thing, kind in ((memory, Memory), (here, Belief)):
        if thing is not None:
            _check_kind(thing, kind)
    if here is not None and here.mean.dim() != 2:
        raise InputError(f"here has shape {tuple(here.mean.shape)}; give one pose per clip, like walk[:, -1]")
    for what, count in (
        ("memories", clips if memory is None else memory.batch),
        ("places to set out from", clips if here is None else len(here.mean)),
    ):
        require(count == clips, f"{count} {what} and {clips} clips; give as many of each")


def _check_pixels(frames: Float[Tensor, "batch time channel height width"]) -> None:
    """Refuse what are no pictures in [0, 1]; training does not come this way, so there is time to look."""
    if not (frames.min() >= 0 and frames.max() <= 1):
        raise InputError(
            f"frames lie in [{frames.min():.3g}, {frames.max():.3g}]; expected [0, 1]: bytes divided by 255"
        )


def _draw(here: Belief, generator: torch.Generator) -> Float[Tensor, "batch S"]:
    """A sample of the belief."""
    if here.covariance is None:
        return here.mean
    noise = torch.randn(here.mean.shape, dtype=here.mean.dtype, device=here.mean.device, generator=generator)
    # A pose that is known exactly has a covariance of 0, which is no obstacle: it only lacks a Cholesky factor.
    tiny = torch.finfo(noise.dtype).tiny * torch.eye(noise.shape[-1], dtype=noise.dtype, device=noise.device)
    factor = torch.linalg.cholesky(here.covariance + tiny)
    return here.mean + (factor @ noise[..., None]).squeeze(-1)
