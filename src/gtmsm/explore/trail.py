"""What an explorer did, step after step, and where that led."""

import torch
from torch import Tensor

from gtmsm.model.planning import Walked
from gtmsm.tensors import Actions, State, States


class Trail:
    """Actions, and the state after each; the last states may still be corrected, and the first may be guesses."""

    guessed = 0
    """How many states it begins with that are guesses, of when the explorer was lost."""

    def __init__(self, start: State, action: Actions) -> None:
        """Of no steps yet; both arguments tell sizes, types and where tensors are."""
        self._states, self._actions = _Rows(start), _Rows(action)

    @property
    def states(self) -> States:
        """To be read, and not to be written to."""
        return self._states.all

    @property
    def actions(self) -> Actions:
        """To be read, and not to be written to."""
        return self._actions.all

    def tried(self, actions: Actions) -> None:
        """What was done next; where it led is said by `led`."""
        self._actions.write(actions, self._actions.count)

    def led(self, states: States, again: int = 0) -> None:
        """Append these states, in place of the last `again`."""
        self._states.write(states, self._states.count - again)

    def correct(self, first: int, poses: Tensor) -> None:
        """Put these poses in place of those from number `first` on; velocities stay."""
        states = self._states.all[:, first : first + poses.shape[1]].clone()
        states[..., : poses.shape[-1]] = poses
        self._states.put(states, first)

    @property
    def walked(self) -> Walked:
        """The steps that were tried since it was known where they begin, and where they led."""
        states, actions = self.states[0, self.guessed :].clone(), self.actions[0, self.guessed :]
        return Walked(states[:-1], actions[1:], states[1:])

    def copy(self) -> "Trail":
        """Another one, which goes on by itself."""
        other = Trail(self.states[:, :0], self.actions[:, :0])
        other.tried(self.actions)
        other.led(self.states)
        other.guessed = self.guessed
        return other


class _Rows:
    """A tensor that grows along its second axis, with room for more."""

    def __init__(self, like: Tensor) -> None:
        with torch.inference_mode(False):  # an explorer made in inference mode may walk outside of it
            self._room, self.count = like.new_zeros(1, 64, like.shape[-1]), 0

    @property
    def all(self) -> Tensor:
        """What was written."""
        return self._room[:, : self.count]

    def write(self, rows: Tensor, first: int) -> None:
        """From row `first` on, which are the last ones then."""
        self.count = first + rows.shape[1]
        with torch.inference_mode(False), torch.no_grad():
            while self.count > self._room.shape[1]:
                self._room = torch.cat([self._room, self._room], 1)
        self.put(rows, first)

    def put(self, rows: Tensor, first: int) -> None:
        """In place of what is there."""
        with torch.inference_mode(False), torch.no_grad():
            self._room[:, first : first + rows.shape[1]] = rows
