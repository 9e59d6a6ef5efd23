"""What finds the passages is a part of the protocol, wherever the index is and whatever its card of before lacks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpora import PASSAGES, WriteCorpus, towns
from starlette.testclient import TestClient

from sleuth.episodes.protocol import ProtocolCard
from sleuth.episodes.protocol_differences import differences
from sleuth.episodes.setting import Setting, changes_of_card
from sleuth.retrieval.bm25 import build_index
from sleuth.retrieval.dense import build_dense
from sleuth.retrieval.encoder import encoder_card
from sleuth.retrieval.hybrid import build_hybrid
from sleuth.retrieval.index_card import EncoderCard, read_card
from sleuth.retrieval.open_index import open_index
from sleuth.search.setting import search_setting
from sleuth.search.tables import SearchEnvRecipe
from sleuth.serve.access import Access, Limits
from sleuth.serve.retriever_app import retriever_app
from sleuth.serve.search_handler import IndexLoader
from sleuth.terminal.recipe_inputs import missing_inputs
from sleuth.types import UNKNOWN_RETRIEVER, RetrieverIdentity, SleuthError, Task

TASKS = [Task(id="1", question="Who wrote?", golden_answers=("Ada",), gold_passages=("17",))]
MANY = towns(range(300))
E5 = {"kind": "dense", "encoder": "intfloat/e5-of-letters"}


@pytest.fixture(scope="session")
def card(encoder_folder: Path) -> EncoderCard:
    return encoder_card(str(encoder_folder))


def env_of(index: Path | None, **keys: Any) -> SearchEnvRecipe:
    return SearchEnvRecipe(kind="search", dialect="sleuth", prompt="plain", index=index, **keys)


def setting_over(index: Path, **keys: Any) -> Setting:
    return search_setting(env_of(index, **keys), None, TASKS)


def protocol_over(index: Path, **keys: Any) -> ProtocolCard:
    return setting_over(index, **keys).protocol("strict", 512)


def test_each_way_of_finding_the_same_passages_is_another_protocol(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    corpus = write_corpus(MANY | PASSAGES)
    build_index(corpus, tmp_path / "bm25")
    build_dense(corpus, tmp_path / "dense", card)
    build_dense(corpus, tmp_path / "prefixed", replace(card, query_prefix="ask: "))
    build_dense(corpus, tmp_path / "pooled", encoder_card(card.model, pooling="cls"))
    build_dense(corpus, tmp_path / "ivf", card, "ivf-sq8")
    build_hybrid(corpus, tmp_path / "hybrid", card)
    arms = {name: protocol_over(tmp_path / name) for name in ("bm25", "dense", "prefixed", "pooled", "ivf", "hybrid")}
    arms |= {arm: protocol_over(tmp_path / "bm25", retriever=arm) for arm in ("gold", "shuffled")}
    assert len({arm.corpus_sha256 for arm in arms.values()}) == 1
    assert len({arm.hash for arm in arms.values()}) == len(arms)
    [other_kind] = differences(arms["bm25"], arms["gold"])
    assert other_kind.startswith("retriever: A (kind `bm25`, k1 ")
    assert other_kind.endswith("), B (kind `gold`)")
    assert differences(arms["dense"], arms["prefixed"]) == ["retriever.query_prefix: A `query:·`, B `ask:·`"]
    assert differences(arms["dense"], arms["ivf"])[0] == "retriever.storage: A `flat`, B `ivf-sq8`"
    assert differences(arms["bm25"], arms["shuffled"]) == ["retriever.shuffled: A none, B yes"]


@pytest.mark.parametrize("kind", ["dense", "ivf-sq8", "hybrid"])
def test_what_the_card_of_an_index_of_before_lacks_is_found_when_it_is_opened(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path, kind: str
) -> None:
    index, corpus = tmp_path / "index", write_corpus(MANY)
    if kind == "hybrid":
        build_hybrid(corpus, index, card)
    else:
        build_dense(corpus, index, card, "flat" if kind == "dense" else "ivf-sq8")
    whole = open_index(index).card.retriever
    assert read_card(index).retriever == whole
    assert None not in (whole.encoder, whole.weights_sha256, whole.pooling, whole.storage)
    assert (whole.lists, whole.probes) == ((4, 4) if kind == "ivf-sq8" else (None, None))
    for file in index.rglob("card.json"):
        fields = json.loads(file.read_text())
        for key in ("weights_sha256", "pooling"):
            fields.get("encoder", {}).pop(key, None)
        later = {"lists", "probes", "fusion", "files"}
        file.write_text(json.dumps({key: fields[key] for key in fields.keys() - later}))
    for sums in index.rglob("SHA256SUMS"):
        sums.unlink()
    assert read_card(index).retriever != whole
    assert open_index(index).card.retriever == whole


def test_an_encoder_with_other_weights_is_refused(
    card: EncoderCard, encoder_folder: Path, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file, save_file

    encoder = Path(shutil.copytree(encoder_folder, tmp_path / "e5-of-letters"))
    build_dense(write_corpus(), tmp_path / "index", encoder_card(str(encoder)))
    [file] = encoder.rglob("*.safetensors")
    weights = load_file(file)
    save_file({name: 2 * value for name, value in weights.items()}, file, metadata={"format": "pt"})
    with pytest.raises(
        SleuthError, match=r"weights \w{12}, and the vectors were made with \w{12}: queries would"
    ) as told:
        open_index(tmp_path / "index")
    assert "\n" not in str(told.value)


def test_a_server_reports_the_identity_of_the_index_that_it_opened(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    from sleuth.retrieval.index_card import identity_of

    build_dense(write_corpus(), tmp_path / "index", card)
    file = tmp_path / "index" / "card.json"
    fields = json.loads(file.read_text())
    del fields["encoder"]["weights_sha256"]
    file.write_text(json.dumps(fields))
    (tmp_path / "index" / "SHA256SUMS").unlink()
    loader = IndexLoader(tmp_path / "index")
    loader._open(lambda: None)
    with TestClient(retriever_app(loader, Limits(), Access())) as client:
        health = client.get("/health").json()
    assert identity_of(health["index"]) == open_index(tmp_path / "index").card.retriever
    assert identity_of({"corpus_sha256": "8c1f"}) == UNKNOWN_RETRIEVER  # of another make
    assert identity_of({"kind": 3}) == UNKNOWN_RETRIEVER


def test_a_recipe_that_requires_an_encoder_refuses_an_index_of_words(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    build_index(write_corpus(), words := tmp_path / "words")
    build_dense(write_corpus(), vectors := tmp_path / "vectors", card)
    asked = "kind 'bm25', not 'dense'; required_retriever asks for dense (e5-of-letters): give such a one, or set "
    [told] = missing_inputs(env_of(words, required_retriever=E5))
    assert told == f'index = "{words}": {asked}required_retriever = {{}} if others will do'
    with pytest.raises(SleuthError, match="kind 'bm25', not 'dense'"):
        setting_over(words, required_retriever=E5)
    with pytest.raises(SleuthError, match="encoder 'e5-of-letters', not 'e5-base-v2'"):
        setting_over(vectors, required_retriever={"kind": "dense", "encoder": "intfloat/e5-base-v2"})
    assert list(missing_inputs(env_of(vectors, required_retriever=E5))) == []
    assert setting_over(vectors, required_retriever=E5) is not None
    assert setting_over(words, required_retriever={}) is not None
    assert list(missing_inputs(env_of(None, retriever="empty", required_retriever=E5))) == []


def test_a_server_that_does_not_say_what_it_is_is_refused_where_a_recipe_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    served = lambda urls, log: ("8c1f", UNKNOWN_RETRIEVER)  # noqa: E731
    monkeypatch.setattr("sleuth.search.setting.wait_until_ready", served)
    env = env_of(None, retriever="remote", urls=["http://127.0.0.1:1"])
    assert search_setting(env, None, TASKS).protocol("strict", 512).retriever == UNKNOWN_RETRIEVER
    asking = env_of(None, retriever="remote", urls=["http://127.0.0.1:1"], required_retriever=E5)
    with pytest.raises(SleuthError, match=r"http://127\.0\.0\.1:1: does not say what it is; required_retriever asks"):
        search_setting(asking, None, TASKS)


def test_a_checkpoint_evaluated_with_another_retriever_is_said(
    card: EncoderCard, write_corpus: WriteCorpus, tmp_path: Path
) -> None:
    for build, name in ((build_index, "words"), (lambda *place: build_dense(*place, card), "vectors")):
        build(write_corpus(), tmp_path / name)
    words, vectors = (setting_over(tmp_path / name) for name in ("words", "vectors"))
    trained = vectors.protocol("strict", 512)
    assert changes_of_card(trained, vectors) == []
    assert changes_of_card(trained, words) == [
        "the retriever is not what the checkpoint was trained with: kind 'bm25', not 'dense'"
    ]
    required = RetrieverIdentity(kind="dense", encoder="e5-of-letters")  # of a recipe, for another trainer's checkpoint
    assert changes_of_card(trained.model_copy(update={"retriever": required}), vectors) == []
    unknown = changes_of_card(trained.model_copy(update={"retriever": UNKNOWN_RETRIEVER}), words)
    assert unknown == ["the checkpoint was trained with the retriever unknown, and this one is bm25"]
    assert changes_of_card(trained.model_copy(update={"retriever": None}), words) == []  # of an earlier version
