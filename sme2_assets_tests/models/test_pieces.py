from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sme2_assets.errors import ExportError
from sme2_assets.models.lowering import MOST_HELD_BYTES
from sme2_assets.models.pieces import Difference, PieceIndex, write_restored

# Few different pieces, so that programs share some, and of lengths that are worth sharing or not.
LENGTHS = (0, 1, 63, 64, 5000)
PIECES = st.lists(st.sampled_from([bytes([at]) * length for at in range(3) for length in LENGTHS]))


@given(first=PIECES, other=PIECES)
def test_a_program_is_restored_to_the_byte(
    tmp_path_factory: pytest.TempPathFactory, first: list[bytes], other: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("pieces")
    with (folder / "first").open("wb") as file:
        index = PieceIndex(file)
        for piece in first:
            index.write(piece)
    difference = Difference(index)
    for piece in other:
        difference.write(piece)
    difference.save(folder / "difference.npz")
    write_restored(folder / "first", folder / "difference.npz", folder / "other")
    assert (folder / "first").read_bytes() == b"".join(first)
    assert (folder / "other").read_bytes() == b"".join(other)


@pytest.mark.parametrize("left", [0, 10, 200])
def test_a_damaged_difference_is_refused_by_name(tmp_path: Path, left: int) -> None:
    (tmp_path / "first").write_bytes(b"")
    difference = Difference(PieceIndex(io.BytesIO()))
    difference.write(bytes(range(256)))
    path = tmp_path / "difference.npz"
    difference.save(path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ExportError, match=r"difference\.npz is damaged"):
        write_restored(tmp_path / "first", path, tmp_path / "other")


def test_what_the_first_program_has_is_not_kept_again(tmp_path: Path) -> None:
    weights = bytes(range(256)) * 4096
    index = PieceIndex(io.BytesIO())
    for piece in (b"header", weights):
        index.write(piece)
    difference = Difference(index)
    for piece in (b"another header", weights, weights):
        difference.write(piece)
    difference.save(tmp_path / "difference.npz")
    assert (tmp_path / "difference.npz").stat().st_size < 1000


@pytest.mark.thorough
def test_an_export_keeps_weights_once_on_disk_and_not_at_all_in_memory(
    python: Callable[..., str], tmp_path: Path
) -> None:
    said = python(
        "import gc, json, sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from sme2_assets.models import export\n"
        "from sme2_assets_tests.models.small import spec, variant\n"
        "wide = spec('wide', lambda: torch.nn.Linear(3072, 3072), torch.ones(1, 3072))\n"
        "made = export.export_model(wide, variant('wide'), Path(sys.argv[1]), log=lambda _: None)\n"
        "from executorch.exir.lowered_backend_module import LoweredBackendModule\n"
        "held = sum(isinstance(it, LoweredBackendModule) for it in gc.get_objects())\n"
        "print(json.dumps([str(made.directory), str(made.tapped), held]))",
        tmp_path,
    )
    directory, tapped, held = json.loads(said.splitlines()[-1])
    weights = 4 * 3072 * 3072
    assert weights > MOST_HELD_BYTES
    assert weights <= sum(path.stat().st_size for path in Path(directory).iterdir()) < 1.2 * weights
    assert Path(tapped).stat().st_size < 0.1 * weights
    assert held == 0


@pytest.mark.thorough
def test_small_programs_do_not_pile_up_in_memory(python: Callable[..., str], tmp_path: Path) -> None:
    said = python(
        "import gc, json, sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from sme2_assets.models import export, lowering\n"
        "from sme2_assets_tests.models.small import spec, variant\n"
        "from executorch.exir.lowered_backend_module import LoweredBackendModule\n"
        "lowering.MOST_HELD_BYTES //= 3\n"
        "held = []\n"
        "for width in range(1, 5):\n"
        "    small = spec(f'small{width}', lambda: torch.nn.Linear(8, width), torch.ones(1, 8))\n"
        "    export.export_model(small, variant(small.name), Path(sys.argv[1]), log=lambda _: None)\n"
        "    held.append(sum(isinstance(it, LoweredBackendModule) for it in gc.get_objects()))\n"
        "print(json.dumps(held))",
        tmp_path,
    )
    held = json.loads(said.splitlines()[-1])
    assert held[0] > 0
    assert max(held) <= 2 * held[0]
