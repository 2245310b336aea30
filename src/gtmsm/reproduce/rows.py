"""Rows of the table: what is trained, with which settings, and on which sets it is scored.

A row is GTM-SM in a world, a rival in the same world, an ablation of GTM-SM (some settings changed), or an extension
of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gtmsm.config import changed
from gtmsm.errors import InputError, did_you_mean
from gtmsm.experiments import ImageWalkExperiment, RoomsExperiment
from gtmsm.presets import AS_WRITTEN, PRESETS
from gtmsm.rivals.build import KINDS
from gtmsm.rivals.grid_map import GridMap
from gtmsm.rivals.rival import Kind, RivalConfig

Numbers = Mapping[str, Any]
QUICK_RIVAL = {"width": 64, "layers": 1}
QUICK_SHARE = 0.3
"""Fraction of GTM-SM's updates that a rival gets at toy size, since its updates take 2 to 20 times as long on a CPU."""
SLOW = ("ssm",)
"""Rivals that --quick trains in the first world only."""
OURS = "GTM-SM"
"""Title of the row that rivals, controls and extensions are compared with."""
PRESET_RATE = "the preset's learning rate, as all rows below have it"
QUICK_ABLATIONS = ("k-1", "z-4", "no-prospect", "no-fence", "paper", "absolute", "no-map", "drifting", "literal")


@dataclass(frozen=True)
class TableWorld:
    """A world of the table: its preset, its sets, and the settings of its toy size."""

    preset: str
    about: str
    sets: tuple[str, ...]
    """Named sets that rows are scored on; the first is the paper's own protocol."""
    quick: Numbers
    """Changes of settings with --quick; empty: --quick leaves this world out, since it is too large."""
    changes: Numbers = field(default_factory=dict)
    """Changes of the preset's settings."""
    rivals: bool = True
    """Whether rivals are trained in this world."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    about: str
    world: str
    rival: Kind | None = None
    """The kind of rival; None: GTM-SM."""
    changes: Numbers = field(default_factory=dict)
    """Changes of settings by an ablation or an extension."""
    extension: str = ""
    """Name of an extension in the table; empty: the row is not an extension."""
    seeds: int = 3
    """Default number of seeds; five for GTM-SM, its extensions and ablations."""
    at_toy_size: bool = True
    """Whether --quick includes the row."""

    @property
    def needs(self) -> str:
        """The row whose weights of the same seed this one uses; empty: none."""
        return self.world if self.rival and KINDS[self.rival] is GridMap else ""

    @property
    def is_ablation(self) -> bool:
        """Whether the row is an ablation of GTM-SM."""
        return bool(self.changes) and not self.extension

    @property
    def title(self) -> str:
        """Name of the row in the table."""
        return self.rival or self.extension or OURS

    def experiment(
        self, seed: int, quick: bool, images: str | None, share: float = 1.0
    ) -> ImageWalkExperiment | RoomsExperiment:
        """The experiment of this row, with a share of its updates.

        A rival uses the experiment's world, coder, windows and number of updates (at toy size `QUICK_SHARE` of them).
        """
        world = WORLDS[self.world]
        made = changed(PRESETS[world.preset][1], {"seed": seed})
        for numbers in (world.changes, world.quick if quick else {}, self.changes):
            made = changed(made, numbers)
        if images is not None and self.sets(images) != self.sets(None):  # train on the images that are scored on
            made = changed(made, {"images": images})
        assert isinstance(made, ImageWalkExperiment | RoomsExperiment)
        share *= QUICK_SHARE if quick and self.rival else 1.0
        return made if share == 1.0 else _shortened(made, share)

    def rival_settings(self, quick: bool) -> RivalConfig:
        """The settings of a rival."""
        assert self.rival is not None
        return RivalConfig(kind=self.rival, **(QUICK_RIVAL if quick else {}))

    def context(self, quick: bool) -> str:
        """How many of the memorised frames a prediction can use, in words."""
        if self.rival:
            return KINDS[self.rival].context.format(**asdict(self.rival_settings(quick)))
        return f"{self.experiment(0, quick, None).model.recall.neighbours} of all frames"

    def sets(self, images: str | None) -> tuple[str, ...]:
        """Named sets to score on; ablations use the first only. With `images`, built-in sets become CelebA's."""
        named = WORLDS[self.world].sets[: 1 if self.is_ablation else None]
        return named if images is None else tuple(name.replace("/builtin", "/celeba") for name in named)


_QUICK_ROOMS = {
    "world": {"train_places": 256, "test_places": 64, "antialias": 1},
    "training": {"updates": 300, "watch_every": 300, "save_every": 300},
    "training.optimiser": {"batch": 16, "anneal_updates": 300, "learning_rate": 2e-3, "precision": "float32"},
    "model.vae": {"coder": "dense", "width": 128, "code_size": 32},
    "model.recall": {"width": 128},
}
WORLDS = {
    "image-walk": TableWorld(
        "image-walk", "section 4.1: walks over pictures, with walls", ("image-walk/builtin",), {
        "training": {"updates": 700, "watch_every": 700, "save_every": 700},
        "training.optimiser": {"batch": 32, "anneal_updates": 700, "learning_rate": 3e-3, "precision": "float32"},
        "training.curriculum": {"tau": 64, "warm_up": 250, "grow": (100, 100)},
        "training.prospect": {"candidates": 256, "restarts": 2},
        "model.vae": {"width": 128},
        "model.recall": {"width": 128},
    }),
    "large": TableWorld(
        "image-walk", "pictures of 64x64, large enough to leave a place: loops and returns",
        ("image-walk/loop", "image-walk/loop-around", *(f"image-walk/return-{n}" for n in (0, 30, 100, 300, 1000))), {
        "training": {"updates": 700, "watch_every": 700, "save_every": 700},
        "training.optimiser": {"batch": 32, "anneal_updates": 700, "learning_rate": 3e-3, "precision": "float32"},
        "training.curriculum": {"tau": 128, "warm_up": 250, "grow": (100, 100)},
        "training.prospect": {"candidates": 256, "restarts": 2},
        "model.vae": {"width": 128},
    }, {"world": {"size": 64}}),
    "rotate": TableWorld(
        "rotate", "section 4.2.1: turning on the spot in a room", ("rooms/rotate",), {
        **_QUICK_ROOMS,
        "pool": {"clips": 512},
        "training.curriculum": {"warm_up": 100},
        "training.prospect": {"clips": 16, "angles": 1_024},
    }),
    "walk": TableWorld(
        "walk", "section 4.2.2: walking through a room; GTM-SM has displacements as targets",
        ("rooms/walk", "rooms/multi"), {
        **_QUICK_ROOMS,
        "pool": {"clips": 256, "steps": 150},
        "training.curriculum": {"tau": 60, "horizon": 32},
    }),
    "walk-strong": TableWorld(
        "walk-strong", "the same with better pictures: spatial codes, rays",
        ("rooms/walk", "rooms/multi"), {}, rivals=False,
    ),
}  # fmt: skip


def _rate_of(preset: str) -> Numbers:
    """The preset's learning rate, which all ablations have, whichever was found best for GTM-SM itself."""
    return {"training.optimiser.learning_rate": PRESETS[preset][1].training.optimiser.learning_rate}


NO_MAP: Numbers = {"model.recall.map_size": 0}
"""What ablations of `walk` have besides their own change that were trained before `walk` had a map."""
ABLATIONS: dict[str, dict[str, tuple[str, Numbers]]] = {
    "image-walk": {
        "preset-rate": (PRESET_RATE, _rate_of("image-walk")),
        "k-1": ("K = 1 entry read", {"model.recall.neighbours": 1}),
        "k-20": ("K = 20 entries read", {"model.recall.neighbours": 20}),
        "delta": ("delta = 0.01", {"model.recall.delta": 1e-2}),
        "z-4": ("codes of 4 dimensions", {"model.vae.code_size": 4}),
        "z-64": ("codes of 64 dimensions", {"model.vae.code_size": 64}),
        "r-0.01": ("r = 0.01, noise of the pose (App. A.2)", {"model.motion.noise": 1e-2}),
        "latest-64": ("the latest 64 memorised frames are read", {"model.recall.latest": 64}),
        "latest-128": ("the latest 128 memorised frames are read", {"model.recall.latest": 128}),
        "samples": ("memory holds samples of codes", {"model.recall.holds": "samples"}),
        "kl": ("distance between poses: KL", {"model.recall.distance": "kl"}),
        "no-prospect": ("no search for the motion", {"training.curriculum.prospect": False}),
        "no-fence": ("walls that begin out of reach", {"model.motion.fence": 1e6}),
        "no-growth": ("the full memory after the warm-up", {"training.curriculum.grow": ()}),
        "read-k": ("K entries from the start", {"training.curriculum.read_all_stages": 0}),
        "paper": ("no search, no growth, K from the start, no warm-up", {
            "training.curriculum": {"prospect": False, "grow": (), "read_all_stages": 0, "warm_up": 0},
        }),
    },
    "rotate": {
        "preset-rate": (PRESET_RATE, _rate_of("rotate")),
        "map-5": ("distances in a learned map of 5 dimensions (App. A.2)", {"model.recall.map_size": 5}),
        "absolute": ("the query network is told absolute poses", {"model.recall.poses": "absolute"}),
        "mixture": ("mixture prior instead of the query network", {
            "model.recall.prior": "mixture", "training.objective.foresight": 0.0,
        }),
    },
    "walk": {
        "k-8": ("K = 8 entries read", {"model.recall.neighbours": 8}),
        "no-map": ("distances between poses themselves, as all rows below but the last have it", NO_MAP),
        "drifting": ("momentum in the agent's frame (4.2.2), damped in units of its limit", {
            "model.motion": {"kind": "drifting"}, **NO_MAP,
        }),
        "literal": ("the equation of 4.2.2 as it is written", {
            "model.motion": {"kind": "drifting", "literal": True}, **NO_MAP,
        }),
        "r-0.01": ("r = 0.01, noise of the pose (App. A.2)", {"model.motion.noise": 1e-2, **NO_MAP}),
        "schedule": ("learning rate from 3e-3 to 5e-5 over 100,000 updates (App. A.2)", {
            "training.optimiser": {"learning_rate": 3e-3, "final_learning_rate": 5e-5, "anneal_updates": 100_000},
            **NO_MAP,
        }),
        "paper": ("all of App. A.2 and 4.2.2, as preset walk-paper", AS_WRITTEN),
    },
}  # fmt: skip
"""By world and name: description and changes of settings."""


EXTENSIONS: dict[str, dict[str, tuple[str, str, Numbers]]] = {
    "image-walk": {
        "query": ("GTM-SM, query prior", "GTM-SM whose prior is the query network of App. A.2", {
            "model.recall.prior": "query",
        }),
        "foresight": ("GTM-SM, foresight", "query, trained on the decoded mean of the prior as well", {
            "model.recall.prior": "query", "training.objective.foresight": 10.0,
        }),
    },
}  # fmt: skip
"""By world and name: title in the table, description, and changes of settings."""


def _shortened(
    experiment: ImageWalkExperiment | RoomsExperiment, share: float
) -> ImageWalkExperiment | RoomsExperiment:
    """The experiment with a share of its updates; the curriculum keeps its length if half of them suffice."""
    training = experiment.training
    optimiser, curriculum = training.optimiser, training.curriculum
    growing = curriculum.warm_up + sum(curriculum.grow)
    kept = max(share, min(1.0, share * training.updates / (2 * growing))) if growing else share

    def some(updates: int, share: float = share) -> int:
        return max(1, round(share * updates)) if updates else 0

    shorter: ImageWalkExperiment | RoomsExperiment = changed(experiment, {
        "training.updates": some(training.updates),
        "training.optimiser": {name: some(getattr(optimiser, name)) for name in ("anneal_updates", "ramp_updates")},
        "training.curriculum": {
            "warm_up": some(curriculum.warm_up, kept),
            "grow": tuple(some(updates, kept) for updates in curriculum.grow),
        },
    })  # fmt: skip
    return shorter


def _rows() -> dict[str, Row]:
    rows = []
    for name, world in WORLDS.items():
        rows.append(Row(name, f"GTM-SM, {world.about}", name, seeds=5))
        rows += [
            Row(f"{name}/{short}", about, name, changes=numbers, extension=called, seeds=5)
            for short, (called, about, numbers) in EXTENSIONS.get(name, {}).items()
        ]
        if world.rivals:
            first = name == next(iter(WORLDS))
            rows += [
                Row(f"{name}/{kind}", kind, name, rival=kind, at_toy_size=first or kind not in SLOW) for kind in KINDS
            ]
        rows += [
            Row(f"{name}/{short}", about, name, changes=numbers, seeds=5, at_toy_size=short in QUICK_ABLATIONS)
            for short, (about, numbers) in ABLATIONS.get(name, {}).items()
        ]
    return {row.name: row for row in rows}


ROWS = _rows()
"""Rows by name: WORLD, WORLD/RIVAL, WORLD/EXTENSION or WORLD/ABLATION."""


def choose_rows(names: Sequence[str], quick: bool) -> list[Row]:
    """The rows that match these names, in which * matches anything; all rows without names."""
    there = {name: row for name, row in ROWS.items() if not quick or (WORLDS[row.world].quick and row.at_toy_size)}
    chosen: dict[str, Row] = {}
    for name in names or ("*",):
        found = {known: row for known, row in there.items() if fnmatchcase(known, name)}
        if not found:
            size = " at toy size" if quick else ""
            raise InputError(f'no row "{name}"{size}; {did_you_mean(name, there)}')
        chosen |= found
    return list(chosen.values())
