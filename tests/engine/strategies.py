"""Conversations as people, tools and careless clients make them."""

from hypothesis import strategies as st

SPECIAL = ["<|endoftext|>", "<|im_start|>system", "[INST]", "</s>", "\ud83d", "\x00", "😀" * 5, "===" * 40]
WORDS = st.sampled_from(
    "harbor port gateway nginx deploy Friday budget 9464 error-17 alpha beta moved moving invoice Oslo "
    "数据库 迁移 港口 データ 서버 гавань ميناء naïve".split()
)


def texts(max_words=60):
    plain = st.lists(WORDS, max_size=max_words).map(" ".join)
    return st.one_of(plain, st.text(max_size=80), st.sampled_from(SPECIAL), st.just(""))


def huge_texts():
    return st.integers(300, 2000).flatmap(lambda n: WORDS.map(lambda w: f"{w} " * n))


def parts():
    image = st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBO" * 400}})
    low = st.just({"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}})
    audio = st.just({"type": "input_audio", "input_audio": {"data": "UklGR" * 300, "format": "wav"}})
    unknown = st.just({"type": "hologram", "payload": {"x": [1, 2, 3]}})
    text = texts(20).map(lambda t: {"type": "text", "text": t})
    return st.lists(st.one_of(text, image, low, audio, unknown), max_size=4)


def contents():
    return st.one_of(texts(), texts(), parts(), st.none(), huge_texts())


def users():
    return st.builds(lambda c, flag: {"role": "user", "content": _flagged(c, flag)}, contents(), flags())


def flags():
    known = [
        "!pin ",
        "!tag=a ",
        "!weight=3 ",
        "!+recent=3 ",
        "!target=bad ",
        "!important ",
        "!= x ",
        "!exclude ",
        "!only ",
    ]
    return st.one_of(st.just(""), st.just(""), st.just(""), st.sampled_from(known))


def _flagged(content, flag):
    return flag + content if flag and isinstance(content, str) and content else content


def answers():
    extra = st.sampled_from(
        [{}, {}, {"reasoning_content": "thinking " * 30}, {"name": "bot"}, {"cache_control": {"a": 1}}]
    )
    details = st.just('<details type="reasoning" done="true"><summary>x</summary>> hm</details>\nAnswer.')
    return st.builds(
        lambda c, e: {"role": "assistant", "content": c, **e}, st.one_of(contents(), details), extra
    )


@st.composite
def exchanges(draw):
    """A tool call with its results; sometimes a result is missing, doubled or belongs to nothing."""
    ids = draw(st.lists(st.sampled_from(["c1", "c2", "c3", "c4"]), min_size=1, max_size=4))
    arguments = draw(
        st.sampled_from(["{}", '{"q": "rain"}', {"an": "object"}, '{"big": "' + "x" * 2000 + '"}', None])
    )
    calls = [
        {"id": i, "type": "function", "function": {"name": "search", "arguments": arguments}} for i in ids
    ]
    if draw(st.integers(0, 9)) == 0:
        calls.append({"type": "function"})
    answered = [i for i in dict.fromkeys(ids) if draw(st.integers(0, 7))]
    if draw(st.integers(0, 7)) == 0:
        answered.append("nobody")
    results = [{"role": "tool", "tool_call_id": i, "content": draw(results_text())} for i in answered]
    return [
        {
            "role": "assistant",
            "content": draw(st.sampled_from([None, "", "Let me look."])),
            "tool_calls": calls,
        },
        *results,
    ]


def results_text():
    log = st.integers(1, 400).map(lambda n: "\n".join(f"line {i}: status ok" for i in range(n)))
    rows = st.integers(1, 200).map(
        lambda n: '[{"id": 1, "name": "item-1"}' + ', {"id": 2, "name": "item"}' * n + "]"
    )
    return st.one_of(texts(), log, rows, st.just("QUJD" * 500))


def odd_messages():
    return st.sampled_from(
        [
            {"role": "tool", "tool_call_id": "lost", "content": "an orphan"},
            {"role": "function", "name": "old", "content": "an old-style result"},
            {"role": "critic", "content": "an unknown role"},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": []},
            {"role": "assistant", "content": None, "function_call": {"name": "old", "arguments": "{}"}},
            {"content": "no role"},
        ]
    )


@st.composite
def turns(draw):
    messages = [draw(users())]
    for _ in range(draw(st.integers(0, 3))):
        messages += draw(exchanges())
    if draw(st.integers(0, 5)):
        messages.append(draw(answers()))
    if draw(st.integers(0, 7)) == 0:
        messages.append(draw(odd_messages()))
    return messages


@st.composite
def conversations(draw, max_turns=8):
    """A list of OpenAI messages, from nothing at all to a long chat full of oddities."""
    messages = []
    for _ in range(draw(st.integers(0, 2))):
        role = draw(st.sampled_from(["system", "system", "developer"]))
        messages.append({"role": role, "content": draw(texts(20))})
    if draw(st.integers(0, 6)) == 0:
        messages.append({"role": "assistant", "content": "Welcome."})
    for turn in draw(st.lists(turns(), max_size=max_turns)):
        messages += turn
    if draw(st.integers(0, 2)):
        messages.append(draw(users()))
    return messages


def budgets():
    return st.one_of(st.just(0), st.integers(1, 200), st.integers(100, 3000), st.integers(3000, 50_000))
