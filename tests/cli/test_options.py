"""No option is silently ignored: one that does not apply is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from verb import sleuth

from sleuth.cli import index
from sleuth.retrieval import dense, encoder
from sleuth.retrieval.index_card import EncoderCard, IndexCard

SERVE = [("--name", "n"), ("--slots", "3"), ("--waiting", "3"), ("--max-seconds", "3"), ("--context", "64")]
SERVE += [("--dtype", "float32"), ("--host", "127.0.0.1"), ("--port", "0")]
ENCODER = ("--encoder", "e")
DENSE = [ENCODER, ("--query-prefix", "q"), ("--passage-prefix", "p"), ("--pooling", "cls"), ("--vectors", "flat")]


def refusal(*arguments: object) -> str:
    """The only line of a command that ends with status 2."""
    done = sleuth(*arguments)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.output
    return done.stderr.removeprefix("error: ").rstrip("\n")


@pytest.mark.parametrize("option", SERVE, ids=" ".join)
def test_a_model_that_is_not_there_is_named_whatever_the_options(option: tuple[str, ...]) -> None:
    assert "no such folder" in refusal("serve", "no/such/model", "--port", 0, *option)


@pytest.mark.parametrize("option", [*DENSE, ("--faiss", "f")], ids=" ".join)
def test_a_bm25_index_has_no_options_of_vectors(option: tuple[str, ...]) -> None:
    refused = refusal("index", "c.jsonl", "i", *option)
    assert refused == f"{option[0]} is for vectors, and a bm25 index has none; add --kind dense"


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_an_index_of_vectors_takes_all_of_theirs(kind: str) -> None:
    options = [word for option in DENSE for word in option]
    assert refusal("index", "c.jsonl", "i", "--kind", kind, *options) == "c.jsonl: no such file"


def test_vectors_are_quantised_by_default_unless_there_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[str]()

    def build(corpus: Path, folder: Path, encoder: EncoderCard, storage: str, progress: object) -> IndexCard:
        built.append(storage)
        return IndexCard(kind="dense", count=3, corpus_sha256="", layout=1, library="", encoder=encoder)

    monkeypatch.setattr(dense, "build_dense", build)
    monkeypatch.setattr(encoder, "encoder_card", lambda model, **settings: EncoderCard(model=model, width=8))
    (tmp_path / "c.jsonl").write_text('{"id": "1", "contents": "a"}\n' * 3)
    for few in (4, 3):
        monkeypatch.setattr(index, "FEW_PASSAGES", few)
        assert sleuth("index", tmp_path / "c.jsonl", tmp_path / "i", "--kind", "dense", *ENCODER).exit_code == 0
    assert built == ["flat", "ivf-sq8"]


def test_vectors_of_faiss_are_not_encoded_and_not_hybrid() -> None:
    faiss = ("--faiss", "f", *ENCODER)
    assert refusal("index", "c.jsonl", "i", "--kind", "dense", *faiss, "--vectors", "flat") == (
        "--vectors is for encoding a corpus, and --faiss opens vectors that exist"
    )
    assert refusal("index", "c.jsonl", "i", "--kind", "hybrid", *faiss) == (
        "--faiss is for --kind dense; leave it out to encode the corpus for a hybrid index"
    )


def test_options_of_eval_that_need_another_are_refused_with_it() -> None:
    asked = ("eval", "m", "--questions", "q.jsonl")
    assert refusal(*asked, "--min-citation-f1", 0.8) == (
        "--min-citation-f1 0.8 is for --rows FILE.jsonl, where accepted answers are kept; give that too"
    )
    assert refusal(*asked, "--served-as", "n") == "--served-as n is for a server; give its URL too: --engine URL"
    assert refusal(*asked, "--engine", "http://h:1", "--dtype", "float32") == (
        "--dtype float32 is for a model in this process; the server at http://h:1 has its own"
    )
    assert refusal(*asked, "--rows", "r.parquet") == "--rows r.parquet: should be a .jsonl file"
    assert refusal(*asked, "--engine", "h:1") == "--engine h:1: should be http://HOST:PORT"
    assert refusal(*asked, "--retriever", "h:1") == "--retriever h:1: should be http://HOST:PORT"
    assert refusal(*asked, "--retriever", "http://h:1", "--index", "i") == (
        "--index and --retriever are both given: passages come from one of them"
    )
