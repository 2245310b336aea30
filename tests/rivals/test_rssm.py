"""The RSSM against TorchRL's, with the same weights and the same noise."""

import multiprocessing

import pytest
import torch

BATCH, TAU, STEPS = 3, 5, 9


@pytest.fixture
def torchrl():
    """Its import decides for the whole process how others are begun; that is undone."""
    before = multiprocessing.get_start_method(allow_none=True)
    yield pytest.importorskip("torchrl.modules")
    multiprocessing.set_start_method(before, force=True)


def states_of_torchrl(rival, seen, actions, noise):
    """Beliefs, states and posteriors of the memorised steps, and a rollout of the prior after them."""
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule
    from torchrl.modules import RSSMPosterior, RSSMPrior, RSSMRollout

    width, size, codes = rival.settings.width, rival.settings.stochastic, seen.shape[-1]
    prior = RSSMPrior(actions[0, 0], width, width, size, action_dim=actions.shape[-1])
    posterior = RSSMPosterior(width, size, rnn_hidden_dim=width, obs_embed_dim=codes)
    prior.rnn.load_state_dict(rival.cell.state_dict())
    prior.action_state_projector[0].load_state_dict(rival.into.state_dict())
    for layer in (0, 2):
        prior.rnn_to_prior_projector[layer].load_state_dict(rival.prior[layer].state_dict())
        posterior.obs_rnn_to_post_projector[layer].load_state_dict(rival.posterior[layer].state_dict())
    rollout = RSSMRollout(
        TensorDictModule(
            prior,
            in_keys=["state", "belief", "action", "prior_noise"],
            out_keys=[("next", "prior_mean"), ("next", "prior_std"), "_", ("next", "belief")],
        ),
        TensorDictModule(
            posterior,
            in_keys=[("next", "belief"), ("next", "encoded_latents"), "noise"],
            out_keys=[("next", "posterior_mean"), ("next", "posterior_std"), ("next", "state")],
        ),
    )
    nothing = seen.new_zeros(BATCH, TAU, max(width, size))
    given = {
        "state": nothing[..., :size], "belief": nothing[..., :width], "action": actions[:, :TAU],
        "noise": noise[:, :TAU], "prior_noise": nothing[..., :size], "next": {"encoded_latents": seen},
    }  # fmt: skip
    found = rollout(TensorDict(given, [BATCH, TAU]))["next"]
    beliefs, states = [*found["belief"].unbind(1)], [*found["state"].unbind(1)]
    for t in range(TAU, STEPS):
        _, _, state, belief = prior(states[-1], beliefs[-1], actions[:, t], noise[:, t])
        beliefs.append(belief)
        states.append(state)
    return torch.stack(beliefs, 1), torch.stack(states, 1), found


# Its import sets up far more than a test needs, and warns of this and that.
@pytest.mark.filterwarnings("ignore")
def test_states_are_those_of_torchrl_with_the_same_weights_and_noise(torchrl, make):
    rival, generator = make("rssm"), torch.Generator().manual_seed(3)

    def drawn(steps, size):
        return torch.randn(BATCH, steps, size, generator=generator)

    seen, actions = drawn(TAU, rival.code_size), drawn(STEPS, rival.action_size)
    noise = drawn(STEPS, rival.settings.stochastic)
    belief, state, found = states_of_torchrl(rival, seen, actions, noise)
    h, s, posterior = rival.roll(seen, actions, noise)
    torch.testing.assert_close(h, belief)
    torch.testing.assert_close(s, state)
    torch.testing.assert_close(posterior.mean, found["posterior_mean"])
    torch.testing.assert_close((0.5 * posterior.log_var).exp(), found["posterior_std"])
