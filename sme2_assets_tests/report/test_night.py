"""What a night says about slow-downs: each of them, of which series, and whose it is."""

from __future__ import annotations

from collections.abc import Callable

import dagster as dg
import pytest
from click.testing import CliRunner

from sme2_assets.cli import main
from sme2_assets.defs.checks import no_regression
from sme2_assets.defs.resources import Lab
from sme2_assets.report.night import open_regressions
from sme2_assets.report.overview import overview_document, overview_rows
from sme2_assets.report.tables import TextTable, history_table, regression_table
from sme2_assets.warehouse import Warehouse

# By how much each setting of the model in the zoo became slower.
STEPS = {"": "4.0", "CPUs 0-3": "3.5", "power mode app": "3.0", "method decode": "2.5"}


@pytest.fixture(scope="module")
def settings(zoo: Callable[[str], Warehouse]) -> Warehouse:
    return zoo("settings_of_a_model_that_became_slower")


def test_every_setting_of_a_model_that_became_slower_is_told_of(settings: Warehouse):
    found = settings.query("SELECT run_id, ratio FROM regressions ORDER BY ratio DESC")
    texts = list(open_regressions(settings).values())
    assert len(found) == len(STEPS)
    assert all(f"{ratio - 1:.1%} slower" in text for ratio, text in zip(found["ratio"], texts, strict=True))
    for setting, text in zip(STEPS, texts, strict=True):
        assert [each for each in STEPS if each and each in text] == [setting] * bool(setting)
    result = no_regression(Lab(data_root=str(settings.root.parent)))
    assert isinstance(result, dg.AssetCheckResult)
    assert not result.passed
    told = f"{result.description} {result.metadata}"
    assert all(run_id in told for run_id in found["run_id"])


def test_tables_name_the_setting_of_each_series(settings: Warehouse):
    history = settings.query("SELECT * FROM history WHERE category = 'latency'")
    found = settings.query("SELECT * FROM regressions")
    for table in (history_table(history), regression_table(found)):
        assert set(column(table, "setting")) == {"-", *filter(None, STEPS)}
    overview = overview_document(settings, overview_rows(settings), lambda row: None)
    [grid] = [block.table for block in overview.sections[0].blocks if hasattr(block, "table")]
    assert sorted(column(grid, "threads")) == sorted(f"1, {each}" if each else "1" for each in STEPS)


def test_the_command_shows_one_series_after_the_other(settings: Warehouse):
    done = CliRunner().invoke(main, ["--data", str(settings.root.parent), "history", "slower-fp32"])
    assert done.exit_code == 0, done.output
    history = done.output.partition("since")[0]
    places = [
        next((each for each in STEPS if each and each in line), "") for line in history.splitlines()[1:]
    ]
    runs = [here for here, before in zip(places, ["?", *places], strict=False) if here != before]
    assert sorted(filter(None, runs)) == sorted(filter(None, STEPS))


def test_where_no_series_has_a_setting_there_is_no_column_for_it(zoo: Callable[[str], Warehouse]):
    warehouse = zoo("series_of_a_device_that_became_slower")
    assert "setting" not in history_table(warehouse.query("SELECT * FROM history")).header
    assert "setting" not in regression_table(warehouse.query("SELECT * FROM regressions")).header


@pytest.mark.thorough
def test_precisions_of_one_model_are_no_other_models(zoo: Callable[[str], Warehouse]):
    warehouse = zoo("precisions_of_a_model_that_became_slower")
    found = warehouse.query("SELECT others_watched, others_slower FROM regressions")
    assert len(found) == 5
    assert (found == 0).all(axis=None)
    texts = open_regressions(warehouse).values()
    assert len(texts) == 5
    assert not any("device" in text or "other models" in text for text in texts)


def test_models_that_share_a_slow_down_are_counted_without_their_precisions(zoo: Callable[[str], Warehouse]):
    [text] = open_regressions(zoo("series_of_a_device_that_became_slower")).values()
    assert "4 series of 4 models" in text


def column(table: TextTable, name: str) -> list[str]:
    return [row[table.header.index(name)] for row in table.rows]
