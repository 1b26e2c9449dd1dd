"""What the tests say of packages that are not installed."""

import pytest
from optional import needed


def test_what_is_missing_is_a_skip_and_where_everything_must_run_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    needed(("json", "pytest"), "x")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"need no_such_module: pip install 'spanfold\[x\]'"):
        needed(("json", "no_such_module"), "spanfold[x]")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="need no_such_module"):
        needed(("no_such_module",), "spanfold[x]")
