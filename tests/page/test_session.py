import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from visitor import Heard, Visitor, png

from gtmsm import InputError
from gtmsm.page.catalogue import Catalogue

UP, DOWN, LEFT, RIGHT, STAY = range(5)
ROUND = (UP, UP, LEFT, LEFT, DOWN, DOWN, RIGHT, RIGHT)


def picture_of(heard: Heard) -> np.ndarray:
    return np.frombuffer(heard.pictures[0], np.uint8).reshape(8, 8, 3)


def test_a_dream_leaves_the_agent_and_its_memory_as_they_were(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "image")
    before = visitor.step(*ROUND)
    visitor.ask("dream", on=True)
    dreamt = visitor.step(UP, UP, LEFT)
    awake = visitor.ask("dream", on=False)[-1]
    assert dreamt.said["here"] != before.said["here"]
    assert not dreamt.said["memorised"]
    assert awake.said["here"] == before.said["here"]
    assert visitor.step(STAY).said["at"] == 14
    assert visitor.walk.entries == 10


def test_the_truth_beside_a_dream_is_what_the_same_steps_would_show(catalogue: Catalogue) -> None:
    walking, dreaming = Visitor(catalogue, "obstacles"), Visitor(catalogue, "obstacles")
    dreaming.ask("dream", on=True)
    for action in (UP, LEFT, LEFT, DOWN, RIGHT):
        real, dreamt = walking.ask("step", action=action)[0], dreaming.ask("step", action=action)[0]
        assert dreamt.pictures == real.pictures
        assert dreamt.said["true"] == real.said["true"]
        assert dreamt.said["dream"]


def test_walking_on_from_an_earlier_moment_is_as_if_later_ones_had_never_been(catalogue: Catalogue) -> None:
    straight, forked = Visitor(catalogue, "obstacles"), Visitor(catalogue, "obstacles")
    straight.step(*ROUND[:4])
    forked.step(*ROUND)
    forked.ask("dream", on=True)
    forked.step(UP)
    expected, heard = straight.step(RIGHT), forked.step(RIGHT, back=4)
    assert heard.said == expected.said
    assert heard.pictures == expected.pictures


@pytest.mark.parametrize("dreaming", [False, True])
def test_what_was_imagined_ahead_is_what_is_imagined_when_asked_for(catalogue: Catalogue, dreaming: bool) -> None:
    plain, ahead = Visitor(catalogue, "obstacles"), Visitor(catalogue, "obstacles")
    for visitor in (plain, ahead) if dreaming else ():
        visitor.step(*ROUND)
        visitor.ask("dream", on=True)
    for action in (*ROUND, STAY):
        frames = ahead.walk.foresee()
        assert len(list(frames)) == 5
        heard, expected = ahead.step(action), plain.step(action)
        assert heard == expected


def test_what_was_imagined_ahead_is_forgotten_with_its_moment(catalogue: Catalogue) -> None:
    plain, ahead = Visitor(catalogue, "image"), Visitor(catalogue, "image")
    plain.step(UP, UP)
    ahead.step(UP, UP, LEFT, LEFT)
    list(ahead.walk.foresee())
    assert ahead.step(DOWN, back=2) == plain.step(DOWN)


def test_a_walker_chooses_from_where_the_agent_is_whatever_was_looked_at_ahead(catalogue: Catalogue) -> None:
    visitor, stood = Visitor(catalogue, "image"), []

    def walker() -> Iterator[int]:
        stood.append(visitor.walk.place.world.cell)
        yield UP

    visitor.step(UP)
    next(visitor.walk.foresee())
    visitor.walk._walker, here = walker(), visitor.walk.moments[-1].state
    visitor.ask("explore")
    assert stood[0].equal(here)


@pytest.mark.parametrize("then", ["dreams", "imagined ahead", "went back", "forgot its beginning"])
def test_a_dream_stops_at_what_was_bumped_into_and_at_nothing_else(catalogue: Catalogue, then: str) -> None:
    visitor = Visitor(catalogue, "obstacles", history=16)
    solid = visitor.walk.place.world.solid[0]
    assert solid[3, 4] and solid[5, 4]  # above and below where it begins
    if then == "forgot its beginning":
        visitor.step(*[RIGHT, LEFT] * 5)
    bump = visitor.step(UP).said["at"]
    if then == "went back":
        visitor.step(LEFT, LEFT)
        visitor.step(RIGHT, back=bump)
        visitor.step(LEFT)
    if then == "forgot its beginning":
        visitor.step(*[RIGHT, LEFT] * 3)
        assert visitor.walk.entries < 18
    start = np.array(visitor.ask("dream", on=True)[-1].said["here"])
    if then == "imagined ahead":
        list(visitor.walk.foresee())
    for action in (UP, UP):
        assert np.abs(visitor.step(action).said["here"] - start).max() < 0.03  # a cell is 0.09 wide
    assert np.abs(visitor.step(DOWN).said["here"] - start).max() > 0.06  # nobody has met what is there


def test_a_dream_can_be_gone_back_in_too(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "image")
    visitor.step(*ROUND)
    visitor.ask("dream", on=True)
    first = visitor.step(UP)
    visitor.step(LEFT, LEFT)
    again = visitor.ask("step", action=UP, back=9)
    assert again[-1].said == first.said
    assert again[0].said["dream"]


def test_what_is_expected_is_made_of_earlier_views_only(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "image")
    for action in ROUND:
        heard = visitor.step(action)
        assert max(heard.said["recalled"]) < heard.said["at"]


def test_a_long_walk_forgets_its_beginning(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "image", history=16)
    forgotten = 0
    for action in ROUND * 5:
        told = [heard.said for heard in visitor.ask("step", action=action)]
        forgotten += sum(said["count"] for said in told if said["t"] == "forget")
        assert told[-1]["at"] < 16
        assert all(0 <= number <= told[-1]["at"] for number in told[-1]["recalled"])
    assert forgotten + told[-1]["at"] == 40
    assert visitor.walk.entries <= 16


def test_a_dream_that_fills_the_timeline_is_refused_in_words(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "image", history=16)
    visitor.ask("dream", on=True)
    with pytest.raises(InputError, match="this dream is 16 steps long; drag the timeline back"):
        visitor.step(*[UP] * 20)
    assert visitor.step(UP, back=2).said["at"] == 3


@pytest.mark.parametrize("world", ["image", "obstacles"])
def test_a_view_is_found_where_it_was_seen(catalogue: Catalogue, world: str) -> None:
    visitor = Visitor(catalogue, world)
    visitor.step(*ROUND)
    view, _, told = visitor.ask("step", action=UP)
    asked = visitor.step(RIGHT, DOWN, RIGHT, RIGHT) and visitor.ask("where", png(picture_of(view)))[0]
    assert asked.said["by"] == ("landmarks" if world == "obstacles" else "likeness")
    assert asked.said["places"][0]["at"] == pytest.approx(told.said["here"], abs=0.05)


def test_a_picture_of_nothing_that_was_seen_is_found_nowhere(catalogue: Catalogue) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    plain, landmarks = Visitor(catalogue, "image"), Visitor(catalogue, "obstacles")
    landmarks.step(*ROUND, *ROUND)
    assert plain.ask("where", png(noise))[0].said["alike"] is False
    assert landmarks.ask("where", png(noise))[0].said["known"] < 0.5


def test_ones_own_picture_is_what_one_walks_on(catalogue: Catalogue) -> None:
    own = np.random.default_rng(0).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    place, truth, *_ = Visitor(catalogue, "image", content=png(own)).first
    assert place.said["own"]
    assert (picture_of(truth) == own[12:20, 12:20]).all()


def test_a_click_on_the_map_is_imagined_there(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "image")
    visitor.step(*ROUND)
    truth, heard = visitor.ask("imagine", at=[0.4, 0.6])
    assert heard.said["here"] == pytest.approx([0.4, 0.6], abs=1e-3)
    assert truth.said["dream"]
    assert visitor.ask("dream", on=False)[-1].said["here"] == pytest.approx([0.5, 0.5], abs=0.02)


@pytest.mark.parametrize("dreaming", [False, True])
def test_a_goal_on_the_map_is_walked_to(catalogue: Catalogue, dreaming: bool) -> None:
    visitor = Visitor(catalogue, "image")
    visitor.step(*ROUND)
    if dreaming:
        visitor.ask("dream", on=True)
    (way,) = visitor.ask("goal", at=[0.25, 0.7])
    assert way.said["steps"] > 0
    for _ in range(40):
        heard = visitor.ask("follow")[-1]
        if not heard.said["left"]:
            break
    assert heard.said["left"] == 0
    assert heard.said["here"] == pytest.approx([0.25, 0.7], abs=0.07)  # a cell is 0.09 wide


def test_in_a_room_walker_dream_and_fork_do_the_same(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "room")
    for _ in range(6):
        heard = visitor.ask("explore")[-1]
    assert heard.said["off"] < 0.2
    assert heard.said["turned"] < 2
    visitor.ask("dream", on=True)
    assert visitor.step(0).said["psnr"] > 12
    assert visitor.step(4, back=3).said["at"] == 4
    assert visitor.walk.entries == 5


def test_in_a_room_the_way_to_a_goal_ends_looking_as_it_leads(catalogue: Catalogue) -> None:
    visitor = Visitor(catalogue, "room")
    visitor.step(*[0] * 8)
    visitor.ask("goal", at=visitor.first[-1].said["here"][:2])  # back to where it began
    assert visitor.walk._way is not None
    start, end = visitor.walk.moments[-1].here.mean[0, :3].tolist(), visitor.walk._way.path[-1]
    led = np.arctan2(-start[1], -start[0])
    assert abs(np.angle(np.exp(1j * (led - start[2])))) > 3  # it has to turn around
    assert abs(np.angle(np.exp(1j * (led - end[2])))) < 0.2


@pytest.mark.parametrize(
    ("do", "content", "said", "complaint"),
    [
        ("step", b"", {"action": 5}, "action is 5; give a whole number from -1 to 4"),
        ("step", b"", {"action": True}, "action is True"),
        ("step", b"", {}, "action is None"),
        ("step", b"", {"action": 0, "back": 99}, "from is 99; give a whole number from 0 to 0"),
        ("follow", b"", {}, "choose a goal first"),
        ("imagine", b"", {"at": [0.5]}, "give two numbers from 0 to 1"),
        ("goal", b"", {"at": [0.5, 1e300]}, "give two numbers from 0 to 1"),
        ("dream", b"", {"on": 1}, "on is 1; give true or false"),
        ("begin", b"", {"world": "moon", "seed": 1}, 'unknown world "moon"'),
        ("begin", b"", {"world": "image", "seed": -1}, "seed is -1"),
        ("begin", b"not a picture", {"world": "image", "seed": 1}, "cannot be read as a PNG or JPEG"),
        ("begin", b"not a picture", {"world": "room", "seed": 1}, "room has no pictures to walk on"),
        ("where", b"", {}, "cannot be read as a PNG or JPEG"),
        ("jump", b"", {}, "do is 'jump'"),
        ("step", b"", {"action": 0, "twice": 1}, "step has no 'twice'"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line_and_changes_nothing(
    catalogue: Catalogue, do: str, content: bytes, said: dict[str, object], complaint: str
) -> None:
    visitor = Visitor(catalogue, "image")
    with pytest.raises(InputError) as refused:
        visitor.ask(do, content, **said)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)
    assert visitor.step(UP).said["at"] == 1


def test_a_picture_that_declares_more_pixels_than_it_has_is_refused(catalogue: Catalogue) -> None:
    header = b"IHDR" + (8_000).to_bytes(4, "big") * 2 + b"\x08\x02\x00\x00\x00"
    size, check = (13).to_bytes(4, "big"), zlib.crc32(header).to_bytes(4, "big")
    bomb = b"\x89PNG\r\n\x1a\n" + size + header + check + (9).to_bytes(4, "big") + b"IDAT" + bytes(13)
    with pytest.raises(InputError, match="8000x8000 is more than 16,777,216 pixels"):
        Visitor(catalogue, "image").ask("where", bomb)
