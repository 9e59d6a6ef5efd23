"""Judges: verdicts on claims, answers and pairs. A verdict that could not be had is missing, never zero."""

from __future__ import annotations

from collections.abc import Sequence

from sleuth.types import AnySheet, Case, Judge, SheetJudge, Verdict


async def verdicts_on(
    sheets: Sequence[AnySheet], judge: Judge | None = None, sheet_judge: SheetJudge | None = None
) -> list[list[Verdict]]:
    """The verdicts on each sheet's cases: by one call of the `sheet_judge` per sheet, or by single calls of the
    `judge`, equal cases once. With both, the cases of sheets that lack a verdict are asked singly."""
    if sheet_judge is None:
        assert judge is not None
        return await _judged_singly(sheets, judge)
    verdicts = await sheet_judge.rate(sheets)
    lacking = [index for index, on_sheet in enumerate(verdicts) if any(one.score is None for one in on_sheet)]
    if judge is not None and lacking:
        singly = await _judged_singly([sheets[index] for index in lacking], judge)
        for index, on_sheet in zip(lacking, singly, strict=True):
            verdicts[index] = on_sheet
    return verdicts


async def _judged_singly(sheets: Sequence[AnySheet], judge: Judge) -> list[list[Verdict]]:
    cases: list[Case] = list(dict.fromkeys(case for sheet in sheets for case in sheet.cases))
    verdicts = dict(zip(cases, await judge.judge(cases) if cases else (), strict=True))
    return [[verdicts[case] for case in sheet.cases] for sheet in sheets]
