"""What commands print about names that clients gave."""

from __future__ import annotations

import pytest

from llmrouter.cli.output import print_table


def test_a_name_in_a_table_can_neither_steer_the_terminal_nor_look_like_a_row(capsys: pytest.CaptureFixture[str]):
    print_table(("USER", "N"), [("\x1b]0;pwned\x07", "1"), ("a\nTOTAL  9", "2"), ("b\u202ec", "3"), ("jörg", "4")])
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["USER", "N"]
    assert [row.split("  ")[0].strip() for row in rows] == ["\\x1b]0;pwned\\x07", "a\\nTOTAL", "b\\u202ec", "jörg"]
