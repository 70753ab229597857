"""Choosing models in a browser: by name, by hub id, by folder; of every family; and what is said where it cannot be."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

from tests.conftest import Checkpoint
from tests.e2e.conftest import Visitor

Visit = Callable[..., Visitor]
MINILM = "/?model=minilm-l6&text=hello+world"


def usable(visitor: Visitor) -> None:
    """The page goes on with the model it had."""
    with visitor.new_trace():
        visitor.choose_model("SmolLM2 135M Instruct")
    expect(visitor.error).to_have_count(0)
    expect(visitor.page.get_by_text("30 layers × 9 heads")).to_be_visible()


# ---- an encoder, and pairs


def test_minilm_has_its_own_heads_and_a_second_sentence_which_smollm2_has_not(visit: Visit) -> None:
    visitor = visit()
    expect(visitor.second).to_have_count(0)
    with visitor.new_trace():
        visitor.choose_model("MiniLM L6")
    expect(visitor.page.get_by_text("6 layers × 12 heads", exact=True)).to_be_visible()
    expect(visitor.tokens().first).to_have_text("[CLS]")
    expect(visitor.second).to_be_visible()
    expect(visitor.page.get_by_text("Second sentence (optional)")).to_be_visible()
    expect(visitor.view.get_by_text("blocked by the mask")).to_be_hidden()
    with visitor.new_trace():
        visitor.choose_model("SmolLM2 135M Instruct")
    expect(visitor.second).to_have_count(0)
    expect(visitor.page.get_by_text("30 layers × 9 heads")).to_be_visible()


def test_a_pair_is_two_sentences_an_empty_text_is_none_and_a_long_one_is_cut(visit: Visit) -> None:
    visitor = visit(MINILM)
    with visitor.new_trace():
        visitor.second.fill("how are you")
    expect(visitor.tokens()).to_have_text("[CLS] hello world [SEP] how are you [SEP]".split())
    expect(visitor.error).to_have_count(0)
    with visitor.new_trace():
        visitor.second.fill("")
    expect(visitor.tokens()).to_have_text("[CLS] hello world [SEP]".split())
    with visitor.new_trace():
        visitor.sentence.fill("")
    expect(visitor.tokens()).to_have_text(["[CLS]", "[SEP]"])
    expect(visitor.note).to_contain_text(
        "There is no word in this text, so the model sees only its own special tokens: [CLS] [SEP]"
    )
    with visitor.new_trace():
        visitor.sentence.fill("word " * 600)
    expect(visitor.note).to_have_text(
        re.compile(r"^This text is 602 tokens; MiniLM L6 is shown 512 of them, the limit here\.")
    )
    expect(visitor.map).to_have_accessible_name(re.compile("512 queries by 512 keys"))
    expect(visitor.tokens()).to_have_count(512)
    expect(visitor.tokens().last).to_have_text("[SEP]")


def test_a_typed_separator_is_named_and_the_second_sentence_starts_where_it_did(visit: Visit) -> None:
    visitor = visit(MINILM)
    with visitor.new_trace():
        visitor.sentence.fill("hello [SEP] world")
    with visitor.new_trace():
        visitor.second.fill("how are you")
    expect(visitor.note).to_have_text("Read as special tokens, not as text: [SEP]")
    expect(visitor.tokens()).to_have_text("[CLS] hello [SEP] world [SEP] how are you [SEP]".split())
    typed = visitor.view.locator(".tv-tokens .typed")
    expect(typed).to_have_text(["[SEP]"])
    assert visitor.tokens().nth(2).evaluate("one => one.classList.contains('typed')")


def test_a_pair_typed_for_an_encoder_does_not_lock_out_a_decoder(visit: Visit) -> None:
    visitor = visit(MINILM)
    with visitor.new_trace():
        visitor.second.fill("how are you")
    visitor.choose_model("SmolLM2 135M Instruct")
    expect(visitor.page.get_by_text("30 layers × 9 heads").or_(visitor.error)).to_be_visible()
    if visitor.error.count():  # then the person must be able to do what it says
        expect(visitor.second).to_be_visible()
        visitor.second.fill("")
    expect(visitor.page.get_by_text("30 layers × 9 heads")).to_be_visible()
    expect(visitor.error).to_have_count(0)


# ---- models that cannot be had


def test_a_hub_model_that_is_not_on_disk_is_one_sentence_and_the_picture_stays(visit: Visit) -> None:
    visitor = visit()
    with visitor.same_picture():
        visitor.choose_model("GPT-2 · 12×12")
        expect(visitor.error).to_have_text("“gpt2” is not on disk, and the model hub cannot be reached.")
        visitor.grid.press("ArrowUp")  # the picture that stayed is alive
        expect(visitor.view).to_have_attribute("data-painted", re.compile("/12/8$"))
        visitor.grid.press("ArrowDown")
    usable(visitor)


ODD = {
    "../..": "“../..” has no readable config.json, so it is not a Transformers model.",
    "no/such/model/anywhere": re.compile("^“no/such/model/anywhere” is not a model name; write something like"),
    "/no/such/folder": "There is no folder or file “/no/such/folder”.",
    "x" * 5000: re.compile("^“x{59}…” is not a model name"),
    "<script>alert(1)</script>": re.compile("^“<script>alert\\(1\\)</script>” is not a model name"),
    "</script><script>alert(1)</script> <b>&\"'": re.compile(
        "^“</script><script>alert\\(1\\)</script> <b>&\"'” is not a"
    ),
    "法国的首都": re.compile("^“法国的首都” is not a model name"),
}


def test_odd_model_names_are_refused_in_one_sentence_each(visit: Visit) -> None:
    visitor = visit()
    elements = visitor.page.locator("#tv-page :is(script, b, img)")
    before = elements.count()
    with visitor.same_picture():
        for name, sentence in ODD.items():
            visitor.type_model(name)
            expect(visitor.error).to_have_text(sentence)
            expect(visitor.error).not_to_contain_text("Traceback")
        assert elements.count() == before
        assert not visitor.page.get_by_text("Traceback").count()
    usable(visitor)


def test_a_folder_with_only_pickled_weights_is_refused_and_nothing_is_opened(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer.json").write_text("{}")

    class Harm:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "opened",))

    torch.save({"weights": Harm()}, tmp_path / "pytorch_model.bin")
    visitor = visit()
    with visitor.same_picture():
        visitor.type_model(str(tmp_path))
        expect(visitor.error).to_contain_text("only pickled weights (.bin, .pt)")
    assert not (tmp_path / "opened").exists()
    usable(visitor)


# ---- models of the person's own


@pytest.mark.parametrize(
    ("name", "grid"), [("gpt2", "2 layers × 4 heads"), ("mistral", "3 layers × 4 heads · 2 per key/value")]
)
def test_a_local_decoder_is_shown_by_its_folder(visit: Visit, checkpoint: Checkpoint, name: str, grid: str) -> None:
    visitor = visit()
    with visitor.new_trace():
        visitor.type_model(str(checkpoint(name)))
    expect(visitor.page.get_by_text(grid, exact=True)).to_be_visible()
    expect(visitor.error).to_have_count(0)
    expect(visitor.view.locator(".tv-badges .warn")).to_have_count(0)
    assert "".join(visitor.tokens().all_inner_texts()).startswith("The")
    visitor.measured()
    expect(visitor.settings).to_have_text(["flash · FP32"])
    usable(visitor)


def test_a_sliding_window_blocks_what_lies_further_back(visit: Visit, checkpoint: Checkpoint) -> None:
    visitor = visit()
    with visitor.new_trace():
        visitor.type_model(str(checkpoint("mistral")))
    last = visitor.tokens().count() - 1
    visitor.map.press("ControlOrMeta+End")
    for back, blocked in ((0, False), (3, False), (4, True)):
        visitor.map.press("End")
        for _ in range(back):
            visitor.map.press("ArrowLeft")
        expect(visitor.readout).to_contain_text(f"({last}) → ")
        expect(visitor.readout).to_contain_text(f"({last - back}): ")
        assert ("blocked" in visitor.readout.inner_text()) is blocked


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_an_encoder_decoder_has_two_token_lists_and_three_kinds(
    visit: Visit, checkpoint: Checkpoint, name: str
) -> None:
    visitor = visit(f"/?text=the+cat&model={checkpoint(name)}")
    source, written = visitor.tokens("attention.source"), visitor.tokens("attention.target_written")
    expect(written.first).to_be_visible()
    for kind, grid, rows, columns in (
        ("Cross-attention", "2 layers × 4 heads", written, source),
        ("Encoder", "3 layers × 4 heads", source, source),
        ("Decoder", "2 layers × 4 heads", written, written),
    ):
        visitor.radio(kind).click()
        expect(visitor.radio(kind)).to_be_checked()
        expect(visitor.page.get_by_text(grid, exact=True)).to_be_visible()
        expect(visitor.map).to_have_accessible_name(re.compile(f"{rows.count()} queries by {columns.count()} keys"))
    expect(visitor.page.get_by_text("Target sentence (the model writes one if empty)")).to_be_visible()
    with visitor.new_trace():
        visitor.second.fill("a dog")
    expect(visitor.tokens("attention.target").first).to_be_visible()
    assert "dog" in "".join(visitor.tokens("attention.target").all_inner_texts())
    visitor.measured()
