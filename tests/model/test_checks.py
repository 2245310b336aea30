"""Whatever a verb is given, it answers with numbers or refuses in one line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from gtmsm.errors import InputError
from gtmsm.model.elbo import infer
from gtmsm.model.frame_vae import FrameVAEConfig
from gtmsm.model.gtmsm import WorldModel, WorldModelConfig
from gtmsm.model.memory import Memory
from gtmsm.model.motion import MotionConfig
from gtmsm.model.recall import RecallConfig
from gtmsm.model.recognition import LandmarkConfig
from gtmsm.model.weights import WEIGHTS
from gtmsm.tensors import Belief, are_finite

NAN, INF = float("nan"), float("inf")


def build(form="bayes", kind="walled", code=4, prior="mixture", size=2, distance="euclidean", mapped=0):
    torch.manual_seed(0)
    spatial = {"coder": "spatial", "width": 16, "code_size": 16}
    settings = WorldModelConfig(
        vae=FrameVAEConfig(**(spatial if prior == "rays" else {"width": 16, "code_size": code})),
        motion=MotionConfig(kind=kind, hidden=8, noise=1e-2, state_size=size),
        recall=RecallConfig(neighbours=3, prior=prior, width=64, layers=1, distance=distance, map_size=mapped),
        landmark=LandmarkConfig(form=form, width=8, matches=3),
    )
    return WorldModel(settings, (3, 8, 8), 5).requires_grad_(False)


def spoilt(tensor, value=NAN):
    tensor = tensor.clone()
    tensor.view(-1)[-1] = value
    return tensor


def forged(like, **parts):
    """A value with other parts, past the shape checks of the tests."""
    fake = object.__new__(type(like))
    fake.__dict__.update({name: getattr(like, name) for name in like.__dataclass_fields__} | parts)
    return fake


MODEL = build()
FRAMES = torch.rand(2, 9, 3, 8, 8, generator=torch.Generator().manual_seed(1))
ACTIONS = torch.eye(5)[torch.randint(5, (2, 9), generator=torch.Generator().manual_seed(2))]
MEMORY, HERE = MODEL.memorise(FRAMES, ACTIONS)
OTHERS = {
    "code": build(code=6),
    "place": build(size=3),
    "heading": build(kind="turning"),
    "gliding": build("off", "gliding"),
    "rays": build("off", "turning", prior="rays"),
}
OF_OTHERS = {name: model.memorise(FRAMES, ACTIONS) for name, model in OTHERS.items()}
OF_OTHERS["float64"] = build().double().memorise(FRAMES.double(), ACTIONS.double())

NO_TENSORS = {"none": None, "text": "x", "number": 3, "list": [[1.0]]}
KINDS = {
    "integers": lambda x: x.long(),
    "complex": lambda x: x.to(torch.complex64),
    "booleans": lambda x: x > 0.5,
    "float64": lambda x: x.double(),
    "bfloat16": lambda x: x.bfloat16(),
    "elsewhere": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "array": lambda x: x.numpy(),
    "no batch": lambda x: x[0],
    "empty batch": lambda x: x[:0],
    "one more axis": lambda x: x[None],
    "other size": lambda x: x[..., :1],
    "nan": spoilt,
    "inf": lambda x: spoilt(x, INF),
    "-inf": lambda x: spoilt(x, -INF),
}
BAD_FRAMES = NO_TENSORS | {name: change(FRAMES) for name, change in KINDS.items()} | {
    "bytes as floats": 255 * FRAMES, "bytes": (255 * FRAMES).byte(), "negative": FRAMES - 1, "no steps": FRAMES[:, :0],
    "fewer steps": FRAMES[:, :5],
}  # fmt: skip
BAD_ACTIONS = NO_TENSORS | {name: change(ACTIONS) for name, change in KINDS.items()}
BAD_MEMORIES = NO_TENSORS | {name: memory for name, (memory, _) in OF_OTHERS.items() if name != "gliding"} | {
    "here": HERE,
    "nan code": forged(MEMORY, code=forged(MEMORY.code, mean=spoilt(MEMORY.code.mean))),
    "inf spread": forged(MEMORY, code=forged(MEMORY.code, log_var=spoilt(MEMORY.code.log_var, INF))),
    "nan place": forged(MEMORY, place=forged(MEMORY.place, mean=spoilt(MEMORY.place.mean))),
    "nan covariance": forged(MEMORY, place=forged(MEMORY.place, covariance=spoilt(MEMORY.place.covariance))),
    "nan variance": forged(MEMORY, variance=spoilt(MEMORY.variance)),
    "other variance": forged(MEMORY, variance=MEMORY.variance.expand(-1, -1, 2)),
    "integer places": forged(MEMORY, place=forged(MEMORY.place, mean=MEMORY.place.mean.long())),
    "fewer places": forged(MEMORY, place=MEMORY.place[:, :5]),
    "no parts": forged(MEMORY, place=None, code=None),
    "no code": forged(MEMORY, code=forged(MEMORY.code, mean=None)),
    "empty batch": MEMORY[:0],
    "one too few": MEMORY[:1],
}  # fmt: skip
BAD_HERES = NO_TENSORS | {name: here for name, (_, here) in OF_OTHERS.items() if name != "code"} | {
    "memory": MEMORY, "nan spread": forged(HERE, covariance=spoilt(HERE.covariance)),
    "other spread": forged(HERE, covariance=HERE.covariance[:, :1]),
    "spread of one": forged(HERE, covariance=HERE.covariance[0]),
    "three": HERE[torch.tensor([0, 0, 1])],
    **{name: forged(HERE, mean=change(HERE.mean)) for name, change in KINDS.items()},
}  # fmt: skip
EMPTY = Memory(MEMORY.place[:, :0], MEMORY.code[:, :0])
SURE = {name: forged(here, covariance=None) for name, here in BAD_HERES.items() if isinstance(here, Belief)
        and "spread" not in name}  # fmt: skip
BAD_GENERATORS = {"text": "x", "number": 3, "NumPy's": np.random.default_rng(0)}
BAD_TAUS = {"text": "5", "float": 5.0, "nan": NAN, "none": None, "negative": -1, "0": 0, "all": 9, "huge": 10**30,
            "boolean": True, "list": [5], "fewer than neighbours": 2}  # fmt: skip
BAD_COUNTS = {"text": "x", "negative": -1, "0": 0, "float": 2.5, "none": None, "huge": 10**15, "boolean": True}


def less(bad, *names):
    return {name: value for name, value in bad.items() if name not in names}


CALLS = {
    "memorise(frames)": (BAD_FRAMES, lambda bad: MODEL.memorise(bad, ACTIONS)),
    "memorise(actions)": (BAD_ACTIONS, lambda bad: MODEL.memorise(FRAMES, bad)),
    "memorise(memory)": (less(BAD_MEMORIES, "none"), lambda bad: MODEL.memorise(FRAMES, ACTIONS, bad, HERE)),
    "memorise(here)": (less(BAD_HERES, "none"), lambda bad: MODEL.memorise(FRAMES, ACTIONS, MEMORY, bad)),
    "memorise(sure here)": (SURE,
                            lambda bad: MODEL.memorise(FRAMES, ACTIONS, MEMORY, bad)),
    "memorise(closure)": ({"text": "x", "negative": -1, "float": 2.5},
                          lambda bad: MODEL.memorise(FRAMES, ACTIONS, closure=bad)),
    "follow(frames)": (BAD_FRAMES, lambda bad: MODEL.follow(bad, ACTIONS)),
    "follow(actions)": (BAD_ACTIONS, lambda bad: MODEL.follow(FRAMES, bad)),
    "follow(memory)": (less(BAD_MEMORIES, "none"), lambda bad: MODEL.follow(FRAMES, ACTIONS, bad, HERE)),
    "follow(here)": (less(BAD_HERES, "none"), lambda bad: MODEL.follow(FRAMES, ACTIONS, MEMORY, bad)),
    "localise(memory)": (BAD_MEMORIES, lambda bad: MODEL.localise(bad, FRAMES[:, :1])),
    "localise(frames)": (less(BAD_FRAMES, "fewer steps"), lambda bad: MODEL.localise(MEMORY, bad)),
    "localise(actions)": (less(BAD_ACTIONS, "none"), lambda bad: MODEL.localise(MEMORY, FRAMES, bad)),
    "imagine(memory)": (less(BAD_MEMORIES, "one too few") | {"no entries": EMPTY},
                        lambda bad: MODEL.imagine(bad, HERE, ACTIONS)),
    "imagine(here)": (BAD_HERES, lambda bad: MODEL.imagine(MEMORY, bad, ACTIONS)),
    "imagine(actions)": (BAD_ACTIONS, lambda bad: MODEL.imagine(MEMORY, HERE, bad)),
    "imagine(generator)": (BAD_GENERATORS, lambda bad: MODEL.imagine(MEMORY, HERE, ACTIONS, bad)),
    "imagine(negative spread)": ({"": replace(HERE, covariance=-HERE.covariance)},
                                 lambda bad: MODEL.imagine(MEMORY, bad, ACTIONS, torch.Generator())),
    "imagine(rays, memory)": ({"of another": OF_OTHERS["heading"][0],
                               "without digest": replace(OF_OTHERS["rays"][0], digest=None)},
                              lambda bad: OTHERS["rays"].imagine(bad, OF_OTHERS["rays"][1], ACTIONS)),
    "imagine(gliding, actions)": (BAD_ACTIONS, lambda bad: OTHERS["gliding"].imagine(*OF_OTHERS["gliding"], bad)),
    "explain(frames)": (BAD_FRAMES, lambda bad: MODEL.explain(bad, ACTIONS, 5)),
    "explain(actions)": (BAD_ACTIONS, lambda bad: MODEL.explain(FRAMES, bad, 5)),
    "explain(tau)": (BAD_TAUS, lambda bad: MODEL.explain(FRAMES, ACTIONS, bad)),
    "explain(generator)": (BAD_GENERATORS, lambda bad: MODEL.explain(FRAMES, ACTIONS, 5, bad)),
    "explain(reading)": ({"text": "x", "dict": {}, "kl with landmarks": RecallConfig(distance="kl")},
                         lambda bad: MODEL.explain(FRAMES, ACTIONS, 5, None, bad)),
    "forward(plan)": (BAD_ACTIONS, lambda bad: MODEL(FRAMES, ACTIONS, bad)),
    "anywhere": (BAD_COUNTS, MODEL.anywhere),
    "WorldModel(settings)": ({"none": None, "dict": {}}, lambda bad: WorldModel(bad, (3, 8, 8), 5)),
    "WorldModel(frame)": ({"none": None, "two": (8, 8), "negative": (3, -8, 8), "0": (3, 0, 8), "float": (3.0, 8, 8),
                           "text": "abc", "huge": (3, 10**9, 10**9)}, lambda bad: WorldModel(MODEL.settings, bad, 5)),
    "WorldModel(actions)": (BAD_COUNTS, lambda bad: WorldModel(MODEL.settings, (3, 8, 8), bad)),
    "load(path)": ({"none": None, "number": 3, "bytes": b"x", "nul": "a\0b", "missing": "nowhere"}, WorldModel.load),
    "save(path)": ({"none": None, "number": 3, "bytes": b"x", "nul": "a\0b", "missing": "/nowhere/x"}, MODEL.save),
    "begin_with": ({"none": None, "number": 3, "missing": "nowhere"}, MODEL.begin_with),
}  # fmt: skip
MISUSES = [(call, name) for call, (bad, _) in CALLS.items() for name in bad]


@pytest.mark.parametrize(("call", "name"), MISUSES, ids=[f"{call}-{name}" for call, name in MISUSES])
def test_an_odd_call_is_refused_in_one_line(call, name):
    bad, verb = CALLS[call]
    with pytest.raises(InputError) as refused:
        verb(bad[name])
    assert 20 < len(str(refused.value)) < 300
    assert "\n" not in str(refused.value)


def test_plans_that_are_far_too_long_are_refused_rather_than_shown_as_nothing():
    far = Belief(torch.full((2, 2), 1e30))
    with pytest.raises(InputError, match="imagine came to NaN or infinity, though all that was given is finite"):
        MODEL.imagine(MEMORY, far, ACTIONS).frames  # noqa: B018 - frames are computed when asked for


# ---- weights


@pytest.mark.parametrize(
    "model", [build(), build("off", "gliding", prior="query", mapped=3), OTHERS["rays"]], ids=["bayes", "query", "rays"]
)
def test_no_weight_that_is_no_number_goes_unnoticed(model):
    frames, actions = FRAMES[:1, :6], ACTIONS[:1, :6]

    def use():
        memory, here = model.memorise(frames, actions)
        dream = model.imagine(memory, here, actions, torch.Generator().manual_seed(0))
        made = [dream.frames, model.explain(frames, actions, 4).bound, dream.retrieved.float()]
        made += [model.localise(memory, frames).weight] if model.landmarks else []
        return torch.cat([x.flatten() for x in made])

    before = use()
    for name, weight in model.named_parameters():
        kept, last = weight.clone(), tuple(size - 1 for size in weight.shape)
        weight[last] = NAN
        try:
            assert torch.equal(use(), before), f"{name} is NaN and what was made has changed, but nobody said so"
        except InputError as refused:
            assert f"the weight {name} of this model holds NaN" in str(refused), name
        finally:
            weight.copy_(kept)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (spoilt, "holds NaN or infinity"),
        (lambda x: spoilt(x, -INF), "holds NaN or infinity"),
        (lambda x: x.long(), "is torch.int64; weights are real floats"),
        (lambda x: x.to(torch.complex64), "is torch.complex64; weights are real floats"),
        (lambda x: x.to(torch.float8_e4m3fn), "is torch.float8_e4m3fn; weights are real floats of 16 bits"),
    ],
)
def test_weights_that_are_no_real_numbers_are_not_loaded(tmp_path: Path, change, said):
    file = tmp_path / WEIGHTS
    MODEL.save(file)
    tensors = load_file(file)
    with safe_open(file, "pt") as content:
        about = content.metadata()
    save_file(tensors | {"motion.M": change(tensors["motion.M"])}, file, about)
    with pytest.raises(InputError, match=f"motion.M {said}"):
        WorldModel.load(tmp_path)


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "", "meta", "xla", None, ["cpu"]])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device):
    MODEL.save(tmp_path / WEIGHTS)
    with pytest.raises(InputError, match="device is"):
        WorldModel.load(tmp_path, device)


# ---- what a check can see


def test_large_numbers_are_finite_though_their_sum_is_not():
    assert are_finite(torch.full((4,), 3e38), None, torch.zeros(0))
    assert not are_finite(torch.full((4,), 3e38), torch.tensor([NAN]))


def test_numbers_that_cannot_be_seen_are_not_judged():
    with FakeTensorMode() as fake:
        assert are_finite(fake.from_tensor(torch.tensor([NAN])))
    assert torch.func.vmap(lambda x: x * are_finite(x))(torch.ones(3)).tolist() == [1, 1, 1]


def test_a_verb_that_trains_is_not_checked():
    walk = infer(MODEL, FRAMES, spoilt(ACTIONS), torch.Generator().manual_seed(0))
    assert walk.mean.isnan().any()
