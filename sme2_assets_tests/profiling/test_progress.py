from __future__ import annotations

import pytest

from sme2_assets.profiling.progress import Progress


@pytest.mark.parametrize("steps", [1, 5])
def test_what_is_done_grows_from_nothing_to_all(steps: int):
    told: list[float] = []
    said: list[str] = []
    progress = Progress(2, said.append, told.append)
    for index in range(2):
        progress.begin(index, steps)
        for done in range(1, 4):
            progress.log(f"toy_cnn-fp32 on linux: round {done} of 2 or more")
        for _ in range(steps):
            progress.step()
    assert told == sorted(told)
    assert (told[0], told[-1]) == (0.0, 1.0)
    assert 0.5 in told, "the second begins where the first ended"
    assert len(said) == 6
