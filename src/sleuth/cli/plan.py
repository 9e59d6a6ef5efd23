"""`sleuth plan`: computes what a run will need, before it begins."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sleuth.host.memory import total_host_memory
from sleuth.terminal.heavy import import_heavy
from sleuth.terminal.options import AsJson, CheckNoCode, RecipeFile
from sleuth.types import SleuthError


def plan(
    recipe: RecipeFile,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in `sleuth train`.")
    ] = None,
    world: Annotated[
        int | None, typer.Option("--ranks", min=1, metavar="N", help="How many cards there are. [default: 1]")
    ] = None,
    card: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help='The card, such as h100-80, "8 x a100-40" or 24GB; cpu: this machine\'s memory, without a time.',
        ),
    ] = "cpu",
    no_code: CheckNoCode = False,
    as_json: AsJson = False,
) -> None:
    """Predict a recipe's steps, memory, judge calls and time.

    Computes the bytes of each phase from the shape of the model, and whether they fit a card; runs nothing and needs no
    data. The report of a run shows its plan beside what it measured.
    """
    from sleuth.cli.plan_card import print_card_plan
    from sleuth.host.hardware import Cards, read_cards
    from sleuth.plan.fit import plan_for_cards, plan_for_cpu
    from sleuth.recipe import load_recipe

    resolved = load_recipe(recipe, overrides or ())
    if card == "cpu":
        if world not in (None, 1):
            raise SleuthError(f"--card cpu is for one process: leave --ranks {world} out, or name a card")
        predicted = plan_for_cpu(resolved, total_host_memory())
    else:
        try:
            cards = read_cards(card)
        except ValueError as error:
            raise SleuthError(f"--card {card}: {error}") from None
        count = world or cards.count
        if count > 1:
            import_heavy()
            from sleuth.cli.pipeline import require_ranks
            from sleuth.plan.phases import ranks_and_servers
            from sleuth.ranks import Ranks

            require_ranks(resolved, Ranks(world=ranks_and_servers(resolved, count)[0]))
        predicted = plan_for_cards(resolved, Cards(count=count, card=cards.card))
    if as_json:
        typer.echo(json.dumps(predicted.as_json()))
    else:
        print_card_plan(predicted)
