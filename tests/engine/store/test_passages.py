"""Lines that can be asked for, passages that can be found."""

from hypothesis import given
from hypothesis import strategies as st

from eunoe.store.passages import LONGEST_LINE, PASSAGE_CHARACTERS, lines_of, passages_of

LINES = st.lists(st.one_of(st.text(max_size=60), st.text("ab \n", max_size=3000)), max_size=60)


@given(LINES.map("\n".join))
def test_lines_and_passages_hold_the_whole_text(text):
    lines = lines_of(text)
    assert "".join(lines) == text.replace("\n", "")
    assert all(len(line) <= LONGEST_LINE for line in lines)
    passages = list(passages_of(lines))
    covered = {number for p in passages for number in range(p.first, p.last + 1)}
    assert {number for number, line in enumerate(lines, 1) if line.strip()} <= covered
    assert sum(p.last - p.first + 1 for p in passages) == len(covered)
    for passage in passages:
        assert passage.text == "\n".join(lines[passage.first - 1 : passage.last])
        assert len(passage.text) <= PASSAGE_CHARACTERS + LONGEST_LINE


def test_one_line_of_json_is_several_lines():
    assert [len(line) for line in lines_of("x" * 2500)] == [1000, 1000, 500]
