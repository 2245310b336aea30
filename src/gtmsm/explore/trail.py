"""The actions of an explorer, and the state after each."""

from typing import TypeAlias

import torch
from torch import Tensor

from gtmsm.model.planning import Walked
from gtmsm.tensors import Actions, State, States

Mark: TypeAlias = tuple[int, States, int]
"""Number of guesses, the last states, and number of states."""


class Trail:
    """Actions, and the state after each. The last states may still be corrected; the first may be guesses."""

    guessed = 0
    """Number of states at the beginning that are guesses, made while the explorer was lost."""

    def __init__(self, start: State, action: Actions) -> None:
        """Begin with no steps; the arguments give sizes, dtype and device."""
        self._states, self._actions = _Rows(start), _Rows(action)

    @property
    def states(self) -> States:
        """The state after each step: a view that must not be written to."""
        return self._states.all

    @property
    def actions(self) -> Actions:
        """The action of each step: a view that must not be written to."""
        return self._actions.all

    def went(self, states: States, actions: Actions | None = None) -> None:
        """Append actions; these are the latest states, and those without a new action replace earlier ones."""
        if actions is not None:
            self._actions.write(actions, self._actions.count)
        self._states.write(states, self._actions.count - states.shape[1])

    def correct(self, first: int, poses: Tensor) -> None:
        """Replace the poses from number `first` on; velocities stay."""
        states = self._states.all[:, first : first + poses.shape[1]].clone()
        states[..., : poses.shape[-1]] = poses
        self._states.put(states, first)

    @property
    def walked(self) -> Walked:
        """The steps made since the pose has been known: the state before each, its action and the state after it."""
        return Walked.along(self.states[0, self.guessed :].clone(), self.actions[0, self.guessed :])

    def mark(self, last: int) -> Mark:
        """The state of now, to which `restore` returns if at most the `last` states are replaced until then."""
        count = self._states.count
        return self.guessed, self.states[:, count - last :].clone(), count

    def restore(self, mark: Mark) -> None:
        """Return to an earlier state."""
        self.guessed, states, count = mark
        self._states.count = self._actions.count = count
        self._states.put(states, count - states.shape[1])

    def copy(self) -> "Trail":
        """An independent copy."""
        other = Trail(self.states[:, :0], self.actions[:, :0])
        other.went(self.states, self.actions)
        other.guessed = self.guessed
        return other


class _Rows:
    """A tensor that grows along its second axis, with spare capacity."""

    def __init__(self, like: Tensor) -> None:
        with torch.inference_mode(False):  # an explorer made in inference mode may walk outside of it
            self._room, self.count = like.new_zeros(1, 64, like.shape[-1]), 0

    @property
    def all(self) -> Tensor:
        """The rows written so far."""
        return self._room[:, : self.count]

    def write(self, rows: Tensor, first: int) -> None:
        """Write rows from `first` on; they become the last ones."""
        count = first + rows.shape[1]
        with torch.inference_mode(False), torch.no_grad():
            while count > self._room.shape[1]:
                self._room = torch.cat([self._room, self._room], 1)
        self.put(rows, first)
        self.count = count

    def put(self, rows: Tensor, first: int) -> None:
        """Overwrite the rows from `first` on."""
        with torch.inference_mode(False), torch.no_grad():
            self._room[:, first : first + rows.shape[1]] = rows
