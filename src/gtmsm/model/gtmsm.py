"""The world model: memorise, imagine, explain."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.config import as_plain, config, read_config, require
from gtmsm.errors import InputError
from gtmsm.files import read_tensors, write_tensors
from gtmsm.model.dream import Dream
from gtmsm.model.elbo import Elbo, ObjectiveConfig, elbo
from gtmsm.model.frame_vae import FrameVAE, FrameVAEConfig, patch_grid
from gtmsm.model.landmark import Known, Landmarks, Learned
from gtmsm.model.memory import Memory, Neighbours, measure, nearest
from gtmsm.model.motion import MotionConfig, build_motion
from gtmsm.model.query_network import QueryNetwork
from gtmsm.model.ray_attention import RayAttention
from gtmsm.model.recall import Forecast, MixturePrior, Prior, RecallConfig, Retrieved
from gtmsm.model.recognition import LandmarkConfig, Lookup, look_up
from gtmsm.model.visibility import most_visible
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
        landmarks = self._require_landmarks("start anywhere")
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
        landmarks = self._require_landmarks("localise")
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
        if memory is None:
            return Known(start[:, None, : self.motion.noisy][:, :0], variance[:, None][:, :0], code[:, :0])
        if memory.variance is None:
            raise InputError("this memory does not say how sure its poses are; memorise with a model with landmarks")
        return Known(self.motion.pose_at(memory.place.mean), memory.variance, memory.code)

    def _require_landmarks(self, what: str) -> Landmarks:
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
        and the heaviest component; with one: samples of pose, component and code.
        """
        self._check_actions(actions)
        if not len(actions) == len(here.mean) == len(memory.code.mean):
            raise InputError(
                f"{len(memory.code.mean)} memories, {len(here.mean)} places to start from and {len(actions)} plans; "
                "give as many of each"
            )
        if generator is None:
            poses = self.motion.unroll(here.mean, actions)
        else:
            poses = self.motion.unroll(_draw(here, generator), actions, self.motion.draw_noise(actions, generator))
        covariance = None
        if self.settings.recall.distance == "kl":
            covariance = self.motion.believe(here, actions).covariance
        return Dream(Belief(poses, covariance), memory, self, generator)

    def read(self, memory: Memory, query: Belief, reading: RecallConfig | None = None) -> Forecast:
        """p(z_t | s_t, m) at the places `query`: K entries of memory, or all where it holds fewer."""
        reading = reading or self.settings.recall
        k = min(reading.neighbours or len(memory), len(memory))
        neighbours = self._choose(memory.place, query, k, reading)
        relative = self.motion.relative(gather(memory.place.mean, neighbours.index), query.mean[:, :, None])
        code = memory.code_at(neighbours.index)
        if memory.digest is None:
            return self.prior(Retrieved(neighbours, code, relative, reading.delta))
        batch = torch.arange(len(query.mean), device=relative.device).view(-1, 1, 1)
        row = neighbours.index + len(memory) * batch
        return self.prior(Retrieved(neighbours, code, relative, reading.delta, memory.digest.flatten(0, 1), row))

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
        inferred = self._infer(frames, actions, generator)
        asked = torch.arange(tau, frames.shape[1], device=frames.device).repeat(len(frames), 1)
        reading = reading or self.settings.recall
        require(
            reading.neighbours <= tau,
            f"tau is {tau} but this model reads {reading.neighbours} neighbours; memorise at least as many steps",
        )
        code, forecast = self._foresee(frames, actions, tau, asked, inferred, reading)
        return elbo(self.vae, frames[:, tau:], code, forecast, generator, inferred.divergence_at(asked))

    def forward(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        true_step: Float[Tensor, "batch time D"],
        tau: int,
        generator: torch.Generator,
        reading: RecallConfig,
        objective: ObjectiveConfig,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to train on, and what to log: the negative bound, averaged over frames, and the extra terms."""
        self._check(frames, actions)
        if objective.recognition_only:
            return self._recognise_only(frames, true_step)
        inferred = self._infer(frames, actions, generator)
        recognition = None
        if inferred.codes is not None and objective.recognition:
            recognition = self._recognition(inferred, true_step, objective)
        walked = inferred
        if not objective.poses_from_bound:
            inferred = inferred.detached()
        asked = _draw_steps(len(frames), tau, frames.shape[1], objective.targets, generator)
        code, forecast = self._foresee(frames, actions, tau, asked, inferred, reading)
        truth = gather(frames, asked)
        terms = elbo(self.vae, truth, code, forecast, generator, inferred.divergence_at(asked))
        logs = {"elbo": terms.bound, "log_likelihood": terms.log_likelihood, "kl": terms.kl}
        if terms.pose_kl is not None:
            logs["pose_kl"] = terms.pose_kl
        loss = -terms.bound.mean()
        if recognition is not None:
            logs["recognition"] = recognition
            loss = loss + objective.recognition * recognition
        if objective.foresight:
            error2 = (truth - self.vae.decode(forecast.peak())).square()
            logs["foresight"] = error2.mean()
            loss = loss + objective.foresight * error2.sum((-3, -2, -1)).mean()
        if objective.displacement:
            felt = self.motion.displacement(walked.mean)
            logs["displacement"] = (felt - true_step)[:, objective.displacement_after :].square().sum(-1).mean()
        if walked.learned is not None:
            # Where places are recognised an agent notices by itself when a step has gone otherwise than planned.
            made = true_step if objective.displacement else self.motion.displacement(walked.mean.detach())
            regret = self.motion.regret(walked.learned.before.detach(), actions, made)
            logs["regret"] = regret[:, objective.displacement_after :].mean()
            loss = loss + (objective.displacement or objective.regret) * logs["regret"]
        elif objective.displacement:
            loss = loss + objective.displacement * logs["displacement"]
        return loss, {name: value.detach().mean() for name, value in logs.items()}

    def _recognise_only(
        self, frames: Float[Tensor, "batch time channel height width"], true_step: Float[Tensor, "batch time D"]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of recognising places, all else held."""
        landmarks = self._require_landmarks("recognise places")
        with torch.no_grad():
            code = self.vae.encode(frames)
            with torch.autocast(frames.device.type, enabled=False):
                code = Gaussian(code.mean.to(frames), code.log_var.to(frames))
                lookup = landmarks.look_back(code, code, 0)
        loss = landmarks.recognition_loss(code, lookup, self.motion.retrace(true_step))
        return loss, {"recognition": loss.detach()}

    def _recognition(
        self, inferred: "_Inferred", true_step: Float[Tensor, "batch time D"], objective: ObjectiveConfig
    ) -> Tensor:
        """How badly places are recognised, by the path that true displacements make, or the model's own."""
        assert self.landmarks is not None and inferred.codes is not None
        assert inferred.lookup is not None and inferred.learned is not None
        own = inferred.mean[..., : self.motion.noisy].detach()
        path = self.motion.retrace(true_step) if objective.displacement else own
        return self.landmarks.recognition_loss(inferred.codes, inferred.lookup, path, inferred.learned.said)

    def _foresee(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        tau: int,
        asked: Int[Tensor, "batch asked"],
        inferred: "_Inferred",
        reading: RecallConfig,
    ) -> tuple[Gaussian, Forecast]:
        """q(z|x) and p(z|s, m) at the steps `asked`, with the first tau steps for a memory."""
        with torch.autocast(frames.device.type, enabled=False):
            covariance = None
            if reading.distance == "kl":
                covariance = self.motion.believe(Belief(self.motion.start(len(actions))), actions).covariance
            place = Belief(self.motion.place(inferred.mean), covariance)[:, :tau]
            query = Belief(
                gather(self.motion.place(inferred.sample), asked),
                None if covariance is None else gather(covariance, asked),
            )
            neighbours = self._choose(place, query, reading.neighbours or tau, reading)
            relative = self.motion.relative(gather(place.mean, neighbours.index), query.mean[:, :, None])
        if inferred.codes is None:
            code, bank, row = self._encode_needed(frames, tau, asked, neighbours.index)
        else:
            code = inferred.codes.at(asked)
            bank = inferred.codes[:, :tau].flatten()
            row = neighbours.index + tau * torch.arange(len(frames), device=frames.device).view(-1, 1, 1)
        retrieved = Retrieved(neighbours, bank.take(row), relative, reading.delta, self.prior.digest(bank), row)
        return code, self.prior(retrieved)

    def _choose(self, place: Belief, query: Belief, k: int, reading: RecallConfig) -> Neighbours:
        """Which k entries to retrieve, and how far they are."""
        if reading.choice == "visible":
            index = most_visible(place.mean, query.mean, k, reading.field_of_view)
            return measure(self.metric(place.mean), self.metric(query.mean), index)
        mapped, asked = (Belief(self.metric(belief.mean), belief.covariance) for belief in (place, query))
        return nearest(mapped, asked, k, reading.distance)

    def _encode_needed(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        tau: int,
        asked: Int[Tensor, "batch asked"],
        index: Int[Tensor, "batch asked K"],
    ) -> tuple[Gaussian, Gaussian, Int[Tensor, "batch asked K"]]:
        """Codes of the steps asked for; codes of memorised frames, and which of these `index` retrieves.

        Poses do not depend on frames, so retrieval comes first, and a frame that nobody retrieves need not be encoded:
        two in three of a long memory. On a GPU the shapes must not depend on the data, or a graph cannot hold them:
        there it is every retrieval or all of memory, whichever is fewer.
        """
        (batch, steps), (_, count, k) = frames.shape[:2], index.shape
        first = steps * torch.arange(batch, device=index.device)
        wanted = (asked + first[:, None]).flatten()
        retrieved = index + first[:, None, None]
        if index.is_cuda and count * k < tau:
            needed, row = retrieved.flatten(), torch.arange(index.numel(), device=index.device).view_as(index)
        elif index.is_cuda or k == tau:
            needed = (torch.arange(tau, device=index.device) + first[:, None]).flatten()
            row = index + tau * torch.arange(batch, device=index.device).view(-1, 1, 1)
        else:
            needed, row = retrieved.unique(return_inverse=True)
        code = self.vae.encode(frames.flatten(0, 1)[torch.cat([wanted, needed])])
        return code[: len(wanted)].unflatten(0, (batch, count)), code[len(wanted) :], row

    def _infer(
        self,
        frames: Float[Tensor, "batch time channel height width"],
        actions: Float[Tensor, "batch time A"],
        generator: torch.Generator | None,
    ) -> "_Inferred":
        """The mean path and one sampled path (without a generator the mean twice); with landmarks, all codes first."""
        start = self.motion.start(len(actions))
        if self.landmarks is not None:
            codes = self.vae.encode(frames)
            with torch.autocast(frames.device.type, enabled=False):
                codes = Gaussian(codes.mean.to(frames), codes.log_var.to(frames))
                lookup = self.landmarks.look_back(codes, codes, 0)
                learned = self.landmarks.learn(self.motion, start, actions, codes, lookup)
                sample = self.landmarks.sample(learned.track, generator)
            return _Inferred(learned.track.state, sample, codes, lookup, learned)
        with torch.autocast(frames.device.type, enabled=False):
            if generator is None:
                mean = self.motion.unroll(start, actions)
                return _Inferred(mean, mean)
            return _Inferred(*self.motion.unroll_twice(actions, self.motion.draw_noise(actions, generator)))

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

    def save(self, path: Path) -> None:
        """Weights and settings in one safetensors file, atomically."""
        about = {"model": as_plain(self.settings), "frame_shape": self.frame_shape, "action_size": self.action_size}
        write_tensors(path, self.state_dict(), about)

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


@dataclass(frozen=True)
class _Inferred:
    """Where a walk led, for the bound."""

    mean: Float[Tensor, "batch time S"]
    sample: Float[Tensor, "batch time S"]
    codes: Gaussian | None = None
    """Of all frames, where poses were inferred from them."""
    lookup: Lookup | None = None
    learned: Learned | None = None

    def divergence_at(self, asked: Int[Tensor, "batch asked"]) -> Float[Tensor, "batch asked"] | None:
        """What the bound pays for the poses inferred at these steps."""
        return None if self.learned is None else self.learned.divergence.gather(1, asked)

    def detached(self) -> "_Inferred":
        """The same, from which no motion can be learned."""
        learned = self.learned and replace(self.learned, divergence=self.learned.divergence.detach())
        return replace(self, mean=self.mean.detach(), sample=self.sample.detach(), learned=learned)


def _check_count(clips: int, memory: Memory | None, here: Belief | None) -> None:
    """Refuse memories, or places to set out from, that are none, or not as many as the clips."""
    require(clips > 0, "there are 0 clips; give at least 1")
    for thing, kind in ((memory, Memory), (here, Belief)):
        if thing is not None and not isinstance(thing, kind):
            raise InputError(f"got a {type(thing).__name__} for a {kind.__name__}; memorise returns (memory, here)")
    if here is not None and here.mean.dim() != 2:
        raise InputError(f"here has shape {tuple(here.mean.shape)}; give one pose per clip, like walk[:, -1]")
    for what, count in (
        ("memories", clips if memory is None else len(memory.code.mean)),
        ("places to set out from", clips if here is None else len(here.mean)),
    ):
        require(count == clips, f"{count} {what} and {clips} clips; give as many of each")


def _check_pixels(frames: Float[Tensor, "batch time channel height width"]) -> None:
    """Refuse what are no pictures in [0, 1]; training does not come this way, so there is time to look."""
    if not (frames.min() >= 0 and frames.max() <= 1):
        raise InputError(
            f"frames lie in [{frames.min():.3g}, {frames.max():.3g}]; expected [0, 1]: bytes divided by 255"
        )


def _draw_steps(batch: int, first: int, end: int, count: int, generator: torch.Generator) -> Int[Tensor, "batch count"]:
    """`count` different steps from `first` to `end` for each clip, at random; 0: all of them, in order."""
    if not count or count >= end - first:
        return torch.arange(first, end, device=generator.device).repeat(batch, 1)
    lots = torch.rand(batch, end - first, device=generator.device, generator=generator)
    return first + lots.topk(count, dim=1).indices


def _draw(here: Belief, generator: torch.Generator) -> Float[Tensor, "batch S"]:
    """A sample of the belief."""
    if here.covariance is None:
        return here.mean
    noise = torch.randn(here.mean.shape, dtype=here.mean.dtype, device=here.mean.device, generator=generator)
    # A pose that is known exactly has a covariance of 0, which is no obstacle: it only lacks a Cholesky factor.
    tiny = torch.finfo(noise.dtype).tiny * torch.eye(noise.shape[-1], dtype=noise.dtype, device=noise.device)
    factor = torch.linalg.cholesky(here.covariance + tiny)
    return here.mean + (factor @ noise[..., None]).squeeze(-1)
