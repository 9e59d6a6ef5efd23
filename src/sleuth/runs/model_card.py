"""README.md of a checkpoint, written from the run: no figure in it was typed by a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from shlex import quote
from typing import Any

from sleuth import __version__
from sleuth.data.hub import HubLocation
from sleuth.dialect import Dialect
from sleuth.episodes.protocol import AGENT, OwnCode, ProtocolCard
from sleuth.host.atomic import write_text
from sleuth.host.cards import NO_CARD, RepositoryCard, card_of
from sleuth.recipe import Recipe, StageFields
from sleuth.recipe.draft import emit_value
from sleuth.recipe.envs import environment_of
from sleuth.runs.checkpoints import CARD
from sleuth.runs.eval_file import COLUMNS, mark_rows
from sleuth.runs.manifest import flat

LOOP = "The search loop is not part of it: it writes turns, and whoever calls it runs the searches."
RIGHTS = "## Licence and citations"
NOTE = "## Certificate"

Tables = Sequence[Sequence[tuple[str, ...]]]
"""Tables as text: the heading of each and its rows."""


def model_card(
    recipe: Recipe,
    *,
    stage: int,
    step: int,
    checkpoint: Path,
    protocol: ProtocolCard | None,
    measured: Tables,
    overlaps: Sequence[Mapping[str, Any]] = (),
    judges: Iterable[Mapping[str, Any]] = (),
) -> str:
    """The card of `step` of the recipe's stage number `stage`. If nothing was `measured` yet, the card says so.

    `overlaps` are the manifest's: how many questions of an evaluation are also trained on. `judges` are the cards of
    the run's judges.
    """
    trained = recipe.stage[stage]
    base = NO_CARD if _from_scratch(recipe) else card_of(recipe.model)
    stages = trained_stages(recipe, stage)
    data = [HubLocation.read(place) for place in _data_of(stages)]
    datasets = [location.repository for location in data if location is not None]
    tags, marks = ("sleuth", trained.kind, *method_tags(stages)), mark_rows(judges)
    lines = [
        *_front_matter(_base_on_the_hub(recipe), base, tags, datasets),
        *(f"# {recipe.name}, step {step} of stage `{trained.name}`", ""),
        *(f"Trained with Sleuth {__version__} {_origin(recipe, stage)}.", ""),
        *("## Measured", "", *_measured(measured), "", *_bounds(measured, overlaps), ""),
        *(["## Judges, by their exam", "", *_table(COLUMNS, marks), ""] if marks else ()),
        *("## How to run it", "", *_how_to_run(checkpoint, protocol, trained), ""),
        *("## Training", "", *_table(("key", "value"), _settings(recipe, trained, step)), ""),
    ]
    if protocol is not None:
        lines += ["## Protocol", "", *protocol_section(protocol), ""]
    lines += ["## Data", "", *_data_table(recipe, stages), ""]
    return "\n".join([*lines, RIGHTS, "", *_rights(recipe, base, method_citations(stages)), ""])


def converted_card(checkpoint: Path, *, source: Path, protocol: ProtocolCard, recipe: Recipe | None) -> str:
    """The card of a checkpoint that was converted from another trainer's `source`. Its protocol is that of `recipe`, if
    one was named; its training was not observed."""
    base = card_of(recipe.model) if recipe else NO_CARD
    stages = trained_stages(recipe, len(recipe.stage) - 1) if recipe else []
    given = f"as in the recipe `{recipe.name}`" if recipe else "by its `protocol.json`"
    rights = (
        [f"The recipe starts from `{recipe.model}`.", *_rights(recipe, base, method_citations(stages))]
        if recipe
        else ["Not stated: the base of this model was not named when it was converted."]
    )
    lines = [
        *_front_matter(_base_on_the_hub(recipe) if recipe else None, base, ("sleuth", *method_tags(stages))),
        *(f"# {checkpoint.resolve().name}", ""),
        f"Converted with Sleuth {__version__} from `{source}`, the checkpoint of another trainer. Its protocol was "
        f"given then, {given}. Its training was not observed, and nothing has been measured.",
        *("", "## How to run it", "", *_how_to_run(checkpoint, protocol, None), ""),
        *("## Protocol", "", *protocol_section(protocol), ""),
        *(RIGHTS, "", *rights, ""),
    ]
    return "\n".join(lines)


def gguf_card(file: Path, *, source: Path, dtype: str, protocol: ProtocolCard | None, context: int) -> str:
    """The text of the card of `file`, which was written from the checkpoint `source`; a text is `context` tokens at
    most. Licence and citations are those of the checkpoint's own card."""
    lines = [
        *(f"# {file.stem}", ""),
        f"`{file.name}`: the model of `{source}` as a GGUF file, with weights in {dtype}, written with Sleuth "
        f"{__version__}.",
        *("", LOOP, "", "## How to run it", "", "llama.cpp:", ""),
        *("```", f"llama-server -m {file.name} -c {context}", "```", ""),
        *("Ollama, with a `Modelfile` and `ollama create NAME -f Modelfile`:", ""),
        *("```", *modelfile(file, protocol, context), "```", ""),
        *_client_of_gguf(protocol),
    ]
    if protocol is not None:
        lines += ["", "## Protocol", "", *protocol_section(protocol)]
    return "\n".join([*lines, "", RIGHTS, "", *_rights_beside(source), ""])


def note_on_card(model: Path, sentence: str) -> None:
    """Puts a sentence at the end of the card of a model's folder, in place of the last one."""
    card = model / CARD
    text = card.read_text(encoding="utf-8") if card.is_file() else f"# {model.resolve().name}\n"
    write_text(card, f"{text.partition(NOTE)[0].rstrip()}\n\n{NOTE}\n\n{sentence}\n")


def modelfile(file: Path, protocol: ProtocolCard | None, context: int) -> list[str]:
    """A Modelfile of Ollama: the protocol's stops, and its prompt as it is sent where the protocol has no chat
    template."""
    raw = protocol is not None and protocol.prompt_role == "raw"
    stops = protocol.dialect.stops if protocol is not None and protocol.env is None else ()
    quoted = (stop.replace("\\", "\\\\").replace('"', '\\"') for stop in stops)
    return [
        f"FROM ./{file.name}",
        *(["TEMPLATE {{ .Prompt }}"] if raw else []),
        f"PARAMETER num_ctx {context}",
        *(f'PARAMETER stop "{stop}"' for stop in quoted),
    ]


def _client_of_gguf(protocol: ProtocolCard | None) -> list[str]:
    if protocol is None:
        return ["The checkpoint has no `protocol.json`: how it was asked in training is not known here."]
    if protocol.env is not None:
        return [f"It acts with {_own_code(protocol.env)}, code that is no part of this file."]
    return [
        client_part(protocol),
        "",
        "Both servers leave the stop itself out of their reply: append it before what follows. A text that is sent "
        "again may be split into other tokens than those that were sampled: `/completion` of llama.cpp takes token "
        "ids, and returns them with `return_tokens`.",
    ]


def _own_code(code: OwnCode) -> str:
    """`my_env:Guessing` (`my_env.py`)."""
    functions, files = (" and ".join(f"`{name}`" for name in names) for names in (code.functions, code.sources))
    return f"{functions} ({files})" if files else functions


def _rights_beside(source: Path) -> list[str]:
    card = source / CARD
    _, found, rights = card.read_text(encoding="utf-8").partition(RIGHTS) if card.is_file() else ("", "", "")
    return [rights.strip()] if found else ["Not stated: the checkpoint has no card of Sleuth with a licence."]


def _from_scratch(recipe: Recipe) -> bool:
    first = recipe.stage[0]
    return getattr(first, "init", None) is not None


def _base_on_the_hub(recipe: Recipe) -> str | None:
    return None if _from_scratch(recipe) or Path(recipe.model).exists() else recipe.model


def _front_matter(
    base_model: str | None, base: RepositoryCard, tags: Sequence[str], datasets: Sequence[str] = ()
) -> list[str]:
    """What the hub reads: ours first, then what the base's card states."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        base_model=base_model,
        license=base.licence,
        license_name=base.licence_name,
        license_link=base.licence_link,
        datasets=list(dict.fromkeys([*datasets, *base.datasets])) or None,
        tags=[*tags, *base.tags],
    )
    return ["---", data.to_yaml(), "---", ""]


def _data_of(stages: Sequence[StageFields]) -> list[Path]:
    """The files that the data of these stages are read from."""
    named = (getattr(getattr(stage, "data", None), key, None) for stage in stages for key in ("questions", "texts"))
    return list(dict.fromkeys(place for place in named if isinstance(place, Path)))


def _data_table(recipe: Recipe, trained: Sequence[StageFields]) -> list[str]:
    """Where the data of training come from, and the licence that the card of a data set on the hub states."""
    rows = [(f"`{stage.name}`", *_source_of(place)) for stage in trained for place in _data_of([stage])]
    if not rows:
        return ["Generated from the seed of the recipe." if _from_scratch(recipe) else "No file of data was named."]
    return _table(("stage", "data", "licence"), rows)


def _source_of(place: Path) -> tuple[str, str]:
    """A file of data and its licence."""
    location = HubLocation.read(place)
    if location is None:
        return f"`{place}`", "not known: a file of the run's owner"
    return f"`{location}`", card_of(location.repository, "dataset").licence_line()


def _bounds(measured: Tables, overlaps: Sequence[Mapping[str, Any]]) -> list[str]:
    """How far the figures reach."""
    lines = [
        f"{overlap['shared']} of the {overlap['of']} questions of `{overlap['test']}` are also trained on, in stage "
        f"`{overlap['train']}`."
        for overlap in overlaps
    ]
    if measured:
        lines.append(
            "They were measured on these questions, with this corpus and under the protocol below. Nothing is claimed "
            "for other questions, corpora, languages or prompts."
        )
    return lines


def _how_to_run(checkpoint: Path, protocol: ProtocolCard | None, trained: StageFields | None) -> list[str]:
    """With Sleuth, which reads `protocol.json`, or with a server of completions, to which one must hold to it."""
    writes = trained.writes if trained is not None else "answers"
    place = quote(str(checkpoint))
    if writes == "continuations":
        compared = f"sleuth win-rate {place} RECIPE --against OTHER    # its continuations beside another's"
        return ["```", compared, "```", "", "It continues text: any server of plain completions runs it too."]
    if writes == "thoughts":
        probe = f"sleuth probe-thoughts {place} RECIPE    # whether its thoughts are of use"
        return [
            "```",
            probe,
            "```",
            "",
            "It continues text and thinks between tags: any server of completions runs it.",
        ]
    if protocol is not None and protocol.env is not None:
        acts = f"It acts with {_own_code(protocol.env)}, code that is no part of this checkpoint: evaluate it"
        searched = " --index DIR" if protocol.prompt_text and protocol.corpus_sha256 else ""
        alone = f", or `sleuth serve {place}{searched} --allow-code`" if protocol.own_environment else ""
        alone += f", or let your agent ask it at `sleuth serve {place}`" if protocol.prompt == AGENT else ""
        return [f"{acts} in a recipe whose `env` names it{alone}."]
    index = " --index DIR" if protocol is None or environment_of(protocol.dialect).needs_index else ""
    lines = ["```", f"sleuth eval {place} --questions FILE{index}", "```"]
    if index:
        lines.insert(1, f"sleuth serve {place}{index}    # a page to talk to it, and OpenAI's API")
    if protocol is None:
        return lines
    served = f"`vllm serve {place}`, or `python -m sglang.launch_server --model-path {place}`"
    if protocol.dialect.frame != "text":
        return [*lines, "", f"A server of chat completions with tools comes near: {served}. {client_part(protocol)}"]
    return [*lines, "", f"Any server of plain completions runs it too: {served}. {client_part(protocol)}"]


def client_part(protocol: ProtocolCard) -> str:
    """What a client of a server of completions must do, in sentences: the prompt, the stops, and what follows a
    search."""
    dialect = protocol.dialect
    of = "" if dialect.sentences_of is None else f"sentences, by shared words, of the {dialect.sentences_of} best "
    best = f"the {dialect.top_k} best {of}passages as the protocol"
    if dialect.frame != "text":
        given = f"Give the prompt below as the {protocol.prompt_role}'s message with the protocol's tool, and answer a"
        return f"{given} call with {best} writes them{_times(dialect)}."
    stops = ", ".join(f"`{stop}`" for stop in dialect.stops)
    sent = "Send the prompt below byte for byte, without a chat template,"
    if protocol.prompt_role != "raw":
        sent = (
            f"Send the prompt below as the {protocol.prompt_role}'s message of the chat template, written out as text,"
        )
    if given := environment_of(dialect).filled_with(dialect):
        return f"{sent} and stop at {stops}. {given}"
    return f"{sent} and stop at {stops}. After a search, append {best} wraps them, and go on{_times(dialect)}."


def _times(dialect: Dialect) -> str:
    limits = [f"{dialect.searches} times"] if dialect.searches is not None else []
    limits += [f"in {dialect.turns} turns"] if dialect.turns is not None else []
    return f"; at most {' and '.join(limits)}" if limits else ""


def _rights(recipe: Recipe, base: RepositoryCard, methods: Sequence[str]) -> list[str]:
    """The licence of the base, and BibTeX of the base and the methods."""
    if _from_scratch(recipe):
        lines = ["Trained from random weights: no licence is inherited from another model."]
    else:
        lines = [f"The licence of the base `{recipe.model}` is {base.licence_line()}. That of the data is its own."]
    citations = dict.fromkeys([*base.citations, *methods])
    return [*lines, *(line for citation in citations for line in ("", "```bibtex", citation, "```"))]


def _origin(recipe: Recipe, stage: int) -> str:
    start = "from random weights" if _from_scratch(recipe) else f"from `{recipe.model}`"
    before = [f"`{earlier.name}`" for earlier in recipe.stage[:stage] if earlier.kind != "evaluate"]
    return start + (f", after {', '.join(before)}" if before else "")


def _measured(tables: Tables) -> list[str]:
    if not tables:
        return ["Nothing has been measured yet."]
    shown = [line for head, *rows in tables for line in (*_table(head, rows), "")]
    return [*shown, "The latest evaluations of the run at the time of this save, with 95 % intervals."]


def _settings(recipe: Recipe, trained: StageFields, step: int) -> list[tuple[Any, ...]]:
    run = {"seed": recipe.seed, "dtype": recipe.dtype, "step": step}
    rows = [*run.items(), *flat(trained.model_dump(exclude_none=True), lists=False)]
    return [(f"`{key}`", f"`{emit_value(value)}`") for key, value in rows]


def protocol_section(protocol: ProtocolCard) -> list[str]:
    """The protocol as a table. The prompt stands in an indented block, because a prompt may hold any fence."""
    figures = protocol.model_dump(exclude={"prompt_text"}, exclude_none=True) | {"hash": protocol.hash}
    return [
        *_table(
            ("key", "value"), [(f"`{key}`", f"`{emit_value(value)}`") for key, value in flat(figures, lists=False)]
        ),
        *("", "The prompt, byte for byte in `protocol.json`:", ""),
        *(f"    {line}" for line in protocol.prompt_text.splitlines()),
    ]


def _table(head: tuple[str, ...], rows: list[tuple[Any, ...]]) -> list[str]:
    cells = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in cells]


# -- published methods -------------------------------------------------------------------------------------------------

METHODS = {
    "grpo": "shao2024deepseekmath",
    "search_r1": "jin2025searchr1",
    "slime": "slime2025",
    "research": "chen2025research",
    "self_improving": "tan2026selfimproving",
    "distillation": "agarwal2023onpolicy",
    "dgpo": "kotoge2025dgpo",
    "dr_tulu": "shao2025drtulu",
}
"""Keys of `citations.bib` by method. `self_improving` has both self-improving pretraining and thinking mid-training."""
TAGS = {
    "grpo": ("reinforcement-learning",),
    "online_dpo": ("dpo",),
    "supervised": ("sft",),
    "warm_start": ("sft",),
    "search": ("search-agent", "retrieval-augmented-generation"),
    "refine": ("citations",),
    "thought": ("thinking",),
    "tools": ("tool-use",),
}
"""Tags of the hub by the kind of a stage or of its environment."""


def method_tags(stages: Sequence[StageFields]) -> list[str]:
    """The tags of what these stages train."""
    kinds = [kind for stage in stages for kind in (stage.kind, getattr(getattr(stage, "env", None), "kind", ""))]
    return list(dict.fromkeys(tag for kind in kinds for tag in TAGS.get(kind, ())))


def method_citations(stages: Sequence[StageFields]) -> list[str]:
    """BibTeX of the methods that these stages follow."""
    entries = files("sleuth.runs").joinpath("citations.bib").read_text(encoding="utf-8").strip().split("\n\n")
    by_key = {entry.partition("{")[2].partition(",")[0]: entry for entry in entries}
    return [by_key[METHODS[name]] for name in dict.fromkeys(name for stage in stages for name in stage.methods())]


def trained_stages(recipe: Recipe, stage: int) -> list[StageFields]:
    """The stages that trained a checkpoint of the recipe's stage number `stage`."""
    return [one for one in recipe.stage[: stage + 1] if one.trains]
