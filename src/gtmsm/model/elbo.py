"""The bound of section 3.4, kept per frame until somebody sums it."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from gtmsm.config import config, require
from gtmsm.model.frame_vae import FrameVAE
from gtmsm.model.recall import Forecast
from gtmsm.tensors import Gaussian


@config
class ObjectiveConfig:
    """What training maximises beside the bound."""

    displacement: float = 0.0
    """Weight, in nats per squared unit and step, of the regression of d_t on the true displacements (section 4.2.2):
    targets only, the model never sees them. 0: none."""
    displacement_after: int = 0
    """Steps of a clip that the regression leaves out at its beginning: a window cut from the middle of a walk begins
    with a velocity that nothing tells, and learning from it would bias how an agent at rest sets out."""
    foresight: float = 0.0
    """Weight, in nats per squared error summed over a frame, of decoding the prior's mean: what imagination will show
    (not in the paper). 0: none."""
    poses_from_bound: bool = True
    """Whether the bound teaches the motion as well; otherwise only prospecting and the displacements do."""
    regret: float = 0.0
    """The same with landmarks and without true displacements: weight, in nats per unit and step, of the regression on
    the steps that the model has recognised itself to have made."""
    recognition: float = 1.0
    """Weight, in nats per pair of views, of learning to recognise places from the poses they were seen from; for models
    with landmarks only. Poses follow from the true displacements where these are learned from, else they are the
    model's own."""
    recognition_only: bool = False
    """Whether nothing else is learned: to teach a trained model (`--begin-with`) what places look like."""
    targets: int = 0
    """Predicted steps per clip and update, drawn at random: fewer give the same bound on average. 0: all."""

    def __post_init__(self) -> None:
        """Refuse what cannot be maximised."""
        require(
            not self.recognition_only or self.displacement > 0,
            "recognition_only learns from the poses that true displacements add up to; give --displacement above 0",
        )
        for name in ("displacement", "displacement_after", "foresight", "regret", "recognition", "targets"):
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; give 0 or more")


@dataclass(frozen=True)
class Elbo:
    """E_q[log p(x|z)] by one sample, and E_p*(s) KL[q(z|x) || p(z|s, m)], in nats."""

    log_likelihood: Float[Tensor, "batch time"]
    kl: Float[Tensor, "batch time"]
    pose_kl: Float[Tensor, "batch time"] | None = None
    """KL[q(s_t | s_{t-1}, a_t, z_t, m) || p(s_t | s_{t-1}, a_t)], with landmarks: the third term of App. D."""

    @property
    def bound(self) -> Float[Tensor, "batch time"]:
        """F(theta, phi) per frame."""
        bound = self.log_likelihood - self.kl
        return bound if self.pose_kl is None else bound - self.pose_kl

    def parts(self) -> dict[str, Float[Tensor, "batch time"]]:
        """Its terms, by name."""
        parts = {"log_likelihood": self.log_likelihood, "kl": self.kl}
        return parts if self.pose_kl is None else parts | {"pose_kl": self.pose_kl}


def elbo(
    vae: FrameVAE,
    x: Float[Tensor, "batch time channel height width"],
    code: Gaussian,
    z: Float[Tensor, "batch time Z"],
    prior: Forecast,
    pose_kl: Float[Tensor, "batch time"] | None = None,
) -> Elbo:
    """One sample z of q(z|x) = `code` serves both terms; the third, where there is one, is known already."""
    return Elbo(vae.log_likelihood(x, z), prior.divergence(code, z), pose_kl)
