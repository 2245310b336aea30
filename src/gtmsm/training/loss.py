"""The loss of GTM-SM: the negative bound of a clip plus the terms of `ObjectiveConfig`."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gtmsm.config import config, require
from gtmsm.data.clip import Source
from gtmsm.model.elbo import Elbo, Foreseen, Walk, at_steps, foresee, infer
from gtmsm.model.gtmsm import WorldModel
from gtmsm.model.recall import RecallConfig
from gtmsm.tensors import Actions, Frames, Gaussian, Poses, applied
from gtmsm.training.base_loss import BaseLoss
from gtmsm.training.loops import moved
from gtmsm.training.prospect import Find, ProspectConfig, prospect


@config
class ObjectiveConfig:
    """Terms that training optimises in addition to the bound."""

    displacement: float = 0.0
    """Weight, in nats per squared unit and step, of the regression of d_t on the true displacements (section 4.2.2).
    They are targets only, never inputs of the model. 0: none."""
    displacement_after: int = 0
    """Steps at the beginning of a clip that the regression leaves out. A window cut from the middle of a walk begins
    with an unknown velocity; learning from it would bias the motion of an agent that starts at rest."""
    foresight: float = 0.0
    """Weight, in nats per squared error summed over a frame, of decoding the prior's mean, which is the frame that
    imagination shows (not in the paper). 0: none."""
    poses_from_bound: bool = True
    """Train the motion by the bound as well; otherwise it learns from prospecting and the displacements only."""
    regret: float = 0.0
    """For models with landmarks, trained without true displacements: weight, in nats per unit and step, of the distance
    between planned steps and the steps that the model has recognised."""
    reckoning: float = 1.0
    """Without true displacements: factor by which the weight of a pair of views shrinks with every move between them.
    A step that fails unnoticed makes their relative pose wrong."""
    recognition: float = 1.0
    """Weight, in nats per pair of views, of learning to recognise places from the poses they were seen from; for models
    with landmarks only. Poses follow from the true displacements if `displacement` is above 0, else from the actions
    that changed the view."""
    doubled: float = 0.0
    """For models with landmarks of form bayes and without headings: weight, relative to `recognition`, of learning what
    a doubled step shows, from pairs of views that are two planned steps apart. 0: none."""
    recognition_only: bool = False
    """Train the recognition of places only, in a model that is already trained (`--begin-with`)."""
    targets: int = 0
    """Predicted steps per clip and update, drawn at random: fewer give the same bound on average. 0: all. With
    `recognition_only`: steps whose view is compared with all similar ones; each view is compared with the previous."""

    def __post_init__(self) -> None:
        """Refuse invalid settings."""
        require(
            not self.recognition_only or self.displacement > 0,
            "recognition_only learns from the poses that true displacements add up to; give --displacement above 0",
        )
        require(0 < self.reckoning <= 1, f"reckoning is {self.reckoning}; give a share above 0, up to 1")
        for name in ("displacement", "displacement_after", "foresight", "regret", "recognition", "doubled", "targets"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; give 0 or more")


class Loss(BaseLoss[WorldModel]):
    """The loss of a world model; with `recognition_only`, all parameters but those of its landmarks are held."""

    def __init__(self, model: WorldModel, objective: ObjectiveConfig) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        if objective.recognition_only:
            learning = set() if model.landmarks is None else set(model.landmarks.parameters())
            for parameter in model.parameters():
                parameter.requires_grad_(parameter in learning)

    @property
    def names(self) -> list[str]:
        """Names of the values that `forward` logs."""
        objective, with_landmarks = self.objective, self.model.landmarks is not None
        if objective.recognition_only:
            return ["recognition"]
        extra = {
            "foresight": objective.foresight > 0,
            "displacement": objective.displacement > 0,
            "pose_kl": with_landmarks,
            "regret": with_landmarks,
            "recognition": with_landmarks and objective.recognition > 0,
            "bumps": self.model.bumps is not None,
            "left_out": True,
        }
        return ["elbo", "log_likelihood", "kl", *(name for name, there in extra.items() if there)]

    @property
    def reading(self) -> RecallConfig:
        """Settings for reading memory, from the model's own settings."""
        return self.model.settings.recall

    @property
    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by group; the hidden matrices of attention and of landmarks are groups of their own."""
        model, landmarks = self.model, self.model.landmarks
        moving = dict(model.motion.named_parameters())
        attention, comparison = model.prior.matrices, [] if landmarks is None else landmarks.compare.matrices
        apart = {id(parameter) for parameter in (*moving.values(), *attention, *comparison)}
        marks = {id(parameter) for parameter in (() if landmarks is None else landmarks.parameters())}
        others = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        return {
            "rest": [parameter for parameter in others if id(parameter) not in marks],
            "attention": attention,
            "landmarks": [parameter for parameter in others if id(parameter) in marks],
            "comparison": comparison,
            "motion": [p for name, p in moving.items() if name not in model.motion.walls],
            "walls": [moving[name] for name in model.motion.walls],
        }

    @property
    def clipped_together(self) -> dict[str, str]:
        """Labels for clipping: gradients of losses of different scales are clipped separately."""
        steps = "steps" if self.objective.displacement or self.objective.regret else "bound"
        bound, pairs = (
            dict.fromkeys(("rest", "attention"), "bound"),
            dict.fromkeys(("landmarks", "comparison"), "pairs"),
        )
        return bound | pairs | {"motion": steps, "walls": steps}

    def search(self, source: Source, settings: ProspectConfig, generator: torch.Generator) -> Find:
        """Search for the parameters of the motion (see `prospect`)."""
        return prospect(self.model, source, settings, generator)

    def forward(
        self,
        x: Frames,
        a: Actions,
        true_step: Poses,
        tau: int,
        reading: RecallConfig,
        generator: torch.Generator,
        capacity: int | None = None,
        tried: Actions | None = None,
        true_pose: Poses | None = None,
        code: Gaussian | None = None,
    ) -> tuple[Float[Tensor, ""], dict[str, Tensor], Int[Tensor, ""] | None]:
        """The loss, values to log, and the number of distinct memorised frames retrieved (None if not counted).

        `capacity` limits how many of these frames are encoded (see `FrameMemory`). Steps that retrieve others are left
        out, and the fraction of such steps is logged. None: no limit. `tried`: see `Clip`. `true_pose` is unused;
        `code` is used only with `recognition_only`.
        """
        model, objective = self.model, self.objective
        if objective.recognition_only:
            loss = self._recognition_of(x, true_step, generator, code)
            return loss, {"recognition": loss.detach()}, None
        walk = infer(model, x, a, generator)
        known = walk if objective.poses_from_bound else walk.detached()
        asked = draw_steps(len(x), tau, x.shape[1], objective.targets, generator)
        foreseen = foresee(model, x, a, known, tau, asked, reading, generator, capacity)
        seen, peak = at_steps(x, asked, tau), None
        if objective.foresight:
            logits, peak = model.vae.logits(torch.cat([foreseen.z, foreseen.forecast.peak()])).chunk(2)
        else:
            logits = model.vae.logits(foreseen.z)
        elbo = Elbo(
            model.vae.log_likelihood(seen, logits),
            foreseen.forecast.divergence(foreseen.code, foreseen.z),
            None if known.pose_kl is None else at_steps(known.pose_kl, asked, tau),
        )
        mean = _Mean(foreseen)
        parts = elbo.parts()
        likely, *costs = mean(torch.stack(list(parts.values())))
        loss = sum(costs[1:], costs[0]) - likely
        logs = dict(zip(parts, (likely, *costs), strict=True)) | {"elbo": -loss, "left_out": mean.left_out}
        if peak is not None:
            error2 = mean(model.vae.error2(seen, peak))
            loss = loss + objective.foresight * error2
            logs["foresight"] = error2 / x[0, 0].numel()
        if model.bumps is not None:
            logs["bumps"] = self._bumps(foreseen, x, a, a if tried is None else tried, asked, tau)
            loss = loss + logs["bumps"]
        for name, weight, value in self._of_the_motion(walk, a, true_step):
            logs[name] = value
            loss = loss + weight * value
        return loss, {name: value.detach() for name, value in logs.items()}, foreseen.needed

    def _bumps(
        self, foreseen: Foreseen, x: Frames, a: Actions, tried: Actions, asked: Int[Tensor, "batch asked"] | None,
        tau: int,
    ) -> Float[Tensor, ""]:  # fmt: skip
        """Cross-entropies of predicting which steps fail: from the views before and after a step, from the view before
        it alone, and from memory's prediction of that view."""
        bumps, forecast = self.model.bumps, foreseen.forecast
        assert bumps is not None
        same = nn.functional.pad((x[:, 1:] == x[:, :-1]).flatten(2).all(-1), (0, 1))
        attempt, failed = nn.functional.pad(tried[:, 1:], (0, 0, 0, 1)), (tried != a).any(-1).roll(-1, 1)
        steps = torch.cat([attempt, failed[..., None], same[..., None]], dim=-1)
        attempt, failed, same = at_steps(steps, asked, tau).split([a.shape[-1], 1, 1], dim=-1)
        counts = (attempt != 0).any(-1)  # the last step of a clip has none after it
        if foreseen.complete is not None:
            counts = counts & foreseen.complete
        view, near = foreseen.code.mean, forecast.neighbours.distance2.amin(-1)
        unknown = torch.zeros_like(near)
        logits = bumps(
            torch.cat([view, view, forecast.peak()]).detach(),
            attempt.repeat(3, 1, 1),
            torch.cat([unknown, unknown, near]).detach(),
            torch.cat([2 * same[..., 0] - 1, unknown, unknown]),
        )
        return bumps.loss(logits, failed[..., 0].repeat(3, 1), counts.repeat(3, 1).to(near))

    def _of_the_motion(self, walk: Walk, a: Actions, true_step: Poses) -> list[tuple[str, float, Float[Tensor, ""]]]:
        """Name, weight and value of the terms that train the motion and landmarks."""
        motion, objective, terms = self.model.motion, self.objective, []
        after = slice(objective.displacement_after, None)
        if objective.displacement:
            step = motion.displacement(walk.mean) if walk.step is None else walk.step
            error2 = (step - true_step)[:, after].square().sum(-1).mean()
            # Steps that slip or are blocked would bias a mean: with landmarks, the regret below is minimised instead.
            terms.append(("displacement", objective.displacement if walk.learned is None else 0.0, error2))
        if walk.learned is None:
            return terms
        made = true_step if objective.displacement else self._reckoned(walk, a)
        regret = motion.regret(walk.learned.before.detach(), a, made)[:, after].mean()
        terms.append(("regret", objective.displacement or objective.regret, regret))
        if objective.recognition:
            terms.append(("recognition", objective.recognition, self._recognition(walk, a, made)))
        return terms

    def _reckoned(self, walk: Walk, a: Actions) -> Poses:
        """Displacements estimated from frames and actions alone: as planned, and 0 where the view did not change.

        If a motion has velocities, all steps are as planned.
        """
        assert walk.codes is not None
        motion = self.model.motion
        if motion.state_size > motion.pose_size:  # the displacement depends on velocities, too
            return motion.displacement(walk.mean.detach())
        with torch.no_grad():
            return applied(motion.M, a) * moved(walk.codes)[..., None]

    def _recognition(self, walk: Walk, a: Actions, made: Poses) -> Float[Tensor, ""]:
        """The loss of recognising places, with poses that follow from the displacements `made`."""
        assert walk.codes is not None and walk.lookup is not None and walk.learned is not None
        compare, index, trust = self.model.require_landmarks("recognise places").compare, walk.lookup.index, None
        motion, reckoning = self.model.motion, 1.0 if self.objective.displacement else self.objective.reckoning
        if not self.objective.displacement:
            moves = (made != 0).any(-1).cumsum(1)
            trust = reckoning ** (moves[..., None] - moves.gather(1, index.flatten(1)).view_as(index))
        path = motion.retrace(made)
        loss = compare.walk_loss(walk.codes, walk.lookup, path, walk.learned.match, trust)
        if self.objective.doubled:
            planned = applied(motion.M, a).detach()
            loss = loss + self.objective.doubled * compare.doubled_loss(walk.codes, path, planned, reckoning)
        return loss

    def _recognition_of(
        self, x: Frames, true_step: Poses, generator: torch.Generator, code: Gaussian | None
    ) -> Float[Tensor, ""]:
        """The loss of recognising places, with all other parameters fixed."""
        model, landmarks = self.model, self.model.require_landmarks("recognise places")
        with torch.no_grad():
            code = code or model.vae.encode(x)
            with torch.autocast(x.device.type, enabled=False):
                lookup = landmarks.look_back(code, code, 0)
        asked = draw_steps(len(x), 0, x.shape[1], self.objective.targets, generator)
        return landmarks.compare.walk_loss(code, lookup, model.motion.retrace(true_step), asked=asked)


class _Mean:
    """The mean over the steps whose retrieved frames were all encoded; 0 if there are none."""

    def __init__(self, foreseen: Foreseen) -> None:
        self.weight: Tensor | None = None
        if foreseen.complete is None:
            self.left_out = foreseen.z.new_zeros(())
            return
        complete = foreseen.complete.flatten().to(foreseen.z.dtype)
        count = complete.sum()
        self.left_out = 1 - count / len(complete)
        self.weight = complete / count.clamp_min(1)

    def __call__(self, each: Float[Tensor, "*terms batch asked"]) -> Float[Tensor, "*terms"]:
        """The weighted mean. Steps that are left out read codes of other frames: finite numbers, with weight 0."""
        if self.weight is None:
            return each.mean((-2, -1))
        with torch.autocast(each.device.type, enabled=False):  # it would round this product to bfloat16
            return each.flatten(-2) @ self.weight


def draw_steps(
    batch: int, first: int, end: int, count: int, generator: torch.Generator
) -> Int[Tensor, "batch count"] | None:
    """`count` different steps from `first` to `end` for each clip, at random; None: all of them, in order."""
    if not count or count >= end - first:
        return None
    lots = torch.rand(batch, end - first, device=generator.device, generator=generator)
    return first + lots.topk(count, dim=1).indices
