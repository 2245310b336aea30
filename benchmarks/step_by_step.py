"""The bound as one would first write it: a loop over walks, a loop over time, one sum per predicted frame.

The same mathematics, parameters and noise as `WorldModel.explain`, spelled out: tests hold the library to its loss
and gradients, benchmarks hold it to being many times faster.
"""

import math

import torch


def draw_noise(model, walks, steps, tau, generator):
    """Noise in the order in which the library draws it: of every step's pose first, then of every predicted code."""
    like = model.motion.M
    sizes = (walks, steps, model.motion.state_size), (walks, steps - tau, model.settings.vae.code_size)
    return tuple(torch.randn(size, dtype=like.dtype, device=like.device, generator=generator) for size in sizes)


def loss_step_by_step(model, frames, actions, tau, generator, reading):
    """Minus the bound, averaged over walks and predicted frames."""
    pose_noise, code_noise = draw_noise(model, *actions.shape[:2], tau, generator)
    bounds = []
    for walk in zip(frames, actions, pose_noise, code_noise, strict=True):
        bounds += bounds_of_a_walk(model, *walk, tau, reading)
    return -torch.stack(bounds).mean()


def bounds_of_a_walk(model, frames, actions, pose_noise, code_noise, tau, reading):
    """Memorise tau steps of one walk, then bound log p(x_t | m) for each later frame."""
    r = model.motion.noise
    s_mean = s = torch.zeros_like(pose_noise[0])
    places, codes, bounds = [], [], []
    for t in range(len(actions)):
        s_mean = transition(model.motion, s_mean, actions[t])
        s = transition(model.motion, s, actions[t]) + r * pose_noise[t]
        mean, log_var = model.vae.encoder(frames[t][None])[0].chunk(2)
        log_var = log_var.clamp(-10, 4)
        if t < tau:
            places.append(s_mean)
            codes.append((mean, log_var))
            continue
        z = mean + (0.5 * log_var).exp() * code_noise[t - tau]
        kl = log_normal(z, mean, log_var) - log_prior(z, s, places, codes, reading)
        bounds.append(log_likelihood(model.vae, frames[t], z) - kl)
    return bounds


def transition(motion, s, a):
    """Eq. (nonlin_tr): s + M a sigma_d(s + M a)."""
    d = motion.M @ a
    hidden = torch.relu(motion.W @ (s + d) + motion.b)
    return s + d * torch.sigmoid(motion.v @ hidden + motion.c)


def log_prior(z, s, places, codes, reading):
    """log sum_k w_k N(z | z_k) over the K nearest entries, w_k proportional to 1 / (d_k^2 + delta) (App. A.1)."""
    distance2 = (torch.stack(places) - s).square().sum(1)
    nearest = distance2.argsort()[: reading.neighbours or len(places)]
    weight = 1 / (distance2[nearest] + reading.delta)
    log_weight = (weight / weight.sum()).log()
    terms = [w + log_normal(z, *codes[k]) for w, k in zip(log_weight, nearest.tolist(), strict=True)]
    return torch.logsumexp(torch.stack(terms), 0)


def log_normal(z, mean, log_var):
    """log N(z | mean, diag(exp(log_var)))."""
    return -0.5 * ((z - mean) ** 2 / log_var.exp() + log_var + math.log(2 * math.pi)).sum()


def log_likelihood(vae, x, z):
    """log N(x | decoded z, sigma^2), summed over the frame."""
    mean = torch.sigmoid(vae.decoder(z[None])[0]).view(x.shape)
    sigma = vae.log_sigma.exp()
    return (-0.5 * ((x - mean) / sigma) ** 2 - vae.log_sigma - 0.5 * math.log(2 * math.pi)).sum()
