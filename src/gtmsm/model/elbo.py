"""The bound of section 3.4, kept per frame until somebody sums it."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gtmsm.model.frame_vae import FrameVAE
from gtmsm.model.recall import Mixture
from gtmsm.tensors import Gaussian


@dataclass(frozen=True)
class Elbo:
    """E_q[log p(x|z)] and E_p*(s) KL[q(z|x) || p(z|s, m)], each by one sample, in nats."""

    log_likelihood: Float[Tensor, "batch time"]
    kl: Float[Tensor, "batch time"]

    @property
    def bound(self) -> Float[Tensor, "batch time"]:
        """F(theta, phi) per frame."""
        return self.log_likelihood - self.kl


def elbo(
    vae: FrameVAE,
    x: Float[Tensor, "batch time channel height width"],
    code: Gaussian,
    prior: Mixture,
    generator: torch.Generator | None,
) -> Elbo:
    """One reparameterised sample z ~ q(z|x) serves both terms."""
    z = code.sample(generator)
    return Elbo(vae.log_likelihood(x, z), code.log_prob(z) - prior.log_prob(z))
