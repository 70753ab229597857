"""The beam search's data step: what is sent is the tree, and each badge turns red when a number lies."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import Loaded
from tests.ui.test_generate_lens import scene
from tfviz.introspection.beams import Found, Node, Tree, beam_steps
from tfviz.messages import LANGUAGES
from tfviz.ui.components.picture import Picture, payload
from tfviz.ui.i18n import Translator
from tfviz.ui.tabs.generate import beams as tab

EN = Translator("en")


def hand_made() -> Tree:
    """Two beams, two steps: "a c" ends, "a b" stays open; "x" was cut at the first step, "b x" at the second."""
    nodes = (
        Node(0, -1, 0, 9, "go", 0.0, 0.0, "kept", 0, False),
        Node(1, 0, 1, 1, "a", -0.5, -0.5, "kept", 0, False),
        Node(2, 0, 1, 2, "b", -1.5, -1.5, "kept", 1, False),
        Node(3, 0, 1, 3, "<x>", -2.0, -2.0, "dropped", 2, False),
        Node(4, 1, 2, 0, "</s>", -0.25, -0.75, "ended", 0, True),
        Node(5, 1, 2, 2, "b", -1.0, -1.5, "kept", 1, False),
        Node(6, 2, 2, 1, "a", -0.5, -2.0, "kept", 2, False),
        Node(7, 2, 2, 3, "<x>", -1.5, -3.0, "dropped", 3, False),
    )
    found = (Found(4, (1, 0), "a", -0.75, -0.375, True), Found(5, (1, 2), "a<b>\nb", -1.5, -0.75, False))
    greedy = replace(found[0], node=-1)
    return Tree(2, 1.0, 2, 2, nodes, found, "max_new_tokens", greedy, (-0.75, -1.5))


def red(tree: Tree, precision: str = "fp32") -> list[int]:
    return [i for i, badge in enumerate(tab.badges(tree, EN, precision)) if badge.ok is False]


def swapped(tree: Tree, i: int, **change: Any) -> Tree:
    return replace(tree, nodes=tuple(replace(node, **change) if node.id == i else node for node in tree.nodes))


def sent(picture: Picture) -> dict[str, Any]:
    return json.loads(json.dumps(payload(picture), allow_nan=False))["panels"][0]["data"]


def test_what_is_sent_is_the_tree() -> None:
    data = sent(tab.picture(hand_made(), EN))
    assert data["parents"] == [-1, 0, 0, 0, 1, 1, 2, 2] and data["columns"] == [0, 1, 1, 1, 2, 2, 2, 2]
    assert data["states"] == [0, 0, 0, 1, 2, 0, 0, 1] and data["found"] == [4, 5]
    assert data["totals"][4:6] == [-0.75, -1.5] and data["ranks"][1:4] == [1, 2, 3] and data["stopped"]


def test_texts_are_ranked_escaped_and_their_lines_visible() -> None:
    html = tab.picture(hand_made(), EN).panels[1].html
    assert "a&lt;b&gt;⏎b" in html and "<b>" not in html
    assert html.index("1. a") < html.index("2. a&lt;b&gt;") < html.index("Greedy: a")
    assert "-0.7500" in html and "-0.3750" in html and "47.2 %" in html


def test_every_check_holds_and_turns_red_when_a_number_lies() -> None:
    tree = hand_made()
    assert red(tree) == []
    best = tree.found[0]
    assert 0 in red(swapped(tree, 5, total=-1.4))
    assert 0 in red(replace(tree, found=(replace(best, score=-0.3), tree.found[1])))
    assert 1 in red(swapped(tree, 3, total=-1.0, log_prob=-1.0))  # more probable than what stayed
    assert 1 in red(replace(tree, found=tree.found[::-1]))
    assert 1 in red(replace(tree, found=(replace(best, ids=(2, 0)), tree.found[1])))
    assert 2 in red(replace(tree, forced=(-0.9, -1.5)))
    one = replace(tree, n_beams=1, nodes=tree.nodes[:2] + tree.nodes[4:5])
    one = replace(
        one, nodes=(*one.nodes[:2], replace(one.nodes[2], id=2)), found=(replace(best, node=2),), forced=(-0.75,)
    )
    assert red(one) == []
    assert tree.greedy is not None
    assert 3 in red(replace(one, greedy=replace(tree.greedy, ids=(2, 0))))


def test_an_end_token_beyond_the_best_n_is_no_wrong_cut() -> None:
    tree = hand_made()
    late = swapped(tree, 7, ends=True, total=-1.6, log_prob=-0.1)
    assert red(late) == [] and 1 in red(swapped(late, 7, ends=False))


def test_a_greedy_text_that_is_more_probable_is_said_and_no_failure() -> None:
    tree = hand_made()
    assert tree.greedy is not None
    better = replace(tree, greedy=replace(tree.greedy, ids=(2, 2), log_prob=-0.1))
    assert tab.badges(better, EN, "fp32")[3].ok is None
    assert "promises nothing" in tab.picture(better, EN).panels[1].note
    worse = replace(tree, greedy=replace(tree.greedy, ids=(2, 2), log_prob=-1.0))
    assert "0.250 nats more" in tab.picture(worse, EN).panels[1].note
    assert "changed nothing" in tab.picture(tree, EN).panels[1].note


def test_a_search_under_way_claims_nothing_yet() -> None:
    growing = replace(hand_made(), limit=4, stopped=None, greedy=None, forced=())
    drawn = tab.picture(growing, EN)
    assert drawn.part == 0.5 and not drawn.badges and not sent(drawn)["stopped"]


def test_a_search_that_ran_out_of_positions_says_so() -> None:
    drawn = tab.picture(replace(hand_made(), stopped="max_positions"), EN)
    assert "2 more tokens" in drawn.notes[0]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", ["llama", "t5"])
@pytest.mark.parametrize("n_beams", [1, 4])
def test_real_searches_are_drawn_and_every_check_holds(loaded: Loaded, name: str, language: str, n_beams: int) -> None:
    model = loaded(name)
    *_, tree = beam_steps(model, model.prompt("the cat saw the other cat"), n_beams, 5, 1.0)
    assert red(tree) == []
    drawn = tab.picture(tree, Translator(language))
    assert len(drawn.badges) == 4 and len(json.dumps(payload(drawn), allow_nan=False)) < 200_000


def test_a_search_is_made_once_with_the_numbers_that_are_allowed(loaded: Loaded) -> None:
    looking = scene(loaded, "llama")
    first, again = list(tab.draw(looking, 3.0, 4.0, 0.5)), list(tab.draw(looking, 3, 4, 0.5))
    assert looking.bench.runs == 1 and len(again) == 1 and first[-1].badges == again[0].badges
    list(tab.draw(looking, 99, 0, 7))
    (_, n_beams, steps, penalty, kernel) = list(looking.bench.found)[-1]
    assert (n_beams, steps, penalty, kernel) == (8, 1, 2.0, "naive")


def test_a_search_that_nobody_waits_for_is_not_kept(loaded: Loaded) -> None:
    looking = scene(loaded, "llama")
    looking.bench.stops = True
    assert list(tab.draw(looking, 2, 3, 0)) == [] and not looking.bench.found
