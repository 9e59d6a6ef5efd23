"""The page of a certificate, on which a person rates answers. It opens offline and keeps the ratings in the browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sleuth.evaluation.certificate import FIGURES, LEAST, Certificate
from sleuth.evaluation.paired import TRAINED
from sleuth.report.figures import failure_rows
from sleuth.report.page import fill, write_page

SCRIPTS = ("elements.js", "certificate.js")


def write_certificate(certificate: Certificate, file: Path, passages: Mapping[str, Sequence[str]]) -> None:
    """Writes the page. `passages` are those that answer a question, as they are shown beside its answers."""
    questions = {one["id"]: one["question"] for one in certificate.arms[TRAINED]}
    to_rate = [
        {"key": key, "answer": answer, "question": questions[base["id"]], "passages": passages.get(base["id"], ())}
        for (base, _), keyed in zip(certificate.pairs, certificate.queue, strict=False)
        for key, answer in keyed.items()
    ]
    answered = certificate.answerable()
    write_page(
        file,
        fill(
            "certificate.html",
            SCRIPTS,
            certificate=certificate,
            by_label={row.label: found for row, found in certificate.figures()},
            meanings={row.label: row.meaning for row in FIGURES},
            by_person={"Right answers": certificate.by_person()} if certificate.ratings else {},
            failures=failure_rows(answered),
            failure_arms=answered,
            least=LEAST,
            data={"certificate": certificate.id, "least": LEAST, "to_rate": to_rate},
        ),
    )
