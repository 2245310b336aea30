"""What a report says of landmarks, in any world."""

from collections.abc import Mapping
from typing import Any

from gtmsm.evaluation.report import landmark_plots, page
from gtmsm.evaluation.report.figure_style import svg


def sections(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Long walks, unknown starts and single looks; nothing where a model has no landmarks."""
    landmarks = scores.get("landmarks")
    if not landmarks:
        return ()
    return (_long_walks(landmarks), _localisation(landmarks))


def _long_walks(landmarks: Mapping[str, Any]) -> str:
    """Errors over long walks."""
    steps = len(landmarks["slip"][0]["landmarks"]["within_by_step"])
    kinds = landmark_plots.kinds(landmarks)
    told = [
        f"{name} {_percent(walks['landmarks']['within'])}, {_percent(walks.get('loops_closed', {}).get('within'))} "
        f"and {_percent(walks['dead_reckoning']['within'])}"
        for name, _, walks in kinds
    ]
    return page.section(
        "Landmarks: knowing where you are over a long walk",
        svg(landmark_plots.long_walks(landmarks), "landmarks over time"),
        f"Means over {landmarks['walks']} walks of {steps} steps from a known start. A slip is an action that is done "
        "twice or not at all, and nobody is told. Solid: poses corrected by places that are recognised; dotted: and by "
        "what is recognised later, once loops are closed; dashed: by the actions alone. "
        f"Fraction of steps {landmarks['right']}, in this order: "
        f"{'; '.join(told)}. Curves are means over the last {landmark_plots.SMOOTHED} steps.",
    )


def _localisation(landmarks: Mapping[str, Any]) -> str:
    """Unknown starts and single looks, with the numbers in words."""
    lost, looks = landmarks["unknown_start"], landmarks["localise"]
    steps = len(lost["within_by_step"])
    error = looks["reliability"]["expected_calibration_error"]
    return page.section(
        "Landmarks: put anywhere, and shown a single picture",
        svg(landmark_plots.localisation(landmarks), "localisation"),
        f"Above: agents put anywhere into a place of which {landmarks['memorised']} steps were memorised. After "
        f"{steps} steps {_percent(lost['within'])} know where they are, of those then at a memorised place "
        f"{_percent(lost['within_at_memorised'])}; {_percent(lost['within_on_own_map'])} of these are where their own "
        "map has it: what lies between the two are errors of the map. Below: single pictures. At places that were "
        "visited the first guess "
        f"is right for {_percent(looks['top1_visited'])} of {looks['visited']}, and for "
        f"{_percent(looks['top1_visited_on_own_map'])} if errors of the map itself are not counted; "
        f"{_percent(looks['false_known'])} of {looks['foreign']} pictures of other places are taken for known. Is a "
        "guess right, as it lies from what was recognised, as often as the model says? On the dashed line it is; below "
        f"it the model is too sure of itself. On average it is off by {_percent(error)} (expected calibration error, "
        f"over visited, unvisited and foreign pictures); hollow dots stand for fewer than {landmark_plots.FEW}.",
    )


def _percent(fraction: float | None) -> str:
    """A fraction in percent; a dash where there is none."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"
