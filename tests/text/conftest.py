import json
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import text_lib as lib  # noqa: E402
from small_tokenizer import CONFIG, SMALL  # noqa: E402


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2):
    """The demo model's tokenizer, opened once: its vocabulary is prepared for grammars once, too."""
    import llmc

    with llmc.Tokenizer(smollm2) as t:
        yield t


@pytest.fixture
def chat(tmp_path):
    """chat(template, messages, **options): the library's rendering."""
    (tmp_path / "tokenizer.json").write_text(json.dumps(SMALL))

    opened = {}

    def render(source, messages, **options):
        if source not in opened:
            (tmp_path / "tokenizer_config.json").write_text(
                json.dumps({**CONFIG, "chat_template": source})
            )
            opened[source] = lib.Tokenizer(tmp_path)
        return opened[source].chat(messages, **options)

    yield render
    for tok in opened.values():
        tok.close()
