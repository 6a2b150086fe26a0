"""What goes into a pipeline of transformers and what comes out, as far as texts tell."""

from __future__ import annotations

import pytest

from lightning_hangcheck.hooks.zero_code.hugging_face import answers_of, prompts_of
from lightning_hangcheck.hooks.zero_code.wrapping import Call


class Pipeline:
    """Has what every pipeline has."""

    task = "text-generation"

    def __init__(self, model: object) -> None:
        self.model = model


def call(*arguments: object, **named: object) -> Call:
    return Call(Pipeline(3), arguments, named)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (call("one"), ["one"]),
        (call(["one", "two"]), ["one", "two"]),
        (call(text_inputs=("one",)), ["one"]),
        (call(inputs="one"), ["one"]),
        (call([{"role": "user", "content": "one"}]), None),
        (call(images=["cat.png"]), None),
        (call(), None),
    ],
)
def test_only_texts_are_counted(given: Call, texts: list[str] | None) -> None:
    assert prompts_of(given) == texts


def test_nothing_is_taken_out_of_a_generator() -> None:
    texts = iter(["one", "two"])
    assert prompts_of(call(texts)) is None
    assert list(texts) == ["one", "two"]


def test_answers_are_told_without_their_prompts() -> None:
    one = [{"generated_text": "once upon"}, {"generated_text": "once more"}]
    assert answers_of(one, ["once"]) == [" upon", " more"]
    several = [[{"generated_text": "one a"}], [{"generated_text": "b"}]]
    assert answers_of(several, ["one", "two"]) == [" a", "b"]


def test_other_tasks_have_no_answers() -> None:
    assert answers_of([{"label": "POSITIVE", "score": 0.9}], ["good"]) == []
    assert answers_of(iter([]), ["good"]) == []
    assert answers_of([], ["good"]) == []
    assert answers_of([{"generated_text": [{"role": "assistant"}]}], ["good"]) == []
